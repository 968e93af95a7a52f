"""`open_rewards`: reward functions from names, modules, files and functions. Whatever is wrong with one is said here,
before anything is generated."""

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import ModuleType
from typing import Any

from brim.core.errors import OptionError, did_you_mean
from brim.core.options import check_counts
from brim.generate.rewards.builtin import NAMES, open_builtin
from brim.generate.rewards.function import RewardFunction, check_timeout, describe
from brim.generate.rewards.judge import Judge, JudgeOptions
from brim.generate.rewards.scoring import Rewards
from brim.generate.rewards.specs import FORMS, Spec, load_function, parse_spec

JUDGE = "judge"
BUILT_IN = (*NAMES, JUDGE)
"""Names of the rewards that come with brim."""


def open_rewards(
    specs: Sequence[str | Callable[..., Any]],
    *,
    timeout: float | None = 10.0,
    judge: JudgeOptions | None = None,
    concurrency: int = 64,
) -> Rewards:
    """Open reward functions. The reward of a sample is the sum of all of them.

    Args:
        specs: Names of `BUILT_IN`, `package.module:function`, `path/to/file.py:function`, each with an optional weight
            before it as in "0.2*format", or functions.
        timeout: Seconds for each call of a function, unless its mark says otherwise; a batched function has them once.
            None is no limit. How a call is ended: see `brim.generate.rewards.limits`.
        judge: Options of the reward "judge".
        concurrency: Upper limit of the calls of async functions at once.

    Raises:
        OptionError: A reward is unknown, cannot be imported, is not a function of (prompt, response, example), or has
            the name of another one; or an option is out of range.
        MissingExtraError: A reward needs a package that is not installed.
        Failure: The judge has no named model, and its servers cannot be asked for one.

    Example:
        >>> open_rewards(["answer", "0.2*format", "-0.1*length:200"]).weights
        (1.0, 0.2, -0.1)
    """
    check_timeout(timeout)
    check_counts(concurrency=concurrency)
    if isinstance(specs, str):
        raise OptionError(f"rewards must be a list, got the text {specs!r}")
    if not specs:
        raise OptionError("at least one reward is needed, such as answer")
    with ExitStack() as opened:
        files: dict[str, ModuleType] = {}
        functions = [_open(spec, timeout, judge, opened, files) for spec in specs]
        _check_names(functions)
        if judge is not None and not any(isinstance(function.call, Judge) for function in functions):
            raise OptionError(
                f"options of a judge have no effect without the reward judge, got {', '.join(map(str, specs))}"
            )
        return Rewards(functions, concurrency=concurrency, closing=opened.pop_all())


def _open(
    spec: str | Callable[..., Any],
    timeout: float | None,
    judge: JudgeOptions | None,
    opened: ExitStack,
    files: dict[str, ModuleType],
) -> RewardFunction:
    if not isinstance(spec, str):
        return describe(spec, what=getattr(spec, "__name__", repr(spec)[:60]), weight=1.0, timeout=timeout)
    parsed = parse_spec(spec)
    if parsed.place == JUDGE:
        return _open_judge(parsed, judge, opened)
    if parsed.place in NAMES:
        call, tells_right = open_builtin(parsed.place, parsed.function)
        return describe(
            call, what=spec, weight=parsed.weight, timeout=timeout, name=parsed.place, tells_right=tells_right
        )
    if parsed.function is None:
        raise OptionError(
            f"unknown reward {parsed.text!r}; it must be one of {', '.join(BUILT_IN)}, or {FORMS}."
            f"{did_you_mean(parsed.text, BUILT_IN)}"
        )
    found = load_function(parsed, files)
    return describe(found, what=parsed.text, weight=parsed.weight, timeout=timeout, name=parsed.function)


def _open_judge(spec: Spec, options: JudgeOptions | None, opened: ExitStack) -> RewardFunction:
    if spec.function is not None:
        raise OptionError(f"the reward judge takes no argument, got {spec.text!r}")
    if options is None:
        raise OptionError("the reward judge needs to know whom to ask: judge=JudgeOptions(servers=ADDRESS)")
    judge = Judge(options)
    opened.callback(judge.close)
    # The pool of servers has time limits, which do not count the time that a call waits for its turn.
    return describe(judge, what=JUDGE, weight=spec.weight, timeout=math.inf, name=JUDGE, never_blocks=True)


def _check_names(functions: Sequence[RewardFunction]) -> None:
    seen: set[str] = set()
    for function in functions:
        if function.name in seen:
            raise OptionError(
                f"two rewards are called {function.name!r}; give one of them another name: @reward(name=...)"
            )
        seen.add(function.name)
