"""Random actions: an allowed operation and a selection, drawn uniformly from the whole action space.

A selection is drawn from arrays of the configuration's size, whatever the size of the working grid: many are out of
range. An action depends on the seed, the number of its environment and the number of the step; neither the number of
environments nor the engine matters.
"""

import numpy as np
from numpy.typing import NDArray

from brim.core.rng import raw_bits
from brim.envs.arc.actions import BboxAction, MaskAction, PointAction, StructuredAction
from brim.envs.arc.config import JaxArcConfig
from brim.envs.arc.engine.random import below, threefry
from brim.envs.arc.operations import ArcOperation


def random_keys(count: int, *, seed: int, purpose: str) -> NDArray[np.uint32]:
    """Return a key for each environment. The first keys do not depend on the count. [count, 2]"""
    words = raw_bits(count, seed=seed, purpose=purpose)
    return np.stack([words >> np.uint64(32), words & np.uint64(0xFFFFFFFF)], axis=1).astype(np.uint32)


class RandomActions:
    """The actions of a batch of environments, step by step."""

    def __init__(self, config: JaxArcConfig, *, envs: int, seed: int) -> None:
        self._config = config
        self._keys = random_keys(envs, seed=seed, purpose="arc actions")
        operations = config.action.allowed_operations
        self._operations = np.array(list(ArcOperation) if operations is None else operations, np.int32)

    def at(self, step: int) -> StructuredAction:
        """Return the actions of a step, as NumPy arrays."""
        rows, columns = self._config.shape
        form = self._config.action.selection_format
        words = self._words(step, {"point": 3, "bbox": 5, "mask": 1 + rows}[form])
        operation = self._operations[below(words[:, 0], len(self._operations))]
        if form == "mask":
            # One word has the bits of one row.
            bits = words[:, 1:, None] >> np.arange(columns, dtype=np.uint32) & np.uint32(1)
            return MaskAction(operation, bits.astype(np.bool_))
        limits = [rows, columns, rows, columns]
        places = [below(words[:, 1 + at], limits[at]) for at in range(words.shape[1] - 1)]
        return PointAction(operation, *places) if form == "point" else BboxAction(operation, *places)

    def _words(self, step: int, count: int) -> NDArray[np.uint32]:
        """Return random words for a step. [envs, count]"""
        numbers = np.arange((count + 1) // 2)
        first, second = threefry(self._keys[:, None], (np.uint32(step), numbers))
        return np.concatenate([first, second], axis=1)[:, :count]
