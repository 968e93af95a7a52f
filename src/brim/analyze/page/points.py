"""Points of curves: a long series is divided into stretches, and each becomes a weighted mean.

Numbers that are not finite count as missing.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TypeVar

Item = TypeVar("Item")


def finite(value: float | None) -> float | None:
    """Return a number, or None if it is missing or not finite."""
    return value if value is not None and math.isfinite(value) else None


def mean(values: Iterable[tuple[float | None, float]]) -> float | None:
    """Return the mean of (value, weight), without missing values; None if nothing is left."""
    known = [(number, weight) for value, weight in values if (number := finite(value)) is not None and weight > 0]
    weights = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / weights if weights else None


def divide(items: Sequence[Item], most: int) -> list[Sequence[Item]]:
    """Divide a series into at most `most` stretches of nearly equal length. None of them is empty."""
    many = min(len(items), most)
    edges = [at * len(items) // many for at in range(many + 1)] if many else []
    return [items[start:end] for start, end in pairwise(edges)]


def short(value: float | None) -> float | None:
    """Round to six significant digits; None if the value is missing or not finite."""
    value = finite(value)
    return None if value is None else float(f"{value:.6g}")
