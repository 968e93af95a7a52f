"""A simulated model server behind real HTTP, on loopback, in a thread of its own: `ModelServer`.

It speaks Ollama's protocol and OpenAI's at the same address. It is never more than one event loop in one thread: a
benchmark that must not share the interpreter with it runs `python -m brim.llm.testing` instead.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

from brim.core.errors import BrimError, OptionError
from brim.core.extras import need
from brim.core.options import one_of
from brim.core.wait.loop import LoopThread
from brim.llm.testing.behaviour import Behaviour, Fault
from brim.llm.testing.handler import WIRES, Handler, WireName
from brim.llm.testing.service import Counts, Request, Service

LARGEST_BODY = 256 * 2**20
"""Upper limit of the body of a request, in bytes."""


class ModelServer:
    """A server on 127.0.0.1, from `start` (or `with`) to `stop`.

    Example:
        with ModelServer(slots=4, latency=0.01, answers={"2 + 2?": "4"}) as server:
            print(server.url)
    """

    def __init__(
        self,
        behaviour: Behaviour | None = None,
        *,
        port: int = 0,
        protocols: Sequence[WireName] = WIRES,
        require_key: str | None = None,
        **options: Any,
    ) -> None:
        """Give a `Behaviour`, or its options.

        Args:
            behaviour: How it behaves.
            port: Port to listen on; 0 is any free one.
            protocols: The protocols that it speaks.
            require_key: API key without which requests get HTTP status 401.
            options: Options of a `Behaviour`.

        Raises:
            OptionError: A value cannot work.
        """
        if behaviour is not None and options:
            raise OptionError(f"give a Behaviour or its options, not both; got both with {', '.join(options)}")
        for protocol in protocols:
            one_of("protocols", protocol, WIRES)
        if not protocols:
            raise OptionError(f"protocols must name at least one of {', '.join(WIRES)}, got none")
        self._service = Service(behaviour or Behaviour(**options))
        self._protocols = tuple(protocols)
        self._key = require_key
        self.port = port
        """The port that it listens on. It stays the same when the server is stopped and started again."""
        self._thread: LoopThread | None = None
        self._http: Any = None
        self._listening: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """Its address, without a path."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def behaviour(self) -> Behaviour:
        return self._service.behaviour

    @property
    def slots(self) -> int | None:
        """Number of requests that it works on at once; can be set while it runs."""
        return self._service.behaviour.slots

    @slots.setter
    def slots(self, slots: int | None) -> None:
        self.change(slots=slots)

    @property
    def counts(self) -> Counts:
        """A copy of what has been counted so far."""
        counts = self._service.counts
        return replace(counts, faults=counts.faults.copy())

    @property
    def requests(self) -> list[Request]:
        """The newest requests that asked a model, in the order of their arrival."""
        return list(self._service.requests)

    def change(self, **options: Any) -> None:
        """Replace options of the behaviour, also while the server runs.

        Raises:
            OptionError: A value cannot work.
        """
        behaviour = replace(self._service.behaviour, **options)
        if self._thread is None:
            self._service.change(behaviour)
        else:
            self._thread.call(self._change(behaviour))

    def next(self, *faults: Fault | None) -> None:
        """Give these faults to the next requests, one each, in place of random ones. None is a request that succeeds.

        Raises:
            OptionError: There is no such fault.
        """
        self._service.next(*faults)

    def start(self) -> Self:
        """Start the server, and return when it listens.

        Raises:
            MissingExtraError: aiohttp is not installed.
            BrimError: It cannot listen on that port.
        """
        if self._thread is not None:
            return self
        handler = Handler(self._service, self._protocols, self._key)
        thread = LoopThread("brim-model-server")
        try:
            thread.call(self._listen(handler))
        except OSError as error:
            thread.stop()
            raise BrimError(f"cannot listen on 127.0.0.1:{self.port}: {error}; choose another port, or 0") from None
        except BaseException:
            thread.stop()
            raise
        self._thread = thread
        return self

    def stop(self) -> None:
        """Stop listening, close all connections and cancel the requests on them."""
        thread = self._thread
        self._thread = None
        if thread is not None:
            thread.stop(self._close())

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *raised: object) -> None:
        self.stop()

    async def _listen(self, handler: Handler) -> None:
        web = need("aiohttp.web", extra="llm", user="brim.llm.testing")
        loop = asyncio.get_running_loop()

        def large(*parts: Any) -> Any:
            return web.BaseRequest(*parts, loop, client_max_size=LARGEST_BODY)

        http = web.Server(
            handler, request_factory=large, handler_cancellation=True, access_log=None, keepalive_timeout=300.0
        )
        self._listening = await loop.create_server(http, "127.0.0.1", self.port, backlog=4096)
        self._http = http
        self.port = self._listening.sockets[0].getsockname()[1]

    async def _change(self, behaviour: Behaviour) -> None:
        self._service.change(behaviour)

    async def _close(self) -> None:
        assert self._listening is not None, "it listens"
        # asyncio never closes a connection that was accepted, but not set up, when the server is closed. So the server
        # stops accepting first, and waits until what it accepted is set up, which takes two turns of the loop.
        loop = asyncio.get_running_loop()
        for listener in self._listening.sockets:
            loop.remove_reader(listener.fileno())
        for _ in range(3):
            await asyncio.sleep(0)
        self._listening.close()
        # Closing gently would wait for clients that read nothing.
        for connection in self._http.connections:
            if connection.transport is not None:
                connection.transport.abort()
        await self._http.shutdown(0.1)
