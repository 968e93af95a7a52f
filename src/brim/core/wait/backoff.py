"""Reconnect and retry with jittered exponential backoff.

A `Backoff` belongs to one server and is shared by everything that talks to it, so that an outage is noticed once, and
one task at a time tries to reconnect instead of all of them. It belongs to one event loop.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from brim.core.errors import OptionError
from brim.core.rng import share
from brim.core.wait.clock import Clock

ConnectionT = TypeVar("ConnectionT")


@dataclass(frozen=True, kw_only=True)
class Retry:
    """The number of retries of a failed attempt, and the delays before them.

    Example:
        >>> retry = Retry(delay=1.0, max_delay=10.0)
        >>> [round(retry.seconds(attempt, purpose="example"), 1) for attempt in (1, 2, 3, 9)]
        [0.8, 1.8, 2.3, 5.6]
    """

    retries: int = 3
    """Retries after the first attempt."""
    delay: float = 1.0
    """Seconds before the first retry; every further one waits twice as long as the one before."""
    max_delay: float = 30.0
    """Upper limit of the delay, in seconds."""
    seed: int = 42
    """Decides the jitter."""

    def __post_init__(self) -> None:
        if type(self.retries) is not int or self.retries < 0:
            raise OptionError(f"retries must be an integer that is not negative, got {self.retries!r}")
        if not 0 <= self.delay <= self.max_delay < math.inf:
            raise OptionError(f"delay must lie between 0 and max_delay ({self.max_delay!r}), got {self.delay!r}")

    def seconds(self, attempt: int, *, purpose: str, number: int = 0) -> float:
        """The delay after the `attempt`-th attempt, counted from 1: between half of the exponential delay and all of
        it.

        The jitter is a function of the seed, the purpose, the number and the attempt, so a run can be repeated.
        """
        longest = min(self.delay * 2 ** min(attempt - 1, 30), self.max_delay)
        return longest * (0.5 + share(seed=self.seed, purpose=purpose, epoch=number, index=attempt - 1) / 2)


class Backoff(Generic[ConnectionT]):
    """Connections to one server, which may be unreachable for a while, or for good.

    `connect` makes a connection. If it raises `unreachable`, nothing listens there; everybody then waits while one task
    at a time tries again with growing delays, and the clock is paused. The server is lost after more than
    `retry.retries` attempts that took more than `retry.max_delay` seconds in all. It is also lost when `max_failures`
    pieces of work failed in a row (`failed`) and nothing was answered (`answered`) in between. From then on `lost` is
    the error to end with.

    A server that was never reached is not waited for, unless `expected`: a wrong address is better reported at once.

    Example:
        backoff = Backoff(open_session, server="the model server at host:port", unreachable=ConnectionError)
        session = await backoff.connect()
        try:
            text = await session.complete(prompt)
            backoff.answered()
        except TimeoutError as error:
            backoff.failed(error)
            await backoff.pause(attempt, number)
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[ConnectionT]],
        *,
        server: str,
        unreachable: type[Exception],
        retry: Retry | None = None,
        max_failures: int = 4,
        expected: bool = False,
        purpose: str = "wait",
        clock: Clock | None = None,
    ) -> None:
        """
        Args:
            server: The name of the server in messages.
            unreachable: The error that says that nothing listens there. Made with a message, it is also what `connect`
                raises in the end.
            expected: Whether a server that was never reached is waited for, too.
            purpose: Prefix of the keys of the jitter, for callers that must not share it.
        """
        self.retry = retry or Retry()
        self.lost: Exception | None = None
        """The error to end with, once the server is lost."""
        self._connect = connect
        self._server = server
        self._unreachable = unreachable
        self._max_failures = max_failures
        self._reached = expected
        self._purpose = purpose
        self._clock = clock or Clock()
        self._attempts = 0
        """Attempts to reconnect in the present outage; 0 while there is none."""
        self._unreachable_since = 0.0
        self._failures = 0
        """Pieces of work that failed since the last answer."""
        self._reconnecting = asyncio.Lock()

    async def connect(self) -> ConnectionT:
        """A connection; waits for a server that is unreachable.

        Raises:
            Exception: An error of type `unreachable` if the server was never reached, or is lost. Whatever else
                connecting raises.
        """
        while True:
            if self.lost is not None:
                raise self._unreachable(str(self.lost))
            if not self._attempts:
                connection = await self._try()
                if connection is not None:
                    return connection[0]
                continue
            async with self._reconnecting:
                # Whoever held the lock before may have reached the server, or lost it for good.
                if not self._attempts or self.lost is not None:
                    continue
                self._clock.pause()
                try:
                    await asyncio.sleep(self.retry.seconds(self._attempts, purpose=f"{self._purpose}/knock"))
                    connection = await self._try()
                finally:
                    self._clock.resume()
                if connection is not None:
                    return connection[0]

    async def pause(self, attempt: int, number: int = 0, *, at_least: float = 0.0) -> None:
        """Wait before piece of work `number` is tried again; `at_least` is what the server asked for, as in a
        Retry-After header."""
        await asyncio.sleep(max(at_least, self.retry.seconds(attempt, purpose=f"{self._purpose}/retry", number=number)))

    def answered(self) -> None:
        """Note that the server did what it was asked for, over a connection that may be older than the present
        outage."""
        self._failures = 0
        self._unreachable_since = asyncio.get_running_loop().time()

    def failed(self, error: Exception) -> None:
        """Note that a piece of work was given up because of `error`."""
        self._failures += 1
        if self._failures >= self._max_failures:
            message = (
                f"{self._server} does not answer as it should: {self._failures} attempts in a row ended in an error, "
                f"and it answered nothing in between; the last: {error}"
            )
            try:
                self.lost = type(error)(message)
            except TypeError:  # an error that cannot be made from a message alone
                self.lost = self._unreachable(message)

    async def _try(self) -> tuple[ConnectionT] | None:
        """A connection, or None if nothing listens there."""
        attempts = self._attempts
        now = asyncio.get_running_loop().time
        try:
            connection = await self._connect()
        except self._unreachable as error:
            if not self._reached:
                raise
            # Attempts that ran side by side met the same outage; only the first to return counts.
            if attempts == self._attempts:
                self._attempts += 1
                if attempts == 0:
                    self._unreachable_since = now()
                seconds = now() - self._unreachable_since
                if attempts >= self.retry.retries and seconds >= self.retry.max_delay:
                    self.lost = self._unreachable(
                        f"{self._server} has been unreachable for {seconds:.1f} seconds and {self._attempts} "
                        f"attempts: {error}"
                    )
            return None
        except Exception:
            self._reached = True  # something listens there, even if it does not understand us
            raise
        self._reached = True
        self._attempts = 0
        return (connection,)
