"""GRPO without brim: TRL's `GRPOTrainer`, and the models, tokenizers and prompts that both sides get.

    TRL                      its own configuration for one CPU: float32, no checkpointing, no reference, one optimizer
                             step for each rollout; the responses of a step are cut into micro-batches
    TRL, responses only      the same with one line of it changed, so that the fused head scores the responses and not
                             every position: what TRL does where there is Triton

The length of every response can be fixed beforehand: then the end token is impossible before that length and certain
there. Everything here runs in a process of its own, see `grpo.py`. Nothing here imports brim.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

GROUPS, GROUP = 16, 8
"""Prompts of a step, and responses to each."""
HIDDEN, INTERMEDIATE, LAYERS, HEADS = 128, 352, 4, 4
CONTEXT = 512
PAD, END = 0, 1
SPECIAL = ("<pad>", "<end>", "<unknown>")
ASCII = "".join(map(chr, range(32, 127)))
FIRST = 0x3400
"""Where the characters behind ASCII begin. There are no surrogates among the 32,000 from here on."""

Prompt = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The work of a cost measurement. A prompt and its responses are of random tokens."""

    vocabulary: int
    prompts: tuple[int, int]
    """Tokens of the shortest and of the longest prompt."""
    median: float
    """Median of the log-normal lengths of responses, with sigma 0.6."""
    longest: int
    """Upper limit of these lengths."""


@dataclass(frozen=True)
class Work:
    """The prompts of a step, the length of each of their responses, and responses of these lengths."""

    prompts: list[list[int]]
    limits: list[list[int]]
    """[B][G]"""
    responses: list[list[list[int]]]
    """[B][G]"""
    longest: int

    @classmethod
    def draw(cls, setting: Setting, *, prompts: int = GROUPS, group: int = GROUP, seed: int = 0) -> "Work":
        rng = np.random.default_rng(seed)
        widths = rng.integers(setting.prompts[0], setting.prompts[1] + 1, prompts).tolist()
        drawn = rng.lognormal(np.log(setting.median), 0.6, (prompts, group))
        limits = np.clip(drawn, 2, setting.longest).astype(int).tolist()

        def ids(count: int) -> list[int]:
            return rng.integers(len(SPECIAL), setting.vocabulary, count).tolist()

        return cls(
            [ids(width) for width in widths],
            limits,
            [[ids(limit) for limit in row] for row in limits],
            setting.longest,
        )

    @property
    def tokens(self) -> int:
        """Number of response tokens."""
        return sum(map(sum, self.limits))

    def by_prompt(self, lists: Sequence[Any]) -> dict[Prompt, Any]:
        """Return the entries of [B][G] lists by prompt."""
        return {tuple(prompt): row for prompt, row in zip(self.prompts, lists, strict=True)}


def new_model(vocabulary: int, *, seed: int = 0, end: int | None = None) -> Any:
    """Return a Llama with random weights, in float32: 829 thousand of them with 98 tokens, 9 million with 32,000."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=CONTEXT,
        initializer_range=0.08,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=PAD,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config)


def new_tokenizer(vocabulary: int, *, end: bool) -> Any:
    """Return a tokenizer of transformers whose tokens are characters, with or without an end token."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    characters = [*ASCII, *map(chr, range(FIRST, FIRST + vocabulary))]
    names = [*SPECIAL, *characters][:vocabulary]
    inner = Tokenizer(models.WordLevel({name: id for id, name in enumerate(names)}, unk_token=SPECIAL[2]))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    inner.decoder = decoders.Fuse()
    given = {"pad_token": SPECIAL[PAD], **({"eos_token": SPECIAL[END]} if end else {})}
    return PreTrainedTokenizerFast(tokenizer_object=inner, model_max_length=CONTEXT, **given)


def flat(lists: Iterable[Iterable[Any]]) -> list[Any]:
    return list(chain.from_iterable(lists))


