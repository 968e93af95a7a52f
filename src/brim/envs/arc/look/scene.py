"""What a picture shows: grids with captions, in groups, whatever draws them in the end.

The terminal, PNG, GIF and SVG draw the same scenes. A scene knows neither colours nor sizes in pixels. Texts from data
(ids of tasks) are in it as they are: who draws them makes them visible and escapes them.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import DataError
from brim.envs.arc.config import LARGEST
from brim.envs.arc.episodes.episode import ArcEpisode, Frame
from brim.envs.arc.operations import PADDING, ArcOperation
from brim.envs.arc.state import ArcEnvState
from brim.envs.arc.tasks.task import JaxArcTask, Pair

Grid = NDArray[np.uint8]
Mask = NDArray[np.bool_]


class Panel(NamedTuple):
    """A grid with a caption."""

    caption: str
    """One line above the grid; empty for none."""
    grid: Grid | None
    """[rows, columns], with `PADDING` in open cells; None for an answer that is not shown."""
    selected: Mask | None = None
    """Of the grid's shape; None if no cell is selected."""
    room: tuple[int, int] = (0, 0)
    """Rows and columns that are kept free for it at least, so that it has one place in all frames of an animation."""
    cursor: tuple[int, int] | None = None
    """Row and column of the cell that a person is at. Only a terminal shows it."""


class Group(NamedTuple):
    """Panels side by side, with arrows from each to the next."""

    captions: tuple[str, ...]
    """Lines above the panels."""
    panels: tuple[Panel, ...]


class Scene(NamedTuple):
    """Everything in a picture."""

    title: str
    """Empty for none."""
    groups: tuple[Group, ...]


def state_scene(grid: Any, *, selected: Any = None, input: Any = None, target: Any = None, title: str = "") -> Scene:
    """Return a working grid, if given between the input and the target of its pair.

    Padding below and to the right of a grid is cut off, and the selection with it.

    Raises:
        DataError: A grid has no cells, or other values than colours and padding; or the selection is not an array of
            bool that covers the grid.
    """
    working = cut("grid", grid)
    middle = Panel("", working, covered(selected, working))
    if input is None and target is None:
        return Scene(title, (Group((), (middle,)),))
    panels = [middle._replace(caption="grid")]
    if input is not None:
        panels.insert(0, Panel("input", cut("input", input)))
    if target is not None:
        panels.append(Panel("target", cut("target", target)))
    return Scene(title, (Group((), tuple(panels)),))


def scene_of_state(state: ArcEnvState, *, answers: bool = True) -> Scene:
    """Return the scene of one environment.

    Raises:
        DataError: It is a batch of environments.
    """
    if np.ndim(state.status) != 0:
        raise DataError(
            f"a picture shows one environment, got a batch of {state.batch_size}; take one with take_states(states, 0)"
        )
    hidden = bool(state.on_test_pair) and not answers
    return state_scene(
        np.asarray(state.working_grid),
        selected=np.asarray(state.selected),
        input=np.asarray(state.input_grid),
        target=None if hidden else np.asarray(state.target_grid),
    )


def task_scene(task: JaxArcTask, *, answers: bool = True) -> Scene:
    """Return all pairs of a task. Without `answers` the outputs of the test pairs are hidden."""
    groups = [Group((f"train pair {number}",), _panels(pair)) for number, pair in enumerate(task.train)]
    groups += [
        Group((f"test pair {number}",), _panels(pair, hidden=not answers)) for number, pair in enumerate(task.test)
    ]
    return Scene(f"{task.id}: {_counted(task.train, 'demonstration')}, {_counted(task.test, 'test')}", tuple(groups))


def episode_scene(episode: ArcEpisode, *, answers: bool = True) -> Scene:
    """Return the beginning of an episode, every step of it, and the target of the last pair."""
    groups = [
        Group(
            (f"{step}: {step_name(frame)}", f"similarity {frame.similarity:.3f}"),
            (Panel("", frame.grid, covered(frame.selected, frame.grid)),),
        )
        for step, frame in enumerate(episode.frames)
    ]
    last = episode.frames[-1]
    if answers or last.kind == "train":
        groups.append(Group(("target", f"{last.kind} pair {last.pair}"), (Panel("", pair_of(episode, last).output),)))
    return Scene(episode_title(episode), tuple(groups))


