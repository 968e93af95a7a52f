"""Reset and step a batch of ARC environments: the functions that users call.

The arrays decide where the work is done. Keys of JAX give states of JAX, which `jit`, `lax.scan` and donation take as
they are; keys of NumPy give states of NumPy, for which JAX need not be installed. The results are the same.

`batch_step` compiles itself: calling it eagerly is as fast as `compiled_batch_step`. Nothing here is random but the
choice of tasks and pairs, which depends on each environment's own key and on the number of its episode: neither the
size of the batch nor the place in it matters.
"""

import sys
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import DataError
from brim.envs.arc.actions import StructuredAction, check_actions
from brim.envs.arc.config import JaxArcConfig
from brim.envs.arc.engine import on_numpy
from brim.envs.arc.engine.call import StepResult, check_states, result_of
from brim.envs.arc.operations import PADDING
from brim.envs.arc.state import ArcEnvState, stack_states, take_states
from brim.envs.arc.tasks.bank import Tasks, as_bank

if TYPE_CHECKING:
    from types import ModuleType

Checked = TypeVar("Checked")


def batch_reset(
    keys: Any, config: JaxArcConfig, task_data: Tasks, *, task_indices: Any = None
) -> tuple[ArcEnvState, Any]:
    """Begin the first episode of every environment, and return the states and the observations.

    Args:
        keys: One key for each environment: [batch, 2] of uint32 (`jax.random.split(jax.random.PRNGKey(0), batch)`),
            or a [batch] array of new-style keys.
        config: What is the same for all environments.
        task_data: One task for all environments, or several (a list or a bank) from which each episode draws one by
            the environment's key.
        task_indices: [batch] integers: the task of each environment, in all of its episodes. -1 draws one.

    Raises:
        DataError: The keys, the tasks or their numbers are not what they should be.
        MismatchError: The bank was built for grids of another size.
    """
    bank = as_bank(task_data, _checked(config, JaxArcConfig, "config"))
    words = _key_words(keys)
    fixed = _fixed_tasks(task_indices, words.shape[0], bank.num_tasks)
    if isinstance(words, np.ndarray):
        host = type(bank)(*(None if leaf is None else np.asarray(leaf) for leaf in bank))
        return on_numpy.reset(host, words, np.asarray(fixed, np.int32), config)
    return _compiled().reset(bank, words, fixed, config)


def batch_step(states: ArcEnvState, actions: StructuredAction, config: JaxArcConfig) -> StepResult:
    """Apply one action in every environment, and return states, observations, rewards, dones and infos.

    The given states are left as they are. A finished environment stays finished, with reward 0, until it is reset.

    Raises:
        DataError: The actions are of another kind, shape or dtype than the configuration and the batch say.
        MismatchError: The states were made with another configuration.
    """
    return _step(states, actions, config, donate=False)


def compiled_batch_reset(keys: Any, config: JaxArcConfig, task_data: Tasks) -> tuple[ArcEnvState, Any]:
    """Do what `batch_reset` does; JAX compiles it once for each batch size and configuration."""
    return batch_reset(keys, config, task_data)


def compiled_batch_step(
    states: ArcEnvState, actions: StructuredAction, config: JaxArcConfig, *, donate: bool = False
) -> StepResult:
    """Do what `batch_step` does; `donate` lets the step reuse the memory of the given states, which are lost.

    The bank is not donated: other states and the next reset may use it.
    """
    return _step(states, actions, config, donate=donate)


def arc_reset(key: Any, config: JaxArcConfig, task_data: Tasks) -> tuple[ArcEnvState, Any]:
    """Begin an episode of a single environment, whose arrays have no axis for a batch."""
    states, obs = batch_reset(key[None], config, task_data)
    return take_states(states, 0), obs[0]


def arc_step(state: ArcEnvState, action: StructuredAction, config: JaxArcConfig) -> StepResult:
    """Step a single environment, whose arrays have no axis for a batch."""
    action = check_actions(action, _checked(config, JaxArcConfig, "config"), ())
    batch = type(action)(*(np.asarray(part)[None] if np.isscalar(part) else part[None] for part in action))
    states, obs, rewards, dones, infos = batch_step(stack_states([state]), batch, config)
    return StepResult(
        take_states(states, 0), obs[0], rewards[0], dones[0], {name: value[0] for name, value in infos.items()}
    )


