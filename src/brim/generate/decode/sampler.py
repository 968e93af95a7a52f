"""Choose tokens by drawing them, and keep their log-probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import BrimError
from brim.core.extras import need
from brim.generate.config import FinishReason, Law
from brim.generate.decode.rows import Row
from brim.generate.law import draw
from brim.generate.rollouts import Response
from brim.generate.stops import Stops
from brim.generate.uniforms import response_uniforms

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = need("torch", extra="generate", user="brim.generate")


@dataclass(eq=False)
class SampledRow(Row):
    """A response that is drawn. Its `key` is the number of its prompt and the number of the sample."""

    seed: int = 0
    stream: str = ""
    """Name of its prompt's random numbers (see `brim.generate.uniforms`)."""
    logprobs: list[float] = field(default_factory=list[float])
    sampling_logprobs: list[float] = field(default_factory=list[float])
    entropies: list[float] = field(default_factory=list[float])

    @cached_property
    def uniforms(self) -> NDArray[np.float64]:
        """One number in [0, 1) for each token that it may get. They exist from its first token on."""
        return response_uniforms(self.limit, seed=self.seed, key=self.stream, sample=self.key[1])


class Sampler:
    """Draws one token for each row from the law, and ends rows where a stop says so, or at their limit."""

    def __init__(self, law: Law, stops: Stops) -> None:
        self._law = law
        self._stops = stops

    def __call__(self, rows: Sequence[Row], logits: "Tensor") -> None:
        """
        Raises:
            BrimError: The logits of a row are not finite.
        """
        sampled = [row for row in rows if isinstance(row, SampledRow)]
        uniforms = torch.tensor([row.uniforms[len(row.tokens)] for row in sampled], dtype=torch.float64)
        drawn = draw(logits.float(), self._law, uniforms.to(logits.device))
        tokens: list[int] = drawn.tokens.tolist()
        columns = (drawn.logprobs.tolist(), drawn.sampling_logprobs.tolist(), drawn.entropies.tolist())
        finite = torch.isfinite(drawn.entropies)
        if not bool(finite.all().item()):
            row = sampled[int((~finite).int().argmax())]
            prompt, sample = row.key
            raise BrimError(
                f"the model's logits for response {sample} to prompt {prompt} are not finite after {len(row.tokens)} "
                "tokens; its weights are damaged, or a number overflowed"
            )
        for row, token, own, sampling, entropy in zip(sampled, tokens, *columns, strict=True):
            row.tokens.append(token)
            row.logprobs.append(own)
            row.sampling_logprobs.append(sampling)
            row.entropies.append(entropy)
        reasons = self._stops.reasons(tokens, [row.tokens for row in sampled])
        for row, reason in zip(sampled, reasons, strict=True):
            row.ended = reason or _at_limit(row)


def _at_limit(row: Row) -> FinishReason | None:
    return "length" if len(row.tokens) >= row.limit else None


def response_of(row: SampledRow, text: str) -> Response:
    """Return the finished response of a row that has ended."""
    assert row.ended is not None
    prompt, sample = row.key
    return Response(
        prompt=prompt,
        sample=sample,
        text=text,
        finish_reason=row.ended,
        token_ids=np.array(row.tokens, np.int32),
        logprobs=np.array(row.logprobs, np.float32),
        sampling_logprobs=np.array(row.sampling_logprobs, np.float32),
        entropies=np.array(row.entropies, np.float32),
    )
