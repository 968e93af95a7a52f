"""Find the bucket widths that are optimal for a goal, exactly.

Over the distinct lengths l_1 < l_2 < ... with cumulative counts C, choose k of them as bucket widths. A bucket that
ends at l_j and starts after l_i costs, by the goal,

    fewest slots            (C_j - C_i) * l_j
    least attention memory  (C_j - C_i) * l_j^2
    most even buckets       (C_j - C_i)^2

and choosing the ends with the least sum is a dynamic program:

    best[k][j] = min over i of best[k - 1][i] + cost(i, j)

All three costs have the form offset_j + lift_i - slope_i * x_j, so for a fixed j this is the lowest of the lines
best[i] + lift_i - slope_i * x at x_j. Slopes fall and queries rise, so one pass over a convex hull answers a whole
layer. All arithmetic is in integers: inputs that do not fit the 64 bits of the compiled pass go through an equivalent
one in Python.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import count_values, merge_counts, round_up
from brim.core.options import check_counts, one_of
from brim.plan.goal import OptimizationGoal

try:
    from brim.plan import _kernel as kernel
except ImportError:  # not compiled
    kernel = None


def optimal_widths(
    lengths: NDArray[np.integer[Any]],
    num_buckets: int,
    *,
    multiple: int = 1,
    goal: OptimizationGoal = OptimizationGoal.MINIMIZE_WASTE,
) -> tuple[int, ...]:
    """Return at most `num_buckets` bucket widths that are optimal for `goal`.

    Widths are multiples of `multiple`, and the last one is at least the longest length.

    Example:
        >>> optimal_widths(np.array([1, 1, 1, 9, 10]), 2)
        (1, 10)
    """
    return widths_for_counts(*count_values(lengths), num_buckets, multiple=multiple, goal=goal)


def widths_for_counts(
    lengths: NDArray[np.int64],
    counts: NDArray[np.int64],
    num_buckets: int,
    *,
    multiple: int = 1,
    goal: OptimizationGoal = OptimizationGoal.MINIMIZE_WASTE,
) -> tuple[int, ...]:
    """Do the same as `optimal_widths` for distinct lengths, ascending, and the number of times that each occurs."""
    goal = OptimizationGoal(one_of("goal", goal, OptimizationGoal))
    check_counts(num_buckets=num_buckets, multiple=multiple)
    widths, many = merge_counts(round_up(np.maximum(lengths, 1), multiple), counts)
    if len(widths) == 0:
        return (multiple,)
    ends = _best_ends(_lines(widths, np.cumsum(many), goal), min(num_buckets, len(widths)))
    return tuple(int(widths[end]) for end in ends)


def goal_cost(goal: OptimizationGoal, sizes: NDArray[np.int64], widths: NDArray[np.int64]) -> int:
    """Return the cost, by a goal, of buckets of these sizes and widths."""
    pairs = zip(sizes.tolist(), widths.tolist(), strict=True)
    if goal is OptimizationGoal.BALANCE_BUCKETS:
        return sum(size**2 for size, _ in pairs)
    power = 1 if goal is OptimizationGoal.MINIMIZE_WASTE else 2
    return sum(size * width**power for size, width in pairs)


class Lines(NamedTuple):
    """Coefficients of the cost of a bucket: cost(i, j) = offset[j] + lift[i] - slope[i] * x[j].

    A bucket with none before it costs offset[j].
    """

    offset: list[int]
    lift: list[int]
    slope: list[int]
    x: list[int]

    @property
    def fit_64_bits(self) -> bool:
        """Whether values of lines fit in 64 bits; they are at most four times the largest of the terms below."""
        return max(self.offset[-1], self.lift[-1], self.slope[-1] * self.x[-1]) < 1 << 60


def _lines(widths: NDArray[np.int64], below: NDArray[np.int64], goal: OptimizationGoal) -> Lines:
    count, width = below.tolist(), widths.tolist()
    if goal is OptimizationGoal.BALANCE_BUCKETS:
        squares = [many * many for many in count]
        return Lines(squares, squares, [2 * many for many in count], count)
    price = width if goal is OptimizationGoal.MINIMIZE_WASTE else [one * one for one in width]
    return Lines([many * one for many, one in zip(count, price, strict=True)], [0] * len(count), count, price)


def _best_ends(lines: Lines, num_buckets: int) -> list[int]:
    """Return the indices at which the optimal buckets end."""
    layers = _layers_in_c if kernel is not None and lines.fit_64_bits else _layers
    came_from = layers(lines, num_buckets - 1)
    ends = [len(lines.x) - 1]
    for chosen in reversed(came_from):
        if chosen[ends[-1]] >= 0:
            ends.append(int(chosen[ends[-1]]))
    return ends[::-1]


def _layers_in_c(lines: Lines, many: int) -> list[NDArray[np.int32]]:
    offset, lift, slope, x = (np.array(column, np.int64) for column in lines)
    best, came_from = offset.copy(), np.empty((many, len(x)), np.int32)
    for chosen in came_from:
        kernel.add_bucket(offset, lift, slope, x, best, chosen)  # pyright: ignore[reportOptionalMemberAccess]
    return list(came_from)


def _layers(lines: Lines, many: int) -> list[list[int]]:
    best, came_from = lines.offset, list[list[int]]()
    for _ in range(many):
        best, chosen = _add_bucket(lines, best)
        came_from.append(chosen)
    return came_from


def _add_bucket(lines: Lines, best: list[int]) -> tuple[list[int], list[int]]:
    """Allow one more bucket. Return, for every end, the least cost and the end of the bucket before it (-1: one more
    bucket does not lower the cost).
    """
    hull: list[tuple[int, int, int]] = []  # (slope, height, end): the line height - slope * x
    at = 0
    result, chosen = list(best), [-1] * len(best)
    for j, x in enumerate(lines.x):
        while at + 1 < len(hull) and _value(hull[at + 1], x) <= _value(hull[at], x):
            at += 1
        if hull:
            cost = _value(hull[at], x) + lines.offset[j]
            if cost < best[j]:
                result[j], chosen[j] = cost, hull[at][2]
        line = (lines.slope[j], best[j] + lines.lift[j], j)
        while len(hull) - at >= 2 and _hides(hull[-2], line, hull[-1]):
            hull.pop()
        hull.append(line)
    return result, chosen


def _value(line: tuple[int, int, int], x: int) -> int:
    return line[1] - line[0] * x


def _hides(left: tuple[int, int, int], right: tuple[int, int, int], middle: tuple[int, int, int]) -> bool:
    """Return whether the middle line is never needed: right falls below left no later than middle does."""
    return (right[1] - left[1]) * (middle[0] - left[0]) <= (middle[1] - left[1]) * (right[0] - left[0])
