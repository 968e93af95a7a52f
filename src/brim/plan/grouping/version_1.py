"""Group rows as version 1 of the planner did, for plans on disk that it made. Nothing new is planned by it.

Windows had 8,192 rows whatever the budget, or half of all rows, and rows of a window that was shuffled before were
sorted stably. Microbatches were cut where the budget ends, for steps of every size.
"""

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import ceil_div, offsets, order_by
from brim.core.rng import permutation
from brim.plan.grouping.group import Grouping, Groups, kind_bounds, rows_per_microbatch
from brim.plan.grouping.ragged import cut_runs, near_order

WINDOW = 8192
FEW = 8


def group_rows_1(
    width: NDArray[np.int32],
    kind: NDArray[np.int32] | None,
    options: Grouping,
    axes: NDArray[np.int32] | None = None,
) -> Groups:
    """Group rows of these widths into microbatches; the arguments are those of `group_rows`."""
    budget, max_rows, window = options.budget, options.max_rows, options.window
    n = len(width)
    order = permutation(n, seed=options.seed, purpose="group", epoch=options.epoch) if options.shuffle else np.arange(n)
    if kind is not None:
        order = order[order_by(kind[order])]
    bounds = kind_bounds(None if kind is None else kind[order], n)
    if axes is not None or not options.shuffle:
        axes = width[:, None] if axes is None else axes
        if options.shuffle:
            slots = np.add.reduceat(width[order].astype(np.int64), bounds[:-1]) if n else np.empty(0, np.int64)
            microbatches = np.maximum(slots // budget, np.diff(bounds) // (max_rows or n or 1))
            bounds = _window_bounds(bounds, microbatches, window)
            order = order[near_order(axes[order], bounds, rows_per_microbatch(width[order], bounds, options.limits))]
        starts, short = cut_runs(axes[order], bounds, budget=budget, max_rows=max_rows)
        groups = Groups(order.astype(np.int32), np.append(starts, n), np.empty(0, np.int32))
        return groups.take(~short) if options.drop_last else groups
    if not options.uniform:
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
    return _cut(order, take, bounds, options.drop_last)


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
        return Groups(order.astype(np.int32), ptr, np.empty(0, np.int32))
    ptr = offsets(kept.astype(np.int64))[ptr]  # indices without the dropped rows
    left_out = np.concatenate([np.empty(0, np.int64), *dropped])
    return Groups(order[kept].astype(np.int32), ptr, left_out.astype(np.int32))
