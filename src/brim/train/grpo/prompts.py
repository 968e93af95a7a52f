"""Rollouts of responses to prompts: who is asked what, and the rewards of the answers.

The order of prompts is a permutation for every pass through the data, so a prompt comes again when all others have
come. A response depends on the seed, the pass, its prompt and its number alone. Rewards are computed while further
responses are drawn.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import DataError, OptionError
from brim.core.fill import Fill
from brim.core.rng import new_seed, permutation
from brim.data.tokenizer.base import Tokenizer
from brim.generate.config import Stop
from brim.generate.prompts.example import Example
from brim.generate.prompts.registry import SUFFIX, build_dataset
from brim.generate.reading import check_prompts, read_prompts
from brim.generate.rewards import RewardFailure, Rewards
from brim.generate.rollouts import Ids
from brim.train.grpo.attempt import Attempt, Group
from brim.train.grpo.config import GrpoConfig
from brim.train.grpo.writers import Writer

Examples = Sequence[Example]


class PromptSource:
    """Responses to the prompts of a data set. A `RolloutSource`."""

    def __init__(
        self,
        writer: Writer,
        rewards: Rewards,
        examples: "PromptList",
        held_out: "PromptList | None",
        *,
        seed: int,
        on_attempt: Callable[[int, int], None],
    ) -> None:
        self._writer = writer
        self._rewards = rewards
        self._lists = {False: examples, True: held_out}
        self._seed = seed
        self._on_attempt = on_attempt
        self._order = lru_cache(maxsize=2)(self._permuted)
        self.reward_seconds = 0.0

    @property
    def fill(self) -> Fill | None:
        return self._writer.fill

    def play(
        self, draws: Sequence[int], *, size: int, temperature: float, held_out: bool, stop: Callable[[], bool]
    ) -> list[Group] | None:
        prompts = self._lists[held_out]
        assert prompts is not None, "there are no held-out prompts"
        chosen = [self._chosen(draw, len(prompts), held_out) for draw in draws]
        found: dict[tuple[int, int], Attempt] = {}
        done, total = 0, len(draws) * size
        with self._rewards.scoring() as scoring:
            # The draws of different passes through the data have seeds of their own.
            for epoch in dict.fromkeys(epoch for epoch, _ in chosen):
                places = [at for at, (its, _) in enumerate(chosen) if its == epoch]
                examples = [prompts.examples[chosen[at][1]] for at in places]
                written = self._writer.write(
                    examples,
                    [prompts.ids[chosen[at][1]] for at in places],
                    size=size,
                    seed=new_seed(seed=self._seed, purpose=f"grpo/{'held out' if held_out else 'train'}", epoch=epoch),
                    temperature=temperature,
                    stop=_stops(examples),
                )
                for number, sample, attempt in written:
                    if stop():
                        return None
                    key = (places[number], sample)
                    found[key] = attempt
                    if attempt.failure is None:
                        scoring.submit(key, examples[number].question, attempt.text, examples[number])
                    done += 1
                    self._on_attempt(done, total)
            began = time.monotonic()
            results = scoring.results()
            self.reward_seconds = time.monotonic() - began
        for key, result in results.items():
            if isinstance(result, RewardFailure):
                found[key] = replace(found[key], failure=result.kind, message=result.message)
            else:
                found[key] = replace(found[key], reward=result.value, parts=result.parts, passed=result.passed)
        return [
            Group(
                draw=draw,
                task=prompts.examples[index].id,
                prompt_ids=prompts.ids[index],
                prompt=prompts.examples[index].question,
                answer=prompts.examples[index].answer,
                attempts=tuple(found[at, sample] for sample in range(size)),
            )
            for at, (draw, (_, index)) in enumerate(zip(draws, chosen, strict=True))
        ]

    def _chosen(self, draw: int, count: int, held_out: bool) -> tuple[int, int]:
        """Return the pass through the data that a draw belongs to, and the prompt that it stands for."""
        epoch, at = divmod(draw, count)
        return epoch, at if held_out else int(self._order(epoch)[at])

    def _permuted(self, epoch: int) -> NDArray[np.int64]:
        examples = self._lists[False]
        assert examples is not None
        return permutation(len(examples), seed=self._seed, purpose="grpo/prompts", epoch=epoch)

    def close(self) -> None:
        self._writer.close()
        self._rewards.close()


class PromptList:
    """Prompts that leave room for a response, with their token ids."""

    def __init__(
        self, examples: Examples, tokenizer: Tokenizer, *, known_tokens: int, context: int | None, what: str
    ) -> None:
        """
        Raises:
            MismatchError: The model does not know a token of a prompt.
            DataError: No prompt is left.
        """
        every = read_prompts([example.prompt for example in examples], tokenizer)
        kept = [at for at, ids in enumerate(every) if context is None or len(ids) < context]
        self.left_out = len(every) - len(kept)
        """Number of prompts that fill the model's context."""
        if not kept:
            raise DataError(
                f"{what} has no prompt that leaves room for a response: the shortest of {len(every)} has "
                f"{min(len(ids) for ids in every)} tokens, the model's context is {context}"
            )
        self.examples: list[Example] = [examples[at] for at in kept]
        self.ids: list[Ids] = [every[at] for at in kept]
        check_prompts(self.ids, known_tokens=known_tokens, context=context)

    def __len__(self) -> int:
        return len(self.examples)


def load_examples(config: GrpoConfig) -> tuple[Examples, Examples | None]:
    """Return the prompts to train on and the held-out ones; None if there are none.

    Raises:
        OptionError: There is no such data set or split.
        DataError: A file cannot be read or has no prompts.
    """
    if not config.dataset:
        raise OptionError("dataset is missing: name one, such as arithmetic, or the path of a JSONL file")
    examples = build_dataset(config.dataset, config.split)
    if not config.eval_prompts:
        return examples, None
    if config.eval_dataset is not None:
        split = "train" if config.eval_dataset.endswith(SUFFIX) else config.eval_split
        return examples, build_dataset(config.eval_dataset, split)
    if config.dataset.endswith(SUFFIX):
        return examples, None
    if config.eval_split == config.split:
        raise OptionError(f"eval_split must not be the split that is trained on, {config.split}")
    return examples, build_dataset(config.dataset, config.eval_split)


def _stops(examples: Examples) -> tuple[Stop, ...]:
    return tuple(dict.fromkeys(text for example in examples for text in example.stop))