def frame_scenes(episode: ArcEpisode, *, answers: bool = True) -> list[Scene]:
    """Return one scene for each frame of an episode, with the grids in one place: input, working grid and target."""
    pairs = [pair_of(episode, frame) for frame in episode.frames]
    hidden = [frame.kind == "test" and not answers for frame in episode.frames]
    targets = [None if hides else pair.output for pair, hides in zip(pairs, hidden, strict=True)]
    rooms = (
        _room([pair.input for pair in pairs]),
        _room([frame.grid for frame in episode.frames]),
        _room([target for target in targets if target is not None]),
    )
    scenes: list[Scene] = []
    for step, (frame, pair, target) in enumerate(zip(episode.frames, pairs, targets, strict=True)):
        panels = (
            Panel("input", pair.input, None, rooms[0]),
            Panel("grid", frame.grid, covered(frame.selected, frame.grid), rooms[1]),
            Panel("target", target, None, rooms[2]),
        )
        captions = (
            f"step {step} of {episode.steps}: {step_name(frame)}",
            f"{frame.kind} pair {frame.pair}, similarity {frame.similarity:.3f}",
        )
        scenes.append(Scene(episode.id, (Group(captions, panels),)))
    return scenes


def episode_title(episode: ArcEpisode) -> str:
    """Return the id of an episode and how it ended."""
    ending = "submitted" if episode.terminated else "at the step limit" if episode.truncated else "unfinished"
    solved = "solved" if episode.solved else "not solved"
    return f"{episode.id}: {_count(episode.steps, 'step')}, {solved}, {ending}, reward {episode.reward:.2f}"


def step_name(frame: Frame) -> str:
    """Return the name of the operation that led to a frame."""
    if frame.operation is None:
        return "beginning"
    known = 0 <= frame.operation < len(ArcOperation)
    name = ArcOperation(frame.operation).name if known else str(frame.operation)
    return f"{name}, invalid" if frame.invalid else name


def pair_of(episode: ArcEpisode, frame: Frame) -> Pair:
    """Return the pair that a frame belongs to."""
    return (episode.task.train if frame.kind == "train" else episode.task.test)[frame.pair]


def cut(what: str, values: Any) -> Grid:
    """Return a grid without the padding below it and to its right.

    Raises:
        DataError: It is not a grid, or nothing but padding.
    """
    grid = np.asarray(values)
    if grid.ndim != 2 or grid.dtype.kind not in "iu" or 0 in grid.shape or max(grid.shape) > LARGEST:
        raise DataError(
            f"{what} must be a grid of integers, at most {LARGEST}x{LARGEST}, got {grid.dtype} of shape {grid.shape}"
        )
    if grid.min() < 0 or grid.max() > PADDING:
        wrong = grid[(grid < 0) | (grid > PADDING)][0]
        raise DataError(f"{what}: cells are colours from 0 to 9, or {PADDING} outside of a grid, got {wrong}")
    held = grid != PADDING
    if not held.any():
        raise DataError(f"{what} is nothing but padding ({PADDING})")
    rows, columns = np.flatnonzero(held.any(axis=1))[-1] + 1, np.flatnonzero(held.any(axis=0))[-1] + 1
    return grid[:rows, :columns].astype(np.uint8)


def covered(selected: Any, grid: Grid) -> Mask | None:
    """Return the part of a selection that lies on a grid; None if no cell of it is selected.

    Raises:
        DataError: It is not an array of bool that covers the grid.
    """
    if selected is None:
        return None
    mask = np.asarray(selected)
    if mask.ndim != 2 or mask.dtype != np.bool_ or mask.shape[0] < grid.shape[0] or mask.shape[1] < grid.shape[1]:
        raise DataError(
            f"selected must be an array of bool that covers the grid of {grid.shape[0]}x{grid.shape[1]}, got"
            f" {mask.dtype} of shape {mask.shape}"
        )
    inside = mask[: grid.shape[0], : grid.shape[1]]
    return inside if inside.any() else None


def _panels(pair: Pair, *, hidden: bool = False) -> tuple[Panel, Panel]:
    return Panel("", pair.input), Panel("", None if hidden else pair.output)


def _room(grids: list[Grid]) -> tuple[int, int]:
    """Return rows and columns that hold each of the grids."""
    return max((grid.shape[0] for grid in grids), default=1), max((grid.shape[1] for grid in grids), default=1)


def _counted(pairs: tuple[Pair, ...], noun: str) -> str:
    return _count(len(pairs), noun)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
