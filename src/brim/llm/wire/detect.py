"""Find out which protocol a server speaks.

    /v1 at the end of the path                      openai; nothing is asked
    GET /api/version has a "version"                ollama
    GET /v1/models lists models, or wants a key     openai
    GET / says "Ollama is running"                  ollama
    GET /health has a "status"                      openai (llama.cpp)

Ollama speaks both protocols and is asked with its own, which reports how long a request waited. A server that is busy
or still loading a model (HTTP 429, 503) or that fails (5xx) is reported as that, not as an unknown server.
"""

from dataclasses import replace
from typing import Any, Literal, final

import orjson

from brim.llm.call import Answer, Call
from brim.llm.config import Server
from brim.llm.endpoint import Endpoint
from brim.llm.failures import Failure, Rejected
from brim.llm.wire.address import parse_address
from brim.llm.wire.fields import mapping, rows
from brim.llm.wire.ollama import unversioned
from brim.llm.wire.openai import versioned
from brim.llm.wire.shared import Shared
from brim.llm.wire.statuses import failure_of, quoted
from brim.llm.wire.transport import MAX_BODY, Connections, HttpEndpoint, Response


def open_endpoint(server: Server, *, max_body: int = MAX_BODY) -> Endpoint:
    """Return the endpoint for a server. Nothing is sent before its first use.

    Raises:
        OptionError: The URL or the key cannot be used.
        MissingExtraError: aiohttp is not installed.
    """
    if server.protocol == "auto":
        return DetectingEndpoint(server, max_body=max_body)
    return HttpEndpoint(server, max_body=max_body)


@final
class DetectingEndpoint:
    """A model server whose protocol is found out when it is first asked."""

    def __init__(self, server: Server, *, max_body: int = MAX_BODY) -> None:
        self._server = server
        self._connections = Connections(parse_address(server.url, key_env=server.key_env), max_body=max_body)
        self._found = Shared(self._detect)
        self._endpoint: HttpEndpoint | None = None

    @property
    def name(self) -> str:
        """Its address for people: without keys and passwords."""
        return self._connections.address.name

    @property
    def protocol(self) -> Literal["auto", "ollama", "openai"]:
        """The protocol it speaks; "auto" before that is known."""
        return "auto" if self._endpoint is None else self._endpoint.protocol

    async def ask(self, call: Call) -> Answer:
        """Send one request and return its answer.

        Raises:
            Failure: There is no answer.
        """
        return await (self._endpoint or await self._found.get()).ask(call)

    async def models(self) -> list[str]:
        """Return the names of the models that the server has.

        Raises:
            Failure: It cannot be asked.
        """
        return await (self._endpoint or await self._found.get()).models()

    async def loaded(self) -> list[str]:
        """Return the names of the models that are in memory; empty if the protocol does not tell.

        Raises:
            Failure: It cannot be asked.
        """
        return await (self._endpoint or await self._found.get()).loaded()

    async def close(self) -> None:
        """Close all connections."""
        await (self._endpoint or self._connections).close()

    async def _detect(self) -> HttpEndpoint:
        protocol = await detect_protocol(self._connections)
        self._endpoint = HttpEndpoint(replace(self._server, protocol=protocol), connections=self._connections)
        return self._endpoint


async def detect_protocol(connections: Connections) -> Literal["ollama", "openai"]:
    """Ask a server which protocol it speaks.

    Raises:
        Failure: It cannot be reached, or is not a model server that we know.
    """
    base = connections.address.path
    if base.endswith("/v1"):
        return "openai"
    root = unversioned(base)
    version = await connections.request("GET", f"{root}/api/version")
    if version.status == 200 and "version" in _object(version):
        return "ollama"
    models = await connections.request("GET", f"{versioned(base)}/models")
    if models.status in (401, 403) or (models.status == 200 and rows(_object(models).get("data")) is not None):
        return "openai"
    front = await connections.request("GET", f"{root}/")
    if front.status == 200 and b"Ollama is running" in front.body[:1000]:
        return "ollama"
    health = await connections.request("GET", f"{root}/health")
    if health.status == 200 and "status" in _object(health):
        return "openai"
    raise _unknown(connections, version, models, front)


def _object(response: Response) -> dict[str, Any]:
    try:
        return mapping(orjson.loads(response.body))
    except ValueError:
        return {}


def _unknown(connections: Connections, *asked: Response) -> Failure:
    """Return the failure of a server that is busy, that fails, that is elsewhere, or that is no model server."""
    address = connections.address
    for status, headers, body in asked:
        if (status >= 500 and status != 501) or status == 429 or 300 <= status < 400:
            return failure_of(address, status, headers, body)
    status, headers, body = asked[-1]
    kind = quoted(address, headers.get("Content-Type", ""))
    said = quoted(address, body[:1000].decode("utf-8", "replace"))[:80]
    return Rejected(
        f"this is not a model server we know: it answered GET / with HTTP {status} {kind} {said!r}; check the URL, or "
        'give the protocol ("ollama" or "openai")',
        server=address.name,
        status=status,
    )
