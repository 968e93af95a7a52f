"""Checkpoints: a directory that is whole or absent, with everything a run needs to resume as if it had never stopped.

    state.json      the facts of the run, and a checksum of every other file and of itself
    ...             the files that a trainer writes: weights, moments of the optimizer, whatever else it holds

This module is the container only. It knows names, checksums, renaming and removal; what is in the files is the
trainer's business, so a trainer on any framework can use it. Nothing is pickled, and nothing here imports torch.
"""

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from brim.core.atomic import atomic_directory
from brim.core.errors import BrimError, DamagedError, DataError
from brim.core.fingerprint import canonical_json, digest_bytes, new_hash
from brim.core.temporary import remove
from brim.plan.position import CheckpointPosition

FORMAT = "brim.checkpoint/1"
STATE, MODEL = "state.json", "model"
NAME = re.compile(r"checkpoint-(\d+)")
RESUMING = "so there is nothing to resume; start the run without --resume"


@dataclass(frozen=True)
class Saved:
    """The facts of a checkpoint of a causal language model."""

    path: Path
    config: dict[str, Any]
    position: CheckpointPosition
    step: int
    tokens: int
    schedule_steps: int
    base: str | None
    """With LoRA, the fingerprint of the weights below the adapters."""
    sections: dict[str, dict[str, Any]]
    """State that a trainer adds under its own name. Plain fine-tuning adds none."""


def checkpoint_path(output: Path, step: int) -> Path:
    return output / f"checkpoint-{step:08d}"


def write_checkpoint(
    path: Path, facts: dict[str, Any], write_files: Callable[[Path], None], *, format: str = FORMAT
) -> None:
    """Write a checkpoint. `write_files` puts the files into the directory it is given; `facts` go into state.json.

    Raises:
        BrimError: The disk is full or refuses to write. What was there before is unchanged.
    """
    try:
        with atomic_directory(path, replaces=lambda there: (there / STATE).exists()) as directory:
            write_files(directory)
            files = [file for file in sorted(directory.rglob("*")) if file.is_file()]
            sums = {str(file.relative_to(directory)): _digest(file) for file in files}
            state = {"format": format, **facts, "files": sums}
            state["checksum"] = digest_bytes(canonical_json(state))
            (directory / STATE).write_text(json.dumps(state, indent=2) + "\n")
            for file in [*files, directory / STATE]:
                _flush(file)
    except BrimError:
        raise
    except Exception as error:  # the writers of transformers and safetensors raise errors of their own
        raise BrimError(
            f"cannot write the checkpoint {path}: {_reason(error)}; earlier checkpoints are untouched"
        ) from None


def read_checkpoint(path: Path, *, format: str = FORMAT, way_out: str | None = None) -> dict[str, Any]:
    """Check every file of a checkpoint and return its facts. `way_out` replaces the advice to resume from an earlier
    one.

    Raises:
        DataError: There is no checkpoint.
        DamagedError: It is not as it was written.
    """
    advice = _earlier(path) if way_out is None else f"; {way_out}"
    try:
        state = json.loads((path / STATE).read_bytes())
        checksum = state.pop("checksum")
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{path} is not a checkpoint: it has no {STATE}") from None
    except OSError as error:
        raise DataError(f"cannot read {path / STATE}: {error.strerror}") from None
    except (ValueError, AttributeError, KeyError, TypeError):
        raise DamagedError(f"{path / STATE} is truncated or damaged{advice}") from None
    if state.get("format") != format:
        raise DamagedError(f"{path} is of version {state.get('format')}, this brim reads {format}")
    if digest_bytes(canonical_json(state)) != checksum:
        raise DamagedError(f"{path / STATE} was altered (its checksum differs){advice}")
    for name, expected in state["files"].items():
        if not (path / name).is_file():
            raise DamagedError(f"{path / name} is missing{advice}")
        if _digest(path / name) != expected:
            raise DamagedError(f"{path / name} is damaged (its checksum differs){advice}")
    return state


