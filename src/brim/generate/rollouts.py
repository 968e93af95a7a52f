"""The record of generated responses: ragged columns, and how they are read.

`Response` is one finished response; `Rollouts` holds G of them for each of B prompts, in flat columns with offsets, in
the order of the prompts. Lengths are stored and never inferred from token values, so nothing depends on which id pads
or ends. Nothing here imports torch.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import offsets
from brim.core.errors import DataError
from brim.generate.config import FinishReason

REASONS: tuple[FinishReason, ...] = get_args(FinishReason)

Ids = NDArray[np.int32]
Column = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Response:
    """A finished response. The token that ended it, if any, is its last one, and is scored like all others."""

    prompt: int
    """Number of the prompt in the call."""
    sample: int
    """Number of the response among those to its prompt."""
    text: str
    finish_reason: FinishReason
    token_ids: Ids | None
    """None if a server told only the text."""
    logprobs: Column | None = None
    """Log-probability of each token under the model itself: temperature 1, nothing truncated."""
    sampling_logprobs: Column | None = None
    """Log-probability of each token under the distribution that it was drawn from."""
    entropies: Column | None = None
    """Entropy of the model's own distribution before each token, in nats."""

    def __len__(self) -> int:
        return 0 if self.token_ids is None else len(self.token_ids)


@dataclass(frozen=True, kw_only=True, eq=False)
class Rollouts:
    """G responses to each of B prompts. Response g of prompt b is number b * G + g of the ragged columns."""

    G: int
    seed: int
    """Seed of the draws."""
    prompt_ids: Ids
    prompt_offsets: NDArray[np.int64]
    """[B + 1]"""
    response_ids: Ids
    response_offsets: NDArray[np.int64]
    """[B * G + 1]"""
    finish_reasons: NDArray[np.uint8]
    """[B * G], indices into `REASONS`."""
    texts: tuple[str, ...]
    """[B * G]"""
    logprobs: Column | None = None
    """One number for each token of `response_ids`, and so for the next two; None if they are not known."""
    sampling_logprobs: Column | None = None
    entropies: Column | None = None

    @classmethod
    def collect(
        cls,
        prompts: Sequence[Ids],
        responses: Iterable[Response],
        *,
        G: int,  # noqa: N803  the seed's letter
        seed: int,
    ) -> "Rollouts":
        """Put finished responses, in any order, into columns.

        Raises:
            DataError: One is missing, there twice, or has no token ids.
        """
        found: list[Response | None] = [None] * (len(prompts) * G)
        for response in responses:
            at = response.prompt * G + response.sample
            if found[at] is not None:
                raise DataError(f"response {response.sample} to prompt {response.prompt} is there twice")
            if response.token_ids is None:
                raise DataError(
                    f"the token ids of response {response.sample} to prompt {response.prompt} are not known: the "
                    "server told only its text"
                )
            found[at] = response
        every = [response for response in found if response is not None]
        if len(every) < len(found):
            at = found.index(None)
            raise DataError(
                f"{len(found) - len(every)} of {len(found)} responses are missing, the first is response {at % G} to "
                f"prompt {at // G}"
            )
        return cls(
            G=G,
            seed=seed,
            prompt_ids=_joined(prompts, np.int32),
            prompt_offsets=offsets(np.array([len(ids) for ids in prompts], np.int64)),
            response_ids=_joined([response.token_ids for response in every], np.int32),
            response_offsets=offsets(np.array([len(response) for response in every], np.int64)),
            finish_reasons=np.array([REASONS.index(response.finish_reason) for response in every], np.uint8),
            texts=tuple(response.text for response in every),
            logprobs=_column([response.logprobs for response in every]),
            sampling_logprobs=_column([response.sampling_logprobs for response in every]),
            entropies=_column([response.entropies for response in every]),
        )

    @property
    def B(self) -> int:  # noqa: N802  the seed's letter
        """Number of prompts."""
        return len(self.prompt_offsets) - 1

    def __len__(self) -> int:
        """Number of responses."""
        return len(self.response_offsets) - 1

    @property
    def prompt_lengths(self) -> NDArray[np.int64]:
        return np.diff(self.prompt_offsets)

    @property
    def response_lengths(self) -> NDArray[np.int64]:
        return np.diff(self.response_offsets)

    def prompt(self, b: int) -> Ids:
        """Return the ids of a prompt."""
        return self.prompt_ids[self.prompt_offsets[b] : self.prompt_offsets[b + 1]]

    def response(self, index: int) -> Ids:
        """Return the ids of response number `index` = b * G + g."""
        return self.response_ids[self.response_offsets[index] : self.response_offsets[index + 1]]

    def split(self, column: NDArray[Any]) -> list[NDArray[Any]]:
        """Cut a column with one entry for each response token into one array for each response."""
        return [column[begin:end] for begin, end in pairwise(self.response_offsets.tolist())]

    def nested(self, items: Sequence[Any]) -> list[list[Any]]:
        """Arrange one item for each response as [B][G]."""
        return [list(items[b * self.G : (b + 1) * self.G]) for b in range(self.B)]

    def reason(self, index: int) -> FinishReason:
        return REASONS[int(self.finish_reasons[index])]


def _joined(parts: Sequence[Any], kind: Any) -> Any:
    return np.concatenate([np.asarray(part, kind) for part in parts]) if parts else np.empty(0, kind)


def _column(parts: "list[Column | None]") -> Column | None:
    return None if any(part is None for part in parts) else _joined(parts, np.float32)
