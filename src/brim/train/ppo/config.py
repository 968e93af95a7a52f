"""Options of PPO, and of runs that train with it. Nothing here imports torch."""

import math
from dataclasses import dataclass, field

from brim.core.errors import OptionError
from brim.core.options import check_counts
from brim.train.config import RunConfig


@dataclass(frozen=True, kw_only=True)
class PpoConfig:
    """Options of PPO (Schulman et al. 2017)."""

    num_steps: int = 32
    """Steps of each environment in a rollout."""
    ppo_epoch: int = 4
    """Upper limit of the passes over a rollout."""
    num_mini_batch: int = 4
    """Optimizer steps of a pass."""
    discount: float = 0.99
    gae_lambda: float = 0.95
    """Lambda of the generalised advantage estimates."""
    clip_param: float = 0.2
    """Clipping of the probability ratio: it gains nothing beyond 1 - clip_param and 1 + clip_param."""
    value_clip: float | None = 0.2
    """Clipping of the change of a value, in the units of returns; None clips nothing."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    entropy_coef: float = 0.01
    """Weight of the entropy bonus."""
    target_kl: float | None = 0.03
    """The rest of an update is skipped when the estimated KL divergence of a minibatch, between the policy that
    collected the rollout and the present one, exceeds 1.5 times this; None never skips."""
    normalize_advantages: bool = True
    """Shift and scale the advantages of a rollout to mean 0 and standard deviation 1."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers, of the policy and of the value alike."""

    def __post_init__(self) -> None:
        check_counts(num_steps=self.num_steps, ppo_epoch=self.ppo_epoch, num_mini_batch=self.num_mini_batch)
        for width in self.hidden:
            check_counts(hidden=width)
        for name in ("discount", "gae_lambda"):
            if not 0 <= getattr(self, name) <= 1:
                raise OptionError(f"{name} must be between 0 and 1, got {getattr(self, name)}")
        for name in ("clip_param", "value_clip", "target_kl"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise OptionError(f"{name} must be above 0 and finite, got {value}")
        if self.clip_param >= 1:
            raise OptionError(f"clip_param must be below 1, got {self.clip_param}")
        for name in ("value_coef", "entropy_coef"):
            if not 0 <= getattr(self, name) < math.inf:
                raise OptionError(f"{name} must not be negative or infinite, got {getattr(self, name)}")

    def check_minibatches(self, num_envs: int) -> None:
        """Check that a rollout of so many environments has a sample for every minibatch.

        Raises:
            OptionError: It has fewer.
        """
        samples = self.num_steps * num_envs
        if self.num_mini_batch > samples:
            raise OptionError(
                f"num_mini_batch must be at most {samples}, the samples of a rollout ({self.num_steps} steps of "
                f"{num_envs} environments), got {self.num_mini_batch}"
            )


@dataclass(frozen=True, kw_only=True)
class PpoRunConfig(RunConfig):
    """Options of every run that trains with PPO. What other runs count in optimizer steps, this one counts in updates:
    `warmup_steps`, `save_every` and `log_every`. A run with `max_steps` ends after the update that reaches them.
    """

    save_every: int | None = 10
    """Updates between checkpoints; None takes one at the end only."""
    log_every: int = 1
    """Updates between points of the curves."""
    ppo: PpoConfig = field(default_factory=PpoConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bf16 or self.fsdp:
            raise OptionError("PPO trains small policies on the CPU, in float32: leave out bf16 and fsdp")

    @property
    def base_learning_rate(self) -> float:
        """The learning rate behind the warmup: 3e-4 unless given."""
        return 3e-4 if self.learning_rate is None else self.learning_rate
