"""The base class of sources of nested samples: HDF5, NPZ and Parquet.

A source is a data set of dicts, lists, arrays, numbers and text, read by row number; `structure.py` defines such
samples. It holds little more than a path: a process opens the files when it first reads from them, so a source can be
passed to the workers of a DataLoader, however they are started, and however much the parent has read before. Every
sample is returned in memory of its own.

The pitfall: a handle that is open when a process forks is shared, and parent and child then move each other's file
position. So open handles belong to one process (`_here`), are never pickled, and a child starts with none. A file is
therefore opened many times, by processes that must see the same samples: what identifies the file is pickled, and a
file that was replaced in the meantime is refused.
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
    """Names of the attributes that are pickled, for another process."""
    _pid: int | None = None
    _table: LengthCache | None = None

    @property
    @abstractmethod
    def ids(self) -> Ids: ...

    @property
    def table(self) -> LengthCache:
        """The length table of the samples, with a group for each structure and a column for each ragged axis.

        `dataset_hash` is the source's fingerprint.
        """
        if self._table is None:
            self._table = self._measure()
        return self._table

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Fingerprint of the content of the samples, not of their path. Each subclass documents how much it covers."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _measure(self) -> LengthCache: ...

    @abstractmethod
    def _read(self, row: int) -> dict[str, Any]:
        """Return a sample with its id. `row` is in range and not negative."""

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
        """Open files and cached data of this process. Empty after a fork."""
        if self._pid != os.getpid():
            self._open: dict[str, Any] = {}
            self._pid = os.getpid()
        return self._open
