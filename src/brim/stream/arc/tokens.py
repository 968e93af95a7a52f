"""ARC episodes as tokens, and how many tokens those are. The words are those of `brim.data.tokenizer.arc`.

    bos FORMAT rH cW                     how actions select cells; last row and column of the arrays
    demo GRID to GRID                    each demonstration that is shown
    train GRID, or test GRID             the pair to work on, by its kind, and its input
    goal GRID                            its output, if targets are shown
    act opN SELECTION step               an action
    state GRID                           the working grid after it
    change rR cC COLOUR ... grid         or the cells that it changed, if these are fewer tokens
    eos                                  if the episode terminated; a truncated one just ends

A grid is its colours row by row, each row followed by `row`, and `grid` at the end. A selection is `rR cC` for a point
and `rR cC rR cC` for a rectangle, as they were given. A mask is its runs of selected cells, row by row: `rR cC cC` with
the first and the last column of a run. The selection is written for every operation, also for those that ignore it. If
an action begins another pair, `train GRID` or `test GRID` stands after it in place of `state GRID`, and `goal GRID`
after that if targets are shown.

`brim.stream.arc.decode` reads tokens back. Clipboard, rewards and the numbers of pairs are not written.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import DataError
from brim.data.tokenizer.arc import COLOURS, COLUMN, COLUMNS, ID, OPERATION, OPERATIONS, ROW, ROWS
from brim.envs.arc.actions import MaskAction, StructuredAction
from brim.envs.arc.tasks.task import Grid, Pair


class View(NamedTuple):
    """The working grid before the first step or after a step."""

    grid: Grid
    kind: str
    """Whether its pair is a demonstration ("train") or a test ("test")."""
    target: Grid | None = None
    """The output of its pair; None if it is not shown."""
    begins: bool = False
    """Whether its pair begins here. True for the first view."""


class Transcript(NamedTuple):
    """Everything that the tokens of a sample say about an episode, or about one step of it."""

    selection_format: str
    """How actions select cells: "point", "bbox" or "mask"."""
    shape: tuple[int, int]
    """Rows and columns of the arrays."""
    demonstrations: tuple[Pair, ...]
    views: tuple[View, ...]
    """The beginning, and after it the view after each step, or none of these."""
    actions: StructuredAction
    """NumPy arrays with the steps on the first axis."""
    terminated: bool

    @property
    def steps(self) -> int:
        """Number of actions."""
        return len(self.actions.operation)


def transcript_tokens(transcript: Transcript, *, changes: bool = False) -> tuple[list[int], list[range]]:
    """Return the tokens of a transcript, and the places of each action: operation, selection, `step`.

    Args:
        changes: Write the cells that a step changed, where these are fewer tokens than the grid.

    Raises:
        DataError: An action or a grid has something that no word stands for.
    """
    height, width = transcript.shape
    tokens = [ID["bos"], ID[transcript.selection_format], ROW + height - 1, COLUMN + width - 1]
    for pair in transcript.demonstrations:
        tokens += [ID["demo"], *grid_tokens(pair.input), ID["to"], *grid_tokens(pair.output)]
    tokens += _view_tokens(None, transcript.views[0], changes)
    places: list[range] = []
    for step in range(transcript.steps):
        action = action_tokens(transcript.actions, step)
        places.append(range(len(tokens) + 1, len(tokens) + 1 + len(action)))
        tokens += [ID["act"], *action]
        if len(transcript.views) > 1:
            tokens += _view_tokens(transcript.views[step], transcript.views[step + 1], changes)
    if transcript.terminated:
        tokens.append(ID["eos"])
    return tokens, places


def transcript_length(transcript: Transcript, *, changes: bool = False) -> int:
    """Return the number of tokens that `transcript_tokens` makes, computed from the sizes of grids and selections."""
    length = 4 + int(transcript.terminated)
    for pair in transcript.demonstrations:
        length += 2 + _grid_length(pair.input) + _grid_length(pair.output)
    before = None
    for view in transcript.views:
        length += _view_length(before, view, changes)
        before = view
    return length + 3 * transcript.steps + _selection_length(transcript.actions)


def grid_tokens(grid: Grid) -> list[int]:
    """Return the tokens of a grid.

    Raises:
        DataError: It is empty, larger than the vocabulary allows, or has a colour that does not exist.
    """
    rows, columns = grid.shape
    if not (1 <= rows <= ROWS and 1 <= columns <= COLUMNS):
        raise DataError(f"a grid of {rows}x{columns} cannot be written as tokens, which allow at most {ROWS}x{COLUMNS}")
    if int(grid.max()) >= COLOURS:
        raise DataError(f"a grid has the colour {int(grid.max())}; there are 0 to {COLOURS - 1}")
    ends = np.full((rows, 1), ID["row"], np.int32)
    return [*np.hstack([grid.astype(np.int32), ends]).ravel().tolist(), ID["grid"]]


def action_tokens(actions: StructuredAction, step: int) -> list[int]:
    """Return the tokens of one action: its operation, its selection, and `step`.

    Raises:
        DataError: The operation or a coordinate does not exist.
    """
    one = type(actions)(*(part[step : step + 1] for part in _parts(actions)))
    if not can_be_written(one):
        numbers = [int(part[0]) for part in _parts(one) if part.ndim == 1]
        raise DataError(f"step {step} cannot be written as tokens: there is no such operation or coordinate: {numbers}")
    if isinstance(one, MaskAction):
        selection = _runs(one.selection[0])
    else:
        selection = [(ROW, COLUMN)[place % 2] + int(part[0]) for place, part in enumerate(one[1:])]
    return [OPERATION + int(one.operation[0]), *selection, ID["step"]]


def can_be_written(actions: StructuredAction) -> bool:
    """Return whether words stand for all operations and coordinates. Only invalid actions have others."""
    limits = (OPERATIONS,) if isinstance(actions, MaskAction) else (OPERATIONS, ROWS, COLUMNS, ROWS, COLUMNS)
    return all(bool(((part >= 0) & (part < limit)).all()) for part, limit in zip(_parts(actions), limits, strict=False))


def _parts(actions: StructuredAction) -> Sequence[NDArray[Any]]:
    return actions


def _runs(mask: NDArray[np.bool_]) -> list[int]:
    tokens: list[int] = []
    for row in np.flatnonzero(mask.any(axis=1)).tolist():
        turns = np.flatnonzero(np.diff(np.pad(mask[row].astype(np.int8), 1))).tolist()
        for first, end in zip(turns[::2], turns[1::2], strict=True):
            tokens += [ROW + row, COLUMN + first, COLUMN + end - 1]
    return tokens


def _view_tokens(before: View | None, view: View, changes: bool) -> list[int]:
    if before is None or view.begins:
        goal = [] if view.target is None else [ID["goal"], *grid_tokens(view.target)]
        return [ID[view.kind], *grid_tokens(view.grid), *goal]
    if not changes or not _is_shorter_as_changes(before.grid, view.grid):
        return [ID["state"], *grid_tokens(view.grid)]
    tokens = [ID["change"]]
    for row, column in np.argwhere(before.grid != view.grid).tolist():
        tokens += [ROW + row, COLUMN + column, int(view.grid[row, column])]
    return [*tokens, ID["grid"]]


def _view_length(before: View | None, view: View, changes: bool) -> int:
    if before is None or view.begins:
        return 1 + _grid_length(view.grid) + (0 if view.target is None else 1 + _grid_length(view.target))
    if not changes or not _is_shorter_as_changes(before.grid, view.grid):
        return 1 + _grid_length(view.grid)
    return 2 + 3 * int((before.grid != view.grid).sum())


def _is_shorter_as_changes(before: Grid, after: Grid) -> bool:
    return before.shape == after.shape and 1 + 3 * int((before != after).sum()) < _grid_length(after)


def _grid_length(grid: Grid) -> int:
    rows, columns = grid.shape
    return rows * (columns + 1) + 1


def _selection_length(actions: StructuredAction) -> int:
    """Return the number of tokens of the selections of all steps."""
    if not isinstance(actions, MaskAction):
        return len(actions.operation) * (len(actions) - 1)
    # A run begins at a selected cell whose left neighbour is not selected.
    cells = np.asarray(actions.selection)
    left = np.pad(cells, ((0, 0), (0, 0), (1, 0)))[:, :, :-1]
    return 3 * int((cells & ~left).sum())
