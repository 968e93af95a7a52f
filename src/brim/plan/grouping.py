"""Cut rows into microbatches under a token budget.

Rows of one kind (group and bucket) are shuffled, cut into windows, and sorted by width inside each window, widest
first. From the wide end of a window, each microbatch takes as many rows as the budget allows at the width of its first
row, so no microbatch exceeds the budget. Rows of a bucket that are all padded to the same width need no windows: they
are cut by counting. Rows that are ragged along several axes, and rows that are not shuffled, cannot start with the
widest one: see `brim.plan.ragged`.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import ceil_div, offsets, order_by
from brim.core.rng import permutation
from brim.plan.ragged import cut_runs, near_order

WINDOW = 8192
FEW = 8


class Groups(NamedTuple):
    """Microbatch i is `order[ptr[i]:ptr[i + 1]]`, and as wide as its widest row; `dropped` rows are in none."""

    order: NDArray[np.int64]
    ptr: NDArray[np.int64]
    dropped: NDArray[np.int64]

    def take(self, kept: NDArray[np.bool_]) -> "Groups":
        """Return the microbatches where `kept` is true; the rows of the others are its `dropped` rows."""
        sizes = np.diff(self.ptr)
        rows = np.repeat(kept, sizes)
        return Groups(self.order[rows], offsets(sizes[kept]), self.order[~rows])


def group_rows(
    width: NDArray[np.int32],
    kind: NDArray[np.int32] | None,
    *,
    budget: int,
    max_rows: int | None,
    window: int | None,
    uniform: bool,
    drop_last: bool,
    seed: int,
    epoch: int,
    axes: NDArray[np.int32] | None = None,
    shuffle: bool = True,
) -> Groups:
    """Group rows of the given widths into microbatches. `uniform` says that all rows of a kind have one width.

    `axes` is [rows, axes]: the widths along each axis, if there are several. Without `shuffle`, rows stay in the order
    of the data.

    Without a `window`, windows hold at most 8192 rows of a kind, or half of them if there are fewer: two random halves,
    so that even in a small data set samples share batches with other samples in every epoch. Kinds of fewer than about
    eight microbatches stay in one window, because cutting them would leave more microbatches that are not full.
    """
    n = len(width)
    order = permutation(n, seed=seed, purpose="group", epoch=epoch) if shuffle else np.arange(n)
    if kind is not None:
        order = order[order_by(kind[order])]
    bounds = _kind_bounds(None if kind is None else kind[order], n)
    if axes is not None or not shuffle:
        axes = width[:, None] if axes is None else axes
        if shuffle:
            slots = np.add.reduceat(width[order].astype(np.int64), bounds[:-1]) if n else np.empty(0, np.int64)
            microbatches = np.maximum(slots // budget, np.diff(bounds) // (max_rows or n or 1))
            bounds = _window_bounds(bounds, microbatches, window)
            order = order[near_order(axes[order], bounds, _rows_per_microbatch(width[order], bounds, budget, max_rows))]
        starts, short = cut_runs(axes[order], bounds, budget=budget, max_rows=max_rows)
        groups = Groups(order, np.append(starts, n), np.empty(0, np.int64))
        return groups.take(~short) if drop_last else groups
    if not uniform:
        microbatches = (
            np.add.reduceat(width[order].astype(np.int64), bounds[:-1]) // budget if n else np.empty(0, np.int64)
        )
        bounds = _window_bounds(bounds, microbatches, window)
        number = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
        narrowness = width.max(initial=0) - width[order]
        order = order[order_by(number, narrowness)]
    take = budget // width[order]
    if max_rows is not None:
        take = np.minimum(take, max_rows)
    return _cut(order, take, bounds, drop_last)


def _kind_bounds(kind: NDArray[np.int32] | None, n: int) -> NDArray[np.int64]:
    """Return where each run of one kind begins, and the end of the last one."""
    changes = np.empty(0, np.int64) if kind is None else np.flatnonzero(np.diff(kind)) + 1
    return np.concatenate([[0], changes, [n]]) if n else np.zeros(1, np.int64)


def _window_bounds(bounds: NDArray[np.int64], microbatches: NDArray[np.int64], window: int | None) -> NDArray[np.int64]:
    """Cut runs into windows of nearly equal size, and return their bounds.

    `microbatches` is about how many microbatches each run will have.
    """
    pieces: list[NDArray[np.int64]] = []
    for (start, end), many in zip(_pairs(bounds), microbatches.tolist(), strict=True):
        count = ceil_div(end - start, window or WINDOW)
        if window is None and many >= FEW:
            count = max(count, 2)
        pieces.append(start + (end - start) * np.arange(count) // count)
    return np.concatenate([*pieces, bounds[-1:]])


def _rows_per_microbatch(
    width: NDArray[np.int32], bounds: NDArray[np.int64], budget: int, max_rows: int | None
) -> NDArray[np.int64]:
    """Return about how many rows a microbatch has in each window: as the budget allows, at most `max_rows`."""
    mean = (
        np.add.reduceat(width.astype(np.int64), bounds[:-1]) // np.diff(bounds) if len(width) else np.empty(0, np.int64)
    )
    rows = np.maximum(budget // np.maximum(mean, 1), 1)
    return rows if max_rows is None else np.minimum(rows, max_rows)


def _pairs(bounds: NDArray[np.int64]) -> list[tuple[int, int]]:
    return list(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))


def _cut(order: NDArray[np.int64], take: NDArray[np.int32], bounds: NDArray[np.int64], drop_last: bool) -> Groups:
    takes = take.data
    starts: list[int] = []
    dropped: list[NDArray[np.int64]] = []
    kept = np.ones(len(order), np.bool_) if drop_last else None
    for start, end in _pairs(bounds):
        while start < end:
            if kept is not None and start + takes[start] > end:
                dropped.append(order[start:end])
                kept[start:end] = False
                break
            starts.append(start)
            start += takes[start]
    ptr = np.array([*starts, len(order)], np.int64)
    if kept is None:
        return Groups(order, ptr, np.empty(0, np.int64))
    ptr = offsets(kept.astype(np.int64))[ptr]  # indices without the dropped rows
    return Groups(order[kept], ptr, np.concatenate([np.empty(0, np.int64), *dropped]))
