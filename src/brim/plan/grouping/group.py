"""Group rows into microbatches under a token budget.

Rows of one kind (group and bucket) are dealt to random windows, sorted by width inside each (`windows.py`), and cut:
where the budget ends (`cutting.py`), or into whole optimizer steps of equal cost, if the size of a step is known
(`steps.py`). Rows of a bucket that are all padded to the same width need no windows: they are cut by counting. Rows
that are ragged along several axes, and rows that are not shuffled, cannot start with the widest one (`ragged.py`).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import ceil_div, offsets, order_by
from brim.plan.config import WINDOW_PADDING
from brim.plan.cost import DEFAULT, CostModel
from brim.plan.grouping.cutting import Cut, cut, cut_full, cut_padded, split_largest
from brim.plan.grouping.price import Price
from brim.plan.grouping.ragged import cut_runs, near_order
from brim.plan.grouping.steps import STEPS, cut_kinds, cut_steps
from brim.plan.grouping.windows import Limits, Windows, count_windows, smallest_window, sort_windows

EVERY_ROW = 2**31 - 1
WINDOW_RAGGED = 256
"""Microbatches in a window of rows that are ragged along several axes."""


class Groups(NamedTuple):
    """Microbatch i is `order[ptr[i]:ptr[i + 1]]`, and as wide as its widest row; `dropped` rows are in none."""

    order: NDArray[np.int32]
    ptr: NDArray[np.int64]
    dropped: NDArray[np.int32]
    width: NDArray[np.int32] | None = None
    """Widths of the rows in this order, if grouping had to compute them."""

    def take(self, kept: NDArray[np.bool_]) -> "Groups":
        """Return the microbatches where `kept` is true; the rows of the others are its `dropped` rows."""
        if kept.all():
            return self
        sizes = np.diff(self.ptr)
        rows = np.repeat(kept, sizes)
        return Groups(self.order[rows], offsets(sizes[kept]), self.order[~rows])


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """Options of grouping."""

    budget: int
    """Upper limit of the slots of a microbatch."""
    max_rows: int | None = None
    window: int | None = None
    """Upper limit of the rows in a window, unless `uniform`. Default: as few as `padding` allows."""
    padding: float = WINDOW_PADDING
    """Share of the slots that padding may take in windows whose size is not given."""
    uniform: bool = False
    """All rows of a kind have one width."""
    drop_last: bool = False
    shuffle: bool = True
    """If False, rows stay in the order of the data."""
    step: int | None = None
    """Microbatches in an optimizer step. If it is given, there are whole steps, whose microbatches cost the same."""
    cost: CostModel = DEFAULT
    attention: int | None = None
    """Mean sum of squared lengths in a row, if rows are packed. None: attention sees the whole width of a row."""
    seed: int = 0
    epoch: int = 0

    @property
    def row_window(self) -> int | None:
        """Upper limit of the rows in a window, if it is given and has an effect: equally wide rows are never padded."""
        return None if self.uniform else self.window

    @property
    def limits(self) -> Limits:
        return Limits(self.budget, self.max_rows or EVERY_ROW)

    @property
    def price(self) -> Price:
        return Price.of(self.cost, self.attention)

    @property
    def whole_steps(self) -> int:
        """The size of the steps that microbatches are cut for; 1 if it does not matter.

        Dropping microbatches that are not full needs microbatches as full as can be.
        """
        return 1 if self.step is None or self.drop_last else self.step


def group_rows(
    width: NDArray[np.int32],
    kind: NDArray[np.int32] | None,
    options: Grouping,
    axes: NDArray[np.int32] | None = None,
) -> Groups:
    """Group rows of these widths into microbatches; rows of different kinds never share one.

    `axes` is [rows, axes]: the widths along each axis, if there are several.
    """
    if axes is not None or not options.shuffle:
        return _group_runs(width, kind, width[:, None] if axes is None else axes, options)
    windows = sort_windows(
        width,
        kind,
        _windows(width, kind, options),
        equal=options.row_window is not None,
        seed=options.seed,
        epoch=options.epoch,
    )
    if options.drop_last:
        return _groups(windows, cut_full(windows, options.limits))
    kinds = 1 if kind is None else len(np.unique(kind[windows.order[windows.bounds[:-1]]]))
    return Groups(
        windows.order,
        np.append(_starts(windows, options, one_kind=kinds <= 1), len(width)),
        np.empty(0, np.int32),
        windows.width,
    )


def group_sorted(width: NDArray[np.int32], *, budget: int, max_rows: int | None = None) -> Groups:
    """Group rows by width alone, the least padding that is possible; equally wide rows stay in their order."""
    order = order_by(width.max(initial=0) - width).astype(np.int32)
    windows = Windows(order, width[order], np.array([0, len(width)] if len(width) else [0]))
    return _groups(windows, Cut(cut(windows, Limits(budget, max_rows or EVERY_ROW)), np.zeros(0, np.bool_)))


def _groups(windows: Windows, cuts: Cut) -> Groups:
    groups = Groups(windows.order, np.append(cuts.starts, len(windows.order)), np.empty(0, np.int32))
    return groups.take(~cuts.short) if len(cuts.short) else groups


def _windows(width: NDArray[np.int32], kind: NDArray[np.int32] | None, options: Grouping) -> NDArray[np.int64]:
    """Return the number of windows of each kind."""
    return count_windows(
        width,
        kind,
        options.limits,
        window=options.row_window,
        padding=0 if options.uniform else options.padding,
        smallest=max(smallest_window(options.padding), STEPS * options.whole_steps if options.whole_steps > 1 else 0),
        recut=options.whole_steps == 1 and not options.drop_last,
    )


def _starts(windows: Windows, options: Grouping, *, one_kind: bool) -> NDArray[np.int64]:
    """Return where microbatches begin."""
    limits, price, step = options.limits, options.price, options.whole_steps
    if len(windows.order) == 0:
        return np.empty(0, np.int64)
    if step == 1:
        return cut(windows, limits) if options.uniform else cut_padded(windows, limits, options.padding)
    if options.uniform or not one_kind or options.window is not None:
        return cut_kinds(windows, limits, price, step, uniform=options.uniform)
    return cut_steps(windows, limits, price, step)


def _group_runs(
    width: NDArray[np.int32], kind: NDArray[np.int32] | None, axes: NDArray[np.int32], options: Grouping
) -> Groups:
    """Group rows whose microbatches cannot start with the widest one."""
    n = len(width)
    if options.shuffle:
        counts = _near_windows(width, kind, options)
        order, _, bounds = sort_windows(
            np.zeros(n, np.int32),
            kind,
            counts,
            equal=options.window is not None,
            seed=options.seed,
            epoch=options.epoch,
        )
        order = order[near_order(axes[order], bounds, rows_per_microbatch(width[order], bounds, options.limits))]
    else:
        order = np.arange(n, dtype=np.int32)
        order = order if kind is None else order[order_by(kind)]
        bounds = kind_bounds(None if kind is None else kind[order], n)
    starts, short = cut_runs(axes[order], bounds, budget=options.budget, max_rows=options.max_rows)
    if options.drop_last:
        return Groups(order, np.append(starts, n), np.empty(0, np.int32)).take(~short)
    slots = np.add.reduceat(width[order], starts, dtype=np.int64) if n else np.empty(0, np.int64)
    starts = split_largest(starts, n, slots, -len(starts) % options.whole_steps)
    return Groups(order, np.append(starts, n), np.empty(0, np.int32))


def _near_windows(width: NDArray[np.int32], kind: NDArray[np.int32] | None, options: Grouping) -> NDArray[np.int64]:
    """Return the number of windows of each kind of rows that are ragged along several axes."""
    kinds = 1 if kind is None else int(kind.max(initial=-1)) + 1
    mine = np.zeros(len(width), np.int64) if kind is None else kind
    rows = np.bincount(mine, minlength=kinds)
    if options.window is not None:
        return np.maximum(ceil_div(rows, options.window), 1)
    slots = np.bincount(mine, weights=width, minlength=kinds).astype(np.int64)
    return np.maximum(np.maximum(slots // options.budget, rows // options.limits.rows) // WINDOW_RAGGED, 1)


def kind_bounds(kind: NDArray[np.int32] | None, n: int) -> NDArray[np.int64]:
    """Return where each run of one kind begins, and the end of the last one."""
    changes = np.empty(0, np.int64) if kind is None else np.flatnonzero(np.diff(kind)) + 1
    return np.concatenate([[0], changes, [n]]) if n else np.zeros(1, np.int64)


def rows_per_microbatch(width: NDArray[np.int32], bounds: NDArray[np.int64], limits: Limits) -> NDArray[np.int64]:
    """Return about how many rows a microbatch has in each window."""
    if len(width) == 0:
        return np.empty(0, np.int64)
    mean = np.add.reduceat(width, bounds[:-1], dtype=np.int64) // np.diff(bounds)
    return np.minimum(np.maximum(limits.budget // np.maximum(mean, 1), 1), limits.rows)
