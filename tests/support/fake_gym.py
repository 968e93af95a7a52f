"""A server that speaks the protocol of the puzzle gym and does what a test wants of it, in a thread of its own."""

import asyncio
import contextlib
import json

from brim.core.wait.loop import LoopThread
from brim.envs.puzzle.config import GymConfig
from brim.envs.puzzle.games import GAMES

OK = {"type": "result", "success": True, "code": "OK"}
SOLVED = {"type": "complete", "success": True}


class FakeGym:
    """Every move is right, and the third solves the puzzle, unless a hook says otherwise.

    see: from the observation to what is sent for it. move: from the number of moves, and a function that gives the
    observation, to the records that answer the move. on: from the words of a request and its connection to whether it
    was dealt with; may be async, may close the connection.
    """

    def __init__(self, *, see=None, move=None, on=None, hint="Hint: Try pressing the light at row 1, column 1"):
        self.see, self.move, self.on, self.hint = see or (lambda seen: seen), move, on, hint
        self.connections = 0
        self.port = 0
        self._writers, self._tasks = set(), set()

    def __enter__(self):
        self._thread = LoopThread("fake gym")
        self.come()
        return self

    def __exit__(self, *raised):
        self.leave()
        self._thread.stop()

    def come(self):
        self._thread.call(self._come())

    def leave(self):
        self._thread.call(self._leave())

    async def _come(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _leave(self):
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader, writer):
        self.connections += 1
        self._writers.add(writer)
        self._tasks.add(asyncio.current_task())
        writer.write(b"welcome\r\n")
        game = difficulty = None
        seed = moves = 0

        def say(record):
            writer.write(
                record.encode() + b"\r\n" if isinstance(record, str) else json.dumps(record).encode() + b"\r\n"
            )

        def position(complete=False):
            about = {"type": "observation", "game": GAMES[game].title, "difficulty": difficulty, "seed": seed}
            return self.see(
                {**about, "grid": [[0, 1], [1, moves]], "grid_display": f"{moves} moves", "is_complete": complete}
            )

        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                while line := (await reader.readline()).decode():
                    words = line.split()
                    if not words or (self.on is not None and await _awaited(self.on(words, writer))):
                        continue
                    if words[0] in GAMES:
                        game, difficulty, seed, moves = words[0], words[1], int(words[2]), 0
                    elif words == ["mode", "json"]:
                        say({"type": "mode", "mode": "json"})
                    elif words[0] == "mode":
                        say({"type": "error", "code": "INVALID_MODE", "mode": words[1]})
                    elif words[0] == "show":
                        say(position())
                    elif words[0] == "hint":
                        say(self.hint)
                    elif words[0] != "menu":
                        moves += 1
                        solved = [SOLVED] if moves >= 3 else []
                        for record in self.move(moves, position) if self.move else [OK, position(moves >= 3), *solved]:
                            say(record)
        finally:
            writer.transport.abort()
            self._writers.discard(writer)
            self._tasks.discard(asyncio.current_task())


async def _awaited(value):
    return await value if asyncio.iscoroutine(value) else value


def hang_up(words, writer):
    """On every move."""
    if words[0] == "press":
        writer.transport.abort()
        return True


def options(fake, **more):
    """Impatient ones."""
    short = {
        "connect_timeout": 2.0,
        "read_timeout": 2.0,
        "episode_timeout": 10.0,
        "retry_delay": 0.01,
        "max_retry_delay": 0.05,
    }
    return GymConfig(
        **{
            "host": "127.0.0.1",
            "port": fake.port,
            "games": "lights",
            "difficulty_range": (0, 0.4),
            "lanes": 2,
            "max_retries": 1,
            **short,
            **more,
        }
    )
