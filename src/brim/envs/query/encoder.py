"""The vectors of queries: from a model in this process, or from the servers of a pool.

A vector never depends on which other texts are embedded at the same time, so that an observation is the same however
the environments' calls interleave. Models of transformers in this process are therefore given one text at a time: in
batches, the last bits of a vector depend on its neighbours.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from brim.llm.asker import Asker
from brim.llm.call import Reply
from brim.llm.embed.base import Embedder
from brim.llm.embed.endpoint import InProcessEndpoint
from brim.llm.embed.hash import HashEmbedder
from brim.llm.embed.open import is_in_process, open_embedder
from brim.llm.engine.coalesce import Coalescer
from brim.llm.engine.engine import Engine
from brim.llm.engine.server import ServerState
from brim.llm.failures import BadReply, Failure
from brim.llm.pool import LLMPool


class Encoder(Protocol):
    """Turns a text into a vector, in the event loop of a pool."""

    @property
    def name(self) -> str: ...

    @property
    def dim(self) -> int: ...

    @property
    def asker(self) -> Asker | None:
        """The asker that it uses; None if vectors are computed at once."""
        ...

    async def encode(self, text: str) -> tuple[NDArray[np.float32], Reply | None]:
        """Return the vector, and the reply it came with if a server or another thread was asked.

        Raises:
            Failure: There is none.
        """
        ...

    def close(self) -> None: ...


def open_encoder(name: str, pool: LLMPool) -> Encoder:
    """Open the model of a name; one of the servers is asked for a vector, to learn its size.

    Raises:
        OptionError: There is no such model in this process.
        Failure: The servers cannot be asked.
    """
    if not is_in_process(name):
        return _OnServers(name, pool)
    embedder = open_embedder(name)
    return _Hashed(embedder) if isinstance(embedder, HashEmbedder) else _InThread(embedder, pool)


class _Hashed:
    """Hashing takes microseconds, so it is done in the event loop."""

    def __init__(self, embedder: HashEmbedder) -> None:
        self._embedder = embedder
        self.asker = None
        self.name = embedder.name
        self.dim = embedder.dim

    async def encode(self, text: str) -> tuple[NDArray[np.float32], Reply | None]:
        return self._embedder.encode([text])[0], None

    def close(self) -> None:
        """Do nothing: there is nothing open."""


class _InThread:
    """A model in this process, in a thread of its own, behind an engine in the pool's loop."""

    def __init__(self, embedder: Embedder, pool: LLMPool) -> None:
        self.name = embedder.name
        self.dim = embedder.dim
        self._pool = pool
        self._engine = pool.run(_open_engine(embedder))
        self.asker = pool.run(_open_asker(self._engine))

    async def encode(self, text: str) -> tuple[NDArray[np.float32], Reply | None]:
        reply = await self.asker.embed(text, self.name)
        return _vector(reply), reply

    def close(self) -> None:
        self._pool.run(self._engine.close())


class _OnServers:
    """A model of the pool's servers."""

    def __init__(self, name: str, pool: LLMPool) -> None:
        self.name = name
        self.asker = pool.asker()
        (first,) = pool.embed(["How many numbers does a vector have?"], model=name)
        if isinstance(first, Failure):
            raise first
        self.dim = len(_vector(first))

    async def encode(self, text: str) -> tuple[NDArray[np.float32], Reply | None]:
        reply = await self.asker.embed(text, self.name)
        return _vector(reply), reply

    def close(self) -> None:
        """Do nothing: the pool belongs to the caller."""


async def _open_engine(embedder: Embedder) -> Engine:
    return Engine([ServerState(InProcessEndpoint(embedder), limit=InProcessEndpoint.limit)])


async def _open_asker(engine: Engine) -> Asker:
    return Asker(engine, Coalescer(engine, most=1, wait=0.0))


def _vector(reply: Reply) -> NDArray[np.float32]:
    if reply.vector is None:
        raise BadReply("the reply has no vector", server=reply.server)
    return reply.vector
