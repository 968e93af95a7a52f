"""Grids, tasks and episodes as short text for a page's script.

A grid is a run-length code of its cells, row by row: a letter for a colour ("a" is 0, "j" is 9, "k" an open cell of the
clipboard) and the length of the run if it is above 1, so "3x4:a5bj6". The grids of an episode are written as what each
step changes: "z" stands for a cell that stays as it was. `grids.js` and `episodes.js` read these texts.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.envs.arc.actions import BboxAction, MaskAction
from brim.envs.arc.episodes.episode import ArcEpisode, Frame
from brim.envs.arc.operations import OPERATIONS
from brim.envs.arc.tasks.task import JaxArcTask

LETTERS = np.frombuffer(b"abcdefghijk", "S1")
SAME = b"z"
REPEATED = re.compile(r"(.)\1+")
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
UNKNOWN, FORBIDDEN, OUTSIDE_ARRAYS, OUTSIDE_GRID = "ufag"
"""Reasons why an action is invalid."""


def runs_text(cells: NDArray[Any], before: NDArray[Any] | None = None) -> str:
    """Return the run-length code of cells. Given cells of the same shape `before`, only those that differ are written.

    Example:
        >>> runs_text(np.array([[0, 0, 1], [1, 0, 0]]))
        'a2b2a2'
        >>> runs_text(np.array([[0, 0, 1], [1, 5, 0]]), np.array([[0, 0, 1], [1, 0, 0]]))
        'z4f'
    """
    letters = LETTERS[cells.ravel()]
    if before is not None:
        letters[cells.ravel() == before.ravel()] = SAME
    text = letters.tobytes().rstrip(SAME).decode()
    return REPEATED.sub(lambda found: f"{found[1]}{len(found[0])}", text)


def grid_text(grid: NDArray[np.uint8]) -> str:
    """Return a grid with its rows and columns: "3x4:a5bj6"."""
    return f"{grid.shape[0]}x{grid.shape[1]}:{runs_text(grid)}"


def task_json(task: JaxArcTask) -> dict[str, list[str]]:
    """Return the grids of a task: input, output, input, output and so on."""
    return {
        "train": [grid_text(grid) for pair in task.train for grid in pair],
        "test": [grid_text(grid) for pair in task.test for grid in pair],
    }


def episode_json(episode: ArcEpisode) -> dict[str, Any]:
    """Return the frames of an episode as columns. In a column, a step that changes nothing has an empty entry.

    Raises:
        DamagedError: The recorded outcome does not follow from the actions.
    """
    frames = frames_of(episode)
    steps = list(pairwise(frames))
    return {
        "width": episode.config.shape[1],
        "begin": [episode.kind, episode.pair],
        "operations": ",".join(_operation(episode, at, frame) for at, frame in enumerate(frames[1:])),
        "selections": ",".join(_selection(episode, at, frame) for at, frame in enumerate(frames[1:])),
        "grids": ",".join(_change(episode, before, after) for before, after in steps),
        "rewards": _numbers([frame.reward for frame in frames[1:]]),
        "similarity": _numbers([frame.similarity for frame in frames]),
        "clipboards": {
            at: grid_text(after.clipboard)
            for at, (before, after) in enumerate(steps, start=1)
            if not np.array_equal(before.clipboard, after.clipboard)
        },
        "pairs": {
            at: [after.kind, after.pair]
            for at, (before, after) in enumerate(steps, start=1)
            if (before.kind, before.pair) != (after.kind, after.pair)
        },
    }


def frames_of(episode: ArcEpisode) -> tuple[Frame, ...]:
    """Return the frames without keeping them: those of hundreds of episodes would take hundreds of megabytes."""
    known = vars(episode).get("frames")
    return replace(episode).frames if known is None else known


def _operation(episode: ArcEpisode, at: int, frame: Frame) -> str:
    """Return the number of an operation; if the action is invalid, also a letter for the reason."""
    return f"{frame.operation}!{_reason(episode, at)}" if frame.invalid else f"{frame.operation}"


def _reason(episode: ArcEpisode, at: int) -> str:
    operation = int(episode.actions.operation[at])
    if not 0 <= operation < OPERATIONS:
        return UNKNOWN
    if not episode.config.action.allowed >> operation & 1:
        return FORBIDDEN
    corners = _corners(episode, at)
    inside = all(0 <= row < episode.config.shape[0] and 0 <= col < episode.config.shape[1] for row, col in corners)
    return OUTSIDE_GRID if inside else OUTSIDE_ARRAYS


def _corners(episode: ArcEpisode, at: int) -> list[tuple[int, int]]:
    """Return the cell of a point or the corners of a rectangle, as they were given; nothing for a mask."""
    actions = episode.actions
    if isinstance(actions, MaskAction):
        return []
    if isinstance(actions, BboxAction):
        return [(int(actions.r1[at]), int(actions.c1[at])), (int(actions.r2[at]), int(actions.c2[at]))]
    return [(int(actions.row[at]), int(actions.col[at]))]


def _selection(episode: ArcEpisode, at: int, frame: Frame) -> str:
    """Return the cells that an operation was applied to: a rectangle as four digits of base 36, others as runs.

    The cells of an invalid action are those it asked for, which may not exist.
    """
    if frame.invalid:
        if isinstance(episode.actions, MaskAction):
            return _cells(episode.actions.selection[at])
        return "?" + ".".join(f"{number}" for corner in _corners(episode, at) for number in corner)
    return _cells(frame.selected)


def _cells(mask: NDArray[np.bool_]) -> str:
    rows, columns = np.nonzero(mask)
    if not len(rows):
        return ""
    top, left, bottom, right = int(rows.min()), int(columns.min()), int(rows.max()), int(columns.max())
    if len(rows) == (bottom - top + 1) * (right - left + 1):
        return "".join(DIGITS[edge] for edge in (top, left, bottom, right))
    return "/" + runs_text(mask.astype(np.uint8), np.zeros(mask.shape, np.uint8))


def _change(episode: ArcEpisode, before: Frame, after: Frame) -> str:
    """Return what a step does to the working grid: nothing, "=" for the input of the pair, changes, or a new grid."""
    if np.array_equal(before.grid, after.grid):
        return ""
    pairs = episode.task.train if after.kind == "train" else episode.task.test
    if np.array_equal(after.grid, pairs[after.pair].input):
        return "="
    if before.grid.shape == after.grid.shape:
        return runs_text(after.grid, before.grid)
    return grid_text(after.grid)


def _numbers(values: Sequence[float]) -> str:
    """Return numbers with six significant digits; one that repeats the number before it is left empty."""
    texts = [f"{value:.6g}" for value in values]
    return ",".join("" if at and text == texts[at - 1] else text for at, text in enumerate(texts))
