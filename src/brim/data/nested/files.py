"""Files that several processes read, each through its own handles: is it still the same file, and what of it is kept in
memory.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from brim.core.errors import DataError, MismatchError
from brim.core.fingerprint import new_hash

CACHE_BYTES = 256 << 20
"""Decoded data that a process keeps for the next samples, where a sample cannot be read by itself."""

SPOTS, SPOT_BYTES = 256, 16 << 10

Stamp = tuple[int, int, int]
"""The inode, the size and the time of the last change of a file: what tells it from one that took its place."""


def stamp(descriptor: int) -> Stamp:
    """Of a file that is open."""
    found = os.fstat(descriptor)
    return found.st_ino, found.st_size, found.st_mtime_ns


def changed(path: Path) -> MismatchError:
    return MismatchError(
        f"{path} is not the file that was opened: it was changed or replaced since; open the data set again"
    )


def gone(path: Path) -> DataError:
    return DataError(f"{path} does not exist any more; open the data set again")


def spot_digest(path: Path, expected: Stamp) -> str:
    """A digest of a file that reads at most 4 MB of it: all of a small file; of a larger one its size and 256 places,
    evenly spaced.

    Other data of the same size gives another digest. A few bytes that were changed in a large file may not.

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
    """The values that were used last, up to so many bytes; always at least one."""

    def __init__(self, limit: int = CACHE_BYTES) -> None:
        self._limit = limit
        self._values: dict[Any, tuple[Any, int]] = {}

    def get(self, key: Any, load: Callable[[], tuple[Any, int]]) -> Any:
        """The value of a key; `load` gives it with its size in bytes."""
        entry = self._values.pop(key, None) or load()
        self._values[key] = entry
        total = 0
        for number, older in enumerate(reversed(list(self._values))):
            total += self._values.get(older, (None, 0))[1]  # another thread may have taken it out
            if number and total > self._limit:
                self._values.pop(older, None)
        return entry[0]
