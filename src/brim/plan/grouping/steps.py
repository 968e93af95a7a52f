"""Cut windows into microbatches for optimizer steps of a known size: a multiple of it, of nearly equal cost.

A rank waits for the slowest of its step, and a step that is short of microbatches leaves ranks idle. So the number of
microbatches is a multiple of the step size, and each is cut where its cost reaches a target instead of where the budget
ends; the budget stays a bound.

The cost of a microbatch of k rows is k times the cost of its first row, so targets are missed by up to a row: by half
of the target, where two rows fit. That is why the steps of a window have different targets (`Shape`): each microbatch
goes to the step whose target it meets best, and the many microbatches of short rows, which can meet any target, fill
the steps up. The shape and the number of steps are those for which the slowest microbatches of all steps add up to
least, of a few that are tried on the first window.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import ceil_div, offsets
from brim.plan.grouping.cutting import cut, split_largest
from brim.plan.grouping.price import Price
from brim.plan.grouping.windows import Limits, Windows

try:
    from brim.plan import _kernel as kernel
except ImportError:  # not compiled: `_cut_levels_python` does the same
    kernel = None

STEPS = 24
"""Steps of a window: with fewer, there are too few different targets to meet."""
LEVELS = 32
"""Upper limit of the different targets of a window."""
FINENESS = 256
"""Misses are compared in 1/256 of the target; equal ones are ties."""
MORE, EACH = 2, 4
"""A window gets up to `MORE` steps more than it needs, and up to one for every `EACH` steps, if costs agree better
then: the microbatches of more steps are emptier.
"""
WORTH = 3000
"""Another step has to lower the sum of the steps' costs by one part in this many."""


