"""A reward function, and how it is to be called.

Any function `(prompt, response, example)` is a reward. The decorator `reward` says more about it:

    from brim.generate.rewards import reward

    @reward(timeout=2.0)
    def short(prompt, response, example):
        return 1.0 if len(response) < 100 else 0.0

    @reward(batched=True, name="style")
    async def rated(prompts, responses, examples):
        return [await rate(response) for response in responses]

A marked function is still the same function, and can be called as before.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeVar

from brim.core.errors import OptionError

F = TypeVar("F", bound=Callable[..., Any])

MARK = "__brim_reward__"
PARAMETERS = "(prompt, response, example)"
FOREVER = 1e7
"""Seconds from which on a time limit is none; timers of the system end soon after."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """The properties that the decorator `reward` gives a function."""

    batched: bool
    timeout: float | None
    name: str | None


@dataclass(frozen=True, kw_only=True)
class RewardFunction:
    """A function with everything that its calls need."""

    call: Callable[..., Any]
    name: str
    weight: float
    batched: bool
    is_async: bool
    timeout: float | None
    """Seconds for each call; None is no limit."""
    tells_right: bool
    """Whether a value of 1 says that a response is right."""
    never_blocks: bool
    """Whether an async function is known to do nothing but wait, within time limits of its own."""


def reward(*, batched: bool = False, timeout: float | None = None, name: str | None = None) -> Callable[[F], F]:
    """Mark a function as a reward.

    Args:
        batched: The function is called once with lists (prompts, responses, examples) of all samples, in the order in
            which they were submitted, and returns a list with a reward for each.
        timeout: Seconds for each call. None is the limit that `open_rewards` is given; `math.inf` is no limit.
        name: Its name in `Rewarded.parts`. None is the name of the function.

    Raises:
        OptionError: An option is out of range.
    """
    if type(batched) is not bool:
        raise OptionError(f"batched must be True or False, got {batched!r}")
    check_timeout(timeout)
    if name is not None:
        check_name(name)
    mark = Mark(batched=batched, timeout=timeout, name=name)

    def marked(function: F) -> F:
        try:
            setattr(function, MARK, mark)
        except (AttributeError, TypeError):
            raise OptionError(f"{function!r} cannot be marked as a reward; mark the function behind it") from None
        return function

    return marked


def describe(
    call: Any,
    *,
    what: str,
    weight: float,
    timeout: float | None,
    name: str | None = None,
    tells_right: bool = True,
    never_blocks: bool = False,
) -> RewardFunction:
    """Return a function with its mark, after checking that it can be called as a reward.

    Args:
        what: Names the function in messages.
        timeout: The limit if the mark has none.
        name: The name if the mark has none.

    Raises:
        OptionError: It is not a function, or it has other parameters.
    """
    if isinstance(call, type):
        raise OptionError(f"the reward {what} is a class; give a function, or an object of the class")
    if not callable(call):
        raise OptionError(f"the reward {what} is not a function but a {type(call).__name__}, {call!r:.60}")
    _check_parameters(call, what)
    inner: Any = getattr(call, "__call__", None)  # noqa: B004  the method of an object, which may be marked or async
    mark: Mark | None = getattr(call, MARK, None) or getattr(inner, MARK, None)
    own_name = mark.name if mark is not None else None
    own_timeout = mark.timeout if mark is not None else None
    its_name: str = own_name or name or getattr(call, "__name__", None) or type(call).__name__
    check_name(its_name)
    limit = timeout if own_timeout is None else own_timeout
    return RewardFunction(
        call=call,
        name=its_name,
        weight=weight,
        batched=mark is not None and mark.batched,
        is_async=inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(inner),
        timeout=None if limit is None or limit >= FOREVER else limit,
        tells_right=tells_right,
        never_blocks=never_blocks,
    )


def check_timeout(timeout: float | None) -> None:
    """Refuse a time limit that is not a positive number.

    Raises:
        OptionError: It is not.
    """
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, Real) or not timeout > 0):
        raise OptionError(f"the timeout of a reward must be a positive number of seconds, got {timeout!r}")


def check_name(name: str) -> None:
    """Refuse a name that could not be told from that of a part.

    Raises:
        OptionError: It is empty, or contains a slash.
    """
    if not name or "/" in name:
        raise OptionError(f"the name of a reward must be a text without '/', got {name!r}")


def _check_parameters(call: Callable[..., Any], what: str) -> None:
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):  # a function written in C that does not tell its parameters
        return
    try:
        signature.bind("", "", None)
    except TypeError:
        raise OptionError(
            f"the reward {what} is called with {PARAMETERS}, but its parameters are {signature}"
        ) from None
