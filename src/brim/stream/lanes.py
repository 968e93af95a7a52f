"""What the lanes of a gym stream share: who plays which episode next, the time, and how long a server that does not answer is waited for.

Lanes are tasks of one event loop; nothing here is for threads.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from brim.core.rng import raw_bits
from brim.envs.puzzle.policy import EpisodeSpec
from brim.envs.puzzle.wire.errors import ConnectionFailed, PuzzleError
from brim.envs.puzzle.wire.session import PuzzleSession
from brim.stream.gym_config import GymConfig


@dataclass(slots=True)
class Lane:
    """What a lane is doing, to be looked at while it does."""

    number: int
    episode: EpisodeSpec | None = None
    steps: int = 0
    episodes: int = 0
    """That it has finished."""
    retries: int = 0
    """Of all its episodes."""
    transport: str = ""

    @property
    def busy(self) -> bool:
        return self.episode is not None


class Dispatcher:
    """Gives positions of episodes to lanes, in order, and to all lanes that wait at the very moment when there is something to give.

    A lane runs at most `window` ahead of the first episode that is not finished. That depends on the course of the episodes alone, and so
    does what `begin` is told: who decides for all lanes at once decides for the same ones in every run.
    """

    def __init__(self, *, first: int, stop: int | None, skip: Collection[int], window: int, begin: Callable[[int], None]) -> None:
        self._next = self.unfinished = first
        self._stop, self._skip, self._window, self._begin = stop, set(skip), window, begin
        self._finished: set[int] = set()
        self._idle: deque[asyncio.Future[int | None]] = deque()
        self._pass()

    def ask(self) -> "asyncio.Future[int | None]":
        """The next position; None when there are no more."""
        waits: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._idle.append(waits)
        self._assign()
        return waits

    def finish(self, position: int) -> None:
        """To be followed by `ask` without a wait in between."""
        self._finished.add(position)
        self._pass()

    def _pass(self) -> None:
        while self.unfinished in self._finished or self.unfinished in self._skip:
            self._finished.discard(self.unfinished)
            self.unfinished += 1

    def _assign(self) -> None:
        while self._idle:
            if self._idle[0].done():  # the lane was cancelled
                self._idle.popleft()
                continue
            while self._next in self._skip:
                self._next += 1
            if self._stop is not None and self._next >= self._stop:
                self._idle.popleft().set_result(None)
                continue
            if self._next - self.unfinished >= self._window:
                return
            self._begin(self._next)
            self._idle.popleft().set_result(self._next)
            self._next += 1


class Clock:
    """The time of the episodes of a run. While it is held it stands still for all of them: what they wait for is no fault of theirs."""

    def __init__(self) -> None:
        self._limits: dict[asyncio.Timeout, float] = {}
        """Those that run, and the seconds that were left to them when the clock was held."""
        self._holds = 0

    @contextmanager
    def running(self, limit: asyncio.Timeout, seconds: float) -> Generator[None, None, None]:
        """Within the block, so much of this time is left until `limit`, which has been entered."""
        self._limits[limit] = seconds
        if not self._holds:
            limit.reschedule(asyncio.get_running_loop().time() + seconds)
        try:
            yield
        finally:
            del self._limits[limit]

    def hold(self) -> None:
        """To be followed by `release`; whoever holds it last, releases it."""
        self._holds += 1
        if self._holds == 1:
            now = asyncio.get_running_loop().time()
            for limit in self._limits:
                if not limit.expired():
                    self._limits[limit] = (limit.when() or now) - now
                    limit.reschedule(None)

    def release(self) -> None:
        self._holds -= 1
        if self._holds == 0:
            now = asyncio.get_running_loop().time()
            for limit, left in self._limits.items():
                if not limit.expired():
                    limit.reschedule(now + left)


class Backoff:
    """How lanes meet a server that fails. No episode is given up because a server is away: they wait for it together, or the run ends.

    While nothing listens, one lane at a time knocks, after a delay that doubles, and the clock of all episodes stands still. The server is
    gone when more than `max_retries` knocks in more than `max_retry_delay` seconds were in vain. It is gone too when many episodes in a row
    (as many as there are lanes, four at least) ended in an error of their own and not one request of a player was answered in between.
    """

    def __init__(self, config: GymConfig, clock: Clock) -> None:
        self._config, self._clock = config, clock
        self.gone: PuzzleError | None = None
        """What the run ends with."""
        self._ever = False
        self._knocks = 0
        self._away_since = 0.0
        self._errors = 0
        self._knocking = asyncio.Lock()

    async def open(self) -> PuzzleSession:
        """A connection; waits for a server that is away.

        Raises:
            ConnectionFailed: There never was a server, or it is gone.
            PuzzleError: What answers there is no puzzle server.
        """
        while True:
            if self.gone is not None:
                raise ConnectionFailed(str(self.gone))
            if not self._knocks:
                if (session := await self._try()) is not None:
                    return session
                continue
            async with self._knocking:
                if not self._knocks or self.gone is not None:
                    continue
                self._clock.hold()
                try:
                    await asyncio.sleep(self._delay(self._knocks, "gym/knock", 0))
                    if (session := await self._try()) is not None:
                        return session
                finally:
                    self._clock.release()

    async def pause(self, attempt: int, number: int) -> None:
        """Before an episode is taken up again."""
        await asyncio.sleep(self._delay(attempt, "gym/retry", number))

    def answered(self) -> None:
        """The server did what a player asked for."""
        self._errors = 0
        self._away_since = asyncio.get_running_loop().time()

    def failed(self, error: PuzzleError) -> None:
        """An episode has ended in an error."""
        self._errors += 1
        if self._errors >= max(self._config.lanes, 4):
            why = f"{self._errors} episodes in a row ended in an error, and nothing was played in between; the last: {error}"
            self.gone = type(error)(f"{self._config.host}:{self._config.port} is no puzzle server, or gone: {why}")

    async def _try(self) -> PuzzleSession | None:
        """A connection, or None if nothing listens."""
        knocks, config, now = self._knocks, self._config, asyncio.get_running_loop().time
        try:
            session = await PuzzleSession.open(
                config.host, config.port, config.transport, connect_timeout=config.connect_timeout, read_timeout=config.read_timeout
            )
        except ConnectionFailed as error:
            if not self._ever:
                raise
            if knocks == self._knocks:  # else another lane has counted what we both ran into
                self._knocks += 1
                if knocks == 0:
                    self._away_since = now()
                away = now() - self._away_since
                if knocks >= config.max_retries and away >= config.max_retry_delay:
                    self.gone = ConnectionFailed(f"the server is gone, for {away:.1f} seconds and {self._knocks} knocks: {error}")
            return None
        except PuzzleError:
            self._ever = True  # something is there
            raise
        self._ever, self._knocks = True, 0
        return session

    def _delay(self, attempt: int, purpose: str, number: int) -> float:
        longest = min(self._config.retry_delay * 2 ** min(attempt - 1, 30), self._config.max_retry_delay)
        share = int(raw_bits(attempt, seed=self._config.seed, purpose=purpose, epoch=number)[-1]) / 2**64
        return longest * (0.5 + share / 2)
