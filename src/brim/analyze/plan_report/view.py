"""The numbers of a plan as columns: its microbatches, how they are dealt to ranks and in which order, and statistics.

Pure NumPy, no loop over microbatches, nothing random. Columns are in the order in which the plan stores them, which is
*not* the order of training: that depends on the number of ranks, and is `Dealt.places`. Only the columns of a share are
in the order of its rank.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import ceil_div
from brim.core.errors import OptionError
from brim.core.fill import Fill
from brim.data.ids import SampleId
from brim.plan.deal import NULL, Deal
from brim.plan.epoch import EpochPlan
from brim.plan.epoch_columns import EpochColumns
from brim.plan.plan import BatchPlan
from brim.plan.verify import NAMED

Column = NDArray[np.integer[Any]]
Numbers = NDArray[np.int64]

METRICS = ("width", "tokens", "cost")
WORLD_SIZES = (1, 2, 4, 8)
MOST_RANKS = 16_384
MAX_BANDS = 8


@dataclass(frozen=True)
class Band:
    """A bucket or a range of widths, both ends included, whose microbatches are counted together."""

    low: int
    high: int


@dataclass(frozen=True)
class OrderStats:
    """Statistics of a value of the microbatches along their order: correlations, trend and tail.

    NaN where a statistic is undefined: there are too few microbatches, or all values are equal.
    """

    lag: float
    """Correlation of each microbatch with the next one."""
    step_lag: float
    """Correlation of each optimizer step's mean with the next one: inside a step, microbatches are alike on purpose."""
    trend: float
    """Rank correlation of the value with the position in the order."""
    tail: float
    """The mean of the last hundredth of the microbatches, divided by the mean of all."""


@dataclass(frozen=True)
class WasteStats:
    """Concentration of the padding in few microbatches. NaN if there is no padding."""

    worst_tenth: float
    """The share of all padding that is in the tenth of the microbatches with the most."""
    half: float
    """The smallest share of microbatches that holds half of the padding."""


