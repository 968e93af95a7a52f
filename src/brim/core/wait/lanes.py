"""Many workers on one sequence of numbered pieces of work: `Lanes`.

Numbers go to workers in order, whichever is free; results come back in order, or as they are ready. Nobody runs too far
ahead: neither a worker of the slowest one, nor all of them of the consumer. Lanes are tasks of one event loop; only
`stop` and `take` are for threads.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from brim.core.errors import BrimError
from brim.core.wait.clock import Clock
from brim.core.wait.loop import LoopThread, running_loop

ResultT = TypeVar("ResultT")
ResultT_co = TypeVar("ResultT_co", covariant=True)


class Worker(Protocol[ResultT_co]):
    """Does one piece of work after the other, and keeps what it likes from one to the next, such as a connection."""

    async def work(self, number: int) -> ResultT_co:
        """Do piece `number`. Whatever this raises ends all lanes; a failure that should not is a result."""
        ...

    async def close(self) -> None:
        """Release what was kept. Called once, after the last piece, however the lanes ended."""
        ...


class Dispatcher:
    """Gives numbers to lanes, in order, and to all lanes that wait at the very moment when there is something to give.

    A number is at most `ahead` - 1 beyond the first one that is not finished. That depends on the course of the work
    alone, and so does the order of the calls of `began`: whoever decides for all lanes at once decides for the same
    ones in every run.
    """

    def __init__(
        self,
        *,
        first: int = 0,
        stop: int | None = None,
        skip: Collection[int] = (),
        ahead: int,
        began: Callable[[int], None],
    ) -> None:
        self.unfinished = first
        """The first number that is not finished."""
        self._next = first
        self._stop = stop
        self._skip = frozenset(skip)
        self._ahead = ahead
        self._began = began
        self._finished: set[int] = set()
        self._idle: deque[asyncio.Future[int | None]] = deque()
        self._advance()

    def ask(self) -> "asyncio.Future[int | None]":
        """The next number, as soon as there is one; None when there are no more."""
        waits: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._idle.append(waits)
        self._assign()
        return waits

    def finish(self, number: int) -> None:
        """Note that a number is finished. To be followed by `ask` without a wait in between."""
        self._finished.add(number)
        self._advance()

    def _advance(self) -> None:
        """Move `unfinished` past everything that is finished or skipped."""
        while self.unfinished in self._finished or self.unfinished in self._skip:
            self._finished.discard(self.unfinished)
            self.unfinished += 1

    def _assign(self) -> None:
        while self._idle:
            if self._idle[0].done():  # this lane was cancelled
                self._idle.popleft()
                continue
            while self._next in self._skip:
                self._next += 1
            if self._stop is not None and self._next >= self._stop:
                self._idle.popleft().set_result(None)
                continue
            if self._next - self.unfinished >= self._ahead:
                return
            self._began(self._next)
            self._idle.popleft().set_result(self._next)
            self._next += 1


class Lanes(Generic[ResultT]):
    """One lane for each worker. They start with the first `next`, in that loop; `stop` ends them and leaves nothing
    behind.

    What a worker raises comes out of `next`, after all results that were ready before it. While `ahead` results wait
    for the consumer, lanes pause before their next piece of work, and so does the clock.

    Example:
        lanes = Lanes([Caller(server) for server in servers], stop=1000)
        while (done := await lanes.next()) is not None:
            number, result = done
    """

    def __init__(
        self,
        workers: Sequence[Worker[ResultT]],
        *,
        first: int = 0,
        stop: int | None = None,
        skip: Collection[int] = (),
        ahead: int | None = None,
        ordered: bool = True,
        began: Callable[[int], None] | None = None,
        ended: Callable[[int], None] | None = None,
        clock: Clock | None = None,
        name: str = "brim",
    ) -> None:
        """
        Args:
            first: The first number.
            stop: The number after the last one, or None for no end.
            skip: Numbers that are left out.
            ahead: How many numbers may be begun, or done and not taken; twice as many as there are workers unless
                given.
            ordered: Whether results come in the order of their numbers, or as they are ready.
            began: Called when a number is given to a lane, in the order of the numbers.
            ended: Called once for every number that has begun: when its result is ready, or when the lanes are stopped.
                No wait lies between this call and that of `began` for the lane's next number. If it raises, the lanes
                end.
            clock: Paused while all lanes wait for the consumer.
            name: Prefix of the names of the tasks and of the thread.
        """
        self.closed = False
        """True after `stop`."""
        self._workers = workers
        self._ahead = 2 * len(workers) if ahead is None else ahead
        self._ordered = ordered
        self._skip = frozenset(skip)
        self._tell_began = began or _ignore
        self._tell_ended = ended or _ignore
        self._clock = clock or Clock()
        self._name = name
        self._begun: set[int] = set()
        self._ready: dict[int, ResultT] = {}
        self._next = first
        self._skip_ahead()
        self._error: BaseException | None = None
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._dispatcher = Dispatcher(first=first, stop=stop, skip=skip, ahead=self._ahead, began=self._begin)
        self._tasks: list[asyncio.Task[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: LoopThread | None = None

    @property
    def over(self) -> bool:
        """True if they have ended, by `stop` or together with their loop."""
        return self.closed or (self._loop is not None and self._loop.is_closed())

    async def next(self) -> tuple[int, ResultT] | None:
        """The next number and its result; None after the last one, and after `stop`.

        Raises:
            BaseException: What a worker raised.
        """
        if self._loop is None and not self.closed:
            self._start()
        while not self.closed:
            self._changed.clear()
            number = self._next if self._ordered else next(iter(self._ready), self._next)
            if number in self._ready:
                return number, self._take(number)
            if self._error is not None:
                raise self._error
            if all(task.done() for task in self._tasks):
                return None
            await self._changed.wait()
        return None

    def take(self) -> tuple[int, ResultT] | None:
        """Return what `next` would, for code that is not async. The lanes work in a thread of their own, also between
        the calls.

        Raises:
            BrimError: The thread has ended before the lanes were stopped.
        """
        if self._thread is None and not self.closed:
            self._thread = LoopThread(f"{self._name} lanes")
        try:
            return None if self._thread is None else self._thread.call(self.next())
        except CancelledError:
            if self.closed:  # by another thread, while we waited
                return None
            raise BrimError(f"the thread of the {self._name} lanes has ended unexpectedly; iterate again") from None

    def stop(self) -> None:
        """End all lanes. Can be called from anywhere: from other threads, without a loop, and more than once.

        If they work in a thread of their own, they have ended when this returns; otherwise they end when their loop
        gets to it.
        """
        self.closed = True
        if self._thread is not None:
            self._thread.stop(self.aclose())
        elif self._loop is not None:
            if self._loop is running_loop():
                self._cancel()
            else:
                with suppress(RuntimeError):  # the loop is closed, and everything in it has ended
                    self._loop.call_soon_threadsafe(self._cancel)

    async def aclose(self) -> None:
        """End all lanes and wait until their workers are closed. All that matters is done before the first wait."""
        if self._loop is not None and self._loop is not running_loop():
            self.stop()
            return
        self._cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)  # if this wait is cancelled, they still come to their end

    def _start(self) -> None:
        self._loop = asyncio.get_running_loop()
        firsts = [self._dispatcher.ask() for _ in self._workers]  # all begin before any works
        for lane, (worker, first) in enumerate(zip(self._workers, firsts, strict=True)):
            task = asyncio.create_task(self._run_lane(lane, worker, first), name=f"{self._name} lane {lane}")
            task.add_done_callback(lambda _: self._changed.set())
            self._tasks.append(task)

    def _cancel(self) -> None:
        self.closed = True
        self._changed.set()
        for task in self._tasks:
            task.cancel()
        raised: Exception | None = None
        begun, self._begun = sorted(self._begun), set()
        for number in begun:
            try:
                self._tell_ended(number)
            except Exception as error:  # the others are told all the same
                raised = raised or error
        if raised is not None and self._error is None:
            raise raised

    def _take(self, number: int) -> ResultT:
        result = self._ready.pop(number)
        if self._ordered:
            self._next += 1
            self._skip_ahead()
        self._make_room()
        return result

    def _skip_ahead(self) -> None:
        while self._next in self._skip:
            self._next += 1

    def _begin(self, number: int) -> None:
        self._begun.add(number)
        self._tell_began(number)

    async def _run_lane(self, lane: int, worker: Worker[ResultT], first: "asyncio.Future[int | None]") -> None:
        """Whatever ends a lane ends all, and comes out of `next`: a task that raised SystemExit would end the loop with
        it."""
        try:
            await self._work(worker, first)
        except asyncio.CancelledError:
            if self.closed:
                raise
            who = f"{self._name} lane {lane}"
            self._error = self._error or BrimError(f"{who} was cancelled by its own work, or by the end of its loop")
        except BaseException as error:
            self._error = self._error or error
        finally:
            await worker.close()

    async def _work(self, worker: Worker[ResultT], first: "asyncio.Future[int | None]") -> None:
        number = await first
        while number is not None and not self.closed:
            await self._room.wait()
            result = await worker.work(number)
            if self.closed:
                return
            self._ready[number] = result
            self._begun.discard(number)
            self._tell_ended(number)
            self._dispatcher.finish(number)
            waits = self._dispatcher.ask()
            self._make_room()
            self._changed.set()
            number = await waits

    def _make_room(self) -> None:
        """Let lanes wait while as many results are ready as `ahead` allows. There is something to take then, so they
        wait for nobody else.

        They wait after `began`, so that whoever decides for all of them at once decides for the same ones, however slow
        the consumer is; the clock of those who wait for them is paused.
        """
        ready = self._dispatcher.unfinished - self._next if self._ordered else len(self._ready)
        if ready >= self._ahead and self._room.is_set():
            self._room.clear()
            self._clock.pause()
        elif ready < self._ahead and not self._room.is_set():
            self._room.set()
            self._clock.resume()


def _ignore(number: int) -> None:
    pass
