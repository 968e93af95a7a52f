"""An event loop in a thread of its own, for code that is not async and must not wait for a loop that already runs in
its thread."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from threading import RLock, Thread, current_thread
from typing import Any, Self, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines, one call at a time. Tasks that they started keep running between the calls.

    Example:
        >>> with LoopThread("example") as thread:
        ...     thread.call(asyncio.sleep(0, "done"))
        'done'
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = RLock()  # reentrant: garbage that is collected while it is held may stop the thread, too
        self._ended = False
        self._waited: set[Future[Any]] = set()
        """Calls whose results a thread waits for."""
        self._thread = Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its result. If the wait is interrupted, the coroutine is cancelled.

        Raises:
            CancelledError: The thread was stopped before the coroutine was done, or before it began.
        """
        with self._lock:
            if self._ended:
                coroutine.close()
                raise CancelledError
            future = self._submit(coroutine)
        return self._result(future)

    def post(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function in the thread, as soon as it is there, without waiting for it.

        Raises:
            CancelledError: The thread was stopped.
        """
        with self._lock:
            if self._ended:
                raise CancelledError
            self._loop.call_soon_threadsafe(function, *arguments)

    def stop(self, last: Coroutine[Any, Any, None] | None = None) -> None:
        """End the thread, after running `last`. Tasks that are still running are cancelled, and may clean up.

        Waits for that, except when called in the thread itself, where an iterator that nobody uses any more can be
        collected: there the end is only begun.
        """
        with self._lock:
            ended, self._ended = self._ended, True
            future = None if ended else self._submit(_cleanup(last))
        if future is None and last is not None:
            last.close()
        if current_thread() is self._thread:
            return
        try:
            if future is not None:
                self._result(future)
        finally:
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> "Future[tuple[T | None, BaseException | None]]":
        future = asyncio.run_coroutine_threadsafe(_caught(coroutine), self._loop)
        self._waited.add(future)
        future.add_done_callback(self._waited.discard)
        return future

    def _result(self, future: "Future[tuple[T | None, BaseException | None]]") -> T:
        try:
            result, error = future.result()
        except BaseException:
            future.cancel()
            raise
        if error is not None:
            raise error
        return result  # pyright: ignore[reportReturnType]

    def _work(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            with self._lock:
                self._ended = True
            for future in list(self._waited):  # whatever ended the loop, no thread may wait for it
                future.cancel()
            if tasks := asyncio.all_tasks(self._loop):
                for task in tasks:
                    task.cancel()
                self._loop.run_until_complete(asyncio.wait(tasks, timeout=1))
            self._loop.close()


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that runs in this thread, if one does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def _caught(coroutine: Coroutine[Any, Any, T]) -> tuple[T | None, BaseException | None]:
    """Return what the coroutine raises as a value: SystemExit and its like would end the loop before anybody heard of
    them."""
    try:
        return await coroutine, None
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return None, error


async def _cleanup(last: Coroutine[Any, Any, None] | None) -> None:
    loop = asyncio.get_running_loop()
    try:
        if last is not None:
            await last
    finally:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await loop.shutdown_asyncgens()
        loop.call_later(0, loop.stop)  # after the callbacks that wake the thread which waits for this coroutine
