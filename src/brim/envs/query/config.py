"""Options of a query environment."""

import math
from dataclasses import dataclass

from brim.core.errors import OptionError
from brim.core.options import check_counts

MUTATORS = ("rephrase", "shorten", "expand", "add_context", "break_into_steps", "crossover")
"""The mutators of an environment that names none."""


@dataclass(frozen=True, kw_only=True)
class QueryConfig:
    """How questions are rewritten, asked and embedded."""

    mutators: tuple[str, ...] = MUTATORS
    """The actions: names of mutations that come with brim, or paths of template files."""
    max_steps: int = 3
    """Rewrites of one question; then the episode is truncated."""
    goal: float | None = 1.0
    """Reward at which an episode is terminated, because the question is answered well enough. None never ends one."""
    model: str | None = None
    """The target model, which answers the questions. None is the pool's own, or the only one that the servers have."""
    mutator_model: str | None = None
    """The model that rewrites questions. None is the target model."""
    embedder: str = "hash"
    """The model of the observations: `hash`, which is built in, a directory such as ./minilm, or a model of the
    servers."""
    temperature: float = 0.0
    """Sampling temperature of rewrites. Above 0, every rewrite has a seed of its own, a function of the environment's
    seed, the episode and the step."""
    answer_temperature: float = 0.0
    """Sampling temperature of answers, with a seed in the same way."""
    max_query_tokens: int = 256
    """Upper limit of the tokens of a rewritten question."""
    max_answer_tokens: int = 256
    """Upper limit of the tokens of an answer."""
    fallback_query: bool = False
    """Whether a question whose rewriting failed is asked as it was. Such a step is marked in `info["fallbacks"]`."""
    fallback_answer: str | None = None
    """A text that takes the place of an answer that failed; it is rated like an answer, and marked in
    `info["fallbacks"]`. A reward for it is a reward for a failed call."""

    def __post_init__(self) -> None:
        check_counts(
            max_steps=self.max_steps,
            max_query_tokens=self.max_query_tokens,
            max_answer_tokens=self.max_answer_tokens,
        )
        if isinstance(self.mutators, str) or not self.mutators:
            raise OptionError(f"mutators must be a list of at least one mutation, got {self.mutators!r}")
        if twice := [name for name in dict.fromkeys(self.mutators) if self.mutators.count(name) > 1]:
            raise OptionError(f"mutators must differ, got {twice[0]!r} twice")
        for name in ("temperature", "answer_temperature"):
            if not 0 <= getattr(self, name) <= 100:
                raise OptionError(f"{name} must lie between 0 and 100, got {getattr(self, name)!r}")
        if self.goal is not None and not math.isfinite(self.goal):
            raise OptionError(f"goal must be a finite number or None, got {self.goal!r}")
