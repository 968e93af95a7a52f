"""What a data set costs under different ways of batching it: the same samples, about as many in a batch.

Costs are estimates in slots, by the planner's own measure (`plan.deal.cost`): linear in the slots paid for, and in the squared lengths
that attention sees. Where a machine was measured (`brim bench batch-size`), they become seconds and bytes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.analyze.capacity import Capacity
from brim.core.errors import at_least_one
from brim.core.fill import Fill
from brim.core.rng import permutation
from brim.core.sorting import order_by
from brim.data.lengths import LengthCache
from brim.plan.buckets import BucketSpec
from brim.plan.config import BatchingConfig
from brim.plan.deal import cost
from brim.plan.epoch import EpochColumns
from brim.plan.packing import PackingConfig
from brim.plan.plan import BatchPlan

MEGABATCHES = 50
"""Length-grouped samplers sort inside random runs of this many batches."""


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """One way of batching, and what an epoch of it costs."""

    name: str
    options: str
    """What `brim plan build` is told to get it; empty if brim does not do this."""
    fill: Fill
    batches: int
    shapes: int
    """Distinct shapes: how many programs a model that compiles for each would compile."""
    attention: int
    """The squared lengths that attention sees, summed."""
    peak: int
    """Slots of the largest batch: what memory has to hold."""
    cost: int
    """Of the epoch, in slots."""

    @property
    def steps(self) -> int:
        """Optimizer steps of an epoch on one rank."""
        return self.batches

    def price(self, capacity: Capacity | None = None) -> float:
        """What an epoch costs: seconds, by what was measured of batches of any size; without a measurement, `cost`."""
        return self.cost if capacity is None else capacity.seconds.fixed * self.batches + capacity.seconds.per_unit * self.fill.slots

    def speedup(self, other: "Strategy", capacity: Capacity | None = None) -> float:
        """How many times cheaper than the other an epoch is."""
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
    """Random batches, length-grouped batches, the buckets that are given, optimal buckets, sorted windows and packed rows.

    Samples longer than the budget (or the last bucket) count as cut to it, in all of them. There are as many optimal buckets as given
    ones, else 8. `batch_size` is that of random and grouped batches: as many samples as a budget holds on average, if not given, so that
    all strategies take about equally many steps.
    """
    at_least_one(token_budget=token_budget, num_buckets=num_buckets, pack_length=pack_length, batch_size=batch_size)
    at_least_one(pad_to_multiple=pad_to_multiple)
    limit = token_budget // pad_to_multiple * pad_to_multiple
    if buckets is not None:
        limit = min(limit, buckets.overflow_max)
    lengths = np.minimum(table.lengths, np.int32(limit))
    size = batch_size or min(len(lengths), max(1, round(token_budget / max(float(lengths.mean()), 1.0))))
    cut = LengthCache(table.ids, lengths, groups=table.groups, group_names=table.group_names)
    shared: dict[str, Any] = {"token_budget": token_budget, "pad_to_multiple": pad_to_multiple, "seed": seed}
    num_buckets = num_buckets or (buckets.num_buckets if buckets is not None else 8)
    configs = _configs(lengths, buckets, num_buckets, pack_length, shared)
    planned = [_planned(cut, name, options, config) for name, options, config in configs]
    return (random_batches(lengths, size, seed=seed), grouped_batches(lengths, size, seed=seed), *planned)


def _configs(
    lengths: NDArray[np.int32], buckets: BucketSpec | None, num_buckets: int, pack_length: int | None, shared: dict[str, Any]
) -> Iterator[tuple[str, str, BatchingConfig]]:
    """Name, options of the command, and config of every strategy that brim plans."""
    multiple = shared["pad_to_multiple"]
    budget = f"-b {shared['token_budget']}" + (f" --pad-to-multiple {multiple}" if multiple > 1 else "")
    if buckets is not None:
        edges = ",".join(str(edge) for edge in buckets.edges)
        given = f"--predictable --bucket-edges {edges} --overflow-max {buckets.overflow_max}"
        yield (
            f"{buckets.num_buckets} buckets now",
            f"{budget} {given}",
            BatchingConfig.predictable(
                bucket_edges=buckets.edges, overflow_max=min(buckets.overflow_max, shared["token_budget"]), **shared
            ),
        )
    optimal = BatchingConfig.predictable(num_buckets=num_buckets, **shared)
    yield f"{num_buckets} optimal buckets", f"{budget} --predictable --num-buckets {num_buckets}", optimal
    yield "sorted windows", budget, BatchingConfig.throughput(**shared)
    longest = int(lengths.max(initial=1))
    width = pack_length or min(shared["token_budget"] // multiple * multiple, max(2048, longest))
    packed = BatchingConfig(packing=PackingConfig(max_length=width, pad_to_max=False), overflow="split", **shared)
    yield f"packed rows of {width}", f"{budget} --pack --pack-max-len {width}{' --overflow split' * (width < longest)}", packed


def random_batches(lengths: NDArray[np.int32], batch_size: int, *, seed: int = 42) -> Strategy:
    """What most training loops do: shuffle, take `batch_size` at a time, pad to the longest."""
    order = permutation(len(lengths), seed=seed, purpose="random")
    return _consecutive(f"random batches of {batch_size}", lengths[order], batch_size)


def grouped_batches(lengths: NDArray[np.int32], batch_size: int, *, seed: int = 42) -> Strategy:
    """What samplers that group by length do: shuffle, sort inside runs of fifty batches, take `batch_size` at a time."""
    order = permutation(len(lengths), seed=seed, purpose="random")
    run = batch_size * max(1, min(len(lengths) // (4 * batch_size), MEGABATCHES))
    shortness = lengths.max(initial=0) - lengths[order]
    order = order[order_by(np.arange(len(lengths)) // run, shortness)]
    return _consecutive("grouped by length", lengths[order], batch_size)


def _consecutive(name: str, lengths: NDArray[np.int32], batch_size: int) -> Strategy:
    """Batches of neighbours, each padded to its longest."""
    starts = np.arange(0, len(lengths), batch_size)
    widths = np.maximum(np.maximum.reduceat(lengths, starts), 1).astype(np.int64)
    rows = np.diff(np.append(starts, len(lengths)))
    return _counted(name, "", int(lengths.sum(dtype=np.int64)), rows, widths, rows * widths**2)


def strategy_of(name: str, columns: EpochColumns, options: str = "") -> Strategy:
    """What a planned epoch costs."""
    rows = np.diff(columns.row_ptr)
    return _counted(name, options, int(columns.tokens.sum()), rows, columns.width.astype(np.int64), columns.attention)


def _planned(table: LengthCache, name: str, options: str, config: BatchingConfig) -> Strategy:
    return strategy_of(name, BatchPlan.build(table, config).epochs.built(0).columns, options)


def _counted(
    name: str, options: str, tokens: int, rows: NDArray[np.int64], widths: NDArray[np.int64], attention: NDArray[np.int64]
) -> Strategy:
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
