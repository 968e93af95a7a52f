"""The options of generation and of scoring. Nothing here imports torch."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, cast

from brim.core.errors import OptionError
from brim.core.options import check_counts

Auto = Literal["auto"]
Stop = str | int
"""A text that appears in a response and ends it, or the id of a token that does."""

FinishReason = Literal["eos", "stop", "length"]
"""Why a response ends: an end token of the model, a stop of `GenerationConfig.stop`, or `max_new_tokens`."""


@dataclass(frozen=True, kw_only=True)
class Law:
    """The distribution that tokens are drawn from, as a change of the model's own.

    The logits are divided by the temperature. Then only the `top_k` likeliest tokens are kept (0: all); of them the
    likeliest whose probabilities first reach `top_p` together; of them those whose probability is at least `min_p`
    times the largest one. Tokens of equal probability are kept or dropped together. What is kept is normalised again.
    A temperature of 0 keeps the likeliest token alone.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise OptionError(f"temperature must not be negative or infinite, got {self.temperature}")
        if self.top_k < 0:
            raise OptionError(f"top_k must not be negative (0 keeps all tokens), got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise OptionError(f"top_p must be above 0 and at most 1, got {self.top_p}")
        if not 0 <= self.min_p <= 1:
            raise OptionError(f"min_p must lie between 0 and 1, got {self.min_p}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def truncates(self) -> bool:
        """Whether some tokens have no probability."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    @property
    def is_models_own(self) -> bool:
        return self.temperature == 1 and not self.truncates


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """How responses are drawn, and how much is computed at once."""

    temperature: float = 1.0
    """Divides the logits before a token is drawn; 0 takes the likeliest token."""
    top_p: float = 1.0
    """Draw from the likeliest tokens whose probabilities first reach this sum."""
    max_new_tokens: int = 200
    """Upper limit of the tokens of a response."""
    do_sample: bool = True
    """False takes the likeliest token at every step, whatever the other options of the distribution are."""
    gen_batch_size: int | Auto = 32
    """Upper limit of the responses that are generated at once. "auto" measures which number is fast and fits."""
    tf_batch_size: int | Auto = 64
    """Upper limit of the responses that are scored at once. "auto" measures which number is fast and fits."""
    top_k: int = 0
    """Draw from this many likeliest tokens; 0 is no limit."""
    min_p: float = 0.0
    """Draw from tokens whose probability is at least this share of the largest one."""
    seed: int | None = None
    """Seed of the draws. None takes a new one for each call; the result says which."""
    stop: tuple[Stop, ...] | None = None
    """Texts and token ids that end a response. None takes those that the data set asks for, such as "</answer>"."""
    gen_token_budget: int | None = None
    """Upper limit of the tokens whose keys and values are kept while generating: responses times their width."""
    tf_token_budget: int | None = None
    """Upper limit of the tokens of a microbatch that is scored, padding included."""
    memory_budget: int | None = None
    """Upper limit, in bytes, of what a batch needs beside the model, as estimated from the model's shape; it lowers the
    token budgets."""

    def __post_init__(self) -> None:
        self.law  # noqa: B018  checks its options
        check_counts(
            max_new_tokens=self.max_new_tokens,
            gen_token_budget=self.gen_token_budget,
            tf_token_budget=self.tf_token_budget,
        )
        for name in ("gen_batch_size", "tf_batch_size"):
            check_batch_size(name, getattr(self, name))
        if self.memory_budget is not None and self.memory_budget < 1:
            raise OptionError(f"memory_budget must be at least 1 byte, got {self.memory_budget}")
        if self.seed is not None and (type(self.seed) is not int or self.seed < 0):
            raise OptionError(f"seed must be an integer that is not negative, got {self.seed!r}")
        if self.stop is not None:
            object.__setattr__(self, "stop", checked_stops(self.stop))

    @property
    def law(self) -> Law:
        """The distribution that tokens are drawn from."""
        law = Law(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, min_p=self.min_p)
        return law if self.do_sample else Law(temperature=0)


def check_batch_size(name: str, size: "int | Auto | None") -> None:
    """Refuse a batch size that is neither a count nor "auto". None is an option that was not given.

    Raises:
        OptionError: It is out of range.
    """
    if isinstance(size, str):
        if size != "auto":
            raise OptionError(f'{name} must be a number or "auto", got {size!r}')
        return
    check_counts(**{name: size})


def checked_stops(stop: object) -> tuple[Stop, ...]:
    """Return stops as a tuple without repetitions.

    Raises:
        OptionError: One is empty, or neither a text nor the id of a token.
    """
    if isinstance(stop, str | int) or not hasattr(stop, "__iter__"):
        raise OptionError(f"stop must be a list of texts and token ids, got {stop!r}")
    stops: tuple[Any, ...] = tuple(dict.fromkeys(cast(Iterable[Any], stop)))
    for one in stops:
        if isinstance(one, bool) or not isinstance(one, str | int):
            raise OptionError(f"a stop must be a text or the id of a token, got {one!r}")
        if one == "":
            raise OptionError("a stop must not be an empty text: every response would end at once")
        if isinstance(one, int) and one < 0:
            raise OptionError(f"the id of a token must not be negative, got {one}")
    return stops


def least_budget(tokens: int | None, memory: int | None, bytes_per_token: int) -> int | None:
    """Return a token budget, or what a memory budget in bytes allows if that is less."""
    if memory is None:
        return tokens
    allowed = max(1, memory // bytes_per_token)
    return allowed if tokens is None else min(tokens, allowed)
