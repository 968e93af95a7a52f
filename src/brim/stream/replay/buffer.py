"""`ReplayBuffer`: a bounded buffer of stream samples, sampled by priority (Schaul et al. 2016).

Samples are stored as columns, not as objects: tokens lie in one flat array that is never overwritten, and draws and
snapshots share it. Adding, drawing, updating and removing cost O(log n) per entry, amortized; `sample` says when a draw
costs more. Operations on all entries cost O(n): snapshots, filters, statistics, priorities by reward or difficulty,
eviction by age. Equal calls give equal results, also after saving and loading: all randomness comes from the seed in
the options and from how much was drawn before. A buffer is not thread-safe, and it is not a data loader.
"""

import math
import os
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from brim.core.errors import DataError, OptionError
from brim.core.options import check_counts
from brim.core.rng import Words
from brim.data.ids import SampleId
from brim.stream.replay.columns import NONE, Entries, Log
from brim.stream.replay.config import ReplayBufferConfig
from brim.stream.replay.draw import ReplayDraw, importance, pick, pick_uniform
from brim.stream.replay.files import ReplayState, load_state, save_state, state_from_dict, state_to_dict
from brim.stream.replay.slots import Keys, Slots, SlotTable, as_keys
from brim.stream.replay.snapshot import BufferSnapshot, SnapshotQueries
from brim.stream.replay.sum_tree import SumTree
from brim.stream.sample import StreamSample

PENDING = 4096
"""Samples that are added one by one are written to the columns in batches of this size."""


