"""One timer for everything that an engine waits for."""

import asyncio
from collections.abc import Callable


class Timer:
    """Calls a function at a time that can be brought forward. A call that comes too early does no harm."""

    def __init__(self, loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
        self._loop = loop
        self._function = function
        self._handle: asyncio.TimerHandle | None = None
        self._reached = 0.0

    @property
    def now(self) -> float:
        """The present time. A loop may call a function a little before its time; that time has then come, too, so that
        whoever waits for it is not called again and again."""
        return max(self._loop.time(), self._reached)

    def set(self, when: float) -> None:
        """Call the function at `when` or before; an infinite time is never."""
        if self._handle is not None:
            if self._handle.when() <= when:
                return  # it comes early enough, and sets the next one
            self._handle.cancel()
            self._handle = None
        if when < float("inf"):
            self._handle = self._loop.call_at(when, self._due)

    def cancel(self) -> None:
        """Call the function no more."""
        if self._handle is not None:
            self._handle.cancel()

    def _due(self) -> None:
        if self._handle is not None:
            self._reached = self._handle.when()
            self._handle = None
        self._function()
