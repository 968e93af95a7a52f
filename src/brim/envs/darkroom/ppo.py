"""Tabular PPO in many lanes at once: a softmax policy and a value for every cell, in tables, for each lane and its
goal.

Episodes are collected in batches; when a batch is full, several passes over it move both tables by the gradient of the
clipped objective (Schulman et al., 2017) and of the squared error of the value, with an entropy bonus. Advantages are
generalised estimates, scaled by their spread in the lane's batch where there is any. All randomness is keyed: what a
lane does depends on the seed, its goal and its number.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import OptionError
from brim.core.options import check_counts
from brim.envs.darkroom.q_learning import uniform
from brim.envs.darkroom.room import ACTIONS, MOVES, Darkroom, DarkroomState, Episode, play
from brim.envs.policy_gradient import advantages as advantage_estimates
from brim.envs.policy_gradient import choose, softmax


@dataclass(frozen=True, kw_only=True)
class Ppo:
    """Options of PPO (Schulman et al. 2017)."""

    batch_episodes: int = 4
    """Episodes that are played by one policy before it learns."""
    passes: int = 8
    clip: float = 0.2
    policy_rate: float = 2.0
    """Learning rate of the logits. The gradient is a sum over the steps in a cell, divided by the episodes of a
    batch."""
    value_rate: float = 0.3
    """Learning rate of the values: the share of the error to the mean return of a cell that a pass removes."""
    discount: float = 0.95
    trace: float = 0.95
    """Lambda of the advantage estimates."""
    entropy: float = 0.01

    def __post_init__(self) -> None:
        check_counts(batch_episodes=self.batch_episodes, passes=self.passes)
        for name in ("clip", "policy_rate"):
            if not 0 < getattr(self, name) < np.inf:
                raise OptionError(f"{name} must be above 0 and finite, got {getattr(self, name)}")
        for name in ("value_rate", "discount", "trace"):
            if not 0 <= getattr(self, name) <= 1:
                raise OptionError(f"{name} must be between 0 and 1, got {getattr(self, name)}")
        if not 0 <= self.entropy < np.inf:
            raise OptionError(f"entropy must not be negative or infinite, got {self.entropy}")


class PpoLearner:
    """Two tables for each lane: `logits` [lanes, cells, actions] and `values` [lanes, cells]."""

    def __init__(self, config: Ppo, room: Darkroom, goals: NDArray[np.integer], *, seed: int) -> None:
        self.config, self.room, self.goals, self.seed = config, room, goals, seed
        self.logits = np.zeros((len(goals), room.size**2, ACTIONS))
        self.values = np.zeros((len(goals), room.size**2))
        self._lanes = np.arange(len(goals))
        self._batch: list[Episode] = []

    def episode(self, number: int) -> Episode:
        """Play episode `number`. After the last one of a batch, learn from the batch."""
        noise = uniform((len(self.goals), self.room.horizon), seed=self.seed, purpose="ppo", epoch=number)

        def act(state: DarkroomState) -> NDArray[np.integer]:
            chances = softmax(self.logits[self._lanes, self.room.cell(state.position)])
            return choose(chances, noise[:, state.elapsed])

        episode = play(self.room, self.goals, act)
        self._batch.append(episode)
        if len(self._batch) == self.config.batch_episodes:
            self.learn(self._batch)
            self._batch = []
        return episode

    def learn(self, batch: list[Episode]) -> None:
        """Move the tables by a batch of episodes."""
        cells = np.concatenate([self.room.cell(episode.states) for episode in batch], axis=1)  # [lanes, steps]
        actions = np.concatenate([episode.actions for episode in batch], axis=1).astype(np.int64)
        advantages = np.concatenate([self.advantages(episode) for episode in batch], axis=1)
        returns = advantages + np.take_along_axis(self.values, cells, axis=1)
        spread = advantages.std(axis=1, keepdims=True)
        scaled = np.where(spread > 1e-8, (advantages - advantages.mean(axis=1, keepdims=True)) / (spread + 1e-8), 0.0)
        lanes = np.broadcast_to(self._lanes[:, None], cells.shape)
        before = np.log(softmax(self.logits)[lanes, cells, actions])
        for _ in range(self.config.passes):
            self.logits += (
                self.config.policy_rate / len(batch) * self._policy_gradient(lanes, cells, actions, scaled, before)
            )
            error, visits = np.zeros_like(self.values), np.zeros_like(self.values)
            np.add.at(error, (lanes, cells), returns - self.values[lanes, cells])
            np.add.at(visits, (lanes, cells), 1.0)
            self.values += self.config.value_rate * error / np.maximum(visits, 1.0)

    def advantages(self, episode: Episode) -> NDArray[np.float64]:
        """Generalised advantage estimates (Schulman et al. 2016), bootstrapped at the truncation. [lanes, horizon]"""
        config = self.config
        values = np.take_along_axis(self.values, self.room.cell(episode.states), axis=1)
        last = np.clip(episode.states[:, -1] + MOVES[episode.actions[:, -1]], 0, self.room.size - 1)
        after = np.concatenate([values[:, 1:], self.values[self._lanes, self.room.cell(last)][:, None]], axis=1)
        truncated = np.zeros(values.shape, np.bool_)
        truncated[:, -1] = True
        estimates = advantage_estimates(
            episode.rewards.T,
            values.T,
            after.T,
            np.zeros_like(truncated.T),
            truncated.T,
            discount=config.discount,
            trace=config.trace,
        )
        # Sums over the steps of a lane are rounded in the order of memory, so lanes are rows again.
        return np.ascontiguousarray(estimates.T)

    def _policy_gradient(
        self,
        lanes: NDArray[np.int64],
        cells: NDArray[np.int64],
        actions: NDArray[np.int64],
        advantages: NDArray[np.float64],
        before: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Gradient of the clipped objective, summed over steps, and of the entropy bonus. [lanes, cells, actions]"""
        config, policy = self.config, softmax(self.logits)
        chances = policy[lanes, cells]  # [lanes, steps, actions]
        taken = np.take_along_axis(chances, actions[..., None], axis=2)[..., 0]
        ratio = np.exp(np.log(taken) - before)
        flat = np.where(advantages > 0, ratio > 1 + config.clip, ratio < 1 - config.clip)
        weight = np.where(flat, 0.0, ratio * advantages)[..., None]
        score = (np.arange(ACTIONS) == actions[..., None]) - chances
        logs = np.log(chances)
        entropy = -chances * (logs - (chances * logs).sum(axis=2, keepdims=True))
        gradient = np.zeros_like(self.logits)
        np.add.at(gradient, (lanes, cells), weight * score + config.entropy * entropy)
        return gradient
