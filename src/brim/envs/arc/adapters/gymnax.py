"""`ArcGymnaxEnv`: ARC environments with the interface of gymnax, for programs in the manner of PureJaxRL.

`reset` and `step` are functions of one environment and can be used under `jit`, `vmap` and `scan`, in any nesting. A
`vmap` over environments becomes one call of the engine with a larger batch, so it costs what `batch_step` costs. gymnax
itself is not needed; if the program has imported it, spaces are of its classes, which its wrappers ask for.

A step that ends an episode returns the state and the observation of the next one, as in gymnax. It returns five values,
as in gymnax before 1.0 and in PureJaxRL, or the six of gymnax 1.0 (`split_done`). Which task comes next
depends on the key of the reset and on the number of the episode: the key that `step` takes is not used.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from brim.core.errors import OptionError
from brim.core.extras import need
from brim.core.options import check_counts
from brim.envs.arc.adapters.flat import flat_table
from brim.envs.arc.adapters.lanes import AnyTasks, bank_of, check_no_auto_reset
from brim.envs.arc.batch import batch_reset, batch_step
from brim.envs.arc.channels import VALUES, check_channels, count_channels, one_hot, stack_channels
from brim.envs.arc.config import JaxArcConfig
from brim.envs.arc.engine.compiled import choose_engine, on_device
from brim.envs.arc.operations import PADDING
from brim.envs.arc.state import BITS, ArcEnvState
from brim.envs.arc.tasks.bank import TaskBank

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
    from jax.custom_batching import custom_vmap
else:
    jax = need("jax", extra="arc", user="brim.envs.arc")
    jnp, custom_vmap = jax.numpy, need("jax.custom_batching", extra="arc", user="brim.envs.arc").custom_vmap


class ArcParams(NamedTuple):
    """The tasks. All environments share them: `vmap` takes them with `in_axes=None`."""

    bank: TaskBank


class ArcGymnaxEnv:
    """Change a grid until it is the answer, and submit it; actions are numbers (see `FlatActions`).

    `info` has "discount" (0 if the episode has terminated, else 1: a truncated one is not over), "terminated",
    "truncated", "similarity", "solved", "invalid", "pair_index" and "final_grid", the working grid before a reset. A
    state is an `ArcEnvState` without its bank, which would be copied for every environment; `states` puts it back.

    Example:
        env = ArcGymnaxEnv("arcagi")
        params = env.default_params
        obs, state = jax.vmap(env.reset, in_axes=(0, None))(keys, params)
        obs, state, reward, done, info = jax.vmap(env.step, in_axes=(0, 0, 0, None))(keys, state, actions, params)
    """

    name = "brim/ARC-v0"

    def __init__(
        self,
        tasks: AnyTasks | None = None,
        config: JaxArcConfig | None = None,
        *,
        channels: tuple[str, ...] | None = None,
        pairs: int = 3,
        one_hot: bool = False,
        split_done: bool = False,
    ) -> None:
        """
        Args:
            tasks: A task, a list of tasks or a bank, or the name or path of a data set, as for `ArcEnv`.
            channels: Observe these grids, as the wrapper `Channels` does. By default the working grid alone.
            pairs: Number of demonstration pairs in the channel "demonstrations".
            one_hot: Observe each of the 11 values of a cell as a channel of 0 and 1, as the wrapper `OneHot` does.
            split_done: `step` returns terminated and truncated in place of done, and `info["final_observation"]`, the
                observation before a reset, as in gymnax from 1.0 on. With channels, this costs a second step.

        Raises:
            OptionError: A channel is unknown, selections are masks, or the configuration asks for automatic resets.
            DataError: The tasks cannot be read, or do not fit into the configured size.
        """
        check_counts(pairs=pairs)
        self.config = JaxArcConfig() if config is None else config
        check_no_auto_reset(self.config)
        self.channels = None if channels is None else check_channels(channels)
        self.pairs = pairs
        self.one_hot = one_hot
        self.split_done = split_done
        self.table = flat_table(self.config)
        self._same_step = replace(self.config, environment=replace(self.config.environment, auto_reset="same_step"))
        with jax.ensure_compile_time_eval():
            bank = bank_of(tasks, self.config)
            self._params = ArcParams(on_device(bank, planes=choose_engine(self.config) == "jax"))
        self._reset = _for_any_vmap(self._reset_batch)
        self._step = _for_any_vmap(self._step_batch)

    @property
    def default_params(self) -> ArcParams:
        """The tasks that were given."""
        return self._params

    @property
    def num_actions(self) -> int:
        """Number of actions."""
        return self.table.size

    def reset(self, key: Any, params: ArcParams | None = None) -> tuple[Any, ArcEnvState]:
        """Begin the first episode of a key, and return observation and state."""
        if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            key = jax.random.key_data(key)
        obs, leaves = _first(self._reset(self._bank(params), key[None]))
        return obs, ArcEnvState(None, *leaves)  # pyright: ignore[reportArgumentType]

    def step(self, key: Any, state: ArcEnvState, action: Any, params: ArcParams | None = None) -> tuple[Any, ...]:
        """Apply the action with a number, and return observation, state, reward, done and info.

        With `split_done`, return observation, state, reward, terminated, truncated and info.

        A number that does not exist is an invalid action. `key` is not used.
        """
        given = jax.tree.map(_with_axis, (tuple(state[1:]), action))
        obs, leaves, reward, done, info = _first(self._step(self._bank(params), given))
        after = ArcEnvState(None, *leaves)  # pyright: ignore[reportArgumentType]
        if self.split_done:
            return obs, after, reward, info["terminated"], info["truncated"], info
        return obs, after, reward, done, info

    def states(self, state: ArcEnvState, params: ArcParams | None = None) -> ArcEnvState:
        """Return states with their bank: those of a `vmap` as the batch that `batch_step` and `observe` take."""
        return _joined(self._bank(params), tuple(state[1:]))

    def observation_space(self, params: ArcParams | None = None) -> "Box":
        """Return the space of observations: uint8 of [height, width] or [channels, height, width]."""
        count = None if self.channels is None else count_channels(self.channels, self.pairs)
        if self.one_hot:
            return _space_class(Box)(0, 1, (VALUES * (count or 1), *self.config.shape), np.uint8)
        return _space_class(Box)(
            0, PADDING, self.config.shape if count is None else (count, *self.config.shape), np.uint8
        )

    def action_space(self, params: ArcParams | None = None) -> "Discrete":
        """Return the space of actions: the numbers from 0 to `num_actions` - 1."""
        return _space_class(Discrete)(self.table.size)

    def _bank(self, params: ArcParams | None) -> TaskBank:
        return self._params.bank if params is None else params.bank

    def _reset_batch(self, bank: TaskBank, keys: Any) -> tuple[Any, Any]:
        states, obs = batch_reset(keys, self._same_step, bank)
        return self._observe(states, obs), _parted(states)

    def _step_batch(self, bank: TaskBank, given: tuple[Any, Any]) -> tuple[Any, ...]:
        leaves, numbers = given
        states, actions = _joined(bank, leaves), self.table.decode(numbers)
        result = batch_step(states, actions, self._same_step)
        info = dict(result.infos)
        info["final_grid"] = info.pop("final_obs")
        if self.split_done:
            # Of the state before a reset, `infos` has nothing but the grid.
            last = states if self.channels is None else batch_step(states, actions, self.config).states
            info["final_observation"] = self._observe(last, info["final_grid"])
        info["discount"] = 1 - info["terminated"].astype(jnp.float32)
        obs = self._observe(result.states, result.obs)
        return obs, _parted(result.states), result.rewards, result.dones, info

    def _observe(self, states: ArcEnvState, grids: Any) -> Any:
        if self.channels is not None:
            grids = stack_channels(states, self.channels, self.pairs)
        return one_hot(grids, axes=1) if self.one_hot else grids


def _for_any_vmap(function: Callable[[TaskBank, Any], Any]) -> Callable[[TaskBank, Any], Any]:
    """Return a function of batches that treats an axis of `vmap` as more environments of the batch.

    Engines have no rule for `vmap`, because they take batches. All arrays besides the bank have the environments on the
    first axis: the axis of `vmap` is merged with it before the call, and split off the results. The merged call is of
    the same function, so a `vmap` around this one is merged as well.
    """
    call: Any = custom_vmap(jax.jit(function))

    def merged(size: int, has_axis: Any, bank: TaskBank, given: Any) -> tuple[Any, Any]:
        if any(jax.tree.leaves(has_axis[0])):
            raise OptionError("environments share their tasks: vmap over reset and step with in_axes=None for params")

        def merge(leaf: Any, axis: bool) -> Any:
            every = leaf if axis else jnp.broadcast_to(leaf, (size, *leaf.shape))
            return every.reshape((-1, *every.shape[2:]))

        def split(leaf: Any) -> Any:
            return leaf.reshape((size, -1, *leaf.shape[1:]))

        results = jax.tree.map(split, call(bank, jax.tree.map(merge, given, has_axis[1])))
        leaves, structure = jax.tree.flatten(results)
        return results, jax.tree.unflatten(structure, [True] * len(leaves))

    call.def_vmap(merged)
    return call


def _with_axis(leaf: Any) -> Any:
    return jnp.asarray(leaf)[None]


def _first(batch: Any) -> Any:
    """Return the only environment of a batch."""
    leaves, structure = jax.tree.flatten(batch)
    return jax.tree.unflatten(structure, [leaf[0] for leaf in leaves])


def _parted(states: ArcEnvState) -> tuple[Any, ...]:
    """Return the arrays of a batch without the bank, each with the environments on its first axis."""
    named = zip(states._fields[1:], states[1:], strict=True)
    return tuple(jnp.moveaxis(leaf, -1, 0) if states.has_bits and name in BITS else leaf for name, leaf in named)


def _joined(bank: TaskBank, leaves: tuple[Any, ...]) -> ArcEnvState:
    """Return the states of a batch, or of one environment, given their arrays as `_parted` returns them."""
    states = ArcEnvState(bank, *leaves)
    if not states.has_bits or states.status.ndim == 0:
        return states
    return states._replace(**{name: jnp.moveaxis(getattr(states, name), 0, -1) for name in BITS})


def _space_class(ours: type[Any]) -> type[Any]:
    """Return the class of gymnax with the same name and parameters if gymnax was imported, else ours."""
    return getattr(sys.modules.get("gymnax.environments.spaces"), ours.__name__, ours)


@dataclass(frozen=True)
class Discrete:
    """The integers from 0 to n - 1, as a space of gymnax."""

    n: int
    shape: tuple[int, ...] = ()
    dtype: Any = np.int32

    def sample(self, key: Any) -> Any:
        """Draw one uniformly."""
        return jax.random.randint(key, self.shape, 0, self.n, self.dtype)

    def contains(self, x: Any) -> Any:
        """Return whether x is one of them."""
        return (x >= 0) & (x < self.n)


@dataclass(frozen=True)
class Box:
    """Arrays of integers from `low` to `high`, as a space of gymnax."""

    low: int
    high: int
    shape: tuple[int, ...]
    dtype: Any

    def sample(self, key: Any) -> Any:
        """Draw one uniformly."""
        return jax.random.randint(key, self.shape, self.low, self.high + 1, jnp.int32).astype(self.dtype)

    def contains(self, x: Any) -> Any:
        """Return whether x is one of them."""
        if tuple(x.shape) != self.shape or x.dtype != self.dtype:
            return False
        return ((x >= self.low) & (x <= self.high)).all()
