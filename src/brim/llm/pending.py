"""A call whose reply is waited for later."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from brim.core.errors import BrimError
from brim.llm.call import Call, Reply
from brim.llm.engine.engine import Engine
from brim.llm.engine.job import Job
from brim.llm.failures import Failure


class Pending(Awaitable[Reply]):
    """A call that was submitted: wait for it with `result()`, or with `await`."""

    def __init__(self, post: Callable[..., None], engine: Engine, call: Call, deadline: float | None) -> None:
        """Submit a call. `post` calls a function in the engine's thread."""
        self._post = post
        self._engine = engine
        self._future: Future[Reply] = Future()
        self._job: Job | None = None
        post(self._begin, call, deadline)

    def result(self, timeout: float | None = None) -> Reply:
        """Return the reply.

        Raises:
            Failure: There is none.
            TimeoutError: It did not come within `timeout` seconds. The call goes on.
        """
        return self._future.result(timeout)

    def done(self) -> bool:
        """Return whether the call has ended."""
        return self._future.done()

    def cancel(self) -> None:
        """End the call with `Cancelled`, if it has not ended."""
        with suppress(BrimError):
            self._post(self._cancel)

    def __await__(self) -> Generator[Any, None, Reply]:
        return asyncio.wrap_future(self._future).__await__()

    def _begin(self, call: Call, deadline: float | None) -> None:
        self._job = self._engine.submit(call, self._end, deadline=deadline)

    def _cancel(self) -> None:
        if self._job is not None:
            self._engine.cancel(self._job)

    def _end(self, result: Reply | Failure) -> None:
        if not self._future.set_running_or_notify_cancel():
            return
        if isinstance(result, Failure):
            self._future.set_exception(result)
        else:
            self._future.set_result(result)
