"""One rewritten question and its answer: what a reward is given.

A reward may ask models itself, through `Attempt.calls`. Such calls belong to the step: they are counted, and if one of
them fails, the step is invalid, and no reward is made up.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from brim.llm.mutations import Mutation


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question of the data."""

    id: str
    text: str
    reference: str | None = None
    """The right answer, for rewards that need one."""
    kind: str = ""
    """The kind of question, for reports."""


class Calls(Protocol):
    """Calls to models that a reward can make. Each of them raises `Failure` if there is no answer."""

    async def ask(self, prompt: str, *, purpose: str, sample: int = 0, model: str | None = None) -> str:
        """Return the answer of the target model, or of another one.

        Args:
            purpose: A word for what is asked, such as "judge". It keys the randomness of the answer, with the
                environment, its episode and its step.
            sample: Number of the sample, where the same is asked several times.
        """
        ...

    async def rewrite(self, query: str, mutation: Mutation, *, sample: int = 0) -> str:
        """Return the query as the rewriting model rewrites it."""
        ...

    async def embed(self, text: str) -> NDArray[np.float32]:
        """Return the vector of a text, of length 1."""
        ...


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A question, how it was rewritten, and the answer to that."""

    question: Question
    before: str
    """The query before this step."""
    query: str
    """The query as it was rewritten in this step."""
    answer: str
    """The answer of the target model to `query`."""
    step: int
    """Number of the step in its episode, from 1 on; 0 for the question as it stands in the data."""
    calls: Calls


Reward = Callable[[Attempt], float | Awaitable[float]]
"""A function that rates an attempt: 1 is best for those that come with brim. A plain function runs in a thread, so that
it may take its time; an async one runs in the event loop of all environments, and must not block it.

It may have an attribute `needs_reference`: True refuses questions without a reference before anything is asked."""
