"""A file of records that are only appended, from which a run resumes after SIGKILL.

The file is beside the output it belongs to, `.<name>.journal`. Each record has its kind, its size and its checksum
before its bytes, so a partially written record is detected and truncated. A record is handed to the operating system
before `append` returns: it survives the process, but not a power failure. The output is locked while its record file is
open, so two runs of one output never mix. What the records mean is up to the caller.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import IO, NamedTuple

from brim.core.fingerprint import digest_bytes
from brim.core.lock import locked
from brim.core.temporary import unwritable

LONGEST_HEAD = 80
"""Bytes of the line before a record, at most: its kind, its size and its checksum."""


class Record(NamedTuple):
    """A whole record, and the byte offset at which it begins in the file."""

    kind: bytes
    data: bytes
    offset: int


def records_path(output: Path) -> Path:
    """Return the path of the record file of an output."""
    return output.parent / f".{output.name}.journal"


class RecordFile:
    """The record file of one output. The output is locked until `close`."""

    def __init__(self, output: Path, *, kinds: tuple[bytes, ...], private: bool = False) -> None:
        """Lock the output and open its record file.

        Args:
            kinds: The kinds of records, one letter each. A record of another kind counts as damage.
            private: Make the file readable by its owner only.

        Raises:
            OptionError: The directory cannot be written to.
            BrimError: Another process is writing the output.
        """
        self.path = records_path(output)
        self.discarded = 0
        """Bytes that `recover` truncated."""
        self._output = output
        self._kinds = kinds
        self._refused = False
        with ExitStack() as stack:
            stack.enter_context(locked(output))
            self._file = stack.enter_context(_opened(self.path, output, 0o600 if private else 0o666))
            self._held = stack.pop_all()

    def recover(self) -> Iterator[Record]:
        """Yield all whole records. After the last one, truncate what follows it; new records are appended there."""
        self._file.seek(0)
        end = 0
        while (record := self._next()) is not None:
            yield record
            end = self._file.tell()
        self.discarded = self._file.seek(0, os.SEEK_END) - end
        self._file.seek(end)
        self._file.truncate(end)

    def append(self, kind: bytes, data: bytes) -> int:
        """Write a record, hand it to the operating system, and return its byte offset.

        Raises:
            OptionError: The disk is full, or the file cannot be written for another reason.
        """
        offset = self._file.tell()
        try:
            self._file.write(b"%s %d %s\n" % (kind, len(data), digest_bytes(data).encode()) + data)
            self._file.flush()
        except OSError as error:
            self._refused = True
            raise unwritable(self._output, error) from None
        return offset

    def read(self, offset: int) -> Record:
        """Return the record that begins at an offset. `append` goes on at the end of the file."""
        handle = self._file.fileno()
        line = os.pread(handle, LONGEST_HEAD, offset).split(b"\n", 1)[0]
        kind, size, _ = line.split()
        return Record(kind, os.pread(handle, int(size), offset + len(line) + 1), offset)

    def restart(self) -> None:
        """Remove all records."""
        self._file.seek(0)
        self._file.truncate(0)

    def close(self, *, keep: bool) -> None:
        """Remove the file unless `keep` is set, and release the lock."""
        if not keep:
            self.path.unlink(missing_ok=True)
        # A record that a full disk refused is still in the buffer, and is refused again; `append` has reported it.
        with suppress(OSError) if self._refused else nullcontext():
            self._held.close()

    def _next(self) -> Record | None:
        offset = self._file.tell()
        parts = self._file.readline(LONGEST_HEAD).split()
        if len(parts) != 3 or parts[0] not in self._kinds or not parts[1].isdigit():
            return None
        data = self._file.read(int(parts[1]))
        return Record(parts[0], data, offset) if digest_bytes(data).encode() == parts[2] else None


def _opened(path: Path, output: Path, mode: int) -> IO[bytes]:
    try:
        return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, mode), "r+b")
    except OSError as error:
        raise unwritable(output, error) from None
