"""Requests to one server, over aiohttp.

A body is read in pieces and counted after decompression, so neither an endless body nor one that was compressed to
explode takes more than `max_body` bytes. There is no time limit for a reply: whoever waits cancels, and then the
connection is closed at once, which stops the server. No call is repeated here, no cookie is kept, no proxy is taken
from the environment, and no other server is ever asked: a redirect is followed once, and only on the same server.

aiohttp's exceptions hold the request with its headers. So no failure is raised while one is handled: a failure carries
no other exception along.
"""

import asyncio
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, final

from brim.core.errors import OptionError, did_you_mean
from brim.core.extras import need
from brim.llm.call import Answer, Call
from brim.llm.config import Server
from brim.llm.failures import BadReply, Cancelled, Failure, ModelMissing, Overloaded, ServerFailed, ServerLost
from brim.llm.wire.address import Address, parse_address
from brim.llm.wire.lost import failure_of_error
from brim.llm.wire.ollama import Ollama
from brim.llm.wire.openai import OpenAI
from brim.llm.wire.shared import Shared
from brim.llm.wire.statuses import quoted

if TYPE_CHECKING:
    import aiohttp
    import yarl

MAX_BODY = 64 * 2**20
"""Upper limit of a reply, in bytes, after decompression."""
CONNECT_SECONDS = 30.0
NAMES_SECONDS = 10.0
"""Upper limit of the time for the names of models that a message about a missing one offers."""
_MOST_NAMES = 8
_LONG = 2**20  # bytes of a request


class Response(NamedTuple):
    """A whole reply."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Dialect(Protocol):
    """A protocol of model servers, without input and output."""

    protocol: Literal["ollama", "openai"]
    models_path: str
    loaded_path: str | None
    software: str | None
    """The software of the server, as its list of models names it; "" if that says nothing, None before it was read."""

    def asks_models_before(self, call: Call) -> bool: ...
    def request(self, call: Call) -> tuple[str, bytes]: ...
    def answer(self, call: Call, status: int, headers: Mapping[str, str], body: bytes) -> Answer: ...
    def models(self, status: int, headers: Mapping[str, str], body: bytes) -> list[str]: ...
    def nearby(self, models: list[str]) -> list[str]: ...
    def advice(self, model: str) -> str: ...


@final
class Connections:
    """Connections to one server, kept open between requests."""

    def __init__(self, address: Address, *, max_body: int = MAX_BODY) -> None:
        self.address = address
        self._max_body = max_body
        self._aiohttp: Any = need("aiohttp", extra="llm", user="brim.llm.wire")
        self._yarl: Any = need("yarl", extra="llm", user="brim.llm.wire")
        # The last two are raised by aiohttp when a session is closed while a request begins.
        self._errors = (self._aiohttp.ClientError, OSError, ValueError, RuntimeError, AssertionError)
        self._session: aiohttp.ClientSession | None = None
        self._urls: dict[str, yarl.URL] = {}
        self._closed = False

    async def request(self, method: Literal["GET", "POST"], path: str, body: bytes | None = None) -> Response:
        """Send a request and return the whole reply, whatever its status.

        Raises:
            Failure: There is no whole reply.
        """
        url = self._urls.get(path)
        if url is None:
            url = self._urls[path] = self._yarl.URL(self.address.url(path), encoded=True)
        response = await self._send(method, url, body)
        if response.status in (307, 308):
            target = self.address.redirected(path, response.headers.get("Location", ""))
            if target is not None:
                return await self._send(method, self._yarl.URL(target, encoded=True), body)
        return response

    async def close(self) -> None:
        """Close all connections; requests under way fail."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _send(self, method: str, url: "yarl.URL", body: bytes | None) -> Response:
        session = self._session or self._open()
        try:
            # aiohttp warns about long bytes, and sends a file in pieces between which other requests go on.
            data = io.BytesIO(body) if body is not None and len(body) > _LONG else body
            response = await session.request(method, url, data=data, allow_redirects=False)
            try:
                reply = await self._read(response)
            except BaseException:
                response.close()
                raise
            response.release()
            return Response(response.status, response.headers, reply)
        except self._errors as error:
            failure = failure_of_error(self._aiohttp, self.address, error, CONNECT_SECONDS)
        raise self._ended() if self._closed else failure

    async def _read(self, response: "aiohttp.ClientResponse") -> bytes:
        content = response.content
        body = await content.readany()
        if not content.at_eof():
            # A list of pieces would take many times its length for a body that arrives byte by byte.
            whole = bytearray(body)
            while len(whole) <= self._max_body and not content.at_eof():
                whole += await content.readany()
            body = bytes(whole)
        if len(body) > self._max_body:
            raise BadReply(
                f"the reply is longer than {self._max_body} bytes", server=self.address.name, status=response.status
            )
        return body

    def _open(self) -> "aiohttp.ClientSession":
        if self._closed:
            raise self._ended()
        library = self._aiohttp
        headers = {
            "Accept": "application/json",
            "Accept-Encoding": "gzip, deflate",
            "Content-Type": "application/json",
            "User-Agent": "brim",
            **self.address.headers(),
        }
        self._session = session = library.ClientSession(
            connector=library.TCPConnector(limit=0, keepalive_timeout=300, ttl_dns_cache=300),
            cookie_jar=library.DummyCookieJar(),
            headers=headers,
            timeout=library.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            trust_env=False,
        )
        return session

    def _ended(self) -> Failure:
        return Cancelled("the connections to the server were closed", server=self.address.name)


