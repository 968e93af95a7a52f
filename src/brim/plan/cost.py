"""`CostModel`: the cost of a microbatch, by which optimizer steps are balanced over ranks.

A rank waits for the slowest one of its step, so what counts is the ratio between the costs of microbatches, not their
unit. A cost is linear in the slots that are paid for (rows times width) and in the squared lengths that attention sees.
Neither NumPy nor json nor pathlib is imported here: commands show and check their options before they load anything.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from brim.core.errors import DataError, OptionError
from brim.core.options import is_number

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ATTENTION_SCALE = 12_288
"""Length at which attention costs as much as the rest of the model: about 12 times the model's width, here 1024."""

HIGHEST = 1e300
"""Costs from here on are taken for infinite."""

SHORTEST_SCALE = 16
"""Attention that costs as much as the rest of the model at a shorter length is taken for a mistake."""


@dataclass(frozen=True, kw_only=True)
class CostModel:
    """Cost of a microbatch: `per_token` for each of its slots, and `per_square` for each squared length.

    Example:
        >>> CostModel(per_token=2.0, per_square=0.001).attention_scale
        2000
    """

    per_token: float = 1.0
    """Cost of a slot, in any unit."""
    per_square: float = 1 / ATTENTION_SCALE
    """Cost of a squared length, in the same unit; 0 for models whose attention is linear."""

    def __post_init__(self) -> None:
        if not is_number(self.per_token) or not 0 < self.per_token < HIGHEST:
            raise OptionError(f"the cost of a token must be above 0 and finite, got {self.per_token!r}")
        if not is_number(self.per_square) or not 0 <= self.per_square < HIGHEST:
            raise OptionError(
                f"the cost of a squared length must be at least 0 (0: attention is linear) and finite, got "
                f"{self.per_square!r}"
            )
        if self.per_square > self.per_token / SHORTEST_SCALE:
            raise OptionError(
                f"the cost of a squared length must be at most 1/{SHORTEST_SCALE} of that of a token, got "
                f"{self.per_square} and {self.per_token}"
            )

    @property
    def attention_scale(self) -> int | None:
        """The length at which attention costs as much as the rest of the model. None: attention costs nothing."""
        if self.per_square == 0:
            return None
        return max(1, round(min(self.per_token / self.per_square, 2**62)))

    def cost(self, slots: "NDArray[np.int64]", attention: "NDArray[Any]") -> "NDArray[np.int64]":
        """Return the costs of microbatches, in slots. `attention` is the sum of their squared lengths."""
        scale = self.attention_scale
        return slots if scale is None else slots + attention // scale

    @classmethod
    def of_model(cls, config: "Mapping[str, Any] | str | os.PathLike[str] | Any") -> "CostModel":
        """Return the costs of a causal transformer, by counting its multiplications.

        Args:
            config: The model's config as a mapping or an object of transformers, or the path of its directory or
                config.json.

        Raises:
            DataError: There is no such file, or it is not the config of a model.
        """
        values, name = _model_config(config)
        return cls(per_token=float(_linear(values, name)), per_square=float(_attention(values, name)))

    @classmethod
    def of_speeds(cls, short: "tuple[int, float]", long: "tuple[int, float]") -> "CostModel":
        """Return the costs that two measurements give, each a length of samples and the seconds per token at it.

        Raises:
            OptionError: The lengths are equal, or the longer samples are not slower per token.
        """
        (length, seconds), (longer, more) = sorted((short, long))
        if length == longer:
            raise OptionError(
                f"both measurements are of samples of {length} tokens; measure at two lengths, so that the cost of "
                "attention can be told from that of the rest"
            )
        per_square = (more - seconds) / (longer - length)
        if per_square < 0 or seconds - per_square * length <= 0:
            raise OptionError(
                f"these measurements do not fit a cost model: {seconds:.3g} s a token at length {length}, {more:.3g} "
                f"at {longer}; measure with more steps, or at lengths that are further apart"
            )
        return cls(per_token=seconds - per_square * length, per_square=per_square)


def _model_config(config: Any) -> tuple[Mapping[str, Any], str]:
    if isinstance(config, Mapping):
        return cast(Mapping[str, Any], config), "the config"
    if not isinstance(config, str | os.PathLike):
        if not hasattr(config, "to_dict"):
            raise DataError(
                f"{config!r} is not the config of a model; give a mapping, a config of transformers, or a path"
            )
        return cast(Mapping[str, Any], config.to_dict()), type(config).__name__
    import json
    from pathlib import Path

    path = Path(cast("str | os.PathLike[str]", config))
    path = path / "config.json" if path.is_dir() else path
    try:
        values = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"cannot read the config of a model, {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise DataError(f"{path} is not the config of a model: it is not JSON") from None
    if not isinstance(values, dict):
        raise DataError(f"{path} is not the config of a model: it is not a JSON object")
    return cast(Mapping[str, Any], values), str(path)


def _linear(values: Mapping[str, Any], name: str) -> int:
    """Return the multiplications of a token in the matrices of the model, its head included."""
    width, layers, vocabulary = (_number(values, name, *names) for names in (WIDTH, LAYERS, VOCABULARY))
    heads, head, groups = _heads(values, name)
    inner = _number(values, name, *INNER, default=4 * width)
    gated = 3 if values.get("model_type") in GATED or values.get("hidden_act") in ("silu", "swiglu") else 2
    layer = width * head * (2 * heads + 2 * groups) + gated * width * inner
    return layers * layer + width * vocabulary


def _attention(values: Mapping[str, Any], name: str) -> int:
    """Return the multiplications of causal attention for a sequence, divided by its squared length: scores and
    weighted sums, each over the half of the positions that are not in the future.
    """
    heads, head, _ = _heads(values, name)
    return _number(values, name, *LAYERS) * heads * head


def _heads(values: Mapping[str, Any], name: str) -> tuple[int, int, int]:
    """Return the number of heads, their size, and the number of heads of keys and values."""
    width, heads = _number(values, name, *WIDTH), _number(values, name, *HEADS)
    head = _number(values, name, "head_dim", default=max(width // heads, 1))
    return heads, head, _number(values, name, "num_key_value_heads", default=heads)


WIDTH, LAYERS = ("hidden_size", "n_embd", "d_model"), ("num_hidden_layers", "n_layer", "num_layers")
HEADS, VOCABULARY = ("num_attention_heads", "n_head"), ("vocab_size",)
INNER = ("intermediate_size", "n_inner", "ffn_dim")
GATED = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3", "olmo2", "smollm3")


def _number(values: Mapping[str, Any], name: str, *names: str, default: int | None = None) -> int:
    """Return the first of these values that is given."""
    for key in names:
        value = values.get(key)
        if value is not None:
            if type(value) is not int or value < 1:
                raise DataError(f"{name} is not the config of a model: {key} is {value!r}")
            return value
    if default is None:
        raise DataError(f"{name} is not the config of a causal model: it has no {' or '.join(names)}")
    return default


DEFAULT = CostModel()


def cost(slots: "NDArray[np.int64]", attention: "NDArray[Any]") -> "NDArray[np.int64]":
    """Return the costs of microbatches by the default cost model."""
    return DEFAULT.cost(slots, attention)
