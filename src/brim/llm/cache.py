"""Keep the answers of models on disk, and find them again by the key of their call.

A SQLite file in WAL mode, which several processes may use at once. It holds keys and answers; prompts are not stored.
Every answer has a checksum, so a damaged file gives an error or a miss, never another answer. Reading is direct.
Writing is queued and done by a thread of its own, so that an event loop never waits for a disk; an answer that is
queued is found at once. A killed process loses at most what it queued in the last moments.

The file is readable by its owner alone. It grows to about `max_bytes`, then the least recently used answers are
evicted. Pitfall: a cache belongs to the process that opened it. After a fork the child opens its own.
"""

import atexit
import ctypes
import os
import sqlite3
import threading
import weakref
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from brim.core.errors import BrimError, DamagedError, OptionError
from brim.core.options import one_of
from brim.llm.cache_entry import from_bytes, to_bytes
from brim.llm.cache_file import ADVICE, DAMAGE, file_error, open_to_read, open_to_write
from brim.llm.call import Answer
from brim.llm.config import CACHE_MODES, CacheMode

KEY_BYTES = 16
OVERHEAD = 64
"""Bytes that an entry takes beside its value: key, index entries, sizes. Approximate."""
LINGER = 0.02
"""Seconds that a queued answer waits for others to share its transaction."""
RECENCY_STEPS = 16
"""A hit renews the recency of an entry only after this share of `max_bytes` was written since it was last renewed."""
MOST_RENEWALS = 4096
"""Renewals that are collected before they are written without a new answer."""
LOOKUPS = 256
"""Keys in one query."""

_FIND = "SELECT key, value, used FROM answers WHERE key "
_INSERT = """INSERT INTO answers (key, value, size, used) VALUES (?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET value = excluded.value, size = excluded.size, used = excluded.used"""


