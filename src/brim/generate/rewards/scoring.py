"""`Rewards`, a set of opened reward functions, and `Scoring`, in which samples go in one by one and results come out.

Async functions begin when a sample is submitted, and run while the caller does something else. Other functions run in
`submit`, in the caller's thread. Batched functions are called once, in `results`, with everything that was submitted.
"""

from asyncio import CancelledError
from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from inspect import isawaitable, iscoroutine
from typing import Any, Self, cast

from brim.core.errors import BrimError, OptionError
from brim.generate.prompts.example import Example
from brim.generate.rewards.combine import UNFINISHED, combine, deal, is_fatal
from brim.generate.rewards.function import RewardFunction
from brim.generate.rewards.limits import TimeLimitPassed, call_within
from brim.generate.rewards.loop import Calls, RewardLoop
from brim.generate.rewards.outcome import Rewarded, RewardFailure, raised, timed_out


class Rewards:
    """Reward functions with their weights. `brim.generate.rewards.open_rewards` makes one.

    Example:
        with open_rewards(["answer", "0.1*format"]) as rewards:
            with rewards.scoring() as scoring:
                for number, response in enumerate(responses):
                    scoring.submit(number, prompt, response, example)
                results = scoring.results()
    """

    def __init__(self, functions: Sequence[RewardFunction], *, concurrency: int, closing: ExitStack) -> None:
        """`closing` is closed with the rewards."""
        self._functions = tuple(functions)
        self._concurrency = concurrency
        self._closing = closing
        self._closed = False
        self._loop: RewardLoop | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the functions, in the order given."""
        return tuple(function.name for function in self._functions)

    @property
    def weights(self) -> tuple[float, ...]:
        """The weights of the functions, in the order given."""
        return tuple(function.weight for function in self._functions)

    def scoring(self) -> "Scoring":
        """Return a context in which samples are submitted. Leaving it cancels whatever is still under way.

        Raises:
            BrimError: The rewards are closed.
        """
        if self._closed:
            raise BrimError("these rewards are closed; open them again")
        own_async = [function for function in self._functions if function.is_async]
        if own_async and (self._loop is None or self._loop.blocked):
            self._loop = RewardLoop(self._concurrency, _longest(own_async))
        return Scoring(self._functions, self._loop)

    def close(self) -> None:
        """Cancel whatever is under way, and close the connections to judges."""
        if self._closed:
            return
        self._closed = True
        with self._closing:
            if self._loop is not None:
                self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class Scoring:
    """The rewards of some samples."""

    def __init__(self, functions: Sequence[RewardFunction], loop: RewardLoop | None) -> None:
        self._functions = functions
        self._loop = loop
        self._calls = Calls()
        self._samples: dict[Hashable, _Sample] = {}
        self._results: dict[Any, Rewarded | RewardFailure] | None = None
        self._left = False

    def submit(self, key: Hashable, prompt: str, response: str, example: Example) -> None:
        """Submit a sample. Functions that are neither async nor batched have run when this returns.

        Raises:
            OptionError: The key was submitted before, or a function raised an OptionError.
            MissingExtraError: A function needs a package that is not installed.
            BrimError: The results were taken already, or the rewards are closed.
        """
        if self._left or self._results is not None:
            raise BrimError("this scoring has ended; begin another one for further samples")
        if key in self._samples:
            raise OptionError(f"the key {key!r} was submitted twice; every sample needs a key of its own")
        sample = _Sample(prompt, response, example, {})
        single = [(at, function) for at, function in enumerate(self._functions) if not function.batched]
        # Those that run elsewhere begin first.
        for at, function in single:
            if function.is_async:
                self._begin(function, (prompt, response, example), _setter(sample.returned, at))
        for at, function in single:
            if not function.is_async:
                sample.returned[at] = _call(function, (prompt, response, example))
        self._samples[key] = sample

    def results(self) -> dict[Any, Rewarded | RewardFailure]:
        """Wait for everything that was submitted, and return a result for every key, in the order of submission.

        Nothing can be submitted afterwards. A second call returns the same results.

        Raises:
            OptionError: A function raised an OptionError; of several, the one of the first sample.
            MissingExtraError: As for OptionError.
            BrimError: The context was left before.
        """
        if self._results is not None:
            return dict(self._results)
        if self._left:
            raise BrimError("this scoring has ended without results; take them inside the `with` block")
        batched = self._call_batched() if self._samples else {}
        if self._loop is not None:
            self._loop.wait(self._calls)
        self._results = self._combined(batched)
        return dict(self._results)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._left = True
        if self._loop is not None and self._results is None:
            self._loop.cancel(self._calls)

    def _begin(self, function: RewardFunction, arguments: tuple[Any, ...], done: Callable[[Any], None]) -> None:
        assert self._loop is not None, "a loop is opened wherever a function is async"
        self._loop.begin(self._calls, function, arguments, done)

    def _call_batched(self) -> dict[int, Any]:
        """Call the batched functions. What they returned is found in the dictionary, at the latest when the loop has
        ended all calls."""
        samples = list(self._samples.values())
        returned: dict[int, Any] = {}

        def lists() -> tuple[Any, ...]:
            # New ones for each function, which may change them.
            return [one.prompt for one in samples], [one.response for one in samples], [one.example for one in samples]

        batched = [(at, function) for at, function in enumerate(self._functions) if function.batched]
        for at, function in batched:
            if function.is_async:
                self._begin(function, lists(), _setter(returned, at))
        for at, function in batched:
            if not function.is_async:
                returned[at] = _call(function, lists())
        return returned

    def _combined(self, batched: dict[int, Any]) -> dict[Any, Rewarded | RewardFailure]:
        count = len(self._samples)
        shares: dict[int, list[Any]] = {}
        for at, function in enumerate(self._functions):
            if function.batched:
                shares[at] = deal(function, batched.get(at, UNFINISHED), count)
        results: dict[Any, Rewarded | RewardFailure] = {}
        for number, (key, sample) in enumerate(self._samples.items()):
            dealt = {at: share[number] for at, share in shares.items()}
            found = {**sample.returned, **dealt}
            results[key] = combine(self._functions, [found.get(at, UNFINISHED) for at in range(len(self._functions))])
        return results


@dataclass
class _Sample:
    prompt: str
    response: str
    example: Example
    returned: dict[int, Any]
    """Results of the functions, by their place among them."""


def _longest(functions: Sequence[RewardFunction]) -> float | None:
    """Return the longest time limit, None if one has none."""
    limits = [function.timeout for function in functions if not function.never_blocks]
    if not limits or None in limits:
        return None
    return max(cast(list[float], limits))


def _call(function: RewardFunction, arguments: tuple[Any, ...]) -> Any:
    """Call a function that is not async. Returns its result, or the failure that it amounts to."""
    try:
        value = call_within(function.timeout, function.call, *arguments)
    except TimeLimitPassed:
        return timed_out(function.name, function.timeout)
    except (Exception, CancelledError) as error:
        if is_fatal(error) and not isinstance(error, CancelledError):
            raise
        return raised(function.name, error)
    if not isawaitable(value):
        return value
    if iscoroutine(value):
        value.close()
    return RewardFailure("WrongType", f"the reward {function.name} returned an awaitable; declare it with `async def`")


def _setter(returned: dict[int, Any], at: int) -> Callable[[Any], None]:
    def done(value: Any) -> None:
        returned[at] = value

    return done