@dataclass
class Marks:
    """CPU seconds of this process at the end of each optimizer step, and those spent on rollouts before that."""

    ends: list[float] = field(default_factory=list[float])
    rollouts: list[float] = field(default_factory=list[float])
    walls: list[float] = field(default_factory=list[float])
    tokens: list[int] = field(default_factory=list[int])
    """Response tokens of each step."""
    _rolled: float = 0.0

    @contextmanager
    def rolling(self) -> Iterator[None]:
        """Count what is inside the block as part of the rollout: generating, and rewards."""
        began = time.process_time()
        yield
        self._rolled += time.process_time() - began

    def end_step(self) -> None:
        self.ends.append(time.process_time())
        self.walls.append(time.perf_counter())
        self.rollouts.append(self._rolled)
        self._rolled = 0.0

    def measured(self) -> dict[str, float]:
        """Return the medians over all steps but the first."""
        cpu, wall = np.diff(self.ends), np.diff(self.walls)
        rollouts = np.array(self.rollouts[1:])
        assert len(set(self.tokens)) == 1, f"steps differ in tokens: {self.tokens}"
        return {
            "cpu": float(np.median(cpu)),
            "seconds": float(np.median(wall)),
            "rollout s": float(np.median(rollouts)),
            "training s": float(np.median(cpu - rollouts)),
            "tokens": self.tokens[0],
        }


def train_trl(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str],
    reward: Callable[..., list[float]],
    folder: Path,
    *,
    columns: Mapping[str, Sequence[Any]] | None = None,
    marks: Marks | None = None,
    responses: Mapping[Prompt, list[list[int]]] | None = None,
    micro: int,
    **options: Any,
) -> Any:
    """Train in place, and return the trainer.

    Args:
        reward: A reward function of TRL.
        columns: Further columns of the data set, which the reward function gets.
        responses: Take these responses instead of generating any.
        micro: Responses of a micro-batch.
        options: Further options of `GRPOConfig`.
    """
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    marks = marks or Marks()

    class Timed(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            with marks.rolling():
                return super()._generate_and_score_completions(inputs)

        def _generate_single_turn(self, prompt_ids: Any, *rest: Any, **others: Any) -> Any:
            if responses is None:
                drawn, logprobs = super()._generate_single_turn(prompt_ids, *rest, **others)
            else:
                drawn = [responses[tuple(ids)][at % GROUP] for at, ids in enumerate(prompt_ids)]
                logprobs = None
            marks.tokens.append(sum(map(len, drawn)))
            return drawn, logprobs

    class EndOfStep(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            marks.end_step()

    accumulated = GROUPS * GROUP // micro
    given = {
        "output_dir": str(folder),
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": accumulated,
        "steps_per_generation": accumulated,
        "num_generations": GROUP,
        "num_iterations": 1,
        "beta": 0.0,
        "loss_type": "dapo",
        "scale_rewards": "group",
        "mask_truncated_completions": False,
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "lr_scheduler_type": "constant",
        "warmup_steps": 0,
        "weight_decay": 0.0,
        "bf16": False,
        "fp16": False,
        "gradient_checkpointing": False,
        "use_cpu": True,
        "report_to": "none",
        "logging_strategy": "no",
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    trainer = Timed(
        model=model,
        reward_funcs=reward,
        args=GRPOConfig(**{**given, **options}),
        train_dataset=Dataset.from_dict({"prompt": list(prompts), **(columns or {})}),
        processing_class=tokenizer,
        callbacks=[EndOfStep()],
    )
    trainer.train()
    return trainer


def fix_lengths(model: Any, work: Work) -> None:
    """Let `generate` end each response to a prompt of `work` at its length, by the end token."""
    import torch
    from transformers import LogitsProcessor, LogitsProcessorList

    class EndAtLimit(LogitsProcessor):
        """Changes one column of the scores, so that it costs next to nothing."""

        def __init__(self, width: int, limits: Any) -> None:
            self.last = width + limits - 1

        def __call__(self, input_ids: Any, scores: Any) -> Any:
            scores[:, END] = torch.where(input_ids.shape[1] >= self.last, 1e9, -torch.inf)
            return scores

    original = model.generate
    by_prompt = work.by_prompt(work.limits)

    def generate(*, input_ids: Any, attention_mask: Any, **others: Any) -> Any:
        limits: list[int] = []
        seen: dict[Prompt, int] = {}
        for ids, mask in zip(input_ids, attention_mask.bool(), strict=True):
            prompt = tuple(ids[mask].tolist())
            limits.append(by_prompt[prompt][seen.get(prompt, 0)])
            seen[prompt] = seen.get(prompt, 0) + 1
        forced = LogitsProcessorList([EndAtLimit(input_ids.shape[1], torch.tensor(limits))])
        return original(input_ids=input_ids, attention_mask=attention_mask, logits_processor=forced, **others)

    model.generate = generate


def score_responses_only() -> None:
    """Let TRL's fused head leave out positions that are not trained on, which it does only where it finds Triton."""
    import trl.trainer.utils as utils

    utils._use_triton = lambda device: True
