"""JSONL: one JSON object on each line.

Rows are found by byte offset. Blank lines are skipped, but line numbers in errors are those of the file. A last line
without a newline is a row if it is whole JSON. If it is not, it was cut off while it was being written, and `torn`
decides whether that is an error or the line is skipped. A file is never held in memory: blocks and the index are made
by reading through it, and lines are counted only for an error.
"""

import os
import weakref
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from brim.core.errors import DataError
from brim.core.fingerprint import new_hash
from brim.data.rows.format import kind_of
from brim.data.rows.source import Block, Rows, Torn

BOM = b"\xef\xbb\xbf"
BLOCK_BYTES = 1 << 19
READ_BYTES = 1 << 22
TAIL_BYTES = 1 << 16  # the first attempt to find the last line; most are shorter
NEWLINE = 10


class JsonlSource:
    """A file of JSON lines. Positions are byte offsets."""

    kind = "jsonl"

    def __init__(self, path: Path, *, torn: Torn = "error") -> None:
        """Open a file and find the end of its last whole row.

        Raises:
            DataError: The last line is torn and `torn` is "error".
        """
        self.path = path
        self.size = path.stat().st_size
        self.end, self.torn = self._find_end(torn)
        self._hash: tuple[int, Any] = (0, new_hash())

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "size": self.size, "end": self.end, "torn": self.torn}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _hash=(0, new_hash()))

    def __len__(self) -> int:
        return len(self._starts)

    def row(self, number: int) -> dict[str, Any]:
        start, stop = self._bounds(number)
        line = os.pread(self._file, stop - start, start).split(b"\n", 1)[0]
        return self._parse(line, start)

    def where(self, number: int) -> str:
        return self._line_at(self._bounds(number)[0])

    def blocks(self, start: int = 0) -> Iterator[Block]:
        start = self._after_line(start) or start
        with open(self.path, "rb") as file:
            while start < self.end:
                stop = self.end
                if start + BLOCK_BYTES < self.end:
                    file.seek(start + BLOCK_BYTES - 1)
                    file.readline()
                    stop = min(file.tell(), self.end)
                yield Block(start, stop)
                start = stop

    def read(self, block: Block, *, raw: bool = False) -> Rows:
        data = self._bytes(block)
        lines = self._split(block, data)
        try:
            rows: list[Any] = [orjson.loads(line) for line in lines if line and not line.isspace()]
        except orjson.JSONDecodeError:
            rows = [None]
        if not all(type(row) is dict for row in rows):
            rows = [self._parse(line, start) for start, line in self._located(block) if line and not line.isspace()]
        return Rows(rows, len(lines) - len(rows), data if raw else b"")

    def where_in(self, block: Block, number: int) -> str:
        starts = [start for start, line in self._located(block) if line and not line.isspace()]
        return self._line_at(starts[number])

    @property
    def fingerprint(self) -> str:
        return self.digest(self.end)

    def digest(self, end: int) -> str:
        done, hash = self._hash if self._hash[0] <= end else (0, new_hash())
        for _, chunk in self._chunks(done, end):
            hash.update(chunk)
        self._hash = (end, hash)
        return hash.hexdigest()

    def absorb(self, block: Block, raw: bytes) -> None:
        if self._hash[0] > block.start:
            return
        # If rows were appended after a last line without a newline, the newline added to it lies between two blocks.
        self.digest(block.start)
        self._hash[1].update(raw)
        self._hash = (block.stop, self._hash[1])

    def starts_with(self, end: int, digest: str) -> bool:
        """Return whether the bytes before `end` have this digest, and their last line has not become longer since."""
        if not 0 <= end <= self.end or self.digest(end) != digest:
            return False
        return end == self.end or self._after_line(end) is not None

    def _after_line(self, position: int) -> int | None:
        """Return where the next line starts if a line ends at `position`, with or without its newline; else None."""
        if position == 0:
            return 0
        around = os.pread(self._file, 3, position - 1)
        if around[:1] == b"\n":
            return position
        return position + 1 if around[1:2] == b"\n" else position + 2 if around[1:] == b"\r\n" else None

    @cached_property
    def _file(self) -> int:
        """The file descriptor, read with `pread`, which uses no file position: safe after a fork, and in threads."""
        file = os.open(self.path, os.O_RDONLY)
        weakref.finalize(self, os.close, file)
        return file

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        """The byte offset of every row."""
        pieces: list[NDArray[np.int64]] = []
        opened = np.array([self._bom], np.int64)  # start of the line that the last chunk left unfinished
        for base, chunk in self._chunks(self._bom, self.end):
            data = np.frombuffer(chunk, np.uint8)
            begins = np.concatenate([opened, np.flatnonzero(data == NEWLINE) + (base + 1)])
            opened = begins[-1:]
            pieces.append(self._without_blank(begins[:-1]))
        if opened[0] < self.end:
            pieces.append(self._without_blank(opened))
        return np.concatenate(pieces) if pieces else np.empty(0, np.int64)

    def _without_blank(self, begins: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the starts of the lines that are not blank. Only lines that start with white space are examined."""
        if not len(begins):
            return begins
        base = int(begins[0])
        data = np.frombuffer(os.pread(self._file, int(begins[-1]) - base + 1, base), np.uint8)
        suspects = np.flatnonzero(data[begins - base] <= 32)
        blank = [k for k in suspects.tolist() if not self._line_from(int(begins[k])).strip()]
        return np.delete(begins, blank)

    def _line_from(self, start: int) -> bytes:
        line, size = b"", 64
        while b"\n" not in line and len(line) < self.end - start and not line.strip():
            line = os.pread(self._file, min(size, self.end - start), start)
            size *= 8
        return line.split(b"\n", 1)[0]

    def _bounds(self, number: int) -> tuple[int, int]:
        starts = self._starts
        if not -len(starts) <= number < len(starts):
            raise IndexError(f"row {number} of {len(starts)} in {self.path}")
        number %= len(starts)
        return int(starts[number]), int(starts[number + 1]) if number + 1 < len(starts) else self.end

    @cached_property
    def _bom(self) -> int:
        return len(BOM) if os.pread(self._file, len(BOM), 0) == BOM else 0

    def _bytes(self, block: Block) -> bytes:
        data = os.pread(self._file, block.stop - block.start, block.start)
        if len(data) < block.stop - block.start:
            raise DataError(f"{self.path} became shorter while it was being read; run again when nothing writes to it")
        return data

    def _split(self, block: Block, data: bytes) -> list[bytes]:
        if block.start == 0:
            data = data[self._bom :]
        lines = data.split(b"\n")
        return lines if lines[-1] else lines[:-1]

    def _located(self, block: Block) -> Iterator[tuple[int, bytes]]:
        start = block.start or self._bom
        for line in self._split(block, self._bytes(block)):
            yield start, line
            start += len(line) + 1

    def _parse(self, line: bytes, start: int) -> dict[str, Any]:
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise DataError(f"{self._line_at(start)}: {_complaint(line, error)}") from None
        if type(row) is not dict:
            raise DataError(
                f'{self._line_at(start)}: the row is {kind_of(row)}; it must be an object, such as {{"prompt": ..., '
                f'"response": ...}}'
            )
        return row

    def _line_at(self, start: int) -> str:
        before = sum(chunk.count(b"\n") for _, chunk in self._chunks(0, start))
        return f"{self.path}:{before + 1}"

    def _chunks(self, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
        while start < stop:
            chunk = os.pread(self._file, min(READ_BYTES, stop - start), start)
            if not chunk:
                raise DataError(
                    f"{self.path} became shorter while it was being read; run again when nothing writes to it"
                )
            yield start, chunk
            start += len(chunk)

    def _find_end(self, torn: Torn) -> tuple[int, int]:
        """Return the byte offset at which the last whole row ends, and the number of torn lines after it."""
        start = self._last_line()
        tail = os.pread(self._file, self.size - start, start)
        if start == 0:
            tail = tail.removeprefix(BOM)
        try:
            if tail.strip():
                orjson.loads(tail)
            return self.size, 0
        except orjson.JSONDecodeError:
            if torn == "skip":
                return start, 1
        raise DataError(
            f"{self._line_at(start)}: the last line is torn: it has no newline and is not whole JSON. If the file is "
            'still being written, wait; otherwise remove the line, or leave it out: torn="skip" in Python, --torn-line '
            "skip of brim lengths build"
        )

    def _last_line(self) -> int:
        """Return the byte offset after the last newline."""
        stop, size = self.size, TAIL_BYTES
        while stop > 0:
            start = max(0, stop - size)
            found = os.pread(self._file, stop - start, start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            stop, size = start, READ_BYTES
        return 0


def _complaint(line: bytes, error: orjson.JSONDecodeError) -> str:
    try:
        line.decode()
    except UnicodeDecodeError as wrong:
        return (
            f"invalid UTF-8 at byte {wrong.start + 1} of the line; convert the file: iconv -f LATIN1 -t UTF-8 (if "
            "that is what it is)"
        )
    reason = str(error).split(": line")[0]
    return f"not JSON ({reason}); a row is one JSON object on one line"
