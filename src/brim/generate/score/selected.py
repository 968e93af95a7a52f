"""Log-probabilities of chosen tokens, and entropies, from hidden states: in chunks, in float32, with gradients.

Logits exist for one chunk of positions at a time. The backward pass computes them again, so nothing of the size of the
vocabulary is kept. With p = softmax(z), a token t, its log-probability l and the entropy H, the gradients are

    dl/dz = 1[t] - p        dH/dz = -p * (log p + H)
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from brim.core.extras import need
from brim.generate.config import Law
from brim.generate.law import restricted

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.autograd import Function
else:
    torch = need("torch", extra="generate", user="brim.generate")
    from torch.autograd import Function

CHUNK = 2**22
"""Logits that exist at once, at most; a chunk has at least one position."""


@dataclass(frozen=True)
class Head:
    """The linear output layer of a model, and what the model does with its result: a factor, and a cap by tanh."""

    weight: "Tensor"
    bias: "Tensor | None" = None
    factor: float = 1.0
    softcap: float | None = None

    def logits(self, hidden: "Tensor", weight: "Tensor", bias: "Tensor | None") -> "Tensor":
        """Return logits in float32 for hidden states [positions, size]."""
        raw = torch.nn.functional.linear(hidden, weight, bias).float()
        if self.softcap is not None:
            raw = torch.tanh(raw / self.softcap) * self.softcap
        return raw if self.factor == 1.0 else raw * self.factor

    def slope(self, logits: "Tensor") -> "Tensor | float":
        """Return the derivative of the logits by the result of the linear layer."""
        if self.softcap is None:
            return self.factor
        return (1 - (logits / (self.factor * self.softcap)) ** 2) * self.factor


class Selected(NamedTuple):
    """The log-probabilities of the chosen tokens, and the entropies at their positions, [positions] in float32."""

    logprobs: "Tensor"
    entropies: "Tensor"


def select(hidden: "Tensor", targets: "Tensor", head: Head, law: Law) -> Selected:
    """Score one token at each position, under the law.

    Args:
        hidden: [positions, size], in front of the output layer.
        targets: [positions], the tokens.
    """
    if torch.is_grad_enabled() and (hidden.requires_grad or head.weight.requires_grad):
        return Selected(*_Select.apply(hidden, head.weight, head.bias, targets, head, law))
    return Selected(*_forward(hidden, head.weight, head.bias, targets, head, law)[:2])


def select_from_logits(logits: "Tensor", targets: "Tensor", law: Law) -> Selected:
    """Score one token at each position of whole logits [positions, vocabulary]; autograd takes care of gradients."""
    logprobs = torch.log_softmax(restricted(logits.float() / law.temperature, law), dim=1)
    picked = logprobs.gather(1, targets[:, None])[:, 0]
    # A token that the law does not keep has log-probability -inf and adds nothing to the entropy.
    terms = torch.where(logprobs == -torch.inf, 0.0, logprobs.exp() * logprobs.clamp(min=-1e30))
    return Selected(picked, -terms.sum(dim=1))


def chunk_rows(vocabulary: int) -> int:
    """Return the number of positions of a chunk."""
    return max(1, CHUNK // vocabulary)


def _forward(
    hidden: "Tensor", weight: "Tensor", bias: "Tensor | None", targets: "Tensor", head: Head, law: Law
) -> "tuple[Tensor, Tensor, Tensor]":
    """Return log-probabilities, entropies and the logarithms of the sums of the exponentials."""
    count = len(targets)
    logprobs, entropies, log_totals = (torch.empty(count, dtype=torch.float32, device=hidden.device) for _ in range(3))
    step = chunk_rows(weight.shape[0])
    for begin in range(0, count, step):
        part = slice(begin, begin + step)
        scaled = _scaled(head.logits(hidden[part], weight, bias), law)
        top = scaled.amax(dim=1, keepdim=True)
        scaled = scaled.sub_(top)
        picked = scaled.gather(1, targets[part, None])[:, 0]
        weights = scaled.exp()
        total = weights.sum(dim=1)
        mean = weights.mul_(scaled.clamp_(min=-1e30)).sum(dim=1) / total
        log_total = total.log()
        logprobs[part] = picked - log_total
        entropies[part] = log_total - mean
        log_totals[part] = log_total + top[:, 0]
    return logprobs, entropies, log_totals


def _scaled(logits: "Tensor", law: Law) -> "Tensor":
    """Return logits that may be overwritten."""
    scaled = logits if law.temperature == 1 else logits / law.temperature
    return restricted(scaled, law)


class _Select(Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: "Tensor", weight: "Tensor", bias: "Tensor | None", targets: "Tensor", head: Head, law: Law
    ) -> "tuple[Tensor, Tensor]":
        logprobs, entropies, log_totals = _forward(hidden, weight, bias, targets, head, law)
        ctx.save_for_backward(hidden, weight, bias, targets, entropies, log_totals)
        ctx.head, ctx.law = head, law
        # The backward pass usually runs outside of the caller's autocast, and must compute the same logits.
        kind = hidden.device.type
        ctx.autocast = torch.autocast(kind, torch.get_autocast_dtype(kind), enabled=torch.is_autocast_enabled(kind))
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *grads: "Tensor") -> Any:
        with ctx.autocast:
            return (*_backward(ctx, *grads), None, None, None)


def _backward(
    ctx: Any, by_logprob: "Tensor", by_entropy: "Tensor"
) -> "tuple[Tensor | None, Tensor | None, Tensor | None]":
    """Return the gradients of the hidden states, of the weight and of the bias."""
    hidden, weight, bias, targets, entropies, log_totals = ctx.saved_tensors
    head, law = ctx.head, ctx.law
    d_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
    d_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
    d_bias = torch.zeros_like(bias, dtype=torch.float32) if bias is not None and ctx.needs_input_grad[2] else None
    step = chunk_rows(weight.shape[0])
    for begin in range(0, len(targets), step):
        part = slice(begin, begin + step)
        logits = head.logits(hidden[part], weight, bias)
        slope = head.slope(logits)
        log_p = _scaled(logits, law).sub_(log_totals[part, None])
        p = log_p.exp()
        # d = g_l * (1[t] - p) - g_H * p * (log p + H), without a product of 0 and -inf
        g_l, g_h, h = (column[part, None] for column in (by_logprob, by_entropy, entropies))
        d = log_p.clamp_(min=-1e30).add_(h).mul_(-g_h).sub_(g_l).mul_(p)
        d.scatter_add_(1, targets[part, None], g_l)
        d = d.mul_(slope / law.temperature).to(hidden.dtype)
        if d_hidden is not None:
            d_hidden[part] = d @ weight
        if d_weight is not None:
            d_weight.addmm_(d.t().float(), hidden[part].float())
        if d_bias is not None:
            d_bias += d.float().sum(dim=0)
    return (
        d_hidden,
        None if d_weight is None else d_weight.to(weight.dtype),
        None if d_bias is None or bias is None else d_bias.to(bias.dtype),
    )
