"""From a rollout to minibatches: advantages, returns, and the samples in the order in which they are learned from.

Invalid steps are left out before anything is shuffled or averaged, so nothing about them reaches a gradient.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import DataError
from brim.core.extras import need
from brim.core.rng import permutation
from brim.envs.policy_gradient import advantages
from brim.train.ppo.config import PpoConfig
from brim.train.ppo.experience import Experience
from brim.train.ppo.objective import PpoBatch

if TYPE_CHECKING:
    import torch
else:
    torch = need("torch", extra="train", user="brim.train")

SMALLEST_SPREAD = 1e-8
"""Advantages that differ by less are equal: there is nothing to prefer."""


@dataclass(frozen=True, eq=False)
class Samples:
    """The valid steps of a rollout, in the order of their steps, then of their environments. m in all."""

    places: NDArray[np.int64]
    """[m, 2], the step and the environment of each."""
    observations: NDArray[np.float32]  # [m, d]
    actions: NDArray[np.int64]  # [m]
    log_probs: NDArray[np.float32]
    values: NDArray[np.float32]
    advantages: NDArray[np.float64]
    """[m], normalised if the options say so."""
    returns: NDArray[np.float64]
    """[m], the targets of the values: advantages, as they were before they were normalised, plus values."""

    def __len__(self) -> int:
        return len(self.places)

    @property
    def explained_variance(self) -> float | None:
        """Share of the variance of the returns that the values had predicted: 1 is all of it, 0 no more than a constant
        would, and a negative one is worse than that. None if the returns do not vary."""
        spread = float(np.var(self.returns)) if len(self) else 0.0
        if spread <= SMALLEST_SPREAD**2:
            return None
        return 1.0 - float(np.var(self.returns - self.values)) / spread


def samples_of(experience: Experience, next_values: NDArray[np.float32], config: PpoConfig) -> Samples:
    """Return the valid steps of a rollout with their advantages and returns.

    Args:
        next_values: Values of the next observations, by the policy that collected the rollout. [T, n]

    Raises:
        DataError: `next_values` has another shape than the rollout.
    """
    if np.shape(next_values) != experience.valid.shape:
        raise DataError(f"next_values must have the shape {experience.valid.shape}, got {np.shape(next_values)}")
    estimates = advantages(
        experience.rewards,
        experience.values,
        next_values,
        experience.terminated,
        experience.truncated,
        experience.valid,
        discount=config.discount,
        trace=config.gae_lambda,
    )
    valid = experience.valid
    values = experience.values[valid]
    kept = estimates[valid]
    return Samples(
        places=np.argwhere(valid),
        observations=experience.observations[valid],
        actions=experience.actions[valid],
        log_probs=experience.log_probs[valid],
        values=values,
        advantages=normalized(kept) if config.normalize_advantages else kept,
        returns=kept + values,
    )


def normalized(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return values shifted and scaled to mean 0 and standard deviation 1; zeros if there is no spread. [m] -> [m]"""
    spread = float(values.std()) if len(values) else 0.0
    if spread <= SMALLEST_SPREAD:
        return np.zeros_like(values)
    return (values - values.mean()) / spread


def parts_of_pass(count: int, config: PpoConfig) -> int:
    """Number of minibatches of a pass over `count` samples: `num_mini_batch`, or fewer if there are fewer samples."""
    return min(config.num_mini_batch, count)


def minibatches(samples: Samples, config: PpoConfig, *, seed: int, update: int) -> Iterator[PpoBatch]:
    """Yield the minibatches of all passes. In each pass every sample comes once, in an order of its own."""
    index = 0
    for number in range(config.ppo_epoch):
        order = permutation(len(samples), seed=seed, purpose=f"ppo/minibatches/{update}", epoch=number)
        for rows in np.array_split(order, parts_of_pass(len(samples), config)) if len(samples) else []:
            yield _batch(samples, rows, update=update, index=index)
            index += 1


def _batch(samples: Samples, rows: NDArray[np.int64], *, update: int, index: int) -> PpoBatch:
    """Copy rows into torch's own memory: where memory begins can reach the last bit of a matrix product."""
    return PpoBatch(
        observations=torch.tensor(samples.observations[rows]),
        actions=torch.tensor(samples.actions[rows]),
        log_probs=torch.tensor(samples.log_probs[rows]),
        values=torch.tensor(samples.values[rows]),
        advantages=torch.tensor(samples.advantages[rows].astype(np.float32)),
        returns=torch.tensor(samples.returns[rows].astype(np.float32)),
        places=samples.places[rows],
        epoch=update,
        index=index,
    )
