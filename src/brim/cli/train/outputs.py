"""Outputs of training commands: the first free name, the newest one, and the checkpoint to resume from."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click


def new_output(default: str) -> str:
    """Return the default output or, if it holds a run already, the first of its numbered variants that holds none."""
    number, output = 1, default
    while Path(output, "run.json").exists():
        number += 1
        output = f"{default}-{number}"
    return output


def latest_output(default: str) -> str:
    """Return the last of the numbered variants of the default output that hold a run."""
    number, output = 1, default
    while Path(f"{default}-{number + 1}", "run.json").exists():
        number += 1
        output = f"{default}-{number}"
    return output


def checkpoint_to_resume(options: Mapping[str, Any], default: str) -> Path:
    """Return the checkpoint that `--resume` names: one, or the last one of a run, of `--output` or of the newest run.

    Raises:
        DataError: There is none.
        UsageError: `--output` names another place than where the run is.
    """
    from brim.train.checkpoint import find_checkpoint

    resume, output = options["resume"], options["output"]
    checkpoint = find_checkpoint(resume or output or latest_output(default))
    if resume and output and Path(output).resolve() != checkpoint.parent.resolve():
        raise click.UsageError(
            f"a resumed run stays where it is: leave out --output, or move {checkpoint.parent} first"
        )
    return checkpoint
