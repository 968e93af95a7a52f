"""Pack into nearly the fewest rows that are possible, by patterns.

Best fit needs up to a tenth more rows than necessary where lengths are near a third or a quarter of the capacity, or
few. Here patterns for whole rows are found (`patterns.py`). Lengths are first rounded up to at most `CLASSES` widths,
so that the search takes seconds for any number of sequences. Each pattern is used as many whole times as the solution
says; the sequences that remain, less than one row for each class, are solved again on their own, and so on. Best fit
packs the last of them, and everything, if that takes no more rows.

The search depends on the lengths alone. Which of the sequences of a class takes which place is decided by the order in
which they arrive (`Places.rows`).
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import count_values, order_by
from brim.core.errors import OptionError
from brim.core.fingerprint import fingerprint
from brim.core.progress import Progress, silent
from brim.plan.edges import widths_for_counts
from brim.plan.packing.best_fit import best_fit
from brim.plan.packing.bounds import bound_of_counts
from brim.plan.packing.patterns import Pattern, Solution, Work, find_patterns
from brim.plan.packing.rows import Rows

CLASSES = 288
"""Most widths that lengths are rounded up to."""
ROUNDS = 10
"""Fewest sequences of a class, on average: with fewer, nearly all uses of a pattern are fractions."""
CELLS = 1 << 25
"""Most cells of a knapsack: above, widths are rounded up to a multiple of more than one token."""
CLOSE = 2e-4
"""The search ends when it is as close to the lower bound as this."""
SECONDS = 10.0
"""Default time limit of a search."""
PER_SECOND = 2_000_000_000
"""Operations, as `Work` counts them, in a second of a typical core."""


@dataclass(frozen=True)
class Places:
    """Rows of ranks, which are the places of sequences in the order of their lengths."""

    order: NDArray[np.int32]
    ptr: NDArray[np.int64]
    block: NDArray[np.int32]
    """By rank: sequences of one block can take each other's places."""

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
    """Searches for patterns. The results are remembered, so all epochs of a plan cost one search."""

    def __init__(self, seconds: float = SECONDS, report: Progress = silent) -> None:
        """`seconds` is the upper limit of the work of one search, in seconds of a typical core. Work is counted, not
        timed, so that the same lengths give the same rows on every machine. 0: no search, but the rows of best fit.
        `report` is called during a search with the rows of the solution so far, and their lower bound.
        """
        if not 0 <= seconds < math.inf:
            raise OptionError(f"the time limit of the search for patterns must be at least 0 and finite, got {seconds}")
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
            self._known[key] = _Levels(sizes, capacity, most, Work(self._work), self._report).found()
        return self._known[key]


class _Levels:
    """One search. Each level solves what the levels before could not place."""

    def __init__(self, sizes: NDArray[np.int32], capacity: int, most: int | None, work: Work, report: Progress) -> None:
        self._sizes = sizes
        self._capacity = capacity
        self._work = work
        self._report = report
        shortest = int(sizes.min(initial=capacity))
        self._most = None if most is None or most >= capacity // shortest else most
        self._rest = np.arange(len(sizes), dtype=np.int32)
        self._block = np.zeros(len(sizes), np.int32)
        self._blocks = 0
        self._order: list[NDArray[np.int32]] = []
        self._lengths: list[NDArray[np.int64]] = []  # of rows
        self._num_rows = 0
        self.bound = bound_of_counts(*count_values(sizes), capacity, most)

    def found(self) -> Found:
        best = alone = self._closed()
        while len(self._rest) and self._work.left > 0 and len(best.ptr) - 1 > self.bound * (1 + CLOSE):
            self._solve()
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

    def _solve(self) -> None:
        sizes = self._sizes[self._rest]
        values, counts = count_values(sizes)
        classes = min(CLASSES, max(len(sizes) // ROUNDS, 8))
        if len(values) <= classes:
            grid, widths = self._grid(len(values)), values
        else:
            grid = self._grid(classes)
            widths = np.array(widths_for_counts(values, counts, classes, multiple=grid))
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
            self._most,
            self._work,
            close=CLOSE,
            enough=enough,
            report=lambda rows: self._report(self._num_rows + rows, self.bound),
        )
        if first:
            self.bound = max(self.bound, _bound(solution, width, values // grid, counts))
        # Ranks ascend while sizes descend, so the members of a class lie together, longest first.
        members = np.split(self._rest, np.cumsum(demand[::-1])[:-1])[::-1]
        self._use(solution, members)

    def _grid(self, classes: int) -> int:
        """Return the number of tokens that widths are multiples of."""
        return -(-classes * self._capacity * (self._most or 1) // CELLS)

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
    worth = np.append(0, np.maximum.accumulate(solution.value))[np.searchsorted(width, sizes, side="right")]
    total = sum(value * count for value, count in zip(worth.tolist(), counts.tolist(), strict=True))
    return -(-total // max(solution.greatest, 1))
