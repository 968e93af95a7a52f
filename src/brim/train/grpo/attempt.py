"""The result of a rollout: groups of attempts at the same task, with the tokens exactly as they were drawn.

An attempt is one response to a prompt, or one episode of an environment. Its tokens are everything behind the prompt;
`drawn` says which of them the model wrote, and only those are trained on. Nothing here imports torch.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import DataError
from brim.core.fill import Fill
from brim.generate.config import FinishReason
from brim.generate.rollouts import Column, Ids

DONE: tuple[FinishReason, ...] = ("eos", "stop")
"""Finish reasons of attempts that were not cut off."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Attempt:
    """One attempt at a task. Either `reward` or `failure` is None."""

    token_ids: Ids
    """Everything behind the prompt: what the model wrote and, in an episode, what it was answered."""
    drawn: NDArray[np.bool_]
    """For each token, whether the model drew it."""
    logprobs: Column
    """Log-probability of each drawn token under the distribution that it was drawn from; 0 for the others."""
    text: str
    """The tokens as text, for people."""
    finish_reason: FinishReason
    """"length" if it was cut off: too many tokens or, in an episode, too many turns."""
    reward: float | None
    passed: bool | None = None
    """Whether the task was solved, where that is known."""
    parts: Mapping[str, float] = field(default_factory=dict[str, float])
    """The parts of the reward, by name."""
    failure: str | None = None
    """The type of what went wrong, if no reward could be given. Such an attempt is counted and not trained on."""
    message: str = ""
    """The error message."""
    turns: int = 1

    @classmethod
    def failed(cls, failure: str, message: str) -> "Attempt":
        """Return an attempt that brought no tokens."""
        empty = np.empty(0, np.int32)
        return cls(
            token_ids=empty,
            drawn=empty.astype(np.bool_),
            logprobs=empty.astype(np.float32),
            text="",
            finish_reason="stop",
            reward=None,
            failure=failure,
            message=message,
        )

    @property
    def truncated(self) -> bool:
        return self.finish_reason not in DONE


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Group:
    """The attempts at one task. All of them begin with the same prompt."""

    draw: int
    """Number of the task in the run's order of tasks."""
    task: str
    """Identity of the task: the same task has the same one whenever it comes."""
    prompt_ids: Ids
    prompt: str
    """The prompt as text, for people."""
    answer: str | None
    """The reference answer, for people; None if there is none."""
    attempts: tuple[Attempt, ...]

    @property
    def rewards(self) -> NDArray[np.float64]:
        """[G]; NaN where an attempt failed."""
        return np.array([np.nan if one.reward is None else one.reward for one in self.attempts], np.float64)

    def check(self, size: int) -> None:
        """Check what a source returned for a task.

        Raises:
            DataError: It has another number of attempts, one of them is not consistent, or its reward is not finite.
        """
        if len(self.attempts) != size:
            raise DataError(f"the task {self.task} has {len(self.attempts)} attempts, {size} were asked for")
        if not len(self.prompt_ids):
            raise DataError(f"the task {self.task} has an empty prompt")
        for number, one in enumerate(self.attempts):
            where = f"attempt {number} at the task {self.task}"
            if not len(one.token_ids) == len(one.drawn) == len(one.logprobs):
                raise DataError(
                    f"{where} has {len(one.token_ids)} token_ids, {len(one.drawn)} drawn and {len(one.logprobs)} "
                    "logprobs; it must have one of each for every token"
                )
            if (one.reward is None) == (one.failure is None):
                raise DataError(f"{where} must have either a reward or a failure")
            if one.reward is not None and not math.isfinite(one.reward):
                raise DataError(f"{where} has the reward {one.reward}, which is not finite")

    @property
    def is_live(self) -> bool:
        """Whether rewards differ, so that there is something to learn from comparing them."""
        known = self.rewards[~np.isnan(self.rewards)]
        return len(known) > 1 and bool(known.max() > known.min())


class RolloutSource(Protocol):
    """A source of attempts: prompts and a model in this process, a server, or an environment.

    A source holds the model and always plays with its present weights.
    """

    @property
    def fill(self) -> Fill | None:
        """Share of what was computed for the latest `play` that was used; None if it is not known."""
        ...

    @property
    def reward_seconds(self) -> float:
        """Seconds of the latest `play` that were spent waiting for rewards, after everything was drawn."""
        ...

    def play(
        self, draws: Sequence[int], *, size: int, temperature: float, held_out: bool, stop: Callable[[], bool]
    ) -> list[Group] | None:
        """Attempt each of the tasks `size` times, and return a group for each of `draws`, in their order.

        Args:
            draws: Numbers from 0 on. Which task a number stands for, and all randomness, depend on it, on the seed of
                the run and on nothing else.
            temperature: Above 0 for training; 0 takes the likeliest token.
            held_out: Take tasks that are never trained on, instead of those that are.
            stop: Asked now and then; if it says yes, nothing is kept and None is returned.

        Raises:
            BrimError: Nothing can be attempted: the servers are lost, or the model is broken.
        """
        ...

    def close(self) -> None: ...
