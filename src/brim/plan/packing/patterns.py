"""Patterns that fill rows, and how often each is used: the linear programme of the cutting-stock problem.

A pattern says how many sequences of each length share a row. Gilmore and Gomory (1961) choose the patterns, and how
often each is used, such that every length has enough places and the rows are the fewest, where a pattern can be used
any fraction of a time. There are far too many patterns to list, so they are generated: the simplex method works with
those that are known, the dual values say what a place for each length is worth, and a knapsack finds the patterns that
are worth more than a row. Where there is none, the solution is optimal.

Dual values also give a lower bound at any time (Farley 1990). They are rounded to integers for the knapsack, so the
bound is exact. Everything else is computed element by element, in an order that does not depend on the machine or on
NumPy's version; and work is counted instead of time. So the same input gives the same patterns everywhere. Whatever
takes time is charged to `Work`, and does not begin when less is left than it costs.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from brim.core.progress import silent
from brim.plan.packing.knapsack import Knapsack

ONE = 1 << 40
"""The value of a row, for the knapsack."""
LEAST_GAIN = 1e-7
"""A pattern is worth using if it is worth more than a row by this share."""
SMOOTHING = 0.8
"""Share of the best dual values so far in those that the knapsack gets: they swing less, which saves rounds."""
ROUND_WORK, PATTERN_WORK, ITEM_WORK = 300_000, 20_000, 20_000
"""Work of a round beside that of its knapsack, of reading a pattern off it, and of each distinct item in a pattern."""
STEP_WORK, CALL_WORK = 30_000, 2_000
"""Work of a step of the simplex method beside that of its arrays, and of a call of NumPy in a loop over items."""
PATIENCE = 20
"""Rounds without a better solution or bound, after which the search ends: steps may then go round in circles."""


Copies = tuple[tuple[int, int], ...]
"""Items and the number of each: what tells one pattern from another."""


@dataclass
class Work:
    """The budget of a search: operations that may still be done. The same input uses up the same on every machine."""

    left: int

    def spend(self, amount: int) -> bool:
        """Charge operations before they are done. False: fewer are left, so the search must end; then none are left."""
        enough = amount <= self.left
        self.left = self.left - amount if enough else 0
        return enough


@dataclass(frozen=True)
class Pattern:
    """Items, and how many of each."""

    items: NDArray[np.int64]
    copies: NDArray[np.int64]

    @property
    def key(self) -> Copies:
        return tuple(zip(self.items.tolist(), self.copies.tolist(), strict=True))


@dataclass(frozen=True)
class Solution:
    patterns: list[Pattern]
    times: NDArray[np.float64]
    """How often each pattern is used, with fractions."""
    value: NDArray[np.int64]
    greatest: int
    """A row of these items has at most `greatest` of `value`, so `value` divided by it bounds the rows from below."""


def find_patterns(
    width: NDArray[np.int32],
    demand: NDArray[np.int64],
    capacity: int,
    most: int | None,
    work: Work,
    *,
    close: float,
    enough: float = 0.0,
    report: Callable[[int], object] = silent,
) -> Solution:
    """Return patterns for items of these widths, in ascending order, that give `demand` places to each.

    The search ends when the solution is optimal, within a share `close` of the lower bound, when `enough` rows or fewer
    are needed, or when `work` is used up. `report` is called with the rows that the solution so far needs.
    """
    if most is not None and most >= capacity // int(width.min()):
        most = None  # no more fit, and a knapsack with a limit takes as many times the work
    work.spend(PATTERN_WORK * len(width))
    simplex = Simplex(width, demand, capacity, most)
    bound, value, greatest = 0.0, np.zeros(len(width), np.int64), ONE
    center = width / capacity  # if space is all that counts
    smoothing = SMOOTHING
    pool = _Pool()
    idle = 0
    while work.left > 0 and idle < PATIENCE:
        idle += 1
        mixed = smoothing * center + (1 - smoothing) * simplex.dual
        tried = (np.clip(mixed, 0, 1) * ONE).astype(np.int64)
        if not work.spend(ROUND_WORK + knapsack_work(len(width), capacity, most)):
            break
        knapsack = Knapsack(width, tried, capacity, most)
        total = sum(worth * places for worth, places in zip(tried.tolist(), demand.tolist(), strict=True))
        reached = total / max(knapsack.greatest, 1)
        if reached > bound:
            idle = 0 if reached > bound * (1 + LEAST_GAIN) else idle
            bound, value, greatest, center = reached, tried, knapsack.greatest, mixed
        report(math.ceil(simplex.rows))
        if simplex.rows <= max(bound * (1 + close), enough):
            break
        each = knapsack.with_each()
        worth = np.flatnonzero(each > ONE + ONE // 10**6)
        best_first = worth[np.argsort(-each[worth], kind="stable")]
        pool.add(list(_patterns(knapsack, best_first, pool.known, work)))
        work.spend(CALL_WORK * len(pool.patterns) + pool.cells)
        before = simplex.rows
        steps = simplex.improve(pool, work)
        idle = 0 if simplex.rows < before * (1 - LEAST_GAIN) else idle
        if steps == 0 and smoothing == 0:
            break
        # Where the mixed values lead to no pattern, those of the solution itself decide whether there is one.
        smoothing = 0.0 if steps == 0 else SMOOTHING
    return Solution(simplex.patterns, simplex.times, value, greatest)


def knapsack_work(items: int, capacity: int, most: int | None) -> int:
    """Return the work of a knapsack."""
    return (most or 1) * (items + 8) * (capacity + 64)


def _patterns(knapsack: Knapsack, firsts: NDArray[np.int64], known: set[Copies], work: Work) -> Iterator[Pattern]:
    for first in firsts.tolist():
        if not work.spend(PATTERN_WORK):
            return
        found = tuple(knapsack.items(first))
        work.spend(ITEM_WORK * len(found))
        if found not in known:
            known.add(found)
            items, copies = zip(*found, strict=True)
            yield Pattern(np.array(items), np.array(copies))


class _Pool:
    """Patterns that may be worth using, as columns of equal length. The oldest are evicted."""

    MOST = 4000

    def __init__(self) -> None:
        self.patterns: list[Pattern] = []
        self.known: set[Copies] = set()
        """Patterns that were found, except evicted ones: they may be worth using again, and are then found again."""
        self._items: list[NDArray[np.int64]] = []
        self._copies: list[NDArray[np.float64]] = []

    def add(self, patterns: list[Pattern]) -> None:
        self.patterns += patterns
        self.known.difference_update(pattern.key for pattern in self.patterns[: -self.MOST])
        self.patterns = self.patterns[-self.MOST :]
        longest = max((len(pattern.items) for pattern in self.patterns), default=0)
        items = np.zeros((longest, len(self.patterns)), np.int64)
        copies = np.zeros((longest, len(self.patterns)))
        for at, pattern in enumerate(self.patterns):
            items[: len(pattern.items), at] = pattern.items
            copies[: len(pattern.items), at] = pattern.copies
        self._items, self._copies = list(items), list(copies)

    @property
    def longest(self) -> int:
        """The most distinct items of a pattern."""
        return len(self._items)

    @property
    def cells(self) -> int:
        return self.longest * len(self.patterns)

    def worth(self, dual: NDArray[np.float64]) -> NDArray[np.float64]:
        total = np.zeros(len(self.patterns))
        for items, copies in zip(self._items, self._copies, strict=True):
            total += dual[items] * copies
        return total


class Simplex:
    """The revised simplex method. At first, each item has a pattern of its own."""

    def __init__(self, width: NDArray[np.int32], demand: NDArray[np.int64], capacity: int, most: int | None) -> None:
        number = capacity // width.astype(np.int64)
        number = number if most is None else np.minimum(number, most)
        self.patterns = [Pattern(np.array([item]), np.array([many])) for item, many in enumerate(number.tolist())]
        self.times = demand / number
        self.dual = 1 / number
        self._inverse = np.diag(1 / number)  # transposed: of the matrix whose columns are the patterns
        self._product = np.empty_like(self._inverse)

    @property
    def rows(self) -> float:
        return float(np.cumsum(self.times)[-1])  # in order, unlike np.sum

    def improve(self, pool: _Pool, work: Work) -> int:
        """Use patterns of the pool while that saves rows; return the number of steps."""
        steps = stalled = 0
        while work.left > 0 and pool.patterns and stalled < 4 * len(self.dual) + 100:
            if not work.spend(STEP_WORK + 2 * len(self.dual) ** 2 + CALL_WORK * pool.longest + 4 * pool.cells):
                break
            worth = pool.worth(self.dual)
            best = int(worth.argmax())
            if worth[best] <= 1 + LEAST_GAIN:
                break
            much = self._use(pool.patterns[best], float(worth[best]))
            stalled = 0 if much > 0 else stalled + 1
            steps += 1
        return steps

    def _use(self, pattern: Pattern, worth: float) -> float:
        """Use a pattern as often as possible, in place of another one; return how often."""
        change = np.zeros(len(self.dual))
        for item, copies in zip(pattern.items.tolist(), pattern.copies.tolist(), strict=True):
            change += copies * self._inverse[item]
        shrinking = np.flatnonzero(change > 1e-9)
        ratio = self.times[shrinking] / change[shrinking]
        leaves = int(shrinking[int(ratio.argmin())])
        row = self._inverse[:, leaves] / change[leaves]
        much = max(self.times[leaves] / change[leaves], 0.0)
        self.times -= much * change
        self.times[leaves] = much
        self.dual += (1 - worth) * row
        touched = np.flatnonzero(row)
        if 2 * len(touched) < len(row):
            self._inverse[touched] -= row[touched, None] * change
        else:  # the same, in memory that is there already: allocating that much takes most of the time
            np.multiply(row[:, None], change, out=self._product)
            self._inverse -= self._product
        self._inverse[:, leaves] = row
        self.patterns[leaves] = pattern
        return much
