"""Play random actions in a batch of environments, and sum up what happened.

A step of an environment counts only if its episode was under way: a finished environment that waits, or that begins
its next episode instead of acting, has not played.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brim.cli.arc.engines import EngineArrays
from brim.cli.arc.random_actions import RandomActions, random_keys
from brim.envs.arc.actions import StructuredAction
from brim.envs.arc.batch import batch_reset, compiled_batch_step
from brim.envs.arc.config import JaxArcConfig
from brim.envs.arc.episodes.episode import ArcEpisode
from brim.envs.arc.episodes.record import EpisodeRecorder, Standing, standing
from brim.envs.arc.operations import OPERATIONS
from brim.envs.arc.state import RUNNING
from brim.envs.arc.tasks.bank import as_bank
from brim.envs.arc.tasks.task import JaxArcTask

KINDS = ("train", "test")


class Episode(NamedTuple):
    """A finished episode, as it is written to a file."""

    env: int
    """Number of the environment."""
    episode: int
    """Number of the episode in its environment."""
    task: str
    """Id of the task."""
    kind: str
    """One of `KINDS`: whether the pair is a demonstration or a test."""
    pair: int
    """Number of the pair at the end of the episode, among those of its kind."""
    steps: int
    reward: float
    similarity: float
    """At the end of the episode."""
    solved: bool
    truncated: bool
    """Whether the step limit ended it."""


@dataclass
class Summary:
    """Totals of what was played."""

    played: int = 0
    """Steps of all environments."""
    episodes: int = 0
    """Finished episodes, to which the next five refer."""
    truncated: int = 0
    solved: int = 0
    reward: float = 0.0
    length: int = 0
    similarity: float = 0.0
    best_similarity: float = 0.0
    """After any step of any environment."""
    operations: NDArray[np.int64] = field(default_factory=lambda: np.zeros(OPERATIONS, np.int64))
    """How often each operation was played."""
    invalid: NDArray[np.int64] = field(default_factory=lambda: np.zeros(OPERATIONS, np.int64))
    """How often it was invalid."""
    seconds: float = 0.0
    """Spent in steps, without compilation and without drawing the actions."""
    first_seconds: float = 0.0
    """Spent in the first reset and the first step of all, which compile."""

    def add(self, episode: Episode) -> None:
        self.episodes += 1
        self.truncated += episode.truncated
        self.solved += episode.solved
        self.reward += episode.reward
        self.length += episode.steps
        self.similarity += episode.similarity


class Recording:
    """The first finished episodes of the first environments, with all their actions.

    As many environments are watched as episodes are wanted, so the memory does not grow with the batch.
    """

    def __init__(self, tasks: list[JaxArcTask], config: JaxArcConfig, *, limit: int) -> None:
        self._recorder = EpisodeRecorder(tasks, config, limit=limit)
        self._limit = limit

    @property
    def finished(self) -> list[ArcEpisode]:
        """The recorded episodes, in the order in which they ended."""
        return self._recorder.finished

    def step(self, before: Standing, actions: StructuredAction, rewards: Any, infos: dict[str, Any]) -> None:
        """Take note of one step of all environments."""
        if len(self.finished) == self._limit:
            return
        first = slice(self._limit)
        self._recorder.step(
            Standing._make(part[first] for part in before),
            type(actions)(*(part[first] for part in actions)),
            rewards[first],
            {name: infos[name][first] for name in ("similarity", "terminated", "truncated")},
        )


def play(
    tasks: list[JaxArcTask],
    config: JaxArcConfig,
    arrays: EngineArrays,
    *,
    envs: int,
    steps: int,
    seed: int,
    on_step: Callable[[int], None] = lambda step: None,
    on_episode: Callable[[Episode], None] = lambda episode: None,
    recording: Recording | None = None,
) -> Summary:
    """Play random actions for `steps` steps, or until all environments are finished and none begins again.

    The result depends on tasks, configuration and seed. What an environment plays does not depend on `envs`.
    """
    bank = as_bank(tasks, config)
    keys = arrays.put(random_keys(envs, seed=seed, purpose="arc environments"))
    actions = RandomActions(config, envs=envs, seed=seed)
    summary = Summary()
    started = perf_counter()
    states, _ = batch_reset(keys, config, bank)
    arrays.wait(compiled_batch_step(states, actions.at(0), config, donate=True))
    summary.first_seconds = perf_counter() - started

    # That step was for compilation: the first episodes begin again.
    states, _ = batch_reset(keys, config, bank)
    running = np.ones(envs, np.bool_)
    rewards = np.zeros(envs, np.float64)
    lengths = np.zeros(envs, np.int64)
    for step in range(steps):
        chosen = actions.at(step)
        task, episode = np.array(states.task_index), np.array(states.episode)  # the step may reset them
        before = None if recording is None else standing(states)
        started = perf_counter()
        result = arrays.wait(compiled_batch_step(states, chosen, config, donate=True))
        summary.seconds += perf_counter() - started
        states = result.states

        operations = np.asarray(chosen.operation)
        rewards += np.where(running, np.asarray(result.rewards), 0)
        lengths += running
        infos = {name: np.asarray(value) for name, value in result.infos.items()}
        _count(summary, running, operations, infos)
        if recording is not None and before is not None:
            recording.step(before, chosen, np.asarray(result.rewards), infos)
        ended = running & np.asarray(result.dones)
        for env in np.flatnonzero(ended).tolist():
            pair, own = int(infos["pair_index"][env]), int(task[env])
            kind = int(pair >= bank.first[own, 1])
            finished = Episode(
                env=env,
                episode=int(episode[env]),
                task=tasks[own].id,
                kind=KINDS[kind],
                pair=pair - int(bank.first[own, kind]),
                steps=int(lengths[env]),
                reward=float(rewards[env]),
                similarity=float(infos["similarity"][env]),
                solved=bool(infos["solved"][env]),
                truncated=bool(infos["truncated"][env]),
            )
            summary.add(finished)
            on_episode(finished)
        rewards[ended] = 0
        lengths[ended] = 0
        running = np.asarray(states.status) == RUNNING
        on_step(step + 1)
        if config.environment.auto_reset == "off" and not running.any():
            break
    return summary


def _count(summary: Summary, running: NDArray[np.bool_], operations: Any, infos: dict[str, Any]) -> None:
    summary.played += int(running.sum())
    summary.operations += np.bincount(operations[running], minlength=OPERATIONS)
    summary.invalid += np.bincount(operations[running & infos["invalid"]], minlength=OPERATIONS)
    best = infos["similarity"].max(where=running, initial=0)
    summary.best_similarity = max(summary.best_similarity, float(best))
