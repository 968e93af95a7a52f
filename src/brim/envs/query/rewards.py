"""Rewards for answers, from 0 to 1, and how any reward is called.

    exact        the answer equals the reference, see `compare.matches`
    numeric      the last number of the answer equals that of the reference
    agreement    share of rephrased queries that get the same answer; needs no reference
    similarity   cosine of the embeddings of answer and reference
    judge        the score of a judge model; needs no reference, and uses one if there is one

Any function of an `Attempt` can be a reward. One that raises an error, or returns no finite number, makes the step
invalid: there is no default.
"""

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from numbers import Real
from typing import Any, ClassVar, TypeVar, cast

import numpy as np

from brim.core.errors import DataError, OptionError, did_you_mean
from brim.core.options import check_counts
from brim.envs.query.attempt import Attempt, Question, Reward
from brim.envs.query.compare import TOLERANCE, agree, close, last_number, matches
from brim.envs.query.failures import RewardFailed
from brim.envs.query.judge import Judge
from brim.envs.query.questions import named
from brim.llm.failures import Failure
from brim.llm.mutations import Mutation, load_mutation

LONGEST_REASON = 200
"""Characters of an error's text that a failure keeps."""
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class ExactMatch:
    """1 if the answer, its last line, or the text after "answer:" or "answer is" equals the reference, else 0.

    Case, white space, quotes and brackets around the text, marks at its end and English articles at its beginning do
    not count; `brim.envs.query.compare` says exactly which.
    """

    name: ClassVar[str] = "exact"
    needs_reference: ClassVar[bool] = True

    async def __call__(self, attempt: Attempt) -> float:
        return float(matches(attempt.answer, _reference(attempt)))


