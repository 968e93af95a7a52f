"""A clock that can be paused, and deadlines that follow it."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager


class Clock:
    """The time that tasks of one event loop have for their work. While it is paused, none of their deadlines comes
    nearer.

    It is paused for what is not the fault of the task that has the deadline: a server that is unreachable for
    everybody, or a consumer that does not take results. Pauses may overlap; time goes on when the last of them has
    ended.

    Example:
        limit = asyncio.timeout(None)
        async with limit:
            with clock.running(limit, seconds=30):
                ...
    """

    def __init__(self) -> None:
        self._left: dict[asyncio.Timeout, float] = {}
        """The timeouts that are running, and the seconds each had left when the clock was paused."""
        self._pauses = 0

    @property
    def paused(self) -> bool:
        return self._pauses > 0

    @contextmanager
    def running(self, limit: asyncio.Timeout, seconds: float) -> Generator[None, None, None]:
        """Within the block, let `limit` expire after so many seconds of this clock. `limit` must have been entered."""
        self._left[limit] = seconds
        if not self._pauses:
            limit.reschedule(asyncio.get_running_loop().time() + seconds)
        try:
            yield
        finally:
            del self._left[limit]

    def pause(self) -> None:
        """Stop the clock. Every `pause` must be followed by one `resume`."""
        self._pauses += 1
        if self._pauses > 1:
            return
        now = asyncio.get_running_loop().time()
        for limit in self._left:
            if not limit.expired():
                self._left[limit] = (limit.when() or now) - now
                limit.reschedule(None)

    def resume(self) -> None:
        """End one pause; the last one to end lets the time go on."""
        self._pauses -= 1
        if self._pauses > 0:
            return
        now = asyncio.get_running_loop().time()
        for limit, left in self._left.items():
            if not limit.expired():
                limit.reschedule(now + left)
