"""Best fit, longest first: every sequence goes into the fullest row that has room for it.

Lengths are integers up to the capacity, so a histogram describes a data set, and best fit, longest first, needs only
the counts: rows that hold the same lengths are one *group*, and a whole group is filled at once. The walk over the
histogram yields a short list of events ("these rows, this many copies, at this slot"); then one pass over the data
gives every sequence its place. The kernel does the same; where there are few sequences for the range of their lengths,
it sorts them instead of counting.
"""

from bisect import bisect_left
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import begins, count_values, offsets
from brim.plan.packing.rows import Rows, longest_first

try:
    from brim.plan.packing import _kernel as kernel
except ImportError:  # not compiled: `_best_fit_python` does the same
    kernel = None


def best_fit(sizes: NDArray[np.int32], arrivals: NDArray[np.int32] | None, capacity: int, most: int) -> Rows | None:
    """Pack by best fit, longest first. None: a size is negative or above `capacity`."""
    if kernel is None:
        return _best_fit_python(sizes, arrivals, capacity, most)
    order, ptr = np.empty(len(sizes), np.int32), np.empty(len(sizes) + 1, np.int64)
    rows = kernel.best_fit(sizes, b"" if arrivals is None else arrivals, capacity, most, order, ptr)
    return None if rows < 0 else Rows(order, ptr[: rows + 1])  # memory that was not written takes none


def _best_fit_python(
    sizes: NDArray[np.int32], arrivals: NDArray[np.int32] | None, capacity: int, most: int
) -> Rows | None:
    """Do what `kernel.best_fit` does."""
    if sizes.min(initial=0) < 0 or sizes.max(initial=0) > capacity:
        return None
    sizes = np.maximum(sizes, 1)
    values, counts = count_values(sizes)
    walk = _walk(values, counts, capacity, most)
    ptr, order = _row_ptr(walk), np.empty(len(sizes), np.int32)
    row, rows, copies, slot = (np.array(column, np.int64) for column in (walk.row, walk.rows, walk.copies, walk.slot))
    visited = np.arange(rows.sum()) + np.repeat(row - begins(rows), rows)  # every (event, row) pair, in order
    copies_there = np.repeat(copies, rows)
    start = ptr[visited] + np.repeat(slot, rows)
    taken = begins(copies_there)
    order[np.arange(len(sizes)) + np.repeat(start - taken, copies_there)] = longest_first(sizes, arrivals)
    return Rows(order, ptr)


@dataclass
class _Walk:
    """The result of packing a histogram, as a list of events.

    Event e puts `copies[e]` sequences at `slot[e]` into each of `rows[e]` rows from `row[e]` on.
    """

    row: list[int] = field(default_factory=list[int])
    rows: list[int] = field(default_factory=list[int])
    copies: list[int] = field(default_factory=list[int])
    slot: list[int] = field(default_factory=list[int])
    closed: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    """Finished groups: first row, number of rows, sequences in each."""
    num_rows: int = 0


def _walk(values: NDArray[np.int64], counts: NDArray[np.int64], capacity: int, most: int) -> _Walk:
    """Pack a histogram, whose values ascend. A group is (first row, rows, sequences in each): rows that hold the
    same lengths.

    `rooms` are the distinct amounts of free space in open rows, in ascending order; each has a stack of groups.

    Function calls would take most of this loop's time, hence `if` instead of `min`, and local names for methods.
    """
    walk = _Walk()
    to_row, to_rows, to_copies, to_slot = walk.row.append, walk.rows.append, walk.copies.append, walk.slot.append
    rooms: list[int] = []
    groups: dict[int, list[tuple[int, int, int]]] = {}
    for length, count in zip(values[::-1].tolist(), counts[::-1].tolist(), strict=True):
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


def _row_ptr(walk: _Walk) -> NDArray[np.int64]:
    closed = np.array(walk.closed, np.int64).reshape(-1, 3)
    closed = closed[np.argsort(closed[:, 0], kind="stable")]
    return offsets(np.repeat(closed[:, 2], closed[:, 1]))