def load_saved(path: Path) -> Saved:
    """Check a checkpoint of a causal language model and return its facts.

    Raises:
        DataError: There is no checkpoint.
        DamagedError: It is not as it was written.
    """
    state = read_checkpoint(path)
    known = {"config", "position"}
    return Saved(
        path=path,
        config=state["config"],
        position=CheckpointPosition(**state["position"]),
        step=state["step"],
        tokens=state["tokens"],
        schedule_steps=state["schedule_steps"],
        base=state["base"],
        sections={
            name: value for name, value in state.items() if isinstance(value, dict) and name not in known | {"files"}
        },
    )


def facts(
    config: dict[str, Any], position: CheckpointPosition, *, step: int, tokens: int, schedule_steps: int, **more: Any
) -> dict[str, Any]:
    """Return the facts that `load_saved` reads."""
    return {
        "config": config,
        "position": asdict(position),
        "step": step,
        "tokens": tokens,
        "schedule_steps": schedule_steps,
        **more,
    }


def find_checkpoint(path: str | Path, *, advice: str = RESUMING) -> Path:
    """Return the checkpoint at a path, or the last one of the run there.

    Args:
        advice: The end of the message if there is none.

    Raises:
        DataError: There is none.
    """
    path = Path(path)
    if (path / STATE).exists():
        return path
    found = checkpoints(path)
    if not found:
        is_file = "is a file and not the directory of a run" if path.exists() else "does not exist"
        raise DataError(f"{path} {'holds no checkpoint' if path.is_dir() else is_file}, {advice}")
    return found[-1]


def checkpoints(output: Path) -> list[Path]:
    """List the checkpoints of a run in the order of their steps.

    One whose replacement was killed half-way is put back first.
    """
    if not output.is_dir():
        return []
    for retired in output.glob(".checkpoint-*.old"):
        target = output / retired.name.removeprefix(".").removesuffix(".old")
        if (retired / STATE).exists() and not target.exists():
            retired.rename(target)
    found = [
        (int(match[1]), child)
        for child in output.iterdir()
        if (match := NAME.fullmatch(child.name)) and (child / STATE).exists()
    ]
    return [child for _, child in sorted(found)]


def set_aside_later(output: Path, step: int) -> list[Path]:
    """Rename the checkpoints after the step that a run resumes from, and return their new names.

    They belong to another course of the run, which the resumed run leaves.
    """
    moved: list[Path] = []
    for path in checkpoints(output):
        if int(path.name.rpartition("-")[2]) > step:
            number, target = 1, output / f"abandoned-{path.name}"
            while target.exists():
                number += 1
                target = output / f"abandoned-{path.name}-{number}"
            moved.append(path.rename(target))
    return moved


def forget_old(output: Path, keep: int) -> None:
    """Remove all but the last `keep` checkpoints, and what a killed save left behind."""
    for path in checkpoints(output)[:-keep]:
        path.rename(path.with_name(f".{path.name}.gone"))  # no longer a checkpoint, even if the removal is interrupted
    for leftover in output.glob(".checkpoint-*"):  # directories, and the locks of killed processes
        remove(leftover)


def publish(model: Path, target: Path) -> None:
    """Copy the model of a checkpoint to `target`, with hard links for the weights where the file system allows."""
    ours = ("config.json", "adapter_config.json")
    with atomic_directory(target, replaces=lambda there: any((there / name).exists() for name in ours)) as directory:
        for file in model.iterdir():
            # Small files are there to be edited.
            if file.suffix != ".safetensors" or not _linked(file, directory / file.name):
                shutil.copyfile(file, directory / file.name)


def _linked(file: Path, target: Path) -> bool:
    try:
        os.link(file, target)
    except OSError:  # another file system, or one without links
        return False
    return True


def _earlier(path: Path) -> str:
    others = [other for other in checkpoints(path.parent) if other != path]
    return f"; an earlier one is {others[-1]}: --resume {others[-1]}" if others else ""


def _digest(path: Path) -> str:
    hash = new_hash()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            hash.update(block)
    return hash.hexdigest()


def _flush(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error).splitlines()[0]
