"""Compare the cost of a data set under different ways of batching it: the same samples, about as many in a batch.

Costs are estimates in slots, by the planner's own measure (`brim.plan.cost`): linear in the slots paid for, and in the
squared lengths that attention sees. Nothing is measured here: with a `Capacity` (from `brim bench batch-size`), prices
are estimated in seconds, and reports show peaks in bytes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brim.analyze.capacity.search import Capacity
from brim.core.arrays import order_by, round_up
from brim.core.errors import OptionError
from brim.core.fill import Fill
from brim.core.options import check_counts
from brim.core.rng import permutation
from brim.data.lengths import LengthCache
from brim.data.nested.lengths import axes_by_name
from brim.plan.buckets import BucketSpec
from brim.plan.config import BatchingConfig, PackingConfig
from brim.plan.cost import cost
from brim.plan.epoch_columns import EpochColumns
from brim.plan.plan import BatchPlan

WINDOWS = "sorted windows"

MEGABATCHES = 50
"""Upper limit of the batches in a run; length-grouped samplers sort inside random runs."""


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """One way of batching, and the cost of an epoch."""

    name: str
    options: str
    """Flags of `brim plan build` that produce it; empty for batches that brim does not plan, and for existing plans."""
    fill: Fill
    batches: int
    shapes: int
    """Distinct batch shapes: the number of programs that a model which compiles once per shape would compile."""
    attention: int
    """Sum of the squared lengths that attention sees."""
    peak: int
    """Slots of the largest batch, which must fit in memory."""
    cost: int
    """Cost of the epoch, in slots."""

    @property
    def steps(self) -> int:
        """Optimizer steps of an epoch on one rank."""
        return self.batches

    def price(self, capacity: Capacity | None = None) -> float:
        """Return the cost of an epoch: seconds, estimated from a measured `capacity`; without one, `cost` in slots."""
        return (
            self.cost
            if capacity is None
            else capacity.seconds.fixed * self.batches + capacity.seconds.per_unit * self.fill.slots
        )

    def speedup(self, other: "Strategy", capacity: Capacity | None = None) -> float:
        """Return how many times cheaper an epoch is than one of `other`."""
        return other.price(capacity) / self.price(capacity)

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "options": self.options,
            "fill": self.fill.ratio,
            "tokens": self.fill.used,
            "slots": self.fill.slots,
            "steps": self.steps,
            "shapes": self.shapes,
            "attention": self.attention,
            "peak": self.peak,
            "cost": self.cost,
        }


def compare_strategies(
    table: LengthCache,
    token_budget: int,
    *,
    buckets: BucketSpec | None = None,
    num_buckets: int | None = None,
    pack_length: int | None = None,
    pad_to_multiple: int = 1,
    batch_size: int | None = None,
    seed: int = 42,
) -> tuple[Strategy, ...]:
    """Compare random batches, length-grouped batches, the given buckets, optimal buckets, sorted windows and packed
    rows.

    In all of them, samples longer than the budget or the last bucket count as cut to that length. The default of
    `num_buckets`, for the optimal buckets, is the number of given ones, else 8. `batch_size` is that of random and
    grouped batches; by default as many samples as the budget holds on average, so that all strategies take about
    equally many steps.

    Nested samples, ragged along several axes, are neither cut nor bucketed nor packed. Random and grouped batches mix
    their structures, and are padded along every axis that one of the samples has.

    Raises:
        OptionError: An option is out of range, or contradicts another one.
        LengthError: A nested sample does not fit.
    """
    check_counts(token_budget=token_budget, num_buckets=num_buckets, pack_length=pack_length, batch_size=batch_size)
    if table.axes is not None:
        return _nested_strategies(table, Shared(token_budget, pad_to_multiple, seed, None), batch_size)
    if buckets is not None:
        buckets = effective_buckets(buckets, token_budget, pad_to_multiple)
    limit = longest_kept(token_budget, buckets, pad_to_multiple)
    lengths = np.minimum(table.lengths, np.int32(limit))
    size = _batch_size(lengths, token_budget, batch_size)
    shared = Shared(token_budget, pad_to_multiple, seed, limit if int(table.lengths.max()) > limit else None)
    planned = [
        *_given(buckets, shared),
        _optimal(num_buckets or (buckets.num_buckets if buckets is not None else 8), shared),
        (WINDOWS, shared.said, BatchingConfig.throughput(**shared.options)),
        _packed(int(lengths.max()), pack_length, shared),
    ]
    return (
        random_batches(lengths[:, None], size, seed=seed, pad_to_multiple=pad_to_multiple),
        grouped_batches(lengths[:, None], size, seed=seed, pad_to_multiple=pad_to_multiple),
        *(strategy_of(name, BatchPlan.build(table, config).columns(0), said) for name, said, config in planned),
    )


def _nested_strategies(table: LengthCache, shared: "Shared", batch_size: int | None) -> tuple[Strategy, ...]:
    axes = np.stack(list(axes_by_name(table).values()), axis=1)
    plan = BatchPlan.build(table, BatchingConfig.throughput(**shared.options))
    size = _batch_size(table.lengths, shared.token_budget, batch_size)
    return (
        random_batches(axes, size, seed=shared.seed, pad_to_multiple=shared.pad_to_multiple),
        grouped_batches(axes, size, seed=shared.seed, pad_to_multiple=shared.pad_to_multiple),
        strategy_of(WINDOWS, plan.columns(0), shared.said),
    )


def _batch_size(lengths: NDArray[np.int32], token_budget: int, given: int | None) -> int:
    """Return the batch size: as given, else as many samples as the budget holds on average; at most all samples."""
    return min(len(lengths), given or max(1, round(token_budget / max(float(lengths.mean()), 1.0))))


def longest_kept(token_budget: int, buckets: BucketSpec | None, pad_to_multiple: int) -> int:
    """Return the length that longer samples are cut to so that every strategy can hold them.

    Raises:
        OptionError: Not even one row of `pad_to_multiple` tokens fits the budget.
    """
    check_counts(token_budget=token_budget, pad_to_multiple=pad_to_multiple)
    if pad_to_multiple > token_budget:
        raise OptionError(f"pad_to_multiple {pad_to_multiple} is above token_budget {token_budget}")
    most = token_budget // pad_to_multiple * pad_to_multiple
    return most if buckets is None else min(most, buckets.overflow_max)


def effective_buckets(buckets: BucketSpec, token_budget: int, pad_to_multiple: int) -> BucketSpec:
    """Return buckets with the widths that the planner gives them: rounded up to a multiple, the last within the budget.

    Raises:
        OptionError: An edge is above the budget.
    """
    most = longest_kept(token_budget, None, pad_to_multiple)
    *edges, last = (round_up(width, pad_to_multiple) for width in buckets.widths)
    if edges and edges[-1] > most:
        raise OptionError(
            f"bucket edge {buckets.edges[-1]} is above the longest sample that fits, {most} (token_budget "
            f"{token_budget})"
        )
    return BucketSpec.covering(tuple(dict.fromkeys(edges)), min(last, most))


class Shared(NamedTuple):
    """Options that all planned strategies share."""

    token_budget: int
    pad_to_multiple: int
    seed: int
    cut: int | None
    """Length that longer samples are truncated to; None if no sample is longer."""

    @property
    def options(self) -> dict[str, Any]:
        cutting = {} if self.cut is None else {"overflow": "truncate", "overflow_max": self.cut}
        return {
            "token_budget": self.token_budget,
            "pad_to_multiple": self.pad_to_multiple,
            "seed": self.seed,
            **cutting,
        }

    @property
    def said(self) -> str:
        """The shared options as flags of `brim plan build`, without the seed: another order costs about the same."""
        words = [f"-b {self.token_budget}"]
        words += [f"--pad-to-multiple {self.pad_to_multiple}"] if self.pad_to_multiple > 1 else []
        words += [f"--overflow-max {self.cut} --overflow truncate"] if self.cut is not None else []
        return " ".join(words)


Planned = tuple[str, str, BatchingConfig]
"""The name of a strategy, its flags of `brim plan build`, and the equivalent config."""


def _given(buckets: BucketSpec | None, shared: Shared) -> Iterator[Planned]:
    if buckets is not None:
        config = BatchingConfig.predictable(
            bucket_edges=buckets.edges, **{**shared.options, "overflow_max": buckets.overflow_max}
        )
        said = shared._replace(cut=None).said + (" --overflow truncate" if shared.cut is not None else "")
        yield f"{buckets.num_buckets} buckets now", f"{said} --predictable {bucket_flags(buckets)}", config


def bucket_flags(buckets: BucketSpec) -> str:
    """Return buckets as flags of `brim plan build`. A single bucket has no edges: its end is written as one."""
    edges = buckets.edges or (buckets.overflow_max,)
    return f"--bucket-edges {','.join(str(edge) for edge in edges)} --overflow-max {buckets.overflow_max}"


def _optimal(num_buckets: int, shared: Shared) -> Planned:
    config = BatchingConfig.predictable(num_buckets=num_buckets, **shared.options)
    return f"{num_buckets} optimal buckets", f"{shared.said} --predictable --num-buckets {num_buckets}", config


def _packed(longest: int, pack_length: int | None, shared: Shared) -> Planned:
    """Return the strategy of packed rows; samples longer than a row are split.

    Raises:
        OptionError: Samples would have to be both cut and split, which no plan can do.
    """
    width = pack_length or min(
        shared.token_budget // shared.pad_to_multiple * shared.pad_to_multiple, max(2048, longest)
    )
    options, said = shared.options, f"{shared.said} --pack --pack-max-len {width}"
    if width < longest:
        if shared.cut is not None:
            raise OptionError(
                f"samples are cut to {shared.cut} tokens, and packed rows of {width} do not hold those; raise it to "
                f"{longest}"
            )
        options["overflow"] = "split"
        said += " --overflow split"
    return (
        f"packed rows of {width}",
        said,
        BatchingConfig(packing=PackingConfig(max_length=width, pad_to_max=False), **options),
    )


def random_batches(axes: NDArray[np.int32], batch_size: int, *, seed: int = 42, pad_to_multiple: int = 1) -> Strategy:
    """Batch as most training loops do: shuffle, take `batch_size` samples at a time, pad to the longest of each batch.

    `axes` are the lengths, [samples, axes]; every axis is padded to its own longest.
    """
    order = permutation(len(axes), seed=seed, purpose="random")
    return _consecutive(f"random batches of {batch_size}", axes[order], batch_size, pad_to_multiple)


def grouped_batches(axes: NDArray[np.int32], batch_size: int, *, seed: int = 42, pad_to_multiple: int = 1) -> Strategy:
    """Batch as length-grouped samplers do: shuffle, sort inside runs of batches, take `batch_size` samples at a time.

    A run has fifty batches, or a quarter of all if that is less, and is sorted by length, longest first. `axes` are the
    lengths, [samples, axes].
    """
    order = permutation(len(axes), seed=seed, purpose="random")
    run = batch_size * max(1, min(len(axes) // (4 * batch_size), MEGABATCHES))
    lengths = axes.sum(axis=1, dtype=np.int64)
    shortness = lengths.max(initial=0) - lengths[order]
    order = order[order_by(np.arange(len(axes)) // run, shortness)]
    return _consecutive("grouped by length", axes[order], batch_size, pad_to_multiple)


def _consecutive(name: str, axes: NDArray[np.int32], batch_size: int, multiple: int) -> Strategy:
    """Return the strategy of batches of consecutive samples, each padded to its longest along every axis."""
    starts = np.arange(0, len(axes), batch_size)
    longest = np.maximum.reduceat(axes, starts).astype(np.int64)  # [batches, axes]
    longest[longest.sum(axis=1) == 0, 0] = 1
    longest = round_up(longest, multiple)
    rows = np.diff(np.append(starts, len(axes)))
    squares = (longest.astype(np.float64) ** 2).sum(axis=1)
    return _counted(name, "", int(axes.sum(dtype=np.int64)), rows, longest.sum(axis=1), rows * squares)


def strategy_of(name: str, columns: EpochColumns, options: str = "") -> Strategy:
    """Return a planned epoch as a strategy."""
    rows = np.diff(columns.row_ptr)
    return _counted(
        name,
        options,
        int(columns.tokens.sum()),
        rows,
        columns.width.astype(np.int64),
        columns.attention.astype(np.float64),
    )


def _counted(
    name: str,
    options: str,
    tokens: int,
    rows: NDArray[np.int64],
    widths: NDArray[np.int64],
    attention: NDArray[np.float64],
) -> Strategy:
    """Sum batches up to a strategy. Squares are summed as floats, which round where integers would overflow."""
    slots = rows * widths
    return Strategy(
        name=name,
        options=options,
        fill=Fill(tokens, int(slots.sum())),
        batches=len(rows),
        shapes=len(np.unique(rows << np.int64(32) | widths)),
        attention=int(attention.sum()),
        peak=int(slots.max(initial=0)),
        cost=int(cost(slots, attention).sum()),
    )