class ReplayBuffer(SnapshotQueries):
    """A bounded buffer of samples with priorities. Every entry has a key, which is never used again.

    Example:
        >>> buffer = ReplayBuffer(max_size=2, seed=1)
        >>> for name in "abc":
        ...     key = buffer.add(StreamSample(sample_id=name, input_ids=[1, 2], loss_mask=[0, 1]))
        >>> [sample.sample_id for sample in buffer.get_all()], buffer.total_evicted
        (['b', 'c'], 1)
        >>> draw = buffer.sample(2)
        >>> draw.tokens.tolist(), buffer.update_priorities(draw.keys, [3.0, 0.5])
        ([1, 2, 1, 2], 2)
    """

    def __init__(self, config: ReplayBufferConfig | None = None, **options: Any) -> None:
        """Make an empty buffer. `options` are those of `ReplayBufferConfig`, and override `config`."""
        defaults = {} if config is None else config.to_dict()
        self.config = ReplayBufferConfig.from_dict({**defaults, **options})
        self._table = SlotTable(self.config)
        self._log = Log()
        self._pending: list[StreamSample] = []
        self._pending_slots: list[int] = []
        self._tree = SumTree(len(self._table.key))
        self._draws = Words(self.config.seed, "replay-draw")

    def add(self, sample: StreamSample, priority: float | None = None) -> int:
        """Add a sample and return its key, which is greater than all earlier keys.

        Its priority is the one given; otherwise its own, unless that is 1.0, the default of a sample; otherwise
        `default_priority`.

        Raises:
            DataError: The id is in the buffer and `duplicates` is "error", or a number does not fit 64 bits.
            OptionError: The priority is negative, not a number, or so large that sums could be infinite.
        """
        for value in (sample.step_index, sample.total_steps, sample.policy_version, sample.replay_count):
            if value is not None and value >= 2**63:
                raise DataError(f"sample {sample.sample_id!r}: {value} does not fit 64 bits")
        if priority is None:
            priority = sample.priority if sample.priority != 1.0 else self.config.default_priority
        self.config.check_priority(priority, of=sample.sample_id)
        if self.config.duplicates == "error":
            self._table.check_new([sample.sample_id])
        key = self._table.assign(sample.sample_id, float(priority))
        self._pending.append(sample)
        self._pending_slots.append(key % self.config.max_size)
        if len(self._pending) >= PENDING:
            self._write_pending()
        return key

    def add_batch(self, samples: Iterable[StreamSample], priorities: ArrayLike | None = None) -> Keys:
        """Add many samples at once, faster, and return their keys. If there is an error, none is added."""
        return self.add_entries(Entries.of(list(samples)), priorities)

    def add_entries(self, entries: Entries, priorities: ArrayLike | None = None) -> Keys:
        """Add samples that are columns already (`Entries.of_columns`), and return their keys."""
        ids: list[SampleId] = entries.columns["sample_id"].tolist()
        if priorities is None:
            own: NDArray[np.float64] = entries.columns["priority"]
            priorities = np.where(own == 1.0, self.config.default_priority, own)
        values = self.config.checked_priorities(priorities, len(ids))
        self._table.check_new(ids)
        self._write_pending()
        keys = self._table.assign_all(ids, values)
        self._write(entries, keys % self.config.max_size)
        return keys

    def sample(self, n: int, *, replace: bool = False, beta: float | None = None, uniform: bool = False) -> ReplayDraw:
        """Draw n entries with probability P = priority ** alpha / sum over all, or uniformly with `uniform`.

        Without replacement all entries differ: they are drawn one after the other, each in proportion to the
        priorities of those that are left. Entries of priority 0, or so small that P is 0, are drawn, uniformly, only
        when no other entry is left to draw.

        Importance weights are (N P)^-beta over the largest in the draw, with N entries in the buffer and P from before
        the draw, also without replacement. An entry of priority 0 has the weight 1; with `uniform`, all have.

        A draw is O(max_size) in three cases: n is more than a quarter of the entries, without replacement; uniform
        draws while `remove` left slots free; or n in the hundreds with priorities many orders of magnitude apart.

        Raises:
            OptionError: There are fewer than n entries to draw without replacement, or fewer than
                `min_samples_before_sampling`.
        """
        self._write_pending()
        if not self.can_sample(n, replace=replace):
            raise self._too_few(n, replace)
        beta = self.config.importance_beta if beta is None else beta
        if not 0 <= beta < math.inf:
            raise OptionError(f"beta must be finite and not negative, got {beta!r}")
        table = self._table
        keys = table.key[: table.high]
        if uniform:
            slots = pick_uniform(keys, table.size, self._draws, n, replace=replace)
            weights = np.ones(n, np.float32)
        else:
            slots = pick(self._tree, keys, table.size, self._draws, n, replace=replace)
            weights = importance(self._tree.weights[slots], beta)
        if replace:
            np.add.at(table.replays, slots, 1)  # a slot may come several times
            replays = table.replays[slots]
        else:
            replays = table.replays[slots] + 1
            table.replays[slots] = replays
        return ReplayDraw(keys[slots], weights, self._log.view, table.row[slots], replays, time.time())

    def sample_uniform(self, n: int, *, replace: bool = False) -> ReplayDraw:
        """Draw n entries uniformly."""
        return self.sample(n, replace=replace, uniform=True)

    def can_sample(self, n: int = 1, *, replace: bool = False) -> bool:
        """Whether the buffer holds enough entries to draw n."""
        if type(n) is not int or n < 1:
            check_counts(n=n)
        return self.size >= max(self.config.min_samples_before_sampling, 1 if replace else n)

    def _too_few(self, n: int, replace: bool) -> OptionError:
        if self.size < self.config.min_samples_before_sampling:
            least = self.config.min_samples_before_sampling
            return OptionError(
                f"the replay buffer holds {self.size} samples, and min_samples_before_sampling is {least}; add more "
                "first"
            )
        if replace:
            return OptionError(f"cannot draw {n} samples from an empty replay buffer; add some first")
        return OptionError(
            f"cannot draw {n} of {self.size} samples without replacement; draw fewer, or use replace=True"
        )

    def update_priority(self, sample_id: SampleId, priority: float) -> bool:
        """Set the priority of all entries with this id. Returns False if there is none."""
        self.config.check_priority(priority, of=sample_id)
        slots = np.array(self._table.index.slots(sample_id), np.int64)
        self._set(slots, np.full(len(slots), priority, np.float64))
        return len(slots) > 0

    def update_priorities(self, keys: ArrayLike, priorities: ArrayLike) -> int:
        """Set priorities by key, and return how many entries were still in the buffer.

        The other keys are counted in `stale_updates`. If a key comes twice, its last priority is used.

        Raises:
            OptionError: A key is not an integer, a priority is out of range, or there are not as many of both.
        """
        which = as_keys(keys)
        values = self.config.checked_priorities(priorities, len(which))
        slots, found = self._table.find(which)
        if found < len(which):
            slots, values = slots[slots >= 0], values[slots >= 0]
            self._table.counts.stale_updates += len(which) - found
        self._set(slots, values)
        return found

    def update_priorities_by_reward(self, alpha: float = 0.1) -> int:
        """Set priority = (1 - alpha) * priority + alpha * max(0, 1 + reward) of entries with a reward; return how
        many.
        """
        if not 0 <= alpha <= 1:
            raise OptionError(f"alpha must lie between 0 and 1, got {alpha!r}")
        slots, reward = self._column("reward")
        slots, reward = slots[~np.isnan(reward)], reward[~np.isnan(reward)]
        values = (1 - alpha) * self._table.priority[slots] + alpha * np.maximum(0.0, 1.0 + reward)
        self._set(slots, self.config.checked_priorities(values, len(slots)))
        return len(slots)

    def update_priorities_by_difficulty(self, target: float, width: float = 0.2) -> int:
        """Set priority = exp(-((difficulty - target) / width)**2 / 2) where a difficulty is known; return how many."""
        if not (0 < width < math.inf and math.isfinite(target)):
            raise OptionError(f"width must be positive and target finite, got width {width!r} and target {target!r}")
        slots, difficulty = self._column("difficulty")
        slots, difficulty = slots[~np.isnan(difficulty)], difficulty[~np.isnan(difficulty)]
        self._set(slots, np.exp(-(((difficulty - target) / width) ** 2) / 2))
        return len(slots)

    def snapshot(self) -> BufferSnapshot:
        """The current content, oldest first. It does not change when the buffer does."""
        self._write_pending()
        table = self._table
        slots = table.in_order()
        return BufferSnapshot(
            self._log.view,
            table.row[slots],
            keys=table.key[slots],
            priorities=table.priority[slots],
            replays=table.replays[slots],
            total_added=self.total_added,
            total_evicted=self.total_evicted,
        )

    def remove(self, keys: ArrayLike) -> int:
        """Remove entries by key, and return how many were still in the buffer."""
        slots, found = self._table.find(np.unique(as_keys(keys)))
        self._table.counts.removed += found
        return self._take_out(slots[slots >= 0])

    def evict_older_than(self, policy_version: int) -> int:
        """Evict entries whose policy version is lower, and return how many. Entries without a version stay."""
        slots, versions = self._column("policy_version")
        slots = slots[(versions < policy_version) & (versions != NONE)]
        self._table.counts.evicted += len(slots)
        return self._take_out(slots)

    def clear(self) -> None:
        """Evict everything. Keys, counts and random numbers continue; they do not start over."""
        slots = self._table.in_order()
        self._table.counts.evicted += len(slots)
        self._take_out(slots)

    @property
    def size(self) -> int:
        return self._table.size

    def __len__(self) -> int:
        return self._table.size

    def __contains__(self, sample_id: object) -> bool:
        return sample_id in self._table.index

    def count_held(self, keys: ArrayLike) -> int:
        """Count the keys that belong to entries which are still in the buffer. Much faster than a snapshot."""
        return self._table.find(as_keys(keys))[1]

    @property
    def is_full(self) -> bool:
        return self._table.size == self.config.max_size

    @property
    def total_added(self) -> int:
        return self._table.counts.added

    @property
    def total_evicted(self) -> int:
        """Entries evicted by the eviction policy, by age and by `clear`."""
        return self._table.counts.evicted

    @property
    def replaced(self) -> int:
        """Entries that were replaced by a later sample with the same id."""
        return self._table.counts.replaced

    @property
    def removed(self) -> int:
        """Entries taken out by `remove`."""
        return self._table.counts.removed

    @property
    def stale_updates(self) -> int:
        """Priority updates for entries that were no longer in the buffer."""
        return self._table.counts.stale_updates

    def state(self) -> ReplayState:
        """Everything that the buffer is, in arrays of its own."""
        self._write_pending()
        table = self._table
        slots = table.in_order()
        return ReplayState(
            config=self.config,
            counts=replace(table.counts),
            high=table.high,
            drawn=self._draws.position,
            evicting=table.evictions.position,
            entries=self._log.view.taken(table.row[slots]),
            keys=table.key[slots],
            priorities=table.priority[slots],
            weights=self._tree.weights[slots],
            replays=table.replays[slots],
        )

    @classmethod
    def from_state(cls, state: ReplayState) -> "ReplayBuffer":
        """A buffer that continues exactly as the one whose state this is."""
        buffer = cls(state.config)
        buffer._log = Log(state.entries)
        buffer._draws = Words(state.config.seed, "replay-draw", state.drawn)
        table = buffer._table
        table.counts = replace(state.counts)
        table.evictions = Words(state.config.seed, "replay-evict", state.evicting)
        ids: list[SampleId] = state.entries.columns["sample_id"].tolist()
        slots = table.restore(state.keys, ids, state.priorities, state.replays, state.high)
        buffer._tree = SumTree(len(table.key))
        buffer._tree.set(slots, np.where(state.priorities > 0, state.weights, 0.0))
        return buffer

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write JSON if the name ends in .json, else columns, which are smaller and faster. An error leaves no file."""
        save_state(self.state(), path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "ReplayBuffer":
        """Read either format. The buffer continues exactly where the saved one was.

        Raises:
            DataError: There is no such file, or it is not a replay buffer.
            DamagedError: It is truncated, altered or of another version.
        """
        return cls.from_state(load_state(path))

    def to_dict(self) -> dict[str, Any]:
        """The whole buffer as JSON-like values; `from_dict` is the inverse."""
        return state_to_dict(self.state())

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "ReplayBuffer":
        """The buffer that `to_dict` wrote.

        Raises:
            DataError: A field is unknown, missing or impossible.
        """
        return cls.from_state(state_from_dict(values))

    def _set(self, slots: Slots, priorities: NDArray[np.float64]) -> None:
        self._write_pending()
        self._table.set_priorities(slots, priorities)
        self._tree.set(slots, self.config.weights(priorities))

    def _column(self, name: str) -> tuple[Slots, NDArray[Any]]:
        """Slots in use, oldest entry first, and a column of the log for them."""
        self._write_pending()
        slots = self._table.in_order()
        return slots, self._log.view.columns[name][self._table.row[slots]]

    def _take_out(self, slots: Slots) -> int:
        self._write_pending()
        self._table.remove(slots)
        self._tree.set(slots, np.zeros(len(slots)))
        return len(slots)

    def _write_pending(self) -> None:
        if self._pending:
            samples, slots = self._pending, self._pending_slots
            self._pending, self._pending_slots = [], []
            self._write(Entries.of(samples), np.array(slots, np.int64))

    def _write(self, entries: Entries, slots: Slots) -> None:
        """Write the columns of entries that have slots, and the weights of these slots."""
        below = self._log.used
        moved = self._log.append(entries, lambda: self._table.rows_in_use(below))
        if moved is not None:
            self._table.renumber(moved, below)
        if self._tree.capacity < len(self._table.key):
            self._tree = self._tree.grown(len(self._table.key))
        self._tree.set(slots, self.config.weights(self._table.priority[slots]))
