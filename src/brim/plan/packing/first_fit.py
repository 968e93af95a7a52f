"""First fit: every sequence goes into the oldest row that has room for it."""

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import offsets, order_by
from brim.plan.packing.rows import Rows

try:
    from brim.plan.packing import _kernel as kernel
except ImportError:  # not compiled: `_first_fit_python` does the same
    kernel = None


def first_fit(sizes: NDArray[np.int32], arrivals: NDArray[np.int32] | None, capacity: int, most: int) -> Rows:
    """Pack by first fit, in order of arrival. Sizes are from 1 to `capacity`; a row holds at most `most` sequences."""
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