@dataclass(frozen=True, kw_only=True)
class NumericMatch:
    """1 if the last number of the answer equals the last number of the reference, else 0."""

    name: ClassVar[str] = "numeric"
    needs_reference: ClassVar[bool] = True
    tolerance: float = TOLERANCE
    """Difference up to which numbers are equal, absolute or relative to the larger one."""

    def __post_init__(self) -> None:
        if not 0 <= self.tolerance < math.inf:
            raise OptionError(f"tolerance must be a finite number that is not negative, got {self.tolerance!r}")

    def check(self, questions: Sequence[Question]) -> None:
        """Refuse references without a number.

        Raises:
            DataError: There are some.
        """
        wrong = [one for one in questions if one.reference is not None and last_number(one.reference) is None]
        if wrong:
            raise DataError(
                f"{len(wrong)} of {len(questions)} references contain no number ({named([one.id for one in wrong])}; "
                f'the first is "{wrong[0].reference!s:.40}"), and the reward numeric needs one; correct them, or use '
                "the reward exact"
            )

    async def __call__(self, attempt: Attempt) -> float:
        reference = last_number(_reference(attempt))
        if reference is None:
            raise RewardFailed(f"the reference {attempt.question.reference!r:.80} contains no number")
        answer = last_number(attempt.answer)
        return float(answer is not None and close(answer, reference, self.tolerance))


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The share of rewritten queries whose answers agree with the answer to the query itself.

    Answers agree if their last numbers are equal, or, where one has no number, their texts, as in `ExactMatch`. It
    rewards consistency: a model that is always wrong in the same way agrees with itself.
    """

    name: ClassVar[str] = "agreement"
    needs_reference: ClassVar[bool] = False
    samples: int = 3
    """Number of rewritten queries; each costs two calls."""
    mutation: str | Mutation = "rephrase"
    """How they are rewritten: a name from `brim.llm.mutations`, a template file, or a `Mutation`."""

    def __post_init__(self) -> None:
        check_counts(samples=self.samples)
        if self._loaded().needs_other:
            raise OptionError(f"the mutation {self._loaded().name!r} needs a second query; agreement has one query")

    async def __call__(self, attempt: Attempt) -> float:
        mutation = self._loaded()

        async def answer(sample: int) -> str:
            query = await attempt.calls.rewrite(attempt.query, mutation, sample=sample)
            return await attempt.calls.ask(query, purpose="agreement", sample=sample)

        answers = await _all(*(answer(sample) for sample in range(self.samples)))
        return sum(agree(attempt.answer, one) for one in answers) / self.samples

    def _loaded(self) -> Mutation:
        return self.mutation if isinstance(self.mutation, Mutation) else load_mutation(self.mutation)


@dataclass(frozen=True, kw_only=True)
class Similarity:
    """Cosine of the embeddings of answer and reference; 0 if it is negative, or if the answer is empty."""

    name: ClassVar[str] = "similarity"
    needs_reference: ClassVar[bool] = True

    async def __call__(self, attempt: Attempt) -> float:
        reference = _reference(attempt)
        if not attempt.answer.strip():
            return 0.0
        one, other = await _all(attempt.calls.embed(attempt.answer), attempt.calls.embed(reference))
        return float(np.clip(np.dot(one, other), 0.0, 1.0))  # not min and max, which would hide a NaN


_BUILT_IN: dict[str, Callable[..., Reward]] = {
    kind.name: kind for kind in (ExactMatch, NumericMatch, Agreement, Similarity, Judge)
}
REWARDS = tuple(_BUILT_IN)
"""Names of the rewards that come with brim."""


def open_reward(reward: str | Reward, **options: Any) -> Reward:
    """Return a reward: one of `REWARDS` by its name, with its options, or a function as it is.

    Raises:
        OptionError: There is no such reward or option, or it is not a function.

    Example:
        >>> open_reward("numeric", tolerance=0.01)
        NumericMatch(tolerance=0.01)
    """
    if isinstance(reward, str):
        if reward not in _BUILT_IN:
            hint = did_you_mean(reward, REWARDS)
            raise OptionError(f"there is no reward {reward!r}; there are {', '.join(REWARDS)}, and functions.{hint}")
        kind = _BUILT_IN[reward]
        known = [field.name for field in fields(cast(Any, kind))]
        for option in options:
            if option not in known:
                has = ", ".join(known) or "none"
                hint = did_you_mean(option, known)
                raise OptionError(f"the reward {reward} has no option {option!r} (options: {has}).{hint}")
        return kind(**options)
    if isinstance(reward, type):
        raise OptionError(f"a reward is a function or an object, got the class {reward.__name__}; make one of it")
    if not callable(reward):
        raise OptionError(f"a reward is a name or a function of an Attempt, got {reward!r:.80}")
    if options:
        raise OptionError(f"{', '.join(options)}: options have no effect on a reward that is a function already")
    return reward


def needs_reference(reward: Reward) -> bool:
    """Return whether a reward says that it needs a reference."""
    return bool(getattr(reward, "needs_reference", False))


def reward_identity(reward: Reward) -> list[Any]:
    """Return what tells a reward from others as JSON-like values: its name, and its options if it has some."""
    name = reward_name(reward)
    options = fields(reward) if is_dataclass(reward) else ()
    return [name, *([one.name, _plain(getattr(reward, one.name))] for one in options)]


def _plain(value: Any) -> Any:
    if isinstance(value, Mutation):
        return value.template
    return value if value is None or isinstance(value, str | int | float) else type(value).__name__


def reward_name(reward: Reward) -> str:
    """Return the name of a reward: its attribute `name`, or the name of the function or of its class."""
    name = getattr(reward, "name", None) or getattr(reward, "__name__", None)
    return name if isinstance(name, str) else type(reward).__name__


def check_reward(reward: Reward, questions: Sequence[Question]) -> None:
    """Let a reward look at all questions before anything is asked: its method `check`, if it has one.

    Raises:
        DataError: It cannot rate answers to them.
    """
    check = getattr(reward, "check", None)
    if callable(check):
        check(questions)


async def rate(reward: Reward, attempt: Attempt) -> float:
    """Call a reward and return its number. A plain function runs in a thread, an async one in this event loop.

    Raises:
        RewardFailed: It raised an error, or returned no finite number.
        Failure: A call to a model failed.
    """
    try:
        value: Any = reward(attempt) if _is_async(reward) else await asyncio.to_thread(_returned, reward, attempt)
        if inspect.isawaitable(value):
            value = await value
    except Failure:
        raise
    except Exception as error:
        raise _failed(reward, error) from error
    if isinstance(value, _Raised):
        raise _failed(reward, value.error) from value.error
    return _finite(value, reward)


def _is_async(reward: Reward) -> bool:
    """Whether calling it starts a coroutine, so that no thread is needed."""
    return inspect.iscoroutinefunction(reward) or inspect.iscoroutinefunction(getattr(reward, "__call__", None))  # noqa: B004


@dataclass(frozen=True)
class _Raised:
    """An error of a function in a thread. It is a value, because a future cannot pass on every error: StopIteration
    would leave the event loop waiting forever."""

    error: Exception


def _returned(reward: Reward, attempt: Attempt) -> Any:
    try:
        return reward(attempt)
    except Failure:
        raise
    except Exception as error:
        return _Raised(error)


def _failed(reward: Reward, error: Exception) -> RewardFailed:
    text = (str(error).strip().splitlines() or [""])[0]
    reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return RewardFailed(f"the reward {reward_name(reward)} raised {reason[:LONGEST_REASON]}")


def _finite(value: Any, reward: Reward) -> float:
    number = math.nan
    if isinstance(value, Real | np.bool_):
        try:
            number = float(value)
        except OverflowError:  # an integer that may be too long to be written
            value = number = math.inf
    if not math.isfinite(number):
        raise RewardFailed(f"the reward {reward_name(reward)} returned no finite number but {value!r:.80}")
    return number


def _reference(attempt: Attempt) -> str:
    if attempt.question.reference is None:
        raise RewardFailed(f'the question "{attempt.question.id}" has no reference')
    return attempt.question.reference


async def _all(*waited: Awaitable[T]) -> list[T]:
    """Wait for all, and return their results. If some fail, the first of them in this order is raised: which one does
    not depend on their latencies."""
    results = await asyncio.gather(*waited, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return cast(list[T], results)
