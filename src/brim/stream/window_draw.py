"""Which entries of a replay buffer make the next window: a pure function of a snapshot and the options.

All rows are put into a random order in which higher weights tend to come first, and a window takes rows from its
beginning, skipping rows of the window before once there are enough of them. The number of rows is the largest that fits
the microbatches of a window.
"""

import math
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import LengthError, OptionError
from brim.core.options import check_counts
from brim.core.rng import new_seed, raw_bits
from brim.data.ids import Ids
from brim.data.lengths import LengthCache
from brim.plan.config import BatchingConfig
from brim.plan.plan import BatchPlan
from brim.stream.replay.snapshot import BufferSnapshot

Rows = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class WindowConfig:
    """The size of a window, and how its samples are drawn."""

    window_microbatches: int = 1000
    """Upper limit of the microbatches in the first pass over a window. Later passes are packed anew and may differ."""
    min_samples: int = 100
    """A window is built only when at least this many samples can be drawn."""
    overlap_fraction: float = 0.1
    """Upper limit of the share of a window that was in the window before; 1 is no limit."""
    prioritized: bool = True
    """Draw samples by their priority, raised to the buffer's alpha; otherwise uniformly."""
    batching: BatchingConfig = field(default_factory=BatchingConfig)
    """Options of the plan of a window. Its seed is not used: every window has a seed of its own."""
    seed: int = 42
    passes: int = 1
    """Times that a window is trained on: the epochs of its plan, each in an order of its own."""

    def __post_init__(self) -> None:
        check_counts(window_microbatches=self.window_microbatches, min_samples=self.min_samples, passes=self.passes)
        if not 0 <= self.overlap_fraction <= 1:
            raise OptionError(f"overlap_fraction must lie between 0 and 1, got {self.overlap_fraction}")

    def plan_config(self, window_id: int) -> BatchingConfig:
        """The batching options with the seed of one window."""
        seed = new_seed(seed=self.seed, purpose="window plan", epoch=window_id)
        return replace(self.batching, seed=seed)


def largest_window(new: int, old: int, overlap: float) -> int:
    """The size of the largest window of these new and old samples whose share of old ones is at most `overlap`."""
    if overlap == 1:
        return new + old
    # old <= overlap * (new + old), solved for old
    return new + min(old, math.floor(overlap * new / (1 - overlap) + 1e-9))


def draw_order(weights: NDArray[np.float64], *, seed: int, window_id: int) -> Rows:
    """Rows in the order in which they are drawn, without replacement and in proportion to the weights.

    Sorting by -log(u) / weight, with u uniform, does that (Efraimidis and Spirakis 2006).
    """
    bits = raw_bits(len(weights), seed=seed, purpose="window", epoch=window_id)
    uniform = ((bits >> np.uint64(11)) + 0.5) * 2.0**-53  # neither 0 nor 1
    with np.errstate(divide="ignore", over="ignore"):
        return np.argsort(-np.log(uniform) / weights, kind="stable")


def draw_rows(
    snapshot: BufferSnapshot,
    order: Rows,
    old: NDArray[np.bool_],
    available: int,
    config: WindowConfig,
    window_id: int,
    algorithm: int,
) -> Rows:
    """Return as many rows, up to `available`, as fit `window_microbatches` if this version of the planner plans them.
    `old` marks the rows of the window before.

    Raises:
        LengthError: A single sample makes more microbatches than a window has.
    """
    batching = config.plan_config(window_id)

    def rows(size: int) -> Rows:
        return _first_rows(order, old[order], size, config.overlap_fraction)

    def fits(size: int) -> bool:
        chosen = rows(size)
        lengths = LengthCache(Ids.rows(len(chosen)), snapshot.lengths[chosen])
        return BatchPlan.build(lengths, batching, algorithm=algorithm).num_microbatches(0) <= config.window_microbatches

    if fits(available):
        return rows(available)
    # Bisection: `low` rows fit, `high` rows do not.
    low, high = 0, available
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    if low == 0:
        first = int(rows(1)[0])
        raise LengthError(
            f"sample {snapshot.sample_ids[first]!r} with {int(snapshot.lengths[first])} tokens makes more than the "
            f"{config.window_microbatches} microbatches of a window; raise window_microbatches, or truncate instead of "
            "splitting"
        )
    return rows(low)


def _first_rows(order: Rows, old: NDArray[np.bool_], size: int, overlap: float) -> Rows:
    """The first rows for a window of `size`, skipping old ones once there are as many as the overlap allows."""
    allowed = ~old | (np.cumsum(old) <= math.floor(overlap * size + 1e-9))
    return order[allowed][:size]
