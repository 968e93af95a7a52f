"""Play episodes: with the fixed actions of the guide, or with a policy that is called for every step.

A policy is a function of the states that returns a dictionary with "actions" and "log_probs". On arrays of JAX a whole
rollout is one compiled program: the policy is traced once for each call, and whatever it closes over is read then.
Arrays that it closes over are arguments of the program, so new weights do not compile it again; Python numbers are
constants of the program. Within one call the policy must be a function of the states alone: a random generator of NumPy
would be read once, not at every step. Take randomness from the states, as `example_policy` does.

A policy that cannot be traced (one that turns states into NumPy arrays, or calls back into Python) is called step by
step instead, and so is every policy on NumPy arrays. Under `jax.jit` a rollout is part of the surrounding program.
"""

import math
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from brim.core.errors import DataError
from brim.core.options import check_counts
from brim.envs.arc.actions import BboxAction, MaskAction, PointAction, StructuredAction
from brim.envs.arc.arrays import Arrays, load_jax, numpy_of, split_key
from brim.envs.arc.batch import batch_reset, batch_step
from brim.envs.arc.config import JaxArcConfig
from brim.envs.arc.engine import random
from brim.envs.arc.operations import COLOURS, ArcOperation
from brim.envs.arc.state import ArcEnvState
from brim.envs.arc.tasks.bank import Tasks
from brim.envs.arc.tasks.task import create_mock_task
from brim.envs.arc.traced import Act, run

Policy = Callable[[ArcEnvState], Mapping[str, Any]]
PURPOSE = np.array([0x0AC7104E, 0x5EED0003], np.uint32)
"""Changes the keys for the draws of `example_policy`: the keys themselves draw tasks and pairs."""
LATE = 25
"""Step from which `conditional_batch_processing` acts in its second way."""


def batch_policy_rollout(
    policy_fn: Policy, batch_states: ArcEnvState, config: JaxArcConfig, num_steps: int = 10
) -> dict[str, Any]:
    """Let a policy act for a number of steps, and return the trajectory.

    Everything has the steps on its first axis. "states" are the states before each step, as one `ArcEnvState` whose
    bank is not repeated; "actions", "rewards", "dones" and "log_probs" belong to the step. "final_states" are those
    after the last step, without an axis for steps. Finished environments are stepped as well, with reward 0.

    Raises:
        DataError: The policy returns something else, or actions of another kind, shape or dtype than the
            configuration and the batch say.
        OptionError: `num_steps` is below 1.
    """
    check_counts(num_steps=num_steps)
    act = policy_actions(policy_fn)
    return run(act, batch_states, config, num_steps, body=_rollout_program, loop=_rollout_loop)._asdict()


def run_batch_episode(
    initial_keys: Any, config: JaxArcConfig, task: Tasks, max_steps: int = 50, *, policy_fn: Policy | None = None
) -> dict[str, Any]:
    """Play one episode in every environment.

    The result has "final_states", "episode_rewards" ([batch], float32), "episode_lengths" ([batch], int32) and
    "completion_rate", the share of environments whose episode ended within `max_steps`. Play stops when all episodes
    have ended. With auto-reset, environments that are done earlier play on, and that is not counted.

    Without a policy, step n fills the cell in row n % 10 + 5 and column 5 with colour 0, selected in the configured
    format. Outside of the grid that is an invalid action, which changes nothing.

    Raises:
        DataError: The keys or the tasks are not what they should be, or the policy returns something else.
        OptionError: `max_steps` is below 1.
    """
    check_counts(max_steps=max_steps)
    states, _ = batch_reset(initial_keys, config, task)
    act = partial(_fixed_actions, config) if policy_fn is None else policy_actions(policy_fn)
    return run(act, states, config, max_steps, body=_episode_program, loop=_episode_loop)._asdict()


def hierarchical_batch_processing(
    num_episodes: int = 100,
    envs_per_episode: int = 16,
    steps_per_episode: int = 50,
    config: JaxArcConfig | None = None,
    task: Tasks | None = None,
    *,
    arrays: Arrays = "auto",
) -> list[dict[str, Any]]:
    """Play `run_batch_episode` again and again, with the keys `split_key(episode, envs_per_episode)`.

    Every entry of the result has "episode" (its number), "rewards" ([envs_per_episode]), "mean_reward" and
    "std_reward". The defaults are the default configuration and the task of `create_mock_task`.

    Raises:
        MissingExtraError: `arrays` is "jax", which is not installed.
        OptionError: A number is below 1.
    """
    check_counts(num_episodes=num_episodes, envs_per_episode=envs_per_episode, steps_per_episode=steps_per_episode)
    config = JaxArcConfig() if config is None else config
    task = create_mock_task() if task is None else task
    results: list[dict[str, Any]] = []
    for episode in range(num_episodes):
        keys = split_key(episode, envs_per_episode, arrays=arrays)
        rewards = run_batch_episode(keys, config, task, max_steps=steps_per_episode)["episode_rewards"]
        on_host = np.asarray(rewards, np.float64)
        results.append(
            {
                "episode": episode,
                "rewards": rewards,
                "mean_reward": float(on_host.mean()),
                "std_reward": float(on_host.std()),
            }
        )
    return results


