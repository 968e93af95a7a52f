"""Nested samples in Parquet: a file, or a directory of files in natural order of their names. A row is a sample.

`brim.data.nested.arrow` defines the meaning of the columns. Rows cannot be read one by one: a row group is decoded as a
whole, and cached while there is room. Reading large row groups in random order is slow; `write_nested("samples.h5",
open_nested("samples.parquet"))` makes a file for which it is not. Parquet itself is not written here: its columns have
one type for all rows, which nested samples need not have.
"""

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import DataError, did_you_mean, unreadable
from brim.core.extras import need
from brim.core.fingerprint import fingerprint
from brim.data.ids import Ids, not_an_id
from brim.data.lengths import LengthCache
from brim.data.nested.arrow import StructColumn
from brim.data.nested.columns import Tally
from brim.data.nested.files import Recent, Stamp, changed, gone, spot_digest, stamp
from brim.data.nested.source import NestedSource
from brim.data.nested.structure import ID, Structure


class NestedParquetSource(NestedSource):
    """Rows of Parquet files.

    The fingerprint covers the name of the id column and the bytes of the files; of a file larger than 4 MB, its size
    and 256 pieces. The same rows with another compression or in other row groups have another fingerprint.
    """

    pickled = ("path", "_files", "_stamps", "_id_field", "_groups")
    _fingerprint: str | None = None
    _ids: Ids | None = None

    def __init__(self, path: Path, files: Sequence[Path], *, id_field: str | None = None) -> None:
        """Open the files and read their metadata.

        Raises:
            DataError: A file is not readable as Parquet, has a column twice, or no column `id_field`.
        """
        self.path, self._files = path, list(files)
        self._stamps: dict[int, Stamp] = {}
        self._id_field = self._named_by(id_field)
        self._groups = self._row_groups()

    def __len__(self) -> int:
        return self._groups[-1][0]

    @property
    def ids(self) -> Ids:
        if self._ids is None:
            self._ids = Ids.rows(len(self)) if self._id_field is None else self._read_ids(self._id_field)
        return self._ids

    @property
    def fingerprint(self) -> str:
        if self._fingerprint is None:
            self._fingerprint = fingerprint(
                files=[spot_digest(file, self._stamps[number]) for number, file in enumerate(self._files)],
                id_field=self._id_field,
            )
        return self._fingerprint

    def _measure(self) -> LengthCache:
        tally = Tally()
        for number in range(len(self._groups) - 1):
            profile = self._load(number)[0].profile()
            tally.add([Structure(node) for node in profile.nodes], profile.kinds, profile.lengths)
        return tally.table(self.ids, self.fingerprint)

    def _read(self, row: int) -> dict[str, Any]:
        number = bisect_right(self._groups, row, key=lambda group: group[0]) - 1
        column: StructColumn = self._here.setdefault("recent", Recent()).get(number, lambda: self._load(number))
        try:
            return {ID: self.ids[row], **column.value(row - self._groups[number][0])}
        except UnicodeDecodeError as error:
            raise unreadable(self._files[self._groups[number][1]], "Parquet", error) from None

    def _load(self, number: int) -> tuple[StructColumn, int]:
        """Return a decoded row group and its size in bytes."""
        _, file, group = self._groups[number]
        table = self._decode(file, group, None)
        names = [name for name in table.column_names if name != self._id_field]
        if ID in names:
            raise DataError(
                f"{self._files[file]}: the column {ID!r} names samples, and so does {self._id_field!r}; rename or "
                "drop one"
            )
        arrow = need("pyarrow", extra="hf", user="brim.data.nested.parquet")
        columns = [_whole(arrow, table.column(name)) for name in names]
        fields = [arrow.field(name, column.type) for name, column in zip(names, columns, strict=True)]
        rows = (
            arrow.StructArray.from_arrays(columns, fields=fields)
            if columns
            else arrow.array([{}] * table.num_rows, arrow.struct([]))
        )
        first = self._first_in_file(number)
        return StructColumn(rows, "", lambda row: f"{self._files[file]}: row {first + row}"), table.nbytes

    def _first_in_file(self, number: int) -> int:
        first, file, _ = self._groups[number]
        return first - next(start for start, other, _ in self._groups if other == file)

    def _decode(self, file: int, group: int, columns: list[str] | None) -> Any:
        opened = self._opened(file)
        try:
            table = opened.read_row_group(group, columns=columns, use_threads=False)
        except (OSError, ValueError, NotImplementedError, MemoryError) as error:
            self._check(file)
            raise unreadable(self._files[file], "Parquet", error) from None
        self._check(file)
        return table

    def _check(self, file: int) -> None:
        """Check that a file was not overwritten since it was opened: its row groups would hold other rows."""
        descriptor: int = self._here[f"handle {file}"].fileno()
        if self._stamps.setdefault(file, stamp(descriptor)) != stamp(descriptor):
            raise changed(self._files[file])

    def _opened(self, file: int) -> Any:
        here, name = self._here, f"file {file}"
        if name not in here:
            arrow = need("pyarrow", extra="hf", user="brim.data.nested.parquet")
            parquet = need("pyarrow.parquet", extra="hf", user="brim.data.nested.parquet")
            try:
                here[f"handle {file}"] = handle = arrow.OSFile(str(self._files[file]))
                self._check(file)
                opened = parquet.ParquetFile(handle, page_checksum_verification=True)
                _ = opened.schema_arrow
            except FileNotFoundError:
                raise gone(self._files[file]) from None
            except (OSError, ValueError, NotImplementedError) as error:
                raise unreadable(self._files[file], "Parquet", error) from None
            here[name] = opened
        return here[name]

    def _named_by(self, id_field: str | None) -> str | None:
        wanted = id_field or ID
        columns = [list(self._opened(file).schema_arrow.names) for file in range(len(self._files))]
        for file, names in zip(self._files, columns, strict=True):
            if len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise DataError(
                    f"{file} has the column {twice!r} more than once; keys come once: rename or drop the others"
                )
        without = [number for number, names in enumerate(columns) if wanted not in names]
        if id_field is None and len(without) == len(columns):
            return None
        if without:
            names = columns[without[0]]
            raise DataError(
                f"{self._files[without[0]]} has no column {wanted!r} (columns: "
                f"{', '.join(names)}).{did_you_mean(wanted, names)}"
            )
        return wanted

    def _row_groups(self) -> list[tuple[int, int, int]]:
        """Return for each row group that is not empty: its first row, the index of its file, its index in the file. The
        last entry has the number of all rows.
        """
        groups: list[tuple[int, int, int]] = []
        first = 0
        for file in range(len(self._files)):
            metadata = self._opened(file).metadata
            for number in range(metadata.num_row_groups):
                if rows := metadata.row_group(number).num_rows:
                    groups.append((first, file, number))
                    first += rows
        if not first:
            raise DataError(f"{self.path} has no rows")
        return [*groups, (first, -1, -1)]

    def _read_ids(self, field: str) -> Ids:
        arrow = need("pyarrow", extra="hf", user="brim.data.nested.parquet")
        parts: list[NDArray[Any] | list[str]] = []
        for number, (_, file, group) in enumerate(self._groups[:-1]):
            column = _whole(arrow, self._decode(file, group, [field]).column(field))
            if arrow.types.is_dictionary(column.type):
                column = column.dictionary_decode()
            where = f"{self._files[file]}: row {self._first_in_file(number)}"
            if not (
                arrow.types.is_integer(column.type)
                or arrow.types.is_string(column.type)
                or arrow.types.is_large_string(column.type)
            ):
                raise not_an_id(f"{where}: the column {field!r} is of type {column.type}")
            if column.null_count:
                row = self._first_in_file(number) + int(
                    np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0]
                )
                raise not_an_id(f"{self._files[file]}: row {row}: the id {field!r} is null")
            parts.append(column.to_numpy() if arrow.types.is_integer(column.type) else column.to_pylist())
        if all(isinstance(part, np.ndarray) and part.dtype != np.uint64 for part in parts):
            return Ids.integers(np.concatenate(parts).astype(np.int64))
        return Ids.of(id for part in parts for id in (part.tolist() if isinstance(part, np.ndarray) else part))


def _whole(arrow: Any, column: Any) -> Any:
    """Return a column of several chunks as one array."""
    return (
        column.chunk(0)
        if column.num_chunks == 1
        else arrow.concat_arrays(column.chunks)
        if column.num_chunks
        else column.combine_chunks()
    )
