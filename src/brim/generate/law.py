"""Distributions over the vocabulary: how tokens are drawn from logits, and how they are scored.

Sampling and scoring use the same functions, so the log-probability that is recorded for a token is that of the
distribution it was drawn from. A distribution keeps the tokens whose scaled logits reach a cutoff; which ones these are
depends on the values alone, never on the order in which a sort leaves equal values.

Tokens are drawn by inverting the cumulative distribution at one uniform number for each row. The vocabulary is cut into
blocks: the block is found first, then the token in it, which needs no cumulative sum over the whole vocabulary.
"""

from typing import TYPE_CHECKING, NamedTuple

from brim.core.arrays import round_up
from brim.core.extras import need
from brim.generate.config import Law

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = need("torch", extra="generate", user="brim.generate")

BLOCK = 128
NUCLEUS = (64, 1024)
"""Numbers of likeliest tokens in which the nucleus is looked for, before the whole vocabulary is sorted."""


class Scores(NamedTuple):
    """The model's own distribution at some positions: softmax(shifted) = weights / total."""

    shifted: "Tensor"
    """Logits minus the largest one of the row, [rows, vocabulary], float32."""
    weights: "Tensor"
    """exp(shifted), in blocks: [rows, blocks * BLOCK], 0 behind the vocabulary."""
    log_total: "Tensor"
    """[rows]"""
    entropy: "Tensor"
    """[rows], in nats."""


class Drawn(NamedTuple):
    """One token for each row. All are [rows]."""

    tokens: "Tensor"
    logprobs: "Tensor"
    """Under the model's own distribution."""
    sampling_logprobs: "Tensor"
    """Under the distribution that they were drawn from."""
    entropies: "Tensor"
    """Entropies of the model's own distribution, in nats."""


def scores_of(logits: "Tensor") -> Scores:
    """Return the model's own distribution for logits [rows, vocabulary]. They are overwritten if they are float32.

    A row with a logit that is not a number or infinite has an entropy that is not finite either.
    """
    rows, vocabulary = logits.shape
    shifted = logits.float()
    shifted -= shifted.amax(dim=1, keepdim=True)
    weights = shifted.new_empty(rows, round_up(vocabulary, BLOCK))
    weights[:, vocabulary:] = 0
    torch.exp(shifted, out=weights[:, :vocabulary])
    total = weights.sum(dim=1)
    log_total = total.log()
    # A logit of -inf has no weight, and 0 * -inf must not count as "not a number".
    has_infinite = bool(torch.isneginf(shifted.amin(dim=1)).any().item())
    finite = shifted.clamp(min=-1e30) if has_infinite else shifted
    mean = (weights[:, :vocabulary] * finite).sum(dim=1) / total
    return Scores(shifted, weights, log_total, log_total - mean)


def draw(logits: "Tensor", law: Law, uniforms: "Tensor") -> Drawn:
    """Draw one token for each row of logits [rows, vocabulary], which are overwritten if they are float32.

    `uniforms` holds one number in [0, 1) for each row, in float64. A row whose entropy is not finite had logits that
    were not: its token means nothing.
    """
    scores = scores_of(logits)
    if law.greedy:
        tokens = scores.shifted.argmax(dim=1)
        sampling = torch.zeros_like(scores.log_total)
    elif law.is_models_own:
        tokens = invert(scores.weights, uniforms)
        sampling = None
    else:
        weights = scores.weights
        scaled = restricted(scores.shifted / law.temperature, law)
        torch.exp(scaled, out=weights[:, : scaled.shape[1]])
        tokens = invert(weights, uniforms)
        sampling = _picked(scaled, tokens) - weights.sum(dim=1).log()
    own = _picked(scores.shifted, tokens) - scores.log_total
    return Drawn(tokens, own, own if sampling is None else sampling, scores.entropy)


def restricted(scaled: "Tensor", law: Law) -> "Tensor":
    """Return scaled logits [rows, vocabulary] with -inf for every token that the distribution does not keep."""
    if not law.truncates:
        return scaled
    return scaled.masked_fill(scaled < cutoff(scaled, law), -torch.inf)


def cutoff(scaled: "Tensor", law: Law) -> "Tensor":
    """Return the smallest logit that is kept in each row, [rows, 1]. `scaled` are logits divided by the temperature."""
    top = scaled.amax(dim=1, keepdim=True)
    least = torch.full_like(top, -torch.inf)
    kept = scaled
    if 0 < law.top_k < scaled.shape[1]:
        least = torch.topk(scaled, law.top_k, dim=1).values[:, -1:]
        kept = scaled.masked_fill(scaled < least, -torch.inf) if law.top_p < 1 else scaled
    if law.top_p < 1:
        least = torch.maximum(least, _nucleus(kept, law.top_p))
    if law.min_p > 0:
        least = torch.maximum(least, top + torch.log(torch.tensor(law.min_p, dtype=top.dtype, device=top.device)))
    return least


def _nucleus(scaled: "Tensor", top_p: float) -> "Tensor":
    """Return the logit of the token at which the sum of the likeliest probabilities first reaches `top_p`, [rows, 1].

    Few tokens are enough for most rows of a language model; only the others are sorted further.
    """
    least = torch.empty_like(scaled[:, :1])
    log_total = torch.logsumexp(scaled, dim=1, keepdim=True)
    rows = torch.arange(len(scaled), device=scaled.device)
    for few in (*(size for size in NUCLEUS if size < scaled.shape[1]), scaled.shape[1]):
        likeliest = torch.topk(scaled[rows], few, dim=1).values
        reached = (likeliest - log_total[rows]).exp().double().cumsum(dim=1)
        # The token whose sum reaches top_p is kept too; by rounding, the sum of all may stay just below it.
        position = (reached < top_p).sum(dim=1, keepdim=True)
        least[rows] = likeliest.gather(1, position.clamp(max=few - 1))
        rows = rows[position[:, 0] == few]
        if len(rows) == 0:
            break
    return least


def invert(weights: "Tensor", uniforms: "Tensor") -> "Tensor":
    """Return, for each row, the token at which the cumulative distribution first exceeds the row's uniform number.

    `weights` are [rows, blocks * BLOCK], not normalised, and `uniforms` [rows] in float64. A token without weight is
    never returned.
    """
    rows = len(weights)
    blocks = weights.view(rows, -1, BLOCK)
    ends = blocks.sum(dim=2).double().cumsum(dim=1)
    target = uniforms[:, None] * ends[:, -1:]
    block = (ends <= target).sum(dim=1, keepdim=True).clamp(max=ends.shape[1] - 1)
    before = torch.where(block > 0, ends.gather(1, (block - 1).clamp(min=0)), torch.zeros_like(target))
    inside = blocks[torch.arange(rows, device=weights.device), block[:, 0]]
    index = (inside.double().cumsum(dim=1) + before <= target).sum(dim=1)
    # By rounding, the target can lie just behind the last token of the block.
    last = BLOCK - 1 - (inside > 0).flip(1).int().argmax(dim=1)
    return block[:, 0] * BLOCK + torch.minimum(index, last)


def _picked(values: "Tensor", tokens: "Tensor") -> "Tensor":
    return values.gather(1, tokens[:, None])[:, 0]
