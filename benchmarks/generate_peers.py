"""Responses and log-probabilities without brim: what `generate.py` compares brim with, and the work given to everybody.

Generation gives the tokens of every response, and their log-probabilities where the method knows them:

    original              prompts left-padded to the longest of all, repeated G times, 64 rows at a time through
                          transformers' `generate` with its scores; a finished row is computed until all 64 are
    continuous batching   transformers' paged cache; each prompt is read once and forked into its G responses

Scoring gives log-probability and entropy of every response token. Rows are padded to the longest prompt (on the left)
and the longest response of all, and 16 of them are computed at once:

    padded, full logits   logits of all positions, float32 log-softmax
    TRL selective         logits of response positions, `selective_log_softmax` and `entropy_from_logits`
    TRL fused head        `add_fused_lm_head`, as in TRL's GRPO trainer; without Triton it scores every position

Everything here runs in a process of its own, see `generate.py`. Nothing here imports brim.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

VOCABULARY, HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS = 32_000, 256, 688, 4, 4, 2
SPREAD = 0.08
"""Standard deviation of the weights. With transformers' 0.02 all distributions are nearly uniform, and errors would
hardly show; larger weights amplify rounding. Sequences computed one by one in float32 differ from float64 by up to 1e-5
with this, and by 7e-5 with 0.15."""
PAD = 0
SEED = 0
LONGEST = 192
"""Upper limit of the tokens of a response."""
GENERATED_ROWS, SCORED_ROWS = 64, 16
ENTROPY_WEIGHT = 0.1
"""The loss is the sum of the log-probabilities and of the entropies times this."""
PAGE, PAGES, BATCH_TOKENS, REQUESTS = 32, 400, 512, 32
"""Continuous batching: tokens of a page, pages, and the largest batch, in tokens and in requests. Its attention reads
the pages of all requests for every token, so 32 requests at once are faster than 64; fewer pages take less memory."""

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Work:
    """Prompts, the length of each of their responses, and random responses of these lengths for scoring."""

    prompts: list[list[int]]
    limits: list[list[int]]
    """[B][G]"""
    responses: list[list[list[int]]]
    """[B][G]"""

    @classmethod
    def draw(cls, prompts: int, group: int, longest: int = LONGEST) -> "Work":
        rng = np.random.default_rng(SEED)
        widths = np.clip(rng.lognormal(np.log(80), 0.5, prompts), 16, 320).astype(int).tolist()
        limits = np.clip(rng.lognormal(np.log(48), 0.7, (prompts, group)), 4, longest).astype(int).tolist()
        return cls(
            [_ids(rng, width) for width in widths],
            limits,
            [[_ids(rng, limit) for limit in row] for row in limits],
        )

    @property
    def group(self) -> int:
        """Number of responses to each prompt."""
        return len(self.limits[0])

    @property
    def tokens(self) -> int:
        """Number of response tokens."""
        return sum(map(sum, self.limits))


def _ids(rng: np.random.Generator, count: int) -> list[int]:
    return rng.integers(1, VOCABULARY, count).tolist()


def flat(lists: Iterable[Iterable[Any]]) -> list[Any]:
    return list(chain.from_iterable(lists))


def new_model() -> Any:
    """Random weights, 19.3 million; nothing ends a response but its limit."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(SEED)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=1024,
        initializer_range=SPREAD,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=PAD,
        attn_implementation="sdpa",
    )
    return Qwen2ForCausalLM(config).eval()


# Generation


class Generated(NamedTuple):
    """[B * G]: the tokens of each response, and their log-probabilities under the model; None if they are not known."""

    ids: list[list[int]]
    logprobs: list[list[float]] | None


