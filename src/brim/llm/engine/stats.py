"""Counters of a pool, as values that can be shown, added to a log, or compared."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from brim.core.fill import Fill
from brim.llm.engine.durations import percentile
from brim.llm.engine.server import ServerState, State


@dataclass(frozen=True, kw_only=True)
class ServerStats:
    """Figures of one server."""

    name: str
    limit: int
    """Requests at once that it is given at present."""
    in_flight: int
    state: State
    """State of the circuit breaker."""
    requests: int
    replies: int
    refused: int
    """Requests that it refused because it was busy (HTTP 429, 503)."""
    failures: int
    """Requests that failed in another way."""
    latency_p50: float | None
    latency_p90: float | None
    latency_p99: float | None
    queue_p50: float | None
    """Median of the seconds that requests waited in the server, where that is known."""
    fill: Fill
    """Milliseconds of its slots that were used, out of those that the limit allowed while calls were open."""


@dataclass(frozen=True, kw_only=True)
class PoolStats:
    """Figures of a pool."""

    calls: int
    """Calls that were submitted."""
    open: int
    """Calls that have not ended."""
    replies: int
    failures: dict[str, int]
    """Calls that failed, by type."""
    requests: int
    """Requests that were sent to servers, retries included."""
    retries: int
    hedges: int
    cached: int
    """Calls that the cache answered."""
    joined: int
    """Calls that were answered together with an equal one."""
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    """Time since the pool was opened."""
    fill: Fill
    servers: tuple[ServerStats, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON-like values."""
        return asdict(self)


@dataclass
class Counters:
    """Counters of a running engine."""

    calls: int = 0
    replies: int = 0
    failures: Counter[str] = field(default_factory=Counter[str])
    requests: int = 0
    retries: int = 0
    hedges: int = 0
    cached: int = 0
    joined: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


def pool_stats(
    counters: Counters, servers: Sequence[ServerState], *, open_calls: int, now: float, since: float
) -> PoolStats:
    """Return the figures up to now."""
    for server in servers:
        server.count_time(now, busy=open_calls > 0)
    each = tuple(_server_stats(server, now) for server in servers)
    return PoolStats(
        calls=counters.calls,
        open=open_calls,
        replies=counters.replies,
        failures=dict(sorted(counters.failures.items())),
        requests=counters.requests,
        retries=counters.retries,
        hedges=counters.hedges,
        cached=counters.cached,
        joined=counters.joined,
        prompt_tokens=counters.prompt_tokens,
        completion_tokens=counters.completion_tokens,
        seconds=now - since,
        fill=sum((one.fill for one in each), Fill()),
        servers=each,
    )


def _server_stats(server: ServerState, now: float) -> ServerStats:
    latencies, waits = sorted(server.latencies), sorted(server.waits)
    return ServerStats(
        name=server.name,
        limit=server.limit.value,
        in_flight=server.in_flight,
        state=server.state(now),
        requests=server.requests,
        replies=server.replies,
        refused=server.refused,
        failures=server.failures,
        latency_p50=_share(latencies, 0.5),
        latency_p90=_share(latencies, 0.9),
        latency_p99=_share(latencies, 0.99),
        queue_p50=_share(waits, 0.5),
        fill=_fill(server),
    )


def _share(ordered: Sequence[float], share: float) -> float | None:
    return percentile(ordered, share) if ordered else None


def _fill(server: ServerState) -> Fill:
    slots = round(1000 * server.slot_seconds)
    return Fill(min(round(1000 * server.used_seconds), slots), slots)