@final
class HttpEndpoint:
    """A model server whose protocol is known. `brim.llm.wire.detect.open_endpoint` finds the protocol out."""

    def __init__(self, server: Server, *, connections: Connections | None = None, max_body: int = MAX_BODY) -> None:
        """
        Raises:
            OptionError: The URL or the key cannot be used, or the protocol is "auto".
        """
        if server.protocol == "auto":
            raise OptionError('the protocol must be "ollama" or "openai" here; open_endpoint finds it out')
        self._connections = connections or Connections(
            parse_address(server.url, key_env=server.key_env), max_body=max_body
        )
        address = self._connections.address
        self._dialect: Dialect = Ollama(address) if server.protocol == "ollama" else OpenAI(address)
        self._name = address.name
        self._names = Shared(self._offered)
        self._learned = Shared(self._learn)

    @property
    def name(self) -> str:
        """Its address for people: without keys and passwords."""
        return self._name

    @property
    def protocol(self) -> Literal["ollama", "openai"]:
        """The protocol it speaks."""
        return self._dialect.protocol

    async def ask(self, call: Call) -> Answer:
        """Send one request and return its answer.

        Raises:
            Failure: There is no answer.
        """
        if self._dialect.asks_models_before(call):
            await self._learned.get()
        path, data = self._dialect.request(call)
        status, headers, body = await self._connections.request("POST", path, data)
        try:
            return self._dialect.answer(call, status, headers, body)
        except ModelMissing as error:
            missing = error
        raise self._described(missing, call.model, await self._names.get())

    async def models(self) -> list[str]:
        """Return the names of the models that the server has.

        Raises:
            Failure: It cannot be asked.
        """
        return self._dialect.models(*await self._connections.request("GET", self._dialect.models_path))

    async def loaded(self) -> list[str]:
        """Return the names of the models that are in memory; empty if the protocol does not tell.

        Raises:
            Failure: It cannot be asked.
        """
        path = self._dialect.loaded_path
        return self._dialect.models(*await self._connections.request("GET", path)) if path else []

    async def close(self) -> None:
        """Close all connections."""
        await self._connections.close()

    async def _learn(self) -> None:
        """Read the list of models, which says what the server is. A server without a usable list can still be asked.

        Raises:
            Failure: The server cannot be asked at the moment.
        """
        try:
            await self.models()
        except Failure as failure:
            if isinstance(failure, ServerLost | ServerFailed | Overloaded):
                raise
            self._dialect.software = ""

    async def _offered(self) -> list[str]:
        """Return the names for a message. The message about the missing model counts more than a failure here."""
        try:
            async with asyncio.timeout(NAMES_SECONDS):
                return await self.models()
        except (Failure, TimeoutError):
            return []

    def _described(self, missing: ModelMissing, model: str, known: list[str]) -> ModelMissing:
        """Return the failure with the nearest name, the first names, and how to get the model."""
        address = self._connections.address
        model = quoted(address, model)
        known = [quoted(address, name) for name in known]
        reason = missing.message
        if known:
            listed = ", ".join(known[:_MOST_NAMES])
            more = f" and {len(known) - _MOST_NAMES} more" if known[_MOST_NAMES:] else ""
            hint = did_you_mean(model, self._dialect.nearby(known))
            reason = f'the server does not have the model "{model}".{hint} It has {listed}{more}'
        message = f"{reason}. {self._dialect.advice(model)}"
        return ModelMissing(message, server=missing.server, status=missing.status)