def example_policy(states: ArcEnvState) -> dict[str, Any]:
    """Choose at random: a colour to fill with, and any cell of the configuration's size. For `PointAction`.

    The choice depends on the environment's key, its episode and its step, and on nothing else: it is the same in any
    batch, at any place, and on NumPy and JAX arrays. Log-probabilities are those of this uniform choice.
    """
    on_numpy = isinstance(states.status, np.ndarray)
    draw = partial(_draw, _threefry_on_numpy, random.below) if on_numpy else _draw_on_jax()
    rows, columns = states.bank.shape
    operation, row, col = draw(states.key, states.episode, states.step_count, (COLOURS, rows, columns))
    log_prob = np.float32(-math.log(COLOURS * rows * columns))
    log_probs = numpy_of(states.status).full(states.batch_size, log_prob, np.float32)
    return {"actions": PointAction(operation, row, col), "log_probs": log_probs}


def conditional_batch_processing(batch_states: ArcEnvState, config: JaxArcConfig) -> StructuredAction:
    """Return actions that depend on the step: in the first 25 steps of an episode fill (5, 5) with colour 0, later fill
    (10, 10) with colour 1.
    """
    early = batch_states.step_count < LATE
    where = numpy_of(batch_states.status).where
    place = where(early, np.int32(5), np.int32(10))
    operation = where(early, np.int32(ArcOperation.FILL_0), np.int32(ArcOperation.FILL_1))
    return select_cells(config, operation, place, place)


def select_cells(config: JaxArcConfig, operation: Any, row: Any, col: Any) -> StructuredAction:
    """Return actions that select one cell each, of the kind that the configuration asks for. All are [batch], int32.

    A mask cannot select a cell outside of the configured size; there it selects nothing.
    """
    if config.action.selection_format == "point":
        return PointAction(operation, row, col)
    if config.action.selection_format == "bbox":
        return BboxAction(operation, row, col, row, col)
    rows, columns = (np.arange(size, dtype=np.int32) for size in config.shape)
    chosen = (row[:, None, None] == rows[:, None]) & (col[:, None, None] == columns)
    return MaskAction(operation, chosen)


def policy_actions(policy_fn: Policy) -> Act:
    """Return the policy as a function of states and step that returns actions and log-probabilities, checked."""

    def act(states: ArcEnvState, _: Any) -> tuple[Any, Any]:
        chosen: Any = policy_fn(states)
        if not isinstance(chosen, Mapping) or not {"actions", "log_probs"} <= chosen.keys():
            found = f"the keys {', '.join(map(str, chosen))}" if isinstance(chosen, Mapping) else type(chosen).__name__
            raise DataError(f'policy_fn must return a dictionary with "actions" and "log_probs", got {found}')
        return chosen["actions"], chosen["log_probs"]

    return act


def _fixed_actions(config: JaxArcConfig, states: ArcEnvState, step: Any) -> tuple[Any, None]:
    zeros = numpy_of(states.status).zeros(states.batch_size, np.int32)
    row = zeros + (step % 10 + 5)
    return select_cells(config, zeros + np.int32(ArcOperation.FILL_0), row, zeros + np.int32(5)), None


def _draw(threefry: Any, below: Any, key: Any, episode: Any, step: Any, limits: tuple[int, int, int]) -> list[Any]:
    """Draw three integers for each environment, below the limits. Each is [batch], int32."""
    of_episode = numpy_of(key).stack(threefry(key ^ PURPOSE, episode), -1)
    words = [*threefry(of_episode, 2 * step), *threefry(of_episode, 2 * step + 1)]
    return [below(word, limit) for word, limit in zip(words[:3], limits, strict=True)]


def _threefry_on_numpy(key: Any, counter: Any) -> tuple[Any, Any]:
    return random.threefry(key, (counter, 0))


