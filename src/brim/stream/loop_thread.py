"""An event loop in a thread of its own, for code that is not async and must not wait for a loop that already runs in its thread."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from threading import RLock, Thread, current_thread
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines one call at a time; what they started goes on between the calls."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = RLock()  # what is collected in between may stop the thread, too
        self._ended = False
        self._waited: set[Future[Any]] = set()
        self._thread = Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Its result. Interrupted while it waits, it is cancelled.

        Raises:
            CancelledError: The thread was stopped before it was done, or before it began.
        """
        with self._lock:
            if self._ended:
                coroutine.close()
                raise CancelledError
            future = self._submit(coroutine)
        return self._result(future)

    def stop(self, last: Coroutine[Any, Any, None] | None = None) -> None:
        """End the thread, after `last`. What still ran is cancelled, and has its last words.

        Waits for that, except in the thread itself, where an iterator that nobody uses any more can be collected: there it is only begun.
        """
        with self._lock:
            ended, self._ended = self._ended, True
            future = None if ended else self._submit(_last_words(last))
        if future is None and last is not None:
            last.close()
        if current_thread() is self._thread:
            return
        try:
            if future is not None:
                self._result(future)
        finally:
            self._thread.join()

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
            for future in list(self._waited):  # whatever ended the loop, nobody waits for it
                future.cancel()
            if tasks := asyncio.all_tasks(self._loop):
                for task in tasks:
                    task.cancel()
                self._loop.run_until_complete(asyncio.wait(tasks, timeout=1))
            self._loop.close()


async def _caught(coroutine: Coroutine[Any, Any, T]) -> tuple[T | None, BaseException | None]:
    """What it raises as a value: SystemExit and its like would end the loop before anybody heard of them."""
    try:
        return await coroutine, None
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return None, error


async def _last_words(last: Coroutine[Any, Any, None] | None) -> None:
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
        loop.call_later(0, loop.stop)  # after the callbacks that tell who waits for these words
