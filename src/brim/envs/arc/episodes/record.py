"""Record episodes while environments run, or find them in a trajectory.

A recorder keeps the actions of the episodes that it saw begin. An episode that was under way when the recording began
is not recorded, because its first actions are unknown.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import DataError
from brim.core.options import check_counts
from brim.envs.arc.actions import StructuredAction
from brim.envs.arc.arrays import split_key
from brim.envs.arc.batch import batch_reset, batch_step
from brim.envs.arc.config import JaxArcConfig
from brim.envs.arc.episodes.episode import KINDS, ArcEpisode, replay
from brim.envs.arc.rollout import Policy, policy_actions
from brim.envs.arc.state import RUNNING, ArcEnvState
from brim.envs.arc.tasks.bank import TaskBank, as_bank
from brim.envs.arc.tasks.task import JaxArcTask

Tasks = JaxArcTask | Sequence[JaxArcTask]


class Standing(NamedTuple):
    """The facts of a batch before a step that a recorder needs. All are [batch], and copies of NumPy."""

    task: NDArray[np.int32]
    pair: NDArray[np.int32]
    episode: NDArray[np.int32]
    steps: NDArray[np.int32]
    running: NDArray[np.bool_]


def standing(states: ArcEnvState) -> Standing:
    """Copy what a recorder needs from the states before a step, which may be changed by it."""
    return Standing(
        task=np.array(states.task_index),
        pair=np.array(states.pair_index),
        episode=np.array(states.episode),
        steps=np.array(states.step_count),
        running=np.array(states.status) == RUNNING,
    )


class EpisodeRecorder:
    """Collects the finished episodes of a batch of environments, step by step.

    Example:
        recorder = EpisodeRecorder(tasks, config)
        before = standing(states)
        states, obs, rewards, dones, infos = batch_step(states, actions, config)
        finished = recorder.step(before, actions, rewards, infos)
    """

    def __init__(self, tasks: Tasks, config: JaxArcConfig, *, limit: int | None = None) -> None:
        """
        Args:
            tasks: The tasks of the environments, in the order of their bank.
            limit: Upper limit of the episodes that are kept. Later ones are counted in `left_out`.

        Raises:
            DataError: There are no tasks, or a grid is larger than the configuration allows.
        """
        check_counts(limit=limit)
        self._tasks = [tasks] if isinstance(tasks, JaxArcTask) else list(tasks)
        self._bank = as_bank(self._tasks, config)
        self._config = config
        self._limit = limit
        self.finished: list[ArcEpisode] = []
        """The recorded episodes, in the order in which they ended."""
        self.left_out = 0
        """Finished episodes beyond the limit."""
        self._taken: list[_Taken] = []
        """The steps since `_offset`."""
        self._offset = 0
        self._begin: NDArray[np.int64] | None = None
        """[batch]: the step with which the present episode began; -1 if it is not recorded."""
        self._first: Standing | None = None
        """How each environment stood when its present episode began."""

    def step(
        self, before: Standing, actions: StructuredAction, rewards: Any, infos: dict[str, Any]
    ) -> list[ArcEpisode]:
        """Take note of one step of all environments, and return the episodes that ended with it and were kept."""
        now = self._offset + len(self._taken)
        begin, first = self._noted(before, now)
        self._taken.append(
            _Taken(
                actions=type(actions)(*(np.array(part) for part in actions)),
                rewards=np.array(rewards, np.float64),
                similarity=np.array(infos["similarity"]),
            )
        )
        terminated, truncated = np.array(infos["terminated"]), np.array(infos["truncated"])
        ended = before.running & (begin >= 0) & (terminated | truncated)
        new: list[ArcEpisode] = []
        for env in np.flatnonzero(ended).tolist():
            if self._limit is not None and len(self.finished) >= self._limit:
                self.left_out += 1
            else:
                new.append(self._episode(env, int(begin[env]), first, bool(terminated[env]), bool(truncated[env])))
                self.finished.append(new[-1])
        begin[ended] = -1
        self._forget(begin, now)
        return new

    def unfinished(self) -> list[ArcEpisode]:
        """Return the episodes that are under way and have at least one step, which are neither terminated nor
        truncated.
        """
        if self._begin is None or self._first is None:
            return []
        envs = np.flatnonzero(self._begin >= 0).tolist()
        return [self._episode(env, int(self._begin[env]), self._first, False, False) for env in envs]

    def _noted(self, before: Standing, now: int) -> tuple[NDArray[np.int64], Standing]:
        """Note which episodes begin with this step."""
        if self._begin is None or self._first is None:
            self._begin = np.full(len(before.running), -1, np.int64)
            self._first = before._replace(**{name: part.copy() for name, part in before._asdict().items()})
        starting = before.running & (before.steps == 0)
        # An episode that was reset from outside ends without being recorded.
        self._begin[starting] = now
        for kept, part in zip(self._first, before, strict=True):
            kept[starting] = part[starting]
        return self._begin, self._first

    def _episode(self, env: int, begin: int, first: Standing, terminated: bool, truncated: bool) -> ArcEpisode:
        taken = self._taken[begin - self._offset :]
        kind = type(taken[0].actions)
        columns = zip(*(one.actions for one in taken), strict=True)
        task, pair = int(first.task[env]), int(first.pair[env])
        is_test = int(pair >= self._bank.first[task, 1])
        similarity = float(taken[-1].similarity[env])
        return ArcEpisode(
            task=self._tasks[task],
            config=self._config,
            kind=KINDS[is_test],
            pair=pair - int(self._bank.first[task, is_test]),
            actions=kind(*(np.stack([part[env] for part in column]) for column in columns)),
            env=env,
            episode=int(first.episode[env]),
            reward=sum(float(one.rewards[env]) for one in taken),
            similarity=similarity,
            solved=similarity == 1,
            terminated=terminated,
            truncated=truncated,
        )

    def _forget(self, begin: NDArray[np.int64], now: int) -> None:
        """Drop the steps that no present episode needs."""
        present = begin[begin >= 0]
        oldest = int(present.min()) if len(present) else now + 1
        if oldest - self._offset > len(self._taken) // 2:
            del self._taken[: oldest - self._offset]
            self._offset = oldest


class _Taken(NamedTuple):
    """One step of all environments."""

    actions: StructuredAction
    rewards: NDArray[np.float64]
    similarity: NDArray[np.float32]


def record_episodes(
    policy_fn: Policy, tasks: Tasks, config: JaxArcConfig, *, envs: int = 1, steps: int = 100, seed: int = 0
) -> list[ArcEpisode]:
    """Let a policy act on NumPy arrays, and return the episodes that ended within `steps` steps, in that order.

    Environments begin again at once, unless `config.environment.auto_reset` is "off": then each plays one episode.

    Raises:
        DataError: The tasks do not fit the configuration, or the policy returns something else than actions.
        OptionError: A number is below 1.
    """
    check_counts(envs=envs, steps=steps)
    listed = [tasks] if isinstance(tasks, JaxArcTask) else list(tasks)
    act = policy_actions(policy_fn)
    recorder = EpisodeRecorder(listed, config)
    states, _ = batch_reset(split_key(seed, envs, arrays="numpy"), config, listed)
    for number in range(steps):
        before = standing(states)
        if config.environment.auto_reset == "off" and not before.running.any():
            break
        actions, _ = act(states, np.int32(number))
        states, _, rewards, _, infos = batch_step(states, actions, config)
        recorder.step(before, actions, rewards, infos)
    return recorder.finished


def episodes_of(trajectory: dict[str, Any], tasks: Tasks, config: JaxArcConfig) -> list[ArcEpisode]:
    """Return the episodes that begin and end in a trajectory of `batch_policy_rollout`, environment by environment.

    The trajectory may be NumPy's or JAX's. `tasks` are those of its bank, in the same order.

    Raises:
        DataError: The trajectory is not one, or the tasks are not those of its bank.
    """
    listed = [tasks] if isinstance(tasks, JaxArcTask) else list(tasks)
    try:
        states, dones = trajectory["states"], np.asarray(trajectory["dones"])
        actions = type(trajectory["actions"])(*(np.asarray(part) for part in trajectory["actions"]))
    except (KeyError, TypeError):
        raise DataError("a trajectory is what batch_policy_rollout returns, with states, actions and dones") from None
    bank = as_bank(listed, replace(config, environment=replace(config.environment, episode_mode="train")))
    _check_bank(bank, states.bank)
    seen = standing(states)  # [steps, batch]
    found: list[ArcEpisode] = []
    for env in range(dones.shape[1]):
        begin = -1
        for step in np.flatnonzero(seen.running[:, env]).tolist():
            if seen.steps[step, env] == 0:
                begin = step
            if begin >= 0 and dones[step, env]:
                task, pair = int(seen.task[begin, env]), int(seen.pair[begin, env])
                is_test = int(pair >= bank.first[task, 1])
                found.append(
                    replay(
                        listed[task],
                        config,
                        type(actions)(*(part[begin : step + 1, env] for part in actions)),
                        kind=KINDS[is_test],
                        pair=pair - int(bank.first[task, is_test]),
                        env=env,
                        episode=int(seen.episode[begin, env]),
                    )
                )
                begin = -1
    return found


def _check_bank(expected: TaskBank, found: TaskBank) -> None:
    same = all(
        np.array_equal(np.asarray(one), np.asarray(two)) for one, two in zip(expected[:5], found[:5], strict=True)
    )
    if not same:
        raise DataError(f"the {expected.num_tasks} tasks are not those of the trajectory, which has {found.num_tasks}")
