"""`SequenceProcessor`: generation and log-probabilities behind one interface.

The model is left as it was found: its mode, its attention, its configuration and the global random generators.
"""

import secrets
from collections.abc import Container, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from brim.analyze.capacity.search import Capacity
from brim.core.errors import OptionError
from brim.core.extras import need
from brim.data.tokenizer.given import as_tokenizer
from brim.generate.auto import measure_scoring
from brim.generate.config import Auto, GenerationConfig, Law, Stop, check_batch_size, least_budget
from brim.generate.decode.loop import DecodeStats
from brim.generate.generation import Generation
from brim.generate.model import CausalModel
from brim.generate.prompts.registry import sample_examples
from brim.generate.reading import Prompt, read_prompts
from brim.generate.rollouts import Ids, Response, Rollouts
from brim.generate.score.diagnostics import NAMES
from brim.generate.score.plan import LayoutName
from brim.generate.score.scorer import Scored, ScoreLimits, Scorer
from brim.generate.sequences import BatchedSequences, LogprobResults

if TYPE_CHECKING:
    from brim.generate.prompts.example import Example
else:
    need("torch", extra="generate", user="brim.generate")

TF_TOKENS = 8192
"""Tokens of a microbatch that is scored, by default."""


class SequenceProcessor:
    """Generates G responses to each prompt, and scores responses, with one causal model of transformers.

    Example:
        processor = SequenceProcessor(model, tokenizer, GenerationConfig(max_new_tokens=64, seed=0))
        sequences, logprobs = processor.generate_with_logprobs(prompts=["2 + 2 =", "3 + 5 ="], G=8)
    """

    def __init__(self, model: Any, tokenizer: Any, config: GenerationConfig | None = None) -> None:
        """
        Args:
            model: A causal language model of transformers, alone or wrapped (DistributedDataParallel).
            tokenizer: Its tokenizer: of transformers, of tokenizers, or of brim.

        Raises:
            OptionError: One of them is something else.
        """
        self.model = CausalModel(model)
        self.tokenizer = as_tokenizer(tokenizer)
        given: Any = config
        if given is not None and not isinstance(given, GenerationConfig):
            raise OptionError(f"config must be a brim.generate.GenerationConfig, got {type(given).__name__}")
        self.config = config or GenerationConfig()
        self.end_tokens = self.model.end_tokens(self.tokenizer.eos_id)
        self._scorer = Scorer(self.model)
        self._generation = Generation(self.model, self.tokenizer, self.config, self.end_tokens)
        self.tf_capacity: dict[bool, Capacity] = {}
        """Results of the measurement by tf_batch_size="auto": without (False) and with gradients (True)."""

    @property
    def stats(self) -> DecodeStats:
        """Counters of the generation that is under way, or of the latest one."""
        return self._generation.stats

    @property
    def gen_capacity(self) -> Capacity | None:
        """Result of the measurement by gen_batch_size="auto", with all sizes that were tried."""
        return self._generation.capacity

    # Prompts

    def sample_prompts(
        self,
        dataset_name: str,
        split: str = "train",
        num_prompts: int | None = None,
        seed: int | None = None,
        *,
        replace: bool = False,
    ) -> list[str]:
        """Return prompts of a data set of `DATASET_REGISTRY`, or of a JSONL file.

        Args:
            num_prompts: None takes all of them, in their order.
            seed: Seed of the choice; None takes a new one.
            replace: Draw with replacement.

        Raises:
            OptionError: There is no such data set or split, or it has fewer prompts.
        """
        examples = sample_examples(dataset_name, split, num_prompts, seed, replace=replace)
        return [example.question for example in examples]

    # Generation

    def stream(
        self,
        prompts: Sequence[Prompt],
        G: int = 8,  # noqa: N803  the seed's letter
        *,
        seed: int | None = None,
        gen_batch_size: int | Auto | None = None,
        stop: Sequence[Stop] | None = None,
        limits: Sequence[Sequence[int]] | None = None,
        skip: Container[tuple[int, int]] = (),
    ) -> Iterator[Response]:
        """Generate G responses to each prompt, and yield each one as soon as it ends, in whatever order that is.

        Args:
            prompts: Texts, conversations, or token ids.
            seed: Seed of the draws; None takes the config's, or a new one. A response depends on the seed, its prompt
                and its number alone, not on what is generated beside it.
            stop: Texts and token ids that end a response, instead of the config's.
            limits: [B][G], an upper limit of the tokens of each response, below `max_new_tokens`.
            skip: (prompt, sample) numbers of responses that are not generated.

        Raises:
            OptionError: An option cannot work, or a prompt is empty.
            LengthError: A prompt fills the model's context, or does not fit into the token budget.
            BrimError: The model's logits are not finite, or one response alone runs out of memory. Responses that ended
                before have been yielded.
        """
        ids = read_prompts(prompts, self.tokenizer)
        return self._generation.stream(
            ids, G, seed=self._seed(seed), gen_batch_size=gen_batch_size, stop=stop, limits=limits, skip=skip
        )

    def generate_batched(
        self,
        prompts: Sequence[Prompt],
        G: int = 8,  # noqa: N803
        gen_batch_size: int | Auto | None = None,
        *,
        seed: int | None = None,
        stop: Sequence[Stop] | None = None,
    ) -> BatchedSequences:
        """Generate G responses to each prompt. See `stream` for the options and errors."""
        ids = read_prompts(prompts, self.tokenizer)
        return self._generated(ids, G, self._seed(seed), gen_batch_size, stop)

    def generate_with_logprobs(
        self,
        prompts: Sequence[Prompt] | None = None,
        G: int = 8,  # noqa: N803
        dataset_name: str | None = None,
        split: str = "train",
        num_prompts: int | None = None,
        seed: int | None = None,
        with_grad: bool = False,
        gen_batch_size: int | Auto | None = None,
        tf_batch_size: int | Auto | None = None,
    ) -> tuple[BatchedSequences, LogprobResults]:
        """Generate G responses to each prompt, with the log-probabilities and entropies of their tokens.

        Without gradients, they are those that were computed while generating; with gradients, the responses are scored
        by a second pass. `seed` decides the choice of prompts and the draws.

        Raises:
            OptionError: Neither prompts nor a data set is given, or both; or see `stream`.
        """
        seed = self._seed(seed)
        examples: list[Example] | None = None
        stop = self.config.stop
        if (prompts is None) == (dataset_name is None):
            raise OptionError("give either prompts or dataset_name" + (", not both" if prompts is not None else ""))
        if dataset_name is not None:
            examples = sample_examples(dataset_name, split, num_prompts, seed)
            prompts = [example.prompt for example in examples]
            if stop is None:
                stop = tuple(dict.fromkeys(text for example in examples for text in example.stop))
        elif num_prompts is not None:
            raise OptionError("num_prompts is for a data set; explicit prompts are all used")
        assert prompts is not None
        ids = read_prompts(prompts, self.tokenizer)
        sequences = self._generated(ids, G, seed, gen_batch_size, stop, examples)
        if with_grad:
            return sequences, self.teacher_force_logprobs(sequences, with_grad=True, tf_batch_size=tf_batch_size)
        return sequences, LogprobResults.recorded(sequences.record(), self.model.device)

    # Scoring

    def teacher_force_logprobs(
        self,
        sequences: BatchedSequences | Rollouts,
        with_grad: bool = False,
        tf_batch_size: int | Auto | None = None,
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        prompt_logprobs: bool = False,
        diagnostics: bool = False,
        adapter: bool = True,
        layout: LayoutName | None = None,
    ) -> LogprobResults:
        """Return the log-probabilities of the responses' tokens, and the entropies before them.

        By default they are those of the model itself: temperature 1, nothing truncated. Another temperature (or top_k,
        top_p, min_p) scores the distribution that samples were drawn from, as a policy gradient on them needs.

        Args:
            with_grad: Keep the graph, through the model's wrapper if there is one. All of it stays in memory until
                `backward`; `microbatches` needs less.
            prompt_logprobs: Score the prompts' own tokens, too.
            diagnostics: Return how sure the model was before each token (`brim.generate.score.diagnostics.NAMES`).
            adapter: False scores without the model's LoRA adapters: the log-probabilities of the reference model.
            layout: "tree", "bucket" or "one" instead of the cheapest.

        Raises:
            OptionError: An option cannot work.
            LengthError: A response with its prompt exceeds the token budget.
            BrimError: The model's logits are not finite, or one response alone runs out of memory.
        """
        rollouts = _record(sequences)
        law = _scoring_law(temperature, top_k, top_p, min_p)
        logprobs: list[Any] = [None] * len(rollouts)
        entropies: list[Any] = [None] * len(rollouts)
        prompts: dict[int, Any] = {}
        further: dict[str, list[Any]] = {name: [None] * len(rollouts) for name in NAMES} if diagnostics else {}
        parts = self._scored(
            rollouts,
            law,
            tf_batch_size,
            grad=with_grad,
            prompts=prompt_logprobs,
            diagnostics=diagnostics,
            adapter=adapter,
            layout=layout,
        )
        for part in parts:
            uncertain = part.split(part.entropies.detach())
            for number, column, entropy in zip(part.responses, part.split(part.logprobs), uncertain, strict=True):
                logprobs[number] = column
                entropies[number] = entropy.cpu().numpy()
            prompts.update(part.prompt_logprobs)
            for name, column in part.diagnostics.items():
                for number, values in zip(part.responses, part.split(column), strict=True):
                    further[name][number] = values.cpu().numpy()
        results: LogprobResults = LogprobResults.of(rollouts, logprobs, entropies)
        results.layout_noise = self._scorer.layout_noise
        if prompt_logprobs:
            results.prompt_logprobs = [prompts[b] for b in range(rollouts.B)]
        if diagnostics:
            results.diagnostics = {name: rollouts.nested(values) for name, values in further.items()}
        return results

    def microbatches(
        self,
        sequences: BatchedSequences | Rollouts,
        tf_batch_size: int | Auto | None = None,
        *,
        with_grad: bool = True,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        adapter: bool = True,
        layout: LayoutName | None = None,
    ) -> Iterator[Scored]:
        """Yield the scores of all responses, a microbatch at a time, so that `backward` can be called for each.

        A model in DistributedDataParallel synchronises its gradients in the last microbatch only. Options and errors
        are those of `teacher_force_logprobs`.
        """
        law = _scoring_law(temperature, top_k, top_p, min_p)
        return self._scored(_record(sequences), law, tf_batch_size, grad=with_grad, adapter=adapter, layout=layout)

    def rescored(self, prompt: Ids, response: Response) -> Response:
        """Return a response with the numbers of its tokens computed anew, from the prompt and the response alone.

        What is recorded while generating depends, in its last bits, on how many rows were computed together. These
        numbers do not: a run that is repeated in another order gets the same ones.

        Raises:
            DataError: The token ids of the response are not known.
        """
        rollouts = Rollouts.collect([prompt], [replace(response, prompt=0, sample=0)], G=1, seed=0)
        law = self.config.law
        sampling = None if law.greedy or law.is_models_own else law
        limits = ScoreLimits(responses=1, tokens=len(prompt) + len(response))
        (part,) = self._scorer.scored(rollouts, law=Law(), limits=limits, sampling=sampling, layout="one")
        own = part.logprobs.cpu().numpy()
        if part.sampling_logprobs is not None:
            drawn = part.sampling_logprobs.cpu().numpy()
        else:
            drawn = np.zeros_like(own) if law.greedy else own
        return replace(response, logprobs=own, sampling_logprobs=drawn, entropies=part.entropies.cpu().numpy())

    # How it is done

    def _generated(
        self,
        ids: list[Ids],
        G: int,  # noqa: N803
        seed: int,
        gen_batch_size: int | Auto | None,
        stop: Sequence[Stop] | None,
        examples: "list[Example] | None" = None,
    ) -> BatchedSequences:
        responses = self._generation.stream(ids, G, seed=seed, gen_batch_size=gen_batch_size, stop=stop)
        rollouts = Rollouts.collect(ids, responses, G=G, seed=seed)
        return BatchedSequences.of(rollouts, pad_id=self.tokenizer.pad_id, device=self.model.device, examples=examples)

    def _scored(
        self,
        rollouts: Rollouts,
        law: Law,
        tf_batch_size: int | Auto | None,
        *,
        grad: bool,
        prompts: bool = False,
        diagnostics: bool = False,
        adapter: bool = True,
        layout: LayoutName | None = None,
    ) -> Iterator[Scored]:
        check_batch_size("tf_batch_size", tf_batch_size)
        size = self.config.tf_batch_size if tf_batch_size is None else tf_batch_size
        if size == "auto":
            if grad not in self.tf_capacity:
                self.tf_capacity[grad] = measure_scoring(self.model, rollouts, grad=grad)
            size = self.tf_capacity[grad].knee.size
        budget = self.config.tf_token_budget or TF_TOKENS
        longest = int((rollouts.prompt_lengths.repeat(rollouts.G) + rollouts.response_lengths).max(initial=1))
        if self.config.tf_token_budget is None:
            budget = max(budget, longest)
        tokens = least_budget(budget, self.config.memory_budget, self.model.bytes_per_scored_token(grad=grad))
        assert tokens is not None
        return self._scorer.scored(
            rollouts,
            law=law,
            limits=ScoreLimits(responses=size, tokens=tokens),
            grad=grad,
            prompts=prompts,
            diagnostics=self.end_tokens if diagnostics else None,
            adapter=adapter,
            layout=layout,
            around=self._synchronised if grad else lambda last: nullcontext(),
        )

    def _synchronised(self, last: bool) -> AbstractContextManager[None]:
        """Return a context in which gradients are synchronised only if this is the last microbatch."""
        return nullcontext() if last else self.model.unsynchronised()

    def _seed(self, seed: int | None) -> int:
        """Return the seed of a call: the given one, the config's, or a new one."""
        if seed is not None:
            return replace(self.config, seed=seed).seed or 0
        return secrets.randbits(48) if self.config.seed is None else self.config.seed


def _record(sequences: BatchedSequences | Rollouts) -> Rollouts:
    return sequences if isinstance(sequences, Rollouts) else sequences.record()


def _scoring_law(temperature: float, top_k: int, top_p: float, min_p: float) -> Law:
    law = Law(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    if law.greedy:
        raise OptionError("temperature must be above 0 to score: at 0 a token has probability 0 or 1")
    return law
