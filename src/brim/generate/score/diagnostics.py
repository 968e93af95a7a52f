"""Per-token diagnostics of the model's own distribution: how sure it was before each token of a response."""

from typing import TYPE_CHECKING

from brim.core.extras import need

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = need("torch", extra="generate", user="brim.generate")

NAMES = ("top_probability", "top_margin", "collision_probability", "end_probability")
"""Probability of the likeliest token; difference between the two largest logits; probability that two draws agree (the
sum of the squared probabilities); probability of the end tokens together."""


def diagnose(logits: "Tensor", end_tokens: tuple[int, ...]) -> "dict[str, Tensor]":
    """Return one number for each position of logits [positions, vocabulary], by name."""
    probabilities = torch.softmax(logits.float(), dim=1)
    top = torch.topk(logits.float(), min(2, logits.shape[1]), dim=1).values
    ends = [token for token in end_tokens if token < logits.shape[1]]
    return {
        "top_probability": probabilities.amax(dim=1),
        "top_margin": top[:, 0] - top[:, -1],
        "collision_probability": (probabilities * probabilities).sum(dim=1),
        "end_probability": probabilities[:, ends].sum(dim=1),
    }