@dataclass(frozen=True, eq=False)
class Dealt:
    """The microbatches of an epoch as they are dealt to ranks."""

    deal: Deal
    places: Numbers  # [rounds, ranks]: index of a microbatch in the columns, or NULL

    @property
    def ranks(self) -> int:
        """Number of ranks in `places`: all, or one if the plan is the share of a rank."""
        return self.places.shape[1]

    def order(self, rank: int | None = None) -> Numbers:
        """Return the microbatches of a rank, or of all ranks (the global order), in order, without empty ones."""
        places = self.places.reshape(-1) if rank is None else self.places[:, rank]
        return places[places != NULL]

    def steps(self, rank: int | None = None) -> Numbers:
        """Return the optimizer step of each microbatch in `order(rank)`."""
        steps = np.broadcast_to(np.arange(len(self.places))[:, None] // self.deal.rounds_per_step, self.places.shape)
        return steps[self.places != NULL] if rank is None else steps[:, rank][self.places[:, rank] != NULL]

    def step_costs(self, cost: Column) -> Numbers:
        """Return the cost of every step on every rank, [steps, ranks]. Empty microbatches cost nothing."""
        if len(self.places) == 0:
            return np.zeros((0, self.ranks), np.int64)
        costs = np.where(self.places == NULL, 0, cost.astype(np.int64)[self.places])
        return np.add.reduceat(costs, np.arange(0, len(costs), self.deal.rounds_per_step), axis=0)

    @property
    def last_step(self) -> int:
        """Number of microbatches in the last step, over all ranks of the deal."""
        return self.deal.length - max(self.deal.steps - 1, 0) * self.deal.step_size


@dataclass(frozen=True, eq=False)
class EpochView:
    """One epoch: a column for each property of its microbatches, and the deals to different numbers of ranks."""

    epoch: int
    fingerprint: str
    dropped: int
    """Number of samples, or pieces of split ones, that `drop_last` leaves out."""
    dropped_ids: tuple[SampleId, ...]
    """The ids of some samples that `drop_last` leaves out, in whole or in part."""
    rows: Column  # this and the following columns: [microbatches]
    width: Column
    tokens: Column
    attention: Column
    cost: Column
    bucket: Column
    sequences: Column
    group: Column | None
    dealt: dict[int, Dealt]
    """The deals of the epoch, by the number of ranks."""

    def __len__(self) -> int:
        return len(self.width)

    @cached_property
    def slots(self) -> Numbers:
        return self.rows.astype(np.int64) * self.width

    @cached_property
    def padding(self) -> Numbers:
        return self.slots - self.tokens

    def column(self, metric: str) -> Column:
        return {"width": self.width, "tokens": self.tokens, "cost": self.cost}[metric]

    def fill(self, order: Numbers) -> Fill:
        return Fill(int(self.tokens[order].sum()), int(self.slots[order].sum()))

    def shapes(self, order: Numbers) -> tuple[Numbers, Numbers]:
        """Return the distinct shapes (rows, width), ascending, and the number of microbatches of each."""
        pairs = np.stack([self.rows[order], self.width[order]], axis=1).astype(np.int64)
        return np.unique(pairs, axis=0, return_counts=True)


@dataclass(frozen=True, eq=False)
class PlanView:
    """A plan as columns: its epochs, and the bands by which microbatches are counted."""

    plan: BatchPlan
    epochs: tuple[EpochView, ...]
    """The epochs of the plan, or only the first ones if all would take too many bytes."""
    bands: tuple[Band, ...]
    bucketed: bool
    """Whether the bands are the plan's buckets; otherwise they are ranges of widths."""

    @property
    def world_sizes(self) -> tuple[int, ...]:
        return tuple(self.epochs[0].dealt)

    @property
    def rank(self) -> int | None:
        """The rank whose share the plan is; None if it is the whole plan."""
        return self.plan.rank if self.plan.share.partial or self.plan.world_size > 1 else None

    def band(self, view: EpochView) -> Numbers:
        """Return the index of the band of every microbatch."""
        if self.bucketed:
            return view.bucket.astype(np.int64)
        return np.searchsorted([band.high for band in self.bands], view.width)

    def band_sums(self, view: EpochView, order: Numbers) -> dict[str, Numbers]:
        """Return, for each band, its numbers of microbatches, sequences, tokens and slots."""
        band = self.band(view)[order]

        def total(column: Column) -> Numbers:
            sums = np.zeros(len(self.bands), np.int64)
            np.add.at(sums, band, column[order])
            return sums

        columns = {"sequences": view.sequences, "tokens": view.tokens, "slots": view.slots}
        counts = np.bincount(band, minlength=len(self.bands))
        return {"microbatches": counts, **{name: total(column) for name, column in columns.items()}}


def create_plan_view(
    plan: BatchPlan, world_sizes: Sequence[int] | None = None, *, max_bytes: int | None = None
) -> PlanView:
    """Return a plan as columns, dealt to each of `world_sizes`. A share of a plan is shown for its own rank only.

    Epochs are added as long as they take no more than about `max_bytes` in total; the first one is always added.

    Raises:
        OptionError: A number of ranks is out of range, or the plan is a share, which cannot be dealt to other numbers.
    """
    sizes = _checked_sizes(plan, world_sizes)
    epochs: list[EpochView] = []
    left = float("inf") if max_bytes is None else max_bytes
    for epoch in range(plan.num_epochs):
        view = _epoch_view(plan, epoch, sizes)
        left -= stored_bytes(view)
        if epochs and left < 0:
            break
        epochs.append(view)
    bucketed = plan.buckets is not None
    return PlanView(plan, tuple(epochs), _bucket_bands(plan) if bucketed else _width_bands(epochs), bucketed)


def _checked_sizes(plan: BatchPlan, world_sizes: Sequence[int] | None) -> tuple[int, ...]:
    if plan.share.partial or plan.world_size > 1:
        if world_sizes is not None and tuple(world_sizes) != (plan.world_size,):
            raise OptionError(
                f"this plan is the share of rank {plan.rank} of {plan.world_size}; to deal it otherwise, take the "
                "whole plan"
            )
        return (plan.world_size,)
    sizes = tuple(dict.fromkeys(world_sizes if world_sizes is not None else WORLD_SIZES))
    if not sizes or min(sizes) < 1:
        raise OptionError(f"the numbers of ranks must be at least 1, got {', '.join(map(str, sizes)) or 'none'}")
    if max(sizes) > MOST_RANKS:
        raise OptionError(f"a report is dealt to at most {MOST_RANKS} ranks, got {max(sizes)}")
    return sizes


def _epoch_view(plan: BatchPlan, epoch: int, sizes: tuple[int, ...]) -> EpochView:
    whole = plan.get_epoch(epoch)
    columns = whole.columns
    if plan.share.partial or plan.world_size > 1:
        taken = whole.places[whole.places != NULL]
        own = np.where(whole.places == NULL, NULL, np.cumsum(whole.places != NULL) - 1)
        dealt = {plan.world_size: Dealt(whole.deal, own[:, None])}
    else:
        taken, dealt = np.arange(len(columns)), {size: _dealt(plan.shard(0, size).get_epoch(epoch)) for size in sizes}
    rows, sequences, dropped = np.diff(columns.row_ptr), _sequences(columns), plan.dropped_units(epoch)
    return EpochView(
        epoch=epoch,
        fingerprint=columns.fingerprint,
        dropped=dropped.size,
        dropped_ids=plan.table.ids.take(np.unique(plan.units.samples(dropped))[:NAMED]),
        rows=smallest(rows[taken]),
        width=smallest(columns.width[taken]),
        tokens=smallest(columns.tokens[taken]),
        attention=columns.attention[taken],
        cost=smallest(columns.cost(plan.config.cost_model)[taken]),
        bucket=smallest(columns.bucket[taken]),
        sequences=smallest(sequences[taken]),
        group=None if columns.group is None else smallest(columns.group[taken]),
        dealt=dealt,
    )


def _dealt(view: EpochPlan) -> Dealt:
    """Return the places of all ranks, from the deal and the order that the view of one rank holds."""
    deal = view.deal
    indices = np.stack([deal.indices(rank) for rank in range(deal.world_size)], axis=1)
    return Dealt(deal, indices if view.order is None else np.where(indices == NULL, NULL, view.order[indices]))


def _sequences(columns: EpochColumns) -> Numbers:
    return np.diff(columns.row_ptr if columns.seq_ptr is None else columns.seq_ptr[columns.row_ptr])


def smallest(column: Column) -> Column:
    """Return a column of numbers that are not negative in the narrowest unsigned type that holds them."""
    return column.astype(np.min_scalar_type(int(column.max(initial=0))))


def stored_bytes(view: EpochView) -> int:
    """Estimate the bytes of an epoch on the page: five columns, and the places for every number of ranks."""
    places = np.min_scalar_type(len(view)).itemsize * sum(dealt.places.size for dealt in view.dealt.values())
    columns = (view.rows, view.width, view.tokens, view.cost, view.bucket)
    return sum(column.nbytes for column in columns) + places


def _bucket_bands(plan: BatchPlan) -> tuple[Band, ...]:
    spec = plan.buckets
    return () if spec is None else tuple(Band(*spec.get_bucket_range(bucket)) for bucket in range(spec.num_buckets))


def _width_bands(epochs: Iterable[EpochView]) -> tuple[Band, ...]:
    """Return ranges of widths: doubling if the largest width is above four times the smallest, else equally wide."""
    widths = [view.width for view in epochs if len(view)]
    if not widths:
        return ()
    low, high = int(min(width.min() for width in widths)), int(max(width.max() for width in widths))
    if high > 4 * low:
        first = max(low.bit_length() - 1, high.bit_length() - MAX_BANDS)  # the first range holds all narrower ones
        ends = [min(1 << bits, high) for bits in range(first + 1, (high - 1).bit_length() + 1)]
    else:
        ends = [*range(low - 1, high, ceil_div(high - low + 1, MAX_BANDS))[1:], high]
    starts = [low, *(end + 1 for end in ends[:-1])]
    return tuple(Band(start, end) for start, end in zip(starts, ends, strict=True))


def order_stats(column: Column, dealt: Dealt, rank: int | None = None) -> OrderStats:
    """Compute the statistics of one column along the order of a rank, or of all ranks."""
    values = column[dealt.order(rank)].astype(np.float64)
    if len(values) == 0:
        return OrderStats(*[float("nan")] * 4)
    steps = dealt.steps(rank)
    starts = np.flatnonzero(np.diff(steps, prepend=-1))
    means = np.add.reduceat(values, starts) / np.diff(np.append(starts, len(values)))
    last, mean = values[-max(len(values) // 100, 1) :].mean(), values.mean()
    return OrderStats(
        lag=correlation(values[:-1], values[1:]),
        step_lag=correlation(means[:-1], means[1:]),
        trend=correlation(_ranked(values), np.arange(len(values), dtype=np.float64)),
        tail=float(last / mean) if mean else float("nan"),
    )


def correlation(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    """Return Pearson's correlation; NaN for fewer than three pairs, or if one side is constant."""
    if len(left) < 3 or np.ptp(left) == 0 or np.ptp(right) == 0:
        return float("nan")
    left, right = left - left.mean(), right - right.mean()
    return float((left @ right) / np.sqrt((left @ left) * (right @ right)))


def _ranked(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rank of each value from 1 on; equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def waste_stats(padding: Numbers) -> WasteStats:
    """Compute the concentration of the padding of microbatches. NaN if there is no padding."""
    total = int(padding.sum())
    if total == 0:
        return WasteStats(float("nan"), float("nan"))
    below = np.cumsum(np.sort(padding)[::-1])
    return WasteStats(
        worst_tenth=float(below[ceil_div(len(padding), 10) - 1] / total),
        half=float((np.searchsorted(below, total / 2) + 1) / len(padding)),
    )


def imbalance(step_costs: Numbers) -> float:
    """Return how much more the slowest rank of a step costs than the mean of its ranks, as a share, over all steps.

    0 is perfect balance. NaN if there is no cost.
    """
    mean = step_costs.mean(axis=1).sum() if step_costs.size else 0.0
    return float(step_costs.max(axis=1).sum() / mean) - 1 if mean else float("nan")
