"""One lock for each target that is written, and for each directory that is worked in.

The lock belongs to an open file (flock), so a killed process never leaves one behind.
"""

import fcntl
import os
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from brim.core.errors import BrimError
from brim.core.temporary import dotted, unwritable

POLL = 0.02
"""Seconds between two attempts to take a lock."""


@contextmanager
def locked(
    target: str | os.PathLike[str], *, wait: float = 0.0, name: str | os.PathLike[str] | None = None
) -> Generator[bool, None, None]:
    """Keep other processes and threads from writing `target` while the block runs. Yields whether it had to wait.

    The lock is a file `.NAME.lock` beside the target, which is removed at the end; a killed process leaves the file,
    but not the lock. `name` stands for the target in messages.

    Raises:
        BrimError: Another one has held the lock for `wait` seconds from now on.
        OptionError: The directory cannot be written.
    """
    path = dotted(Path(os.path.realpath(target)), ".lock")
    handle, waited = _take_lock(path, target if name is None else name, wait)
    try:
        with suppress(OSError):  # a full disk: the lock is held all the same, but cannot say by which process
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n{socket.gethostname()}\n{time.strftime('%F %T')}\n".encode(), 0)
        yield waited
    finally:
        with suppress(OSError):
            path.unlink()  # while it is locked, so that no other process can hold it as the lock of a target
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)  # for forked children too, which share the handle
        os.close(handle)


def hold_file(path: Path, *, busy: str) -> IO[bytes]:
    """Lock a file until it is closed or the process ends, without waiting. The file is made if need be, and stays.

    On a file system without locks, nothing keeps two processes apart.

    Raises:
        OSError: The file cannot be written.
        BrimError: Another one holds the lock; `busy` is the message.
    """
    file = open(path, "wb")  # noqa: SIM115  it is the caller's to close
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise BrimError(busy) from None
    except OSError:
        pass
    return file


def _take_lock(path: Path, shown: str | os.PathLike[str], wait: float) -> tuple[int, bool]:
    """Return an open handle of the lock file, locked, and whether another one had it first."""
    until = time.monotonic() + wait
    waited = False
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise unwritable(shown, error) from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever held the lock before may have removed the file between our opening and our locking it. Then
            # another file has its name, or none has, and ours is the lock of nothing.
            if os.path.samestat(os.stat(path), os.fstat(handle)):
                return handle, waited
        except BlockingIOError:
            waited = True
            if time.monotonic() >= until:
                holder = _holder(handle)
                os.close(handle)
                raise BrimError(
                    f"another process is writing {os.fspath(shown)}{holder}; wait for it to end, or choose another "
                    "output"
                ) from None
            time.sleep(POLL)
        except FileNotFoundError:
            pass
        except OSError:  # a file system without locks: nothing keeps two writers apart there, but unique names do most
            return handle, waited
        os.close(handle)


def _holder(handle: int) -> str:
    """Say who has a lock, as far as its file tells."""
    try:
        pid, host, since = os.pread(handle, 500, 0).decode().splitlines()
    except (OSError, ValueError):
        return ""
    where = "" if host == socket.gethostname() else f" on {host}"
    return f" (process {pid}{where}, since {since})"
