"""Arguments of a run from Python: functions that are called during it, and objects in the place of names."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brim.core.progress import Say, silent
from brim.generate.prompts.example import Example
from brim.train.grpo.attempt import RolloutSource
from brim.train.grpo.report import RolloutReport
from brim.train.report import StepReport

Reload = Callable[[Path, int], object]
"""Called with the directory of the weights and their number of optimizer steps; returns when the servers have loaded
them."""
RewardFunction = Callable[..., Any]
"""(prompt, response, example) -> float or parts by name; see `brim.generate.rewards`."""


@dataclass(frozen=True)
class GrpoHooks:
    """Functions that are called on the main rank during the run."""

    on_message: Say = silent
    on_attempt: Callable[[int, int], None] | None = None
    """Called with the number of attempts of this rank that have ended, and how many there will be."""
    on_evaluation: Callable[[int], None] | None = None
    """Called before an evaluation, with the number of its tasks."""
    on_step: Callable[[StepReport], None] | None = None
    on_rollout: Callable[[RolloutReport], None] | None = None


@dataclass(frozen=True)
class GrpoGiven:
    """Objects that a program gives instead of names."""

    rewards: Sequence[RewardFunction] | None = None
    examples: Sequence[Example] | None = None
    held_out: Sequence[Example] | None = None
    source: Callable[[Any, Any], RolloutSource] | None = None
    """Makes the source of rollouts from the model and the tokenizer."""
    reload: Reload | None = None
