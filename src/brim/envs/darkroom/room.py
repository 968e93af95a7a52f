"""Darkroom: a grid with a goal that is invisible until the agent stands on it (Laskin et al. 2022).

An agent starts in the centre of a square grid and takes one of five actions; walls block. Every step that ends on the
goal is worth 1, and after `horizon` steps the episode is truncated. It is never terminated: reaching the goal ends
nothing. The observation is the agent's cell, so the goal has to be found and remembered.

Many lanes are stepped at once, each with a goal of its own. `reset` and `step` are pure: the state goes in and comes
out, nothing is random, and nothing is kept here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import DataError, OptionError
from brim.core.options import check_counts
from brim.core.rng import below, raw_bits
from brim.envs.lanes import Bounds, LaneEnv

STAY, UP, DOWN, LEFT, RIGHT = range(5)
MOVES = np.array([[0, 0], [0, -1], [0, 1], [-1, 0], [1, 0]])
"""The move of each action, added to (x, y). (0, 0) is the upper left cell."""
ACTIONS = len(MOVES)
LARGEST = 127
"""Largest size of a room: positions are stored in 8 bits."""


@dataclass(frozen=True, kw_only=True)
class Darkroom:
    """A grid of `size` x `size` cells and episodes of `horizon` steps."""

    size: int = 9
    horizon: int = 20

    def __post_init__(self) -> None:
        check_counts(size=self.size, horizon=self.horizon)
        if not 2 <= self.size <= LARGEST:
            raise OptionError(f"size must be between 2 and {LARGEST}, got {self.size}")

    @property
    def start(self) -> tuple[int, int]:
        return self.size // 2, self.size // 2

    def cell(self, position: NDArray[np.integer]) -> NDArray[np.int64]:
        """The number of a cell, row by row. [..., 2] -> [...]"""
        position = np.asarray(position, np.int64)
        return position[..., 1] * self.size + position[..., 0]

    @property
    def goals(self) -> NDArray[np.int64]:
        """Every cell but the start, as (x, y), row by row: at the start there is nothing to find. [cells, 2]"""
        y, x = np.divmod(np.arange(self.size**2), self.size)
        cells = np.stack([x, y], axis=1)
        return cells[np.any(cells != self.start, axis=1)]

    def distance(self, goals: NDArray[np.integer]) -> NDArray[np.int64]:
        """Steps from the start to each goal. [lanes, 2] -> [lanes]"""
        return np.abs(np.asarray(goals, np.int64) - self.start).sum(axis=-1)

    def best_return(self, goals: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return of an agent that knows the goal, goes there and stays. [lanes, 2] -> [lanes]"""
        return np.maximum(self.horizon - np.maximum(self.distance(goals), 1) + 1, 0)

    def random_return(self, goals: NDArray[np.integer]) -> NDArray[np.float64]:
        """Expected return of an agent that acts uniformly at random, computed exactly. [lanes, 2] -> [lanes]"""
        y, x = np.divmod(np.arange(self.size**2), self.size)
        led = self.cell(np.clip(np.stack([x, y], axis=1)[:, None] + MOVES, 0, self.size - 1))  # [cells, actions]
        chance, visits = np.zeros(self.size**2), np.zeros(self.size**2)
        chance[self.cell(np.array(self.start))] = 1.0
        for _ in range(self.horizon):
            chance = np.bincount(led.ravel(), np.repeat(chance / ACTIONS, ACTIONS), minlength=self.size**2)
            visits += chance
        return visits[self.cell(goals)]


class DarkroomState(NamedTuple):
    """The state of all lanes."""

    goal: NDArray[np.int64]
    """[lanes, 2]"""
    position: NDArray[np.int64]
    """[lanes, 2], as (x, y)."""
    elapsed: int
    """Steps since the reset; the lanes run side by side."""


class Step(NamedTuple):
    """The result of a step. The observation is `state.position`."""

    state: DarkroomState
    reward: NDArray[np.float32]
    """[lanes]"""
    terminated: NDArray[np.bool_]
    """[lanes], never true."""
    truncated: NDArray[np.bool_]
    """[lanes], true after the last step of the horizon."""


