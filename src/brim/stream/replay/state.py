"""`ReplayState`: everything a replay buffer is, as columns."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import DataError
from brim.stream.replay.columns import Entries
from brim.stream.replay.config import ReplayBufferConfig
from brim.stream.replay.slots import ReplayCounts


@dataclass(frozen=True, slots=True)
class ReplayState:
    """Entries are oldest first. The slot of an entry is its key modulo `max_size`."""

    config: ReplayBufferConfig
    counts: ReplayCounts
    high: int
    """Slots in use are below it."""
    drawn: int
    evicting: int
    """How many random words went into draws and into evictions."""
    entries: Entries
    keys: NDArray[np.int64]
    priorities: NDArray[np.float64]
    weights: NDArray[np.float64]
    """In the sum tree."""
    replays: NDArray[np.int64]

    def check(self) -> None:
        """
        Raises:
            DataError: No buffer can be in this state.
        """
        counts, size = self.counts, len(self.entries)
        if not len(self.keys) == len(self.priorities) == size:
            raise DataError(f"a replay buffer has {size} samples, {len(self.keys)} keys and {len(self.priorities)} priorities")
        if (
            counts.added != size + counts.evicted + counts.replaced + counts.removed
            or min(counts.evicted, counts.replaced, counts.removed) < 0
        ):
            raise DataError(f"a replay buffer holds {size} samples, which its counts do not add up to: {counts}")
        if size and (int(self.keys[0]) < self.config.max_size or np.any(self.keys[1:] <= self.keys[:-1])):
            raise DataError("the keys of a replay buffer must grow")
        slots, additions = self.keys % self.config.max_size, self.keys // self.config.max_size
        if not 0 <= self.high <= self.config.max_size or np.any(slots >= self.high) or (size and int(additions[-1]) > counts.added):
            raise DataError("the keys of a replay buffer must be of slots and additions that there are")
        taken = np.zeros(self.high, np.bool_)
        taken[slots] = True
        if np.count_nonzero(taken) < size or np.any(additions[1:] <= additions[:-1]):
            raise DataError("the keys of a replay buffer must have slots and additions of their own")
        if min(self.drawn, self.evicting) < 0:
            raise DataError("a replay buffer cannot have drawn less than nothing")
        if not np.all((self.priorities >= 0) & np.isfinite(self.weights)):
            raise DataError("the priorities of a replay buffer must be finite and not negative")