class Cache:
    """Answers on disk.

    The counters are those of this object: `hits` and `misses` of lookups, `stored` answers, answers `evicted` (among
    them those that are larger than the whole cache), and answers `unstored` because writing failed. `bytes` is the size
    of all answers in the file when it was last read or written.
    """

    def __init__(self, path: str | os.PathLike[str], *, mode: CacheMode = "write", max_bytes: int = 1 << 30) -> None:
        """Open the cache.

        Args:
            path: The file. In mode "write" it is made if there is none.
            mode: "write" finds and stores answers. "read" and "replay" find them and change nothing; under "replay" a
                pool asks no server. "off" does neither, and opens no file.
            max_bytes: Size of all answers above which the least recently used are evicted. The file is a little larger,
                and does not shrink.

        Raises:
            OptionError: An option is wrong, there is no file to read, or the file cannot be written.
            DataError: The file is not a cache.
            DamagedError: The file is damaged, or of another version.
        """
        one_of("mode", mode, CACHE_MODES)
        if type(max_bytes) is not int or max_bytes < 1:
            raise OptionError(f"max_bytes must be a positive integer, got {max_bytes!r}")
        self.path = Path(path)
        self.mode: CacheMode = mode
        self.max_bytes = max_bytes
        self.hits = 0
        self.misses = 0
        self.stored = 0
        self.evicted = 0
        self.unstored = 0
        self.bytes = 0
        self._written = 0  # bytes ever written to the file; the clock of recency
        self._pid = os.getpid()
        self._closed = False
        self._hurry = False
        self._failure: BrimError | None = None
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition(threading.Lock())  # guards all that follows
        self._queued: dict[bytes, bytes] = {}
        self._writing: dict[bytes, bytes] = {}
        self._renewed: set[bytes] = set()
        self._reader: sqlite3.Connection | None = None
        self._writer: sqlite3.Connection | None = None
        if mode != "off":
            self._open()

    def get(self, key: bytes) -> Answer | None:
        """Return the answer to a call, by `Call.key()`, or None.

        Raises:
            DamagedError: The answer, or the file, is damaged.
        """
        return self.get_many((key,))[0]

    def get_many(self, keys: Iterable[bytes]) -> list[Answer | None]:
        """Return the answers to calls, in their order, with None for those that are not stored.

        Raises:
            DamagedError: An answer, or the file, is damaged.
        """
        self._check_usable()
        keys = list(keys)
        if self._reader is None:
            self.misses += len(keys)
            return [None] * len(keys)
        with self._changed:
            values = [self._queued.get(key) or self._writing.get(key) for key in keys]
            missing = [key for key, value in zip(keys, values, strict=True) if value is None]
            found = self._look_up(self._reader, missing)
        answers = [self._answer(key, value or found.get(key)) for key, value in zip(keys, values, strict=True)]
        missed = answers.count(None)
        self.misses += missed
        self.hits += len(keys) - missed
        return answers

    def put(self, key: bytes, answer: Answer) -> None:
        """Queue an answer to be stored, in mode "write"; in the others nothing happens.

        Only complete answers belong here. A failure to write does not show here: `flush` and `close` raise it.
        """
        if self._writer is None:
            return
        self._check_usable()
        if len(key) != KEY_BYTES:
            raise OptionError(f"a key has {KEY_BYTES} bytes, got {len(key)}")
        value = to_bytes(key, answer)
        with self._changed:
            self._queued[key] = value
            if len(self._queued) == 1:
                self._wake()

    def flush(self) -> None:
        """Wait until everything that is queued has been written.

        Raises:
            BrimError: Some answers could not be stored. It is raised once.
        """
        self._check_usable()
        with self._changed:
            self._drain()
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Write what is queued, and close the file. A second call does nothing.

        Raises:
            BrimError: Some answers could not be stored.
        """
        if self._closed or os.getpid() != self._pid:
            return
        atexit.unregister(self.close)
        with self._changed:
            self._drain()
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        _open_caches.discard(self)
        self._close_connections()
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> "Cache":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _open(self) -> None:
        try:
            if self.mode == "write":
                self._writer = open_to_write(self.path)
            self._reader = open_to_read(self.path)
            self._read_totals(self._reader)
        except BaseException:
            self._close_connections()
            raise
        _open_caches.add(self)
        atexit.register(self.close)

    def _close_connections(self) -> None:
        for connection in self.connections():
            connection.close()

    def _check_usable(self) -> None:
        if self._closed:
            raise BrimError(f"the cache {self.path} is closed")
        if os.getpid() != self._pid:
            raise BrimError(
                f"the cache {self.path} was opened by process {self._pid}, before a fork; open it again in this process"
            )

    def connections(self) -> list[sqlite3.Connection]:
        """Return the open connections to the file."""
        return [connection for connection in (self._reader, self._writer) if connection is not None]

    def _read_totals(self, connection: sqlite3.Connection) -> None:
        try:
            totals: dict[str, Any] = dict(connection.execute("SELECT name, value FROM meta").fetchall())
            self.bytes, self._written = int(totals["bytes"]), int(totals["written"])
        except DAMAGE as error:
            raise file_error(self.path, error) from None

    def _look_up(self, reader: sqlite3.Connection, keys: list[bytes]) -> dict[bytes, bytes]:
        """Return the stored values by key, and remember which entries need their recency renewed."""
        old = self._written - self.max_bytes // RECENCY_STEPS
        found: dict[bytes, bytes] = {}
        try:
            for start in range(0, len(keys), LOOKUPS):
                some = keys[start : start + LOOKUPS]
                how = "= ?" if len(some) == 1 else f"IN ({', '.join('?' * len(some))})"
                for key, value, used in reader.execute(_FIND + how, some).fetchall():
                    found[key] = value
                    if used < old and self._writer is not None:
                        self._renewed.add(key)
        except DAMAGE as error:
            raise file_error(self.path, error) from None
        if len(self._renewed) >= MOST_RENEWALS:
            self._wake()
        return found

    def _answer(self, key: bytes, value: object) -> Answer | None:
        if value is None:
            return None
        answer = from_bytes(key, value) if isinstance(value, bytes) else None
        if answer is None:
            raise DamagedError(f"the cache {self.path} is damaged (the checksum of an answer differs); {ADVICE}")
        return answer

    def _wake(self) -> None:
        """Tell the writing thread that there is work, and start it if need be. The lock is held."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_until_closed, name="brim-llm-cache", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _drain(self) -> None:
        """Wait until nothing is queued. The lock is held, and released while it waits."""
        self._hurry = True
        if self._queued or self._renewed:
            self._wake()
        while self._queued or self._writing or self._renewed:
            if self._thread is None or not self._thread.is_alive():
                self.unstored += len(self._queued) + len(self._writing)
                self._failure = BrimError(f"the thread that writes the cache {self.path} has ended too early")
                break
            self._changed.wait(1.0)
        self._hurry = False

    def _write_until_closed(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work)
                if self._closed:
                    return
                self._changed.wait_for(lambda: self._hurry, LINGER)
                self._writing, self._queued = self._queued, {}
                renewed, self._renewed = self._renewed, set()
            failure = self._try_to_store(self._writing, renewed)
            with self._changed:
                if failure is not None:
                    self.unstored += len(self._writing)
                    self._failure = failure
                self._writing = {}
                self._changed.notify_all()

    def _has_work(self) -> bool:
        many = len(self._renewed) >= MOST_RENEWALS
        return self._closed or bool(self._queued) or many or (self._hurry and bool(self._renewed))

    def _try_to_store(self, values: dict[bytes, bytes], renewed: set[bytes]) -> BrimError | None:
        """Write all of it in one transaction. A failure is returned, and then nothing of it is stored."""
        assert self._writer is not None
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            self._read_totals(self._writer)
            stored = self._add(self._writer, values, renewed)
            evicted = self._evict(self._writer)
            totals = [(self.bytes, "bytes"), (self._written, "written")]
            self._writer.executemany("UPDATE meta SET value = ? WHERE name = ?", totals)
            self._writer.execute("COMMIT")
        except (BrimError, *DAMAGE) as error:
            with suppress(sqlite3.Error):
                self._writer.execute("ROLLBACK")
            return file_error(self.path, error)
        self.stored += stored
        self.evicted += evicted + len(values) - stored
        return None

    def _add(self, writer: sqlite3.Connection, values: dict[bytes, bytes], renewed: set[bytes]) -> int:
        """Insert the answers that are not larger than the whole cache, and return their number."""
        writer.executemany("UPDATE answers SET used = ? WHERE key = ?", [(self._written, key) for key in renewed])
        rows: list[tuple[bytes, bytes, int, int]] = []
        for key, value in values.items():
            size = len(value) + OVERHEAD
            if size > self.max_bytes:
                continue
            before = writer.execute("SELECT size FROM answers WHERE key = ?", (key,)).fetchall()
            self.bytes += size - (before[0][0] if before else 0)
            self._written += size
            rows.append((key, value, size, self._written))
        writer.executemany(_INSERT, rows)
        return len(rows)

    def _evict(self, writer: sqlite3.Connection) -> int:
        """Delete the least recently used answers until the others fit, and return their number."""
        doomed: list[tuple[int]] = []
        if self.bytes > self.max_bytes:
            for row, size in writer.execute("SELECT rowid, size FROM answers ORDER BY used, rowid"):
                doomed.append((row,))
                self.bytes -= size
                if self.bytes <= self.max_bytes:
                    break
            writer.executemany("DELETE FROM answers WHERE rowid = ?", doomed)
        return len(doomed)


_open_caches: "weakref.WeakSet[Cache]" = weakref.WeakSet()


def _keep_connections_of_parent() -> None:
    """Keep a forked child from ever closing the connections that it inherited, which could damage the file."""
    for cache in list(_open_caches):
        for connection in cache.connections():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


os.register_at_fork(after_in_child=_keep_connections_of_parent)
