"""Names beside a target: temporary files, locks, replaced directories; and the leftovers of killed processes.

Every name starts with a dot and is made from the target's own. A temporary name also says which process on which
machine is writing, so that leftovers are told from work in progress.
"""

import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from brim.core.errors import OptionError
from brim.core.fingerprint import digest_bytes

LARGE = 100
"""Directories with more entries than this are searched for leftovers only once by a process."""
DAY = 24 * 3600.0
LONGEST_NAME = 180
"""Bytes of a target's name that are kept in the names made from it, because file systems allow 255 in all."""

_TEMPORARY = re.compile(r"\..+\.([0-9a-f]{8})-(\d+)-[0-9a-f]{8}\.tmp")
_ours: set[str] = set()
"""Temporary paths that this process is writing now."""
_searched: set[str] = set()
"""Large directories that this process has searched for leftovers."""


@contextmanager
def beside(target: Path) -> Generator[Path, None, None]:
    """Choose a new temporary path for a target. What is still there when the block ends is removed."""
    _clean_leftovers(target)
    path = dotted(target, f".{_host()}-{os.getpid()}-{secrets.token_hex(4)}.tmp")
    _ours.add(os.path.abspath(path))
    try:
        yield path
    finally:  # after Ctrl-C too: whatever it was, nothing half-written stays
        remove(path)
        _ours.discard(os.path.abspath(path))


def dotted(target: Path, suffix: str) -> Path:
    """Return a name beside the target that is made from the target's own, and no longer than file systems allow."""
    name = target.name or "_"
    if len(name.encode()) > LONGEST_NAME:
        name = name.encode()[: LONGEST_NAME - 33].decode(errors="ignore") + "-" + digest_bytes(name.encode())
    return target.parent / f".{name}{suffix}"


def _clean_leftovers(target: Path) -> None:
    """Remove what killed processes left in the directory of a target, whatever they were writing."""
    with suppress(OSError):  # another process removed it first
        remove(dotted(target, ".tmp"))  # the name that brim 0.5 used
    folder = os.path.abspath(target.parent)
    if folder in _searched:
        return
    try:
        with os.scandir(folder) as entries:
            found = [entry.name for entry in entries]
    except OSError:  # it does not exist yet, or cannot be listed
        return
    if len(found) > LARGE:
        _searched.add(folder)
    for name in found:
        if (match := _TEMPORARY.fullmatch(name)) and _is_dead(Path(folder, name), match[1], int(match[2])):
            with suppress(OSError):
                remove(Path(folder, name))


def _is_dead(path: Path, host: str, pid: int) -> bool:
    """Whether the process that wrote a temporary file has ended; on another machine, whether the file is a day old."""
    if host != _host():
        try:
            return time.time() - path.lstat().st_mtime > DAY
        except OSError:
            return False
    if pid == os.getpid():
        return str(path) not in _ours
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # it belongs to another user
        return False
    return False


@cache
def _host() -> str:
    return digest_bytes(socket.gethostname().encode())[:8]


def is_leftover(name: str) -> bool:
    """Whether this is the name of a temporary file, a lock or a replaced directory that a killed process left."""
    return name.startswith(".") and name.endswith((".tmp", ".lock", ".old"))


def unwritable(target: str | os.PathLike[str], error: OSError) -> OptionError:
    """Return the error that says why a target cannot be written."""
    is_file = isinstance(error, FileExistsError | NotADirectoryError)
    reason = f"{error.filename} is a file" if is_file else error.strerror
    return OptionError(f"cannot write {os.fspath(target)}: {reason or error}")


def remove(path: Path) -> None:
    """Remove a file, a link or a whole directory, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()