def generate_original(model: Any, work: Work) -> Generated:
    import torch
    from transformers import StoppingCriteria, StoppingCriteriaList

    class Limits(StoppingCriteria):
        """Ends each row at its limit."""

        def __init__(self, width: int, limits: Any) -> None:
            self.ends = width + limits

        def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
            return input_ids.shape[1] >= self.ends

    prompts, masks = _left_padded(work.prompts)
    prompts, masks = (tensor.repeat_interleave(work.group, dim=0) for tensor in (prompts, masks))
    limits = torch.tensor(work.limits).flatten()
    torch.manual_seed(SEED)
    responses: list[list[int]] = []
    for start in range(0, len(prompts), GENERATED_ROWS):
        some = slice(start, start + GENERATED_ROWS)
        output = model.generate(
            input_ids=prompts[some],
            attention_mask=masks[some],
            max_new_tokens=LONGEST,
            do_sample=True,
            top_k=0,
            pad_token_id=PAD,
            output_scores=True,
            return_dict_in_generate=True,
            stopping_criteria=StoppingCriteriaList([Limits(prompts.shape[1], limits[some])]),
        )
        made = output.sequences[:, prompts.shape[1] :].tolist()
        responses += [row[:limit] for row, limit in zip(made, limits[some].tolist(), strict=True)]
    return Generated(responses, None)


def generate_continuously(model: Any, work: Work) -> Generated:
    from transformers import GenerationConfig
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    law = GenerationConfig(
        do_sample=True,
        top_k=0,
        max_new_tokens=LONGEST,
        num_return_sequences=work.group,
        eos_token_id=-1,
        pad_token_id=PAD,
    )
    batching = ContinuousBatchingConfig(
        page_size=PAGE,
        num_blocks=PAGES,
        max_batch_tokens=BATCH_TOKENS,
        max_requests_per_batch=REQUESTS,
        return_logprobs=True,
        seed=SEED,
        auto_switch_to_flash=False,
    )
    names = [_names_of_forks(b, work.group) for b in range(len(work.prompts))]
    results: dict[str, Any] = {}
    limits = dict(zip(flat(names), flat(work.limits), strict=True))
    with (
        _fork_limits(limits),
        model.continuous_batching_context_manager(
            generation_config=law, continuous_batching_config=batching
        ) as manager,
    ):
        for (name, *_), prompt in zip(names, work.prompts, strict=True):
            manager.add_request(prompt, request_id=name, max_new_tokens=limits[name])
        while len(results) < len(names) * work.group:
            result = manager.get_result(timeout=1)
            if result is None:
                assert manager.is_running(), "continuous batching has ended early"
            elif result.is_finished():
                assert result.error is None, result.error
                results[result.request_id] = result
    ordered = [results[name] for name in flat(names)]
    return Generated([one.generated_tokens for one in ordered], [one.logprobs for one in ordered])


def _names_of_forks(b: int, group: int) -> list[str]:
    return [str(b), *(f"{b}__child#{number}" for number in range(group - 1))]


@contextmanager
def _fork_limits(limits: dict[str, int]) -> Iterator[None]:
    """Give each fork of a request a limit of its own, by name: transformers copies that of the request."""
    from transformers.generation.continuous_batching.requests import RequestState

    original = RequestState.fork

    def fork(state: Any, name: str) -> Any:
        made = original(state, name)
        made.max_new_tokens = made._new_tokens_limit = limits[name]
        return made

    RequestState.fork = fork
    try:
        yield
    finally:
        RequestState.fork = original


# Scoring


class Batch(NamedTuple):
    """Rows of prompt and response, padded on both sides."""

    ids: Any
    """[rows, P + R]"""
    mask: Any
    scored: Any
    """[rows, R], whether a response has this token."""
    targets: Any
    """[rows, R]"""


class Scored(NamedTuple):
    """One number for each response token, in the order of the responses."""

    logprobs: Floats
    entropies: Floats


def score_padded(model: Any, work: Work) -> Scored:
    return _without_gradients(_padded_step, model, work)


def score_trl_selective(model: Any, work: Work) -> Scored:
    return _without_gradients(_selective_step, model, work)


def score_trl_fused(model: Any, work: Work) -> Scored:
    return _without_gradients(_fused_step, model, work)


def train_padded(model: Any, work: Work) -> Scored:
    return _with_gradients(_padded_step, model, work)


def train_trl_selective(model: Any, work: Work) -> Scored:
    return _with_gradients(_selective_step, model, work)


