"""Call a function that is not async, and give it up when its time is over.

In the main thread the function is really ended: a timer of the process (SIGALRM) raises an error inside it, which stops
loops in Python and calls that wait for a file, a lock or the network. The error is not an `Exception`, so that `except
Exception` in the function does not catch it, and it is raised again and again until the function ends. What cannot be
ended is a long computation inside a library that never returns to Python.

In any other thread Python cannot do that. The function runs in a thread of its own, which is abandoned when the time is
over: it keeps running, and keeps its memory, until it ends by itself.

Pitfall: a process has one such timer. A function that sets it for itself (`signal.alarm`) takes this limit away. A
timer that was set before the call is restored after it; if it was due meanwhile, it fires then.
"""

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

AGAIN = 0.1
"""Seconds until the error is raised again in a function that caught it."""


class TimeLimitPassed(Exception):  # noqa: N818
    """The call did not end in time."""


class _TimeIsOver(BaseException):
    """Raised inside the function."""


def call_within(seconds: float | None, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what the function returns. None is no limit.

    Raises:
        TimeLimitPassed: It did not end in time. This is so, too, if the function caught the error that was to end it
            and returned something.
    """
    if seconds is None:
        return function(*arguments)
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGALRM) is not None:
        return _interrupted_after(seconds, function, arguments)
    return _abandoned_after(seconds, function, arguments)


def _interrupted_after(seconds: float, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    over = False
    running = True

    def end(number: int, frame: Any) -> None:
        nonlocal over
        if running:
            over = True
            raise _TimeIsOver

    began = time.monotonic()
    # The timer first: a signal of an earlier one must not reach `end`.
    previous_timer = signal.setitimer(signal.ITIMER_REAL, 0)
    previous_handler = signal.signal(signal.SIGALRM, end)
    result = None
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
            result = function(*arguments)
        finally:
            running = False
    except _TimeIsOver:
        # The signal may have come just before the assignment above.
        running = False
    except Exception:
        # An error after the limit is one of the function's ways to end.
        if not over:
            raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous_handler)
        _restore(previous_timer, time.monotonic() - began)
    if over:
        raise TimeLimitPassed
    return result


def _restore(timer: tuple[float, float], elapsed: float) -> None:
    remaining, interval = timer
    if remaining > 0:
        signal.setitimer(signal.ITIMER_REAL, max(remaining - elapsed, 1e-6), interval)


def _abandoned_after(seconds: float, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    results: list[Any] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(function(*arguments))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, name="brim-reward", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeLimitPassed
    return results[0]
