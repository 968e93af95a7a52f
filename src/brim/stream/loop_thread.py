"""An event loop in a thread of its own, for code that is not async and must not wait for a loop that already runs in its thread."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from threading import Lock, Thread
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines one call at a time; what they started goes on between the calls."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()
        self._lock = Lock()
        self._ended = False

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Its result. Interrupted while it waits, it is cancelled.

        Raises:
            CancelledError: The thread was stopped before it was done, or before it began.
        """
        with self._lock:
            if self._ended:
                coroutine.close()
                raise CancelledError
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End the thread. What still ran is cancelled, and has its last words."""
        with self._lock:
            ended, self._ended = self._ended, True
        if not ended:
            asyncio.run_coroutine_threadsafe(_last_words(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


async def _last_words() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
    await asyncio.get_running_loop().shutdown_default_executor()
