"""Build the columns of one epoch: units -> (packed) rows -> microbatches -> global order.

A pure function of units, config and epoch. Everything random comes from `brim.core.rng`, keyed by the config's seed and
the epoch.
"""

from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import gather, offsets, order_by, round_up, segment_sums, take_segments
from brim.core.rng import permutation
from brim.plan.buckets import BucketSpec
from brim.plan.config import BatchingConfig, PackingConfig, PadPolicy
from brim.plan.deal import deal_order
from brim.plan.edges import optimal_widths
from brim.plan.epoch_columns import EpochColumns
from brim.plan.grouping.group import Grouping, Groups, group_rows
from brim.plan.grouping.version_1 import group_rows_1
from brim.plan.packing.bounds import lower_bound
from brim.plan.packing.optimal import PatternSearch
from brim.plan.packing.pack import pack
from brim.plan.packing.rows import Rows
from brim.plan.units import Units
from brim.plan.version_1 import packing_1

ALGORITHM = 2
"""Version of the planner, part of every plan's fingerprint. Incremented when the same inputs give another plan."""


class Packed(NamedTuple):
    """The number of rows that units were packed into, and a lower bound: no packing needs fewer."""

    rows: int
    bound: int


class BuiltEpoch(NamedTuple):
    columns: EpochColumns
    dropped: NDArray[np.int32]
    """Units that `drop_last` left out."""
    packed: Packed | None = None
    """None: units are not packed."""


def choose_buckets(units: Units, config: BatchingConfig) -> BucketSpec | None:
    """Return the buckets of a plan: those with the configured edges, or the `num_buckets` that waste the least padding
    for these lengths. None for sorted windows and packed rows, which have no buckets.
    """
    if config.num_buckets is not None:
        widths = optimal_widths(units.length, config.num_buckets, multiple=config.pad_to_multiple)
        return BucketSpec(edges=widths[:-1], overflow_max=widths[-1])
    if config.bucket_edges is None:
        return None
    edges = tuple(dict.fromkeys(round_up(np.array(config.bucket_edges, np.int64), config.pad_to_multiple).tolist()))
    longest = config.limit if config.overflow_max is not None else int(units.length.max(initial=1))
    last = int(round_up(np.array([longest]), config.pad_to_multiple)[0])
    return BucketSpec.covering(edges, last)


def build_epoch(
    units: Units,
    config: BatchingConfig,
    buckets: BucketSpec | None,
    epoch: int,
    *,
    algorithm: int = ALGORITHM,
    search: PatternSearch | None = None,
) -> BuiltEpoch:
    """Plan one epoch. Every unit is in exactly one microbatch, or in `dropped`.

    Epochs of one plan share a `search`, which remembers the patterns that it found. An older `algorithm` gives the
    epoch that its version of the planner gave, for plans that are on disk.
    """
    rows = None
    if config.packing is not None:
        packing = packing_1(config.packing) if algorithm == 1 else config.packing
        rows = _pack_rows(units, packing, config, epoch, search or PatternSearch(packing.time_limit))
    lengths = at_least_one(units.length)
    if rows is not None:
        lengths = rows.totals(lengths).astype(np.int32)
    group = units.group if rows is None or units.group is None else units.group[rows.order[rows.ptr[:-1]]]
    bucket = None if buckets is None else buckets.bucket_ids(lengths)
    axes = None if units.axes is None else round_up(units.axes, config.pad_to_multiple)
    width = (
        _widths(lengths, bucket, buckets, config) if axes is None else np.maximum(axes.sum(axis=1, dtype=np.int32), 1)
    )
    fixed = config.packing.pad_to_max if config.packing is not None else config.pad_policy is PadPolicy.PAD_TO_BUCKET
    options = Grouping(
        budget=config.token_budget,
        max_rows=config.max_sequences,
        window=config.window,
        padding=config.window_padding,
        uniform=fixed,
        drop_last=config.drop_last,
        shuffle=config.shuffle,
        step=config.microbatches_per_step,
        cost=config.cost_model,
        attention=None if rows is None else _mean_attention(units, rows),
        seed=config.seed,
        epoch=epoch,
    )
    group_them = group_rows_1 if algorithm == 1 else group_rows
    groups = group_them(width, _kinds(group, bucket, buckets), options, axes)
    first = groups.order[groups.ptr[:-1]]
    if width is not units.length:
        groups = groups._replace(width=None)  # rounded up, so it does not add up to the tokens
    columns = _columns(units, rows, groups, _widest(width, axes, groups, ordered=axes is None and config.shuffle))
    columns = replace(
        columns,
        bucket=np.zeros(len(first), np.int32) if bucket is None else bucket[first],
        group=None if group is None else group[first],
    )
    if config.shuffle:
        costs = columns.cost(config.cost_model)
        order = deal_order(costs, config.microbatches_per_step or 1, seed=config.seed, epoch=epoch)
    else:
        order = order_by(
            columns.unit[columns.row_ptr[:-1] if columns.seq_ptr is None else columns.seq_ptr[columns.row_ptr[:-1]]]
        )
    dropped = groups.dropped.astype(np.int32) if rows is None else rows.order[gather(rows.ptr, groups.dropped)[0]]
    packed = None if rows is None else Packed(len(rows), rows.bound or 0)
    return BuiltEpoch(columns.take(order), np.sort(dropped), packed)


