"""Requests that take too long: when to give one up, and when to send it a second time."""

from collections.abc import Iterable, Iterator, Sequence

from brim.llm.config import PoolConfig
from brim.llm.engine.job import Attempt
from brim.llm.engine.server import ServerState

SHORTEST, LONGEST = 0.02, 1.0
"""Seconds between two looks."""
UNKNOWN = 30.0
"""A server of which little is known is given this many times the time of the slowest other."""


class Watch:
    """Looks at the requests in flight from time to time: there is no timer for each of them."""

    def __init__(self, config: PoolConfig, servers: Sequence[ServerState]) -> None:
        self._config = config
        self._servers = servers
        self._hedged = 0
        self.next_look = 0.0

    def look(self, attempts: Iterable[Attempt], now: float, *, hedging: bool) -> Iterator[tuple[Attempt, ServerState]]:
        """Cancel the requests that take too long. Yields those to be sent a second time, with the server to send to.

        Args:
            hedging: Whether slots are free that no other call waits for.
        """
        if now < self.next_look:
            return
        wait = LONGEST
        slow: list[Attempt] = []
        for attempt in list(attempts):
            if attempt.expired or attempt.job.ended:
                continue
            wait = min(wait, self._check(attempt, now, slow))
        self.next_look = now + max(wait, SHORTEST)
        if hedging:
            for attempt in slow:
                server = self._second_server(attempt, now)
                if server is not None:
                    yield attempt, server

    def _check(self, attempt: Attempt, now: float, slow: list[Attempt]) -> float:
        """Cancel a request that takes too long. Returns the seconds until it has to be looked at again."""
        age = now - attempt.began
        longest = self._longest(attempt)
        if longest is not None and age >= longest:
            attempt.expired = True
            if attempt.task is not None:
                attempt.task.cancel()
            return LONGEST
        wait = LONGEST if longest is None else longest - age
        if self._config.hedge and not attempt.job.hedged:
            after = attempt.server.durations(attempt.job).hedge_after()
            if after is not None:
                if age >= after:
                    slow.append(attempt)
                else:
                    wait = min(wait, after - age)
        return wait

    def _longest(self, attempt: Attempt) -> float | None:
        """Return the seconds that a request may take, or None if nothing but the deadline of its call ends it."""
        if self._config.attempt_timeout != "auto":
            return self._config.attempt_timeout
        job = attempt.job
        if job.attempts - job.refusals >= self._config.attempts:
            return None  # the last attempt has all the time that is left
        own = attempt.server.durations(job).give_up_after(job.max_tokens, job.timeouts)
        if own is not None:
            return own
        # A server of which little is known may have a single slot, and this request may hold it for ever.
        others = [server.durations(job).give_up_after(job.max_tokens, job.timeouts) for server in self._servers]
        return max((UNKNOWN * other for other in others if other is not None), default=None)

    def _second_server(self, attempt: Attempt, now: float) -> ServerState | None:
        """Return the server for a second request: another one rather than the same, if the budget allows it."""
        requests = sum(server.requests for server in self._servers)
        if self._hedged + 1 > self._config.hedge_budget * requests:
            return None
        model = attempt.job.call.model
        free = [
            server
            for server in self._servers
            if not server.is_down and server.is_free(now) and server.lacks(model, now) is None
        ]
        if not free:
            return None
        self._hedged += 1
        return min(free, key=lambda server: (server is attempt.server, server.latency))
