"""Results in the order in which they are ready, for `for` and for `async for`.

Items are taken from their iterator in the thread that uses the results, never in the engine's thread, and only as far
ahead as was allowed: whoever stops using results stops the calls.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

from brim.core.errors import BrimError
from brim.llm.call import Reply
from brim.llm.engine.job import Done, Job
from brim.llm.failures import Failure

Result = Reply | Failure
CHUNK = 256
"""Upper limit of the items that are handed over to the engine at once."""


class Ready:
    """An iterator over (number of the item, reply or failure). It can be used once."""

    def __init__(
        self,
        items: Iterable[Any],
        submit: Callable[[Any, Done], Job | None],
        post: Callable[..., None],
        cancel: Callable[[Iterable[Job]], None],
        *,
        ahead: int,
    ) -> None:
        """
        Args:
            submit: Hands one item to the engine; called in the engine's thread.
            post: Calls a function in the engine's thread.
            cancel: Cancels jobs; called in the engine's thread.
            ahead: Upper limit of the items whose results were not used.
        """
        self._items = iter(items)
        self._submit = submit
        self._post = post
        self._cancel = cancel
        self._ahead = ahead
        self._taken = 0
        self._used = 0
        self._exhausted = False
        self._jobs: dict[int, Job] = {}
        self._inbox: deque[tuple[int, Result]] = deque()
        self._lock = threading.Lock()
        self._wake: Callable[[], None] | None = None
        """Wakes whoever waits for a result."""

    def __iter__(self) -> Iterator[tuple[int, Result]]:
        there = threading.Event()
        try:
            while self._feed():
                while not self._inbox:
                    there.clear()
                    if self._is_empty(there.set):
                        there.wait()
                yield from self._ready_now()
        finally:
            self._leave()

    async def __aiter__(self) -> AsyncIterator[tuple[int, Result]]:
        loop = asyncio.get_running_loop()
        there = asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the caller's loop was closed
                loop.call_soon_threadsafe(there.set)

        try:
            while self._feed():
                while not self._inbox:
                    there.clear()
                    if self._is_empty(wake):
                        await there.wait()
                for pair in self._ready_now():
                    yield pair
        finally:
            self._leave()

    def in_order(self) -> list[Result]:
        """Wait for all results and return them in the order of the items."""
        return _ordered(dict(self))

    async def in_order_async(self) -> list[Result]:
        """Do the same inside an event loop."""
        return _ordered({number: result async for number, result in self})

    def _feed(self) -> bool:
        """Hand over as many items as may be ahead. Returns whether any result is still to come."""
        while not self._exhausted and (room := self._ahead - (self._taken - self._used)) > 0:
            chunk = list(islice(self._items, min(room, CHUNK)))
            self._exhausted = not chunk
            if chunk:
                self._post(self._begin, self._taken, chunk)
                self._taken += len(chunk)
        return self._used < self._taken

    def _begin(self, first: int, chunk: list[Any]) -> None:
        """Submit some items, in the engine's thread."""
        for number, item in enumerate(chunk, first):
            job = self._submit(item, lambda result, number=number: self._put(number, result))
            if job is not None and not job.ended:
                self._jobs[number] = job

    def _put(self, number: int, result: Result) -> None:
        """Take a result, in the engine's thread."""
        self._jobs.pop(number, None)
        with self._lock:
            self._inbox.append((number, result))
            wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    def _is_empty(self, wake: Callable[[], None]) -> bool:
        """Whether no result is there; if so, `wake` is called when one comes."""
        with self._lock:
            if not self._inbox:
                self._wake = wake
                return True
            return False

    def _ready_now(self) -> Iterator[tuple[int, Result]]:
        for _ in range(min(len(self._inbox), CHUNK)):
            self._used += 1
            yield self._inbox.popleft()

    def _leave(self) -> None:
        """Cancel the calls whose results were not used."""
        if self._used < self._taken:
            with suppress(BrimError):  # the pool was closed, and has cancelled everything
                self._post(lambda: self._cancel(list(self._jobs.values())))


def _ordered(results: dict[int, Result]) -> list[Result]:
    return [results[number] for number in range(len(results))]
