"""A bank of tasks as arrays: what environments read while they run.

A bank is held once, however many environments use it. Environments refer to tasks and pairs by number.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import DataError, MismatchError
from brim.envs.arc.config import JaxArcConfig
from brim.envs.arc.operations import PADDING
from brim.envs.arc.tasks.task import Grid, JaxArcTask

MOST_TASKS = 2**16
"""Most tasks of a bank: one is drawn with products of 32 bits."""


class TaskBank(NamedTuple):
    """All pairs of all tasks, padded to one size. Pairs are numbered task by task, demonstrations before tests.

    The arrays are NumPy's or JAX's.
    """

    inputs: Any
    """[pairs, height, width], uint8, `PADDING` outside of a grid."""
    targets: Any
    """[pairs, height, width], uint8"""
    sizes: Any
    """[pairs, 4], int32: rows and columns of the input and of the target."""
    first: Any
    """[tasks, 2], int32: number of the first demonstration pair and of the first test pair."""
    count: Any
    """[tasks, 2], int32: number of demonstration pairs and of test pairs."""
    planes: Any = None
    """[pairs, 2, 4, height], uint32: inputs and targets as bits, for the engine in JAX; None elsewhere."""

    @property
    def num_tasks(self) -> int:
        return self.first.shape[0]

    @property
    def num_pairs(self) -> int:
        return self.inputs.shape[0]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the arrays that hold grids."""
        return self.inputs.shape[1:]


Tasks = JaxArcTask | Sequence[JaxArcTask] | TaskBank
"""One task, several, or a bank of them."""


def build_bank(tasks: JaxArcTask | Sequence[JaxArcTask], config: JaxArcConfig) -> TaskBank:
    """Put tasks into a bank of NumPy arrays. Task n of the sequence is task n of the bank.

    Raises:
        DataError: There are no tasks, or a grid is larger than the configuration allows.
    """
    tasks = [tasks] if isinstance(tasks, JaxArcTask) else list(tasks)
    if not tasks:
        raise DataError("a bank needs at least one task, got none")
    if len(tasks) > MOST_TASKS:
        raise DataError(f"a bank holds at most {MOST_TASKS} tasks, got {len(tasks)}")
    _all_tasks(tuple(tasks))
    count = np.array([(len(task.train), len(task.test)) for task in tasks], np.int32)
    starts = np.cumsum(count.ravel()) - count.ravel()
    named = [
        (f"task {task.id}, {kind} pair {number}", pair)
        for task in tasks
        for kind, pairs in (("train", task.train), ("test", task.test))
        for number, pair in enumerate(pairs)
    ]
    inputs = _padded([(f"{what}, input", pair.input) for what, pair in named], config.shape)
    targets = _padded([(f"{what}, output", pair.output) for what, pair in named], config.shape)
    sizes = np.array([(*pair.input.shape, *pair.output.shape) for _, pair in named], np.int32)
    return TaskBank(inputs, targets, sizes, starts.reshape(-1, 2).astype(np.int32), count)


def as_bank(tasks: Tasks, config: JaxArcConfig) -> TaskBank:
    """Return a bank as it is, or the bank of one or several tasks.

    Raises:
        DataError: There are no tasks, a grid is too large, or episodes begin with test pairs and a task has none.
        MismatchError: The bank was built for grids of another size than the configuration's.
    """
    if isinstance(tasks, TaskBank):
        bank = tasks
    else:
        sequence = (tasks,) if isinstance(tasks, JaxArcTask) else _sequence(tasks)
        bank = _kept(sequence, config)
    if tuple(bank.shape) != config.shape:
        raise MismatchError(
            f"the bank holds grids of {bank.shape[0]}x{bank.shape[1]}, but the configuration says"
            f" {config.shape[0]}x{config.shape[1]}; build the bank with this configuration"
        )
    if config.environment.episode_mode == "test":
        _check_tests(bank, tasks)
    return bank


def _sequence(tasks: object) -> tuple[JaxArcTask, ...]:
    if not isinstance(tasks, list | tuple):
        raise DataError(f"task_data must be a JaxArcTask, a list of them or a TaskBank, got {type(tasks).__name__}")
    return _all_tasks(tuple(tasks))


def _all_tasks(tasks: tuple[Any, ...]) -> tuple[JaxArcTask, ...]:
    for place, task in enumerate(tasks):
        if not isinstance(task, JaxArcTask):
            raise DataError(f"tasks must be JaxArcTask, but number {place} is {type(task).__name__}")
    return tasks


@lru_cache(maxsize=8)
def _kept(tasks: tuple[JaxArcTask, ...], config: JaxArcConfig) -> TaskBank:
    """Build a bank once for repeated resets with the same tasks."""
    return build_bank(tasks, config)


def _check_tests(bank: TaskBank, tasks: Tasks) -> None:
    try:
        count = np.asarray(bank.count)
    except TypeError:  # traced by JAX: no values to read yet
        return
    without = np.flatnonzero(count[:, 1] == 0)
    if len(without):
        number = int(without[0])
        named = tasks if isinstance(tasks, JaxArcTask) else None if isinstance(tasks, TaskBank) else tasks[number]
        raise DataError(
            f'episode_mode is "test", but task {named.id if named else number} has no test pairs; use "train"'
        )


def _padded(grids: Sequence[tuple[str, Grid]], shape: tuple[int, int]) -> NDArray[np.uint8]:
    held = np.full((len(grids), *shape), PADDING, np.uint8)
    for place, (what, grid) in zip(held, grids, strict=True):
        rows, columns = grid.shape
        if rows > shape[0] or columns > shape[1]:
            raise DataError(
                f"{what}: {rows}x{columns} is larger than the configured {shape[0]}x{shape[1]}; raise"
                " max_grid_height and max_grid_width, or leave the task out"
            )
        place[:rows, :columns] = grid
    return held
