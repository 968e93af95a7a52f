"""Between a client and a real server: a proxy that breaks every connection in a way of its own, sooner or later, by a
seed.
"""

import asyncio
import contextlib
import random
from collections import Counter

FAULTS = ("cut", "reset", "stall", "garbage", "glue", "half", "truncate", "duplicate", "drop", "drip", "flood")


class FaultProxy:
    """What the client sends goes through untouched; of what the server says, the n-th line meets the fault of its
    connection.
    """

    def __init__(self, ports, *, seed, lines=600, stall=30.0):
        self.faults = Counter()
        self.connections = 0
        self._ports, self._seed, self._lines, self._stall = ports, seed, lines, stall
        self._writers, self._tasks = set(), set()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *raised):
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _serve(self, reader, writer):
        number, self.connections = self.connections, self.connections + 1
        rng = random.Random(f"{self._seed}/{number}")
        fault, at = rng.choice(FAULTS), rng.randrange(1, self._lines)
        self._tasks.add(asyncio.current_task())
        self._writers.add(writer)
        up_writer = None
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                up_reader, up_writer = await asyncio.open_connection(
                    "127.0.0.1", self._ports[number % len(self._ports)]
                )
                up = asyncio.create_task(_copy(reader, up_writer))
                try:
                    await self._down(up_reader, writer, fault, at, rng)
                finally:
                    up.cancel()
                    await asyncio.gather(up, return_exceptions=True)
        finally:
            for end in (writer, up_writer):
                if end is not None:
                    end.transport.abort()
            self._writers.discard(writer)
            self._tasks.discard(asyncio.current_task())

    async def _down(self, reader, writer, fault, at, rng):
        seen = 0
        while line := await reader.readline():
            seen += 1
            if seen == at:
                self.faults[fault] += 1
                if not await self._hurt(line, writer, fault, rng):
                    return
            else:
                writer.write(line)
            await writer.drain()

    async def _hurt(self, line, writer, fault, rng):
        """Whether the connection goes on."""
        middle = rng.randrange(len(line))
        if fault == "cut":
            writer.write(line[:middle])
            await writer.drain()
            return False
        if fault == "reset":
            writer.transport.abort()
            return False
        if fault == "half":
            writer.write(line[:middle])
            writer.write_eof()
            await asyncio.sleep(self._stall)
        elif fault == "stall":
            await asyncio.sleep(self._stall)
        elif fault == "drip":
            for byte in line * 1000:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.02)
        elif fault == "flood":
            for _ in range(40):  # a line of 2.5 MB
                writer.write(b"x" * 65536)
                await writer.drain()
        elif fault == "garbage":
            writer.write(rng.randbytes(200) + b"\n{" + rng.randbytes(20).replace(b"\n", b"") + b"\n" + line)
        elif fault == "glue":
            writer.write(rng.randbytes(20).replace(b"\n", b"") + line)
        elif fault == "truncate":
            writer.write(line[:middle].rstrip(b"\n") + b"\n")
        elif fault == "duplicate":
            writer.write(line * 2)
        return True


async def _copy(reader, writer):
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
