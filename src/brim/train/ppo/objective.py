"""The loss of PPO (Schulman et al. 2017) over a minibatch of a rollout's samples."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from brim.core.extras import need
from brim.train.objective import Objective
from brim.train.ppo.config import PpoConfig
from brim.train.ppo.policy import ActorCritic

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = need("torch", extra="train", user="brim.train")


@dataclass(frozen=True, eq=False)
class PpoBatch:
    """A minibatch of m samples, as a step looks at it."""

    observations: "Tensor"  # [m, d]
    actions: "Tensor"  # [m]
    log_probs: "Tensor"  # [m], of the policy that collected the rollout
    values: "Tensor"  # [m], of that policy too
    advantages: "Tensor"  # [m]
    returns: "Tensor"  # [m]
    places: NDArray[np.int64]
    """[m, 2], the step and the environment of each sample."""
    epoch: int
    """Number of the update, from 0 on."""
    index: int
    """Number of the minibatch in its update, from 0 on."""
    is_null: bool = False

    @property
    def ids(self) -> Sequence[str]:
        return [f"step {step} of environment {env}" for step, env in self.places.tolist()]

    @property
    def num_loss_tokens(self) -> float:
        return len(self.places)

    @property
    def num_tokens(self) -> int:
        return len(self.places)

    @property
    def slots(self) -> int:
        return len(self.places)

    def to(self, device: Any, *, non_blocking: bool = False) -> Self:
        names = ("observations", "actions", "log_probs", "values", "advantages", "returns")
        moved = {name: getattr(self, name).to(device, non_blocking=non_blocking) for name in names}
        return replace(self, **moved)


class PpoLoss(Objective):
    """The clipped surrogate objective, the clipped squared error of the value, and an entropy bonus, summed over the
    samples of a minibatch.
    """

    def __init__(self, model: ActorCritic, config: PpoConfig) -> None:
        super().__init__(model)
        self.config = config
        self._figures: dict[str, float] = {}

    def forward(self, batch: PpoBatch) -> "Tensor":
        config = self.config
        logits, values = self.model(batch.observations)
        log_chances = torch.log_softmax(logits, dim=1)  # [m, actions]
        entropy = -(log_chances.exp() * log_chances).sum(dim=1)

        log_ratio = log_chances.gather(1, batch.actions[:, None])[:, 0] - batch.log_probs
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1 - config.clip_param, 1 + config.clip_param)
        policy_loss = -torch.minimum(ratio * batch.advantages, clipped * batch.advantages)

        error = (values - batch.returns) ** 2
        if config.value_clip is not None:
            # The worse of both, so that clipping never hides an error.
            near = batch.values + (values - batch.values).clamp(-config.value_clip, config.value_clip)
            error = torch.maximum(error, (near - batch.returns) ** 2)
        value_loss = 0.5 * error

        self._figures = _means(
            policy_loss=policy_loss,
            value_loss=value_loss,
            entropy=entropy,
            # The estimator of KL(old || new) that is never negative: ratio - 1 - log ratio (k3 of Schulman 2020).
            kl=torch.expm1(log_ratio) - log_ratio,
            clip_fraction=((ratio - 1).abs() > config.clip_param).float(),
        )
        return (policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy).sum()

    def metrics(self) -> dict[str, float]:
        """Return the means over the minibatch of the last step: policy_loss, value_loss, entropy, kl, clip_fraction.

        They are those of the policy before the step.
        """
        return dict(self._figures)


def _means(**figures: "Tensor") -> dict[str, float]:
    return {name: float(figure.detach().mean()) for name, figure in figures.items()}
