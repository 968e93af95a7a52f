"""Checkpoints: a directory that is whole or absent, with everything a run needs to go on as if it had never stopped.

    model/                  as transformers saves it: config, weights, tokenizer (with LoRA: the adapter)
    optimizer.safetensors   the moments of every weight, by name
    buffer.brim             of a run that plays: what it remembers
    window.brim             and what of it is being trained on
    state.json              position, step, options, fingerprints, random state, and a checksum of every file

Nothing is pickled. The learning rate is a function of the step, and randomness of the seed and the microbatch, so the step and the seed
are all there is to know of them; torch's own generator is kept too, for models that draw from it elsewhere.
"""

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brim.core.atomic import atomic_directory
from brim.core.errors import BrimError, DamagedError, DataError
from brim.core.extras import need
from brim.core.fingerprint import canonical_json, digest_bytes, new_hash
from brim.core.temporary import remove
from brim.data.tokenizer.base import Tokenizer
from brim.plan.position import CheckpointPosition
from brim.train.model import quiet, save_tokenizer

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = need("torch", extra="train", user="brim.train")

FORMAT = "brim.checkpoint/1"
STATE, OPTIMIZER, MODEL = "state.json", "optimizer.safetensors", "model"
RNG = "torch.rng"
NAME = re.compile(r"checkpoint-(\d+)")


@dataclass(frozen=True)
class Saved:
    """What a checkpoint says of itself."""

    path: Path
    config: dict[str, Any]
    position: CheckpointPosition
    step: int
    tokens: int
    schedule_steps: int
    base: str | None
    """With LoRA, the fingerprint of the weights below the adapters."""
    online: dict[str, Any] | None = None
    """Of a run that plays: where it is beside its position."""


def checkpoint_path(output: Path, step: int) -> Path:
    return output / f"checkpoint-{step:08d}"


def save_checkpoint(
    path: Path,
    model: Any,
    weights: "dict[str, Tensor]",
    moments: "dict[str, Tensor]",
    tokenizer: Tokenizer,
    facts: dict[str, Any],
    write_more: Callable[[Path], None],
) -> None:
    """`weights` are the model's, `moments` the optimizer's, both whole and by name; `facts` is all that `Saved` has.

    `write_more` may put other files into the directory.

    Raises:
        BrimError: The disk is full or refuses; what was there before is as it was.
    """
    safetensors = need("safetensors.torch", extra="train", user="brim.train.checkpoint")
    try:
        with atomic_directory(path, replaces=lambda there: (there / STATE).exists()) as directory:
            save_model(directory / MODEL, model, weights, tokenizer)
            safetensors.save_file({**moments, RNG: torch.get_rng_state()}, directory / OPTIMIZER)
            write_more(directory)
            files = [file for file in sorted(directory.rglob("*")) if file.is_file()]
            sums = {str(file.relative_to(directory)): _digest(file) for file in files}
            state = {"format": FORMAT, **facts, "files": sums}
            state["checksum"] = digest_bytes(canonical_json(state))
            (directory / STATE).write_text(json.dumps(state, indent=2) + "\n")
            for file in [*files, directory / STATE]:
                _flush(file)
    except BrimError:
        raise
    except Exception as error:  # the writers of transformers and safetensors raise errors of their own
        raise BrimError(f"cannot write the checkpoint {path}: {_reason(error)}; earlier checkpoints are untouched") from None


def save_model(directory: Path, model: Any, weights: "dict[str, Tensor]", tokenizer: Tokenizer) -> None:
    """As transformers reads it."""
    directory.mkdir(parents=True, exist_ok=True)
    with quiet():
        model.save_pretrained(directory, state_dict=weights)
    save_tokenizer(tokenizer, directory)


def publish(model: Path, target: Path) -> None:
    """The model of a checkpoint under another name, without a second copy of the weights where the file system allows."""
    ours = ("config.json", "adapter_config.json")
    with atomic_directory(target, replaces=lambda there: any((there / name).exists() for name in ours)) as directory:
        for file in model.iterdir():
            if file.suffix != ".safetensors" or not _linked(file, directory / file.name):  # small files are there to be edited
                shutil.copyfile(file, directory / file.name)


def load_saved(path: Path) -> Saved:
    """Open a checkpoint, and check every file of it.

    Raises:
        DataError: There is none.
        DamagedError: It is not as it was written.
    """
    try:
        state = json.loads((path / STATE).read_bytes())
        checksum = state.pop("checksum")
    except FileNotFoundError:
        raise DataError(f"{path} is not a checkpoint: it has no {STATE}") from None
    except (ValueError, AttributeError, KeyError):
        raise DamagedError(f"{path / STATE} is truncated or damaged{_earlier(path)}") from None
    if state.get("format") != FORMAT:
        raise DamagedError(f"{path} is of version {state.get('format')}, this brim reads {FORMAT}")
    if digest_bytes(canonical_json(state)) != checksum:
        raise DamagedError(f"{path / STATE} was altered (its checksum differs){_earlier(path)}")
    for name, expected in state["files"].items():
        if not (path / name).is_file():
            raise DamagedError(f"{path / name} is missing{_earlier(path)}")
        if _digest(path / name) != expected:
            raise DamagedError(f"{path / name} is damaged (its checksum differs){_earlier(path)}")
    position = CheckpointPosition(**state["position"])
    return Saved(
        path, state["config"], position, state["step"], state["tokens"], state["schedule_steps"], state["base"], state.get("online")
    )


def facts(
    config: dict[str, Any], position: CheckpointPosition, *, step: int, tokens: int, schedule_steps: int, **more: Any
) -> dict[str, Any]:
    """For `save_checkpoint`."""
    return {"config": config, "position": asdict(position), "step": step, "tokens": tokens, "schedule_steps": schedule_steps, **more}


def load_optimizer(path: Path) -> "dict[str, Tensor]":
    return need("safetensors.torch", extra="train", user="brim.train.checkpoint").load_file(path / OPTIMIZER)


def checkpoints(output: Path) -> list[Path]:
    """The checkpoints of a run, in the order of their steps. One that was being replaced when its process was killed is put back."""
    if not output.is_dir():
        return []
    for retired in output.glob(".checkpoint-*.old"):
        target = output / retired.name.removeprefix(".").removesuffix(".old")
        if (retired / STATE).exists() and not target.exists():
            retired.rename(target)
    found = [(int(match[1]), child) for child in output.iterdir() if (match := NAME.fullmatch(child.name)) and (child / STATE).exists()]
    return [child for _, child in sorted(found)]


def set_aside_later(output: Path, step: int) -> list[Path]:
    """Rename the checkpoints after a step that is gone on from: they belong to another course of the run. Returns their new names."""
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
    """Remove all but the last ones, and what a killed save left behind."""
    for path in checkpoints(output)[:-keep]:
        path.rename(path.with_name(f".{path.name}.gone"))  # gone at once, whatever happens to the removal
    for leftover in output.glob(".checkpoint-*"):  # directories, and the locks of killed processes
        remove(leftover)


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
