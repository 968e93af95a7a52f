"""The state of ARC environments: everything in plain sight, and small (2 to 3 KB for an environment at 30x30).

A state is a named tuple of arrays, so JAX takes it as it is: `jit`, `lax.scan`, donation. The tasks are not copied into
it: `bank` is held once, and every other array has an axis for the environments. Read grids through the properties
(`working_grid`, `target_grid` ...), which are the same for both engines: the kernel keeps grids as bytes with the
environments on the first axis, the engine in JAX keeps them as bits with the environments on the last axis.

Shapes below are those of a batch. A single state lacks the axis of the batch, and a trajectory has one for the steps in
front; the properties read all three.
"""

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from brim.core.errors import DataError, MismatchError
from brim.envs.arc.operations import PADDING
from brim.envs.arc.tasks.bank import TaskBank

RUNNING, TERMINATED, TRUNCATED = 0, 1, 2
"""The values of `ArcEnvState.status`."""


BITS = ("cells", "held", "selection", "pair_planes")
"""The fields that have bits, and the environments on the last axis, if the engine in JAX made them."""


class ArcEnvState(NamedTuple):
    """The state of a batch of environments."""

    bank: TaskBank
    """The tasks; without an axis for the environments."""
    key: Any
    """[batch, 2], uint32: the environment's own key. It never changes."""
    fixed_task: Any
    """[batch], int32: the task of every episode, or -1 where each episode draws one from the bank. It never
    changes."""
    episode: Any
    """[batch], int32: number of the episode. With the key it decides what is random about the episode."""
    task_index: Any
    """[batch], int32: number of the task in the bank."""
    pair_index: Any
    """[batch], int32: number of the pair in the bank."""
    cells: Any
    """The working grid: uint8 [batch, height, width] for the kernel, uint32 [4, height, batch] for JAX."""
    held: Any
    """The clipboard, like `cells`. Its content begins at the upper left cell; `PADDING` where it holds nothing."""
    selection: Any
    """The cells that the last operation was applied to, as bits: uint32 [batch, height] for the kernel,
    [height, batch] for JAX."""
    height: Any
    """[batch], int32: rows of the working grid."""
    width: Any
    """[batch], int32: columns of the working grid."""
    step_count: Any
    """[batch], int32: steps since the beginning of the episode."""
    similarity_score: Any
    """[batch], float32: equal cells divided by the cells that the working grid or the target has."""
    status: Any
    """[batch], int32: `RUNNING`, `TERMINATED` or `TRUNCATED`."""
    demos_solved: Any
    """[batch], uint32: bit n is set if demonstration pair n was solved in this episode."""
    tests_solved: Any
    """[batch], uint32: the same for test pairs."""
    pair_planes: Any = None
    """uint32 [2, 4, height, batch]: input and target of the pair as bits. None for the kernel, which reads the bank."""

    @property
    def has_bits(self) -> bool:
        """Whether grids are kept as bits, as the engine in JAX does."""
        return self.cells.dtype == np.uint32

    @property
    def batch_size(self) -> int:
        """Number of environments; of a trajectory, those of one step."""
        return self.step_count.shape[-1]

    @property
    def working_grid(self) -> Any:
        """[batch, height, width], uint8: the grid that operations change. `PADDING` outside of it."""
        return self._grid(self.cells)

    @property
    def clipboard(self) -> Any:
        """[batch, height, width], uint8: what was copied, from the upper left cell on. `PADDING` where nothing was."""
        return self._grid(self.held)

    @property
    def input_grid(self) -> Any:
        """[batch, height, width], uint8: the input of the pair."""
        return self.bank.inputs[self.pair_index]

    @property
    def target_grid(self) -> Any:
        """[batch, height, width], uint8: the answer of the pair. Also on test pairs: only observations hide it."""
        return self.bank.targets[self.pair_index]

    @property
    def working_grid_mask(self) -> Any:
        """[batch, height, width], bool: the cells of the working grid."""
        return self.working_grid != PADDING

    @property
    def target_grid_mask(self) -> Any:
        """[batch, height, width], bool: the cells of the target."""
        return self.target_grid != PADDING

    @property
    def selected(self) -> Any:
        """[batch, height, width], bool: the cells that the last operation was applied to."""
        rows = self.selection
        if self.has_bits and rows.ndim > 1:
            rows = rows.swapaxes(-1, -2)
        columns = np.arange(self.bank.inputs.shape[-1], dtype=np.uint32)
        return (rows[..., None] >> columns) & np.uint32(1) != 0

    @property
    def episode_done(self) -> Any:
        """[batch], bool: the episode has ended, and the environment has not been reset."""
        return self.status != RUNNING

    @property
    def on_test_pair(self) -> Any:
        """[batch], bool: the pair is one of the task's test pairs."""
        return self.pair_index >= self.bank.first[self.task_index, 1]

    @property
    def solved(self) -> Any:
        """[batch], bool: the working grid has the target's size and equals it in every cell."""
        return self.similarity_score == 1

    def _grid(self, kept: Any) -> Any:
        if not self.has_bits:
            return kept
        from brim.envs.arc.engine.planes.bits import unpack

        return unpack(kept, self.bank.inputs.shape[-1], single=self.step_count.ndim == 0)


def take_states(states: ArcEnvState, index: Any) -> ArcEnvState:
    """Return the states of some environments of a batch: an integer gives a single state, a slice or an array of
    numbers gives a smaller batch. The bank is shared.
    """
    chosen = {
        name: leaf[..., index] if axis_of(states, name) else leaf[index]
        for name, leaf in zip(states._fields[1:], states[1:], strict=True)
        if leaf is not None
    }
    return ArcEnvState(bank=states.bank, **chosen)


def stack_states(states_list: Sequence[ArcEnvState]) -> ArcEnvState:
    """Put single states together into a batch, in their order. They must share one bank, which is carried once.

    Raises:
        DataError: The list is empty, or one of them is a batch already.
        MismatchError: They use different banks, or different engines.
    """
    first = check_alike(states_list)
    single = isinstance(first.status, np.ndarray | np.generic)
    stack = np.stack if single else sys.modules["jax"].numpy.stack
    leaves = {
        name: stack([getattr(state, name) for state in states_list], axis=axis_of(first, name))
        for name in ArcEnvState._fields[1:]
        if getattr(first, name) is not None
    }
    return ArcEnvState(bank=first.bank, **leaves)


def check_alike(states_list: Sequence[ArcEnvState]) -> ArcEnvState:
    """Check that single states can be put together into a batch, and return the first."""
    if not states_list:
        raise DataError("there are no states to put together: the list is empty")
    first = states_list[0]
    for place, state in enumerate(states_list):
        if not isinstance(state, ArcEnvState) or state.status.ndim != 0:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DataError(f"entry {place} is not a single state; take them from a batch with take_states(states, n)")
        if state.bank.inputs is not first.bank.inputs:
            raise MismatchError(f"state {place} has another bank of tasks than state 0; a batch has one bank")
        if state.has_bits != first.has_bits:
            raise MismatchError(f"state {place} was made by another engine than state 0")
    return first


def axis_of(states: ArcEnvState, name: str) -> int:
    """Return the axis of a field that counts environments: -1 for grids of bits, and 0 for everything else."""
    return -1 if states.has_bits and name in BITS else 0