def add_trl_head(model: Any) -> None:
    from trl.trainer.utils import add_fused_lm_head

    add_fused_lm_head(model, outputs=("log_probs", "entropy"))


def _without_gradients(step: Any, model: Any, work: Work) -> Scored:
    import torch

    with torch.no_grad():
        return _joined([step(model, batch) for batch in batches(work)])


def _with_gradients(step: Any, model: Any, work: Work) -> Scored:
    parts: list[tuple[Any, Any]] = []
    for batch in batches(work):
        logprobs, entropies = step(model, batch)
        (logprobs.sum() + ENTROPY_WEIGHT * entropies.sum()).backward()
        parts.append((logprobs.detach(), entropies.detach()))
    return _joined(parts)


def _joined(parts: list[tuple[Any, Any]]) -> Scored:
    logprobs, entropies = (np.concatenate([part.numpy() for part in column]) for column in zip(*parts, strict=True))
    return Scored(logprobs, entropies)


def _padded_step(model: Any, batch: Batch) -> tuple[Any, Any]:
    import torch

    # Without positions, those of a padded prompt begin at its padding. That is the same up to rounding, but a reference
    # should not round more than it has to.
    positions = (batch.mask.cumsum(1) - 1).clamp(min=0)
    inputs = {"input_ids": batch.ids, "attention_mask": batch.mask, "position_ids": positions}
    logits = model(**inputs, use_cache=False).logits
    distributions = torch.log_softmax(logits.float(), dim=-1)
    del logits
    entropies = -(distributions.exp() * distributions).sum(-1)
    # All positions are gathered, and the last is dropped afterwards: a slice of the distributions would cost a copy in
    # the backward pass.
    logprobs = distributions.gather(2, batch.ids.roll(-1, dims=1)[..., None]).squeeze(2)
    responses = slice(-1 - batch.targets.shape[1], -1)
    return logprobs[:, responses][batch.scored], entropies[:, responses][batch.scored]


def _selective_step(model: Any, batch: Batch) -> tuple[Any, Any]:
    from trl.trainer.utils import entropy_from_logits, selective_log_softmax

    kept = batch.targets.shape[1] + 1
    logits = model(input_ids=batch.ids, attention_mask=batch.mask, use_cache=False, logits_to_keep=kept).logits
    logits = logits[:, :-1]  # the last one predicts what comes after the row
    return (
        selective_log_softmax(logits, batch.targets)[batch.scored],
        entropy_from_logits(logits)[batch.scored],
    )


def _fused_step(model: Any, batch: Batch) -> tuple[Any, Any]:
    responses = batch.targets.shape[1]
    labels = batch.ids.masked_fill(batch.mask == 0, -100)
    labels[:, :-responses] = -100
    output = model(input_ids=batch.ids, attention_mask=batch.mask, labels=labels, fused_lm_head=True)
    return output.log_probs[:, -responses:][batch.scored], output.entropy[:, -responses:][batch.scored]


def batches(work: Work) -> Iterator[Batch]:
    """Make rows of all responses in their order, `SCORED_ROWS` at a time, all of one width."""
    import torch

    prompts, masks = _left_padded(work.prompts)
    prompts, masks = (tensor.repeat_interleave(work.group, dim=0) for tensor in (prompts, masks))
    lengths = torch.tensor(work.limits).flatten()
    scored = torch.arange(int(lengths.max())) < lengths[:, None]
    targets = torch.full(scored.shape, PAD)
    targets[scored] = torch.tensor(flat(flat(work.responses)))
    for start in range(0, len(prompts), SCORED_ROWS):
        some = slice(start, start + SCORED_ROWS)
        ids = torch.cat([prompts[some], targets[some]], dim=1)
        mask = torch.cat([masks[some], scored[some].long()], dim=1)
        yield Batch(ids, mask, scored[some], targets[some])


def _left_padded(prompts: list[list[int]]) -> tuple[Any, Any]:
    """Return ids and mask, [B, longest prompt]."""
    import torch

    width = max(map(len, prompts))
    ids = torch.tensor([[PAD] * (width - len(prompt)) + prompt for prompt in prompts])
    masks = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return ids, masks
