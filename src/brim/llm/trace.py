"""A trace: a file of JSON lines that says what happened to every call.

Lines are only appended, by a thread of its own: whoever writes an event never waits for a disk. The file is readable by
its owner alone. A trace that cannot be written, such as on a full disk, never ends a call: the events that are lost are
counted, and `close` raises the error. Whatever is given to `write` ends up in the file, so secrets must not be.
"""

import atexit
import fcntl
import json
import os
import stat
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from brim.core.errors import BrimError, DamagedError, DataError, OptionError
from brim.core.temporary import unwritable

FORMAT = "brim.llm-trace/1"
HEADER = orjson.dumps({"format": FORMAT}) + b"\n"
INTERVAL = 1.0
"""Seconds after which an event is written at the latest."""
FULL = 1 << 16
"""Bytes of events that are written at once, without waiting."""
LONGEST_HEADER = 200
BLOCK = 1 << 16
"""Bytes that are read at once in search of the last line."""


class Trace:
    """A trace that is open for writing. `events` counts those given, `lost` those that could not be written."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a trace, to append to it if there is one. A line that a killed process left unfinished is removed.

        Raises:
            OptionError: The file cannot be written.
            DataError: The file is something else than a trace.
            DamagedError: The trace is of another version.
            BrimError: Another process, or another pool of this one, is writing the trace.
        """
        self.path = Path(path)
        self.events = 0
        self.lost = 0
        self._pid = os.getpid()
        self._buffer: list[bytes] = []
        self._size = 0  # bytes in the buffer
        self._closed = False
        self._failure: OSError | None = None
        self._changed = threading.Condition(threading.Lock())  # guards the buffer
        self._file = _opened(self.path)
        try:
            self._end = _prepared(self._file, self.path)
        except BaseException:
            os.close(self._file)
            raise
        self._thread = threading.Thread(target=self._write_until_closed, name="brim-llm-trace", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def write(self, event: Mapping[str, Any]) -> None:
        """Append one event, as a line of JSON.

        Raises:
            TypeError: It holds a value that JSON does not have.
            BrimError: The trace is closed, or was opened before a fork.
        """
        line = _line(event)
        if self._pid != os.getpid():
            raise BrimError(f"the trace {self.path} was opened by process {self._pid}, before a fork; open another one")
        with self._changed:
            if self._closed:
                raise BrimError(f"the trace {self.path} is closed")
            self.events += 1
            self._buffer.append(line)
            before, self._size = self._size, self._size + len(line)
            if before < FULL <= self._size:
                self._changed.notify_all()

    def close(self) -> None:
        """Write what is left, and close the file. A second call does nothing.

        Raises:
            BrimError: Some events could not be written.
        """
        if self._pid != os.getpid():
            return
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        atexit.unregister(self.close)
        self._thread.join()
        with suppress(OSError):
            fcntl.flock(self._file, fcntl.LOCK_UN)  # for forked children too, which share the handle
        os.close(self._file)
        if self._failure is not None:
            reason = self._failure.strerror or self._failure
            raise BrimError(
                f"{self.lost} of {self.events} events could not be written to the trace {self.path}: {reason}"
            )

    def __enter__(self) -> "Trace":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _write_until_closed(self) -> None:
        closed = False
        while not closed:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._size >= FULL, INTERVAL)
                closed = self._closed
                lines, self._buffer = self._buffer, []
                self._size = 0
            if lines:
                self._append(lines)

    def _append(self, lines: list[bytes]) -> None:
        """Write whole lines, or none of them."""
        data = memoryview(b"".join(lines))
        try:
            while data:
                data = data[os.write(self._file, data) :]
            self._end = os.lseek(self._file, 0, os.SEEK_END)
        except OSError as error:
            self.lost += len(lines)
            self._failure = error
            with suppress(OSError):
                os.ftruncate(self._file, self._end)  # the part of them that was written ends within a line


def read_trace(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Yield the events of a trace, in the order written. A last line that a kill left unfinished is skipped.

    Raises:
        DataError: The file cannot be read, or is something else.
        DamagedError: The trace is of another version, or a line is damaged.
    """
    try:
        with open(path, "rb") as file:
            _check_header(file.readline(LONGEST_HEADER), path)
            for number, line in enumerate(file, 2):
                if not line.endswith(b"\n"):
                    return
                try:
                    event = json.loads(line)
                except ValueError:
                    event = None
                if not isinstance(event, dict):
                    raise DamagedError(f"{os.fspath(path)}:{number}: the line is not a JSON object; remove the line")
                yield event
    except OSError as error:
        raise DataError(f"cannot read {os.fspath(path)}: {error.strerror or error}") from None


def _opened(path: Path) -> int:
    """Return a handle of the file, locked. It is made if there is none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Opening a pipe would otherwise wait for whoever reads it.
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o600)
    except OSError as error:
        raise unwritable(path, error) from None
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OptionError(f"cannot write the trace {path}: it is not a regular file")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise BrimError(
            f"the trace {path} is being written by another process or pool; wait for it to end, or choose another file"
        ) from None
    except OptionError:
        os.close(file)
        raise
    except OSError:  # a file system without locks
        pass
    return file


def _prepared(file: int, path: Path) -> int:
    """Make sure that the file is a trace that only its owner can read and that ends with a whole line.

    Returns its size. A file that is something else is left as it is.
    """
    try:
        size = os.fstat(file).st_size
        if size:
            _check_header(os.pread(file, LONGEST_HEADER, 0).split(b"\n")[0] + b"\n", path)
        os.fchmod(file, 0o600)
        if not size:
            return os.write(file, HEADER)
        end = _end_of_lines(file, size)
        os.ftruncate(file, end)
        return end
    except OSError as error:
        raise unwritable(path, error) from None


def _check_header(line: bytes, path: str | os.PathLike[str]) -> None:
    """Refuse a file that does not begin with the header of a trace of this version."""
    try:
        found = orjson.loads(line)["format"]
    except (ValueError, TypeError, KeyError, IndexError):
        found = None
    if found == FORMAT:
        return
    if isinstance(found, str) and found.startswith(FORMAT.split("/")[0] + "/"):
        raise DamagedError(
            f"the trace {os.fspath(path)} has the format {found!r}, and this version of brim reads {FORMAT}; choose "
            "another file"
        )
    raise DataError(f"{os.fspath(path)} is not a trace of brim; choose another file")


def _end_of_lines(file: int, size: int) -> int:
    """Return the number of bytes up to the end of the last whole line."""
    while size:
        start = max(0, size - BLOCK)
        at = os.pread(file, size - start, start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        size = start
    return 0


def _line(event: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(dict(event), option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:  # half of a surrogate pair in a text, which this library refuses
        return json.dumps(dict(event)).encode() + b"\n"
