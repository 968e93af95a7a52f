"""From what the functions returned for a sample to its reward, or to its failure."""

from collections.abc import Sequence
from math import fsum, inf, isfinite
from typing import Any

from brim.core.errors import MissingExtraError, OptionError
from brim.generate.rewards.function import RewardFunction
from brim.generate.rewards.outcome import Rewarded, RewardFailure, Value, raised, read_value, shown

RIGHT = 1 - 1e-9
"""Value from which on a response is right."""
UNFINISHED: Any = object()
"""In the place of what a function returns whose call never ended."""


class Raised:
    """An error of an async function, as a value: some would end an event loop that they pass through."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def is_fatal(error: BaseException) -> bool:
    """Whether an error is not the sample's: wrong options, a missing package, Ctrl-C or an exit."""
    return isinstance(error, OptionError | MissingExtraError) or not isinstance(error, Exception)


def combine(functions: Sequence[RewardFunction], returned: Sequence[Any]) -> Rewarded | RewardFailure:
    """Return the weighted sum of what the functions returned. Of several failures, that of the first function counts.

    Raises:
        BaseException: A function raised an error that is not the sample's.
    """
    for one in returned:
        if isinstance(one, Raised) and is_fatal(one.error):
            raise one.error
    values: list[Value] = []
    for function, one in zip(functions, returned, strict=True):
        value = _read(function, one)
        if isinstance(value, RewardFailure):
            return value
        values.append(value)
    parts: dict[str, float] = {}
    for function, value in zip(functions, values, strict=True):
        parts |= _weighted(function, value, alone=len(functions) == 1)
    whole = _sum(parts)
    if not isfinite(whole):
        return RewardFailure("NotFinite", f"the weighted sum of {', '.join(parts)} is too large")
    first = values[0]
    passed = (_sum(first) if isinstance(first, dict) else first) >= RIGHT
    return Rewarded(whole, parts, passed if functions[0].tells_right else None)


def deal(function: RewardFunction, returned: Any, count: int) -> list[Any]:
    """Return the share of each of `count` samples in what a batched function returned."""
    if returned is UNFINISHED or isinstance(returned, RewardFailure | Raised):
        return [returned] * count
    try:
        if isinstance(returned, str | bytes | dict):
            raise TypeError
        size = len(returned)
        shares = list(returned)
    except TypeError:
        what = f"the batched reward {function.name} returned {shown(returned)}, not a list"
        return [RewardFailure("WrongType", what)] * count
    except Exception as error:
        return [raised(function.name, error)] * count
    if size != count or len(shares) != count:
        what = f"the batched reward {function.name} returned {size} rewards for {count} samples"
        return [RewardFailure("WrongCount", what)] * count
    return shares


def _read(function: RewardFunction, returned: Any) -> Value | RewardFailure:
    if returned is UNFINISHED:
        return RewardFailure(
            "Timeout",
            f"the reward {function.name} did not end: the event loop of async rewards was closed, or blocked by a call "
            "that waits without `await`",
        )
    if isinstance(returned, Raised):
        return raised(function.name, returned.error)
    return read_value(returned, function.name)


def _weighted(function: RewardFunction, value: Value, *, alone: bool) -> dict[str, float]:
    """Return the parts of the reward that a function adds. Adding 0 makes 0 of -0."""
    if not isinstance(value, dict):
        return {function.name: function.weight * value + 0.0}
    prefix = "" if alone else f"{function.name}/"
    return {f"{prefix}{part}": function.weight * one + 0.0 for part, one in value.items()}


def _sum(parts: dict[str, float]) -> float:
    try:
        return fsum(parts.values())
    except (OverflowError, ValueError):  # the sum is too large; infinities of both signs
        return inf
