"""The ids of a data set as a column: row numbers, integers or strings.

Ten million ids are two flat columns here, not ten million objects: an id becomes one when it is looked at, and ids in a
file are read no earlier. An id keeps its type: 0 is an id like any other, and a data set with integer ids gives
integers back. Where a data set mixes integers and strings, all of them become strings.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from brim.core.column import Column
from brim.core.errors import DataError
from brim.core.rng import raw_bits

SampleId = str | int

CHUNK = 1 << 20
AT_ONCE = 1 << 12
"""Number of ids that iterating makes objects of at once."""
NUMBERS = {"id": np.dtype(np.int64)}
TEXTS = {"id_text": np.dtype(np.uint8), "id_ends": np.dtype(np.int64)}


def is_id(value: Any) -> TypeGuard[SampleId]:
    """Return whether a value read from JSON can be an id."""
    return isinstance(value, str | int) and not isinstance(value, bool)


def not_an_id(what: str) -> DataError:
    """Return the error for a value that cannot be an id. `what` says where it is and what it is."""
    return DataError(f"{what}; an id is a string or an integer")


def comes_twice(id: SampleId, where: str = "") -> DataError:
    """Return the error for an id that two samples have. `where` is inserted after "comes twice"."""
    return DataError(f"id {id!r} comes twice{where}; ids must be unique")


class Ids:
    """An immutable column of ids. Build one with `of`, `rows`, `integers`, `strings` or `from_columns`."""

    COLUMNS = ("id", "id_text", "id_ends")
    """Names of the columns in which files store ids. Row numbers need none."""

    def __init__(self, count: int, columns: Mapping[str, NDArray[Any] | Column]) -> None:
        self._count = count
        self.columns: dict[str, Column] = {name: Column.of(column) for name, column in columns.items()}
        self._lookup: dict[SampleId, int] | None = None

    @classmethod
    def rows(cls, count: int) -> "Ids":
        """Return the row numbers 0 .. count - 1 as ids. They take no memory."""
        return cls(count, {})

    @classmethod
    def integers(cls, values: NDArray[np.int64]) -> "Ids":
        if np.array_equal(values, np.arange(len(values))):
            return cls.rows(len(values))
        return cls(len(values), {"id": values})

    @classmethod
    def strings(cls, text: NDArray[np.uint8], ends: NDArray[np.int64]) -> "Ids":
        """Return string ids from all ids in UTF-8, end to end, and the byte offset at which each one ends."""
        return cls(len(ends), {"id_text": text, "id_ends": ends})

    @classmethod
    def from_columns(cls, count: int, columns: Mapping[str, NDArray[Any] | Column]) -> "Ids":
        """Return the ids that are stored among the columns of a file. Columns with other names are ignored."""
        return cls(count, {name: columns[name] for name in cls.COLUMNS if name in columns})

    def to_columns(self) -> dict[str, NDArray[Any]]:
        """Return the columns to store in a file, by name."""
        return {name: column.whole for name, column in self.columns.items()}

    @property
    def numbers(self) -> NDArray[np.int64] | None:
        """The ids, if they are integers other than the row numbers; else None."""
        return self.columns["id"].whole if "id" in self.columns else None

    @property
    def text(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]] | None:
        """All ids in UTF-8, end to end, and the byte offset at which each one ends, if they are strings; else None."""
        return (self.columns["id_text"].whole, self.columns["id_ends"].whole) if "id_text" in self.columns else None

    def is_whole(self) -> bool:
        """Return whether the columns are consistent with each other. Columns read from a file may not be."""
        if not self.has_whole_columns():
            return False
        if self.text is None:
            return True
        text, ends = self.text
        return not (np.diff(ends, prepend=0) < 0).any() and int(ends[-1:].sum()) == len(text)

    def has_whole_columns(self) -> bool:
        """Return whether the columns have the sizes and types of so many ids. This reads none of them."""
        found = {name: column.dtype for name, column in self.columns.items()}
        sizes = {len(column) for name, column in self.columns.items() if name != "id_text"}
        return found in ({}, NUMBERS, TEXTS) and sizes <= {self._count}

    @classmethod
    def joined(cls, parts: "Sequence[Ids]") -> "Ids":
        """Return the ids of all parts, one part behind the other. If one part has strings, all of them become strings.

        A part of row numbers has the numbers that it would have by itself.
        """
        if all(part.text is None for part in parts):
            numbers = [np.arange(len(part)) if part.numbers is None else part.numbers for part in parts]
            return cls.integers(np.concatenate([np.empty(0, np.int64), *numbers]))
        texts = [(part if part.text is not None else cls._as_text(part)).text for part in parts]
        found = [text for text in texts if text is not None]
        offsets = np.cumsum([0, *(len(text) for text, _ in found)])
        ends = [ends + offset for (_, ends), offset in zip(found, offsets, strict=False)]
        return cls.strings(np.concatenate([text for text, _ in found]), np.concatenate(ends))

    @classmethod
    def of(cls, ids: Iterable[SampleId]) -> "Ids":
        """Make a column of Python values.

        If an integer does not fit in 64 bits, such as a long hash, all ids become strings.
        """
        values = list(ids)
        kinds = set(map(type, values))
        if not kinds <= {int, str}:
            values = [int(value) if isinstance(value, np.integer) else value for value in values]
            kinds = set(map(type, values))
        if kinds <= {int}:
            try:
                return cls.integers(np.array(values, np.int64))
            except OverflowError:
                pass
        return cls._of_texts(values if kinds == {str} else [str(value) for value in values])

    @classmethod
    def _as_text(cls, ids: "Ids") -> "Ids":
        return cls._of_texts([str(id) for id in ids])

    @classmethod
    def _of_texts(cls, texts: Sequence[Any]) -> "Ids":
        joined = "".join(texts)
        sizes = map(len, texts if joined.isascii() else (text.encode() for text in texts))
        return cls.strings(
            np.frombuffer(joined.encode(), np.uint8), np.cumsum(np.fromiter(sizes, np.int64, len(texts)))
        )

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
        for start in range(0, self._count, AT_ONCE):
            yield from self.take(np.arange(start, min(start + AT_ONCE, self._count)))

    def take(self, rows: NDArray[np.integer[Any]]) -> tuple[SampleId, ...]:
        """Return the ids of the given rows. Rows below 0 count from the end, as in a list.

        Raises:
            IndexError: There is no such row.
        """
        if len(rows) and not (rows.min() >= 0 and rows.max() < self._count):
            rows = np.arange(self._count)[rows]
        if not self.columns:
            return tuple(rows.tolist())
        if "id" in self.columns:
            return tuple(self.columns["id"][rows].tolist())
        ends = self.columns["id_ends"]
        starts, stops = np.where(rows > 0, ends[np.maximum(rows - 1, 0)], 0), ends[rows]
        text = self.columns["id_text"].spans(starts, stops).data
        spans = zip(starts.tolist(), stops.tolist(), strict=True)
        return tuple(str(text[start:stop], "utf-8") for start, stop in spans)

    def row_of(self, id: SampleId) -> int:
        """Return the row that holds an id. The first call builds a lookup table of all ids.

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
        """Return the first row whose id an earlier row has, as (earlier, later); None if all ids differ.

        Strings are hashed to 64 bits and the hashes are sorted, which takes 16 bytes per id however long the ids are.
        The ids of rows with equal hashes are then compared, so a hash collision is never reported.
        """
        if self.text is not None:
            keys = _hashes(*self.text)
        elif self.numbers is not None:
            keys = self.numbers
        else:
            return None
        ordered = np.sort(keys)
        if not (ordered[1:] == ordered[:-1]).any():
            return None
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        pairs: list[tuple[int, int]] = []
        for start, stop in _runs(keys[1:] == keys[:-1]):
            seen: dict[SampleId, int] = {}
            for row in sorted(order[start : stop + 1].tolist()):
                if self[row] in seen:
                    pairs.append((seen[self[row]], row))
                    break
                seen[self[row]] = row
        return min(pairs, key=lambda pair: pair[1], default=None)

    def refuse_duplicate(self, where: Callable[[int], str]) -> None:
        """Check that all ids differ.

        Args:
            where: Returns the location of a row for the error message, such as "sample 3".

        Raises:
            DataError: An id comes twice.
        """
        if twice := self.duplicate():
            raise comes_twice(self[twice[0]], f": {where(twice[0])} and {where(twice[1])}")


