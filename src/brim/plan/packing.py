"""Pack sequences into rows of fixed capacity.

Packing sees lengths and nothing else: an array of lengths goes in, and for every row the indices of the sequences laid
end to end in it come out. Tokens move later, in `brim.batch`, so a corpus can be packed without reading it.

Lengths are integers up to the capacity, so a histogram describes a data set, and best fit, longest first, needs only
the counts: rows that hold the same lengths are one *group*, and a whole group is filled at once. The walk over the
histogram yields a short list of events ("these rows, this many copies, at this slot"); then one pass over the data
gives every sequence its place. First fit has to find the oldest row with room, and searches a tournament tree over the
rows for every sequence.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import begins, offsets, order_by, segment_sums
from brim.core.errors import LengthError, OptionError
from brim.core.fill import Fill
from brim.core.options import one_of
from brim.plan.config import PackingMode

try:
    from brim.plan import _kernel as kernel
except ImportError:  # not compiled: the Python versions below do the same
    kernel = None


@dataclass(frozen=True, repr=False, eq=False)
class Rows:
    """Rows of sequence indices: row r is `order[ptr[r]:ptr[r + 1]]`."""

    order: NDArray[np.int32]
    ptr: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ptr) - 1

    def __getitem__(self, row: int) -> NDArray[np.int32]:
        return self.order[self.ptr[row] : self.ptr[row + 1]]

    def __iter__(self) -> Iterator[NDArray[np.int32]]:
        return (self[row] for row in range(len(self)))

    def totals(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """Return the sum over each row of a value per sequence."""
        return segment_sums(values[self.order], self.ptr)

    def __repr__(self) -> str:
        shown = [row.tolist() for row, _ in zip(self, range(20), strict=False)]
        return str(shown) if len(self) <= 20 else f"{str(shown)[:-1]}, ... {len(self)} rows]"


def pack(
    lengths: NDArray[np.integer[Any]],
    capacity: int,
    *,
    mode: PackingMode | str = PackingMode.BEST_FIT,
    max_sequences: int | None = None,
    order: NDArray[np.integer[Any]] | None = None,
) -> Rows:
    """Assign every sequence to a row so that no row exceeds `capacity`.

    `order` is the order in which sequences arrive. With BEST_FIT and GREEDY it only decides which of several sequences
    of one length goes where, so another order gives other rows of the same quality. An empty sequence takes up one
    token.

    Raises:
        LengthError: A sequence is longer than `capacity`. Nothing is ever dropped here.

    Example:
        >>> pack(np.array([5, 3, 4, 2]), capacity=8)
        [[0, 1], [2, 3]]
    """
    if capacity < 1:
        raise OptionError(f"the capacity of a row must be at least 1, got {capacity}")
    if len(lengths) >= 2**31:
        raise OptionError(f"{len(lengths)} sequences are more than one call can pack; pack them in parts")
    if max_sequences is not None and max_sequences < 1:
        raise OptionError(f"max_sequences must be at least 1, got {max_sequences}")
    if len(lengths) and lengths.min() < 0:
        raise OptionError(f"lengths must not be negative, got {lengths.min()}")
    if len(lengths) and lengths.max() > capacity:
        longest = int(lengths.argmax())
        raise LengthError(f"sequence {longest} has {lengths[longest]} tokens and does not fit in a row of {capacity}")
    mode = PackingMode(one_of("mode", mode, PackingMode))
    sizes = np.maximum(lengths.astype(np.int32, copy=False), 1)
    most = max_sequences or 2**31 - 1
    arrivals = None if order is None else _checked_order(order, len(sizes))
    if mode is PackingMode.BEST_FIT:
        return _place(sizes, arrivals, _best_fit(np.bincount(sizes, minlength=capacity + 1), capacity, most))
    if mode is PackingMode.GREEDY:
        arrivals = _longest_first(sizes, arrivals)
    return _first_fit(sizes, arrivals, capacity, most)


def _checked_order(order: NDArray[np.integer[Any]], n: int) -> NDArray[np.int32]:
    """Check that `order` is a permutation, because the kernel does not check indices, and return it as int32."""
    if len(order) != n or (n and (order.min() < 0 or order.max() >= n or np.bincount(order, minlength=n).max() > 1)):
        raise OptionError(f"the order of {n} sequences must hold each of 0 to {n - 1} once")
    return np.ascontiguousarray(order, np.int32)


@dataclass
class _Walk:
    """The result of packing a histogram, as a list of events.

    Event e puts `copies[e]` sequences at `slot[e]` into each of `rows[e]` rows from `row[e]` on.
    """

    row: list[int] = field(default_factory=list[int])
    rows: list[int] = field(default_factory=list[int])
    copies: list[int] = field(default_factory=list[int])
    slot: list[int] = field(default_factory=list[int])
    first_event: dict[int, int] = field(default_factory=dict[int, int])
    closed: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    """Finished groups: first row, number of rows, sequences in each."""
    num_rows: int = 0


def _best_fit(counts: NDArray[np.int64], capacity: int, most: int) -> _Walk:
    """Pack a histogram by best fit, longest first. A group is (first row, rows, sequences in each): rows that hold the
    same lengths.

    `rooms` are the distinct amounts of free space in open rows, in ascending order; each has a stack of groups.

    Function calls would take most of this loop's time, hence `if` instead of `min`, and local names for methods.
    """
    walk = _Walk()
    to_row, to_rows, to_copies, to_slot = walk.row.append, walk.rows.append, walk.copies.append, walk.slot.append
    rooms: list[int] = []
    groups: dict[int, list[tuple[int, int, int]]] = {}
    for length in np.flatnonzero(counts)[::-1].tolist():
        count = int(counts[length])
        walk.first_event[length] = len(walk.row)
        # The fullest rows that this length fits into come first: those with the smallest room that is large enough.
        at = bisect_left(rooms, length)
        while count:
            if at < len(rooms):
                room = rooms[at]
                stack = groups[room]
                row, rows, held = stack.pop()
            else:  # no row has room: open as many as are needed
                copies = min(capacity // length, most)
                room, stack, row, rows, held = capacity, None, walk.num_rows, -(-count // copies), 0
                walk.num_rows += rows
            # The copies per row are limited by its room, by how many are left, and by the limit on sequences.
            copies = room // length
            if copies > count:
                copies = count
            if copies > most - held:
                copies = most - held
            # `filled` rows of the group get the same copies. If that is all of them, the group does not return to its
            # stack; otherwise the other rows become a group of their own, which the next iteration takes.
            filled = count // copies
            if filled >= rows:
                filled = rows
                if not stack and stack is not None:
                    del groups[room], rooms[at]
            else:
                rest = (row + filled, rows - filled, held)
                if stack is not None:
                    stack.append(rest)
                else:  # the last of the new rows, for the copies that are left
                    groups[room], at = [rest], len(rooms)
                    rooms.append(room)
            # Record the event, from which every sequence gets its place later.
            to_row(row)
            to_rows(filled)
            to_copies(copies)
            to_slot(held)
            count -= filled * copies
            held += copies
            room -= copies * length
            # The filled rows are finished, or join the groups with the same room left. A new room is inserted in
            # ascending order; if that is before the current one, the index of the current one goes up by one.
            if room == 0 or held >= most:
                walk.closed.append((row, filled, held))
            elif room in groups:
                groups[room].append((row, filled, held))
            else:
                groups[room] = [(row, filled, held)]
                before = bisect_left(rooms, room)
                rooms.insert(before, room)
                at += before <= at
    walk.closed.extend(group for stack in groups.values() for group in stack)
    return walk


def _place(sizes: NDArray[np.int32], arrivals: NDArray[np.int32] | None, walk: _Walk) -> Rows:
    """Give every sequence the next free place of its length."""
    ptr = _row_ptr(walk)
    row, rows, copies, slot = (np.array(column, np.int32) for column in (walk.row, walk.rows, walk.copies, walk.slot))
    out = np.empty(len(sizes), np.int32)
    if kernel is None:
        _place_numpy(sizes, arrivals, row, rows, copies, slot, ptr, out)
    else:
        event_of = np.zeros(int(max(walk.first_event, default=0)) + 1, np.int32)
        event_of[list(walk.first_event)] = list(walk.first_event.values())
        kernel.place(
            sizes, b"" if arrivals is None else arrivals, event_of, row, row + rows - 1, copies, slot, ptr, out
        )
    return Rows(out, ptr)


def _row_ptr(walk: _Walk) -> NDArray[np.int64]:
    closed = np.array(walk.closed, np.int64).reshape(-1, 3)
    closed = closed[np.argsort(closed[:, 0], kind="stable")]
    return offsets(np.repeat(closed[:, 2], closed[:, 1]))


def _place_numpy(
    sizes: NDArray[np.int32],
    arrivals: NDArray[np.int32] | None,
    row: NDArray[np.int32],
    rows: NDArray[np.int32],
    copies: NDArray[np.int32],
    slot: NDArray[np.int32],
    ptr: NDArray[np.int64],
    out: NDArray[np.int32],
) -> None:
    """Do what `kernel.place` does: sequences, longest first, take the events' places one after the other."""
    longest_first = _longest_first(sizes, arrivals)
    before = begins(rows)
    visited = np.arange(rows.sum()) + np.repeat(row - before, rows)  # every (event, row) pair, in order
    copies_there = np.repeat(copies, rows)
    start = ptr[visited] + np.repeat(slot, rows)
    taken = begins(copies_there)
    out[np.arange(len(sizes)) + np.repeat(start - taken, copies_there)] = longest_first


