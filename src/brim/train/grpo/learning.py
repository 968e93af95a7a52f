"""The optimizer steps on one rollout: their microbatches, with old and reference log-probabilities, and the sums of
their figures.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brim.core.fill import Fill
from brim.generate.score.scorer import ScoreLimits, Scorer
from brim.train.grpo.config import GrpoConfig
from brim.train.grpo.experience import Experience, GrpoBatch, step_batches
from brim.train.grpo.reference import Reference, drawn_logprobs
from brim.train.grpo.rolling import Rollout
from brim.train.ranks import Ranks
from brim.train.report import StepReport

if TYPE_CHECKING:
    from torch import Tensor

MEANS = ("entropy", "policy_kl", "kl", "clipped_low", "clipped_high", "correction")
"""Figures of the objective that are means over drawn tokens."""


class Scorers(NamedTuple):
    """The models that score attempts."""

    present: Scorer
    """The model that is trained."""
    old: Scorer
    """The weights that a rollout begins with. They are looked at before the first step only."""
    reference: Reference | None


class Learning:
    """The training on one rollout. `steps` yields the microbatches of one optimizer step after the other."""

    def __init__(
        self,
        rollout: Rollout,
        config: GrpoConfig,
        scorers: "Scorers",
        ranks: Ranks,
        *,
        number: int,
        version: int,
        step: int,
        most: int,
    ) -> None:
        """
        Args:
            number: Number of the rollout, from 0 on.
            version: Optimizer steps that the weights had seen which drew the responses.
            step: Optimizer steps that the present weights have seen.
            most: Upper limit of the steps on this rollout.
        """
        self.rollout = rollout
        self.version = version
        self.began = time.monotonic()
        self.taken = 0
        self.tokens = 0
        self.fill = Fill()
        self.kl: float | None = None
        """Mean KL divergence to the reference for a token, if it is part of the rewards."""
        self.mismatch: float | None = None
        """Mismatch of the log-probabilities of the first step, if its weights are those that drew the responses."""
        self._config = config
        self._scorers = scorers
        self._reference = scorers.reference
        self._ranks = ranks
        self._number = number
        self._fresh = version == step
        self._sums: dict[str, float] = {}
        self._weight = 0.0
        """Drawn tokens of all steps."""
        self.experience: Experience | None = None
        size = config.prompts_per_step
        chunks = [range(at, min(at + size, len(rollout.live))) for at in range(0, len(rollout.live), size)]
        if rollout.live:
            self.experience = Experience.of(rollout.live, mask_truncated=config.masks_truncated)
            numbers = np.arange(len(self.experience.trained)) // config.group_size
            kept = set(numbers[self.experience.trained].tolist())
            chunks = [chunk for chunk in chunks if kept.intersection(chunk)]
        self._chunks = chunks
        self.planned = min(len(chunks) * config.passes, most)
        """Number of optimizer steps."""

    @property
    def trained(self) -> int:
        """Number of attempts that are trained on."""
        return 0 if self.experience is None else int(self.experience.trained.sum())

    @property
    def masked(self) -> int:
        """Number of cut off attempts in live groups that are therefore not trained on."""
        if not self._config.masks_truncated:
            return 0
        return sum(one.truncated and one.reward is not None for group in self.rollout.live for one in group.attempts)

    def steps(self) -> Iterator[list[GrpoBatch]]:
        """Yield the microbatches of this rank for each of the planned steps."""
        if self.experience is None:
            return
        rewards = self.experience.rewards
        if self._reference is not None and self._config.kl_in == "reward":
            rewards = rewards - self._config.kl_coef * self._divergences(self.experience, self._reference)
        steps = [self._batches(self.experience, chunk, rewards) for chunk in self._chunks[: self.planned]]
        steps = [[self._completed(batch) for batch in batches] for batches in steps]
        for number in range(self.planned):
            batches = steps[number % len(steps)]
            if number == 0 and self._fresh:
                batches = [replace(batch, fresh=True) for batch in batches]
            yield batches

    def _batches(self, experience: Experience, chunk: range, rewards: NDArray[np.float64]) -> list[GrpoBatch]:
        return step_batches(
            experience,
            chunk,
            self._scorers.present,
            self._config,
            rewards=rewards,
            rank=self._ranks.rank,
            world_size=self._ranks.world_size,
            epoch=self._number,
        )

    def _completed(self, batch: GrpoBatch) -> GrpoBatch:
        """Score a microbatch with the old weights, unless its step is the only one, and with the reference."""
        if batch.part is None:
            return batch
        if self._config.scores_old and self.planned > 1:
            batch = replace(batch, old=self._old(batch))
        if self._reference is not None and self._config.kl_in == "loss":
            batch = replace(batch, reference=self._reference.logprobs(batch, self._limits))
        return batch

    def _old(self, batch: GrpoBatch) -> "Tensor":
        return drawn_logprobs(self._scorers.old, batch, self._config, self._limits)

    @property
    def _limits(self) -> ScoreLimits:
        return ScoreLimits(responses=self._config.tf_batch_size, tokens=self._config.token_budget)

    def _divergences(self, experience: Experience, reference: Reference) -> NDArray[np.float64]:
        """Return [groups, G]: for each attempt the sum over its drawn tokens of log-probability minus that of the
        reference. Ranks share the work.
        """
        sums = np.zeros(len(experience.rollouts))
        for batch in self._batches(experience, range(len(experience.groups)), experience.rewards):
            if batch.part is None:
                continue
            old = self._old(batch) if batch.old is None else batch.old
            apart = (old - reference.logprobs(batch, self._limits)).double()
            for number, column in zip(batch.part.responses, apart.split(batch.lengths.tolist()), strict=True):
                sums[number] = float(column.sum())
        total = np.array(self._ranks.total(sums.tolist()))
        tokens = int(experience.drawn_lengths(np.flatnonzero(experience.trained).tolist()).sum())
        self.kl = float(total.sum()) / max(tokens, 1)
        return total.reshape(experience.rewards.shape)

    def first_mismatch(self) -> float | None:
        """Return the mean difference between log-probabilities from drawing and from scoring, before any step; None if
        the weights have moved since.
        """
        if self.experience is None or not self._fresh or not self.planned:
            return None
        sums = [0.0, 0.0]
        for batch in self._batches(self.experience, self._chunks[0], self.experience.rewards):
            if batch.part is not None:
                sums[0] += float((self._old(batch) - batch.behaviour).abs().double().sum())
                sums[1] += len(batch.behaviour)
        apart, tokens = self._ranks.total(sums)
        return apart / max(tokens, 1)

    def add(self, report: StepReport) -> None:
        """Add the figures of a step that was taken."""
        self.taken += 1
        self.tokens += report.tokens
        self.fill += report.fill
        weight = report.metrics["trained_tokens"]
        self._weight += weight
        for name in MEANS:
            if name in report.metrics:
                self._sums[name] = self._sums.get(name, 0.0) + weight * report.metrics[name]
        for name, value in (("loss", report.loss), ("grad_norm", report.grad_norm)):
            self._sums[name] = self._sums.get(name, 0.0) + value
        if "mismatch" in report.metrics:
            self.mismatch = report.metrics["mismatch"]

    def mean(self, name: str) -> float | None:
        """Return a figure as the mean over the steps, or over their drawn tokens; None if it is not known."""
        if name not in self._sums:
            return None
        return self._sums[name] / (self._weight if name in MEANS else self.taken)