def reset(room: Darkroom, goals: NDArray[np.integer]) -> DarkroomState:
    """Return the first state: all lanes in the centre, one lane for each goal. [lanes, 2]

    Raises:
        DataError: A goal is not in the room.
    """
    goals = np.asarray(goals, np.int64).reshape(-1, 2)
    outside = np.flatnonzero(np.any((goals < 0) | (goals >= room.size), axis=1))
    if len(outside):
        raise DataError(
            f"goal {tuple(goals[outside[0]].tolist())} is outside a room of {room.size} x {room.size} cells"
        )
    return DarkroomState(goals, np.tile(np.array(room.start, np.int64), (len(goals), 1)), 0)


def step(room: Darkroom, state: DarkroomState, actions: NDArray[np.integer]) -> Step:
    """Move every lane by its action. [lanes]

    Raises:
        DataError: An action is not one of the five, or the episode is over.
    """
    if state.elapsed >= room.horizon:
        raise DataError(f"the episode was truncated after {state.elapsed} steps: reset before the next step")
    if len(actions) and not 0 <= int(actions.min()) <= int(actions.max()) < ACTIONS:
        raise DataError(
            f"actions must be between 0 and {ACTIONS - 1}, got {int(actions.min())} to {int(actions.max())}"
        )
    position = np.clip(state.position + MOVES[actions], 0, room.size - 1)
    after = DarkroomState(state.goal, position, state.elapsed + 1)
    reward = np.all(position == state.goal, axis=1).astype(np.float32)
    over = np.full(len(position), after.elapsed == room.horizon)
    return Step(after, reward, np.zeros(len(position), np.bool_), over)


class Episode(NamedTuple):
    """One episode in every lane: positions, actions and rewards."""

    states: NDArray[np.int8]
    """[lanes, horizon, 2], the position before the action."""
    actions: NDArray[np.int8]
    """[lanes, horizon]"""
    rewards: NDArray[np.float32]
    """[lanes, horizon]"""


def play(
    room: Darkroom,
    goals: NDArray[np.integer],
    act: Callable[[DarkroomState], NDArray[np.integer]],
    learn: Callable[[DarkroomState, NDArray[np.integer], Step], None] | None = None,
) -> Episode:
    """Play one episode in every lane. `act` chooses the actions; `learn` is called with the result of every step."""
    state = reset(room, goals)
    lanes = len(state.goal)
    episode = Episode(
        np.empty((lanes, room.horizon, 2), np.int8),
        np.empty((lanes, room.horizon), np.int8),
        np.empty((lanes, room.horizon), np.float32),
    )
    for time in range(room.horizon):
        actions = act(state)
        led = step(room, state, actions)
        episode.states[:, time], episode.actions[:, time], episode.rewards[:, time] = (
            state.position,
            actions,
            led.reward,
        )
        if learn is not None:
            learn(state, actions, led)
        state = led.state
    return episode


def lane_env(room: Darkroom, lanes: int = 8) -> LaneEnv:
    """The room as `brim.envs.checker` sees it. The seed decides the goals, one for each lane."""

    def begin(seed: int) -> DarkroomState:
        words = raw_bits(lanes, seed=seed, purpose="darkroom/goals")
        return reset(room, room.goals[below(words, len(room.goals)).astype(np.int64)])

    def sample(state: DarkroomState, seed: int) -> NDArray[np.int64]:
        words = raw_bits(len(state.goal), seed=seed, purpose="darkroom/actions")
        return below(words, ACTIONS).astype(np.int64)

    return LaneEnv(
        lanes=lanes,
        reset=begin,
        step=lambda state, actions: step(room, state, actions),
        sample=sample,
        observe=lambda state: state.position,
        observation_space=Bounds(0, room.size - 1, (lanes, 2)),
        action_space=Bounds(0, ACTIONS - 1, (lanes,)),
    )
