"""A rollout: every environment takes its own T steps, while the policy serves whoever is ready.

No environment waits for another one. All steps are chosen by one policy, and each environment takes exactly T of them,
slow ones too, so that nothing is biased towards questions that are answered fast.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import OptionError
from brim.envs.query.failures import TooManyInvalid
from brim.envs.query.lane import Lane, Outcome
from brim.envs.query.lanes import Lanes, Work
from brim.envs.query.task import Tally

Chosen = NDArray[np.integer] | tuple[NDArray[np.integer], Mapping[str, NDArray[Any]]]
Policy = Callable[[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]], Chosen]
"""Chooses actions: (observations [k, d], numbers of the environments [k], steps that each has taken so far [k]) ->
actions [k], or (actions, further values by name, each [k]), which are kept in `Rollout.extras`. To be independent of
which environments happen to be ready together, it should draw random numbers by environment and step."""

LOOK = 0.2
"""Seconds between two looks at whether to stop."""
FEW = 8
"""Fewest invalid steps in a row that end a rollout."""


@dataclass
class Rollout:
    """The steps of all environments. Time is the first axis, environments the second."""

    observations: NDArray[np.float32]  # [T, n, d]
    actions: NDArray[np.int64]  # [T, n]
    rewards: NDArray[np.float64]
    """NaN where a step is invalid."""
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    next_observations: NDArray[np.float32]  # [T, n, d]
    """After the step, and before the reset that follows the end of an episode."""
    infos: list[list[dict[str, Any]]]
    """By step, then by environment."""
    extras: dict[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]])
    """Further columns that the policy returned, [T, n] each."""
    tally: Tally = field(default_factory=Tally)
    policy_calls: int = 0
    policy_seconds: float = 0.0
    seconds: float = 0.0

    @property
    def dones(self) -> NDArray[np.bool_]:
        """Whether an episode ended with a step: terminated or truncated."""
        return self.terminated | self.truncated

    @property
    def invalid(self) -> dict[str, int]:
        """Number of invalid steps by the type of their failure."""
        kinds = [info["failure_type"] for row in self.infos for info in row if not info["valid"]]
        return dict(sorted(Counter(kinds).items()))


def collect(
    lanes: Lanes,
    policy: Policy,
    num_steps: int,
    *,
    max_invalid: float | None = None,
    stop: Callable[[], bool] | None = None,
    watch: Callable[[Outcome], None] | None = None,
) -> Rollout | None:
    """Let every environment take `num_steps` steps. Episodes that end are followed by the next one at once.

    A reset that fails is tried again; each further failure takes the place of an invalid step.

    Args:
        max_invalid: Largest share of invalid steps; a rollout with more is given up as soon as that is certain.
        stop: Asked from time to time; if it is true, the rollout is given up.
        watch: Called with every step that is done, in the order of completion.

    Returns:
        The steps, or None if it was given up because `stop` asked for that.

    Raises:
        TooManyInvalid: More steps are invalid than `max_invalid` allows, or so many in a row that no server seems to be
            there.
    """
    return _Collecting(lanes, policy, num_steps, max_invalid, stop or _never, watch or _unwatched).run()


def _never() -> bool:
    return False


def _unwatched(outcome: Outcome) -> None:
    pass


class _Collecting:
    def __init__(
        self,
        lanes: Lanes,
        policy: Policy,
        num_steps: int,
        max_invalid: float | None,
        stop: Callable[[], bool],
        watch: Callable[[Outcome], None],
    ) -> None:
        self._lanes = lanes
        self._policy = policy
        self._steps = num_steps
        self._max_invalid = max_invalid
        self._stop = stop
        self._watch = watch
        count = len(lanes.lanes)
        shape = (num_steps, count)
        dim = lanes.lanes[0].task.dim
        self._taken = np.zeros(count, np.int64)
        """Steps of each environment in this rollout."""
        self._waiting: dict[int, tuple[NDArray[np.float32], int]] = {}
        """(observation, action) of the steps that are under way."""
        self._streak = 0
        self.rollout = Rollout(
            observations=np.zeros((*shape, dim), np.float32),
            actions=np.zeros(shape, np.int64),
            rewards=np.full(shape, np.nan),
            terminated=np.zeros(shape, np.bool_),
            truncated=np.zeros(shape, np.bool_),
            valid=np.zeros(shape, np.bool_),
            next_observations=np.zeros((*shape, dim), np.float32),
            infos=[[{} for _ in range(count)] for _ in range(num_steps)],
        )

    def run(self) -> Rollout | None:
        began = time.monotonic()
        ready = list(range(len(self._lanes.lanes)))
        try:
            while True:
                self._lanes.begin(self._next(ready))
                if not self._lanes.busy:
                    break
                finished: list[tuple[int, Outcome]] = []
                while not finished:
                    if self._stop():
                        self._lanes.cancel()
                        return None
                    finished = self._lanes.take(1, seconds=LOOK)
                for number, outcome in finished:
                    self._store(number, outcome)
                ready = [number for number, _ in finished]
        except BaseException:  # Ctrl-C too: nothing is left at work
            self._lanes.cancel()
            raise
        self.rollout.seconds = time.monotonic() - began
        return self.rollout

    def _next(self, ready: list[int]) -> dict[int, Work]:
        """Return the work of environments that are ready: a reset where one is needed, else a step."""
        left = [number for number in ready if self._taken[number] < self._steps]
        resets = [number for number in left if self._lanes.lanes[number].state.ended]
        steps = [number for number in left if not self._lanes.lanes[number].state.ended]
        work: dict[int, Work] = dict.fromkeys(resets, Lane.reset)
        for number, action in zip(steps, self._choose(steps), strict=True):
            work[number] = lambda lane, action=action: lane.step(action, then_reset=True)
        return work

    def _choose(self, numbers: list[int]) -> list[int]:
        if not numbers:
            return []
        lanes = [self._lanes.lanes[number] for number in numbers]
        observations = np.stack([lane.observation for lane in lanes])
        ids = np.array(numbers, np.int64)
        began = time.monotonic()
        chosen = self._policy(
            observations.copy(), ids.copy(), np.array([lane.state.number for lane in lanes], np.int64)
        )
        self.rollout.policy_seconds += time.monotonic() - began
        self.rollout.policy_calls += 1
        actions, extras = chosen if isinstance(chosen, tuple) else (chosen, {})
        actions = checked_actions(actions, len(numbers), len(lanes[0].task.mutations))
        for name, values in extras.items():
            column = self.rollout.extras.get(name)
            if column is None:
                values = np.asarray(values)
                column = self.rollout.extras[name] = np.zeros((self._steps, len(self._taken)), values.dtype)
            column[self._taken[ids], ids] = values
        for number, observation, action in zip(numbers, observations, actions, strict=True):
            self._waiting[number] = (observation, action)
        return actions

    def _store(self, number: int, outcome: Outcome) -> None:
        """Keep the outcome of a step, or of a reset that failed again."""
        self._add(outcome.tally)
        if outcome.then is not None:
            self._add(outcome.then.tally)
        if outcome.is_reset and outcome.valid:
            return
        observation, action = self._waiting.pop(number, (outcome.observation, 0))
        rollout, at = self.rollout, (self._taken[number], number)
        rollout.observations[at] = observation
        rollout.actions[at] = action
        rollout.rewards[at] = outcome.reward
        rollout.terminated[at] = outcome.terminated
        rollout.truncated[at] = outcome.truncated
        rollout.valid[at] = outcome.valid
        rollout.next_observations[at] = outcome.observation
        rollout.infos[at[0]][number] = outcome.info
        self._taken[number] += 1
        self._watch(outcome)
        self._check(outcome)

    def _add(self, tally: Tally) -> None:
        total = self.rollout.tally
        total.calls += tally.calls
        total.cached += tally.cached
        total.server_seconds += tally.server_seconds
        total.queue_seconds += tally.queue_seconds

    def _check(self, outcome: Outcome) -> None:
        self._streak = 0 if outcome.valid else self._streak + 1
        if self._max_invalid is None or outcome.valid:
            return
        taken = int(self._taken.sum())
        invalid = taken - int(self.rollout.valid.sum())
        # The share is one of the whole rollout: it is exceeded as soon as no further step can bring it down again.
        many = invalid / self.rollout.valid.size > self._max_invalid
        none_left = self._max_invalid < 1 and self._streak >= max(FEW, 2 * len(self._taken))
        if many or none_left:
            reason = f"{outcome.info['failure_type']}: {outcome.info['failure']}"
            raise TooManyInvalid(f"{invalid} of {taken} steps are invalid, the last one because of {reason}")


def checked_actions(actions: Any, count: int, below: int) -> list[int]:
    """Return actions as integers.

    Raises:
        OptionError: There are too few or too many, or one is no action.
    """
    array = np.asarray(actions)
    if array.shape != (count,) or (count > 0 and array.dtype.kind not in "iu"):
        raise OptionError(
            f"actions must be {count} integers, one for each environment, got {array.dtype} of shape {array.shape}"
        )
    wrong = np.flatnonzero((array < 0) | (array >= below))
    if len(wrong):
        raise OptionError(f"actions must lie between 0 and {below - 1}, got {array[wrong[0]]} at place {wrong[0]}")
    return [int(action) for action in array]
