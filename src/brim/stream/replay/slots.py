"""`SlotTable`: which slot holds which entry of a replay buffer, and which entry is evicted when none is free.

The number of slots is bounded. The rows of the log, which hold columns and tokens, keep growing; every slot in use
refers to one row. A key names an entry for ever: it is the number of the addition times `max_size`, plus the slot. So
keys only grow, and the slot of a key is found without a table; if the slot holds another key, the entry was evicted or
removed. Nothing here knows the content of an entry except its id and its priority.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from brim.core.errors import DataError, OptionError
from brim.core.rng import Words
from brim.data.ids import SampleId
from brim.stream.replay.config import BufferEvictionPolicy, ReplayBufferConfig

INITIAL = 1024
"""Initial capacity, in slots and in rows."""
HEAP_SHARE = 16
"""Rebuilding a heap is faster than pushing more than one sixteenth of its items."""

Slots = NDArray[np.int64]
Keys = NDArray[np.int64]


@dataclass(slots=True)
class ReplayCounts:
    """Counts over the lifetime of a buffer: added = held + evicted + replaced + removed."""

    added: int = 0
    evicted: int = 0
    replaced: int = 0
    removed: int = 0
    stale_updates: int = 0


def as_keys(given: ArrayLike) -> Keys:
    """Convert keys to a flat array of int64.

    Raises:
        OptionError: They are not integers, or not in one dimension.
    """
    try:
        keys = np.asarray(given)
    except ValueError:
        raise OptionError("keys must be integers in one list, got lists of several lengths") from None
    if keys.ndim != 1:
        raise OptionError(f"keys must be a list or an array of one dimension, got an array of shape {keys.shape}")
    if keys.dtype.kind not in "iu" and len(keys):
        raise OptionError(
            f"keys must be integers of 64 bits, got an array of {keys.dtype}; pass the keys of a draw or of a snapshot"
        )
    return keys.astype(np.int64, copy=False)


class SlotTable:
    """By slot: `key` (0 if the slot is free), `row`, `priority`, `replays` (times drawn).

    Slots in use lie below `high`.
    """

    def __init__(self, config: ReplayBufferConfig) -> None:
        capacity = min(config.max_size, INITIAL)
        self.config = config
        self.counts = ReplayCounts()
        self.key = np.zeros(capacity, np.int64)
        self.row = np.zeros(capacity, np.int64)
        self.replays = np.zeros(capacity, np.int64)
        self.priority = np.zeros(capacity)
        self.rows = 0  # rows assigned so far, including those of entries that are not written yet
        self.size = 0
        self.high = 0
        self.evictions = Words(config.seed, "replay-evict")
        self._ids: list[Any] = [None] * capacity
        self._slot_of = np.full(INITIAL, -1, np.int64)  # by row: its slot, or -1
        self._oldest = 0  # no row before this one is in use
        self._free: list[int] = []  # free slots below `high`, as a heap: the lowest is reused first
        self._index: IdIndex | None = None  # built when first needed
        self._lowest: list[tuple[float, int]] | None = None  # a heap of (priority, key); may hold outdated pairs

    @property
    def index(self) -> "IdIndex":
        if self._index is None:
            slots = np.flatnonzero(self.key[: self.high])
            self._index = IdIndex((self._ids[slot], slot) for slot in slots.tolist())
        return self._index

    def in_order(self) -> Slots:
        """Slots in use, oldest entry first."""
        slots = self._slot_of[: self.rows]
        return slots[slots >= 0]

    def rows_in_use(self, below: int) -> NDArray[np.int64]:
        return np.flatnonzero(self._slot_of[:below] >= 0)

    def find(self, keys: Keys) -> tuple[Slots, int]:
        """The slot of each key, or -1 if its entry is no longer held or never was; and how many were found."""
        slots = keys % self.config.max_size
        if len(self.key) < self.config.max_size:
            slots[slots >= len(self.key)] = 0
        stale = self.key[slots] != keys
        # A free slot has the key 0, but it is not the entry of a key that is 0.
        if self.key[0] == 0:
            stale |= keys == 0
        count = np.count_nonzero(stale)
        if count:
            slots[stale] = -1
        return slots, len(keys) - int(count)

    def check_new(self, ids: list[SampleId]) -> None:
        """Refuse ids that are in the buffer, or come twice, where `duplicates` is "error".

        Raises:
            DataError: There is such an id.
        """
        if self.config.duplicates != "error" or (len(set(ids)) == len(ids) and not self.index.any_known(ids)):
            return
        seen: set[SampleId] = set()
        for id in ids:
            if id in self.index or id in seen:
                raise DataError(
                    f'sample id {id!r} is in the buffer already; choose how to handle this: duplicates="replace" or '
                    f'duplicates="keep"'
                )
            seen.add(id)

    def assign(self, id: SampleId, priority: float) -> int:
        """Give a new entry a slot, a row and a key, and evict another one if there is no free slot. Returns the key."""
        known = self.index.slots(id) if self.config.duplicates == "replace" else ()
        if known:
            slot = known[0]
            self._vacate(slot)
            self.counts.replaced += 1
        elif self._free:
            slot = heapq.heappop(self._free)
        elif self.high < self.config.max_size:
            slot = self.high
            self._more_slots(1)
        else:
            slot = self._victim()
            self._vacate(slot)
            self.counts.evicted += 1
        self.counts.added += 1
        key = self.counts.added * self.config.max_size + slot
        row = self._more_rows(1)
        self.key[slot] = key
        self.row[slot] = row
        self.priority[slot] = priority
        self.replays[slot] = 0
        self._slot_of[row] = slot
        self._ids[slot] = id
        self.size += 1
        if self._index is not None:
            self._index.add(id, slot)
        if self._lowest is not None:
            heapq.heappush(self._lowest, (priority, key))
        return key

    def assign_all(self, ids: list[SampleId], priorities: NDArray[np.float64]) -> Keys:
        """Assign many entries, with the same result as assigning one after the other."""
        if self._depends_on_order(ids):
            pairs = zip(ids, priorities.tolist(), strict=True)
            return np.array([self.assign(id, value) for id, value in pairs], np.int64)
        # First free slots, then slots that were never used, then those of victims: the order of `assign`.
        n, free = len(ids), min(len(ids), len(self._free))
        unused = min(n - free, self.config.max_size - self.high)
        victims = np.empty(0, np.int64)
        if free + unused < n:
            victims = self._victims(n - free - unused)
        again = np.array([heapq.heappop(self._free) for _ in range(free)], np.int64)
        slots = np.concatenate([again, np.arange(self.high, self.high + unused), victims])
        self._more_slots(unused)
        # A random victim may be a slot that this batch has just taken; such a slot has no key yet.
        self._vacate_all(np.unique(victims[self.key[victims] > 0]))
        keys = (self.counts.added + 1 + np.arange(n)) * self.config.max_size + slots
        rows = np.arange(n) + self._more_rows(n)
        self._fill(slots, keys, rows, priorities, 0)
        # Random eviction may choose a slot twice in one batch; only the last entry stays there.
        stays = self.row[slots] == rows
        self._slot_of[rows] = np.where(stays, slots, -1)
        self.size += int(stays.sum())
        self.counts.added += n
        self.counts.evicted += len(victims)
        self._set_ids([id for id, here in zip(ids, stays.tolist(), strict=True) if here], slots[stays].tolist())
        self._queue(slots[stays])
        return keys

    def set_priorities(self, slots: Slots, priorities: NDArray[np.float64]) -> None:
        self.priority[slots] = priorities
        self._queue(slots)

    def remove(self, slots: Slots) -> None:
        """Free slots, which must be in use and all different."""
        self._vacate_all(slots)
        if len(slots) * HEAP_SHARE < len(self._free):
            for slot in slots.tolist():
                heapq.heappush(self._free, slot)
        else:
            self._free.extend(slots.tolist())
            heapq.heapify(self._free)

    def renumber(self, moved: NDArray[np.int64], below: int) -> None:
        """Follow a move of the log: of the rows before `below` only `moved` are left, as 0, 1, ...; the rest follow."""
        slots = np.concatenate([self._slot_of[moved], self._slot_of[below : self.rows]])
        self.rows = len(slots)
        self._oldest = 0
        self._slot_of = np.full(max(INITIAL, self.rows * 3 // 2), -1, np.int64)
        self._slot_of[: self.rows] = slots
        here = np.flatnonzero(slots >= 0)
        self.row[slots[here]] = here

    def restore(
        self,
        keys: Keys,
        ids: list[SampleId],
        priorities: NDArray[np.float64],
        replays: NDArray[np.int64],
        high: int,
    ) -> Slots:
        """Put entries with known keys, oldest first, into an empty table, as rows 0, 1, ... Returns their slots."""
        slots = keys % self.config.max_size
        self._more_slots(high)
        rows = np.arange(len(keys)) + self._more_rows(len(keys))
        self._fill(slots, keys, rows, priorities, replays)
        self._slot_of[rows] = slots
        self.size = len(keys)
        self._set_ids(ids, slots.tolist())
        self._free = np.flatnonzero(self.key[:high] == 0).tolist()  # sorted, and therefore a heap
        return slots

    def _fill(
        self,
        slots: Slots,
        keys: Keys,
        rows: NDArray[np.int64],
        priorities: NDArray[np.float64],
        replays: NDArray[np.int64] | int,
    ) -> None:
        self.key[slots] = keys
        self.row[slots] = rows
        self.priority[slots] = priorities
        self.replays[slots] = replays

    def _depends_on_order(self, ids: list[SampleId]) -> bool:
        """Whether an entry may replace or evict one of the same batch in a way that only one-by-one assignment
        shows.
        """
        if self.config.duplicates == "replace" and (len(set(ids)) < len(ids) or self.index.any_known(ids)):
            return True
        if self.size + len(ids) <= self.config.max_size:
            return False
        return self.config.eviction_policy is BufferEvictionPolicy.PRIORITY or len(ids) > self.config.max_size

    def _victim(self) -> int:
        """The slot of the entry to evict from a full buffer."""
        if self.config.eviction_policy is not BufferEvictionPolicy.PRIORITY:
            return int(self._victims(1)[0])
        if self._lowest is None or len(self._lowest) > 4 * self.size:
            slots = np.flatnonzero(self.key)
            self._lowest = list(zip(self.priority[slots].tolist(), self.key[slots].tolist(), strict=True))
            heapq.heapify(self._lowest)
        # Pairs of removed entries and of former priorities are still in the heap: skip them.
        while True:
            priority, key = heapq.heappop(self._lowest)
            slot = key % self.config.max_size
            if self.key[slot] == key and self.priority[slot] == priority:
                return slot

    def _queue(self, slots: Slots) -> None:
        """Push entries that are new or have a new priority to the heap of lowest priorities, if there is one."""
        if self._lowest is None:
            return
        if len(self._lowest) > 4 * self.size or len(slots) * HEAP_SHARE > self.size:
            self._lowest = None  # `_victim` rebuilds it, which is faster than so many pushes
            return
        for pair in zip(self.priority[slots].tolist(), self.key[slots].tolist(), strict=True):
            heapq.heappush(self._lowest, pair)

    def _victims(self, n: int) -> Slots:
        """Slots to evict from a full buffer: the oldest, or random ones, which may come more than once."""
        if self.config.eviction_policy is BufferEvictionPolicy.RANDOM:
            return (self.evictions.uniform(n) * self.config.max_size).astype(np.int64)
        if n == 1:
            while self._slot_of[self._oldest] < 0:
                self._oldest += 1
            self._oldest += 1
            return self._slot_of[self._oldest - 1 : self._oldest].copy()
        # Search a stretch of rows that doubles until it holds n rows in use.
        stretch, found = 2 * n, np.empty(0, np.int64)
        while len(found) < n:
            found = np.flatnonzero(self._slot_of[self._oldest : self._oldest + stretch] >= 0)[:n]
            stretch *= 2
        victims = self._slot_of[self._oldest + found]
        self._oldest += int(found[-1]) + 1
        return victims

    def _vacate(self, slot: int) -> None:
        self.key[slot] = 0
        self._slot_of[self.row[slot]] = -1
        self.size -= 1
        if self._index is not None:
            self._index.discard(self._ids[slot], slot)

    def _vacate_all(self, slots: Slots) -> None:
        self.key[slots] = 0
        self._slot_of[self.row[slots]] = -1
        self.size -= len(slots)
        if self._index is not None:
            for slot in slots.tolist():
                self._index.discard(self._ids[slot], slot)

    def _set_ids(self, ids: list[SampleId], slots: list[int]) -> None:
        for id, slot in zip(ids, slots, strict=True):
            self._ids[slot] = id
        if self._index is not None:
            add = self._index.update if self.config.duplicates == "keep" else self._index.add_unknown
            add(zip(ids, slots, strict=True))

    def _more_slots(self, n: int) -> None:
        """Use n more slots, and double the capacity where it is exceeded."""
        self.high += n
        if self.high > len(self.key):
            capacity = min(self.config.max_size, max(self.high, len(self.key) * 2))
            more = capacity - len(self.key)
            for name in ("key", "row", "replays", "priority"):
                column = getattr(self, name)
                setattr(self, name, np.concatenate([column, np.zeros(more, column.dtype)]))
            self._ids.extend([None] * more)

    def _more_rows(self, n: int) -> int:
        """Use n more rows, and return the first of them."""
        first = self.rows
        self.rows += n
        if self.rows > len(self._slot_of):
            self._slot_of = np.concatenate([self._slot_of, np.full(max(n, len(self._slot_of)), -1, np.int64)])
        return first


class IdIndex:
    """Slots by sample id.

    An id with one slot, the usual case, maps to the slot itself; one with several maps to a dict.
    """

    def __init__(self, pairs: Iterable[tuple[SampleId, int]] = ()) -> None:
        self._slots: dict[SampleId, int | dict[int, None]] = {}
        self.update(pairs)

    def __contains__(self, id: object) -> bool:
        return id in self._slots

    def slots(self, id: SampleId) -> list[int]:
        found = self._slots.get(id, {})
        return list(found) if isinstance(found, dict) else [found]

    def any_known(self, ids: Iterable[SampleId]) -> bool:
        return not self._slots.keys().isdisjoint(ids)

    def add(self, id: SampleId, slot: int) -> None:
        found = self._slots.setdefault(id, slot)
        if isinstance(found, dict):
            found[slot] = None
        elif found != slot:
            self._slots[id] = {found: None, slot: None}

    def add_unknown(self, pairs: Iterable[tuple[SampleId, int]]) -> None:
        """Add ids that all differ and are not in the index yet."""
        self._slots.update(pairs)

    def update(self, pairs: Iterable[tuple[SampleId, int]]) -> None:
        for id, slot in pairs:
            self.add(id, slot)

    def discard(self, id: SampleId, slot: int) -> None:
        found = self._slots[id]
        if not isinstance(found, dict):
            del self._slots[id]
            return
        del found[slot]
        if len(found) == 1:
            self._slots[id] = next(iter(found))
