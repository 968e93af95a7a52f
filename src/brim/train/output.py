"""The output directory of a run: one run to a directory, one process at a time.

    run.json    the options the run began with
    .lock       held while a process trains here

Nothing here imports torch, so a trainer on any framework can stand on it.
"""

import json
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from brim.core.atomic import atomic_file
from brim.core.errors import OptionError
from brim.core.lock import hold_file
from brim.train.checkpoint import checkpoints

RUN, RUN_FORMAT, LOCK = "run.json", "brim.run/1", ".lock"


def hold_output(output: Path) -> IO[bytes]:
    """Make the directory of a run and lock it until the returned file is closed or the process ends.

    Raises:
        OptionError: The directory cannot be made.
        BrimError: Another process is training there.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
        return hold_file(
            output / LOCK,
            busy=f"another process is training in {output}; wait for it to end, or choose another --output",
        )
    except OSError as error:
        reason = "a file is in the way" if isinstance(error, FileExistsError | NotADirectoryError) else error.strerror
        raise OptionError(f"cannot write {output}: {reason or error}") from None


def begin_output(output: Path, config: dict[str, Any]) -> None:
    """Write the options of a new run. A run that ended before its first checkpoint is replaced.

    Raises:
        OptionError: The directory holds a run already.
    """
    if (output / RUN).exists() and checkpoints(output):
        raise OptionError(f"{output} holds a run already; continue it with --resume, or choose another --output")
    with atomic_file(output / RUN) as file:
        file.write(json.dumps({"format": RUN_FORMAT, "config": config}, indent=2).encode() + b"\n")


def unbegin_output(output: Path) -> None:
    """Undo `begin_output` for a run that was refused before its first step.

    Tokenized data stays for the next attempt.
    """
    for name in (RUN, LOCK):
        (output / name).unlink(missing_ok=True)
    with suppress(OSError):  # something is in it
        output.rmdir()
