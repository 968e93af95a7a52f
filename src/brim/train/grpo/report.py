"""Reports of a GRPO run: one for every rollout and the steps that were taken on it.

All of them are JSON-like with `asdict`, and can be made again from JSON. Nothing here imports torch.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from brim.core.options import from_dict


@dataclass(frozen=True, kw_only=True)
class ShownAttempt:
    """An attempt, for people to look at."""

    text: str
    reward: float | None
    parts: dict[str, float]
    finish_reason: str
    tokens: int
    turns: int
    passed: bool | None
    failure: str | None


@dataclass(frozen=True, kw_only=True)
class ShownGroup:
    """A task and some attempts at it, for people to look at."""

    task: str
    prompt: str
    answer: str | None
    attempts: tuple[ShownAttempt, ...]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Attempts at tasks that are never trained on."""

    tasks: int
    attempts: int
    reward: float | None
    """Mean reward; None if every attempt failed."""
    reward_error: float | None
    """Standard error of the mean over tasks."""
    pass_rate: float | None
    length: float
    """Mean number of tokens that the model wrote."""
    failures: dict[str, int]
    shown: tuple[ShownGroup, ...]
    """The first few tasks, the same ones in every evaluation of a run."""


@dataclass(frozen=True, kw_only=True)
class RolloutReport:
    """One rollout, and the optimizer steps that were taken on it."""

    rollout: int
    """Number of the rollout, from 1 on."""
    step: int
    """Optimizer steps of the run after it."""
    steps: int
    """Optimizer steps of the whole run."""
    version: int
    """Optimizer steps that the weights which drew the responses had seen."""
    groups: int
    """Groups that were played, those without variance included."""
    dead: int
    """Groups of these whose rewards do not differ, so that nothing can be learned from them."""
    dead_low: int
    """Dead groups in which no attempt passed."""
    replaced: int
    """Groups that were played in the place of dead ones."""
    attempts: int
    trained: int
    """Attempts that were trained on."""
    truncated: int
    """Attempts that were cut off."""
    masked: int
    """Cut off attempts that were therefore not trained on."""
    failures: dict[str, int]
    """Attempts without a reward, by what went wrong."""
    reward: float | None
    """Mean reward over all attempts that have one; None if none has."""
    reward_std: float | None
    """Mean over the groups of the standard deviation of rewards in a group."""
    pass_rate: float | None
    parts: dict[str, float]
    """Mean of each part of the reward."""
    finish_reasons: dict[str, int]
    length: float
    """Mean number of tokens that the model wrote in an attempt."""
    lengths: tuple[int, int, int, int, int]
    """Their minimum, quartiles and maximum."""
    turns: float
    loss: float | None
    """Means over the optimizer steps, and so for the next ones. None if no step was taken."""
    grad_norm: float | None
    learning_rate: float | None
    entropy: float | None
    """Entropy of the model's distribution at the drawn tokens, in nats."""
    kl: float | None
    """Estimate of the KL divergence to the reference for a token, in nats; None without a reference."""
    policy_kl: float | None
    """Estimate of the KL divergence from the weights that drew the responses to the present ones, for a token."""
    clipped_low: float | None
    """Share of the drawn tokens whose gradient is clipped because the ratio is too small; and too large."""
    clipped_high: float | None
    mismatch: float | None
    """Mean absolute difference between log-probabilities from drawing and from training, at equal weights, in nats."""
    correction: float | None
    """Mean weight that corrects for this mismatch; None if nothing is corrected."""
    rollout_fill: float | None
    """Share of the computed rows that wrote a token, while generating."""
    fill: float | None
    """Share of the computed slots that held a token, while training."""
    rollout_tokens: int
    """Tokens that the model wrote."""
    train_tokens: int
    """Tokens that went through the model in training, a shared prompt counted once."""
    rollout_seconds: float
    """Seconds of generating and of playing."""
    reward_seconds: float
    """Seconds of waiting for rewards after that."""
    train_seconds: float
    seconds: float
    """Seconds from the beginning of the rollout to its report."""
    evaluation: Evaluation | None
    """Made after the steps of this rollout, if one was due."""
    shown: tuple[ShownGroup, ...]
    """A few groups of this rollout."""

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Make a report from JSON-like values.

        Raises:
            OptionError: A value is missing, unknown or of another type.
        """
        return from_dict(cls, values)


@dataclass(frozen=True)
class GrpoResult:
    """The outcome of a run."""

    rollouts: tuple[RolloutReport, ...]
    """Reports on all rollouts, those before a resume included."""
    before: Evaluation | None
    """The evaluation before the first step."""
    steps: int
    """Optimizer steps of the whole run so far."""
    taken: int
    """Steps of these that were taken now."""
    model: Path
    """Directory of the trained model."""
    page: Path
    seconds: float
    stopped: bool
    """Whether a signal or a callback ended the run before its last step."""
    ended_early: str | None = None
    """Why the run ended by itself before its last step, if it did."""

    @property
    def after(self) -> Evaluation | None:
        """The last evaluation."""
        return next((one.evaluation for one in reversed(self.rollouts) if one.evaluation is not None), None)
