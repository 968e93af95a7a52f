"""`Places`: which slot an entry of a replay buffer is in, and who leaves when there is none.

Slots are bounded; rows of the log, where columns and tokens are, go on growing. A key is both a name and a place: the number of the
addition times `max_size`, plus the slot. So keys only grow, and a key finds its slot without a table; if another key is there, its entry
is gone. Nothing here knows what an entry contains but its id and priority.
"""

import heapq
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from brim.core.errors import DataError, OptionError
from brim.data.ids import SampleId
from brim.stream.replay.config import BufferEvictionPolicy, ReplayBufferConfig
from brim.stream.replay.draw import Words
from brim.stream.replay.slot_ids import IdIndex

FEW = 1024
"""Slots and rows at first."""
LOG = 16
"""To go through a whole heap takes no longer than to push one in so many."""

Slots = NDArray[np.int64]
Keys = NDArray[np.int64]


@dataclass(slots=True)
class ReplayCounts:
    """What ever happened to a buffer. Added = held + evicted + replaced + removed."""

    added: int = 0
    evicted: int = 0
    replaced: int = 0
    removed: int = 0
    stale_updates: int = 0


def as_keys(given: ArrayLike) -> Keys:
    """
    Raises:
        OptionError: These cannot be keys: they are not integers, or not in a row.
    """
    try:
        keys = np.asarray(given)
    except ValueError:
        raise OptionError("keys must be integers in one list, got lists of several lengths") from None
    if keys.ndim != 1:
        raise OptionError(f"keys must be a list or an array of one dimension, got an array of shape {keys.shape}")
    if keys.dtype.kind not in "iu" and len(keys):
        raise OptionError(f"keys must be integers of 64 bits, got an array of {keys.dtype}; take those that a draw or a snapshot gives")
    return keys.astype(np.int64, copy=False)


