"""Environments on NumPy arrays that are stepped in place: what adapters with a state of their own are made of.

An environment is a lane of the batch. Each lane has its own seed and its own number of the episode, so a seed gives the
same episodes in every lane and beside any others. Nothing is reset automatically: `begin` is called for the lanes that
need it. Neither JAX nor Gymnasium is imported.
"""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import OptionError
from brim.envs.arc.actions import PointAction, StructuredAction, check_actions
from brim.envs.arc.config import JaxArcConfig
from brim.envs.arc.engine import on_numpy
from brim.envs.arc.engine.call import CHANGED, Report, blank, resetting
from brim.envs.arc.state import TERMINATED, ArcEnvState, take_states
from brim.envs.arc.tasks.bank import TaskBank, Tasks, as_bank
from brim.envs.arc.tasks.datasets import load_tasks
from brim.envs.arc.tasks.task import create_mock_task

AnyTasks = Tasks | str | os.PathLike[str]
"""Tasks, a bank of them, or the name or path that `load_tasks` reads."""
SEEDS = 2**64
"""Seeds are below this number: a key has 64 bits."""


def key_of(seed: int) -> NDArray[np.uint32]:
    """Return the key of a seed, which is that of `jax.random.PRNGKey(seed)` with 64-bit integers. [2], uint32

    Raises:
        OptionError: The seed is not an integer from 0 to 2**64 - 1.
    """
    is_integer = isinstance(seed, int | np.integer) and not isinstance(seed, bool)  # pyright: ignore[reportUnnecessaryIsInstance]
    if not is_integer or not 0 <= seed < SEEDS:
        raise OptionError(f"a seed must be an integer from 0 to 2**64 - 1, got {seed!r}")
    return np.array([int(seed) >> 32, int(seed) & 0xFFFFFFFF], np.uint32)


def bank_of(tasks: AnyTasks | None, config: JaxArcConfig) -> TaskBank:
    """Return a bank of NumPy arrays; without tasks, that of `create_mock_task`.

    Raises:
        OptionError: This is neither tasks nor a name or path.
        DataError: The tasks cannot be read, or do not fit into the configured size.
    """
    if tasks is None:
        tasks = create_mock_task()
    elif isinstance(tasks, str | os.PathLike):
        tasks = load_tasks(tasks)
    bank = as_bank(tasks, config)
    return TaskBank(*(np.asarray(leaf) for leaf in bank[:5]))


def check_no_auto_reset(config: JaxArcConfig) -> None:
    """Check that the configuration leaves resets to the adapter.

    Raises:
        OptionError: It asks for automatic resets.
    """
    if config.environment.auto_reset != "off":
        raise OptionError(
            f"auto_reset must be 'off' in the configuration of an adapter, which has its own way of resetting,"
            f" got {config.environment.auto_reset!r}"
        )


class Lanes:
    """A number of environments. All of them have ended until `seed` and `begin` were called."""

    states: ArcEnvState
    """The states as they are now. A step changes these arrays in place."""
    seeded: NDArray[np.bool_]
    """[size]: the lane was given a seed."""

    def __init__(self, bank: TaskBank, config: JaxArcConfig, size: int) -> None:
        check_no_auto_reset(config)
        keys, no_fixed_task = np.zeros((size, 2), np.uint32), np.full(size, -1, np.int32)
        self.config = config
        self.states = blank(bank, keys, no_fixed_task, config.shape)
        self.seeded = np.zeros(size, np.bool_)

    def seed(self, lanes: Sequence[int] | NDArray[Any], seeds: Sequence[int]) -> None:
        """Give lanes new seeds. Their next episode is the first one of the seed."""
        self.states.key[lanes] = [key_of(seed) for seed in seeds]
        self.states.episode[lanes] = -1
        self.seeded[lanes] = True

    def begin(self, lanes: NDArray[Any]) -> None:
        """Begin the next episode of the lanes with these numbers."""
        chosen = take_states(self.states, lanes)
        chosen.status[:] = TERMINATED
        zeros = np.zeros(len(lanes), np.int32)
        begun, _, _ = on_numpy.step(chosen, PointAction(zeros, zeros, zeros), resetting(self.config), donate=True)
        for name in CHANGED:
            getattr(self.states, name)[lanes] = getattr(begun, name)

    def step(self, actions: StructuredAction) -> tuple[NDArray[np.uint8], Report]:
        """Step all lanes, and return new arrays: observations and the report. A lane that has ended stays as it is.

        Raises:
            DataError: The actions have another kind, shape or dtype.
        """
        actions = check_actions(actions, self.config, tuple(self.states.status.shape))
        self.states, obs, report = on_numpy.step(self.states, actions, self.config, donate=True)
        return obs, report
