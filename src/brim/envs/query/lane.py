"""One environment as a coroutine: an episode is a question, a step rewrites it, asks it, and rates the answer.

A step or a reset changes the state at its very end and all at once. One that is cancelled, or that fails, leaves the
state as it was, except that a failed step ends its episode.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import DamagedError
from brim.envs.query.attempt import Question
from brim.envs.query.failures import ResetFailed
from brim.envs.query.task import QueryTask, Rewritten, StepCalls, Tally
from brim.llm.failures import Cancelled, Failure


@dataclass(frozen=True)
class LaneState:
    """Everything that decides how an environment goes on, besides its actions."""

    seed: int
    episode: int = -1
    """Number of the episode, from 0 on; -1 before the first reset."""
    question: int = 0
    """Number of its question."""
    query: str = ""
    """The question as it stands now."""
    step: int = 0
    """Steps taken in this episode."""
    number: int = 0
    """Steps taken in all episodes."""
    ended: bool = True
    """Whether the episode has ended, so that a reset must follow."""
    vector: NDArray[np.float32] | None = field(default=None, compare=False)
    """The vector of the query."""

    def to_dict(self) -> dict[str, Any]:
        """Return the state as JSON-like values. `from_dict` is the inverse, to the last bit."""
        vector = None if self.vector is None else base64.b64encode(self.vector.astype("<f4").tobytes()).decode()
        return {**vars(self), "vector": vector}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "LaneState":
        """Make a state from JSON-like values.

        Raises:
            DamagedError: They are none.
        """
        try:
            packed = values["vector"]
            vector = None
            if packed is not None:
                vector = np.frombuffer(base64.b64decode(packed, validate=True), "<f4").astype(np.float32)
            for name, kind in _TYPES.items():
                if type(values[name]) is not kind:
                    raise TypeError(f"{name} is {values[name]!r:.40}")
            fields: dict[str, Any] = {**values, "vector": vector}
            return cls(**fields)
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedError(f"the state of an environment is damaged: {error}") from None


_TYPES = {"seed": int, "episode": int, "question": int, "query": str, "step": int, "number": int, "ended": bool}
"""Types of the fields of a state, but the vector."""


@dataclass(frozen=True)
class Outcome:
    """The end of a step or of a reset."""

    observation: NDArray[np.float32]
    """That of the query after it, or of the query before it if the step is invalid; zeros if there is none."""
    reward: float
    """NaN if the step is invalid."""
    terminated: bool
    truncated: bool
    valid: bool
    info: dict[str, Any]
    tally: Tally
    failure: Failure | None = None
    """Why it is invalid."""
    is_reset: bool = False
    then: "Outcome | None" = None
    """The reset that followed at once, if one did."""


class Lane:
    """One environment. Its coroutines run in the event loop of the task's pool, one at a time."""

    def __init__(self, task: QueryTask, seed: int = 0) -> None:
        self.task = task
        self.state = LaneState(seed)
        self.seeded = False
        """Whether a seed was given or drawn, with which a reset continues that is given none."""
        self._order: tuple[int, int, NDArray[np.int64]] | None = None
        """(seed, pass, order of the questions) of the last reset."""

    @property
    def observation(self) -> NDArray[np.float32]:
        """The present observation; zeros before the first reset that succeeded."""
        vector = self.state.vector
        if vector is None:
            return np.zeros(self.task.dim, np.float32)
        return self.task.observation(vector, self.state.step)

    @property
    def question(self) -> Question:
        return self.task.questions[self.state.question]

    async def reset(self) -> Outcome:
        """Begin the next episode."""
        episode = self.state.episode + 1
        return await self.begin(episode, self._question_of(episode))

    async def late_reset(self) -> Outcome:
        """Begin the episode that could not begin before, in the place of a step, which is invalid."""
        question = self.question
        info = {"question_id": question.id, "kind": question.kind, "query": self.state.query, "valid": False}
        failure = ResetFailed("no step was taken, because the episode could not begin before")
        outcome = Outcome(self.observation, np.nan, False, True, False, {**info, **_told(failure)}, Tally(), failure)
        return replace(outcome, then=await self.reset())

    def check(self, state: LaneState) -> None:
        """Refuse a state that cannot be one of this environment.

        Raises:
            DamagedError: It cannot.
        """
        task = self.task
        fits = (
            state.episode >= -1
            and 0 <= state.question < len(task.questions)
            and 0 <= state.step <= task.config.max_steps
            and state.number >= 0
            and (state.ended if state.vector is None else len(state.vector) == task.dim - 1)
        )
        if not fits:
            raise DamagedError(f"the state of an environment is damaged: {replace(state, vector=None)!r:.200}")

    async def begin(self, episode: int, number: int) -> Outcome:
        """Begin an episode with a certain question."""
        before, task = self.state, self.task
        question = task.questions[number]
        tally = Tally()
        info = {"question_id": question.id, "kind": question.kind, "query": question.text}
        try:
            vector = await StepCalls(task, before.seed, episode, 0, tally).embed(question.text)
        except Failure as failure:
            if isinstance(failure, Cancelled):
                raise
            self.state = replace(before, ended=True, vector=None)
            info = {**info, "valid": False, **_told(failure)}
            return Outcome(self.observation, np.nan, False, True, False, info, tally, failure, is_reset=True)
        self.state = replace(
            before, episode=episode, question=number, query=question.text, step=0, ended=False, vector=vector
        )
        info = {**info, "valid": True}
        return Outcome(self.observation, 0.0, False, False, True, info, tally, is_reset=True)

    async def step(self, action: int, *, then_reset: bool = False) -> Outcome:
        """Rewrite the query by a mutator, and rate the answer to it.

        Args:
            then_reset: Whether the next episode begins at once if this one ends.
        """
        before, task = self.state, self.task
        step = before.step + 1
        question, mutation = self.question, task.mutations[action]
        other = None
        if mutation.needs_other:
            other = task.other(before.seed, before.episode, step, before.question)
        tally = Tally()
        calls = StepCalls(task, before.seed, before.episode, step, tally, rank=before.number)
        info = {
            "question_id": question.id,
            "kind": question.kind,
            "mutator": mutation.name,
            "before": before.query,
        }
        try:
            done = await calls.attempt(question, before.query, mutation, other)
        except Failure as failure:
            if isinstance(failure, Cancelled):
                raise
            outcome = self._failed(failure, info, tally)
        else:
            outcome = self._succeeded(done, step, info, tally)
        if then_reset and self.state.ended:
            return replace(outcome, then=await self.reset())
        return outcome

    async def as_it_is(self, question: int) -> Rewritten | Failure:
        """Ask a question as it stands in the data, and rate the answer. The state stays as it is."""
        asked = self.task.questions[question]
        try:
            return await StepCalls(self.task, self.state.seed, 0, 0, Tally()).answered(asked, asked.text, asked.text)
        except Failure as failure:
            return failure

    def _question_of(self, episode: int) -> int:
        """Return the number of an episode's question: all of them come in a random order before one comes again."""
        number, place = divmod(episode, len(self.task.questions))
        seed = self.state.seed
        if self._order is None or self._order[:2] != (seed, number):
            self._order = (seed, number, self.task.order(seed, number))
        return int(self._order[2][place])

    def _succeeded(self, done: Rewritten, step: int, info: dict[str, Any], tally: Tally) -> Outcome:
        config = self.task.config
        terminated = config.goal is not None and done.reward >= config.goal
        truncated = not terminated and step >= config.max_steps
        self.state = replace(
            self.state,
            query=done.query,
            step=step,
            number=self.state.number + 1,
            ended=terminated or truncated,
            vector=done.vector,
        )
        info = {
            **info,
            "query": done.query,
            "answer": done.answer,
            "fallbacks": done.fallbacks,
            "valid": True,
        }
        return Outcome(self.observation, done.reward, terminated, truncated, True, info, tally)

    def _failed(self, failure: Failure, info: dict[str, Any], tally: Tally) -> Outcome:
        self.state = replace(self.state, number=self.state.number + 1, ended=True)
        info = {**info, "query": self.state.query, "valid": False, **_told(failure)}
        return Outcome(self.observation, np.nan, False, True, False, info, tally, failure)


def _told(failure: Failure) -> dict[str, str]:
    return {"failure": str(failure), "failure_type": type(failure).__name__}
