"""Default outputs of training commands: the first free name, and the newest one."""

from pathlib import Path


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
