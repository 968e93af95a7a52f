"""A session with a puzzle server: start an episode, act, ask for a hint. Knows the protocol, and nothing of policies or
rewards.

Replies have no end of their own. So every request ends with a command that the server must refuse by name, `mode kN`
with a new N each time: the refusal marks the end of the reply to exactly this request, and an answer that was late or
came twice is never taken for another. A session that raised is over, its connection thrown away. The server's own
counts of moves are wrong for most games and are not used.

Whoever gets an observation from here need not doubt it: it is of the puzzle that was asked for, its grid is a rectangle
of small numbers, or of letters for games that have these, and drawing and hint are texts of a bounded length.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import orjson

from brim.envs.puzzle.games import EpisodeSpec, Game, game
from brim.envs.puzzle.wire.errors import ProtocolError, PuzzleError
from brim.envs.puzzle.wire.names import TransportName
from brim.envs.puzzle.wire.transport import Connection, connect

MAX_REPLY = 1 << 24
"""Upper limit of the bytes of a reply, which may include the replay of a long episode."""
_MAX_TEXTS = 1000
_MAX_HINT, _MAX_DISPLAY, _MAX_SIDE, _MAX_CELL = 500, 1 << 16, 40, 9999


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of an action."""

    valid: bool
    """True if the server accepted it."""
    observation: dict[str, Any]
    """The position after it; the one before, if it was invalid."""
    terminated: bool
    """True if it ended the puzzle, by solving or by losing it."""
    success: bool
    code: str
    """The server's, such as PLACED; NOT_A_MOVE if the action was never sent, CLOSED if it ended the session."""
    message: str


@dataclass(slots=True)
class _Reply:
    results: list[dict[str, Any]] = field(default_factory=lambda: [])
    observations: list[dict[str, Any]] = field(default_factory=lambda: [])
    complete: list[bool] = field(default_factory=lambda: [])
    """One entry each time the server said that the puzzle is over: true for a success."""
    texts: list[str] = field(default_factory=lambda: [])

    @property
    def lost(self) -> bool:
        return any(text.startswith("GAME OVER") for text in self.texts)


class PuzzleSession:
    """One connection, one episode at a time.

    Example:
        session = await PuzzleSession.open("localhost", 8023)
        observation = await session.start(EpisodeSpec(number=0, game="lights", difficulty="easy", seed=7))
        outcome = await session.act("press 1 5")
    """

    def __init__(self, connection: Connection, *, read_timeout: float = 30.0) -> None:
        self._connection = connection
        self._read_timeout = read_timeout
        self._marks = 0
        self._in_game = False
        self._broken = False
        self._game: Game | None = None
        self._spec: EpisodeSpec | None = None
        self._observation: dict[str, Any] = {}

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        transport: TransportName = "auto",
        *,
        connect_timeout: float = 10.0,
        read_timeout: float = 30.0,
    ) -> "PuzzleSession":
        """
        Raises:
            ConnectionFailed: Nothing answers there.
            ServerClosed: The server hung up at once.
            ServerTimeout: It took the connection and said nothing.
        """
        deadline = asyncio.get_running_loop().time() + connect_timeout
        return cls(await connect(host, port, transport, deadline=deadline), read_timeout=read_timeout)

    @property
    def transport(self) -> str:
        return self._connection.name

    @property
    def usable(self) -> bool:
        """True if the session can begin another episode."""
        return not self._broken

    async def start(self, spec: EpisodeSpec, replay: Sequence[str] = ()) -> dict[str, Any]:
        """Begin an episode, repeat the actions and hints of `replay`, and return the observation after them.

        Raises:
            PuzzleError: The server failed, or gave another puzzle.
        """
        self._game, self._spec = game(spec.game), spec
        begin = [f"{spec.game} {spec.difficulty} {spec.seed}", "mode json"]
        lines = [*(["menu"] if self._in_game else []), *begin, *replay, "show"]
        self._in_game = True
        reply = await self._ask(lines, last_only=True)
        if not reply.observations:
            said = " / ".join(text for text in reply.texts if text.startswith(("Unknown", "Invalid")))
            raise self._break(ProtocolError(f"the server started no {spec.episode_id}" + (f": {said}" if said else "")))
        self._see(reply.observations[-1])
        return self._observation

    async def act(self, action: str) -> Outcome:
        """Take one action. One that is no move of this game is invalid without being sent; `solve` is none.

        Raises:
            PuzzleError: The server failed. Whether the action was taken is then unknown.
        """
        assert self._game is not None, "start an episode first"
        action = action.strip(" ")
        if wrong := self._game.check(action):
            return self._outcome(valid=False, code="NOT_A_MOVE", message=wrong)
        return self._judge(action, await self._ask([action]))

    async def hint(self) -> str | None:
        """Ask for a hint. Returns the server's sentence, or None if it advises nothing."""
        reply = await self._ask(["hint"])
        hint = next((text.removeprefix("Hint: ") for text in reply.texts if text.startswith("Hint: ")), None)
        if hint is None and len(reply.results) != 1:
            raise self._break(ProtocolError("asked for a hint, the server gave neither one nor a refusal"))
        if hint is not None and len(hint) > _MAX_HINT:
            raise self._break(ProtocolError(f"the server gave a hint of {len(hint)} characters: {hint[:60]!r}"))
        return hint

    async def close(self) -> None:
        self._broken = True
        await self._connection.close()

    def _judge(self, action: str, reply: _Reply) -> Outcome:
        if len(reply.complete) > 1 or (reply.lost and True in reply.complete):
            raise self._break(ProtocolError(f"{action!r} ended the game twice"))
        solved = reply.complete == [True]
        over = bool(reply.complete) or reply.lost
        if action == "check":
            return self._outcome(valid=True, terminated=over, success=solved, code="CHECK")
        if len(reply.results) != 1 or len(reply.observations) > 1:
            found = f"{len(reply.results)} results and {len(reply.observations)} positions"
            raise self._break(ProtocolError(f"{action!r} was answered with {found}, not with one"))
        result = reply.results[0]
        valid, code, message = (
            result.get("success") is True,
            str(result.get("code", "")),
            str(result.get("message", "")),
        )
        if valid != bool(reply.observations):
            raise self._break(
                ProtocolError(f"{action!r} was {'accepted without' if valid else 'refused with'} a new position")
            )
        if over and not valid and not reply.lost:
            raise self._break(ProtocolError(f"{action!r} was refused, and yet ended the game"))
        if valid:
            self._see(reply.observations[0])
        success = valid and (solved or (not over and self._observation.get("is_complete") is True))
        return self._outcome(valid=valid, terminated=success or over, success=success, code=code, message=message)

    def _see(self, observation: dict[str, Any]) -> None:
        assert self._game is not None
        assert self._spec is not None
        spec, given = self._spec, tuple(observation.get(word) for word in ("game", "difficulty", "seed"))
        if given != (self._game.title, spec.difficulty, spec.seed):
            raise self._break(
                ProtocolError(
                    f"asked for {spec.episode_id}, the server gave {'-'.join(str(word)[:40] for word in given)}"
                )
            )
        if wrong := _malformed(observation, self._game):
            raise self._break(ProtocolError(f"the server sent a position of {spec.episode_id} {wrong}"))
        self._observation = observation

    def _outcome(
        self, *, valid: bool, code: str, message: str = "", terminated: bool = False, success: bool = False
    ) -> Outcome:
        return Outcome(
            valid=valid,
            observation=self._observation,
            terminated=terminated,
            success=success,
            code=code,
            message=message,
        )

    async def _ask(self, lines: Sequence[str], *, last_only: bool = False) -> _Reply:
        """Send lines, and read until the server has answered the last of them."""
        if self._broken:
            raise ProtocolError("this session is over; open another")
        self._marks += 1
        mark = f"k{self._marks}"
        deadline = asyncio.get_running_loop().time() + self._read_timeout
        reply, size = _Reply(), 0
        self._broken = True  # whatever interrupts us from here on, a cancellation too, leaves an answer on its way
        await self._connection.send([*lines, f"mode {mark}"], deadline)
        while True:
            line = await self._connection.read_line(deadline)
            size += len(line)
            if size > MAX_REPLY:
                raise ProtocolError(f"the server sent more than {MAX_REPLY} bytes and no end of its reply")
            if line.startswith("{"):
                record = _record(line)
                if record.get("type") == "error" and record.get("mode") == mark:
                    break
                _sort(record, reply, last_only)
            elif len(reply.texts) < _MAX_TEXTS:
                reply.texts.append(line)
        self._broken = False
        return reply

    def _break(self, error: PuzzleError) -> PuzzleError:
        self._broken = True
        return error


