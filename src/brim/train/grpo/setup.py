"""From options and objects to a source of rollouts."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from brim.core.errors import OptionError
from brim.data.tokenizer.base import Tokenizer
from brim.generate.model import CausalModel
from brim.generate.rewards import JudgeOptions, open_rewards
from brim.generate.rewards.specs import load_function, parse_spec
from brim.train.grpo.attempt import RolloutSource
from brim.train.grpo.config import GrpoConfig
from brim.train.grpo.hooks import GrpoGiven, Reload
from brim.train.grpo.prompts import PromptList, PromptSource, load_examples
from brim.train.grpo.writers import LocalWriter, ServerWriter

OnAttempt = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A source of rollouts, and what is known about its tasks."""

    source: RolloutSource
    tasks: int | None
    """Number of tasks to train on; None if there is no end of them."""
    held_out: int
    """Number of held-out tasks of an evaluation."""
    left_out: int = 0
    """Prompts that leave no room for a response."""


def open_source(
    config: GrpoConfig, model: Any, tokenizer: Tokenizer, given: GrpoGiven, *, on_attempt: OnAttempt
) -> Opened:
    """Open where the attempts of a run come from.

    Raises:
        OptionError: The data, the rewards or the objects do not fit the options.
        DataError: There is no prompt that leaves room for a response.
    """
    if given.source is not None:
        return Opened(source=given.source(model, tokenizer), tasks=None, held_out=config.eval_prompts)
    if config.gym is not None:
        return _open_gym(config, model, tokenizer, on_attempt)
    return _open_prompts(config, model, tokenizer, given, on_attempt)


def _open_gym(config: GrpoConfig, model: Any, tokenizer: Tokenizer, on_attempt: OnAttempt) -> Opened:
    from brim.envs.puzzle.run import find_server
    from brim.train.grpo.episodes import EpisodeSource

    assert config.gym is not None
    find_server(config.gym)
    context = CausalModel(model).context
    source = EpisodeSource(
        model,
        tokenizer,
        config.gym,
        seed=config.seed,
        max_new_tokens=config.max_new_tokens,
        longest=min(config.token_budget, context or config.token_budget),
        bf16=config.bf16,
        on_attempt=on_attempt,
    )
    return Opened(source=source, tasks=None, held_out=config.eval_prompts)


def _open_prompts(
    config: GrpoConfig, model: Any, tokenizer: Tokenizer, given: GrpoGiven, on_attempt: OnAttempt
) -> Opened:
    if given.examples is None:
        examples, held_out = load_examples(config)
    else:
        if config.dataset:
            raise OptionError(f"give dataset ({config.dataset}) or examples, not both")
        examples, held_out = given.examples, None
    if given.held_out is not None:
        held_out = given.held_out
    causal = CausalModel(model)

    def listed(found: Any, what: str) -> PromptList:
        return PromptList(found, tokenizer, known_tokens=causal.known_tokens, context=causal.context, what=what)

    if not examples:
        raise OptionError("examples is empty: there is nothing to train on")
    train = listed(examples, config.dataset or "examples")
    test = listed(held_out, config.eval_dataset or "held_out") if held_out and config.eval_prompts else None
    judge = JudgeOptions(servers=config.judge_servers, model=config.judge_model) if config.judge_servers else None
    rewards = open_rewards(
        config.rewards if given.rewards is None else given.rewards, timeout=config.reward_timeout, judge=judge
    )
    writer = ServerWriter(tokenizer, config) if config.servers else LocalWriter(model, tokenizer, config)
    source = PromptSource(writer, rewards, train, test, seed=config.seed, on_attempt=on_attempt)
    return Opened(
        source=source,
        tasks=len(train),
        held_out=0 if test is None else min(config.eval_prompts, len(test)),
        left_out=train.left_out,
    )


def open_reload(spec: str | None) -> Reload | None:
    """Return the function that makes servers load weights, named as module:function or file.py:function.

    Raises:
        OptionError: There is no such function, or it cannot be called with (directory, step).
    """
    if spec is None:
        return None
    found = load_function(parse_spec(spec), {})
    if not callable(found):
        raise OptionError(f"reload {spec} must be a function of (directory, step), got {found!r:.60}")
    return cast(Callable[[Path, int], object], found)
