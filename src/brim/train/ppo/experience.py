"""The experience of one rollout: arrays with the time first and the environments second. NumPy only."""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import DataError

DTYPES: dict[str, type[np.generic]] = {
    "observations": np.float32,
    "actions": np.int64,
    "log_probs": np.float32,
    "values": np.float32,
    "next_observations": np.float32,
    "rewards": np.float64,
    "terminated": np.bool_,
    "truncated": np.bool_,
    "valid": np.bool_,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Experience:
    """T steps of n environments, all chosen by one policy.

    An invalid step has no outcome, such as one whose call to a server failed. Nothing about it is learned from, so its
    reward, action and next observation may be anything.
    """

    observations: NDArray[np.float32]
    """[T, n, d], before the steps."""
    actions: NDArray[np.int64]
    """[T, n]"""
    log_probs: NDArray[np.float32]
    """[T, n], the log-probability of each action when it was chosen."""
    values: NDArray[np.float32]
    """[T, n], of the observations before the steps."""
    next_observations: NDArray[np.float32]
    """[T, n, d], after the steps; where an episode ended, its final observation, not the first one of the next."""
    rewards: NDArray[np.float64]
    """[T, n]"""
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]

    def __post_init__(self) -> None:
        for field in fields(self):  # as the declared types; no copy where they are already
            object.__setattr__(self, field.name, np.asarray(getattr(self, field.name), DTYPES[field.name]))
        if self.observations.ndim != 3:
            raise DataError(
                f"observations must have the shape (steps, environments, size), got {self.observations.shape}"
            )
        steps = self.observations.shape[:2]
        for name in DTYPES:
            wanted = self.observations.shape if name.endswith("observations") else steps
            found: Any = getattr(self, name).shape
            if found != wanted:
                raise DataError(
                    f"{name} must have the shape {wanted}, as observations have {self.observations.shape}, got {found}"
                )
        wrong = np.argwhere(self.valid & ~np.isfinite(self.rewards))
        if len(wrong):
            step, env = wrong[0].tolist()
            raise DataError(
                f"the reward of step {step} of environment {env} is {self.rewards[step, env]}; mark a step without a "
                "reward as invalid"
            )

    @property
    def num_steps(self) -> int:
        """T, the steps of each environment."""
        return self.observations.shape[0]

    @property
    def num_envs(self) -> int:
        """n, the number of environments."""
        return self.observations.shape[1]

    @cached_property
    def valid_count(self) -> int:
        """Number of valid steps."""
        return int(self.valid.sum())
