"""Checkpoints of `brim train distill`: a directory that is whole or absent.

    model.safetensors       the weights
    optimizer.safetensors   the moments of every weight, by name
    state.json              where in the plan the run is, step, seed, options, and a checksum of both files

Nothing is pickled. Nothing in training is random but the order, which is planned, and the first weights; so a position and a step are all
there is to know.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brim.core.atomic import atomic_directory
from brim.core.errors import BrimError, DamagedError, DataError, OptionError
from brim.core.extras import need
from brim.core.fingerprint import canonical_json, digest_bytes
from brim.train.checkpoint import NAME, STATE, checkpoints

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = "brim.distill-checkpoint/1"
MODEL, OPTIMIZER = "model.safetensors", "optimizer.safetensors"


@dataclass(frozen=True)
class SavedSeed:
    """What a checkpoint holds."""

    weights: "dict[str, Tensor]"
    moments: "dict[str, Tensor]"
    position: dict[str, Any]
    """Of the sampler."""
    step: int
    seed: int
    config: dict[str, Any]


def save_seed(path: Path, saved: SavedSeed) -> None:
    """
    Raises:
        BrimError: The disk is full or refuses; what was there before is as it was.
    """
    safetensors = need("safetensors.torch", extra="train", user="brim.train.distill.checkpoint")
    try:
        with atomic_directory(path, replaces=lambda there: (there / STATE).exists()) as directory:
            tensors = {MODEL: safetensors.save(saved.weights), OPTIMIZER: safetensors.save(saved.moments)}
            state: dict[str, Any] = {"format": FORMAT, "seed": saved.seed, "step": saved.step, "position": saved.position}
            state |= {"config": saved.config, "files": {name: digest_bytes(data) for name, data in tensors.items()}}
            state["checksum"] = digest_bytes(canonical_json(state))
            for name, data in {**tensors, STATE: json.dumps(state, indent=2).encode() + b"\n"}.items():
                _write(directory / name, data)
    except OSError as error:
        raise BrimError(f"cannot write the checkpoint {path}: {error.strerror or error}; earlier checkpoints are untouched") from None


def load_seed(path: Path) -> SavedSeed:
    """Open a checkpoint, and check every file of it.

    Raises:
        DataError: There is none.
        DamagedError: It is not as it was written.
    """
    safetensors = need("safetensors.torch", extra="train", user="brim.train.distill.checkpoint")
    try:
        state = json.loads((path / STATE).read_bytes())
        checksum = state.pop("checksum")
        files = {name: (path / name).read_bytes() for name in (MODEL, OPTIMIZER)}
    except FileNotFoundError as error:
        raise DataError(f"{path} is not a checkpoint: it has no {Path(error.filename).name}") from None
    except OSError as error:
        raise DataError(f"cannot read {error.filename}: {error.strerror}") from None
    except (ValueError, AttributeError, KeyError, TypeError):
        raise DamagedError(f"{path / STATE} is truncated or damaged; remove {path} to go on from an earlier checkpoint") from None
    if state.get("format") != FORMAT:
        raise DamagedError(f"{path} is of version {state.get('format')}, this brim reads {FORMAT}")
    altered = [STATE] if digest_bytes(canonical_json(state)) != checksum else []
    altered = altered or [name for name, data in files.items() if digest_bytes(data) != state["files"].get(name)]
    if altered:
        raise DamagedError(f"{path / altered[0]} was altered (its checksum differs); remove {path} to go on from an earlier checkpoint")
    weights, moments = (safetensors.load(files[name]) for name in (MODEL, OPTIMIZER))
    return SavedSeed(weights, moments, state["position"], state["step"], state["seed"], state["config"])


def check_seed(folder: Path) -> None:
    """Say now what a run would stumble over later: a last checkpoint that cannot be gone on from, or places where none can be written.

    Raises:
        OptionError: Something else is where the checkpoints go.
        DamagedError: The last checkpoint is not as it was written.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise OptionError(f"cannot write {folder}: a file is in the way; remove it, or choose another --output")
    found = checkpoints(folder)
    for path in sorted(folder.iterdir()):
        if NAME.fullmatch(path.name) and path not in found and not (path.is_dir() and not any(path.iterdir())):
            raise OptionError(f"{path} is not a checkpoint: it has no {STATE}; remove it, or choose another --output")
    if found:
        load_seed(found[-1])


def _write(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
