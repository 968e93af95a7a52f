"""Which server a call goes to, when it is retried, and for how long calls wait when no server can be reached."""

from collections.abc import Sequence
from typing import NamedTuple

from brim.core.rng import share
from brim.llm.config import PoolConfig
from brim.llm.engine.job import Job
from brim.llm.engine.server import ServerState
from brim.llm.failures import Failure

NEVER = float("inf")
RETRY_FIRST, RETRY_LONGEST = 0.1, 10.0
"""Upper limits in seconds of the delay before a retry: the first one, and any."""


class Choice(NamedTuple):
    """The server for a call, or why there is none."""

    server: ServerState | None
    at: float = NEVER
    """The time at which a server may have a free slot, as far as that does not depend on a request in flight."""
    lacking: Failure | None = None
    """The failure, if no server has the model."""


def choose(servers: Sequence[ServerState], job: Job, now: float) -> Choice:
    """Return the best server with a free slot: not the one that failed last, not one in trouble, the fastest."""
    best: ServerState | None = None
    wake = NEVER
    lacking: Failure | None = None
    useful = False
    for server in servers:
        missing = server.lacks(job.call.model, now)
        if missing is not None:
            lacking = missing
            continue
        useful = True
        at = server.ready_at(now)
        if at is None:
            continue
        if at > now:
            wake = min(wake, at)
        elif best is None or _rank(server, job) < _rank(best, job):
            best = server
    return Choice(best, wake, None if useful else lacking)


def _rank(server: ServerState, job: Job) -> tuple[bool, bool, float, int]:
    return (server is job.last, server.is_down, server.latency, server.in_flight)


def retry_at(servers: Sequence[ServerState], job: Job, now: float, *, seed: int) -> float | None:
    """Return the time of a call's next attempt after a failure, with full jitter; None for at once, if another server
    is free."""
    if any(server is not job.last and not server.is_down and server.is_free(now) for server in servers):
        return None
    failures = job.attempts - job.refusals
    longest = min(RETRY_FIRST * 2 ** min(failures - 1, 30), RETRY_LONGEST)
    return now + longest * share(seed=seed, purpose="llm/retry", epoch=job.number, index=job.attempts)


class Outage:
    """The time for which every server has been in trouble."""

    def __init__(self, config: PoolConfig, servers: Sequence[ServerState]) -> None:
        self._patience = config.patience
        self._servers = servers
        self._since: float | None = None

    def ends_at(self, now: float) -> float:
        """Return the time from which calls wait no longer, which may be past; infinite while a server is well.

        A server that was never reached is not waited for: a wrong address is better reported at once.
        """
        if not all(server.is_down for server in self._servers):
            self._since = None
            return NEVER
        if self._since is None:
            self._since = now
        return self._since + self._patience if any(server.reached for server in self._servers) else now

    @property
    def failure(self) -> Failure | None:
        """The last failure of a server."""
        return next((server.failure for server in self._servers if server.failure is not None), None)
