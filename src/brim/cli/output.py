"""Outputs of commands: an existing file is replaced only if brim wrote it, or if --force says so."""

from collections.abc import Callable
from pathlib import Path

import click

from brim.core.errors import OptionError

ENDS = 4096
"""Bytes at the beginning and at the end of a file in which its mark is looked for."""

force_option = click.option("--force", is_flag=True, help="Replace an existing output even if brim did not write it.")


def check_output(path: str | Path, *, force: bool, what: str, ours: Callable[[Path], bool]) -> None:
    """Check, before any work is done, that writing to `path` later destroys nothing of the user's.

    An earlier output of the same command, which `ours` recognises, and an empty file are replaced. `what` names that
    output, with its article.

    Raises:
        OptionError: The file is something else and `force` is not set, or it cannot be written.
    """
    from brim.core.atomic import check_target

    check_target(path)
    target = Path(path)
    if force or not target.is_file() or not target.stat().st_size or ours(target):
        return
    raise OptionError(f"will not replace {path}: it is not {what}; remove it, choose another output, or pass --force")


def marked(*marks: bytes) -> Callable[[Path], bool]:
    """Return a check that recognises a file by one of these marks, near its beginning or its end."""

    def ours(path: Path) -> bool:
        with open(path, "rb") as file:
            head = file.read(ENDS)
            file.seek(max(0, path.stat().st_size - ENDS))
            tail = file.read(ENDS)
        return any(mark in head or mark in tail for mark in marks)

    return ours
