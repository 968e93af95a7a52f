"""The bucket widths that waste least, found exactly.

Over the distinct lengths l_1 < l_2 < ... with cumulative counts C, a bucket that ends at l_j and starts behind l_i pads its samples to
(C_j - C_i) * l_j slots. Choosing k ends with the least sum is a dynamic program:

    best[k][j] = min over i of best[k - 1][i] + (C_j - C_i) * l_j

For a fixed j that is the lowest of the lines best[i] - C_i * x at x = l_j: slopes fall and queries rise, so one pass over a convex hull
answers a whole layer.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import OptionError


def optimal_widths(lengths: NDArray[np.integer[Any]], num_buckets: int, *, multiple: int = 1) -> tuple[int, ...]:
    """At most `num_buckets` widths, multiples of `multiple`, the last one no less than the longest length, with the least padding.

    Example:
        >>> optimal_widths(np.array([1, 1, 1, 9, 10]), 2)
        (1, 10)
    """
    if num_buckets < 1:
        raise OptionError(f"the number of buckets must be at least 1, got {num_buckets}")
    counts = np.bincount(-(-np.maximum(lengths, 1).astype(np.int64) // multiple))
    widths = np.flatnonzero(counts)
    if len(widths) == 0:
        return (multiple,)
    ends = _best_ends(widths.tolist(), np.cumsum(counts[widths]).tolist(), min(num_buckets, len(widths)))
    return tuple(int(widths[end]) * multiple for end in ends)


def _best_ends(widths: list[int], below: list[int], num_buckets: int) -> list[int]:
    """The indices at which the buckets end. `below[j]` counts the samples no longer than `widths[j]`."""
    best: list[int] = [count * width for count, width in zip(below, widths, strict=True)]
    came_from: list[list[int]] = []
    for _ in range(num_buckets - 1):
        best, chosen = _add_bucket(widths, below, best)
        came_from.append(chosen)
    ends = [len(widths) - 1]
    for chosen in reversed(came_from):
        if chosen[ends[-1]] >= 0:
            ends.append(chosen[ends[-1]])
    return ends[::-1]


def _add_bucket(widths: list[int], below: list[int], best: list[int]) -> tuple[list[int], list[int]]:
    """One more bucket: for every end the least cost, and where the bucket before it ends (-1: another bucket gains nothing)."""
    lines: list[tuple[int, int, int]] = []  # (count, cost, end): the line cost - count * x
    at = 0
    result, chosen = list(best), [-1] * len(best)
    for j, width in enumerate(widths):
        while at + 1 < len(lines) and _value(lines[at + 1], width) <= _value(lines[at], width):
            at += 1
        if lines:
            cost = _value(lines[at], width) + below[j] * width
            if cost < best[j]:
                result[j], chosen[j] = cost, lines[at][2]
        line = (below[j], best[j], j)
        while len(lines) - at >= 2 and _hides(lines[-2], line, lines[-1]):
            lines.pop()
        lines.append(line)
    return result, chosen


def _value(line: tuple[int, int, int], x: int) -> int:
    return line[1] - line[0] * x


def _hides(left: tuple[int, int, int], right: tuple[int, int, int], middle: tuple[int, int, int]) -> bool:
    """Whether the middle line is nowhere the lowest: left and right cross before it gets its turn."""
    return (right[1] - left[1]) * (middle[0] - left[0]) <= (middle[1] - left[1]) * (right[0] - left[0])
