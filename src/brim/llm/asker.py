"""Calls from coroutines that run in the engine's own event loop, where no thread has to be crossed.

Environments use it: each is a coroutine there that awaits one call after another.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from brim.llm.call import Call, Reply
from brim.llm.engine.coalesce import Coalescer
from brim.llm.engine.engine import Engine
from brim.llm.engine.job import Job
from brim.llm.failures import Failure


class Asker:
    """Asks the servers of an engine. Belongs to the event loop of the engine."""

    def __init__(self, engine: Engine, coalescer: Coalescer, turns: asyncio.Semaphore | None = None) -> None:
        """
        Args:
            turns: Limits the calls that are open at once, whatever the servers could take: with a value of 1, one is
                asked after another, in the order in which they were asked for. Several askers can share one.
        """
        self._engine = engine
        self._coalescer = coalescer
        self.turns = turns

    async def ask(self, call: Call, *, rank: int = 0) -> Reply:
        """Return the reply to a call. Of the calls that wait, those with a lower rank are sent first.

        Raises:
            Failure: There is none.
        """
        async with self._turn():
            return await self._engine.ask(call, rank=rank)

    async def embed(self, text: str, model: str) -> Reply:
        """Return a reply with the vector of a text. Texts that are asked for at about the same time share a request.

        Raises:
            Failure: There is none.
        """
        async with self._turn():
            future: asyncio.Future[Reply | Failure] = asyncio.get_running_loop().create_future()

            def done(result: Reply | Failure) -> None:
                if not future.done():
                    future.set_result(result)

            job: Job = self._coalescer.submit(text, model, done)
            try:
                result = await future
            except asyncio.CancelledError:
                self._engine.cancel(job)
                raise
            if isinstance(result, Failure):
                raise result
            return result

    @asynccontextmanager
    async def _turn(self) -> AsyncGenerator[None, None]:
        if self.turns is None:
            yield
        else:
            async with self.turns:
                yield
