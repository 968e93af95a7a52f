"""`ArcEpisode`: one episode as its task, its actions and its outcome.

Grids are not kept. They follow from the actions by the definition of the environments, so an episode is small, and an
episode whose outcome does not follow from its actions is found out.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import DamagedError, DataError
from brim.core.options import one_of
from brim.envs.arc.actions import KINDS as ACTIONS
from brim.envs.arc.actions import StructuredAction
from brim.envs.arc.config import JaxArcConfig
from brim.envs.arc.engine import reference
from brim.envs.arc.engine.on_numpy import chosen_cells
from brim.envs.arc.operations import PADDING
from brim.envs.arc.state import RUNNING, TERMINATED, TRUNCATED
from brim.envs.arc.tasks.bank import TaskBank, as_bank
from brim.envs.arc.tasks.task import JaxArcTask

KINDS = ("train", "test")
"""Kinds of pairs: demonstrations and tests."""
ROUNDING = 1e-4
"""Difference of summed rewards that is put down to the order of the sum."""


class Frame(NamedTuple):
    """The environment after a step. Frame 0 is the beginning of the episode."""

    operation: int | None
    """Number of the operation, which may not exist if the action is invalid; None in frame 0."""
    selected: NDArray[np.bool_]
    """[height, width] of the configuration: the cells that the operation was applied to."""
    grid: NDArray[np.uint8]
    """The working grid, without padding."""
    clipboard: NDArray[np.uint8]
    """The content of the clipboard, with `PADDING` in open cells; of shape (0, 0) if it is empty."""
    kind: str
    """One of `KINDS`: whether the present pair is a demonstration or a test."""
    pair: int
    """Number of the present pair among those of its kind."""
    reward: float
    similarity: float
    invalid: bool


class Outcome(NamedTuple):
    """The end of an episode. One that is neither terminated nor truncated was left unfinished."""

    reward: float
    """Sum over the steps."""
    similarity: float
    solved: bool
    terminated: bool
    truncated: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class ArcEpisode:
    """One recorded episode.

    `replay` makes one from its actions alone.

    Raises:
        DataError: The pair does not exist, or the actions are not of the kind and shape that the configuration says.
    """

    task: JaxArcTask
    config: JaxArcConfig
    kind: str
    """One of `KINDS`: whether the episode began with a demonstration pair or a test pair."""
    pair: int
    """Number of that pair among those of its kind."""
    actions: StructuredAction
    """The actions, as NumPy arrays with the steps on the first axis."""
    env: int = 0
    """Number of the environment."""
    episode: int = 0
    """Number of the episode in its environment."""
    reward: float
    similarity: float
    """At the end of the episode."""
    solved: bool
    terminated: bool
    truncated: bool

    def __post_init__(self) -> None:
        object.__setattr__(self, "actions", check_episode(self.task, self.config, self.kind, self.pair, self.actions))

    @property
    def id(self) -> str:
        """Task, environment and number of the episode: "007bbfb7#3.0"."""
        return f"{self.task.id}#{self.env}.{self.episode}"

    @property
    def steps(self) -> int:
        """Number of actions."""
        return len(self.actions.operation)

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.reward, self.similarity, self.solved, self.terminated, self.truncated)

    @cached_property
    def frames(self) -> tuple[Frame, ...]:
        """The beginning and the environment after every step, computed when they are first asked for.

        Raises:
            DamagedError: The recorded outcome does not follow from the actions.
        """
        frames, outcome = play_back(self.task, self.config, self.kind, self.pair, self.actions)
        if outcome[1:] != self.outcome[1:] or not math.isclose(outcome.reward, self.reward, abs_tol=ROUNDING):
            raise DamagedError(
                f"episode {self.id}: its actions end with {_described(outcome)}, but it says {_described(self.outcome)}"
            )
        return frames


def replay(
    task: JaxArcTask,
    config: JaxArcConfig,
    actions: StructuredAction,
    *,
    kind: str = "train",
    pair: int = 0,
    env: int = 0,
    episode: int = 0,
) -> ArcEpisode:
    """Return the episode that begins with a pair and takes these actions.

    Args:
        actions: NumPy arrays with the steps on the first axis.

    Raises:
        DataError: The pair does not exist, the actions do not fit the configuration, or some of them come after the
            end of the episode.

    Example:
        >>> import numpy as np
        >>> from brim.envs.arc import BboxAction, UnifiedActionConfig, create_mock_task
        >>> config = JaxArcConfig(action=UnifiedActionConfig(selection_format="bbox"))
        >>> zeros, last = np.zeros(2, np.int32), np.full(2, 9, np.int32)
        >>> actions = BboxAction(np.array([26, 34], np.int32), zeros, zeros, last, last)  # mirror everything, submit
        >>> replay(create_mock_task(), config, actions).solved
        True
    """
    actions = check_episode(task, config, kind, pair, actions)
    frames, outcome = play_back(task, config, kind, pair, actions)
    found = ArcEpisode(
        task=task,
        config=config,
        kind=kind,
        pair=pair,
        actions=actions,
        env=env,
        episode=episode,
        **outcome._asdict(),
    )
    found.__dict__["frames"] = frames
    return found


def check_episode(
    task: JaxArcTask, config: JaxArcConfig, kind: str, pair: int, actions: StructuredAction
) -> StructuredAction:
    """Return the actions as arrays of NumPy, int32 and bool, if they and the pair fit the task and the configuration.

    Raises:
        DataError: They do not.
    """
    one_of("kind", kind, KINDS)
    count = len(task.train if kind == "train" else task.test)
    if not 0 <= pair < count:
        raise DataError(f"task {task.id} has no {kind} pair {pair}: it has {count}, counted from 0")
    wanted = ACTIONS[config.action.selection_format]
    if not isinstance(actions, wanted):
        raise DataError(
            f"selection_format is {config.action.selection_format!r}, so actions must be {wanted.__name__}, got"
            f" {type(actions).__name__}"
        )
    steps = np.shape(actions.operation)
    if len(steps) != 1:
        raise DataError(f"the operations of an episode must have one axis, for the steps, got shape {steps}")
    parts: dict[str, NDArray[Any]] = {}
    for name, part in zip(wanted._fields, actions, strict=True):
        array = np.asarray(part)
        is_mask = name == "selection"
        shape = (*steps, *config.shape) if is_mask else steps
        if array.shape != shape or array.dtype.kind not in ("b" if is_mask else "iu"):
            raise DataError(f"{wanted.__name__}.{name} must have shape {shape}, got {array.dtype} of {array.shape}")
        parts[name] = array.astype(np.bool_ if is_mask else np.int32)
    return wanted(**parts)


def play_back(
    task: JaxArcTask, config: JaxArcConfig, kind: str, pair: int, actions: StructuredAction
) -> tuple[tuple[Frame, ...], Outcome]:
    """Take the actions by the definition of the environments, and return all frames and the outcome.

    Raises:
        DataError: The episode ends before its last action.
    """
    alone = replace(config, environment=replace(config.environment, auto_reset="off", episode_mode="train"))
    bank = as_bank(task, alone)
    env = _begun(bank, alone, kind, pair)
    frames = [_frame(env, bank, None, 0.0, invalid=False)]
    reward = 0.0
    for step, operation in enumerate(actions.operation.tolist()):
        if env.status != RUNNING:
            count = len(actions.operation)
            raise DataError(f"an episode of task {task.id} ends after {step} steps, but there are {count} actions")
        env, result = reference.step(env, bank, alone, operation, chosen_cells(actions, step, config.shape))
        frames.append(_frame(env, bank, operation, float(result.reward), invalid=result.invalid))
        reward += float(result.reward)
    outcome = Outcome(
        reward=reward,
        similarity=float(env.similarity),
        solved=bool(env.similarity == 1),
        terminated=env.status == TERMINATED,
        truncated=env.status == TRUNCATED,
    )
    return tuple(frames), outcome


def _begun(bank: TaskBank, config: JaxArcConfig, kind: str, pair: int) -> reference.Env:
    """Return the only task of a bank at the beginning of one of its pairs."""
    drawn = reference.reset(bank, config, np.zeros(2, np.uint32), 0, 0)
    return reference.begin_pair(drawn, bank, int(bank.first[0, KINDS.index(kind)]) + pair)


def _frame(env: reference.Env, bank: TaskBank, operation: int | None, reward: float, *, invalid: bool) -> Frame:
    kind = int(env.pair >= bank.first[0, 1])
    return Frame(
        operation=operation,
        selected=env.selected,
        grid=env.grid,
        clipboard=_content(env.clipboard),
        kind=KINDS[kind],
        pair=env.pair - int(bank.first[0, kind]),
        reward=reward,
        similarity=float(env.similarity),
        invalid=invalid,
    )


def _content(clipboard: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Cut off the padding, which is below and to the right of what was copied."""
    held = clipboard != PADDING
    if not held.any():
        return clipboard[:0, :0]
    box = reference.box_of(held)
    return clipboard[: box.bottom, : box.right]


def _described(outcome: Outcome) -> str:
    ending = "terminated" if outcome.terminated else "truncated" if outcome.truncated else "unfinished"
    solved = "solved" if outcome.solved else f"similarity {outcome.similarity:.3f}"
    return f"reward {outcome.reward:.3f}, {solved}, {ending}"
