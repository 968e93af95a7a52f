"""The journal of a build: a file of what has been measured so far, from which a build resumes after SIGKILL.

The file is beside the output, `.<name>.journal`, and its records are only appended. Each record has its size and
checksum before its bytes, so a partially written record is detected and truncated. A header record says which data and
which tokenizer the records after it belong to; when the data has grown between two runs, a new header is appended and
everything before it stays valid. The output is locked while a build has its journal open: two builds of one output
never mix. The journal is removed when the output has been written.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import orjson
from numpy.typing import NDArray

from brim.core.fingerprint import array_bytes, canonical_json, digest_bytes
from brim.core.lock import locked
from brim.core.temporary import unwritable
from brim.data.rows.row_ids import IdBlock

FORMAT = "brim.journal/1"


@dataclass(frozen=True, slots=True)
class Measured:
    """The lengths, ids and groups of the rows of a source from position `start` up to `stop`."""

    start: int
    stop: int
    blank: int
    lengths: NDArray[np.int32]
    ids: IdBlock
    groups: list[str] | None = None

    def to_bytes(self) -> bytes:
        columns = {"lengths": self.lengths, "numbers": self.ids.numbers, "ends": self.ids.ends}
        data = {name: bytes(array_bytes(column)) for name, column in columns.items() if column is not None}
        sizes = {name: len(column) for name, column in data.items()} | {"text": len(self.ids.text)}
        head = {"start": self.start, "stop": self.stop, "blank": self.blank, "sizes": sizes, "groups": self.groups}
        return b"".join([orjson.dumps(head), b"\n", *data.values(), self.ids.text])

    @classmethod
    def from_bytes(cls, record: bytes) -> "Measured":
        line, data = record.split(b"\n", 1)
        head = orjson.loads(line)
        parts: dict[str, bytes] = {}
        at = 0
        for name, size in head["sizes"].items():
            parts[name] = data[at : at + size]
            at += size
        columns = {
            name: np.frombuffer(parts[name], "<i8").astype(np.int64) for name in ("numbers", "ends") if name in parts
        }
        ids = IdBlock(numbers=columns.get("numbers"), text=parts["text"], ends=columns.get("ends"))
        lengths = np.frombuffer(parts["lengths"], "<i4").astype(np.int32)
        return cls(head["start"], head["stop"], head["blank"], lengths, ids, head["groups"])


def discard_journal(output: Path) -> None:
    """Remove the journal of a build that was killed after it wrote its output."""
    if _beside(output).exists():
        Journal(output).close(keep=False)


def _beside(output: Path) -> Path:
    return output.parent / f".{output.name}.journal"


class Journal:
    """The journal of one output. The output is locked until `close`."""

    def __init__(self, output: Path) -> None:
        """Lock the output and open its journal.

        Raises:
            OptionError: The directory cannot be written to.
            BrimError: Another process is writing the output.
        """
        self.path = _beside(output)
        self._records = 0
        with ExitStack() as stack:
            stack.enter_context(locked(output))
            self._file = stack.enter_context(_opened(self.path, output))
            self._held = stack.pop_all()

    def recover(self) -> tuple[dict[str, Any] | None, list[Measured]]:
        """Return the last header and everything that was measured. Truncate the file after the last whole record."""
        header: dict[str, Any] | None = None
        found: list[Measured] = []
        end = 0
        for kind, record, after in self._read():
            if kind == b"H":
                header = orjson.loads(record)
            else:
                found.append(Measured.from_bytes(record))
            end = after
        self._file.truncate(end)
        self._file.seek(end)
        self._records = len(found)
        return header, found

    def restart(self) -> None:
        """Remove all records."""
        self._file.truncate(0)
        self._file.seek(0)
        self._records = 0

    def begin(self, header: dict[str, Any]) -> None:
        self._write(b"H", canonical_json(header))

    def append(self, measured: Measured) -> None:
        self._write(b"M", measured.to_bytes())
        self._records += 1

    def close(self, *, keep: bool) -> None:
        """Release the lock. The file stays only if `keep` is set and it has records to resume from."""
        if not (keep and self._records):
            self.path.unlink(missing_ok=True)
        self._held.close()

    def _write(self, kind: bytes, record: bytes) -> None:
        self._file.write(b"%s %d %s\n" % (kind, len(record), digest_bytes(record).encode()) + record)
        self._file.flush()

    def _read(self) -> Iterator[tuple[bytes, bytes, int]]:
        self._file.seek(0)
        while True:
            parts = self._file.readline(80).split()
            if len(parts) != 3 or parts[0] not in (b"H", b"M") or not parts[1].isdigit():
                return
            record = self._file.read(int(parts[1]))
            if digest_bytes(record).encode() != parts[2]:
                return
            yield parts[0], record, self._file.tell()


def _opened(path: Path, output: Path) -> IO[bytes]:
    try:
        return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
    except OSError as error:
        raise unwritable(output, error) from None
