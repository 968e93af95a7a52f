"""`Column`: numbers in memory or in a file, of which only what is read is verified.

Reading an element, a slice or some rows of a column in a file verifies the blocks that they lie in, each block once
(`brim.core.blocks`); `whole` verifies all of them. A column in memory needs no verification. Both have a checksum that
stands for their numbers: it is known from the headers of a file, and computed from an array, with the same result.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from brim.core.blocks import Blocks, HashTree
from brim.core.errors import DamagedError
from brim.core.fingerprint import array_bytes


class Column:
    """A column of numbers, which takes the keys that a one-dimensional array takes.

    Example:
        >>> column = Column.of(np.array([5, 3, 4]))
        >>> column[1:].tolist(), column[np.array([2, 0])].tolist(), len(column)
        ([3, 4], [4, 5], 3)
    """

    def __init__(
        self, values: NDArray[Any], blocks: Blocks | None = None, *, tree: HashTree | None = None, what: str = ""
    ) -> None:
        """Not called directly: use `of`, or `Columns.column`. Without `blocks`, nothing is verified.

        Args:
            tree: The checksums of the values, if they are known.
            what: The column in messages: its file and name.
        """
        self.values = values
        """The numbers, verified or not."""
        self._blocks, self._tree, self._what = blocks, tree, what
        self._shift = 0 if blocks is None else blocks.bits - (values.itemsize.bit_length() - 1)

    @classmethod
    def of(cls, values: "ArrayLike | Column") -> "Column":
        """Return the column of an array; a column is returned as it is."""
        return values if isinstance(values, Column) else cls(np.asarray(values))

    def __reduce__(self) -> Any:
        return (Column, (self.whole,))

    def __len__(self) -> int:
        return len(self.values)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.values.dtype

    @property
    def is_verified(self) -> bool:
        """Whether nothing is left to verify."""
        return self._blocks is None

    @property
    def whole(self) -> NDArray[Any]:
        """All numbers.

        Raises:
            DamagedError: The bytes are not the ones that were written.
        """
        blocks = self._blocks  # another thread may set it to None
        if blocks is not None:
            self._check(blocks.check_all())
            self._blocks = None
        return self.values

    def __getitem__(self, key: Any) -> Any:
        """Return the number of a row (an integer), or those of a slice, an array of row numbers, or a mask of all rows.

        Raises:
            DamagedError: The bytes around them are not the ones that were written.
        """
        blocks = self._blocks
        if blocks is not None:
            self._touch(blocks, key)
        return self.values[key]

    def item(self, row: int) -> int:
        """Return the number of one row as an integer of Python, as arrays do."""
        return self[row].item()

    def _touch(self, known: Blocks, key: Any) -> None:
        if isinstance(key, slice):
            rows = range(len(self))[key]
            if not rows:
                return
            first, last = sorted((rows[0], rows[-1]))
            blocks = slice(first >> self._shift, (last >> self._shift) + 1)
            if not known.verified[blocks].all():
                self._check(known.check(np.arange(blocks.start, blocks.stop)))
            return
        at = np.atleast_1d(key)
        if at.dtype == np.bool_:
            at = np.flatnonzero(at)
        if len(at) and at.min() < 0:
            at = np.where(at < 0, at + len(self), at)
        at = at >> self._shift
        if not known.verified[at].all():
            self._check(known.check(at))

    def spans(self, starts: NDArray[np.integer[Any]], stops: NDArray[np.integer[Any]]) -> NDArray[Any]:
        """Verify the numbers from each start to its stop, and return `values`, to slice them from.

        Raises:
            DamagedError: The bytes around them are not the ones that were written.
        """
        blocks = self._blocks
        if blocks is not None:
            filled = starts < stops
            first, last = starts[filled] >> self._shift, (stops[filled] - 1) >> self._shift
            inside = np.flatnonzero(last - first > 1)
            between = [np.arange(first[i] + 1, last[i]) for i in inside.tolist()]
            self._check(blocks.check(np.concatenate([first, last, *between]).astype(np.int64, copy=False)))
        return self.values

    def equals(self, other: "Column") -> bool:
        """Return whether two columns hold the same numbers. Checksums are compared where both are known."""
        if self._tree is not None and other._tree is not None:
            return self.identity == other.identity
        return np.array_equal(self.whole, other.whole)

    @property
    def identity(self) -> list[Any]:
        """The type, size and checksum of the numbers, for fingerprints."""
        return [self.dtype.newbyteorder("<").str, len(self), self.tree.root]

    @property
    def tree(self) -> HashTree:
        """The checksums of the numbers: those in the file, or computed on first use."""
        if self._tree is None:
            self._tree = HashTree.of(array_bytes(self.whole))
        return self._tree

    def _check(self, undamaged: bool) -> None:
        if not undamaged:
            raise DamagedError(f"{self._what} is damaged (its checksum differs); write the file again")
