"""Group rows that are ragged along several axes: put similar rows next to each other, and cut where the budget ends.

A row is padded to the longest row of its microbatch along every axis. Sorting by one axis, or by the sum, leaves the
others random; so rows are split in two along the axis in which they differ most, recursively, down to the size of a
microbatch. With one axis, that is a sort. The second part of a split is sorted in the opposite direction along all
other axes, so that neighbours across the split are similar too.
"""

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import ceil_div, order_by


def near_order(axes: NDArray[np.int32], bounds: NDArray[np.int64], per: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return an order of the rows in which neighbours are similar. Rows stay inside their window; window i is split
    down to `per[i]` rows.

    `axes` is [rows, axes]; windows are `bounds[i]` to `bounds[i + 1]`, none of them empty.
    """
    # The state of the splitting: `order` lists the rows, piece i is `order[starts[i]:starts[i + 1]]`, and `turned[i,
    # a]` says that piece i is sorted downwards if it is ever sorted along axis a.
    order = np.arange(len(axes))
    starts, turned = bounds[:-1], np.zeros((len(bounds) - 1, axes.shape[1]), np.bool_)
    while True:
        # All pieces are halved at once, so that the number of rounds is the logarithm of the largest piece. `parts` is
        # how many microbatches of `per` rows a piece will hold; a piece of one microbatch is not split further.
        sizes = np.diff(starts, append=len(axes))
        parts = ceil_div(sizes, per)
        if (parts <= 1).all():
            return order
        # The axis along which a piece differs most is the one it is sorted and split by.
        piece = np.repeat(np.arange(len(starts)), sizes)
        here = axes[order]
        low, high = np.minimum.reduceat(here, starts), np.maximum.reduceat(here, starts)
        widest = (high - low).argmax(axis=1)
        # Every row is sorted inside its piece by its distance from the smallest value of that axis; in a piece that is
        # turned along the axis, from the largest. Distances are at least 0, which `order_by` needs.
        value, number = here[np.arange(len(here)), widest[piece]], np.arange(len(starts))
        low, high, down = low[number, widest], high[number, widest], turned[number, widest]
        order = order[order_by(piece, np.where(down[piece], high[piece] - value, value - low[piece]))]
        # Split in the middle, at a multiple of `per`, so that only the last part of a window can be short.
        split = np.flatnonzero(parts > 1)
        middle = starts[split] + parts[split] // 2 * per[split]
        starts, per = np.insert(starts, split + 1, middle), np.insert(per, split + 1, per[split])
        # The second half is turned along all axes but the one that was split. Along that one it continues upwards (or
        # downwards) from the end of the first half; along the others its first rows are like the first half's last.
        second = ~turned[split]
        second[np.arange(len(split)), widest[split]] ^= True
        turned = np.insert(turned, split + 1, second, axis=0)


def cut_runs(
    axes: NDArray[np.int32], bounds: NDArray[np.int64], *, budget: int, max_rows: int | None
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return where microbatches begin, and which of them are short: they end with their window, and had room for
    another row of the same width.

    Rows are taken in order, at most `max_rows`, as long as (rows) x (the sum of the largest of each axis, at least 1)
    stays within the budget; a single row is taken even if it exceeds the budget.
    """
    starts: list[int] = []
    short: list[bool] = []
    most, ahead = max_rows or len(axes), 64
    for start, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        while start < end:
            block = axes[start : min(start + min(ahead, most), end)]
            widths = np.maximum(np.maximum.accumulate(block, axis=0).sum(axis=1, dtype=np.int64), 1)
            slots = widths * np.arange(1, len(block) + 1)
            rows = max(int(np.searchsorted(slots, budget, side="right")), 1)
            if rows == len(block) and rows < min(most, end - start):
                ahead *= 2
                continue
            starts.append(start)
            short.append(start + rows == end and rows < most and int(slots[rows - 1]) // rows * (rows + 1) <= budget)
            start += rows
    return np.array(starts, np.int64), np.array(short, np.bool_)
