"""A person solves a task: keys go in, an environment changes, and episodes come out.

Nothing is drawn or read here. The environment is the one that agents have, with masks as selections, so an episode that
a person played is recorded and replayed like any other. An undone step is not part of it.
"""

import numpy as np
from numpy.typing import NDArray

from brim.cli.arc.data import counted
from brim.cli.arc.keys import MOVES, OPERATIONS, SAME
from brim.core.display import visible
from brim.core.errors import DataError
from brim.envs.arc.actions import MaskAction
from brim.envs.arc.config import EnvironmentConfig, JaxArcConfig, UnifiedActionConfig, UnifiedDatasetConfig
from brim.envs.arc.engine import reference
from brim.envs.arc.episodes.episode import KINDS, ArcEpisode, replay
from brim.envs.arc.operations import ArcOperation
from brim.envs.arc.state import RUNNING, TRUNCATED
from brim.envs.arc.tasks.bank import as_bank
from brim.envs.arc.tasks.task import JaxArcTask, Pair

MOST_STEPS = 1000
"""Steps after which an episode of a person is truncated."""
WHOLE = range(ArcOperation.MOVE_UP, ArcOperation.FLIP_VERTICAL + 1)
"""Operations that apply to the whole grid if nothing is selected; `CLEAR` is another."""
AT_CURSOR = (*range(ArcOperation.FLOOD_FILL_0, ArcOperation.FLOOD_FILL_9 + 1), ArcOperation.PASTE, ArcOperation.RESIZE)
"""Operations that use the cell at the cursor, whatever is selected."""

Mask = NDArray[np.bool_]


