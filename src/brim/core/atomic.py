"""Files and directories that are whole or absent.

A writer works beside the target, under a name of its own that starts with a dot, and renames when it is done. Any
number of processes may write one target: each has its own temporary name, and the last one to finish wins. A process
that is killed half-way leaves the old target as it was, and at most a dotted leftover, which a later write in the same
directory removes. An existing directory is exchanged for the new one in one step where the system can (Linux);
elsewhere it is renamed to `.NAME.old` for a moment, from where the next write or `recover` puts it back.
"""

import ctypes
import errno
import os
import re
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

from brim.core.errors import BrimError, OptionError
from brim.core.lock import locked
from brim.core.temporary import beside, dotted, remove, unwritable

PATIENCE = 60.0
"""Seconds that a writer of a directory waits for another one to finish."""
RENAME_EXCHANGE = 2
AT_FDCWD = -100


@contextmanager
def atomic_file(
    target: str | os.PathLike[str], mode: str = "wb", *, durable: bool = True
) -> Generator[IO[bytes], None, None]:
    """Open a binary file that appears at `target`, flushed to disk, when the block ends without an error.

    A link stays, and the file it points to is replaced. An open descriptor (/dev/stdout), a device or a pipe is written
    into: it can be neither half there nor replaced. `durable` flushes the directory too, so that the new name survives
    a power failure; leave it out for one of many files that could be written again.
    """
    check_target(target)
    if (stream := _stream(Path(target), mode)) is not None:
        with stream as file:
            try:
                yield file
                file.flush()
            except OSError as error:
                raise unwritable(Path(target), error) from None
        return
    target = Path(os.path.realpath(target)) if os.path.islink(target) else Path(target)
    with beside(target) as place:
        try:
            with _open(place, target, mode.replace("w", "x")) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(place, target)
        except OSError as error:
            if error.filename is None:  # from a write, such as a full disk: it names no file
                raise unwritable(target, error) from None
            raise
        if durable:
            _flush_directory(target.parent)


def check_target(target: str | os.PathLike[str]) -> None:
    """Refuse a target that cannot be written, before any work is done for it.

    Raises:
        OptionError: It is a directory, or below something that is not one.
    """
    target = Path(target)
    if target.is_dir():
        raise OptionError(f"cannot write {target}: it is a directory")
    for parent in target.parents:
        if parent.exists():
            if not parent.is_dir():
                raise OptionError(f"cannot write {target}: {parent} is a file")
            return


OPEN_ALREADY = re.compile(r"/(?:dev|proc/self)/fd/(\d+)")
STANDARD = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}


def _stream(target: Path, mode: str) -> IO[bytes] | None:
    """Open a target that can only be written into; None for a file, which is written beside its place."""
    numbered = OPEN_ALREADY.fullmatch(str(target))
    number = int(numbered[1]) if numbered else STANDARD.get(str(target))
    if number is not None:  # opened again by its name, a file would be written from its start, over what is there
        try:
            return os.fdopen(os.dup(number), "wb")
        except OSError as error:
            raise unwritable(target, error) from None
    return _open(target, target, mode) if target.exists() and not target.is_file() else None


@contextmanager
def atomic_directory(
    target: str | os.PathLike[str], *, replaces: Callable[[Path], bool], wait: float = PATIENCE, held: bool = False
) -> Generator[Path, None, None]:
    """Make a directory that appears at `target` when the block ends without an error.

    An existing target is replaced as a whole, but only if it is empty or `replaces(target)` says that it is one of
    ours: a mistyped path never costs anyone their files. A link stays, and the directory it points to is replaced. The
    target is locked for the whole block; `held` says that the caller has its lock already.

    Raises:
        OptionError: It cannot be written, or holds other files.
        BrimError: Another process has been writing it for longer than `wait` seconds.
    """
    target = Path(os.path.realpath(target)) if os.path.islink(target) else Path(target)
    _check_replaceable(target, replaces)
    with nullcontext() if held else locked(target, wait=wait):
        _put_back(target)
        _check_replaceable(target, replaces)  # again: another writer may have been there until now
        with beside(target) as place:
            try:
                place.mkdir(parents=True)
            except OSError as error:
                raise unwritable(target, error) from None
            yield place
            _flush_directory(place)
            try:
                _replace_directory(place, target)
            except OSError as error:
                raise unwritable(target, error) from None
            _flush_directory(target.parent)


def recover(target: str | os.PathLike[str]) -> None:
    """Put back a directory whose writer was killed between the two renames that replace it.

    Call this before saying that a directory does not exist. Nothing happens where nothing can be recovered.
    """
    target = Path(os.path.realpath(target)) if os.path.islink(target) else Path(target)
    if target.exists() or not _retired(target).is_dir():
        return
    with suppress(BrimError, OSError), locked(target, wait=PATIENCE):  # a place that cannot be written stays as it is
        _put_back(target)


def _check_replaceable(target: Path, replaces: Callable[[Path], bool]) -> None:
    if target.exists() and not target.is_dir():
        raise OptionError(f"cannot write {target}: a file is in the way")
    if target.exists() and any(target.iterdir()) and not replaces(target):
        raise OptionError(f"will not replace {target}: it holds other files; remove it or choose another output")


def _replace_directory(place: Path, target: Path) -> None:
    """Move a directory to its target. What was at the target is removed with the temporary path."""
    try:
        os.rename(place, target)  # nothing is there, or an empty directory
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    if exchange(place, target):
        return
    retired = _retired(target)
    remove(retired)
    os.rename(target, retired)
    try:
        os.rename(place, target)
    except BaseException:  # Ctrl-C too: the old directory is put back before anything else
        os.rename(retired, target)
        raise
    remove(retired)


def exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two directories in one step. False where the system cannot.

    Raises:
        OSError: The system can, but refuses.
    """
    function = _renameat2()
    if function is None:
        return False
    if function(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):  # the kernel or the file system does not have it
        return False
    raise OSError(number, os.strerror(number), str(other))


@cache
def _renameat2() -> Any:
    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):  # macOS, or an old C library
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    return function


def _retired(target: Path) -> Path:
    return dotted(target, ".old")


def _put_back(target: Path) -> None:
    """Under the lock: put back a target that was renamed and never replaced, or remove it if it was."""
    retired = _retired(target)
    if retired.is_dir() and not target.exists():
        os.rename(retired, target)
    else:
        remove(retired)


def _flush_directory(path: Path) -> None:
    """Write the names in a directory to disk, where the file system can do that."""
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _open(path: Path, target: Path, mode: str) -> IO[bytes]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(path, mode)
    except OSError as error:
        raise unwritable(target, error) from None
