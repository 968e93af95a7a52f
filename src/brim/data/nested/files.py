"""Files that several processes read, each with handles of its own: detecting that a file was replaced, and a cache of
decoded data.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from brim.core.errors import DataError, MismatchError
from brim.core.fingerprint import new_hash

CACHE_BYTES = 256 << 20
"""Upper limit of the decoded data that a process caches, in bytes, for formats whose samples cannot be read singly."""

SPOTS, SPOT_BYTES = 256, 16 << 10

Stamp = tuple[int, int, int]
"""The inode, the size and the modification time of a file, which tell it from a file that replaced it."""


def stamp(descriptor: int) -> Stamp:
    """Return the stamp of an open file."""
    found = os.fstat(descriptor)
    return found.st_ino, found.st_size, found.st_mtime_ns


def changed(path: Path) -> MismatchError:
    return MismatchError(
        f"{path} is not the file that was opened: it was changed or replaced since; open the data set again"
    )


def gone(path: Path) -> DataError:
    return DataError(f"{path} does not exist any more; open the data set again")


def spot_digest(path: Path, expected: Stamp) -> str:
    """Return a digest of a file of which at most 4 MB are read: all of a small file; of a larger one its size and 256
    evenly spaced pieces.

    Other data of the same size gives another digest. A few changed bytes in a large file may not.

    Raises:
        MismatchError: The file has another stamp than the one expected.
    """
    hash, size = new_hash(), expected[1]
    hash.update(f"{size}\n".encode())
    try:
        with open(path, "rb") as file:
            if size <= SPOTS * SPOT_BYTES:
                hash.update(file.read(size))
            else:
                for spot in range(SPOTS):
                    file.seek((size - SPOT_BYTES) * spot // (SPOTS - 1))
                    hash.update(file.read(SPOT_BYTES))
            found = stamp(file.fileno())
    except FileNotFoundError:
        raise gone(path) from None
    if found != expected:
        raise changed(path)
    return hash.hexdigest()


class Recent:
    """A least-recently-used cache of up to `limit` bytes. It always keeps at least one value."""

    def __init__(self, limit: int = CACHE_BYTES) -> None:
        self._limit = limit
        self._values: dict[Any, tuple[Any, int]] = {}

    def get(self, key: Any, load: Callable[[], tuple[Any, int]]) -> Any:
        """Return the value of a key. If it is not cached, `load` returns it with its size in bytes."""
        entry = self._values.pop(key, None) or load()
        self._values[key] = entry
        total = 0
        for number, older in enumerate(reversed(list(self._values))):
            total += self._values.get(older, (None, 0))[1]  # another thread may have evicted it
            if number and total > self._limit:
                self._values.pop(older, None)
        return entry[0]