def _longest_first(sizes: NDArray[np.int32], arrivals: NDArray[np.int32] | None) -> NDArray[np.int32]:
    """Return the sequences sorted by length, longest first; equally long ones in order of arrival."""
    arriving = sizes if arrivals is None else sizes[arrivals]
    order = order_by(arriving.max(initial=0) - arriving).astype(np.int32)
    return order if arrivals is None else arrivals[order]


def _first_fit(sizes: NDArray[np.int32], arrivals: NDArray[np.int32] | None, capacity: int, most: int) -> Rows:
    row_of = np.empty(len(sizes), np.int32)
    if kernel is None:
        num_rows = _first_fit_python(sizes if arrivals is None else sizes[arrivals], capacity, most, row_of)
    else:
        num_rows = kernel.first_fit(sizes, b"" if arrivals is None else arrivals, capacity, most, row_of)
    by_row = order_by(row_of).astype(np.int32)
    ptr = offsets(np.bincount(row_of, minlength=num_rows))
    return Rows(by_row if arrivals is None else arrivals[by_row], ptr)


def _first_fit_python(sizes: NDArray[np.int32], capacity: int, most: int, row_of: NDArray[np.int32]) -> int:
    """Do what `kernel.first_fit` does: fill `row_of`, and return the number of rows.

    A tournament tree over rows, wide enough for one row per sequence, finds the oldest row with room.
    """
    leaves = 1 << max(len(sizes) - 1, 0).bit_length()
    room, held, rows = [0] * (2 * leaves), [0] * leaves, 0
    for at, size in enumerate(sizes.tolist()):
        node = 1
        if room[1] >= size:
            while node < leaves:
                node = 2 * node + (room[2 * node] < size)
        else:
            node = leaves + rows
            room[node] = capacity
            rows += 1
        row = node - leaves
        row_of[at] = row
        held[row] += 1
        room[node] = 0 if held[row] == most else room[node] - size
        while node := node // 2:
            room[node] = max(room[2 * node], room[2 * node + 1])
    return rows


@dataclass(frozen=True, kw_only=True)
class PackingMetrics:
    """Measures of how densely sequences were packed."""

    num_sequences: int
    num_rows: int
    fill: Fill

    @classmethod
    def of(cls, rows: Rows, lengths: NDArray[np.integer[Any]], capacity: int) -> "PackingMetrics":
        used = int(np.sum(lengths, dtype=np.int64))
        return cls(num_sequences=len(rows.order), num_rows=len(rows), fill=Fill(used, len(rows) * capacity))

    @property
    def efficiency(self) -> float:
        """Tokens per slot."""
        return self.fill.ratio

    @property
    def packing_ratio(self) -> float:
        """Sequences per row."""
        return self.num_sequences / self.num_rows if self.num_rows else 0.0