class Shape(NamedTuple):
    """The targets of a window's steps, relative to the highest: 1 - spread * (i / (n - 1)) ** power."""

    power: int
    spread: int  # in percent

    def levels(self, number: int) -> NDArray[np.int64]:
        """Return this many targets, in millionths of the highest one."""
        last = max(number - 1, 1)
        return np.array(
            [10**6 - 10**4 * self.spread * at**self.power // last**self.power for at in range(number)], np.int64
        )


TRIED = ((1, 0), (1, 15), (1, 30), (2, 30), (2, 45), (3, 30), (3, 45), (3, 60), (5, 40))
SHAPES = tuple(Shape(*each) for each in TRIED)


def cut_steps(windows: Windows, limits: Limits, price: Price, step: int) -> NDArray[np.int64]:
    """Return where microbatches begin when every window consists of whole steps of `step` microbatches.

    If there are too few rows for that, there are as many microbatches as possible.
    """
    full = cut(windows, limits)
    least = np.diff(np.searchsorted(full, windows.bounds))
    rows = np.diff(windows.bounds)
    if len(rows) > 1 and (ceil_div(least, step) * step > rows).any():
        # Rows of some windows are too few to be rounded up to whole steps, so all windows share their steps.
        return cut_kinds(windows, limits, price, step, uniform=False)
    starts: list[NDArray[np.int64]] = []
    # Microbatches of several windows share steps in the end, and find enough others of their cost.
    more = MORE if len(least) == 1 else 0
    best: tuple[int, Shape] | None = None
    for number, (begin, end) in enumerate(zip(windows.bounds[:-1].tolist(), windows.bounds[1:].tolist(), strict=True)):
        fewest = ceil_div(int(least[number]), step)
        if fewest * step >= end - begin:
            starts.append(np.arange(begin, end))
            continue
        window = _Window(windows.width[begin:end], limits, price, step)
        found = window.best(fewest, more) if best is None else window.like(fewest, *best)
        if found is None:
            found = _Found(full[(full >= begin) & (full < end)] - begin, 0, SHAPES[0])
        best = best or (found.more, found.shape)
        starts.append(begin + window.filled_up(found.starts))
    return np.concatenate(starts)


class _Found(NamedTuple):
    starts: NDArray[np.int64]
    more: int
    """Number of steps above the fewest possible."""
    shape: Shape


class _Window:
    def __init__(self, width: NDArray[np.int32], limits: Limits, price: Price, step: int) -> None:
        self._width, self._limits, self._step, self._price = width, limits, step, price
        self._each = price.each(width)
        self._total = int(self._each.sum())
        self._highest = price.highest(width, limits)

    def best(self, fewest: int, most: int) -> _Found | None:
        """Try all shapes, with the fewest steps and up to `most` more, and return the best cut.

        More than one additional step for every `EACH` steps is only tried where fewer steps cannot be balanced at all.
        """
        best, least = None, 0
        for more in range(most + 1):
            if best is not None and more > fewest // EACH:
                break
            steps = fewest + more
            tried = [(self._slowest(starts, steps), shape, starts) for shape, starts in self._tries(steps)]
            if not tried:
                continue
            cost, shape, starts = min(tried, key=lambda one: one[0])
            if best is None or cost * (WORTH + more) < least * WORTH:
                best, least = _Found(starts, more, shape), cost
        return best

    def _tries(self, steps: int) -> Iterator[tuple[Shape, NDArray[np.int64]]]:
        for shape in SHAPES:
            starts = self._cut(steps, shape)
            if starts is not None:
                yield shape, starts

    def like(self, fewest: int, more: int, shape: Shape) -> _Found | None:
        """Cut with this shape, and this many steps above the fewest possible; or more, where that is not enough."""
        for again in range(3):
            for each in (shape, SHAPES[0]):
                starts = self._cut(fewest + more + again, each)
                if starts is not None:
                    return _Found(starts, more + again, each)
        return None

    def filled_up(self, starts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Split microbatches until their number is a multiple of the step size, as far as there are rows."""
        return split_largest(starts, len(self._width), self._costs(starts), -len(starts) % self._step)

    def _costs(self, starts: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.diff(starts, append=len(self._width)) * self._each[starts]

    def _slowest(self, starts: NDArray[np.int64], steps: int) -> int:
        """Return the sum of the costs of the slowest microbatches, if those of similar cost share a step."""
        costs = np.zeros(steps * self._step, np.int64)
        costs[: len(starts)] = np.sort(self._costs(starts))[::-1]
        return int(costs[:: self._step].sum())

    def _cut(self, steps: int, shape: Shape) -> NDArray[np.int64] | None:
        """Cut into this many steps with the lowest targets that are enough; None if no targets are."""
        number = min(steps, LEVELS)
        capacity = np.diff(np.arange(number + 1) * steps // number) * self._step
        levels = shape.levels(number)
        starts = np.empty(steps * self._step, np.int64)
        # The targets lie between the mean cost, which is never enough, and what all rows would cost in one microbatch.
        lowest = self._total * 10**6 // int((capacity * levels).sum())
        stride = max(lowest // 16, 1)
        highest = lowest + stride
        while self._walk(highest, levels, capacity, starts) < 0:
            if highest * int(levels.min()) > self._highest * 10**6:
                return None
            lowest, stride = highest, 2 * stride
            highest = lowest + stride
        while highest - lowest > max(lowest >> 14, 1):
            middle = (lowest + highest) // 2
            if self._walk(middle, levels, capacity, starts) < 0:
                lowest = middle
            else:
                highest = middle
        count = self._walk(highest, levels, capacity, starts)
        return starts[:count].copy()

    def _walk(
        self, target: int, levels: NDArray[np.int64], capacity: NDArray[np.int64], starts: NDArray[np.int64]
    ) -> int:
        """Cut with these targets, and return the number of microbatches; -1 if they would be more than `starts` has
        room for.
        """
        wanted = np.maximum(levels * target // 10**6, 1)
        if kernel is None:
            return _cut_levels_python(self._width, self._each, self._limits, wanted, capacity, starts)
        price = (self._price.scale or 0, self._price.extra)
        return kernel.cut_levels(self._width, *price, *self._limits, wanted, capacity, starts)


def _cut_levels_python(
    width: NDArray[np.int32],
    price: NDArray[np.int64],
    limits: Limits,
    wanted: NDArray[np.int64],
    capacity: NDArray[np.int64],
    starts: NDArray[np.int64],
) -> int:
    """The kernel's `cut_levels` in Python."""
    widths, prices, targets, left = width.data, price.data, wanted.tolist(), capacity.tolist()
    at = count = 0
    while at < len(width):
        if count == len(starts):
            return -1
        one, room = prices[at], min(max(limits.budget // widths[at], 1), limits.rows)
        best, missed, rows = -1, 0, 1
        for level, target in enumerate(targets):
            if left[level] == 0:
                continue
            take = min(target // one, room)
            by = (target - take * one) * FINENESS // target if take else FINENESS + (one - target) * FINENESS // target
            if best < 0 or by < missed or (by == missed and left[level] > left[best]):
                best, missed, rows = level, by, max(take, 1)
        left[best] -= 1
        starts[count] = at
        count += 1
        at += rows
    return count


def cut_kinds(windows: Windows, limits: Limits, price: Price, step: int, *, uniform: bool) -> NDArray[np.int64]:
    """Return where microbatches begin when all windows together consist of whole steps, if there are enough rows.

    This is for windows of several kinds of rows, for windows of a given size and for `uniform` rows. All microbatches
    have the same target. Windows whose rows all have one width (`uniform`) are cut into equal parts.
    """
    rows = np.diff(windows.bounds)
    fewest = len(_cut_at(windows, limits, price, 0, uniform))
    wanted = min(ceil_div(fewest, step) * step, len(windows.order))
    lowest, highest = 0, price.highest(windows.width, limits) + 1
    while highest - lowest > 1:
        middle = (lowest + highest) // 2
        if len(_cut_at(windows, limits, price, middle, uniform)) > wanted:
            lowest = middle
        else:
            highest = middle
    starts = _cut_at(windows, limits, price, highest, uniform)
    if not uniform:
        sizes = np.diff(starts, append=len(windows.order)) * price.each(windows.width[starts])
        return split_largest(starts, len(windows.order), sizes, wanted - len(starts))
    # The parts of a window have equal rows, whatever their number.
    prices = price.each(windows.width[windows.bounds[:-1]])
    parts = np.diff(np.searchsorted(starts, windows.bounds))
    for _ in range(wanted - len(starts)):
        parts[np.argmax(np.where(parts < rows, rows * prices // parts, -1))] += 1
    place = np.arange(parts.sum()) - np.repeat(offsets(parts)[:-1], parts)
    return np.repeat(windows.bounds[:-1], parts) + place * np.repeat(rows, parts) // np.repeat(parts, parts)


def _cut_at(windows: Windows, limits: Limits, price: Price, target: int, uniform: bool) -> NDArray[np.int64]:
    """Cut so that no microbatch costs more than `target`, except for single rows; 0: any cost."""
    if not uniform or target == 0:
        return cut(windows, limits, price, target)
    first = windows.width[windows.bounds[:-1]]
    take = np.minimum(np.clip(target // price.each(first), 1, limits.rows), np.maximum(limits.budget // first, 1))
    parts = ceil_div(np.diff(windows.bounds), take)
    place = np.arange(parts.sum()) - np.repeat(offsets(parts)[:-1], parts)
    return np.repeat(windows.bounds[:-1], parts) + place * np.repeat(take, parts)
