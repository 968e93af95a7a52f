"""The input of a run: all rows of a data set, read through once before anything is asked.

That first reading counts the rows, takes their fingerprint and checks that each has the fields it needs. A mistake in
the last row is thus an error before the first question, and not after hours of answers. No row is kept in memory.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brim.core.errors import DataError
from brim.data.rows.open import open_source
from brim.data.rows.source import Source

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Input:
    """A data set whose rows were checked."""

    source: Source
    rows: int
    blank: int
    """Number of blank lines between the rows."""
    fingerprint: str

    def __iter__(self) -> Iterator[tuple[int, Row]]:
        """Yield the number and the fields of each row, in order, reading block by block."""
        number = 0
        for block in self.source.blocks():
            for row in self.source.read(block).rows:
                yield number, row
                number += 1

    def where(self, number: int) -> str:
        """Return the place of a row for messages, such as "prompts.jsonl:12"."""
        if self.source.kind == "jsonl" and not self.blank:  # the source would count the lines of the file
            return f"{self.source.path}:{number + 1}"
        return self.source.where(number)


def read_input(path: str | os.PathLike[str], *, check: Callable[[Row], None], reserved: tuple[str, ...] = ()) -> Input:
    """Open a data set and check all of its rows.

    Args:
        path: JSONL, Parquet, or a Hugging Face data set on disk.
        check: Raises DataError for a row that cannot be used.
        reserved: Names of the fields that the output adds, which no row may have.

    Raises:
        DataError: It cannot be read, has no rows, or a row is wrong; then the message begins with the row's place.
    """
    source = open_source(path)
    rows = 0
    blank = 0
    for block in source.blocks():
        read = source.read(block, raw=True)
        source.absorb(block, read.raw)
        for at, row in enumerate(read.rows):
            try:
                check(row)
                _check_reserved(row, reserved)
            except DataError as error:
                raise DataError(f"{source.where_in(block, at)}: {error}") from None
        rows += len(read.rows)
        blank += read.blank
    if not rows:
        raise DataError(f"{source.path} has no rows")
    return Input(source=source, rows=rows, blank=blank, fingerprint=source.fingerprint)


def _check_reserved(row: Row, reserved: tuple[str, ...]) -> None:
    for name in reserved:
        if name in row:
            raise DataError(
                f'the row has a field "{name}" already, which the answer would replace; choose another name with '
                "--response-field, or rename the field"
            )


def same_file(one: Path, other: Path) -> bool:
    """Return whether two paths name the same existing file or directory."""
    return one.exists() and other.exists() and os.path.samefile(one, other)
