"""A source of nested samples: what HDF5, NPZ and Parquet have in common.

A source is a data set of dicts, lists, arrays, numbers and text, read by row number; `structure.py` says what such
samples are made of. It is a path and little else: a process opens the files when it first reads from them, so a source
can be handed to the workers of a DataLoader, however they are started, and however much the parent has read before. A
sample comes in memory of its own every time.

The one thing to get wrong: a handle that is open when a process forks is shared, and the two then move each other's
place in the file. So what is open belongs to one process (`_here`), is never pickled, and a child starts with nothing.
Because of that a file is opened many times, by processes that must see the same samples: what identifies it is pickled,
and a file that was replaced meanwhile is refused.
"""

import operator
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from brim.data.ids import Ids
from brim.data.lengths import LengthCache
from brim.data.nested.structure import ID


class NestedSource(ABC):
    """A data set of nested samples on disk, as it was when it was opened."""

    path: Path
    pickled: ClassVar[tuple[str, ...]]
    """The attributes that another process needs."""
    _pid: int | None = None
    _table: LengthCache | None = None

    @property
    @abstractmethod
    def ids(self) -> Ids: ...

    @property
    def table(self) -> LengthCache:
        """The lengths: a group for each structure, a column for each ragged axis.

        `dataset_hash` is the source's fingerprint.
        """
        if self._table is None:
            self._table = self._measure()
        return self._table

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Of what the samples are, not of where they lie. How much of them it covers is said by each source."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _measure(self) -> LengthCache: ...

    @abstractmethod
    def _read(self, row: int) -> dict[str, Any]:
        """A sample, with its id. `row` is in range."""

    def __getitem__(self, row: int) -> dict[str, Any]:
        """Read one sample.

        Raises:
            DataError: The sample holds something that cannot be batched.
            DamagedError: Its bytes are not the ones that were written.
            MismatchError: Its file was changed or replaced since the source was opened. This is noticed when a process
                opens the file.
        """
        row, count = operator.index(row), len(self)
        if not -count <= row < count:
            raise IndexError(f"row {row} of {count} in {self.path}")
        sample = self._read(row % count)
        return {ID: sample.pop(ID), **sample}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[row] for row in range(len(self)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in self.pickled}

    @property
    def _here(self) -> dict[str, Any]:
        """What this process has open and holds."""
        if self._pid != os.getpid():
            self._open: dict[str, Any] = {}
            self._pid = os.getpid()
        return self._open
