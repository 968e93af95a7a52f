"""The base class of Parquet files and Hugging Face data sets: rows of a table, read by row number.

The digest is over the rows as JSON with sorted keys, not over the bytes of the files: a table that is written again
with more rows at its end still starts with the same rows, even if its row groups and compression have changed.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from brim.core.fingerprint import new_hash
from brim.data.rows.source import Block, Rows

BLOCK_BYTES = 2 << 20


class TableSource(ABC):
    """A source whose positions are row numbers. Subclasses set `path`, `size` and `end`."""

    kind: str
    path: Path
    size: int
    end: int
    torn = 0
    _hash: tuple[int, Any] | None = None

    @abstractmethod
    def rows(self, start: int, stop: int) -> list[dict[str, Any]]:
        """Return the rows from `start` up to `stop`, as Python values."""

    @abstractmethod
    def where(self, number: int) -> str: ...

    def __len__(self) -> int:
        return self.end

    def row(self, number: int) -> dict[str, Any]:
        if not -self.end <= number < self.end:
            raise IndexError(f"row {number} of {self.end} in {self.path}")
        number %= self.end
        return self.rows(number, number + 1)[0]

    def blocks(self, start: int = 0) -> Iterator[Block]:
        for first in range(start, self.end, self._block_rows):
            yield Block(first, min(first + self._block_rows, self.end))

    def read(self, block: Block, *, raw: bool = False) -> Rows:
        rows = self.rows(block.start, block.stop)
        return Rows(rows, raw=_as_json(rows) if raw else b"")

    def where_in(self, block: Block, number: int) -> str:
        return self.where(block.start + number)

    @property
    def fingerprint(self) -> str:
        return self.digest(self.end)

    def digest(self, end: int) -> str:
        done, hash = self._hash if self._hash is not None and self._hash[0] <= end else (0, new_hash())
        for first in range(done, end, self._block_rows):
            hash.update(_as_json(self.rows(first, min(first + self._block_rows, end))))
        self._hash = (end, hash)
        return hash.hexdigest()

    def absorb(self, block: Block, raw: bytes) -> None:
        done, hash = self._hash if self._hash is not None else (0, new_hash())
        if done == block.start:
            hash.update(raw)
            self._hash = (block.stop, hash)

    def starts_with(self, end: int, digest: str) -> bool:
        return 0 <= end <= self.end and self.digest(end) == digest

    @property
    def _block_rows(self) -> int:
        return max(16, min(1000, BLOCK_BYTES * self.end // max(self.size, 1)))


def _as_json(rows: list[dict[str, Any]]) -> bytes:
    """Return the bytes of rows that the digest covers: JSON lines with sorted keys."""
    options = orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE
    return b"".join(orjson.dumps(row, default=_plain, option=options) for row in rows)


def _plain(value: Any) -> Any:
    """Convert a value that JSON cannot represent: bytes to hexadecimal, others (decimals, images) to their `repr`."""
    return value.hex() if isinstance(value, bytes) else repr(value)