class Places:
    """By slot: `key` (0 is a free slot), `row`, `priority`, `replays` (how often it was drawn). Slots in use are below `high`."""

    def __init__(self, config: ReplayBufferConfig) -> None:
        capacity = min(config.max_size, FEW)
        self.config, self.counts = config, ReplayCounts()
        self.key, self.row, self.replays = (np.zeros(capacity, np.int64) for _ in range(3))
        self.priority = np.zeros(capacity)
        self.rows = 0  # so many have been given out, also to entries that are not written yet
        self.size = self.high = 0
        self.evictions = Words(config.seed, "replay-evict")
        self._ids: list[Any] = [None] * capacity
        self._slot_of = np.full(FEW, -1, np.int64)  # by row: its slot, or -1
        self._oldest = 0  # no row before this one is in use
        self._free: list[int] = []  # slots below `high`, as a heap: the lowest is taken first
        self._index: IdIndex | None = None  # made when it is needed
        self._lowest: list[tuple[float, int]] | None = None  # a heap of priority and key, also of ones that are no more

    @property
    def index(self) -> IdIndex:
        if self._index is None:
            slots = np.flatnonzero(self.key[: self.high])
            self._index = IdIndex((self._ids[slot], slot) for slot in slots.tolist())
        return self._index

    def in_order(self) -> Slots:
        """Slots in use, oldest first."""
        slots = self._slot_of[: self.rows]
        return slots[slots >= 0]

    def rows_in_use(self, below: int) -> NDArray[np.int64]:
        return np.flatnonzero(self._slot_of[:below] >= 0)

    def find(self, keys: Keys) -> tuple[Slots, int]:
        """For each key the slot of its entry, or -1 if that is gone or never was; and of how many it is there."""
        slots = keys % self.config.max_size
        if len(self.key) < self.config.max_size:
            slots[slots >= len(self.key)] = 0
        gone = self.key[slots] != keys
        if self.key[0] == 0:  # a free slot is not the entry of a key that is 0
            gone |= keys == 0
        if stale := np.count_nonzero(gone):
            slots[gone] = -1
        return slots, len(keys) - int(stale)

    def check_new(self, ids: list[SampleId]) -> None:
        """
        Raises:
            DataError: Duplicates are an error, and there is one.
        """
        if self.config.duplicates != "error" or (len(set(ids)) == len(ids) and not self.index.any_known(ids)):
            return
        seen: set[SampleId] = set()
        for id in ids:
            if id in self.index or id in seen:
                raise DataError(
                    f'sample id {id!r} is in the buffer already; say what to do about it: duplicates="replace" or duplicates="keep"'
                )
            seen.add(id)

    def place(self, id: SampleId, priority: float) -> int:
        """Give an entry a slot, a row and a key."""
        known = self.index.slots(id) if self.config.duplicates == "replace" else ()
        if known:
            slot = known[0]
            self._leave(slot)
            self.counts.replaced += 1
        elif self._free:
            slot = heapq.heappop(self._free)
        elif self.high < self.config.max_size:
            slot = self.high
            self._more_slots(1)
        else:
            slot = self._victim()
            self._leave(slot)
            self.counts.evicted += 1
        self.counts.added += 1
        key = self.counts.added * self.config.max_size + slot
        row = self._more_rows(1)
        self.key[slot], self.row[slot], self.priority[slot], self.replays[slot] = key, row, priority, 0
        self._slot_of[row], self._ids[slot] = slot, id
        self.size += 1
        if self._index is not None:
            self._index.add(id, slot)
        if self._lowest is not None:
            heapq.heappush(self._lowest, (priority, key))
        return key

    def place_all(self, ids: list[SampleId], priorities: NDArray[np.float64]) -> Keys:
        """The same as placing one after the other."""
        if self._depends_on_order(ids):
            return np.array([self.place(id, value) for id, value in zip(ids, priorities.tolist(), strict=True)], np.int64)
        n, free = len(ids), min(len(ids), len(self._free))
        unused = min(n - free, self.config.max_size - self.high)
        victims = np.empty(0, np.int64) if free + unused == n else self._victims(n - free - unused)
        again = [heapq.heappop(self._free) for _ in range(free)]
        slots = np.concatenate([np.array(again, np.int64), np.arange(self.high, self.high + unused), victims])
        self._more_slots(unused)
        self._leave_all(np.unique(victims[self.key[victims] > 0]))  # the others come and go within this batch
        keys = (self.counts.added + 1 + np.arange(n)) * self.config.max_size + slots
        rows = np.arange(n) + self._more_rows(n)
        self.key[slots], self.row[slots], self.priority[slots], self.replays[slots] = keys, rows, priorities, 0
        stays = self.row[slots] == rows  # of those that random eviction put into one slot, the last does
        self._slot_of[rows] = np.where(stays, slots, -1)
        self.size += int(stays.sum())
        self.counts.added, self.counts.evicted = self.counts.added + n, self.counts.evicted + len(victims)
        self._name([id for id, here in zip(ids, stays.tolist(), strict=True) if here], slots[stays].tolist())
        self._line_up(slots[stays])
        return keys

    def set_priorities(self, slots: Slots, priorities: NDArray[np.float64]) -> None:
        self.priority[slots] = priorities
        self._line_up(slots)

    def remove(self, slots: Slots) -> None:
        """Free slots, which must all differ and be in use."""
        self._leave_all(slots)
        if len(slots) * LOG < len(self._free):
            for slot in slots.tolist():
                heapq.heappush(self._free, slot)
        else:
            self._free.extend(slots.tolist())
            heapq.heapify(self._free)

    def renumber(self, moved: NDArray[np.int64], below: int) -> None:
        """Of the rows below `below`, those of `moved` are now 0, 1, ... and the rest are no more; rows above follow on."""
        slots = np.concatenate([self._slot_of[moved], self._slot_of[below : self.rows]])
        self.rows, self._oldest = len(slots), 0
        self._slot_of = np.full(max(FEW, self.rows * 3 // 2), -1, np.int64)
        self._slot_of[: self.rows] = slots
        here = np.flatnonzero(slots >= 0)
        self.row[slots[here]] = here

    def restore(self, keys: Keys, ids: list[SampleId], priorities: NDArray[np.float64], replays: NDArray[np.int64], high: int) -> Slots:
        """Into new places, put entries with their keys, oldest first, as rows 0, 1, ... Their slots are given back."""
        slots = keys % self.config.max_size
        self._more_slots(high)
        first = self._more_rows(len(keys))
        self.key[slots], self.row[slots], self.priority[slots], self.replays[slots] = (
            keys,
            np.arange(len(keys)) + first,
            priorities,
            replays,
        )
        self._slot_of[: len(keys)] = slots
        self.size = len(keys)
        self._name(ids, slots.tolist())
        self._free = np.flatnonzero(self.key[:high] == 0).tolist()  # sorted, and so a heap
        return slots

    def _depends_on_order(self, ids: list[SampleId]) -> bool:
        """Whether an entry may replace or push out one that comes in the same batch, in a way that only going through it tells."""
        if self.config.duplicates == "replace" and (len(set(ids)) < len(ids) or self.index.any_known(ids)):
            return True
        full = self.size + len(ids) > self.config.max_size
        return full and (self.config.eviction_policy is BufferEvictionPolicy.PRIORITY or len(ids) > self.config.max_size)

    def _victim(self) -> int:
        """A slot of a full buffer."""
        if self.config.eviction_policy is not BufferEvictionPolicy.PRIORITY:
            return int(self._victims(1)[0])
        if self._lowest is None or len(self._lowest) > 4 * self.size:
            slots = np.flatnonzero(self.key)
            self._lowest = list(zip(self.priority[slots].tolist(), self.key[slots].tolist(), strict=True))
            heapq.heapify(self._lowest)
        while True:
            priority, key = heapq.heappop(self._lowest)
            slot = key % self.config.max_size
            if self.key[slot] == key and self.priority[slot] == priority:
                return slot

    def _line_up(self, slots: Slots) -> None:
        """Entries that are new or have another priority take their places among the lowest, if anyone has asked for those."""
        if self._lowest is None:
            return
        if len(self._lowest) > 4 * self.size or len(slots) * LOG > self.size:
            self._lowest = None
            return
        for pair in zip(self.priority[slots].tolist(), self.key[slots].tolist(), strict=True):
            heapq.heappush(self._lowest, pair)

    def _victims(self, n: int) -> Slots:
        """Slots of a full buffer: the oldest, or random ones, some of which may be the same."""
        if self.config.eviction_policy is BufferEvictionPolicy.RANDOM:
            return (self.evictions.units(n) * self.config.max_size).astype(np.int64)
        if n == 1:
            while self._slot_of[self._oldest] < 0:
                self._oldest += 1
            self._oldest += 1
            return self._slot_of[self._oldest - 1 : self._oldest].copy()
        window, found = 2 * n, np.empty(0, np.int64)
        while len(found) < n:
            found = np.flatnonzero(self._slot_of[self._oldest : self._oldest + window] >= 0)[:n]
            window *= 2
        victims = self._slot_of[self._oldest + found]
        self._oldest += int(found[-1]) + 1
        return victims

    def _leave(self, slot: int) -> None:
        self.key[slot] = 0
        self._slot_of[self.row[slot]] = -1
        self.size -= 1
        if self._index is not None:
            self._index.discard(self._ids[slot], slot)

    def _leave_all(self, slots: Slots) -> None:
        self.key[slots] = 0
        self._slot_of[self.row[slots]] = -1
        self.size -= len(slots)
        if self._index is not None:
            for slot in slots.tolist():
                self._index.discard(self._ids[slot], slot)

    def _name(self, ids: list[SampleId], slots: list[int]) -> None:
        for id, slot in zip(ids, slots, strict=True):
            self._ids[slot] = id
        if self._index is not None:
            add = self._index.update if self.config.duplicates == "keep" else self._index.add_unknown
            add(zip(ids, slots, strict=True))

    def _more_slots(self, n: int) -> None:
        self.high += n
        if self.high > len(self.key):
            capacity = min(self.config.max_size, max(self.high, len(self.key) * 2))
            more = capacity - len(self.key)
            for name in ("key", "row", "replays", "priority"):
                column = getattr(self, name)
                setattr(self, name, np.concatenate([column, np.zeros(more, column.dtype)]))
            self._ids.extend([None] * more)

    def _more_rows(self, n: int) -> int:
        """The first of n new rows."""
        first, self.rows = self.rows, self.rows + n
        if self.rows > len(self._slot_of):
            self._slot_of = np.concatenate([self._slot_of, np.full(max(n, len(self._slot_of)), -1, np.int64)])
        return first
