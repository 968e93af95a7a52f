"""Parquet: one file, or a directory of files that are read one after the other in the order of their names.

At most one decoded row group is held in memory, so files with row groups of moderate size are read in little memory.
"""

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from brim.core.errors import unreadable
from brim.core.extras import need
from brim.data.rows.table import TableSource


class ParquetSource(TableSource):
    """Rows of Parquet files. Row numbers in errors count from 0 inside each file."""

    kind = "parquet"

    def __init__(self, path: Path, files: Sequence[Path]) -> None:
        """Open the files and read their metadata.

        Raises:
            DataError: A file is not readable as Parquet.
        """
        self.path, self.files = path, list(files)
        self.size = sum(file.stat().st_size for file in self.files)
        self.end = self._groups[-1][0]
        self._held: tuple[int, Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return (ParquetSource, (self.path, self.files))

    def rows(self, start: int, stop: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        firsts = [first for first, _, _ in self._groups]
        while start < stop:
            number = bisect_right(firsts, start) - 1
            first, after = firsts[number], min(stop, firsts[number + 1])
            found += self._group(number).slice(start - first, after - start).to_pylist()
            start = after
        return found

    def where(self, number: int) -> str:
        number %= self.end
        file = max(k for k, first in enumerate(self._file_starts) if first <= number)
        return f"{self.files[file]}: row {number - self._file_starts[file]}"

    @cached_property
    def _open(self) -> list[Any]:
        parquet = need("pyarrow.parquet", extra="hf", user="brim.data.rows.parquet")
        opened: list[Any] = []
        for file in self.files:
            try:
                opened.append(parquet.ParquetFile(file))
            except (OSError, ValueError) as error:
                raise unreadable(file, "Parquet", error) from None
        return opened

    @cached_property
    def _groups(self) -> list[tuple[int, int, int]]:
        """For each row group that is not empty: its first row, the index of its file, its index in the file. The last
        entry has the number of all rows.
        """
        groups: list[tuple[int, int, int]] = []
        first = 0
        for file, opened in enumerate(self._open):
            for number in range(opened.metadata.num_row_groups):
                rows = opened.metadata.row_group(number).num_rows
                if rows:
                    groups.append((first, file, number))
                    first += rows
        return [*groups, (first, -1, -1)]

    @cached_property
    def _file_starts(self) -> list[int]:
        starts = [0]
        for opened in self._open[:-1]:
            starts.append(starts[-1] + opened.metadata.num_rows)
        return starts

    def _group(self, number: int) -> Any:
        if self._held is None or self._held[0] != number:
            _, file, group = self._groups[number]
            try:
                self._held = (number, self._open[file].read_row_group(group))
            except (OSError, ValueError) as error:
                raise unreadable(self.files[file], "Parquet", error) from None
        return self._held[1]
