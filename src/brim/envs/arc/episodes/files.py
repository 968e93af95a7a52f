"""Files of episodes: one JSON document that holds every task and every configuration once.

    {"format": "brim.arc-episodes/1", "configs": [...], "tasks": [...], "episodes": [...], "checksum": "..."}

A row of a grid is a string of digits. An action is a line of numbers: the operation and the cells, "3 0 5" for a point
and "26 0 0 9 9" for a rectangle. For a mask it is the operation and every row that has selected cells, with its bits as
a hexadecimal number, in which the leftmost cell is the lowest bit: "3 0:1f 2:11".
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from brim.core.atomic import atomic_file
from brim.core.document import Document
from brim.core.errors import BrimError, DamagedError, DataError
from brim.core.options import from_dict, to_dict
from brim.envs.arc.actions import KINDS, MaskAction, StructuredAction
from brim.envs.arc.config import JaxArcConfig
from brim.envs.arc.episodes.episode import ArcEpisode
from brim.envs.arc.tasks.task import Grid, JaxArcTask

DOCUMENT = Document(format="brim.arc-episodes/1", what="a file of ARC episodes", again="record the episodes again")
FACTS = ("kind", "pair", "env", "episode", "reward", "similarity", "solved", "terminated", "truncated")

Value = TypeVar("Value")


def write_episodes(path: str | os.PathLike[str], episodes: Sequence[ArcEpisode]) -> None:
    """Write episodes to a file, whole or not at all.

    Raises:
        DataError: There are none.
    """
    if not episodes:
        raise DataError("there are no episodes to write")
    with atomic_file(path) as file:
        file.write(episodes_bytes(episodes))


def episodes_bytes(episodes: Sequence[ArcEpisode]) -> bytes:
    """Return the content of a file of episodes."""
    # The engine has no influence on an episode.
    configs = [replace(one.config, environment=replace(one.config.environment, engine="auto")) for one in episodes]
    config_numbers = _numbered(configs)
    task_numbers = _numbered([one.task for one in episodes])
    return DOCUMENT.encode(
        {
            "configs": [to_dict(config) for config in config_numbers],
            "tasks": [_task_values(task) for task in task_numbers],
            "episodes": [
                {
                    "task": task_numbers[one.task],
                    "config": config_numbers[config],
                    **{name: getattr(one, name) for name in FACTS},
                    "actions": [_line(one.actions, step) for step in range(one.steps)],
                }
                for one, config in zip(episodes, configs, strict=True)
            ],
        }
    )


def read_episodes(path: str | os.PathLike[str]) -> list[ArcEpisode]:
    """Read the episodes of a file, in their order.

    Raises:
        DataError: There is no such file, or it is not one of episodes.
        DamagedError: It is truncated, altered or of another version.
    """
    values = DOCUMENT.read(path)
    try:
        configs = [from_dict(JaxArcConfig, one) for one in values["configs"]]
        tasks = [_task(one) for one in values["tasks"]]
        return [_episode(one, tasks, configs) for one in values["episodes"]]
    except (BrimError, KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        reason = f"{type(error).__name__}: {error}" if not isinstance(error, BrimError) else str(error)
        raise DamagedError(f"{os.fspath(path)} cannot be understood ({reason[:200]}); {DOCUMENT.again}") from None


def is_episodes(path: str | os.PathLike[str]) -> bool:
    """Return whether a file says of itself that it holds episodes, of this version or another."""
    try:
        with open(path, "rb") as file:
            return b'"brim.arc-episodes/' in file.read(200)
    except OSError:
        return False


def _numbered(values: Sequence[Value]) -> dict[Value, int]:
    """Number the different values in the order of their first appearance."""
    return {value: number for number, value in enumerate(dict.fromkeys(values))}


def _task_values(task: JaxArcTask) -> dict[str, Any]:
    return {
        "id": task.id,
        **{
            kind: [{"input": _rows(pair.input), "output": _rows(pair.output)} for pair in pairs]
            for kind, pairs in (("train", task.train), ("test", task.test))
        },
    }


def _task(values: Mapping[str, Any]) -> JaxArcTask:
    if not isinstance(values["id"], str):
        raise DataError(f"the id of a task must be a string, got {values['id']!r}")
    pairs = {kind: [[_grid(one["input"]), _grid(one["output"])] for one in values[kind]] for kind in ("train", "test")}
    return JaxArcTask(values["id"], **pairs)


def _rows(grid: Grid) -> list[str]:
    return ["".join(map(str, row)) for row in grid.tolist()]


def _grid(rows: Sequence[str]) -> list[list[int]]:
    return [[int(digit) for digit in row] for row in rows]


def _line(actions: StructuredAction, step: int) -> str:
    if not isinstance(actions, MaskAction):
        return " ".join(str(int(part[step])) for part in actions)
    rows = [f"{row}:{_bits(cells):x}" for row, cells in enumerate(actions.selection[step]) if cells.any()]
    return " ".join([str(int(actions.operation[step])), *rows])


def _bits(cells: NDArray[np.bool_]) -> int:
    return sum(1 << int(column) for column in np.flatnonzero(cells))


def _episode(values: Mapping[str, Any], tasks: Sequence[JaxArcTask], configs: Sequence[JaxArcConfig]) -> ArcEpisode:
    config = configs[_index(values["config"])]
    facts = {name: values[name] for name in FACTS}
    for name in ("solved", "terminated", "truncated"):
        if type(facts[name]) is not bool:
            raise DataError(f"{name} must be true or false, got {facts[name]!r}")
    for name in ("pair", "env", "episode"):
        _index(facts[name])
    for name in ("reward", "similarity"):
        facts[name] = float(facts[name])
    return ArcEpisode(
        task=tasks[_index(values["task"])], config=config, actions=_actions(values["actions"], config), **facts
    )


def _index(value: object) -> int:
    if type(value) is not int or value < 0:
        raise DataError(f"a number from 0 up is expected, got {value!r}")
    return value


def _actions(lines: Sequence[str], config: JaxArcConfig) -> StructuredAction:
    kind = KINDS[config.action.selection_format]
    if kind is MaskAction:
        operations = [int(line.split()[0]) for line in lines]
        selection = np.zeros((len(lines), *config.shape), np.bool_)
        for step, line in enumerate(lines):
            for part in line.split()[1:]:
                row, _, bits = part.partition(":")
                selection[step, _index(int(row))] = _cells(int(bits, 16), config.shape[1])
        return MaskAction(_int32(operations), selection)
    numbers = _int32([[int(number) for number in line.split()] for line in lines])
    return kind(*numbers.reshape(-1, len(kind._fields)).T)


def _int32(numbers: list[int] | list[list[int]]) -> NDArray[np.int32]:
    found = np.array(numbers, np.int64)
    narrow = found.astype(np.int32)
    if (too_large := found[found != narrow]).size:  # NumPy 1 does not refuse them
        raise DataError(f"the numbers of an action have 32 bits, got {too_large[0]}")
    return narrow


def _cells(bits: int, columns: int) -> NDArray[np.bool_]:
    if bits >> columns:
        raise DataError(f"a row of {columns} cells has no cell for the bits {bits:x}")
    return np.array([bits >> column & 1 for column in range(columns)], np.bool_)