def _record(line: str) -> Mapping[str, Any]:
    try:
        record: Any = orjson.loads(line)
    except orjson.JSONDecodeError:
        raise ProtocolError(f"the server sent half a record: {line[:60]!r}") from None
    return cast(Mapping[str, Any], record)


def _malformed(observation: Mapping[str, Any], game: Game) -> str | None:
    """Describe what is wrong with a position; None if nothing is."""
    display: Any = observation.get("grid_display", "")
    if not isinstance(display, str) or len(display) > _MAX_DISPLAY:
        return f"whose drawing is no text of at most {_MAX_DISPLAY} characters"
    grid: Any = observation.get("grid")
    if grid is None:
        return None
    rows = cast(list[Any], grid) if isinstance(grid, list) else []
    width = len(cast(list[Any], rows[0])) if rows and isinstance(rows[0], list) else 0
    if not 0 < len(rows) <= _MAX_SIDE or not 0 < width <= _MAX_SIDE:
        return f"whose grid is none of 1 to {_MAX_SIDE} rows and columns"
    if any(not isinstance(row, list) or len(cast(list[Any], row)) != width for row in rows):
        return "whose rows are not all of one length"
    if not all(_fits(cell, game.cells) for row in rows for cell in row):
        return f"whose cells are not all {'single letters' if game.cells is str else f'integers up to {_MAX_CELL}'}"
    return None


def _fits(cell: Any, kind: type[int] | type[str]) -> bool:
    return isinstance(cell, str) and len(cell) == 1 if kind is str else type(cell) is int and abs(cell) <= _MAX_CELL


def _sort(record: Mapping[str, Any], reply: _Reply, last_only: bool) -> None:
    kind = record.get("type")
    if kind in ("observation", "result"):
        records = reply.observations if kind == "observation" else reply.results
        if last_only:
            records.clear()
        records.append(dict(record))
    elif kind == "complete":
        reply.complete.append(record.get("success") is True)
    elif kind != "mode":
        raise ProtocolError(f"the server sent a record of type {kind!r}, which answers nothing that was asked")
    if len(reply.results) > 8 or len(reply.observations) > 8:
        raise ProtocolError("the server answered one action many times")