def _runs(alike: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the runs of equal neighbours, as first and last position."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], alike, [False]]).astype(np.int8)))
    return [(int(start), int(stop)) for start, stop in zip(edges[::2], edges[1::2], strict=True)]


def _hashes(text: NDArray[np.uint8], ends: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return for each id the sum of (byte + 1) times a random odd weight for its place in the id, modulo 2**64."""
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    longest = int((ends - starts).max(initial=0))
    weights = raw_bits(longest, seed=0, purpose="id-hash") | np.uint64(1)
    hashes = np.zeros(len(ends), np.uint64)
    first = 0
    while first < len(ends):
        last = max(first + 1, int(np.searchsorted(ends, starts[first] + CHUNK, side="right")))
        a, b = int(starts[first]), int(ends[last - 1])
        sizes = ends[first:last] - starts[first:last]
        place = np.arange(b - a) - np.repeat(starts[first:last] - a, sizes)
        terms: NDArray[Any] = (text[a:b].astype(np.uint64) + np.uint64(1)) * weights[place]
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms, dtype=np.uint64)])
        hashes[first:last] = sums[ends[first:last] - a] - sums[starts[first:last] - a]
        first = last
    return hashes


def stored_id(value: Any, where: str) -> SampleId:
    """Return an id that was read from a file as a string or an integer. `where` names the file in errors.

    Raises:
        DataError: The value is neither text nor an integer, or it is not UTF-8.
    """
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, bool) or not isinstance(plain, str | bytes | int):
        what = repr(plain) if isinstance(plain, bool | float) else f"of type {type(plain).__name__}"
        raise not_an_id(f"{where}: the id of a sample is {what}")
    try:
        id = plain.decode() if isinstance(plain, bytes) else plain
        str(id).encode()
    except UnicodeError:
        raise DataError(f"{where}: the id {plain!r} is not text in UTF-8; give the sample another") from None
    return id
