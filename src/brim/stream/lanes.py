"""What the lanes of a gym stream share: who plays which episode next, and how long to leave a server alone that does not answer.

Lanes are tasks of one event loop; nothing here is for threads.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

from brim.core.rng import raw_bits
from brim.envs.puzzle.errors import ConnectionFailed, PuzzleError
from brim.envs.puzzle.policy import EpisodeSpec
from brim.envs.puzzle.session import PuzzleSession
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


class Backoff:
    """How lanes meet a server that fails: one knocks for all of them, less and less often, and when it is gone nobody waits for it.

    A server that refuses connections is tried by one lane at a time, after a delay that doubles; after `max_retries` such retries it is
    gone. It is gone too when as many episodes in a row as all lanes together may try have failed to start. While it is gone every episode
    fails at once, but for one knock each `max_retry_delay`, which may find it back.
    """

    def __init__(self, config: GymConfig) -> None:
        self._config = config
        self.ever = False
        """Whether a connection was ever made."""
        self.gone: PuzzleError | None = None
        self._failures = 0
        self._unstarted = 0
        self._knock_at = 0.0
        self._knocking = asyncio.Lock()

    async def open(self) -> PuzzleSession:
        """
        Raises:
            PuzzleError: There is no connection to be had.
        """
        self._fail_fast()
        if self._failures:
            async with self._knocking:
                self._fail_fast()
                if self._failures and self.gone is None:
                    await asyncio.sleep(self._delay(self._failures, "gym/knock", 0))
                return await self._try()
        return await self._try()

    async def pause(self, attempt: int, number: int) -> None:
        """Before an episode is taken up again."""
        await asyncio.sleep(self._delay(attempt, "gym/retry", number))

    def failed_to_start(self, error: PuzzleError) -> None:
        self._unstarted += 1
        if self._unstarted >= (self._config.max_retries + 1) * self._config.lanes:
            self._lose(error)

    def worked(self) -> None:
        """An episode has started."""
        self._unstarted, self.gone = 0, None

    async def _try(self) -> PuzzleSession:
        failures, config = self._failures, self._config
        try:
            session = await PuzzleSession.open(
                config.host, config.port, config.transport, connect_timeout=config.connect_timeout, read_timeout=config.read_timeout
            )
        except ConnectionFailed as error:
            if failures == self._failures:  # else another lane has counted what we both ran into
                self._failures += 1
                if self._failures > config.max_retries:
                    self._lose(error)
            raise
        except PuzzleError as error:
            self.failed_to_start(error)
            raise
        self.ever, self._failures = True, 0
        return session

    def _lose(self, error: PuzzleError) -> None:
        self.gone = error
        self._knock_at = asyncio.get_running_loop().time() + self._config.max_retry_delay

    def _fail_fast(self) -> None:
        if self.gone is not None and asyncio.get_running_loop().time() < self._knock_at:
            raise type(self.gone)(str(self.gone))
        if self.gone is not None:
            self._knock_at = asyncio.get_running_loop().time() + self._config.max_retry_delay

    def _delay(self, attempt: int, purpose: str, number: int) -> float:
        longest = min(self._config.retry_delay * 2 ** min(attempt - 1, 30), self._config.max_retry_delay)
        share = int(raw_bits(attempt, seed=self._config.seed, purpose=purpose, epoch=number)[-1]) / 2**64
        return longest * (0.5 + share / 2)
