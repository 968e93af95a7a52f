"""Train a language model on its own attempts: `train_grpo`.

    run.json         the options
    rollouts.jsonl   a report on every rollout and the steps on it
    before.json      attempts at held-out tasks before the first step
    log.jsonl        curves by step; also in tensorboard/
    checkpoint-*     weights, optimizer, and the number of the next task
    weights/         the weights that servers were last told to load, if servers draw the responses
    model/           the trained model
    report.html      all of it as a page

Rollouts and optimizer steps take turns. A checkpoint is taken between rollouts; a run that was killed plays the rollout
again that it was in. What is random is keyed by the seed and the task, so the weights are those of a run that was never
killed: to the bit on one process, and up to rounding on another number of ranks.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from brim.core.errors import OptionError
from brim.generate.prompts.example import Example
from brim.train import checkpoint as files
from brim.train.callbacks import Callback
from brim.train.given import Given, model_objects
from brim.train.grpo.attempt import RolloutSource
from brim.train.grpo.config import GrpoConfig
from brim.train.grpo.hooks import GrpoGiven, GrpoHooks, Reload, RewardFunction
from brim.train.grpo.report import GrpoResult
from brim.train.grpo.trainer import GrpoRun
from brim.train.process_group import join_ranks


def train_grpo(
    config: GrpoConfig,
    *,
    model: Any = None,
    tokenizer: Any = None,
    rewards: RewardFunction | Sequence[RewardFunction] | None = None,
    examples: Sequence[Example] | None = None,
    held_out: Sequence[Example] | None = None,
    source: Callable[[Any, Any], RolloutSource] | None = None,
    reload: Reload | None = None,
    resume: Path | None = None,
    hooks: GrpoHooks | None = None,
    callbacks: Sequence[Callback] = (),
) -> GrpoResult:
    """Train a causal language model on its own attempts, and leave it in `output`/model.

    Under torchrun all ranks call this; hooks and callbacks are called on the main rank.

    Args:
        model: A model of transformers (trained in place) instead of the one that the options name.
        tokenizer: Its tokenizer: of brim, transformers or tokenizers.
        rewards: Functions instead of the rewards of the options: (prompt, response, example) -> float or parts by name.
        examples: Prompts instead of the data set of the options.
        held_out: Prompts that are never trained on, for evaluations.
        source: Makes another source of rollouts, such as an environment, from the model and the tokenizer.
        reload: Makes the servers load new weights: (directory, step) -> None. See `GrpoConfig.reload`.
        resume: A checkpoint to continue from (`brim.train.checkpoint.find_checkpoint`). Objects must be given again.

    Raises:
        OptionError: The options do not fit together, or the model and the data do not.
        MismatchError: The checkpoint belongs to another run, or the reference to another vocabulary.
        BrimError: No attempt has a reward, the log-probabilities of drawing and of training do not match, the servers'
            weights are too old, the loss is not finite, or contact with another rank was lost.

    Example:
        >>> def brevity(prompt, response, example):
        ...     return 1.0 / (1 + len(response))
        >>> train_grpo(GrpoConfig(output="run/", model="tiny", dataset="arithmetic"), rewards=brevity)  # doctest: +SKIP
    """
    named, objects = model_objects(config, model, tokenizer)
    config = replace(config, **named)
    if not config.model:
        raise OptionError("model is missing: name it in the options, or give it as an argument (train_grpo(model=...))")
    functions = [rewards] if callable(rewards) else rewards
    given = GrpoGiven(functions, examples, held_out, source, reload)
    saved = files.load_saved(resume) if resume is not None else None
    with join_ranks() as ranks, ExitStack() as opened:
        if not ranks.is_main:
            hooks = None
        return GrpoRun(
            config, ranks, opened, saved, given=given, objects=Given(**objects), hooks=hooks, callbacks=callbacks
        ).train()
