"""The form of an environment that steps many lanes at once and keeps nothing: `LaneEnv`.

`reset` makes a state from a seed, `step` makes the next state from a state and actions. `LaneEnv` names these
functions, so that environments whose own signatures differ can be checked and wrapped alike.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from brim.core.options import check_counts


class Space(Protocol):
    """A set of values; every space of Gymnasium is one."""

    def contains(self, x: Any) -> bool: ...


@dataclass(frozen=True)
class Bounds:
    """Arrays of one shape whose entries lie between two numbers, both included: a space for environments that need no
    Gymnasium."""

    low: float
    high: float
    shape: tuple[int, ...]

    def contains(self, x: Any) -> bool:
        values = np.asarray(x)
        if values.shape != self.shape or values.dtype.kind not in "iuf":
            return False
        return bool(np.all((values >= self.low) & (values <= self.high)))


class StepResult(Protocol):
    """The result of a step. Arrays have one entry for each lane; `info`, a mapping, is optional."""

    @property
    def state(self) -> Any: ...
    @property
    def reward(self) -> Any: ...
    @property
    def terminated(self) -> Any: ...
    @property
    def truncated(self) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class LaneEnv:
    """An environment as the checker sees it: pure functions over an explicit state, many lanes at once."""

    lanes: int
    """Lanes that are stepped together."""
    reset: Callable[[int], Any]
    """Takes a seed and returns the first state of all lanes."""
    step: Callable[[Any, Any], StepResult]
    """Takes a state and the actions of all lanes and returns the step. Once all lanes have ended it may raise a
    BrimError."""
    sample: Callable[[Any, int], Any]
    """Takes a state and a seed and returns allowed actions, one for each lane, along the first axis."""
    observe: Callable[[Any], Any] | None = None
    """Takes a state and returns the observations of all lanes; the state itself unless given."""
    observation_space: Space | None = None
    """The space of the observations of all lanes, if it is known."""
    action_space: Space | None = None
    """The space of the actions of all lanes, if it is known."""
    info_keys: frozenset[str] = frozenset()
    """The keys of the `info` of every step."""

    def __post_init__(self) -> None:
        check_counts(lanes=self.lanes)