def observe(states: ArcEnvState, channels: tuple[str, ...] = ("working", "input", "target")) -> Any:
    """Return several grids as channels. [batch, channels, height, width], uint8

    Channels are "working", "input", "target", "clipboard" and "selected" (0 and 1). The target of a test pair is
    hidden: all of it is `PADDING`.

    Raises:
        DataError: A channel has another name.
    """
    known = {
        "working": lambda: states.working_grid,
        "input": lambda: states.input_grid,
        "target": lambda: _shown_target(states),
        "clipboard": lambda: states.clipboard,
        "selected": lambda: states.selected.astype(np.uint8),
    }
    for name in channels:
        if name not in known:
            raise DataError(f"channels must be some of {', '.join(known)}, got {name!r}")
    numpy = np if isinstance(states.status, np.ndarray | np.generic) else sys.modules["jax"].numpy
    return numpy.stack([known[name]() for name in channels], axis=-3)


def _shown_target(states: ArcEnvState) -> Any:
    hidden = states.on_test_pair[..., None, None]
    return states.target_grid * (~hidden).astype(np.uint8) + hidden.astype(np.uint8) * np.uint8(PADDING)


def _step(states: ArcEnvState, actions: StructuredAction, config: JaxArcConfig, *, donate: bool) -> StepResult:
    if not isinstance(_checked(states, ArcEnvState, "states").status, np.ndarray | np.generic):
        return _compiled().step(states, actions, _checked(config, JaxArcConfig, "config"), donate=donate)
    check_states(states, _checked(config, JaxArcConfig, "config"))
    actions = check_actions(actions, config, tuple(states.status.shape))
    return result_of(*on_numpy.step(states, actions, config, donate=donate))


@cache
def _compiled() -> "ModuleType":
    from brim.envs.arc.engine import compiled

    return compiled


def _checked(value: Any, kind: type[Checked], name: str) -> Checked:
    if not isinstance(value, kind):
        raise DataError(f"{name} must be {kind.__name__}, got {type(value).__name__}")
    return value


def _key_words(keys: Any) -> Any:
    """Return keys as [batch, 2] words."""
    if hasattr(keys, "dtype") and str(keys.dtype).startswith("key<"):
        keys = sys.modules["jax"].random.key_data(keys)
    if not hasattr(keys, "dtype") or not hasattr(keys, "shape"):
        raise DataError(f"keys must be an array of shape (batch, 2), got {type(keys).__name__}")
    if len(keys.shape) != 2 or keys.shape[1] != 2 or keys.dtype != np.uint32:
        raise DataError(
            f"keys must be uint32 of shape (batch, 2), got {keys.dtype} of shape {tuple(keys.shape)}; make them with"
            " jax.random.split(jax.random.PRNGKey(0), batch) or, without JAX, with split_key(0, batch)"
        )
    if keys.shape[0] == 0:
        raise DataError("keys has no rows: a batch needs at least one environment")
    return np.ascontiguousarray(keys) if isinstance(keys, np.ndarray) else keys


def _fixed_tasks(given: Any, batch: int, tasks: int) -> Any:
    if given is None:
        return np.full(batch, -1, np.int32)
    numbers: NDArray[Any] | Any = given if hasattr(given, "dtype") else np.asarray(given)
    if tuple(numbers.shape) != (batch,) or np.dtype(numbers.dtype).kind not in "iu":
        raise DataError(
            f"task_indices must be {batch} integers, one for each key, got {numbers.dtype} of shape"
            f" {tuple(numbers.shape)}"
        )
    try:
        values = np.asarray(numbers)
    except TypeError:  # traced by JAX: no values to read yet
        return numbers.astype(np.int32)
    if values.min() < -1 or values.max() >= tasks:
        wrong = values[(values < -1) | (values >= tasks)][0]
        raise DataError(f"task_indices must be between 0 and {tasks - 1}, or -1 to draw a task, got {wrong}")
    return numbers.astype(np.int32)
