"""The definition of ARC environments: one environment, plain NumPy, one short function for each operation.

Both engines must agree with this module to the bit. It is slow, and it does the work where neither the kernel nor JAX
is there. A grid here has exactly its own rows and columns; `PADDING` appears only in what `Env` is made from and
written to.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brim.envs.arc.config import JaxArcConfig
from brim.envs.arc.engine.random import below, threefry
from brim.envs.arc.operations import OPERATIONS, PADDING, ArcOperation
from brim.envs.arc.state import RUNNING, TERMINATED, TRUNCATED
from brim.envs.arc.tasks.bank import TaskBank

Grid = NDArray[np.uint8]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Env:
    """The state of one environment."""

    key: NDArray[np.uint32]
    fixed_task: int
    episode: int
    task: int
    pair: int
    grid: Grid
    """[rows, columns] of the working grid, without padding."""
    clipboard: Grid
    """[height, width] of the configuration; `PADDING` where it holds nothing."""
    selected: Mask
    """[height, width] of the configuration."""
    steps: int
    similarity: np.float32
    status: int
    demos_solved: int
    tests_solved: int


class Outcome(NamedTuple):
    """The report of a step: everything it returns besides the state."""

    reward: np.float32
    terminated: bool
    truncated: bool
    similarity: np.float32
    solved: bool
    invalid: bool
    pair: int
    final: Env
    """The environment at the end of the step, before an automatic reset."""


class Box(NamedTuple):
    """A rectangle; the last row and column are not part of it."""

    top: int
    left: int
    bottom: int
    right: int


def reset(bank: TaskBank, config: JaxArcConfig, key: NDArray[np.uint32], fixed_task: int, episode: int) -> Env:
    """Begin an episode: choose a task, unless one is fixed, and one of its pairs."""
    first, second = threefry(key, (episode, 0))
    task = fixed_task if fixed_task >= 0 else int(below(first, bank.num_tasks))
    kind = int(config.environment.episode_mode == "test")
    pair = int(bank.first[task, kind]) + int(below(second, bank.count[task, kind]))
    nothing = np.full(config.shape, PADDING, np.uint8)
    blank = Env(
        key=key,
        fixed_task=fixed_task,
        episode=episode,
        task=task,
        pair=pair,
        grid=nothing,
        clipboard=nothing,
        selected=np.zeros(config.shape, np.bool_),
        steps=0,
        similarity=np.float32(0),
        status=RUNNING,
        demos_solved=0,
        tests_solved=0,
    )
    return begin_pair(blank, bank, pair)


def begin_pair(env: Env, bank: TaskBank, pair: int) -> Env:
    """Put the input of a pair into the working grid. The clipboard is kept."""
    started = replace(env, pair=pair, grid=input_of(bank, pair))
    return replace(started, similarity=similarity(started.grid, target_of(bank, pair)))


def step(env: Env, bank: TaskBank, config: JaxArcConfig, operation: int, selection: Mask | None) -> tuple[Env, Outcome]:
    """Apply one operation. `selection` has the configuration's size; None is a selection out of range.

    A finished environment stays as it is, or begins its next episode if `auto_reset` is "next_step".
    """
    if env.status != RUNNING:
        if config.environment.auto_reset == "next_step":
            again = reset(bank, config, env.key, env.fixed_task, env.episode + 1)
            return again, _outcome(again, np.float32(0), invalid=False)
        return env, _outcome(env, np.float32(0), invalid=False)
    used = usable(env, config, operation, selection)
    invalid = used is None
    nothing = np.zeros(config.shape, np.bool_)
    after = replace(env, selected=nothing)
    if used is not None:
        after = replace(apply(env, bank, config, ArcOperation(operation), used), selected=used)
    after = _settle(after, bank, config, submitted=not invalid and operation == ArcOperation.SUBMIT)
    outcome = _outcome(after, _reward(env, after, bank, config, invalid), invalid=invalid)
    if after.status != RUNNING and config.environment.auto_reset == "same_step":
        return reset(bank, config, env.key, env.fixed_task, env.episode + 1), outcome
    return after, outcome


def usable(env: Env, config: JaxArcConfig, operation: int, selection: Mask | None) -> Mask | None:
    """Return the cells that an operation is applied to; None if the action is invalid.

    Resizing may select cells outside of the working grid. For the others only cells inside count, and a selection that
    has cells but none inside is out of range.
    """
    if not 0 <= operation < OPERATIONS or not config.action.allowed >> operation & 1:
        return None
    if not ArcOperation(operation).uses_selection:
        return np.zeros(config.shape, np.bool_)
    if selection is None:
        return None
    if operation == ArcOperation.RESIZE:
        return selection
    rows, columns = env.grid.shape
    inside = np.zeros_like(selection)
    inside[:rows, :columns] = selection[:rows, :columns]
    return None if selection.any() and not inside.any() else inside


def apply(env: Env, bank: TaskBank, config: JaxArcConfig, operation: ArcOperation, selected: Mask) -> Env:
    """Apply an allowed operation to the cells it may use."""
    if operation <= ArcOperation.FILL_9:
        return fill(env, selected, operation)
    if operation <= ArcOperation.FLOOD_FILL_9:
        return flood_fill(env, selected, operation - ArcOperation.FLOOD_FILL_0)
    if operation in _BOX_CHANGES:
        return change_box(env, selected, _BOX_CHANGES[operation])
    if operation in _PAIR_CHOICES:
        pair = _PAIR_CHOICES[operation](env, bank)
        return env if pair is None else begin_pair(env, bank, pair)
    if operation == ArcOperation.COPY:
        return copy(env, selected)
    if operation == ArcOperation.PASTE:
        return paste(env, selected)
    if operation == ArcOperation.CUT:
        return fill(copy(env, selected), selected, 0)
    if operation == ArcOperation.CLEAR:
        return clear(env, selected)
    if operation == ArcOperation.COPY_INPUT:
        return replace(env, grid=input_of(bank, env.pair))
    if operation == ArcOperation.RESIZE:
        return resize(env, selected)
    return env  # submitting changes no cell


def fill(env: Env, selected: Mask, colour: int) -> Env:
    """Give the selected cells a colour."""
    rows, columns = env.grid.shape
    return replace(env, grid=np.where(selected[:rows, :columns], np.uint8(colour), env.grid))


def flood_fill(env: Env, selected: Mask, colour: int) -> Env:
    """Give a colour to the region around the selected cell: equal cells connected by edges.

    Nothing happens unless exactly one cell is selected.
    """
    if selected.sum() != 1:
        return env
    start = tuple(int(place) for place in np.argwhere(selected)[0])
    grid = env.grid.copy()
    before = grid[start]
    waiting = [start] if before != colour else []
    while waiting:
        row, column = waiting.pop()
        if 0 <= row < grid.shape[0] and 0 <= column < grid.shape[1] and grid[row, column] == before:
            grid[row, column] = colour
            waiting += [(row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)]
    return replace(env, grid=grid)


def change_box(env: Env, selected: Mask, change: Callable[[Grid], Grid]) -> Env:
    """Change the content of the smallest rectangle around the selected cells; of the whole grid if none is selected."""
    box = box_of(selected) if selected.any() else Box(0, 0, *env.grid.shape)
    grid = env.grid.copy()
    inside = grid[box.top : box.bottom, box.left : box.right]
    inside[:] = change(inside.copy())
    return replace(env, grid=grid)


def rotate(box: Grid, quarters: int) -> Grid:
    """Rotate a square, counterclockwise; leave any other rectangle as it is."""
    return np.rot90(box, quarters) if box.shape[0] == box.shape[1] else box


def copy(env: Env, selected: Mask) -> Env:
    """Put the selected cells into the clipboard, moved to its upper left corner; keep it if none is selected."""
    if not selected.any():
        return env
    box = box_of(selected)
    shape = box.bottom - box.top, box.right - box.left
    inside = selected[box.top : box.bottom, box.left : box.right]
    clipboard = np.full_like(env.clipboard, PADDING)
    content = env.grid[box.top : box.bottom, box.left : box.right]
    clipboard[: shape[0], : shape[1]] = np.where(inside, content, PADDING)
    return replace(env, clipboard=clipboard)


def paste(env: Env, selected: Mask) -> Env:
    """Write what the clipboard holds, black cells too, from the upper left corner of the selection on.

    Cells that would fall outside of the grid are left out.
    """
    if not selected.any():
        return env
    box = box_of(selected)
    grid = env.grid.copy()
    place = grid[box.top :, box.left :]
    content = env.clipboard[: place.shape[0], : place.shape[1]]
    place[:] = np.where(content != PADDING, content, place)
    return replace(env, grid=grid)


def clear(env: Env, selected: Mask) -> Env:
    """Make the selected cells black; all cells if none is selected."""
    return fill(env, selected if selected.any() else np.ones_like(selected), 0)


def resize(env: Env, selected: Mask) -> Env:
    """Cut or extend the grid so that the last selected row and column are its last; new cells are black."""
    if not selected.any():
        return env
    box = box_of(selected)
    grid = np.zeros((box.bottom, box.right), np.uint8)
    rows, columns = min(box.bottom, env.grid.shape[0]), min(box.right, env.grid.shape[1])
    grid[:rows, :columns] = env.grid[:rows, :columns]
    return replace(env, grid=grid)


def neighbour(env: Env, bank: TaskBank, kind: int, by: int) -> int | None:
    """Return the next or previous pair of a kind (0 demonstrations, 1 tests), in a circle.

    From a pair of the other kind the next one is the first and the previous one is the last.
    """
    first, count = int(bank.first[env.task, kind]), int(bank.count[env.task, kind])
    if count == 0:
        return None
    place = env.pair - first
    if not 0 <= place < count:
        place = -1 if by == 1 else 0
    return first + (place + by) % count


def first_unsolved(env: Env, bank: TaskBank, kind: int) -> int | None:
    """Return the first pair of a kind that was not solved in this episode; None if all were."""
    first, count = int(bank.first[env.task, kind]), int(bank.count[env.task, kind])
    solved = env.tests_solved if kind else env.demos_solved
    return next((first + place for place in range(count) if not solved >> place & 1), None)


def similarity(grid: Grid, target: Grid) -> np.float32:
    """Return the equal cells divided by the cells that at least one of the two has."""
    rows, columns = min(grid.shape[0], target.shape[0]), min(grid.shape[1], target.shape[1])
    equal = int((grid[:rows, :columns] == target[:rows, :columns]).sum())
    return np.float32(equal) / np.float32(grid.size + target.size - rows * columns)


def box_of(selected: Mask) -> Box:
    """Return the smallest rectangle around the selected cells; there must be one."""
    rows, columns = np.flatnonzero(selected.any(axis=1)), np.flatnonzero(selected.any(axis=0))
    return Box(int(rows[0]), int(columns[0]), int(rows[-1]) + 1, int(columns[-1]) + 1)


def input_of(bank: TaskBank, pair: int) -> Grid:
    """Return the input grid of a pair."""
    return np.array(bank.inputs[pair, : bank.sizes[pair, 0], : bank.sizes[pair, 1]])


def target_of(bank: TaskBank, pair: int) -> Grid:
    """Return the output grid of a pair."""
    return np.array(bank.targets[pair, : bank.sizes[pair, 2], : bank.sizes[pair, 3]])


def _settle(env: Env, bank: TaskBank, config: JaxArcConfig, *, submitted: bool) -> Env:
    """Compare with the target, note a solved pair, and end the episode if it has to."""
    score = similarity(env.grid, target_of(bank, env.pair))
    solved = score == 1
    place, kind = _place(env, bank)
    bit = int(solved) << place
    steps = env.steps + 1
    status = RUNNING
    if steps >= config.environment.max_episode_steps:
        status = TRUNCATED
    if submitted or (solved and config.environment.end_when_solved):
        status = TERMINATED
    return replace(
        env,
        similarity=score,
        steps=steps,
        status=status,
        demos_solved=env.demos_solved | (0 if kind else bit),
        tests_solved=env.tests_solved | (bit if kind else 0),
    )


def _place(env: Env, bank: TaskBank) -> tuple[int, int]:
    """Return the number of the pair among those of its kind, and the kind (0 demonstrations, 1 tests)."""
    kind = int(env.pair >= bank.first[env.task, 1])
    return env.pair - int(bank.first[env.task, kind]), kind


def _reward(before: Env, after: Env, bank: TaskBank, config: JaxArcConfig, invalid: bool) -> np.float32:
    """Add the terms of the reward, in this order, in single precision."""
    terms = config.reward
    zero = np.float32(0)
    shown = [zero if _place(env, bank)[1] else env.similarity for env in (before, after)]
    reward = np.float32(terms.similarity_weight) * (shown[1] - shown[0]) + np.float32(terms.step_penalty)
    ended = after.status == TERMINATED
    ending = terms.success_bonus if after.similarity == 1 else terms.unsolved_submission_penalty
    reward = reward + (np.float32(ending) if ended else zero)
    return reward + (np.float32(terms.invalid_penalty) if invalid else zero)


def _outcome(env: Env, reward: np.float32, *, invalid: bool) -> Outcome:
    return Outcome(
        reward=reward,
        terminated=env.status == TERMINATED,
        truncated=env.status == TRUNCATED,
        similarity=env.similarity,
        solved=bool(env.similarity == 1),
        invalid=invalid,
        pair=env.pair,
        final=env,
    )


_BOX_CHANGES: dict[ArcOperation, Callable[[Grid], Grid]] = {
    ArcOperation.MOVE_UP: lambda box: np.roll(box, -1, axis=0),
    ArcOperation.MOVE_DOWN: lambda box: np.roll(box, 1, axis=0),
    ArcOperation.MOVE_LEFT: lambda box: np.roll(box, -1, axis=1),
    ArcOperation.MOVE_RIGHT: lambda box: np.roll(box, 1, axis=1),
    ArcOperation.ROTATE_CLOCKWISE: lambda box: rotate(box, -1),
    ArcOperation.ROTATE_COUNTERCLOCKWISE: lambda box: rotate(box, 1),
    ArcOperation.FLIP_HORIZONTAL: lambda box: box[:, ::-1],
    ArcOperation.FLIP_VERTICAL: lambda box: box[::-1],
}
_PAIR_CHOICES: dict[ArcOperation, Callable[[Env, TaskBank], int | None]] = {
    ArcOperation.NEXT_DEMO: lambda env, bank: neighbour(env, bank, 0, 1),
    ArcOperation.PREVIOUS_DEMO: lambda env, bank: neighbour(env, bank, 0, -1),
    ArcOperation.NEXT_TEST: lambda env, bank: neighbour(env, bank, 1, 1),
    ArcOperation.PREVIOUS_TEST: lambda env, bank: neighbour(env, bank, 1, -1),
    ArcOperation.RESET_PAIR: lambda env, bank: env.pair,
    ArcOperation.FIRST_UNSOLVED_DEMO: lambda env, bank: first_unsolved(env, bank, 0),
    ArcOperation.FIRST_UNSOLVED_TEST: lambda env, bank: first_unsolved(env, bank, 1),
}
