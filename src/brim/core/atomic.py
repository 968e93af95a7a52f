"""Files and directories that are whole or absent.

A writer works beside the target, under a name that starts with a dot, and renames when it is done. A process killed half-way leaves
the old target as it was, and at most a dotted leftover that the next write to the same target removes.
"""

import os
import re
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from brim.core.errors import OptionError


@contextmanager
def atomic_file(target: str | os.PathLike[str], mode: str = "wb") -> Generator[IO[bytes], None, None]:
    """A binary file that appears at `target` when the block ends without an error, flushed to disk.

    A link stays, and what it points to is written. What is open already (/dev/stdout), a device or a pipe is written into: it can be
    neither half there nor replaced.
    """
    check_target(target)
    if (stream := _stream(Path(target), mode)) is not None:
        with stream as file:
            try:
                yield file
                file.flush()
            except OSError as error:
                raise _unwritable(Path(target), error) from None
        return
    target = Path(os.path.realpath(target)) if os.path.islink(target) else Path(target)
    beside = _beside(target)
    _clean(beside)
    try:
        with _open(beside, target, mode) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, target)
    except BaseException as error:  # Ctrl-C too: whatever it is, nothing half-written stays
        _clean(beside)
        if isinstance(error, OSError) and error.filename is None:  # from a write, such as a full disk: it names no file
            raise _unwritable(target, error) from None
        raise


def check_target(target: str | os.PathLike[str]) -> None:
    """Say now what would be wrong with writing to `target` later.

    Raises:
        OptionError: It is a directory, or in something that is none.
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
    """What can only be written into; None for a file, which is written beside its place."""
    numbered = OPEN_ALREADY.fullmatch(str(target))
    number = int(numbered[1]) if numbered else STANDARD.get(str(target))
    if number is not None:  # opened again by its name, a file would be written from its start, over what is there
        try:
            return os.fdopen(os.dup(number), "wb")
        except OSError as error:
            raise _unwritable(target, error) from None
    return _open(target, target, mode) if target.exists() and not target.is_file() else None


@contextmanager
def atomic_directory(target: str | os.PathLike[str], *, replaces: Callable[[Path], bool]) -> Generator[Path, None, None]:
    """A directory that appears at `target` when the block ends without an error.

    An existing target is replaced as a whole, but only if it is empty or `replaces(target)` says that it is one of ours: a mistyped
    path never costs anyone their files.
    """
    target = Path(target)
    if target.exists() and not target.is_dir():
        raise OptionError(f"cannot write {target}: a file is in the way")
    if target.exists() and any(target.iterdir()) and not replaces(target):
        raise OptionError(f"will not replace {target}: it holds other files; remove it or choose another output")
    beside, retired = _beside(target), target.parent / f".{target.name}.old"
    _clean(beside)
    try:
        try:
            beside.mkdir(parents=True)
        except OSError as error:
            raise _unwritable(target, error) from None
        yield beside
        _clean(retired)
        if target.exists():
            os.replace(target, retired)
        os.replace(beside, target)
        _clean(retired)
    except BaseException:  # as above
        _clean(beside)
        raise


def _beside(target: Path) -> Path:
    return target.parent / f".{target.name}.tmp"


def _open(path: Path, target: Path, mode: str) -> IO[bytes]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(path, mode)
    except OSError as error:
        raise _unwritable(target, error) from None


def _unwritable(target: Path, error: OSError) -> OptionError:
    reason = f"{error.filename} is a file" if isinstance(error, FileExistsError | NotADirectoryError) else error.strerror
    return OptionError(f"cannot write {target}: {reason or error}")


def _clean(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()
