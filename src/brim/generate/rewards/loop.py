"""Async reward functions, in an event loop of their own thread, so that they run while responses are generated.

A call whose time is over is cancelled and not waited for. A function that blocks the loop, by a call that waits without
`await`, cannot be cancelled and holds up all others: it is found out while results are waited for, when the loop has
answered nothing for longer than the longest time limit. Then the loop is abandoned, and all its calls that have not
ended have failed with "Timeout".
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any

from brim.core.errors import BrimError
from brim.core.wait.loop import LoopThread
from brim.generate.rewards.combine import Raised
from brim.generate.rewards.function import RewardFunction
from brim.generate.rewards.outcome import raised, timed_out

GRACE = 1.0
"""Seconds that cancelled calls have to clean up, and that a loop may be late."""
LOOK = 0.5
"""Seconds between two looks at whether the loop still answers."""


class Calls:
    """Calls that have not ended. Changed in the thread of the loop only."""

    def __init__(self) -> None:
        self.waited: set[asyncio.Task[None]] = set()
        """One task for each call, which ends with it or when its time is over."""
        self.running: set[asyncio.Task[Any]] = set()
        """The functions themselves. One that ignores its cancellation stays here."""


class RewardLoop:
    """Runs async functions, at most `concurrency` at once."""

    def __init__(self, concurrency: int, longest: float | None) -> None:
        """`longest` is the longest time limit of the functions; None if one has no limit."""
        self.blocked = False
        """Whether the loop was abandoned."""
        self._closed = False
        self._longest = longest
        self._turns = asyncio.Semaphore(concurrency)
        self._every = Calls()
        self._own: set[asyncio.Task[None]] = set()
        self._thread = LoopThread("brim-rewards")

    def begin(
        self, calls: Calls, function: RewardFunction, arguments: tuple[Any, ...], done: Callable[[Any], None]
    ) -> None:
        """Start a call. `done` gets what the function returned, a `RewardFailure` or a `Raised`.

        Raises:
            BrimError: The loop is closed.
        """

        def start() -> None:
            task = asyncio.ensure_future(self._call(calls, function, arguments, done))
            _keep(task, calls.waited, self._every.waited)

        self._post(start)

    def wait(self, calls: Calls) -> None:
        """Wait for all calls, or until the loop is found to be `blocked`.

        Raises:
            BrimError: The loop is closed.
        """
        ended = self._start(_all_ended(calls))
        while not ended.wait(LOOK):
            if not self._answers():
                self.blocked = True
                self._start(self._end_later())
                return

    def cancel(self, calls: Calls) -> None:
        """Cancel the calls that have not ended, and give them a moment to clean up."""
        if not self.blocked and not self._closed:
            self._start(_cancel(calls)).wait(2 * GRACE)

    def close(self) -> None:
        """End the thread. If a call cannot be cancelled, the thread is left behind until that call has ended."""
        if self.blocked or self._closed:
            return
        self._closed = True
        if self._start(_cancel(self._every)).wait(2 * GRACE) and not self._every.running:
            self._thread.stop()
        else:
            self._start(self._end_later())

    def _answers(self) -> bool:
        """Whether the loop does what it is given, within the longest time limit."""
        answered = threading.Event()
        self._post(answered.set)
        # Two waits: after the machine slept, the first is over at once.
        return answered.wait(self._longest) or answered.wait(GRACE)

    async def _end_later(self) -> None:
        """Begin nothing new, and end the thread when the functions that run have ended."""
        await _cancel(self._every)
        while self._every.running:
            await asyncio.wait(set(self._every.running))
        self._thread.stop()

    def _post(self, function: Callable[[], object]) -> None:
        try:
            self._thread.post(function)
        except CancelledError:
            raise BrimError("these rewards are closed; open them again") from None

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> threading.Event:
        """Run a coroutine in the loop. Returns an event that is set when it has ended."""
        ended = threading.Event()

        async def run() -> None:
            try:
                await coroutine
            finally:
                ended.set()

        try:
            self._post(lambda: _keep(asyncio.ensure_future(run()), self._own))
        except BrimError:
            coroutine.close()
            raise
        return ended

    async def _call(
        self, calls: Calls, function: RewardFunction, arguments: tuple[Any, ...], done: Callable[[Any], None]
    ) -> None:
        async with self._turns:
            # A task of its own, so that one that ignores its cancellation is not waited for.
            task = asyncio.ensure_future(_caught(function, arguments))
            _keep(task, calls.running, self._every.running)
            try:
                await asyncio.wait({task}, timeout=function.timeout)
            finally:
                task.cancel()
        if not task.done():
            done(timed_out(function.name, function.timeout))
        elif task.cancelled():
            done(raised(function.name, asyncio.CancelledError()))
        else:
            done(task.result())


def _keep(task: asyncio.Task[Any], *groups: set[asyncio.Task[Any]]) -> None:
    """Keep a task in sets until it has ended. The event loop itself does not keep it alive."""
    for group in groups:
        group.add(task)
        task.add_done_callback(group.discard)


async def _caught(function: RewardFunction, arguments: tuple[Any, ...]) -> Any:
    """Return what the function returns, or its error as a value."""
    try:
        return await function.call(*arguments)
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return Raised(error)


async def _all_ended(calls: Calls) -> None:
    while calls.waited:
        await asyncio.wait(set(calls.waited))


async def _cancel(calls: Calls) -> None:
    """Cancel calls, and wait a moment for their end."""
    # Each cancels the function that it waits for, once: a second time would interrupt its cleaning up.
    for task in calls.waited:
        task.cancel()
    tasks = calls.waited | calls.running
    if tasks:
        await asyncio.wait(tasks, timeout=GRACE)
