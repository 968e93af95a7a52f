"""Evaluate an agent on held-out tasks: one episode of each test pair, scored by the kind of task.

An agent acts in one compiled rollout. Its actions are then taken again on NumPy arrays, which costs little and tells
everything else: which actions were invalid, how episodes ended, and the episodes themselves. Random actions are drawn
beforehand, so they need no policy. Nothing here changes the state of training.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brim.core.rng import Words
from brim.envs.arc.actions import BboxAction
from brim.envs.arc.arrays import split_key
from brim.envs.arc.batch import batch_reset, batch_step
from brim.envs.arc.config import JaxArcConfig
from brim.envs.arc.episodes.record import EpisodeRecorder, standing
from brim.envs.arc.operations import OPERATIONS
from brim.envs.arc.state import ArcEnvState
from brim.envs.arc.tasks.task import JaxArcTask
from brim.train.arc.report import RANDOM, Evaluation, Score

if TYPE_CHECKING:
    from brim.envs.arc.episodes.episode import ArcEpisode

Play = Callable[[ArcEnvState, JaxArcConfig], BboxAction]
"""Plays for the steps of an episode, on arrays of JAX, and returns the actions, [steps, tasks]: `Learner.play`."""
KEPT = 8
"""Episodes of each kind that are kept for people to look at: this many solved ones, and this many others."""


class Played(NamedTuple):
    """Outcomes of one episode of each task. All are [tasks]."""

    solved: NDArray[np.bool_]
    steps: NDArray[np.int64]
    invalid: NDArray[np.int64]
    """Number of invalid steps."""
    episodes: "list[ArcEpisode]"
    """Finished episodes, in the order in which they ended; none if they were not asked for."""


def evaluate(
    agents: Mapping[str, Play], tasks: Sequence[JaxArcTask], config: JaxArcConfig, *, seed: int
) -> "tuple[Evaluation, list[ArcEpisode]]":
    """Compare agents and random actions on the same tasks, and return episodes of the first agent to look at.

    Args:
        agents: By their names in the evaluation (`SAMPLED`, `GREEDY`).
        config: Without auto-reset: every environment plays one episode.
    """
    began = time.monotonic()
    played = {
        name: replay_actions(played_actions(play, tasks, config, seed=seed), tasks, config, seed=seed, record=True)
        for name, play in agents.items()
    }
    chance = replay_actions(random_actions(len(tasks), config, seed=seed), tasks, config, seed=seed)
    scores = {name: score_by_kind(tasks, one) for name, one in {**played, RANDOM: chance}.items()}
    shown = selection(next(iter(played.values())).episodes)
    return Evaluation(scores=scores, seconds=time.monotonic() - began), shown


def solved_share(play: Play, tasks: Sequence[JaxArcTask], config: JaxArcConfig, *, seed: int) -> float:
    """Return the share of the tasks that an agent solves: the cheap evaluation between updates."""
    played = replay_actions(played_actions(play, tasks, config, seed=seed), tasks, config, seed=seed)
    return float(played.solved.mean())


def kind_of(task: JaxArcTask) -> str:
    """Return the kind of a task of a family, with which its id begins."""
    return task.id.partition("-")[0]


def played_actions(play: Play, tasks: Sequence[JaxArcTask], config: JaxArcConfig, *, seed: int) -> BboxAction:
    """Let an agent play one episode of each task, and return its actions. [steps, tasks], NumPy"""
    numbers = np.arange(len(tasks), dtype=np.int32)
    states, _ = batch_reset(split_key(seed, len(tasks), arrays="jax"), config, list(tasks), task_indices=numbers)
    return BboxAction(*(np.asarray(part) for part in play(states, config)))


def random_actions(tasks: int, config: JaxArcConfig, *, seed: int) -> BboxAction:
    """Draw actions uniformly: one of the allowed operations, and two cells of the configured size. [steps, tasks]"""
    words = Words(seed, "arc/random policy")
    shape = config.environment.max_episode_steps, tasks
    allowed = np.array([number for number in range(OPERATIONS) if config.action.allowed >> number & 1], np.int32)

    def drawn(limit: int) -> NDArray[np.int32]:
        return words.below(shape[0] * shape[1], limit).astype(np.int32).reshape(shape)

    rows, columns = config.shape
    operation = allowed[drawn(len(allowed))]
    return BboxAction(operation, drawn(rows), drawn(columns), drawn(rows), drawn(columns))


def replay_actions(
    actions: BboxAction, tasks: Sequence[JaxArcTask], config: JaxArcConfig, *, seed: int, record: bool = False
) -> Played:
    """Take actions in one environment for each task, and return the outcomes. Actions after the end do not count."""
    listed = list(tasks)
    numbers = np.arange(len(listed), dtype=np.int32)
    recorder = EpisodeRecorder(listed, config) if record else None
    states, _ = batch_reset(split_key(seed, len(listed), arrays="numpy"), config, listed, task_indices=numbers)
    steps = np.zeros(len(listed), np.int64)
    invalid = np.zeros(len(listed), np.int64)
    solved = np.zeros(len(listed), np.bool_)
    for number in range(actions.operation.shape[0]):
        before = standing(states)
        taken = BboxAction(*(part[number] for part in actions))
        states, _, rewards, _, infos = batch_step(states, taken, config)
        if recorder is not None:
            recorder.step(before, taken, rewards, infos)
        steps += before.running
        invalid += before.running & infos["invalid"]
        solved |= before.running & infos["terminated"] & infos["solved"]
    return Played(solved, steps, invalid, [] if recorder is None else recorder.finished)


def score_by_kind(tasks: Sequence[JaxArcTask], played: Played) -> dict[str, Score]:
    """Sum the outcomes of the tasks of each kind, in the order of their first appearance."""
    kinds = np.array([kind_of(task) for task in tasks])
    scores: dict[str, Score] = {}
    for kind in dict.fromkeys(kinds.tolist()):
        chosen = kinds == kind
        scores[kind] = Score(
            tasks=int(chosen.sum()),
            solved=int(played.solved[chosen].sum()),
            steps=int(played.steps[chosen].sum()),
            invalid=int(played.invalid[chosen].sum()),
        )
    return scores


def selection(episodes: "Sequence[ArcEpisode]") -> "list[ArcEpisode]":
    """Return the first `KEPT` solved and the first `KEPT` other episodes of each kind, in the order of their tasks."""
    kept: dict[tuple[str, bool], list[Any]] = {}
    for episode in sorted(episodes, key=lambda one: one.env):
        found = kept.setdefault((kind_of(episode.task), episode.solved), [])
        if len(found) < KEPT:
            found.append(episode)
    return sorted((episode for found in kept.values() for episode in found), key=lambda one: one.env)
