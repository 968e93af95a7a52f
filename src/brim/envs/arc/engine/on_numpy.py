"""Step environments whose arrays are NumPy's: with the compiled kernel, or with the definition where it is missing.

No JAX is imported. States are values: a step returns new ones, unless it may change those it was given (`donate`).
"""

import warnings
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import DataError
from brim.envs.arc.actions import OUT_OF_RANGE, BboxAction, MaskAction, PointAction, StructuredAction
from brim.envs.arc.config import JaxArcConfig
from brim.envs.arc.engine import reference
from brim.envs.arc.engine.call import CHANGED, Report, blank, make_report, numbers, parts, resetting
from brim.envs.arc.operations import PADDING
from brim.envs.arc.state import ArcEnvState
from brim.envs.arc.tasks.bank import TaskBank

try:
    from brim.envs.arc.engine import _kernel as kernel
except ImportError:
    kernel = None


def reset(
    bank: TaskBank, keys: NDArray[np.uint32], fixed_task: NDArray[np.int32], config: JaxArcConfig
) -> tuple[ArcEnvState, NDArray[np.uint8]]:
    """Begin episode 0 of every environment, and return states and observations."""
    zeros = np.zeros(len(keys), np.int32)
    start = blank(bank, keys, fixed_task, config.shape)
    states, obs, _ = step(start, PointAction(zeros, zeros, zeros), resetting(config), donate=True)
    return states, obs


def step(
    states: ArcEnvState, actions: StructuredAction, config: JaxArcConfig, *, donate: bool = False
) -> tuple[ArcEnvState, NDArray[np.uint8], Report]:
    """Step every environment, and return states, observations and the report.

    `donate` lets the step change the given states instead of a copy.

    Raises:
        DataError: A state refers to something that its bank does not have.
    """
    if not donate:
        states = states._replace(**{name: getattr(states, name).copy() for name in CHANGED})
    if kernel is None:
        _warn_once()
        report = _by_definition(states, actions, config)
        return states, states.cells.copy(), report
    report = make_report(np.empty, len(states.status), config)
    integers, terms = numbers(config)
    bank = states.bank
    given = (_small(part) for part in parts(actions))
    obs = np.empty_like(states.cells)
    arrays = (
        *(integers, terms, bank.inputs, bank.targets, bank.sizes, bank.first, bank.count),
        *(states.key, states.fixed_task),
        *given,
        *(getattr(states, name) for name in CHANGED),
        *report,
        obs,
    )
    try:
        kernel.step(arrays)
    except ValueError as error:
        raise DataError(f"the states cannot be stepped: {error}") from None
    return states, obs, report


def _small(part: Any) -> NDArray[Any]:
    """Return a part of the actions as the kernel reads it."""
    if part is None:
        return np.empty(0, np.int32)
    array = np.asarray(part)
    if array.dtype == np.bool_ or array.dtype == np.int32:
        return np.ascontiguousarray(array)
    return np.clip(array, -1, OUT_OF_RANGE).astype(np.int32)


@cache
def _warn_once() -> None:
    warnings.warn(
        "brim's kernel for ARC is not compiled here, so NumPy environments run one at a time; install a C compiler and"
        " reinstall brim, or use JAX arrays",
        RuntimeWarning,
        stacklevel=5,
    )


def _by_definition(states: ArcEnvState, actions: StructuredAction, config: JaxArcConfig) -> Report:
    """Step the environments one after the other with the definition, in place."""
    report = make_report(np.empty, len(states.status), config)
    for lane in range(len(states.status)):
        before = read_env(states, lane)
        operation = int(np.asarray(actions.operation)[lane])
        chosen = chosen_cells(actions, lane, config.shape)
        after, outcome = reference.step(before, states.bank, config, operation, chosen)
        write_env(states, lane, after)
        for name in Report._fields[:-1]:
            getattr(report, name)[lane] = getattr(outcome, name)
        if len(report.final):
            report.final[lane] = _padded(outcome.final.grid, config.shape)
    return report


def chosen_cells(actions: StructuredAction, lane: int, shape: tuple[int, int]) -> NDArray[np.bool_] | None:
    """Return the cells that the action of one environment selects; None if it is out of range."""
    if isinstance(actions, MaskAction):
        return np.array(np.asarray(actions.selection)[lane])
    if isinstance(actions, BboxAction):
        corners = (actions.r1, actions.c1, actions.r2, actions.c2)
    else:
        assert isinstance(actions, PointAction)
        corners = (actions.row, actions.col, actions.row, actions.col)
    r1, c1, r2, c2 = (int(np.asarray(corner)[lane]) for corner in corners)
    top, left, bottom, right = min(r1, r2), min(c1, c2), max(r1, r2), max(c1, c2)
    if top < 0 or left < 0 or bottom >= shape[0] or right >= shape[1]:
        return None
    chosen = np.zeros(shape, np.bool_)
    chosen[top : bottom + 1, left : right + 1] = True
    return chosen


def read_env(states: ArcEnvState, lane: int) -> reference.Env:
    """Return one environment of a batch as the definition sees it. The states must be NumPy's, with grids as bytes."""
    rows, columns = int(states.height[lane]), int(states.width[lane])
    bits = np.arange(states.bank.shape[1], dtype=np.uint32)
    return reference.Env(
        key=states.key[lane],
        fixed_task=int(states.fixed_task[lane]),
        episode=int(states.episode[lane]),
        task=int(states.task_index[lane]),
        pair=int(states.pair_index[lane]),
        grid=states.cells[lane, :rows, :columns].copy(),
        clipboard=states.held[lane].copy(),
        selected=states.selection[lane][:, None] >> bits & np.uint32(1) != 0,
        steps=int(states.step_count[lane]),
        similarity=np.float32(states.similarity_score[lane]),
        status=int(states.status[lane]),
        demos_solved=int(states.demos_solved[lane]),
        tests_solved=int(states.tests_solved[lane]),
    )


def write_env(states: ArcEnvState, lane: int, env: reference.Env) -> None:
    """Write one environment into a batch."""
    shape = states.bank.shape
    powers = np.uint32(1) << np.arange(shape[1], dtype=np.uint32)
    states.episode[lane] = env.episode
    states.task_index[lane] = env.task
    states.pair_index[lane] = env.pair
    states.cells[lane] = _padded(env.grid, shape)
    states.held[lane] = env.clipboard
    states.selection[lane] = (env.selected * powers).sum(axis=1)
    states.height[lane], states.width[lane] = env.grid.shape
    states.step_count[lane] = env.steps
    states.similarity_score[lane] = env.similarity
    states.status[lane] = env.status
    states.demos_solved[lane] = env.demos_solved
    states.tests_solved[lane] = env.tests_solved


def _padded(grid: NDArray[np.uint8], shape: tuple[int, int]) -> NDArray[np.uint8]:
    held = np.full(shape, PADDING, np.uint8)
    held[: grid.shape[0], : grid.shape[1]] = grid
    return held
