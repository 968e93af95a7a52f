"""Cut sorted windows into microbatches.

From the wide end of a window, each microbatch takes as many rows as the budget allows at the width of its first row, so
no microbatch exceeds the budget. Nearly all padding of a window is in a few microbatches at its ends, where widths
differ most; `split_widest` cuts these in two where that saves most.
"""

import heapq
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brim.plan.grouping.windows import Limits, Windows

try:
    from brim.plan import _kernel as kernel
except ImportError:  # not compiled: `_cut_python` and `_best_split_numpy` do the same
    kernel = None

SAVING = 32
"""A cut is worth another microbatch if it saves one part in this many of the budget."""
EXTRA = 20
"""At most one microbatch for this many is added to a window, so a window of fewer is not split."""


def cut(windows: Windows, limits: Limits) -> NDArray[np.int64]:
    """Return where microbatches begin, each as full as the budget allows."""
    if kernel is None:
        return np.array(_cut_python(windows, limits), np.int64)
    budget = (windows.width, windows.bounds, limits.budget, limits.rows)
    starts = np.empty(kernel.cut(*budget, bytearray()), np.int64)
    kernel.cut(*budget, starts)
    return starts


def _cut_python(windows: Windows, limits: Limits) -> list[int]:
    width, bounds, starts = windows.width.data, windows.bounds.tolist(), list[int]()
    for at, end in pairwise(bounds):
        while at < end:
            starts.append(at)
            at += min(max(limits.budget // width[at], 1), limits.rows)
    return starts


def split_widest(windows: Windows, starts: NDArray[np.int64], limits: Limits, padding: float) -> NDArray[np.int64]:
    """Cut microbatches in two until the padding of each window is at most `padding`, a share of its slots.

    The cut that saves most comes first. A window gets at most one more microbatch for `EXTRA` of its own, and a cut has
    to save a microbatch's budget divided by `SAVING`; so the padding can stay above what was asked for.
    """
    if len(starts) == 0:
        return starts
    sizes = np.diff(starts, append=len(windows.order))
    tokens = np.add.reduceat(windows.width, starts, dtype=np.int64)
    wasted = sizes * windows.width[starts] - tokens
    first = np.searchsorted(starts, windows.bounds)
    total, used = np.add.reduceat(wasted, first[:-1]), np.add.reduceat(tokens, first[:-1])
    more: list[int] = []
    for number in np.flatnonzero(total > padding * (total + used)).tolist():
        pieces = range(int(first[number]), int(first[number + 1]))
        allowed = int(padding * float(used[number]) / (1 - padding)) if padding < 1 else int(total[number])
        window = _Window(windows.width, limits.budget // SAVING)
        for piece in pieces:
            if wasted[piece] >= window.least:
                window.add(int(starts[piece]), int(starts[piece] + sizes[piece]))
        more += window.cuts(int(total[number]) - allowed, len(pieces) // EXTRA)
    return np.sort(np.append(starts, np.array(more, np.int64)))


class _Window:
    """The microbatches of one window that may be cut in two, the one that saves most first."""

    def __init__(self, width: NDArray[np.int32], least: int) -> None:
        self.least, self._width = max(least, 1), width
        self._heap: list[tuple[int, int, int, int]] = []

    def add(self, start: int, end: int) -> None:
        """Find where cutting a microbatch in two saves most, and remember it if that is enough."""
        find = _best_split_numpy if kernel is None else kernel.best_split
        saved, place = find(self._width, start, end)
        if saved >= self.least:
            heapq.heappush(self._heap, (-saved, start, place, end))

    def cuts(self, too_much: int, most: int) -> list[int]:
        """Return where to cut so that `too_much` slots less are wasted, in at most so many places."""
        found: list[int] = []
        while self._heap and too_much > 0 and len(found) < most:
            saved, start, place, end = heapq.heappop(self._heap)
            too_much += saved
            found.append(place)
            self.add(start, place)
            self.add(place, end)
        return found


def _best_split_numpy(width: NDArray[np.int32], start: int, end: int) -> tuple[int, int]:
    """Do what `kernel.best_split` does."""
    rows = width[start:end].astype(np.int64)
    saved = (len(rows) - np.arange(len(rows))) * (rows[0] - rows)
    place = int(saved.argmax())
    return int(saved[place]), start + place


class Cut(NamedTuple):
    """Microbatches, and which of them are short: they end with their window, and had room for more rows."""

    starts: NDArray[np.int64]
    short: NDArray[np.bool_]


def cut_full(windows: Windows, limits: Limits) -> Cut:
    """Cut as `cut` does, and say which microbatches are short."""
    starts = cut(windows, limits)
    sizes = np.diff(starts, append=len(windows.order))
    return Cut(starts, sizes < np.minimum(limits.budget // windows.width[starts], limits.rows))


def split_largest(starts: NDArray[np.int64], total: int, size: NDArray[np.int64], more: int) -> NDArray[np.int64]:
    """Cut `more` microbatches in half, those of the largest `size` first; fewer, if there are not enough rows.

    `total` is the number of rows; microbatch i has the rows `starts[i]` to `starts[i + 1]`.
    """
    while more > 0:
        rows = np.diff(starts, append=total)
        order = np.argsort(-size, kind="stable")
        halved = np.sort(order[rows[order] > 1][:more])
        if len(halved) == 0:
            break
        more -= len(halved)
        size = size.copy()
        size[halved] //= 2
        middle = starts[halved] + (rows[halved] + 1) // 2
        starts, size = np.insert(starts, halved + 1, middle), np.insert(size, halved + 1, size[halved])
    return starts
