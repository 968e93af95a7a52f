"""Cut bytes that arrive in pieces into lines, without telnet commands, and without keeping more than one long line.

Nothing here reads or waits. However the bytes are cut into pieces, the lines are the same.
"""

from collections import deque
from collections.abc import Iterable

from brim.envs.puzzle.wire.errors import ProtocolError

MAX_LINE = 1 << 20
"""Upper limit of the bytes of a line. The longest that a server sends have a few thousand."""

IAC = 0xFF
_SE, _SB, _WILL, _DONT = 0xF0, 0xFA, 0xFB, 0xFE
_DATA, _COMMAND, _OPTION, _SUB, _SUB_COMMAND = range(5)


class Lines:
    """Cuts bytes at newlines; carriage returns before them are no part of a line."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._rest = bytearray()
        self._ready: deque[bytes] = deque()

    def feed(self, data: bytes) -> None:
        """Add bytes.

        Raises:
            ProtocolError: A line is too long.
        """
        first, *others = data.split(b"\n")
        self._rest += first
        for piece in others:
            self._ready.append(bytes(self._rest).rstrip(b"\r"))
            self._rest = bytearray(piece)
            if len(self._ready[-1]) > self._limit:
                break
        if len(self._rest) > self._limit or (self._ready and len(self._ready[-1]) > self._limit):
            raise ProtocolError(f"the server sent a line of more than {self._limit} bytes")

    def pop(self) -> str | None:
        """Return the next complete line, or None if there is none yet."""
        return self._ready.popleft().decode("utf-8", "replace") if self._ready else None


class TelnetFilter:
    """Removes telnet commands (RFC 854) from a stream of bytes, even if a command is split between pieces. A doubled
    IAC is the byte itself."""

    def __init__(self) -> None:
        self._state = _DATA

    def feed(self, data: bytes) -> bytes:
        if self._state == _DATA and IAC not in data:
            return data
        out = bytearray()
        for byte in data:
            self._state = self._next(byte, out)
        return bytes(out)

    def _next(self, byte: int, out: bytearray) -> int:
        if self._state == _DATA:
            if byte == IAC:
                return _COMMAND
            out.append(byte)
            return _DATA
        if self._state == _COMMAND:
            if byte == IAC:
                out.append(byte)
            return _SUB if byte == _SB else _OPTION if _WILL <= byte <= _DONT else _DATA
        if self._state == _SUB:
            return _SUB_COMMAND if byte == IAC else _SUB
        if self._state == _SUB_COMMAND:
            return _DATA if byte == _SE else _SUB
        return _DATA  # the option that a command was about


class EchoFilter:
    """Removes prompts and the echo of sent lines, which a terminal would show and which are no part of a reply."""

    def __init__(self, prompt: str = "> ") -> None:
        self._prompt = prompt
        self._sent: deque[str] = deque()

    def sent(self, lines: Iterable[str]) -> None:
        """Expect the echo of these lines. Lines sent before them have been answered, so their echo is expected no
        longer."""
        self._sent = deque(lines)

    def keep(self, line: str) -> str | None:
        """Return the line without prompts, or None for an echo."""
        while line.startswith(self._prompt):
            line = line.removeprefix(self._prompt)
        if self._sent and line == self._sent[0]:
            self._sent.popleft()
            return None
        return line
