r"""The loss of GRPO on one microbatch.

For a drawn token t of attempt i, with its log-probability l under the present weights, l_old under those of the ratio
and l_ref under the reference, and with the advantage A of the attempt:

    ratio    r = exp(l - l_old), or for the whole attempt the geometric mean of these (GSPO)
    policy   -w * min(r * A, clip(r, 1 - clip_low, 1 + clip_high) * A)
    KL       kl_coef * (exp(l_ref - l) - (l_ref - l) - 1)

The weight w corrects for tokens that were drawn with other log-probabilities l_drawn than the training code computes:
min(exp(l_old - l_drawn), correction), truncated importance sampling; it has no gradient. The losses of tokens are
summed, for the loss `grpo` after division by the number of tokens of their attempt. A step divides the sum: see
`brim.train.grpo.experience.divisor`.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from brim.core.extras import need
from brim.core.fill import Fill
from brim.generate.config import Law
from brim.generate.model import CausalModel
from brim.generate.rollouts import Response, Rollouts
from brim.generate.score.plan import Branches, Part
from brim.generate.score.scorer import Scorer
from brim.train.grpo.config import GrpoConfig
from brim.train.grpo.experience import GrpoBatch
from brim.train.objective import Objective

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = need("torch", extra="train", user="brim.train.grpo")

SUMS = (
    "tokens",
    "entropy",
    "policy_kl",
    "kl",
    "clipped_low",
    "clipped_high",
    "correction",
    "fresh_tokens",
    "mismatch",
)
"""Sums over the drawn tokens of a step. Those of `mismatch` are over tokens that the present weights have drawn."""


class GrpoLoss(Objective):
    """The loss of GRPO: the sum over the drawn tokens of a `GrpoBatch`."""

    def __init__(self, model: Any, config: GrpoConfig) -> None:
        super().__init__(model)
        self.config = config
        self.law = Law(temperature=config.temperature)
        self.scorer = Scorer(CausalModel(model))
        self._sums: Tensor | None = None
        self.eval()

    def forward(self, batch: GrpoBatch) -> "Tensor":
        if batch.part is None:
            return self._nothing()
        experience = batch.experience
        scored = self.scorer.score_part(
            batch.part,
            experience.rollouts,
            self.law,
            grad=torch.is_grad_enabled(),
            own=batch.own,
            kept=experience.drawn,
        )
        losses, figures = token_losses(scored.logprobs, batch, self.config)
        figures["entropy"] = scored.entropies.detach().sum(dtype=torch.float64)
        self._add(figures)
        if self.config.loss == "grpo":
            losses = losses / batch.lengths.repeat_interleave(batch.lengths)
        return losses.sum()

    def train(self, mode: bool = True) -> "GrpoLoss":
        """Stay in evaluation mode: there is no dropout, so that ratios are exact."""
        return super().train(False)

    def metrics(self) -> dict[str, float]:
        """Return the sums over the drawn tokens of the step, and forget them."""
        sums = [0.0] * len(SUMS) if self._sums is None else self._sums.tolist()
        self._sums = None
        return dict(zip(SUMS, sums, strict=True))

    def _add(self, figures: "dict[str, Tensor]") -> None:
        sums = torch.stack([figures[name].detach().to(torch.float64) for name in SUMS])
        self._sums = sums if self._sums is None else self._sums + sums

    def _nothing(self) -> "Tensor":
        """Return a loss of 0 that every weight takes part in, as ranks that synchronise gradients need it."""
        token = np.zeros(1, np.int32)
        response = Response(prompt=0, sample=0, text="", finish_reason="length", token_ids=token)
        rollouts = Rollouts.collect([token], [response], G=1, seed=0)
        part = Part("one", (Branches(0, (0,), 1),), Fill(1, 1))
        grad = torch.is_grad_enabled()
        return 0.0 * self.scorer.score_part(part, rollouts, self.law, grad=grad, own=True).logprobs.sum()


def token_losses(logprobs: "Tensor", batch: GrpoBatch, config: GrpoConfig) -> "tuple[Tensor, dict[str, Tensor]]":
    """Return the loss of each drawn token, and sums over the tokens, all of `SUMS` but the entropy.

    Args:
        logprobs: [tokens], under the present weights, at the sampling temperature.
    """
    now = logprobs.detach()
    old = now if batch.old is None else batch.old
    moved = logprobs - old
    weight = torch.ones_like(now)
    if config.correction_limit:
        weight = (old - batch.behaviour).to(now.dtype)
        weight = _levelled(weight, batch, config).exp().clamp(max=config.correction_limit)
    log_ratio = _levelled(moved, batch, config)
    ratio = log_ratio.exp()
    advantage = batch.advantages.repeat_interleave(batch.lengths)
    clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    losses = -weight * torch.minimum(ratio * advantage, clipped * advantage)
    zero = torch.zeros((), dtype=torch.float64, device=now.device)
    kl = zero
    if batch.reference is not None:
        apart = batch.reference - logprobs
        by_token = torch.expm1(apart) - apart
        kl = by_token.detach().sum(dtype=torch.float64)
        if config.kl_in == "loss":
            losses = losses + config.kl_coef * by_token
    kept, drifted = ratio.detach(), moved.detach().double()
    figures = {
        "tokens": zero + len(now),
        "policy_kl": (torch.expm1(drifted) - drifted).sum(),
        "kl": kl,
        "clipped_low": ((kept < 1 - config.clip_low) & (advantage < 0)).sum(),
        "clipped_high": ((kept > 1 + config.clip_high) & (advantage > 0)).sum(),
        "correction": weight.sum(dtype=torch.float64),
        "fresh_tokens": zero + (len(now) if batch.fresh else 0),
        "mismatch": (now - batch.behaviour).abs().sum(dtype=torch.float64) if batch.fresh else zero,
    }
    return losses, figures


def _levelled(column: "Tensor", batch: GrpoBatch, config: GrpoConfig) -> "Tensor":
    """Return a column of logarithms as it is, or for ratios of whole attempts their mean over each attempt."""
    if config.ratio == "token":
        return column
    count = len(batch.lengths)
    row = torch.arange(count, device=column.device).repeat_interleave(batch.lengths)
    sums = torch.zeros(count, dtype=column.dtype, device=column.device).index_add(0, row, column)
    return (sums / batch.lengths)[row]
