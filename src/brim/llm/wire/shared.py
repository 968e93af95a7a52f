"""Run a coroutine once for all who wait for it at the same time.

A result is kept. A failure is raised in every caller that waits, and the next call runs the coroutine again. If all
callers are cancelled, so is the coroutine: it has no time limit of its own.
"""

import asyncio
import copy
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from brim.llm.failures import Failure

T = TypeVar("T")


@dataclass
class _Run(Generic[T]):
    task: "asyncio.Task[T]"
    waiting: int = 0


class Shared(Generic[T]):
    """The result of `make`, which runs at most once at a time."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._make = make
        self._run: _Run[T] | None = None

    async def get(self) -> T:
        """Return the result, and wait for it if need be.

        Raises:
            Failure: `make` failed; everybody gets a copy of their own.
        """
        run = self._run
        if run is None or run.task.cancelled():
            run = self._run = _Run(asyncio.ensure_future(self._make()))
        run.waiting += 1
        failure: Failure
        try:
            return await asyncio.shield(run.task)
        except Failure as error:
            failure = error
        finally:
            run.waiting -= 1
            self._tidy(run)
        raise copy.copy(failure)

    def _tidy(self, run: _Run[T]) -> None:
        if not run.task.done():
            if run.waiting:
                return
            run.task.cancel()
        elif not run.task.cancelled() and run.task.exception() is None:
            return
        if self._run is run:
            self._run = None
