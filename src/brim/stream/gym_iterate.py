"""A gym stream in a loop, with `for` and with `async for`: one pass at a time, which can be left, and closed from anywhere."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import CancelledError
from threading import RLock
from typing import Any, Generic, Self, TypeVar

from brim.core.errors import BrimError
from brim.core.wait.loop import LoopThread
from brim.stream.gym_episode import GymEpisode
from brim.stream.gym_run import Run
from brim.stream.protocols import StreamState

T = TypeVar("T")
Convert = Callable[[Run, int, GymEpisode], Iterator[T]]
"""What is given out for an episode and its position. It stops when its run was closed."""


class Iterated(ABC):
    """The part of a stream that knows who iterates it. Deriving classes make the runs."""

    state: StreamState

    def __init__(self) -> None:
        self._lock = RLock()
        self._run: Run | None = None

    @abstractmethod
    def _new_run(self) -> Run:
        """From where the stream stands."""

    def _refuse_running(self) -> None:
        if self._run is not None and not self._run.over:
            raise BrimError("this stream is being iterated already; leave that loop, or close the stream first")

    def close(self) -> None:
        """Stop the lanes and close their connections. From any thread; whoever iterates comes to the end."""
        with self._lock:
            run, self._run = self._run, None
            self.state = StreamState.CLOSED
        if run is not None:
            run.stop()

    async def aclose(self) -> None:
        run = self._run
        self.close()
        if run is not None and run.here:
            await run.aclose()

    def _begin(self, *, in_thread: bool) -> Run:
        with self._lock:
            self._refuse_running()
            run = self._run = self._new_run()
            if in_thread:
                run.thread = LoopThread("gym lanes")
            self.state = StreamState.STREAMING
        return run

    def _left(self, run: Run, state: StreamState = StreamState.IDLE) -> None:
        """The run is over for us; if nobody else has ended it, this is how the stream stands."""
        with self._lock:
            if self._run is run:
                self._run, self.state = None, state

    def _iterate(self, convert: Convert[T]) -> Generator[T, None, None]:
        run, state = self._begin(in_thread=True), StreamState.IDLE
        assert run.thread is not None
        try:
            while (delivered := run.thread.call(run.next())) is not None:
                yield from convert(run, *delivered)
            state = StreamState.EXHAUSTED
        except CancelledError:
            if not run.closed:  # else another thread has closed the stream, and that is no error here
                raise BrimError("the thread of the lanes has ended before its time") from None
        except (Exception, SystemExit):
            state = StreamState.ERROR
            raise
        finally:
            self._left(run, state)
            run.stop()


class AsyncItems(AsyncIterator[T], Generic[T]):
    """One pass, for `async for`. It begins with the first item. Left alone, it ends when nobody holds it any more."""

    def __init__(self, stream: Iterated, convert: Convert[T]) -> None:
        self._stream, self._convert = stream, convert
        self._run: Run | None = None
        self._over = False
        self._items: Iterator[T] = iter(())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if self._over:
            raise StopAsyncIteration
        stream: Any = self._stream
        run: Run = self._run or stream._begin(in_thread=False)
        self._run = run
        try:
            while True:
                for item in self._items:
                    return item
                delivered = await run.next()
                if delivered is None:
                    break
                self._items = self._convert(run, *delivered)
        except BaseException as error:
            await self._end(StreamState.ERROR if isinstance(error, Exception | SystemExit) else StreamState.IDLE)
            raise
        await self._end(StreamState.EXHAUSTED)
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Leave it: the lanes are stopped and their connections closed."""
        await self._end(StreamState.IDLE)

    async def _end(self, state: StreamState) -> None:
        self._over = True
        stream: Any = self._stream
        run, self._run = self._run, None
        if run is not None:
            stream._left(run, state)
            await run.aclose()

    def __del__(self) -> None:
        stream: Any = self._stream
        if self._run is not None:
            stream._left(self._run)
            self._run.stop()
