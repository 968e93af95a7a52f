"""`LengthCache`: the lengths of all samples of a data set, without the samples.

It is a table of id, length and (optionally) group, with the fingerprints of the data and of the tokenizer it was
measured with. Planning reads this and nothing else. There are two forms on disk: JSONL for people, and memory-mapped
columns for everything else. Both are written whole or not at all, and truncated or altered files are detected in both.
Opening columns reads their headers, which hold the fingerprint of the table; rows are verified when they are read.

A group is a label; samples of different groups never share a microbatch. Most data sets have none. Nested samples may
be ragged along several axes, each of which is padded separately (`brim.data.nested.structure`): then `axes` has a
column for each, and the length of a sample is the sum of its row.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from brim.core.column import Column
from brim.core.columns import Columns, is_columns, write_columns
from brim.core.errors import DamagedError, DataError
from brim.core.fingerprint import fingerprint
from brim.core.options import LONGEST
from brim.data.ids import Ids, SampleId

FORMAT = "brim.lengths/2"
FORMAT_1 = "brim.lengths/1"


@dataclass(frozen=True, slots=True)
class LengthEntry:
    """One row of a length table."""

    sample_id: SampleId
    length: int
    group: str | None = None
    axes: tuple[int, ...] | None = None
    """The length along each axis, if the sample is ragged along several."""


class LengthCache:
    """A table of lengths. Immutable; `lengths` and `groups` are columns in the order of the data set.

    Example:
        >>> cache = LengthCache.from_lengths({"a": 5, "b": 3})
        >>> cache["b"], len(cache), int(cache.lengths.sum())
        (3, 2, 8)
    """

    def __init__(
        self,
        ids: Ids,
        lengths: NDArray[np.int32] | Column,
        *,
        groups: NDArray[np.int32] | Column | None = None,
        group_names: tuple[str, ...] = (),
        axes: NDArray[np.int32] | Column | None = None,
        tokenizer_hash: str = "",
        dataset_hash: str = "",
        source: Mapping[str, Any] | None = None,
    ) -> None:
        """Make a table of columns. `axes` is [rows, axes], or that as one column of a file, row by row.

        Raises:
            DataError: A length of an array is negative, above `LONGEST` or not an integer, or columns differ in size.
        """
        if len(ids) != len(lengths) or (groups is not None and len(groups) != len(lengths)):
            raise DataError(f"{len(ids)} ids for {len(lengths)} lengths")
        self.ids, self.length = ids, lengths if isinstance(lengths, Column) else Column.of(_in_range(lengths, ids))
        self._groups = None if groups is None else Column.of(groups)
        self._axes = axes if axes is None or isinstance(axes, Column) else _flat(axes, self.length)
        self.group_names = group_names
        self.tokenizer_hash, self.dataset_hash = tokenizer_hash, dataset_hash
        self.source = dict(source or {})

    @property
    def lengths(self) -> NDArray[np.int32]:
        """The lengths of all samples. `length` is the same column, to read some of them from."""
        return self.length.whole

    @property
    def groups(self) -> NDArray[np.int32] | None:
        """The number of each sample's group in `group_names`."""
        return None if self._groups is None else self._groups.whole

    @cached_property
    def axes(self) -> NDArray[np.int32] | None:
        """The length of each sample along each axis, [rows, axes]; 0 along the axes that it does not have."""
        if self._axes is None:
            return None
        axes = self._axes.whole.reshape(len(self), len(self._axes) // max(len(self), 1))
        _check_sums(axes, self.lengths)
        return axes

    @classmethod
    def from_lengths(
        cls,
        lengths: "Mapping[SampleId, int] | Mapping[str, int] | LengthCache | Iterable[LengthEntry]",
        *,
        tokenizer_hash: str = "",
        dataset_hash: str = "",
    ) -> "LengthCache":
        """Make a table of a mapping from id to length, sorted by id, or of entries in their order.

        A `LengthCache` is returned as it is.

        Raises:
            DataError: A length is negative or not an integer, or an id comes twice.
        """
        if isinstance(lengths, LengthCache):
            return lengths
        hashes: dict[str, Any] = {"tokenizer_hash": tokenizer_hash, "dataset_hash": dataset_hash}
        if not isinstance(lengths, Mapping):
            return cls.from_entries(list(lengths), **hashes)
        by_id = cast(Mapping[SampleId, int], lengths)
        try:
            ids = sorted(by_id)  # pyright: ignore[reportArgumentType]
            column = Ids.of(ids)
        except TypeError:  # integers and strings: integers come first, all become strings, 1 and "1" are one id
            ids = sorted(by_id, key=lambda id: (isinstance(id, str), id))
            column = _distinct(ids)
        return cls(column, _checked_lengths([by_id[id] for id in ids], column), **hashes)

    @classmethod
    def from_entries(cls, entries: list[LengthEntry], **meta: Any) -> "LengthCache":
        return cls.from_lists(
            [entry.sample_id for entry in entries],
            [entry.length for entry in entries],
            [entry.group for entry in entries],
            [entry.axes for entry in entries],
            **meta,
        )

    @classmethod
    def from_lists(
        cls,
        ids: list[SampleId],
        lengths: list[int],
        groups: list[str | None],
        axes: Sequence[Any] = (),
        *,
        group_names: Sequence[str] = (),
        **meta: Any,
    ) -> "LengthCache":
        """Make a table of lists with one value per sample.

        If some samples have a group, the others are in the group "". Groups are in the order of `group_names` if those
        are exactly their names, else in alphabetical order.
        """
        column = _distinct(ids)
        codes, names = None, sorted({group or "" for group in groups})
        if names == sorted(group_names):
            names = list(group_names)
        if names not in ([], [""]):
            code = {name: number for number, name in enumerate(names)}
            codes = np.array([code[group or ""] for group in groups], np.int32)
        matrix = checked_axes(lengths, axes, column) if any(row is not None for row in axes) else None
        used = tuple(names) if codes is not None else ()
        return cls(column, _checked_lengths(lengths, column), groups=codes, group_names=used, axes=matrix, **meta)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "LengthCache":
        """Open a cache in either form.

        Of the columnar form, the headers are read; its columns are verified where they are read.

        Raises:
            DataError: The file is missing, or is not a length cache.
            DamagedError: It is truncated, altered or of another version.
        """
        path = Path(path)
        if path.is_dir():
            raise DataError(f"{path} is a directory, not a length cache")
        if not path.exists():
            raise DataError(f"{path} does not exist; build it with: brim lengths build -d DATA -t TOKENIZER -o {path}")
        if is_columns(path, FORMAT):
            return _from_columns(Columns(path, FORMAT, older=(FORMAT_1,)))
        from brim.data.lengths_jsonl import read_jsonl

        return read_jsonl(path)

    def verify(self) -> None:
        """Read all columns and check that they fit together.

        Raises:
            DamagedError: A file of columns is not as it was written.
        """
        for column in self.columns.values():
            _ = column.whole
        _ = self.axes
        if not self.ids.is_whole():
            raise DamagedError("the ids of a length table do not fit together; build it again")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write JSONL if the name ends in .jsonl, columns otherwise. Equal caches give equal bytes."""
        if Path(path).suffix == ".jsonl":
            from brim.data.lengths_jsonl import write_jsonl

            write_jsonl(self, path)
            return
        write_columns(path, FORMAT, {**self.meta, "rows": len(self)}, self.columns, blocks=True)

    @property
    def columns(self) -> dict[str, Column]:
        """The columns of the table by the names that they have in files."""
        found = {"length": self.length, **self.ids.columns, "group": self._groups, "axes": self._axes}
        return {name: column for name, column in found.items() if column is not None}

    def with_hashes(self, dataset_hash: str, tokenizer_hash: str) -> "LengthCache":
        """Return the same table with other fingerprints of the data and the tokenizer."""
        meta: dict[str, Any] = {
            "groups": self._groups,
            "group_names": self.group_names,
            "axes": self._axes,
            "source": self.source,
        }
        return LengthCache(self.ids, self.length, dataset_hash=dataset_hash, tokenizer_hash=tokenizer_hash, **meta)

    @property
    def meta(self) -> dict[str, Any]:
        """The metadata of the table: everything but its rows."""
        return {
            "tokenizer_hash": self.tokenizer_hash,
            "dataset_hash": self.dataset_hash,
            "group_names": list(self.group_names),
            "source": self.source,
        }

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of the table. It changes if an id, a length, a group, the data or the tokenizer changes.

        It covers the checksums of the columns, which the headers of a file hold, so computing it reads no column.
        """
        return fingerprint(
            rows=len(self),
            columns={name: column.identity for name, column in self.columns.items()},
            group_names=self.group_names if self._groups is not None else (),
            tokenizer=self.tokenizer_hash,
            dataset=self.dataset_hash,
        )

    def __len__(self) -> int:
        return len(self.length)

    def __iter__(self) -> Iterator[LengthEntry]:
        return (self.entry(row) for row in range(len(self)))

    def entry(self, row: int) -> LengthEntry:
        group = None if self._groups is None else self.group_names[self._groups[row]]
        axes = None if self.axes is None else tuple(self.axes[row].tolist())
        return LengthEntry(self.ids[row], int(self.length[row]), group, axes)

    def __contains__(self, id: SampleId) -> bool:
        return self.get(id) is not None

    def __getitem__(self, id: SampleId) -> int:
        return int(self.length[self.ids.row_of(id)])

    def get(self, id: SampleId, default: int | None = None) -> int | None:
        try:
            return self[id]
        except KeyError:
            return default

    def items(self) -> Iterator[tuple[SampleId, int]]:
        return zip(self.ids, self.lengths.tolist(), strict=True)

    def get_all(self) -> dict[SampleId, int]:
        """Return all lengths as a dict. For ten million samples that takes gigabytes; the column `lengths` does not."""
        return dict(self.items())


def _distinct(ids: list[SampleId]) -> Ids:
    column = Ids.of(ids)
    column.refuse_duplicate(lambda row: f"entry {row + 1}")
    return column


def _checked_lengths(values: list[Any], ids: Ids) -> NDArray[np.int32]:
    """Return lengths as an array, or raise an error that names the first sample whose length is not an integer from 0
    to `LONGEST`.
    """
    plain = all(type(value) is int for value in values)
    if plain and min(values, default=0) >= 0 and max(values, default=0) <= LONGEST:
        return np.array(values, np.int32)
    for row, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value <= LONGEST:
            raise not_a_length(ids[row], value)
    return np.array(values, np.int32)


def _in_range(values: NDArray[Any], ids: Ids) -> NDArray[np.int32]:
    """Return lengths as int32, or raise an error that names the first sample whose length is none."""
    if values.dtype == np.int32 and values.min(initial=0) >= 0:
        return values
    wrong = (values < 0) | (values > LONGEST) if values.dtype.kind in "iu" else np.ones(len(values), np.bool_)
    if wrong.any():
        row = int(wrong.argmax())
        raise not_a_length(ids[row], values[row].item())
    return values.astype(np.int32)


def not_a_length(id: SampleId, value: Any) -> DataError:
    """Return the error for a value that cannot be a length."""
    return DataError(f"sample {id!r} has length {value!r}; a length is an integer from 0 to {LONGEST}")


def checked_axes(lengths: list[Any], axes: Sequence[Any], ids: Sequence[SampleId] | Ids) -> NDArray[np.int32]:
    """Return the lengths along all axes, [samples, axes]. A sample without axes has its whole length along the first
    one.
    """
    for number, row in enumerate(axes):
        if row is not None and not isinstance(row, list | tuple):
            raise DataError(f"sample {ids[number]!r} has the axes {row!r}, which is not a list of lengths")
    rows: list[list[Any]] = [[length] if row is None else list(row) for length, row in zip(lengths, axes, strict=True)]
    matrix = np.zeros((len(rows), max(map(len, rows))), np.int32)
    for number, row in enumerate(rows):
        if any(type(value) is not int or not 0 <= value <= LONGEST for value in row) or sum(row) != lengths[number]:
            raise DataError(
                f"sample {ids[number]!r} has length {lengths[number]!r} and axes {row!r}, which must be integers "
                "that add up to it"
            )
        matrix[number, : len(row)] = row
    return matrix


def fingerprint_1(table: LengthCache) -> str:
    """The fingerprint that version 0.5 gave a table, which its files and plans hold."""
    groups: dict[str, Any] = {} if table.groups is None else {"groups": table.groups, "group_names": table.group_names}
    if table.axes is not None:
        groups["axes"] = table.axes
    return fingerprint(
        rows=len(table),
        lengths=table.lengths,
        tokenizer=table.tokenizer_hash,
        dataset=table.dataset_hash,
        **table.ids.to_columns(),
        **groups,
    )


def _flat(axes: NDArray[np.int32], lengths: Column) -> Column:
    _check_sums(axes, lengths.whole)
    return Column.of(np.ascontiguousarray(axes).reshape(-1))


def _check_sums(axes: NDArray[np.int32], lengths: NDArray[np.int32]) -> None:
    if axes.ndim != 2 or not np.array_equal(axes.sum(axis=1, dtype=np.int64), lengths):
        raise DataError(f"axes of shape {axes.shape} do not add up to the {len(lengths)} lengths")


def _from_columns(file: Columns) -> LengthCache:
    """Return the table of a file. Version 1 has no checksums of blocks: its columns are read at once, as it did."""
    if file.format == FORMAT_1:
        file.verify()
    meta, columns = file.meta, {name: file.column(name) for name in file}
    rows = meta["rows"]
    ids = Ids.from_columns(rows, columns)
    whole = all(len(columns[name]) == rows for name in ("length", "group") if name in columns)
    if not whole or not ids.has_whole_columns() or ("axes" in columns and len(columns["axes"]) % max(rows, 1)):
        raise DamagedError(f"{file.path} is damaged (its columns do not have {rows} rows); build it again")
    return LengthCache(
        ids,
        columns["length"],
        groups=columns.get("group"),
        group_names=tuple(meta["group_names"]),
        axes=columns.get("axes"),
        tokenizer_hash=meta["tokenizer_hash"],
        dataset_hash=meta["dataset_hash"],
        source=meta["source"],
    )
