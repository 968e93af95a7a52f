"""Run coroutines on a clock that jumps to the next timer: a test tool.

An hour of waiting takes no time, and what happens at which moment is exact. If nothing is ready and no timer is set,
nothing can ever happen again: that is a deadlock, and it is reported together with the tasks that wait. For coroutines
only: threads and sockets do not live in this time.

Example:
    >>> async def wait_an_hour():
    ...     await asyncio.sleep(3600)
    ...     return asyncio.get_running_loop().time()
    >>> run(wait_an_hour())
    3600.0
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, TypeVar

from brim.core.errors import BrimError

T = TypeVar("T")


class DeadlockError(BrimError):
    """Every task waits, and no timer is left that could wake one."""


class LeftRunningError(BrimError):
    """The coroutine has ended, and tasks that it started have not."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose `time` starts at 0 and moves only when nothing is ready to run."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        # A timer is due when the time is within this distance of it. The default, a nanosecond, is less than the
        # distance between two floats after half a year of seconds, so that the loop would wait forever for a timer that
        # it stands on.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self._jumping.now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """Refuse: the clock would jump past whatever the thread is doing.

        Raises:
            BrimError: Always.
        """
        raise BrimError("threads do not live in virtual time; run this on a real event loop, or without a thread")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in virtual time and return its result.

    Raises:
        DeadlockError: Nothing could happen any more before it ended.
        LeftRunningError: It ended, and left tasks running.
    """
    loop = VirtualTimeLoop()
    try:
        asyncio.set_event_loop(loop)
        result = loop.run_until_complete(coroutine)
        if left := asyncio.all_tasks(loop):
            raise LeftRunningError(f"these tasks are still running: {_names(left)}; cancel them and wait for their end")
        return result
    except _NothingLeft:
        waiting = _names(asyncio.all_tasks(loop))
        what = f"nothing is ready and no timer is set at {loop.time()} seconds"
        raise DeadlockError(f"{what}; these tasks wait: {waiting}") from None
    finally:
        try:
            _cancel_all(loop)
        finally:
            asyncio.set_event_loop(None)
            loop.close()


class _NothingLeft(Exception):  # noqa: N818
    """Raised where a real event loop would wait forever."""


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting, it moves the time."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)  # the loop's own pipe, through which callbacks come in from signal handlers
        if events:
            return events
        if timeout is None:
            raise _NothingLeft
        self.now += max(timeout, 0.0)
        return []


def _names(tasks: Iterable["asyncio.Task[Any]"]) -> str:
    return ", ".join(sorted(task.get_name() for task in tasks))


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what is left and let it clean up, so that the loop can be closed without warnings."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    with suppress(_NothingLeft):  # a task that waits on although it was cancelled
        if tasks:
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
