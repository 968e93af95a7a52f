"""Memory for the arrays of a batch: one block for all of them, fresh or used again.

`collate` and the loaders ask a function for a block of so many bytes. Without one, every array is allocated by itself.
A function that gives out blocks again, such as `Buffers`, changes batches that were made before: whoever keeps a batch
must copy it.
"""

from collections.abc import Callable, Sized
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import round_up
from brim.core.errors import OptionError

ALIGNMENT = 64
"""Arrays begin at multiples of this: a cache line, and what JAX and vector instructions ask for."""

INT32, UINT8 = np.dtype(np.int32), np.dtype(np.uint8)

Memory = Callable[[int], NDArray[np.uint8]]
"""A function that returns a block of at least so many bytes."""

BlockT = TypeVar("BlockT", bound=Sized)


def allocate(size: int) -> NDArray[np.uint8]:
    """Return a fresh block of memory that is aligned."""
    block = np.empty(size + ALIGNMENT, np.uint8)
    start = -block.ctypes.data % ALIGNMENT
    return block[start : start + size]


class Buffers(Generic[BlockT]):
    """Memory for `count` batches, used in turn.

    Asking for a block gives one that was given out `count` times ago, unless it is too small: a batch in it stays
    intact until the `count`-th batch after it is made.

    Example:
        >>> buffers = Buffers(2, allocate)
        >>> first, second, third = buffers(100), buffers(50), buffers(100)
        >>> first is third, first is second
        (True, False)
    """

    def __init__(self, count: int, allocate: Callable[[int], BlockT]) -> None:
        if count < 1:
            raise OptionError(f"there must be at least 1 buffer, got {count}")
        self._blocks: list[BlockT | None] = [None] * count
        self._next = 0
        self._allocate = allocate

    def __call__(self, size: int) -> BlockT:
        """Return a block of at least `size` bytes."""
        at = self._next
        self._next = (at + 1) % len(self._blocks)
        block = self._blocks[at]
        if block is None or len(block) < size:
            self._blocks[at] = None  # freed before the larger one is allocated
            block = self._blocks[at] = self._allocate(size)
        return block


Arrays = tuple[NDArray[Any], NDArray[np.int32], NDArray[Any], NDArray[np.uint8], NDArray[Any], NDArray[np.int32]]


def empty_arrays(shape: tuple[int, int], segments: int, dtype: np.dtype[Any], memory: Memory | None = None) -> Arrays:
    """Return uninitialised arrays for a batch: tokens, segment ids, positions, loss mask, labels, cu_seqlens.

    With `memory` they are views of one block, which begin at multiples of `ALIGNMENT` in it.
    """
    if memory is None:
        return (
            np.empty(shape, dtype),
            np.empty(shape, INT32),
            np.empty(shape, dtype),
            np.empty(shape, UINT8),
            np.empty(shape, dtype),
            np.empty(segments + 1, INT32),
        )
    slots = shape[0] * shape[1]
    wide, narrow = round_up(slots * dtype.itemsize, ALIGNMENT), round_up(slots * 4, ALIGNMENT)
    mask = round_up(slots, ALIGNMENT)
    block = memory(3 * wide + narrow + mask + 4 * (segments + 1))
    return (
        np.ndarray(shape, dtype, block, 0),
        np.ndarray(shape, INT32, block, 3 * wide),
        np.ndarray(shape, dtype, block, wide),
        np.ndarray(shape, UINT8, block, 3 * wide + narrow),
        np.ndarray(shape, dtype, block, 2 * wide),
        np.ndarray((segments + 1,), INT32, block, 3 * wide + narrow + mask),
    )
