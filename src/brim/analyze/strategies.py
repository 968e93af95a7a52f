"""What a data set costs under different ways of batching it: the same samples, the same token budget."""

from dataclasses import dataclass

import numpy as np

from brim.core.fill import Fill
from brim.core.rng import permutation
from brim.data.lengths import LengthCache
from brim.plan.config import BatchingConfig
from brim.plan.metrics import BatchMetrics
from brim.plan.packing import PackingConfig
from brim.plan.plan import BatchPlan

RANDOM_BATCH_SIZE = 32


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """One way of batching, and what an epoch of it costs."""

    name: str
    fill: Fill
    batches: int
    shapes: int


def compare_strategies(
    table: LengthCache, token_budget: int, *, num_buckets: int = 8, pack_length: int | None = None
) -> tuple[Strategy, ...]:
    """Random batches, fixed shapes, sorted windows and packed rows, on this table."""
    width = pack_length or min(token_budget, max(2048, int(table.lengths.max(initial=1))))
    configs = {
        f"{num_buckets} fixed shapes": BatchingConfig.predictable(num_buckets=num_buckets, token_budget=token_budget),
        "sorted windows": BatchingConfig.throughput(token_budget=token_budget),
        f"packed into {width}": BatchingConfig(token_budget=token_budget, packing=PackingConfig(max_length=width)),
    }
    planned = (_planned(name, BatchPlan.build(table, config)) for name, config in configs.items())
    return (random_batches(table, RANDOM_BATCH_SIZE), *planned)


def random_batches(table: LengthCache, batch_size: int, *, seed: int = 42) -> Strategy:
    """What most training loops do: shuffle, take `batch_size` at a time, pad to the longest."""
    order = permutation(len(table), seed=seed, purpose="random")
    starts = np.arange(0, len(table), batch_size)
    widths = np.maximum.reduceat(table.lengths[order], starts)
    rows = np.diff(np.append(starts, len(table)))
    fill = Fill(int(table.lengths.sum(dtype=np.int64)), int((rows * widths.astype(np.int64)).sum()))
    return Strategy(
        name=f"random batches of {batch_size}",
        fill=fill,
        batches=len(starts),
        shapes=len(set(zip(rows.tolist(), widths.tolist(), strict=True))),
    )


def _planned(name: str, plan: BatchPlan) -> Strategy:
    metrics = BatchMetrics.of(plan.get_epoch(0))
    return Strategy(name=name, fill=metrics.fill, batches=metrics.num_batches, shapes=metrics.shape_histogram.num_shapes)
