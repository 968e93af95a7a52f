"""Cut sorted windows into microbatches.

From the wide end of a window, each microbatch takes as many rows as the budget allows at the width of its first row, so
no microbatch exceeds the budget. That gives few microbatches, but nearly all padding of a window is in those at its
ends, where widths differ most. So windows that waste too much are cut at a price: all slots, and a price for each
microbatch, add up to least. Cuts move to where widths drop, and few microbatches are added.
"""

from collections import deque
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brim.plan.grouping.price import FREE, Price
from brim.plan.grouping.windows import SMALLEST, Limits, Windows

try:
    from brim.plan import _kernel as kernel
except ImportError:  # not compiled: `_cut_python` and `_cut_priced_python` do the same
    kernel = None

PARTS = (8, 10, 13, 16, 20, 25, 32, 40, 50, 64)
"""Prices of a microbatch in windows that are cut at a price: the budget divided by each of these.

A microbatch takes time of its own, whatever is in it: kernels are launched, gradients are added up. So a window is cut
at the highest price that leaves little enough padding, and every additional microbatch saves slots that are worth its
price: an eighth of a full microbatch where that is enough, never less than a 64th.
"""
SLACK = 1.15
"""Windows may be padded by this factor more than asked for. The last tenths of a per cent take most microbatches."""
EXTRA, FEW = 6, 20
"""A window gets at most one additional microbatch for every `EXTRA` that it has; for every `FEW` if it has fewer than
`SMALLEST`. So small a window cannot have little padding, and would always be cut at the lowest price.
"""


def cut(windows: Windows, limits: Limits, price: Price = FREE, target: int = 0) -> NDArray[np.int64]:
    """Return where microbatches begin, each as full as the budget allows.

    With a `target` above 0, no microbatch costs more than that by its `price`, except for single rows.
    """
    if kernel is None:
        return np.array(_cut_python(windows, limits, price, target), np.int64)
    options = (windows.width, windows.bounds, limits.budget, limits.rows, price.scale or 0, price.extra, target)
    starts = np.empty(kernel.cut(*options, bytearray()), np.int64)
    kernel.cut(*options, starts)
    return starts


def _cut_python(windows: Windows, limits: Limits, price: Price = FREE, target: int = 0) -> list[int]:
    """The kernel's `cut` in Python."""
    width, bounds, starts = windows.width.data, windows.bounds.tolist(), list[int]()
    costs = price.each(windows.width).data
    for at, end in pairwise(bounds):
        while at < end:
            starts.append(at)
            most = min(limits.rows, target // costs[at]) if target else limits.rows
            at += max(min(limits.budget // width[at], most), 1)
    return starts


def cut_padded(windows: Windows, limits: Limits, padding: float) -> NDArray[np.int64]:
    """Return where microbatches begin, so that about `padding`, a share of the slots, is wasted; more, if that takes
    more microbatches than `PARTS` and `EXTRA` allow.

    Windows are cut where the budget ends. Those that waste more than that share are cut at a price, the one that wastes
    most first, until all windows together waste little enough.
    """
    starts = cut(windows, limits)
    if len(starts) == 0:
        return starts
    width, bounds = windows.width, windows.bounds
    first = np.searchsorted(starts, bounds)
    slots = np.add.reduceat(np.diff(starts, append=len(width)) * width[starts], first[:-1])
    tokens = np.add.reduceat(width, bounds[:-1], dtype=np.int64)
    share = min(SLACK * padding, 0.99)
    wasted, allowed = slots - tokens, (share / (1 - share) * tokens).astype(np.int64)
    too_much, prices = int((wasted - allowed).sum()), _Prices(limits)
    kept, more = np.ones(len(starts), np.bool_), [np.empty(0, np.int64)]
    for number in np.argsort(allowed - wasted, kind="stable").tolist():
        if too_much <= 0 or wasted[number] <= allowed[number]:
            break
        pieces = slice(int(first[number]), int(first[number + 1]))
        begin, end = int(bounds[number]), int(bounds[number + 1])
        found = prices.cut(width[begin:end], starts[pieces] - begin, int(wasted[number]), int(allowed[number]))
        too_much -= int(wasted[number]) - found.wasted
        kept[pieces] = False
        more.append(begin + found.starts)
    return np.sort(np.concatenate([starts[kept], *more]))


class _Found(NamedTuple):
    starts: NDArray[np.int64]
    wasted: int


class _Prices:
    """Finds a price for each window, beginning with the one of the window before: most windows need the same."""

    def __init__(self, limits: Limits) -> None:
        self._limits, self._at = limits, 0

    def cut(self, width: NDArray[np.int32], full: NDArray[np.int64], wasted: int, allowed: int) -> _Found:
        """Return the cut at the highest price that wastes at most `allowed`, or at the lowest one with few enough
        microbatches; `full` is the cut where the budget ends, and is returned if no price is better.
        """
        found = self._try(width, full, wasted, self._at)
        while found is None and self._at > 0:
            self._at -= 1
            found = self._try(width, full, wasted, self._at)
        while found is not None and found.wasted > allowed and self._at + 1 < len(PARTS):
            cheaper = self._try(width, full, wasted, self._at + 1)
            if cheaper is None:
                break
            found, self._at = cheaper, self._at + 1
        return _Found(full, wasted) if found is None else found

    def _try(self, width: NDArray[np.int32], full: NDArray[np.int64], wasted: int, at: int) -> _Found | None:
        """Return the cut at a price, or None if it has too many microbatches."""
        price = max(self._limits.budget // PARTS[at], 1)
        starts = np.empty(min(len(full) + wasted // price, len(width)), np.int64)
        walk = _cut_priced_python if kernel is None else kernel.cut_priced
        starts = starts[: walk(width, *self._limits, price, starts)]
        if len(starts) > len(full) + len(full) // (FEW if len(full) < SMALLEST else EXTRA):
            return None
        slots = int((np.diff(starts, append=len(width)) * width[starts]).sum())
        return _Found(starts, slots - int(width.sum(dtype=np.int64)))


def _cut_priced_python(width: NDArray[np.int32], budget: int, most: int, price: int, starts: NDArray[np.int64]) -> int:
    """The kernel's `cut_priced` in Python."""
    widths, n = width.data, len(width)
    # A start is (line, width, end, since, row): ending at j costs line + width * j, for j up to `end`.
    queue, cost, before = deque[tuple[int, int, int, int, int]](), 0, [0] * (n + 1)
    for row in range(n):
        wide = widths[row]
        line, end, since = cost + price - row * wide, min(row + min(max(budget // wide, 1), most), n), row + 1
        while queue:
            other_line, other_wide, other_end, other_since, _ = queue[-1]
            since = max(other_since, row + 1)
            if since <= other_end and line + wide * since >= other_line + other_wide * since:
                since = other_end + 1
                if other_wide > wide:
                    since = min(since, (line - other_line) // (other_wide - wide) + 1)
                break
            queue.pop()
        if since <= end:
            queue.append((line, wide, end, since, row))
        while len(queue) > 1 and queue[1][3] <= row + 1:
            queue.popleft()
        cost, before[row + 1] = queue[0][0] + queue[0][1] * (row + 1), queue[0][4]
    found, at = list[int](), n
    while at > 0:
        at = before[at]
        found.append(at)
    starts[: len(found)] = found[::-1]
    return len(found)


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
