"""How a directory of sentence-transformers wants the vectors of a text's tokens to become one vector.

Read from `modules.json`, the `config.json` of its pooling module, `sentence_bert_config.json` and
`config_sentence_transformers.json`. A directory without them is an ordinary encoder: its tokens are averaged, and the
result is not normalised. What would need more than pooling (a dense layer after it, say) is refused, because vectors
that are silently others than the model's own are worse than none.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from brim.core.errors import DataError

if TYPE_CHECKING:
    import torch

MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Older directories have one switch for each mode, newer ones have `pooling_mode` with these names. Where several are
on, their vectors are joined in this order."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings in a model directory that the model itself does not hold."""

    modes: tuple[str, ...] = ("mean",)
    normalize: bool = False
    max_length: int | None = None
    """Upper limit of the tokens of a text, special tokens included; None if it does not say."""
    lower: bool = False
    """Whether texts are put into lower case before they are cut into tokens."""
    prefix: str = ""
    """Put before every text."""


def read_recipe(directory: Path) -> Recipe:
    """Read how a directory pools.

    Raises:
        DataError: A file cannot be read, or asks for something that brim cannot do.
    """
    modules = _modules(directory)
    kinds = [kind for kind, _ in modules]
    unknown = [kind for kind in kinds if kind not in ("Transformer", "Pooling", "Normalize")]
    if unknown or (kinds and kinds[0] != "Transformer"):
        listed = ", ".join(kinds)
        raise DataError(
            f"{directory / 'modules.json'}: brim runs Transformer, Pooling and Normalize, and this model has {listed}; "
            "use another model, or serve this one with sentence-transformers"
        )
    folder = next((path for kind, path in modules if kind == "Pooling"), "1_Pooling")
    pooling = _read(directory / folder / "config.json")
    encoder = _read(directory / "sentence_bert_config.json")
    prefix = _prefix(directory)
    if prefix and pooling.get("include_prompt") is False:
        raise DataError(
            f"{directory / folder / 'config.json'}: include_prompt is false, and brim cannot leave the tokens of the "
            "default prompt out; use another model, or remove its default prompt"
        )
    return Recipe(
        modes=_modes(pooling, directory / folder / "config.json"),
        normalize="Normalize" in kinds,
        max_length=_max_length(encoder, directory / "sentence_bert_config.json"),
        lower=encoder.get("do_lower_case") is True,
        prefix=prefix,
    )


def pool(states: "torch.Tensor", lengths: "torch.Tensor", mode: str) -> "torch.Tensor":
    """Make one vector of each row's tokens.

    Args:
        states: [rows, width, dim], the tokens first and the padding after them.
        lengths: [rows], the number of tokens, at least 1.
        mode: One of the values of `MODES`.

    Returns:
        [rows, dim]
    """
    if mode == "cls":
        return states[:, 0]
    if mode == "lasttoken":
        return states[range(len(states)), lengths - 1]
    place = lengths.new_ones(states.shape[:2]).cumsum(1)  # [rows, width]: 1, 2, 3 ...
    mask = (place <= lengths[:, None])[..., None]
    if mode == "max":
        return states.masked_fill(~mask, float("-inf")).amax(1)
    if mode == "weightedmean":
        weights = (place[..., None] * mask).to(states.dtype)
        return (states.masked_fill(~mask, 0.0) * weights).sum(1) / weights.sum(1)
    total = states.masked_fill(~mask, 0.0).sum(1)
    count = lengths[:, None].to(states.dtype)
    return total / (count.sqrt() if mode == "mean_sqrt_len_tokens" else count)


def _modules(directory: Path) -> list[tuple[str, str]]:
    """Return the kind and the folder of each module, in their order."""
    path = directory / "modules.json"
    if not path.is_file():
        return []
    try:
        listed: Any = json.loads(path.read_bytes())
        return [(str(module["type"]).rsplit(".", 1)[-1], str(module["path"])) for module in listed]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise _damaged(path, "a list of modules with type and path", error) from None


def _modes(pooling: dict[str, Any], path: Path) -> tuple[str, ...]:
    if "pooling_mode" in pooling:
        named = pooling["pooling_mode"]
        modes = tuple(str(mode) for mode in (cast(list[Any], named) if isinstance(named, list) else [named]))
    else:
        modes = tuple(mode for switch, mode in MODES.items() if pooling.get(switch) is True)
    unknown = [mode for mode in modes if mode not in MODES.values()]
    if unknown or (pooling and not modes):
        what = f"unknown pooling mode {unknown[0]!r}" if unknown else "no pooling mode is on"
        raise DataError(f"{path}: {what}; known are {', '.join(MODES.values())}")
    return modes or ("mean",)


def _max_length(encoder: dict[str, Any], path: Path) -> int | None:
    length = encoder.get("max_seq_length")
    if length is not None and (type(length) is not int or length < 1):
        raise DataError(f"{path}: max_seq_length must be a positive integer, got {length!r}")
    return length


def _prefix(directory: Path) -> str:
    path = directory / "config_sentence_transformers.json"
    config = _read(path)
    name = config.get("default_prompt_name")
    if name is None:
        return ""
    try:
        return str(config["prompts"][name])
    except (KeyError, TypeError):
        raise DataError(f"{path}: the default prompt {name!r} is not one of its prompts") from None


def _read(path: Path) -> dict[str, Any]:
    """Return a JSON object, empty if there is no such file."""
    if not path.is_file():
        return {}
    try:
        found: Any = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise _damaged(path, "JSON", error) from None
    if not isinstance(found, dict):
        raise DataError(f"{path} must hold a JSON object, got {str(found)[:40]!r}")
    return cast(dict[str, Any], found)


def _damaged(path: Path, what: str, error: Exception) -> DataError:
    return DataError(f"{path} cannot be read as {what} ({' '.join(str(error).split())[:200]})")
