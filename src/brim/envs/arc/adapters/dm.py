"""`ArcDmEnv`: one ARC environment with the interface of dm_env, on NumPy arrays.

`reset` and `step` return a `TimeStep`. The step after the last one of an episode ignores its action and begins the next
episode. dm_env itself is not needed, and neither are JAX and Gymnasium: the classes here have the fields and methods of
those of dm_env that agents use.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import DataError
from brim.core.options import check_counts
from brim.envs.arc.adapters.lanes import AnyTasks, Lanes, bank_of
from brim.envs.arc.adapters.structured import structured
from brim.envs.arc.channels import check_channels, count_channels, stack_channels
from brim.envs.arc.config import JaxArcConfig
from brim.envs.arc.operations import OPERATIONS, PADDING
from brim.envs.arc.state import ArcEnvState

FIRST_LANE = np.zeros(1, np.int64)


class StepType(IntEnum):
    """Where in an episode a time step is."""

    FIRST = 0
    MID = 1
    LAST = 2


class TimeStep(NamedTuple):
    """The outcome of a step, or the beginning of an episode."""

    step_type: StepType
    reward: np.float32 | None
    """None in the first time step."""
    discount: np.float32 | None
    """0 where the episode terminated, else 1: an episode that was cut off is not over. None in the first time step."""
    observation: NDArray[np.uint8]

    def first(self) -> bool:
        """Return whether an episode begins here."""
        return self.step_type == StepType.FIRST

    def mid(self) -> bool:
        """Return whether this is neither the first nor the last time step of an episode."""
        return self.step_type == StepType.MID

    def last(self) -> bool:
        """Return whether an episode ends here."""
        return self.step_type == StepType.LAST


@dataclass(frozen=True, eq=False)
class BoundedArray:
    """The form of an array: shape, dtype, and the smallest and largest value of each entry."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    minimum: NDArray[Any]
    maximum: NDArray[Any]
    name: str

    def validate(self, value: Any) -> NDArray[Any]:
        """Return the value as an array.

        Raises:
            DataError: It has another shape or dtype, or lies outside of the limits.
        """
        array = np.asarray(value)
        if array.shape != self.shape or array.dtype != self.dtype:
            raise DataError(
                f"{self.name} must be {self.dtype} of shape {self.shape}, got {array.dtype} of shape {array.shape}"
            )
        if (array < self.minimum).any() or (array > self.maximum).any():
            raise DataError(f"{self.name} must lie between {self.minimum} and {self.maximum}, got {array}")
        return array

    def generate_value(self) -> NDArray[Any]:
        """Return the smallest value of every entry."""
        return np.broadcast_to(self.minimum, self.shape).astype(self.dtype)


class ArcDmEnv:
    """Change a grid until it is the answer, and submit it.

    Example:
        env = ArcDmEnv("arcagi", seed=0)
        step = env.reset()
        while not step.last():
            step = env.step(agent(step.observation))
    """

    def __init__(
        self,
        tasks: AnyTasks | None = None,
        config: JaxArcConfig | None = None,
        *,
        seed: int = 0,
        channels: tuple[str, ...] | None = None,
        pairs: int = 3,
    ) -> None:
        """
        Args:
            tasks: A task, a list of tasks or a bank, or the name or path of a data set, as for `ArcEnv`.
            seed: The episodes are those of `ArcEnv` with this seed.
            channels: Observe these grids, as the wrapper `Channels` does. By default the working grid alone.
            pairs: Number of demonstration pairs in the channel "demonstrations".

        Raises:
            OptionError: The seed or a channel does not exist, or the configuration asks for automatic resets.
            DataError: The tasks cannot be read, or do not fit into the configured size.
        """
        check_counts(pairs=pairs)
        self.config = JaxArcConfig() if config is None else config
        self.channels = None if channels is None else check_channels(channels)
        self.pairs = pairs
        self.bank = bank_of(tasks, self.config)
        self._lanes = Lanes(self.bank, self.config, 1)
        self._lanes.seed(FIRST_LANE, [seed])

    @property
    def states(self) -> ArcEnvState:
        """The state, as a batch of one. The next step changes its arrays in place."""
        return self._lanes.states

    def reset(self) -> TimeStep:
        """Begin the next episode."""
        self._lanes.begin(FIRST_LANE)
        return TimeStep(StepType.FIRST, None, None, self._observation())

    def step(self, action: Any) -> TimeStep:
        """Apply an action. Where the episode has ended, or none has begun, begin the next one and ignore the action.

        Raises:
            DataError: The action has another form than `action_spec` says.
        """
        one = structured(action, self.config, ())
        if self.states.episode_done[0]:
            return self.reset()
        _, report = self._lanes.step(type(one)(*(np.asarray(part)[None] for part in one)))
        ended = report.terminated[0] or report.truncated[0]
        discount = np.float32(0 if report.terminated[0] else 1)
        step_type = StepType.LAST if ended else StepType.MID
        return TimeStep(step_type, report.reward[0], discount, self._observation())

    def observation_spec(self) -> BoundedArray:
        """Return the form of observations: uint8 of [height, width] or [channels, height, width]."""
        shape = self.config.shape
        if self.channels is not None:
            shape = (count_channels(self.channels, self.pairs), *shape)
        return _bounded(shape, np.uint8, 0, PADDING, "observation")

    def action_spec(self) -> BoundedArray | dict[str, BoundedArray]:
        """Return the form of actions: numbers, or a dictionary where selections are masks."""
        operation = OPERATIONS - 1
        if self.config.action.selection_format == "mask":
            return {
                "operation": _bounded((), np.int32, 0, operation, "operation"),
                "selection": _bounded(self.config.shape, np.bool_, False, True, "selection"),
            }
        corners = 1 if self.config.action.selection_format == "point" else 2
        largest = [operation, *[size - 1 for size in self.config.shape] * corners]
        return _bounded((len(largest),), np.int32, 0, largest, "action")

    def reward_spec(self) -> BoundedArray:
        """Return the form of rewards: any number."""
        return _bounded((), np.float32, -np.inf, np.inf, "reward")

    def discount_spec(self) -> BoundedArray:
        """Return the form of discounts: 0 or 1."""
        return _bounded((), np.float32, 0, 1, "discount")

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def _observation(self) -> NDArray[np.uint8]:
        if self.channels is None:
            return self.states.cells[0].copy()
        return stack_channels(self.states, self.channels, self.pairs)[0]


def _bounded(shape: tuple[int, ...], dtype: Any, minimum: Any, maximum: Any, name: str) -> BoundedArray:
    return BoundedArray(shape, np.dtype(dtype), np.asarray(minimum, dtype), np.asarray(maximum, dtype), name)
