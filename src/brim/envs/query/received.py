"""Steps of several environments, as their caller gets them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brim.envs.query.lane import Outcome

Observations = NDArray[np.float32]


class BatchStep(NamedTuple):
    """One step of several environments."""

    observations: Observations
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    infos: list[dict[str, Any]]
    """One for each environment."""

    @property
    def dones(self) -> NDArray[np.bool_]:
        """Whether an episode ended: terminated or truncated."""
        return self.terminated | self.truncated


@dataclass(frozen=True)
class QueryBatch:
    """Steps that were received, in the order of their completion."""

    ids: NDArray[np.int64]
    """Numbers of the environments."""
    observations: Observations
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    infos: list[dict[str, Any]]

    @property
    def dones(self) -> NDArray[np.bool_]:
        """Whether an episode ended: terminated or truncated."""
        return self.terminated | self.truncated

    def __len__(self) -> int:
        return len(self.ids)


def gathered(done: Sequence[tuple[int, Outcome]], dim: int) -> QueryBatch:
    """Put the outcomes of environments into columns, in their order.

    Where a reset followed at once, the observation is that of the new episode, and `info` has the last one of the old
    episode as "final_obs" and "final_info".
    """
    outcomes = [outcome for _, outcome in done]
    observations = [(outcome.then or outcome).observation for outcome in outcomes]
    return QueryBatch(
        ids=np.array([number for number, _ in done], np.int64),
        observations=np.array(observations, np.float32).reshape(len(done), dim),
        rewards=np.array([outcome.reward for outcome in outcomes], np.float64),
        terminated=np.array([outcome.terminated for outcome in outcomes], np.bool_),
        truncated=np.array([outcome.truncated for outcome in outcomes], np.bool_),
        valid=np.array([outcome.valid for outcome in outcomes], np.bool_),
        infos=[_info(outcome) for outcome in outcomes],
    )


def _info(outcome: Outcome) -> dict[str, Any]:
    if outcome.then is None:
        return outcome.info
    return {**outcome.then.info, "final_obs": outcome.observation, "final_info": outcome.info}
