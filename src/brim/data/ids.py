"""The ids of a data set as a column: row numbers, integers or strings.

Ten million ids are two flat arrays here, not ten million objects. An id keeps its type: 0 is an id like any other, and a data set
with integer ids gives integers back. Where a data set mixes integers and strings, all of them become strings.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

SampleId = str | int


class Ids:
    """An immutable column of ids. Build one with `of`, `rows`, `integers` or `strings`."""

    def __init__(self, count: int, columns: dict[str, NDArray[Any]]) -> None:
        self._count, self.columns = count, columns
        self._lookup: dict[SampleId, int] | None = None

    @classmethod
    def rows(cls, count: int) -> "Ids":
        """The row numbers 0 .. count - 1. Takes no memory."""
        return cls(count, {})

    @classmethod
    def integers(cls, values: NDArray[np.int64]) -> "Ids":
        if np.array_equal(values, np.arange(len(values))):
            return cls.rows(len(values))
        return cls(len(values), {"id": values})

    @classmethod
    def strings(cls, text: NDArray[np.uint8], ends: NDArray[np.int64]) -> "Ids":
        """All ids in UTF-8, one behind the other, and where each one ends."""
        return cls(len(ends), {"id_text": text, "id_ends": ends})

    @classmethod
    def of(cls, ids: Iterable[SampleId]) -> "Ids":
        """From Python values."""
        values = [int(value) if isinstance(value, np.integer) else value for value in ids]
        if all(type(value) is int for value in values):
            return cls.integers(np.array(values, np.int64))
        encoded = [str(value).encode() for value in values]
        ends = np.cumsum([len(text) for text in encoded], dtype=np.int64)
        return cls.strings(np.frombuffer(b"".join(encoded), np.uint8), ends)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row: int) -> SampleId:
        if not -self._count <= row < self._count:
            raise IndexError(f"row {row} of {self._count} ids")
        row %= self._count
        if "id" in self.columns:
            return int(self.columns["id"][row])
        if "id_text" not in self.columns:
            return row
        ends = self.columns["id_ends"]
        return self.columns["id_text"][int(ends[row - 1]) if row else 0 : int(ends[row])].tobytes().decode()

    def __iter__(self) -> Iterator[SampleId]:
        return (self[row] for row in range(self._count))

    def take(self, rows: NDArray[np.integer[Any]]) -> tuple[SampleId, ...]:
        """The ids of some rows."""
        if not self.columns:
            return tuple(rows.tolist())
        if "id" in self.columns:
            return tuple(self.columns["id"][rows].tolist())
        return tuple(self[row] for row in rows.tolist())

    def row_of(self, id: SampleId) -> int:
        """The row that holds an id. The first call builds a table of all ids.

        Raises:
            KeyError: No row has this id.
        """
        if not self.columns:
            if isinstance(id, int) and 0 <= id < self._count:
                return id
            raise KeyError(id)
        if self._lookup is None:
            self._lookup = {value: row for row, value in enumerate(self)}
        return self._lookup[id]

    def duplicate(self) -> tuple[int, int] | None:
        """Two rows with the same id, or None."""
        if not self.columns:
            return None
        if "id" in self.columns:
            order = np.argsort(self.columns["id"], kind="stable")
            same = np.flatnonzero(np.diff(self.columns["id"][order]) == 0)
            return (int(order[same[0]]), int(order[same[0] + 1])) if len(same) else None
        seen: dict[SampleId, int] = {}
        for row, value in enumerate(self):
            if value in seen:
                return seen[value], row
            seen[value] = row
        return None