class Game:
    """The episodes that a person plays of one task. `press` takes the name of a key."""

    def __init__(self, task: JaxArcTask, *, kind: str, pair: int) -> None:
        """
        Raises:
            DataError: The task has no such pair.
        """
        count = len(task.train if kind == "train" else task.test)
        if not 0 <= pair < count:
            numbers = f"they are numbered from 0 to {count - 1}" if count else "there are none"
            raise DataError(f"task {visible(task.id)} has no {kind} pair {pair}; {numbers}")
        self.task = task
        height, width = task.largest
        self.config = JaxArcConfig(
            environment=EnvironmentConfig(max_episode_steps=MOST_STEPS),
            dataset=UnifiedDatasetConfig(max_grid_height=height, max_grid_width=width),
            action=UnifiedActionConfig(selection_format="mask"),
        )
        self._bank = as_bank(task, self.config)
        self._finished: list[ArcEpisode] = []
        self.left = False
        """Whether the person has quit."""
        self._begin(kind, pair)

    def _begin(self, kind: str, pair: int) -> None:
        """Begin an episode with a pair."""
        self._first = kind, pair
        drawn = reference.reset(self._bank, self.config, np.zeros(2, np.uint32), 0, 0)
        start = int(self._bank.first[0, KINDS.index(kind)]) + pair
        self._envs = [reference.begin_pair(drawn, self._bank, start)]
        self._actions: list[tuple[int, Mask]] = []
        self.cursor = (0, 0)
        self._kept = np.zeros(self.config.shape, np.bool_)
        """The selected cells without the rectangle that is being drawn."""
        self._corner: tuple[int, int] | None = None
        """Where that rectangle begins."""
        self._flooding = False
        self.message = ""
        self.looking: int | None = None
        """Number of the demonstration that is shown instead of the grid."""
        self.helping = False
        """Whether the list of keys is shown instead of the grid."""

    @property
    def env(self) -> reference.Env:
        return self._envs[-1]

    @property
    def over(self) -> bool:
        """Whether the episode has ended."""
        return self.env.status != RUNNING

    @property
    def kind(self) -> str:
        """Kind of the present pair: "train" or "test"."""
        return KINDS[int(self.env.pair >= self._bank.first[0, 1])]

    @property
    def number(self) -> int:
        """Number of the present pair among those of its kind."""
        return self.env.pair - int(self._bank.first[0, KINDS.index(self.kind)])

    @property
    def pair(self) -> Pair:
        """The present pair."""
        return self._pairs[self.number]

    @property
    def steps(self) -> int:
        """Steps of the present episode."""
        return len(self._actions)

    @property
    def selected(self) -> Mask:
        """The selected cells. [height, width] of the configuration"""
        selected = self._kept.copy()
        if self._corner is not None:
            rows, columns = (sorted(both) for both in zip(self._corner, self.cursor, strict=True))
            selected[rows[0] : rows[1] + 1, columns[0] : columns[1] + 1] = True
        return selected

    def episodes(self) -> list[ArcEpisode]:
        """Return the finished episodes, and the present one if it has a step."""
        return self._finished if self.over or not self._actions else [*self._finished, self._episode()]

    def press(self, key: str) -> None:
        """Do what a key says; a key that does nothing is named in `message`."""
        key = SAME.get(key, key)
        flooding, self._flooding = self._flooding, False
        if key == "q":
            self.left = True
            return
        helping, self.helping = self.helping, False
        self.message = ""
        if key == "d":
            self._look()
            return
        self.looking = None
        if key == "?":
            self.helping = not helping
        elif self.over:
            self._after_the_end(key)
        elif flooding:
            self._flood(key)
        elif key in MOVES:
            self._move(*MOVES[key])
        elif key in OPERATIONS:
            self._take(OPERATIONS[key])
        else:
            self._other(key)

    def _look(self) -> None:
        """Show the next demonstration, or the grid after the last one."""
        following = 0 if self.looking is None else self.looking + 1
        self.looking = following if following < len(self.task.train) else None

    def _after_the_end(self, key: str) -> None:
        step = {"n": 1, "b": -1, "e": 0}.get(key)
        if step is None:
            self.message = f"the episode is over: {self._choices()}"
        else:
            self._begin(self.kind, (self.number + step) % len(self._pairs))

    def _flood(self, key: str) -> None:
        if key.isdecimal() and len(key) == 1:
            self._take(ArcOperation(ArcOperation.FLOOD_FILL_0 + int(key)))
        elif key != "escape":
            self.message = "f needs a colour, 0 to 9; nothing was filled"

    def _move(self, down: int, right: int) -> None:
        height, width = self.config.shape
        row, column = self.cursor
        self.cursor = min(max(row + down, 0), height - 1), min(max(column + right, 0), width - 1)

    def _other(self, key: str) -> None:
        """Do what keys do that are not one operation each."""
        if key == "space":
            self._keep_selection()
            self._kept[self.cursor] ^= True
        elif key == "v":
            begun = self._corner is None
            self._keep_selection()
            self._corner = self.cursor if begun else None
        elif key in ("a", "escape"):
            self._corner = None
            self._kept[:] = False
            if key == "a":
                self._kept[tuple(slice(size) for size in self.env.grid.shape)] = True
        elif key == "f":
            self._flooding = True
            self.message = "fill the region of the cursor: press a colour, 0 to 9"
        elif key == "u":
            self._undo()
        elif key in ("n", "b", "t"):
            self._change_pair(key)
        else:
            self.message = f"{visible(key)} is not a key; ? lists them"

    def _keep_selection(self) -> None:
        self._kept = self.selected
        self._corner = None

    def _undo(self) -> None:
        if not self._actions:
            self.message = "there is nothing to undo"
            return
        operation, _ = self._actions.pop()
        self._envs.pop()
        self.message = f"undone: {ArcOperation(operation).name}"

    def _change_pair(self, key: str) -> None:
        if key == "t" and not self.task.test:
            self.message = "this task has no test pairs"
            return
        test = self.kind == "test"
        chosen = {
            "n": (ArcOperation.NEXT_DEMO, ArcOperation.NEXT_TEST)[test],
            "b": (ArcOperation.PREVIOUS_DEMO, ArcOperation.PREVIOUS_TEST)[test],
            "t": (ArcOperation.NEXT_TEST, ArcOperation.NEXT_DEMO)[test],
        }
        self._take(chosen[key])

    def _take(self, operation: ArcOperation) -> None:
        """Apply an operation, unless its selection is invalid."""
        self._keep_selection()
        selection = self._selection_for(operation)
        if reference.usable(self.env, self.config, operation, selection) is None:
            self.message = f"{operation.name} was not applied: the cells are outside of the grid"
            return
        before = self.env
        after, _ = reference.step(before, self._bank, self.config, operation, selection)
        self._envs.append(after)
        self._actions.append((int(operation), selection))
        if self.over:
            self._end()
        elif operation is not ArcOperation.SUBMIT and _alike(before, after):
            self.message = f"{operation.name} changed nothing"
        else:
            self.message = operation.name

    def _selection_for(self, operation: ArcOperation) -> Mask:
        if not operation.uses_selection:
            return np.zeros(self.config.shape, np.bool_)
        whole = operation in WHOLE or operation == ArcOperation.CLEAR
        if operation not in AT_CURSOR and (self._kept.any() or whole):
            return self._kept.copy()
        at_cursor = np.zeros(self.config.shape, np.bool_)
        at_cursor[self.cursor] = True
        return at_cursor

    def _end(self) -> None:
        episode = self._episode()
        self._finished.append(episode)
        if self.env.status == TRUNCATED:
            result = f"not submitted within {MOST_STEPS:,} steps"
        elif episode.solved:
            result = f"solved in {counted(episode.steps, 'step')}"
        else:
            result = "not solved"
        self.message = f"{result}: {self._choices()}"

    def _choices(self) -> str:
        return "n next pair, e this pair again, q quit"

    def _episode(self) -> ArcEpisode:
        """Return the present episode, with the actions that were not undone."""
        kind, pair = self._first
        operations = np.array([operation for operation, _ in self._actions], np.int32)
        selections = np.stack([selection for _, selection in self._actions])
        actions = MaskAction(operations, selections)
        return replay(self.task, self.config, actions, kind=kind, pair=pair, episode=len(self._finished))

    @property
    def _pairs(self) -> tuple[Pair, ...]:
        return self.task.train if self.kind == "train" else self.task.test


def _alike(before: reference.Env, after: reference.Env) -> bool:
    """Whether a step changed neither the pair nor the grid nor the clipboard."""
    return (
        before.pair == after.pair
        and np.array_equal(before.grid, after.grid)
        and np.array_equal(before.clipboard, after.clipboard)
    )
