"""Connections to a puzzle server: lines out, lines in, over TCP, telnet or WebSocket, each wait with a deadline.

`connect` finds out which of them a server speaks. A connection that failed once fails for good: whoever uses it opens
another. Deadlines are moments of the running loop's clock (`loop.time()`), so that a reply which drips in byte by byte
is late as a whole.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

from brim.core.errors import MissingExtraError
from brim.core.extras import need
from brim.core.options import one_of
from brim.envs.puzzle.wire.errors import ConnectionFailed, ProtocolError, PuzzleError, ServerClosed, ServerTimeout
from brim.envs.puzzle.wire.lines import IAC, MAX_LINE, EchoFilter, Lines, TelnetFilter
from brim.envs.puzzle.wire.names import TRANSPORTS, TransportName

_CHUNK = 1 << 16


class Connection(Protocol):
    """Sends lines and receives lines."""

    name: str
    """The name of the transport."""

    async def send(self, lines: Sequence[str], deadline: float) -> None: ...
    async def read_line(self, deadline: float) -> str:
        """Receive the next line.

        Raises:
            ServerClosed: There is no other line.
            ServerTimeout: It was not complete in time.
            ProtocolError: It is too long.
        """
        ...

    async def close(self) -> None: ...


async def connect(host: str, port: int, transport: TransportName = "auto", *, deadline: float) -> Connection:
    """Open a connection, and wait until the server has sent something.

    "auto" tells TCP from telnet by the first byte: telnet begins with a command. If a server closes the connection
    without a word, WebSocket is tried.

    Raises:
        ConnectionFailed: Nothing answers there.
    """
    one_of("transport", transport, TRANSPORTS)
    if transport == "websocket":
        return await _websocket(host, port, deadline)
    reader, writer = await _dial(host, port, deadline)
    try:
        async with _by(deadline, f"{host}:{port} took the connection and said nothing"):
            # Telnet servers wait a second for a first byte, and drop it; others ignore an empty line.
            writer.write(b"\n")
            first = await reader.read(_CHUNK)
        if first:
            telnet = transport == "telnet" or (transport == "auto" and first[0] == IAC)
            return _StreamConnection(reader, writer, telnet=telnet, first=first)
    except PuzzleError:
        writer.transport.abort()
        raise
    except OSError as error:
        writer.transport.abort()
        raise ServerClosed(f"{host}:{port} closed the connection at once: {error}") from None
    except BaseException:
        writer.transport.abort()
        raise
    writer.transport.abort()
    untried = ""
    if transport == "auto":
        try:
            return await _websocket(host, port, deadline)
        except (ConnectionFailed, ProtocolError, ServerClosed):
            pass
        except MissingExtraError as error:
            untried = f" (it may speak WebSocket: {error})"
    raise ServerClosed(f"{host}:{port} closed the connection at once, without a word{untried}")


async def _dial(host: str, port: int, deadline: float) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        async with _by(deadline, f"{host}:{port} did not answer in time", ConnectionFailed):
            return await asyncio.open_connection(host, port, limit=_CHUNK)
    except socket.gaierror as error:
        raise ConnectionFailed(f"no host is called {host!r}: {error.strerror or error}") from None
    except (OSError, ValueError) as error:
        raise _nobody(host, port, error) from None


def _nobody(host: str, port: int, error: Exception) -> ConnectionFailed:
    if isinstance(error, ConnectionRefusedError):
        return ConnectionFailed(f"nothing listens on {host}:{port}; start a server with `brim gym serve --port {port}`")
    if isinstance(error, ValueError):  # among them the UnicodeError of a name that cannot be one
        return ConnectionFailed(f"no host can be called {host!r}: {error}")
    return ConnectionFailed(f"cannot connect to {host}:{port}: {error}")


@asynccontextmanager
async def _by(deadline: float, what: str, kind: type[PuzzleError] = ServerTimeout) -> AsyncGenerator[None]:
    try:
        async with asyncio.timeout_at(deadline):
            yield
    except TimeoutError:
        raise kind(what) from None


class _StreamConnection:
    """A connection over TCP or telnet."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, telnet: bool, first: bytes
    ) -> None:
        self.name = "telnet" if telnet else "tcp"
        self._reader, self._writer = reader, writer
        self._lines = Lines(MAX_LINE)
        self._commands = TelnetFilter() if telnet else None
        self._echo = EchoFilter() if telnet else None
        self._feed(first)

    async def send(self, lines: Sequence[str], deadline: float) -> None:
        try:
            self._writer.write("".join(f"{line}\n" for line in lines).encode())
            if self._writer.transport.get_write_buffer_size():
                async with _by(deadline, "the server does not take what is sent"):
                    await self._writer.drain()
        except OSError as error:
            raise ServerClosed(f"the server closed the connection: {error.strerror or error}") from None
        if self._echo is not None:
            self._echo.sent(lines)

    async def read_line(self, deadline: float) -> str:
        while True:
            line = self._lines.pop()
            if line is None:
                await self._read(deadline)
            elif self._echo is None:
                return line
            elif (kept := self._echo.keep(line)) is not None:
                return kept

    async def _read(self, deadline: float) -> None:
        try:
            async with _by(deadline, "the server did not answer in time"):
                data = await self._reader.read(_CHUNK)
        except OSError as error:
            raise ServerClosed(f"the server closed the connection: {error.strerror or error}") from None
        if not data:
            raise ServerClosed("the server closed the connection")
        self._feed(data)

    def _feed(self, data: bytes) -> None:
        self._lines.feed(data if self._commands is None else self._commands.feed(data))

    async def close(self) -> None:
        self._writer.transport.abort()
        await asyncio.sleep(0)  # the transport closes its socket on the next turn of the loop


async def _websocket(host: str, port: int, deadline: float) -> Connection:
    websockets = need("websockets.asyncio.client", extra="gym", user="brim.envs.puzzle.wire.transport")
    failures = need("websockets.exceptions", extra="gym", user="brim.envs.puzzle.wire.transport")
    bracketed = f"[{host}]" if ":" in host else host
    try:
        async with _by(deadline, f"{host}:{port} did not answer in time", ConnectionFailed):
            socket = await websockets.connect(
                f"ws://{bracketed}:{port}/ws",
                max_size=MAX_LINE,
                compression=None,
                open_timeout=None,
                close_timeout=1,
                proxy=None,
            )
    except failures.WebSocketException as error:
        raise ProtocolError(f"{host}:{port} does not speak WebSocket: {error}") from None
    except (OSError, EOFError, ValueError) as error:
        raise _nobody(host, port, error) from None
    return _WebSocketConnection(socket, failures)


class _WebSocketConnection:
    name = "websocket"

    def __init__(self, socket: Any, failures: Any) -> None:
        self._socket, self._failures = socket, failures
        self._lines = Lines(MAX_LINE)

    async def send(self, lines: Sequence[str], deadline: float) -> None:
        try:
            async with _by(deadline, "the server does not take what is sent"):
                await self._socket.send("".join(f"{line}\n" for line in lines))
        except (OSError, self._failures.WebSocketException) as error:
            raise ServerClosed(f"the server closed the connection: {error}") from None

    async def read_line(self, deadline: float) -> str:
        while (line := self._lines.pop()) is None:
            try:
                async with _by(deadline, "the server did not answer in time"):
                    message = await self._socket.recv()
            except (OSError, self._failures.WebSocketException) as error:
                raise ServerClosed(f"the server closed the connection: {error}") from None
            self._lines.feed(message.encode() if isinstance(message, str) else message)
        return line

    async def close(self) -> None:
        await self._socket.close()
