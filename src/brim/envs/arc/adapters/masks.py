"""Which actions make sense in a state: masks for agents that choose among the others.

An operation is masked if it is not allowed, or if it changes nothing whatever is selected: pasting an empty clipboard,
going to test pairs of a task that has none, going to the first unsolved pair where all are solved. A selection is
masked if all of it lies outside of the working grid, except for resizing. If nothing were left, all allowed operations
are. An action that is not masked may still change nothing, such as filling a cell with the colour that it has.

All functions take states of NumPy and of JAX.
"""

from typing import Any

import numpy as np

from brim.envs.arc.adapters.flat import flat_table
from brim.envs.arc.arrays import numpy_of
from brim.envs.arc.config import JaxArcConfig
from brim.envs.arc.operations import OPERATIONS, PADDING, ArcOperation
from brim.envs.arc.state import ArcEnvState


def operation_mask(states: ArcEnvState, config: JaxArcConfig) -> Any:
    """Return which operations make sense. [batch, operations], bool"""
    numpy, bank = numpy_of(states.status), states.bank
    allowed = np.array([config.action.allowed >> number & 1 for number in range(OPERATIONS)], np.bool_)
    demos, tests = bank.count[states.task_index, 0], bank.count[states.task_index, 1]
    useless = {
        ArcOperation.PASTE: (states.clipboard == PADDING).all(axis=(-1, -2)),
        ArcOperation.NEXT_TEST: tests == 0,
        ArcOperation.PREVIOUS_TEST: tests == 0,
        ArcOperation.FIRST_UNSOLVED_DEMO: states.demos_solved == _all(demos),
        ArcOperation.FIRST_UNSOLVED_TEST: (tests == 0) | (states.tests_solved == _all(tests)),
    }
    nothing = numpy.zeros(states.status.shape, np.bool_)
    useful = ~numpy.stack([useless.get(operation, nothing) for operation in ArcOperation], axis=-1) & allowed
    return numpy.where(useful.any(axis=-1, keepdims=True), useful, allowed)


def flat_mask(states: ArcEnvState, config: JaxArcConfig) -> Any:
    """Return which numbers of flat actions make sense. [batch, actions], bool"""
    numpy, table = numpy_of(states.status), flat_table(config)
    operations = operation_mask(states, config)[..., table.operations]
    inside_rows = table.rows[:, 0] < states.height[..., None]
    inside_columns = table.columns[:, 0] < states.width[..., None]
    inside = (inside_rows[..., :, None] & inside_columns[..., None, :]).reshape((*states.status.shape, 1, table.places))
    anywhere = table.operations[: table.selecting] == ArcOperation.RESIZE
    selecting = operations[..., : table.selecting, None] & (inside | anywhere[:, None])
    flat = selecting.reshape((*states.status.shape, table.selecting * table.places))
    return numpy.concatenate([flat, operations[..., table.selecting :]], axis=-1)


def parts_mask(states: ArcEnvState, config: JaxArcConfig) -> Any:
    """Return which operations and which coordinates make sense, one after the other. [batch, sum of the sizes], bool

    This is the mask of a MultiDiscrete space, whose parts are chosen independently: coordinates outside of the working
    grid are masked only if resizing is not allowed. For masks as selections, it has the operations alone.
    """
    numpy = numpy_of(states.status)
    parts = [operation_mask(states, config)]
    corners = {"point": 1, "bbox": 2, "mask": 0}[config.action.selection_format]
    can_resize = bool(config.action.allowed >> ArcOperation.RESIZE & 1)
    for _ in range(corners):
        for size, limit in zip((states.height, states.width), config.shape, strict=True):
            parts.append((np.arange(limit) < size[..., None]) | can_resize)
    return numpy.concatenate(parts, axis=-1)


def _all(count: Any) -> Any:
    """Return the bits of `count` solved pairs."""
    numpy = numpy_of(count)
    return np.uint32(0xFFFFFFFF) >> (32 - numpy.maximum(count, 1)).astype(np.uint32)
