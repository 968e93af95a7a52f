"""The outcome of a sample: a reward with its parts, or a typed failure.

Whatever a reward function returned is read here, once. A number is anything that is one: an int, a bool (0 or 1), a
fraction, or an array or tensor with one element. NaN, infinities, None and texts are failures, and no failure ever
becomes a number.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from numbers import Real
from typing import Any, cast

LONGEST = 200
"""Characters of an error's or a value's text that a failure keeps."""


@dataclass(frozen=True)
class Rewarded:
    """The reward of a sample."""

    value: float
    """The sum of all parts."""
    parts: dict[str, float]
    """Weighted values by name. A function has one part, called by its name, or those of the dictionary that it
    returned: `name/part`, or `part` alone if there is one function."""
    passed: bool | None
    """Whether the response is right: the first function gave it at least 1, before its weight. None if that function is
    `format`, `arc-format` or `length`, which do not tell right from wrong."""


@dataclass(frozen=True)
class RewardFailure:
    """A sample without a reward. A function may return one, too; a batched one in the place of a reward."""

    kind: str
    """Name of the type of the error that was raised, or "Timeout", "NotFinite", "NoReward" (None, or no parts),
    "WrongType", "WrongCount"."""
    message: str
    """One line, with the name of the function."""


Value = float | dict[str, float]
"""The result of a reward function: a number, or numbers by name."""


def read_value(value: Any, name: str) -> Value | RewardFailure:
    """Return what the function `name` returned as plain numbers, or the failure that it amounts to."""
    if isinstance(value, RewardFailure):
        return value
    if not isinstance(value, Mapping):
        return _read_number(value, f"the reward {name} returned")
    found = cast(Mapping[Any, Any], value)
    if not found:
        return RewardFailure("NoReward", f"the reward {name} returned no parts")
    parts: dict[str, float] = {}
    for part, one in found.items():
        if not isinstance(part, str):
            return RewardFailure("WrongType", f"the reward {name} returned a part whose name is {shown(part)}")
        number = _read_number(one, f"the reward {name} returned for its part {part!r}")
        if isinstance(number, RewardFailure):
            return number
        parts[part] = number
    return parts


def raised(name: str, error: BaseException) -> RewardFailure:
    """Return the failure for an error that the function `name` raised."""
    kind = type(error).__name__
    text = one_line(str(error))
    return RewardFailure(kind, f"the reward {name} raised {kind}{': ' if text else ''}{text}")


def timed_out(name: str, seconds: float | None) -> RewardFailure:
    """Return the failure for a call of the function `name` that did not end in time."""
    return RewardFailure("Timeout", f"the reward {name} did not end within {seconds:g} s")


def shown(value: Any) -> str:
    """Return a value as one short line, whatever its `repr` does."""
    try:
        return one_line(repr(value))
    except Exception:
        return f"a {type(value).__name__}"


def one_line(text: str) -> str:
    return " ".join(text.split())[:LONGEST]


def _read_number(value: Any, what: str) -> float | RewardFailure:
    plain = value
    if not isinstance(value, Real | Decimal) and callable(item := getattr(value, "item", None)):
        try:
            plain = item()
        except (ValueError, TypeError, RuntimeError):
            return RewardFailure("WrongType", f"{what} {shown(value)}, which is not one number")
    if plain is None:
        return RewardFailure("NoReward", f"{what} None")
    if not isinstance(plain, Real | Decimal):
        return RewardFailure("WrongType", f"{what} {shown(value)}, which is not a number")
    try:
        number = float(plain)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        return RewardFailure("NotFinite", f"{what} {number}")
    return number