@cache
def _draw_on_jax() -> Callable[..., list[Any]]:
    from brim.envs.arc.engine.planes import bits

    return load_jax().jit(partial(_draw, bits.threefry, bits.below), static_argnums=3)


class _Rollout(NamedTuple):
    """The result of `batch_policy_rollout`."""

    states: ArcEnvState
    actions: Any
    rewards: Any
    dones: Any
    log_probs: Any
    final_states: ArcEnvState


def _rollout_loop(act: Act, states: ArcEnvState, config: JaxArcConfig, num_steps: int) -> _Rollout:
    stack = numpy_of(states.status).stack

    def stacked(leaves: tuple[Any, ...]) -> Any:
        return None if leaves[0] is None else stack(leaves)

    seen: list[tuple[Any, ...]] = []
    for number in range(num_steps):
        actions, log_probs = act(states, np.int32(number))
        after, _, rewards, dones, _ = batch_step(states, actions, config)
        seen.append((states, actions, rewards, dones, log_probs))
        states = after
    before, actions, rewards, dones, log_probs = zip(*seen, strict=True)
    return _Rollout(
        states=ArcEnvState(states.bank, *map(stacked, zip(*(one[1:] for one in before), strict=True))),
        actions=type(actions[0])(*map(stack, zip(*actions, strict=True))),
        rewards=stack(rewards),
        dones=stack(dones),
        log_probs=stack(log_probs),
        final_states=states,
    )


def _rollout_program(act: Act, states: ArcEnvState, config: JaxArcConfig, num_steps: int) -> _Rollout:
    jax, bank = load_jax(), states.bank

    def step(changed: tuple[Any, ...], number: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        before = ArcEnvState(bank, *changed)
        actions, log_probs = act(before, number)
        after, _, rewards, dones, _ = batch_step(before, actions, config)
        return tuple(after[1:]), (changed, actions, rewards, dones, log_probs)

    numbers = jax.numpy.arange(num_steps, dtype=np.int32)
    final, (before, actions, rewards, dones, log_probs) = jax.lax.scan(step, tuple(states[1:]), numbers)
    return _Rollout(ArcEnvState(bank, *before), actions, rewards, dones, log_probs, ArcEnvState(bank, *final))


class _Episode(NamedTuple):
    """The result of `run_batch_episode`."""

    final_states: ArcEnvState
    episode_rewards: Any
    episode_lengths: Any
    completion_rate: Any


class _Score(NamedTuple):
    """Counts that are kept while episodes are played. All are [batch]."""

    rewards: Any
    lengths: Any
    active: Any
    """bool: the episode has not ended yet."""

    @classmethod
    def begin(cls, states: ArcEnvState) -> "_Score":
        numpy, batch = numpy_of(states.status), states.batch_size
        return cls(numpy.zeros(batch, np.float32), numpy.zeros(batch, np.int32), numpy.ones(batch, np.bool_))

    def add(self, rewards: Any, dones: Any) -> "_Score":
        counted = numpy_of(rewards).where(self.active, rewards, np.float32(0))
        return _Score(self.rewards + counted, self.lengths + self.active, self.active & ~dones)

    def result(self, states: ArcEnvState) -> _Episode:
        completed = numpy_of(self.active).mean(~self.active, dtype=np.float32)
        return _Episode(states, self.rewards, self.lengths, completed)


def _episode_loop(act: Act, states: ArcEnvState, config: JaxArcConfig, max_steps: int) -> _Episode:
    score = _Score.begin(states)
    for number in range(max_steps):
        actions, _ = act(states, np.int32(number))
        states, _, rewards, dones, _ = batch_step(states, actions, config)
        score = score.add(rewards, dones)
        if not score.active.any():
            break
    return score.result(states)


def _episode_program(act: Act, states: ArcEnvState, config: JaxArcConfig, max_steps: int) -> _Episode:
    jax, bank = load_jax(), states.bank

    def some_are_active(carry: tuple[Any, Any, _Score]) -> Any:
        number, _, score = carry
        return (number < max_steps) & score.active.any()

    def step(carry: tuple[Any, Any, _Score]) -> tuple[Any, Any, _Score]:
        number, changed, score = carry
        before = ArcEnvState(bank, *changed)
        actions, _ = act(before, number)
        after, _, rewards, dones, _ = batch_step(before, actions, config)
        return number + 1, tuple(after[1:]), score.add(rewards, dones)

    start = (jax.numpy.int32(0), tuple(states[1:]), _Score.begin(states))
    _, changed, score = jax.lax.while_loop(some_are_active, step, start)
    return score.result(ArcEnvState(bank, *changed))
