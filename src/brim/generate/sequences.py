"""The results of generation and of scoring: padded tensors and nested lists, made from the ragged record."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import DataError
from brim.core.extras import need
from brim.generate.config import FinishReason
from brim.generate.rollouts import Response, Rollouts

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from brim.generate.prompts.example import Example
else:
    torch = need("torch", extra="generate", user="brim.generate")


@dataclass(eq=False)
class BatchedSequences:
    """G responses to each of B prompts. In a row the prompt begins at 0, its response follows, padding comes last.

    `sequences[b, g, p : p + n]` is the response, with p = `prompt_lens[b]` and n = `gen_lens[b][g]`.
    """

    sequences: "Tensor"
    """[B, G, total_len], token ids."""
    prompt_lens: list[int]
    """[B]"""
    gen_lens: list[list[int]]
    """[B][G], with the token that ended the response."""
    attention_masks: "Tensor"
    """[B, G, total_len]: 1 for tokens, 0 for padding. Made from the lengths."""
    responses_text: list[list[str]]
    """[B][G]"""
    rollouts: Rollouts | None = None
    """The ragged record that the other fields were made from; None if they came from elsewhere."""
    examples: "list[Example] | None" = None
    """[B], the examples that the prompts belong to, if they were sampled from a data set."""

    @classmethod
    def of(cls, rollouts: Rollouts, *, pad_id: int, device: Any, examples: "list[Example] | None" = None) -> Any:
        """Make padded tensors from a record."""
        rows, group = len(rollouts), rollouts.G
        prompts = np.repeat(rollouts.prompt_lengths, group)
        totals = prompts + rollouts.response_lengths
        width = int(totals.max(initial=0))
        ids = np.full((rows, width), pad_id, np.int64)
        for row in range(rows):
            begin, end = int(prompts[row]), int(totals[row])
            ids[row, :begin] = rollouts.prompt(row // group)
            ids[row, begin:end] = rollouts.response(row)
        masks = (np.arange(width)[None, :] < totals[:, None]).astype(np.int64)
        shape = (rollouts.B, group, width)
        return cls(
            sequences=torch.from_numpy(ids).view(shape).to(device),
            prompt_lens=rollouts.prompt_lengths.tolist(),
            gen_lens=rollouts.nested(rollouts.response_lengths.tolist()),
            attention_masks=torch.from_numpy(masks).view(shape).to(device),
            responses_text=rollouts.nested(rollouts.texts),
            rollouts=rollouts,
            examples=examples,
        )

    @property
    def finish_reasons(self) -> "list[list[FinishReason]]":
        """[B][G]: why each response ended.

        Raises:
            DataError: The sequences came from elsewhere, so it is not known.
        """
        if self.rollouts is None:
            raise DataError("these sequences were not generated here, so it is not known why they ended")
        return self.rollouts.nested([self.rollouts.reason(index) for index in range(len(self.rollouts))])

    def record(self) -> Rollouts:
        """Return the ragged record; for sequences from elsewhere, made from the tensors and the lengths.

        Raises:
            DataError: The lengths do not fit the tensors.
        """
        if self.rollouts is not None:
            return self.rollouts
        shape = tuple(self.sequences.shape)
        if len(shape) != 3 or shape[0] != len(self.prompt_lens) or shape[0] != len(self.gen_lens):
            raise DataError(
                f"sequences must be [B, G, total_len] with a length for each prompt, got {list(shape)}, "
                f"{len(self.prompt_lens)} prompt_lens and {len(self.gen_lens)} gen_lens"
            )
        _, group, width = shape
        ids: NDArray[np.int32] = self.sequences.cpu().numpy().astype(np.int32)
        prompts: list[NDArray[np.int32]] = []
        responses: list[Response] = []
        for b, (length, lengths) in enumerate(zip(self.prompt_lens, self.gen_lens, strict=True)):
            if len(lengths) != group or length < 1 or min(lengths) < 0 or length + max(lengths) > width:
                raise DataError(
                    f"prompt {b} has {length} tokens and responses of {lengths}, which are not {group} rows of {width}"
                )
            prompts.append(ids[b, 0, :length])
            for g, size in enumerate(lengths):
                if not np.array_equal(ids[b, g, :length], prompts[b]):
                    raise DataError(f"row {g} of prompt {b} begins with another prompt than row 0")
                text = self.responses_text[b][g] if self.responses_text else ""
                tokens = ids[b, g, length : length + size]
                responses.append(Response(prompt=b, sample=g, text=text, finish_reason="length", token_ids=tokens))
        return Rollouts.collect(prompts, responses, G=group, seed=0)


@dataclass(eq=False)
class LogprobResults:
    """Log-probabilities and entropies of the tokens of responses. [B][G] everywhere."""

    logprobs: "list[list[Tensor]]"
    """Log-probability of each token; with gradients if they were asked for."""
    entropies: list[list[NDArray[np.float32]]]
    """Entropy of the distribution before each token, in nats."""
    sequence_logprobs: list[list[float]]
    """Sum of the log-probabilities of a response."""
    sampling_logprobs: "list[list[Tensor]] | None" = None
    """Log-probability of each token under the distribution that it was drawn from; None if it is not known."""
    prompt_logprobs: "list[Tensor] | None" = None
    """[B]: log-probability of each token of the prompts but the first, if they were asked for."""
    diagnostics: dict[str, list[list[NDArray[np.float32]]]] | None = None
    """By name, one number for each token, if they were asked for (see `brim.generate.score.diagnostics`)."""
    layout_noise: float | None = None
    """Largest difference between log-probabilities of two layouts, as measured with this model: rounding."""

    @classmethod
    def of(cls, rollouts: Rollouts, logprobs: "Sequence[Tensor]", entropies: Sequence[NDArray[np.float32]]) -> Any:
        """Arrange one tensor and one array for each response."""
        sums = [float(column.detach().double().sum()) for column in logprobs]
        sampling = None
        if rollouts.sampling_logprobs is not None:
            sampling = rollouts.nested([torch.from_numpy(part) for part in rollouts.split(rollouts.sampling_logprobs)])
        return cls(
            logprobs=rollouts.nested(logprobs),
            entropies=rollouts.nested(entropies),
            sequence_logprobs=rollouts.nested(sums),
            sampling_logprobs=sampling,
        )

    @classmethod
    def recorded(cls, rollouts: Rollouts, device: Any) -> Any:
        """Return what was recorded while the responses were generated."""
        assert rollouts.logprobs is not None
        assert rollouts.entropies is not None
        columns = [torch.from_numpy(part).to(device) for part in rollouts.split(rollouts.logprobs)]
        return cls.of(rollouts, columns, rollouts.split(rollouts.entropies))
