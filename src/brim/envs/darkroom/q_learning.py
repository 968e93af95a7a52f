"""Tabular Q-learning in many lanes at once, each with a table and a goal of its own.

Values begin high, so what was never tried looks best and the room is searched systematically; after an episode its
steps are learned from again, last one first, so one visit to the goal is enough to find it again. Ties are broken by
keyed random bits, and every lane has its own: what a lane does depends on the seed, its goal and its number.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import OptionError
from brim.core.rng import raw_bits
from brim.envs.darkroom.room import ACTIONS, Darkroom, DarkroomState, Episode, Step, play

TIE = np.float32(1e-5)
"""Values that differ by less are equal."""


@dataclass(frozen=True, kw_only=True)
class QLearning:
    """Options of Q-learning."""

    learning_rate: float = 1.0
    """Step size of an update. The room is deterministic, so 1 learns fastest."""
    discount: float = 0.95
    initial_value: float = 10.0
    """Initial value of every action. Staying on the goal forever is worth 1 / (1 - discount)."""
    epsilon: float = 0.2
    """Share of the steps that are taken at random. A model that imitates a learner without such steps cannot recover
    from a mistake of its own."""
    replays: int = 3
    """Number of times that the steps of an episode are replayed, last one first, after it has ended."""

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate <= 1:
            raise OptionError(f"learning_rate must be above 0 and at most 1, got {self.learning_rate}")
        if not 0 <= self.discount < 1:
            raise OptionError(f"discount must be at least 0 and below 1, got {self.discount}")
        if not math.isfinite(self.initial_value):
            raise OptionError(f"initial_value must be finite, got {self.initial_value}")
        if not 0 <= self.epsilon <= 1:
            raise OptionError(f"epsilon must be between 0 and 1, got {self.epsilon}")
        if self.replays < 0:
            raise OptionError(f"replays must not be negative, got {self.replays}")


class QLearner:
    """A table for each lane. [lanes, cells, actions]"""

    def __init__(self, config: QLearning, room: Darkroom, goals: NDArray[np.integer], *, seed: int) -> None:
        self.config, self.room, self.goals, self.seed = config, room, goals, seed
        self.values = np.full((len(goals), room.size**2, ACTIONS), config.initial_value, np.float32)
        self._lanes = np.arange(len(goals))

    def episode(self, number: int) -> Episode:
        """Play episode `number`, and learn from it."""
        noise = uniform(
            (len(self.goals), self.room.horizon, ACTIONS + 2), seed=self.seed, purpose="q-learning", epoch=number
        )
        lived: list[tuple[DarkroomState, NDArray[np.integer], Step]] = []

        def act(state: DarkroomState) -> NDArray[np.integer]:
            now = noise[:, state.elapsed]
            greedy = (self.values[self._lanes, self.room.cell(state.position)] + TIE * now[:, :ACTIONS]).argmax(axis=1)
            anything = (now[:, -1] * np.float32(ACTIONS)).astype(np.int64)
            return np.where(now[:, -2] < self.config.epsilon, anything, greedy)

        def learn(state: DarkroomState, actions: NDArray[np.integer], led: Step) -> None:
            self.update(state, actions, led)
            lived.append((state, actions, led))

        episode = play(self.room, self.goals, act, learn)
        for _ in range(self.config.replays):
            for step in reversed(lived):
                self.update(*step)
        return episode

    def update(self, state: DarkroomState, actions: NDArray[np.integer], led: Step) -> None:
        """Move the values towards the reward plus the best value of the next cell. The episode is truncated, never
        terminated, so the last step bootstraps too."""
        place = self._lanes, self.room.cell(state.position), actions
        future = self.values[self._lanes, self.room.cell(led.state.position)].max(axis=1)
        target = led.reward + np.float32(self.config.discount) * future
        self.values[place] += np.float32(self.config.learning_rate) * (target - self.values[place])


def uniform(shape: tuple[int, ...], *, seed: int, purpose: str, epoch: int = 0) -> NDArray[np.float32]:
    """Uniform numbers in [0, 1), of 24 bits."""
    bits = raw_bits(math.prod(shape), seed=seed, purpose=purpose, epoch=epoch)
    return ((bits >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)).reshape(shape)
