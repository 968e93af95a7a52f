"""Checkpoints of `brim train distill`, in the container of `brim.train.checkpoint`.

    model.safetensors       the weights
    optimizer.safetensors   the moments of every weight, by name
    state.json              seed, step, position in the plan, options, and a checksum of both files

Nothing in training is random but the order, which is planned, and the first weights; so a position and a step are all
there is to know.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brim.core.errors import OptionError
from brim.core.extras import need
from brim.train.checkpoint import NAME, STATE, checkpoints, read_checkpoint

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = "brim.distill-checkpoint/1"
MODEL, OPTIMIZER = "model.safetensors", "optimizer.safetensors"


@dataclass(frozen=True)
class SavedSeed:
    """The content of a checkpoint."""

    weights: "dict[str, Tensor]"
    moments: "dict[str, Tensor]"
    position: dict[str, Any]
    """The state of the sampler."""
    step: int
    seed: int
    config: dict[str, Any]


def save_tensors(directory: Path, weights: "dict[str, Tensor]", moments: "dict[str, Tensor]") -> None:
    """Write the files of a checkpoint."""
    safetensors = need("safetensors.torch", extra="train", user="brim.train.distill.checkpoint")
    (directory / MODEL).write_bytes(safetensors.save(weights))
    (directory / OPTIMIZER).write_bytes(safetensors.save(moments))


def load_seed(path: Path) -> SavedSeed:
    """Check every file of a checkpoint, and load it.

    Raises:
        DataError: There is no checkpoint.
        DamagedError: It is not as it was written.
    """
    state = read_checkpoint(path, format=FORMAT, way_out=f"remove {path} to resume from an earlier checkpoint")
    safetensors = need("safetensors.torch", extra="train", user="brim.train.distill.checkpoint")
    return SavedSeed(
        weights=safetensors.load_file(path / MODEL),
        moments=safetensors.load_file(path / OPTIMIZER),
        position=state["position"],
        step=state["step"],
        seed=state["seed"],
        config=state["config"],
    )


def check_seed(folder: Path) -> None:
    """Refuse now what a run would fail on later: a last checkpoint that cannot be resumed from, or places where none
    can be written.

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
