"""Turn HTTP requests into requests of a `Service`, and their replies and faults into HTTP.

Faults come after the usual latency, so that a fault does not make a request short. A client that closes its connection
cancels the handler, which frees the slot at once.
"""

import asyncio
import hmac
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import orjson

from brim.core.extras import need
from brim.llm.testing.behaviour import Refusal
from brim.llm.testing.ollama_wire import OllamaWire
from brim.llm.testing.openai_wire import OpenAIWire
from brim.llm.testing.service import Request, Service
from brim.llm.testing.wires import Wire

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest, StreamResponse

WireName = Literal["ollama", "openai"]
WIRES: tuple[WireName, ...] = ("ollama", "openai")
BOMB_SIZE = 256 * 2**20
"""Bytes of the fault "bomb", decompressed."""


class Handler:
    """Answers HTTP requests; an instance is what `aiohttp.web.Server` calls."""

    def __init__(self, service: Service, protocols: Sequence[WireName], require_key: str | None) -> None:
        self._web = need("aiohttp.web", extra="llm", user="brim.llm.testing")
        self._service = service
        self._wires: list[Wire] = []
        if "ollama" in protocols:
            self._wires.append(OllamaWire(service))
        if "openai" in protocols:
            self._wires.append(OpenAIWire(service))
        self._only_openai = "ollama" not in protocols
        self._key = None if require_key is None else f"Bearer {require_key}".encode()

    async def __call__(self, http: "BaseRequest") -> "StreamResponse":
        path = http.path
        method = http.method
        wire = self._wire(path)
        if self._key is not None and path not in ("/", "/health"):
            given = http.headers.get("Authorization", "").encode()
            if not hmac.compare_digest(given, self._key):
                return self._response(401, wire.error(401, ""))
        body: dict[str, Any] = {}
        if method == "POST":
            try:
                body = _object(await http.read())
            except Refusal as refusal:
                return self._response(refusal.status, wire.error(refusal.status, refusal.message))
        for each in self._wires:
            if (known := each.information(method, path, body)) is not None:
                return self._response(*known, "text/plain" if path == "/" else "application/json")
        if path in wire.calls and method == "POST":
            return await self._call(http, wire, body)
        return self._unknown(path, wire)

    def _wire(self, path: str) -> Wire:
        """The wire that a path belongs to, or the first one."""
        for wire in self._wires:
            if path in wire.calls:
                return wire
        return self._wires[-1] if path.startswith("/v1/") else self._wires[0]

    def _unknown(self, path: str, wire: Wire) -> "StreamResponse":
        if path in wire.calls:
            return self._response(405, b"405 method not allowed", "text/plain")
        if self._only_openai:
            return self._response(404, wire.error(404, "File Not Found"))
        return self._response(404, b"404 page not found", "text/plain")

    async def _call(self, http: "BaseRequest", wire: Wire, body: dict[str, Any]) -> "StreamResponse":
        """Answer a request that asks a model."""
        path = http.path
        try:
            call = wire.call(path, body)
        except Refusal as refusal:
            return self._response(refusal.status, wire.error(refusal.status, refusal.message))
        request = self._service.request(call)
        request.path = path
        request.headers = http.headers
        request.body = body
        async with request:
            if request.status != 200:
                return self._turned_away(wire, request)
            if wire.streams(path, body) and request.fault in (None, "hang"):
                return await self._stream(http, wire, request)
            await request.work()
            if request.fault in (None, "hang", "short_embeddings", "shuffled_embeddings"):
                return self._response(200, wire.reply(request))
            return await self._fault(http, wire, request)

    def _turned_away(self, wire: Wire, request: Request) -> "StreamResponse":
        status = request.status
        if request.started is None and status == 404:
            return self._response(404, wire.missing(request.path, request.call.model))
        if request.started is not None:
            return self._response(status, wire.error(status, request.message))
        after = self._service.behaviour.retry_after
        headers = {} if after is None else {"Retry-After": f"{after:g}"}
        return self._response(status, wire.error(status, _BUSY), headers=headers)

    async def _stream(self, http: "BaseRequest", wire: Wire, request: Request) -> "StreamResponse":
        await request.begin_answer()
        response = await self._begin(http, wire.stream_type)
        per_token = self._service.behaviour.seconds_per_token
        pieces = wire.pieces(request)
        if per_token > 0:
            for piece in pieces:
                await response.write(piece)
                await asyncio.sleep(per_token)
            pieces = []
        rest = b"".join([*pieces, wire.last(request)])
        request.end()
        await response.write(rest)
        await response.write_eof()
        return response

    async def _fault(self, http: "BaseRequest", wire: Wire, request: Request) -> "StreamResponse":
        """Send a reply that is wrong, but ends as HTTP says."""
        behaviour = self._service.behaviour
        fault = request.fault
        if fault == "error":
            return self._response(behaviour.error_status, wire.error(behaviour.error_status, _FAILED))
        if fault == "redirect":
            return self._response(307, b"", headers={"Location": behaviour.redirect_to})
        if fault == "garbage":
            return self._response(200, _GARBAGE[int(request.luck * len(_GARBAGE))])
        if fault == "empty":
            return self._response(200, b"")
        if fault == "bomb":
            return self._response(200, bomb(BOMB_SIZE), headers={"Content-Encoding": "gzip"})
        streams = wire.streams(request.path, request.body)
        if fault == "ndjson_error" and not streams:
            return self._response(200, wire.error(500, _FAILED))
        if fault == "ndjson_error":
            response = await self._begin(http, wire.stream_type)
            pieces = wire.pieces(request)
            request.end()
            await response.write(b"".join([*pieces[: len(pieces) // 2], wire.error_piece(_FAILED)]))
            await response.write_eof()
            return response
        if fault in ("drip", "endless"):
            return await self._endless(http, request)
        return await self._broken(http, wire, request, streams)

    async def _endless(self, http: "BaseRequest", request: Request) -> "StreamResponse":
        """Send a body until the client leaves."""
        response = await self._begin(http, "application/json")
        try:
            if request.fault == "drip":
                while True:
                    await response.write(b" ")
                    await asyncio.sleep(self._service.behaviour.drip_seconds)
            await response.write(b'{"response": "')
            while True:
                await response.write(_FILLER)
        finally:
            if http.transport is not None:
                http.transport.abort()  # a client that does not read must not keep the connection open

    async def _broken(self, http: "BaseRequest", wire: Wire, request: Request, streams: bool) -> "StreamResponse":
        """Send a part of a reply, or none at all, and close the connection."""
        fault = request.fault
        transport = http.transport
        assert transport is not None, "a client that has left cancels the handler"
        request.end()
        if fault == "drop":
            if request.luck < 0.5:
                transport.close()
            else:
                transport.abort()
            return self._response(500, b"")
        whole = b"".join([*wire.pieces(request), wire.last(request)]) if streams else wire.reply(request)
        length = None if fault == "cut" and streams else len(whole) + 1
        response = await self._begin(http, wire.stream_type if streams else "application/json", length)
        await response.write(whole[: len(whole) // 2] if fault == "cut" else whole)
        transport.close()
        return response

    async def _begin(self, http: "BaseRequest", content_type: str, length: int | None = None) -> "StreamResponse":
        """Send the head of a response whose body follows in parts."""
        response = self._web.StreamResponse(headers={"Content-Type": content_type})
        response.content_length = length
        await response.prepare(http)
        return response

    def _response(
        self,
        status: int,
        body: bytes,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> "StreamResponse":
        return self._web.Response(status=status, body=body, headers={"Content-Type": content_type, **(headers or {})})


@lru_cache(maxsize=1)
def bomb(size: int) -> bytes:
    """Return `size` bytes (a multiple of 1 MiB) and a little more as gzip: a JSON object with one long string.

    Compressing all of it would take seconds. One MiB is compressed into blocks that stand for themselves, and these
    blocks are repeated.
    """
    times = size // len(_MEBIBYTE)
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    head = packer.compress(_BOMB_HEAD) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(_MEBIBYTE) + packer.flush(zlib.Z_FULL_FLUSH)
    tail = packer.compress(_BOMB_TAIL) + packer.flush(zlib.Z_FINISH)
    check = zlib.crc32(_BOMB_HEAD)
    for _ in range(times):
        check = zlib.crc32(_MEBIBYTE, check)
    check = zlib.crc32(_BOMB_TAIL, check)
    length = len(_BOMB_HEAD) + times * len(_MEBIBYTE) + len(_BOMB_TAIL)
    trailer = check.to_bytes(4, "little") + (length % 2**32).to_bytes(4, "little")
    return b"".join([b"\x1f\x8b\x08\0\0\0\0\0\x02\xff", head, block * times, tail, trailer])


def _object(data: bytes) -> dict[str, Any]:
    """Return the JSON object in the body of a request.

    Raises:
        Refusal: It is none.
    """
    if not data:
        raise Refusal("missing request body")
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise Refusal(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Refusal("the body is not a JSON object")
    return value  # pyright: ignore[reportUnknownVariableType]


_BUSY = "server busy, please try again.  maximum pending requests exceeded"
_FAILED = "an error was encountered while running the model"
_GARBAGE = (b"<html><body>It works!</body></html>", b'{"model": "test", "resp', b"\xff\xfe\x00 not text", b"null")
_FILLER = b"a" * 2**16
_MEBIBYTE = b"a" * 2**20
_BOMB_HEAD = b'{"response": "'
_BOMB_TAIL = b'"}'
