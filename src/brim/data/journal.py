"""The journal of a build: a file of what has been measured so far, from which a build resumes after SIGKILL.

The file is a `brim.core.records.RecordFile`. A header record says which data and which tokenizer the records after it
belong to; when the data has grown between two runs, a new header is appended and everything before it stays valid. The
journal is removed when the output has been written.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from brim.core.fingerprint import array_bytes, canonical_json
from brim.core.records import RecordFile, records_path
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
    if records_path(output).exists():
        Journal(output).close(keep=False)


class Journal:
    """The journal of one output. The output is locked until `close`."""

    def __init__(self, output: Path) -> None:
        """Lock the output and open its journal.

        Raises:
            OptionError: The directory cannot be written to.
            BrimError: Another process is writing the output.
        """
        self._file = RecordFile(output, kinds=(b"H", b"M"))
        self._records = 0

    def recover(self) -> tuple[dict[str, Any] | None, list[Measured]]:
        """Return the last header and everything that was measured. Truncate the file after the last whole record."""
        header: dict[str, Any] | None = None
        found: list[Measured] = []
        for record in self._file.recover():
            if record.kind == b"H":
                header = orjson.loads(record.data)
            else:
                found.append(Measured.from_bytes(record.data))
        self._records = len(found)
        return header, found

    def restart(self) -> None:
        """Remove all records."""
        self._file.restart()
        self._records = 0

    def begin(self, header: dict[str, Any]) -> None:
        self._file.append(b"H", canonical_json(header))

    def append(self, measured: Measured) -> None:
        self._file.append(b"M", measured.to_bytes())
        self._records += 1

    def close(self, *, keep: bool) -> None:
        """Release the lock. The file stays only if `keep` is set and it has records to resume from."""
        self._file.close(keep=keep and self._records > 0)
