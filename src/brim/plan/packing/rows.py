"""`Rows`: which sequences lie end to end in which row."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import order_by, segment_sums


@dataclass(frozen=True, repr=False, eq=False)
class Rows:
    """Rows of sequence indices: row r is `order[ptr[r]:ptr[r + 1]]`."""

    order: NDArray[np.int32]
    ptr: NDArray[np.int64]
    bound: int | None = None
    """A number of rows such that no packing needs fewer, if a search has found one."""

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


def longest_first(sizes: NDArray[np.int32], arrivals: NDArray[np.int32] | None) -> NDArray[np.int32]:
    """Return the sequences sorted by length, longest first; equally long ones in order of arrival."""
    arriving = sizes if arrivals is None else sizes[arrivals]
    order = order_by(arriving.max(initial=0) - arriving).astype(np.int32)
    return order if arrivals is None else arrivals[order]