def _pack_rows(units: Units, packing: PackingConfig, config: BatchingConfig, epoch: int, search: PatternSearch) -> Rows:
    """Pack the units of each group separately.

    With `shuffle`, units arrive in another order in every epoch, so other ones of equal length share a row.
    """
    shuffled = (
        permutation(len(units), seed=config.seed, purpose="pack", epoch=epoch)
        if config.shuffle
        else np.arange(len(units))
    )
    arrivals = shuffled.astype(np.int32)
    if units.group is None:
        return _packed(units.length, arrivals, packing, search)
    orders, ptrs, end, bound = [np.empty(0, np.int32)], [np.zeros(1, np.int64)], 0, 0
    arrived = units.group[arrivals]
    sizes = np.bincount(arrived)
    bounds = offsets(sizes[sizes > 0]).tolist()
    part = search.part(1 / max(len(bounds) - 1, 1))
    by_group = arrivals[order_by(arrived)]
    for members in (by_group[start:stop] for start, stop in pairwise(bounds)):
        rows = _packed(units.length[members], None, packing, part)
        orders.append(members[rows.order])
        ptrs.append(rows.ptr[1:] + end)
        end += len(members)
        bound += rows.bound or 0
    return Rows(np.concatenate(orders), np.concatenate(ptrs), bound)


def _packed(
    lengths: NDArray[np.int32], arrivals: NDArray[np.int32] | None, packing: PackingConfig, search: PatternSearch
) -> Rows:
    """Pack units of one group, and say how many rows they need at least."""
    capacity, most = packing.max_length, packing.max_sequences
    rows = pack(lengths, capacity, mode=packing.mode, max_sequences=most, order=arrivals, search=search)
    bound = lower_bound(lengths, capacity, max_sequences=most) if rows.bound is None else rows.bound
    return replace(rows, bound=bound)


def at_least_one(lengths: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the slots of sequences: an empty one takes up one."""
    return lengths if lengths.min(initial=1) >= 1 else np.maximum(lengths, 1)


def _widths(
    lengths: NDArray[np.int32], bucket: NDArray[np.int32] | None, buckets: BucketSpec | None, config: BatchingConfig
) -> NDArray[np.int32]:
    """Return the minimum padded width of each row; a wider row in its microbatch can raise it."""
    if config.packing is not None and config.packing.pad_to_max:
        return np.full(len(lengths), config.packing_width, np.int32)
    if bucket is not None and buckets is not None and config.pad_policy is PadPolicy.PAD_TO_BUCKET:
        return np.array(buckets.widths, np.int32)[bucket]
    return round_up(lengths, config.pad_to_multiple).astype(np.int32, copy=False)


def _kinds(
    group: NDArray[np.int32] | None, bucket: NDArray[np.int32] | None, buckets: BucketSpec | None
) -> NDArray[np.int32] | None:
    """Return the kind of each row, from its group and bucket; None if it has neither.

    Rows of different kinds never share a microbatch.
    """
    if group is None or bucket is None or buckets is None:
        return bucket if group is None else group
    return group * np.int32(buckets.num_buckets) + bucket


def _mean_attention(units: Units, rows: Rows) -> int:
    """Return the mean, over packed rows, of the sum of the squared lengths in a row."""
    squares = units.length.astype(np.int64) ** 2
    # In two parts, because the sum may need more than 64 bits.
    total = (int((squares >> 32).sum()) << 32) + int((squares & 0xFFFFFFFF).sum())
    return total // max(len(rows), 1)


def _widest(
    width: NDArray[np.int32], axes: NDArray[np.int32] | None, groups: Groups, *, ordered: bool
) -> NDArray[np.int32]:
    """Return the width of the widest row of each microbatch along each axis, [microbatches, axes].

    `ordered` says that the first row of a microbatch is the widest.
    """
    if ordered:
        return width[groups.order[groups.ptr[:-1]]][:, None]
    return np.maximum.reduceat((width[:, None] if axes is None else axes)[groups.order], groups.ptr[:-1])


def _columns(units: Units, rows: Rows | None, groups: Groups, widest: NDArray[np.int32]) -> EpochColumns:
    """Return the columns of microbatches, before buckets and groups are filled in.

    `widest` is [microbatches, axes]: the width of the widest row along each axis.
    """
    row_ptr = groups.ptr
    if rows is None:
        unit, seq_ptr, bounds = groups.order, None, row_ptr
    else:
        unit, seq_ptr = take_segments(rows.order, rows.ptr, groups.order)
        bounds = seq_ptr[row_ptr]
    squares = (widest.astype(np.int64) ** 2).sum(axis=1)  # attention stays inside an axis
    if rows is None:
        lengths = units.length[unit] if groups.width is None else groups.width
        attention = np.diff(row_ptr) * squares
    else:
        lengths = units.length[unit]
        attention = segment_sums(lengths.astype(np.int64) ** 2, bounds)
    tokens = np.add.reduceat(lengths, row_ptr[:-1], dtype=np.int64) if rows is None else segment_sums(lengths, bounds)
    width = np.maximum(widest.sum(axis=1, dtype=np.int32), 1)
    empty = np.zeros(len(width), np.int32)
    return EpochColumns(
        unit=unit, row_ptr=row_ptr, width=width, bucket=empty, tokens=tokens, attention=attention, seq_ptr=seq_ptr
    )
