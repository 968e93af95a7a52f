"""Pack into nearly the fewest rows that are possible, by patterns.

Best fit needs up to an eighth more rows than necessary where lengths are near a third or a quarter of the capacity, or
where there are few distinct lengths. Here patterns for whole rows are found (`patterns.py`), in passes. A pass first
rounds lengths up to at most `CLASSES` widths, so that the search takes seconds for any number of sequences. Then each
pattern is used as many whole times as the solution says. The sequences that remain, less than one row for each class,
go to the next pass. Best fit packs the last of them, and everything, if that takes no more rows.

The search depends on the lengths alone. Which of the sequences of a class takes which place is decided by the order in
which they arrive (`Places.rows`).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import count_values, order_by
from brim.core.fingerprint import fingerprint
from brim.core.progress import Progress, silent
from brim.plan.config import SEARCH_SECONDS, check_seconds
from brim.plan.edges import widths_for_counts
from brim.plan.packing.best_fit import best_fit
from brim.plan.packing.bounds import bound_of_counts
from brim.plan.packing.patterns import Pattern, Solution, Work, find_patterns
from brim.plan.packing.rows import Rows

CLASSES = 288
"""Upper limit of the number of widths that lengths are rounded up to."""
FEWER = 3
"""A search that ends for lack of work is followed by a quick one, with so many times fewer classes."""
PER_CLASS = 10
"""Fewest sequences per class, on average: with fewer, the solution uses nearly every pattern less than once."""
CELLS = 1 << 25
"""Upper limit of the cells of a knapsack: if there are more, widths are rounded up to a multiple of some tokens."""
FINEST = 64
"""Fewest of these multiples in a row. An upper limit of the sequences in a row makes the knapsack as many times larger;
if fewer multiples are left then, rounding costs more rows than patterns save, and the search ends.
"""
CLOSE = 2e-4
"""The search ends when it is as close to the lower bound as this."""
PER_SECOND = 2_000_000_000
"""Operations, as `Work` counts them, in a second of a typical core."""
PASS_WORK, SEQUENCE_WORK = 2_000_000, 100
"""Work of a pass beside that of finding its patterns, and of each sequence in it."""
WIDTH_WORK, USE_WORK = 40, 2_000
"""Work of choosing widths, for each pair of a distinct length and a class, and of using a pattern, for each item."""


@dataclass(frozen=True)
class Places:
    """Rows that hold ranks. The rank of a sequence is its place in the order of lengths, longest first."""

    order: NDArray[np.int32]
    ptr: NDArray[np.int64]
    block: NDArray[np.int32]
    """For each rank, a number: sequences whose ranks have the same one can swap their places."""

    def rows(self, by_rank: NDArray[np.int32], arrival: NDArray[np.int64] | None) -> Rows:
        """Return the rows of sequences, given in the order of their lengths. `arrival` says when each arrived."""
        if arrival is not None:
            places = order_by(self.block)
            arrived = by_rank[order_by(self.block, arrival[by_rank])]
            by_rank = np.empty_like(by_rank)
            by_rank[places] = arrived
        return Rows(by_rank[self.order], self.ptr)


class Found(NamedTuple):
    """The result of a search."""

    places: Places | None
    """None: best fit needs as few rows."""
    bound: int
    """A number of rows such that no packing needs fewer."""


class PatternSearch:
    """A search for patterns with a time limit. It keeps its results, so all epochs of a plan cost one search."""

    def __init__(self, seconds: float = SEARCH_SECONDS, report: Progress = silent) -> None:
        """`seconds` is the upper limit of the work of one search, in seconds of a typical core. Work is counted, not
        timed, so that the same lengths give the same rows on every machine. 0: no search, but the rows of best fit.
        `report` is called during a search with the rows of the solution so far, and their lower bound.
        """
        check_seconds("the time limit of the search for patterns", seconds)
        self._work, self._report = int(seconds * PER_SECOND), report
        self._known: dict[str, Found] = {}

    def part(self, share: float) -> "PatternSearch":
        """Return a search with this share of the time limit. Both remember the results of both."""
        part = PatternSearch(report=self._report)
        part._work, part._known = int(self._work * share), self._known
        return part

    def find(self, sizes: NDArray[np.int32], capacity: int, most: int | None) -> Found:
        """Return the best rows for sequences of these sizes, which descend."""
        key = fingerprint(sizes=sizes, limits=[capacity, most, self._work])
        if key not in self._known:
            self._known[key] = self._search(sizes, capacity, most)
        return self._known[key]

    def _search(self, sizes: NDArray[np.int32], capacity: int, most: int | None) -> Found:
        """Search with as many classes as there can be; if the work is used up before that ends, also with fewer."""
        work = Work(self._work - self._work // 3)
        found = _Search(sizes, capacity, most, work, self._report).found()
        if work.left > 0 or self._work == 0:
            return found
        quick = _Search(sizes, capacity, most, Work(self._work // 3), self._report, fewer=FEWER).found()
        bound = max(found.bound, quick.bound)
        if quick.places is None or (found.places is not None and len(found.places.ptr) <= len(quick.places.ptr)):
            return Found(found.places, bound)
        return Found(quick.places, bound)


class _Search:
    """One search. Each pass solves what the passes before could not place."""

    def __init__(
        self,
        sizes: NDArray[np.int32],
        capacity: int,
        most: int | None,
        work: Work,
        report: Progress,
        *,
        fewer: int = 1,
    ) -> None:
        self._sizes = sizes
        self._fewer = fewer
        self._capacity = capacity
        self._most = most
        self._work = work
        self._report = report
        self._rest = np.arange(len(sizes), dtype=np.int32)
        self._block = np.zeros(len(sizes), np.int32)
        self._blocks = 0
        self._order: list[NDArray[np.int32]] = []
        self._lengths: list[NDArray[np.int64]] = []  # of rows
        self._num_rows = 0
        self.bound = bound_of_counts(*count_values(sizes), capacity, most)

    def found(self) -> Found:
        best = alone = self._closed()
        while len(self._rest) and len(best.ptr) - 1 > self.bound * (1 + CLOSE) and self._solve():
            closed = self._closed()
            if len(closed.ptr) < len(best.ptr):
                best = closed
        return Found(None if best is alone else best, self.bound)

    def _closed(self) -> Places:
        """Return the rows so far, and those of best fit for the rest."""
        sizes = self._sizes[self._rest]
        rest = best_fit(sizes, None, self._capacity, self._most or 2**31 - 1)
        assert rest is not None
        lengths = np.concatenate([*self._lengths, np.diff(rest.ptr)])
        block = self._block.copy()
        block[self._rest] = self._blocks + (sizes.max(initial=0) - sizes)
        order = np.concatenate([*self._order, self._rest[rest.order]])
        return Places(order, np.append(0, np.cumsum(lengths)), block)

    def _solve(self) -> bool:
        """Make one pass. False: too little work is left, or the knapsack would be too coarse."""
        if not self._work.spend(PASS_WORK + SEQUENCE_WORK * len(self._sizes)):
            return False
        sizes = self._sizes[self._rest]
        values, counts = count_values(sizes)
        classes = min(CLASSES // self._fewer, max(len(sizes) // (PER_CLASS * self._fewer), 8), len(values))
        most = self._limit(sizes)
        grid = -(-classes * self._capacity * (most or 1) // CELLS)
        if grid > 1 and self._capacity // grid < FINEST:
            return False
        if len(values) == classes:
            widths = values
        elif self._work.spend(WIDTH_WORK * classes * min(len(values), self._capacity // grid)):
            widths = np.array(widths_for_counts(values, counts, classes, multiple=grid))
        else:
            return False
        capacity = self._capacity // grid
        class_of = np.searchsorted(widths, values)
        demand = np.bincount(class_of, weights=counts, minlength=len(widths)).astype(np.int64)
        width = np.minimum(-(-widths // grid), capacity).astype(np.int32)
        first = self._num_rows == 0
        enough = self.bound * (1 + CLOSE / 2) if first else 0.0
        solution = find_patterns(
            width,
            demand,
            capacity,
            most,
            self._work,
            close=CLOSE,
            enough=enough,
            report=lambda rows: self._report(self._num_rows + rows, self.bound),
        )
        if first:
            self.bound = max(self.bound, _bound(solution, width, values // grid, counts))
        # Ranks ascend while sizes descend, so the members of a class lie together, longest first.
        members = np.split(self._rest, np.cumsum(demand[::-1])[:-1])[::-1]
        self._work.spend(USE_WORK * sum(len(pattern.items) for pattern in solution.patterns))
        self._use(solution, members)
        return True

    def _limit(self, sizes: NDArray[np.int32]) -> int | None:
        """Return the upper limit of the sequences in a row. None: no row has room for more of the shortest."""
        if self._most is None or self._most >= len(sizes):
            return None
        shortest = sizes[len(sizes) - self._most - 1 :]
        return self._most if int(shortest.sum(dtype=np.int64)) <= self._capacity else None

    def _use(self, solution: Solution, members: list[NDArray[np.int32]]) -> None:
        """Make rows of whole uses of patterns, of the longest members of each class."""
        used = [0] * len(members)
        times = np.maximum(np.floor(solution.times + 1e-6), 0).astype(np.int64)
        for pattern, wanted in zip(solution.patterns, times.tolist(), strict=True):
            self._make_rows(pattern, min(wanted, *self._left(pattern, members, used)), members, used)
        if not times.any():  # few sequences are left
            for at in np.flatnonzero(solution.times >= min(0.5, solution.times.max())).tolist():
                self._make_rows(self._trimmed(solution.patterns[at], members, used), 1, members, used)
        for at, (mine, many) in enumerate(zip(members, used, strict=True)):
            self._block[mine[:many]] = self._blocks + at
        self._blocks += len(members)
        rest = [mine[many:] for mine, many in zip(members, used, strict=True)]
        self._rest = np.concatenate(rest[::-1])

    def _left(self, pattern: Pattern, members: list[NDArray[np.int32]], used: list[int]) -> list[int]:
        """Return how often there are enough members of each class for a pattern."""
        return [
            (len(members[item]) - used[item]) // copies
            for item, copies in zip(pattern.items.tolist(), pattern.copies.tolist(), strict=True)
        ]

    def _trimmed(self, pattern: Pattern, members: list[NDArray[np.int32]], used: list[int]) -> Pattern:
        """Return the part of a pattern for which there are members left."""
        left = np.array([len(members[item]) - used[item] for item in pattern.items.tolist()])
        copies = np.minimum(pattern.copies, left)
        return Pattern(pattern.items[copies > 0], copies[copies > 0])

    def _make_rows(self, pattern: Pattern, number: int, members: list[NDArray[np.int32]], used: list[int]) -> None:
        if number == 0 or len(pattern.items) == 0:
            return
        columns: list[NDArray[np.int32]] = []
        for item, copies in zip(pattern.items.tolist()[::-1], pattern.copies.tolist()[::-1], strict=True):
            taken = members[item][used[item] : used[item] + number * copies]
            columns.append(taken.reshape(number, copies))
            used[item] += number * copies
        rows = np.concatenate(columns, axis=1)
        self._order.append(rows.ravel())
        self._lengths.append(np.full(number, rows.shape[1]))
        self._num_rows += number


def _bound(solution: Solution, width: NDArray[np.int32], sizes: NDArray[np.int64], counts: NDArray[np.int64]) -> int:
    """Return the lower bound that dual values give. A sequence is worth as much as a class that is not wider."""
    worth = np.append(0, np.maximum.accumulate(solution.value))
    many = np.bincount(np.searchsorted(width, sizes, side="right"), weights=counts, minlength=len(worth))
    total = sum(value * int(number) for value, number in zip(worth.tolist(), many.tolist(), strict=True))
    return -(-total // max(solution.greatest, 1))
