"""Checkpoints of an ARC run, in the container of `brim.train.checkpoint`.

    learning.npz    every array of `Learning`, by its place in the tree: params/..., moments/..., envs/..., key
    state.json      the options, the number of updates, and a checksum of both files

The arrays are kept to the bit, so a resumed run ends with the weights that it would have had. Nothing is pickled: the
tree itself is made anew by `Learner.begin`, and the file must have exactly its arrays.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import DamagedError, OptionError
from brim.core.extras import need
from brim.core.npz import NpzArchive, NpzError, write_npz
from brim.train.arc.config import ArcPpoConfig
from brim.train.checkpoint import read_checkpoint, write_checkpoint

if TYPE_CHECKING:
    import jax
else:
    jax = need("jax", extra="arc", user="brim.train.arc")

FORMAT = "brim.arc-agent/1"
LEARNING = "learning.npz"

Tree = TypeVar("Tree")


class SavedAgent(NamedTuple):
    """The facts of a checkpoint, and where it is."""

    path: Path
    config: ArcPpoConfig
    update: int
    """Number of updates that were made."""


def save_learning(path: Path, learning: Any, config: ArcPpoConfig, update: int) -> None:
    """Write a checkpoint, whole or not at all.

    Raises:
        BrimError: The disk is full or refuses to write. Earlier checkpoints are unchanged.
    """
    arrays = named_arrays(learning)

    def write_files(directory: Path) -> None:
        with open(directory / LEARNING, "wb") as file:
            write_npz(file, arrays)

    write_checkpoint(path, {"config": config.to_dict(), "update": update}, write_files, format=FORMAT)


def read_saved(path: Path) -> SavedAgent:
    """Check every file of a checkpoint, and return its facts.

    Raises:
        DataError: There is no checkpoint.
        DamagedError: It is not as it was written, or of another version.
    """
    state = read_checkpoint(path, format=FORMAT)
    try:
        return SavedAgent(path, ArcPpoConfig.from_dict(state["config"]), int(state["update"]))
    except (OptionError, KeyError, TypeError, ValueError) as error:
        raise DamagedError(f"{path} cannot be understood ({error}); start a new run") from None


def load_tree(path: Path, like: Tree, *, below: str = "") -> Tree:
    """Read the arrays of a checkpoint into a tree of the form of `like`.

    Args:
        below: Read only this part of the file, such as "params/", into a tree of that part.

    Raises:
        DamagedError: The file does not have exactly the arrays of that tree.
    """
    leaves, structure = jax.tree.flatten(like)
    names = [f"{below}{name}" for name in named_arrays(like)]
    try:
        with NpzArchive(path / LEARNING, stored=True) as archive:
            there = [name for name in archive if name.startswith(below)]
            if sorted(there) != sorted(names):
                odd = sorted(set(there) ^ set(names))[0]
                raise DamagedError(f"{path / LEARNING} belongs to another network: {odd} is not in both")
            arrays = [archive[name] for name in names]
    except (NpzError, FileNotFoundError) as error:
        raise DamagedError(f"{path / LEARNING} cannot be read: {error}") from None
    for name, array, leaf in zip(names, arrays, leaves, strict=True):
        if array.shape != np.shape(leaf) or array.dtype != np.asarray(leaf).dtype:
            raise DamagedError(
                f"{path / LEARNING}: {name} is {array.dtype} of {array.shape}, expected {np.asarray(leaf).dtype} of "
                f"{np.shape(leaf)}"
            )
    return jax.tree.unflatten(structure, [jax.numpy.asarray(array) for array in arrays])


def as_loaded(tree: Tree) -> Tree:
    """Return a tree as `load_tree` would return it, so that a new run and a resumed one run the same program."""
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, [jax.numpy.asarray(np.asarray(leaf)) for leaf in leaves])


def named_arrays(tree: Any) -> dict[str, NDArray[Any]]:
    """Return the arrays of a tree by their place in it, such as "params/encoder/w"."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {"/".join(_word(key) for key in place): np.asarray(leaf) for place, leaf in leaves}


def _word(key: Any) -> str:
    """Return a field, a key or a number of a tree as one word."""
    for attribute in ("name", "key", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)
