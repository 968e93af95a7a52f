"""Measure a model server: throughput and latency by the number of requests at once.

Real requests are sent to a real model, so a measurement costs what these cost. A request that fails is not repeated
here: every failure is seen and counted. One that the server refuses because it is busy (HTTP 429, 503) is sent again,
as in any other pool, and counted as refused. `brim.llm.checkup` uses the same parts to look at a server quickly.

Connections are opened by the first requests, one for each request at once. These are sent like the others and not
counted, because a program that asks for hours opens its connections once.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, cycle, islice
from typing import Any, Literal, cast

from brim.core.document import Document
from brim.core.errors import OptionError
from brim.core.options import check_counts
from brim.core.wait.loop import LoopThread
from brim.llm.call import Call, Reply, Sampling, chat
from brim.llm.config import LEVELS, PoolConfig, Server
from brim.llm.engine.durations import percentile
from brim.llm.engine.stats import ServerStats
from brim.llm.failures import Failure, Rejected, TimedOut
from brim.llm.pool import LLMPool
from brim.llm.wire.detect import DetectingEndpoint, open_endpoint
from brim.llm.wire.transport import HttpEndpoint

CURVE = Document(format="brim.llm-bench/1", what="a measurement of a model server", again="measure it again")
ENOUGH = 0.9
"""Share of the best throughput that makes the knee. It is lower than that of `brim.analyze.capacity.search`: between an
answer and the next request a slot is idle, so a server with 8 slots is not quite as fast with 8 requests at once as
with 16, which take twice as long."""
PROMPT = "Request {number}: write the numbers from {number} to 999 in words, separated by commas."
"""The number comes first, so that a server cannot reuse what it computed for another prompt."""
LOOK_SECONDS = 30.0
"""Upper limit of the time for the lists of models."""
OVERLOADED = 0.25
"""Refusals for each request above which a server counts as overloaded. A level ends there."""
NO_LIST = (404, 405, 501)
"""HTTP statuses of a server that has no list of models."""

Progress = Callable[[int, int], None]
"""Called with the number of requests that have ended, and the number of all."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """A server's description of itself."""

    protocol: Literal["ollama", "openai"]
    models: tuple[str, ...]
    """Empty if the server has no list of models."""
    loaded: tuple[str, ...]
    """Models in memory. Only Ollama tells; empty elsewhere."""

    @property
    def only_model(self) -> str | None:
        """The only model of the server, or the only one in memory; None if that leaves several."""
        return next((names[0] for names in (self.models, self.loaded) if len(names) == 1), None)


@dataclass(frozen=True, kw_only=True)
class Level:
    """Figures of requests that were sent with a certain number of them at once."""

    concurrency: int
    """Requests at once; where the pool chose it, the most that there were."""
    requests: int
    """Requests that ended and were counted."""
    seconds: float
    """Time in which they ended."""
    tokens: int | None
    """Tokens of all answers; None if the server does not count them."""
    latency_p50: float | None
    """Seconds from sending a request to its whole answer; None if none was answered."""
    latency_p90: float | None
    latency_p99: float | None
    refused: int
    """Times that the server refused a request because it was busy."""
    failures: Mapping[str, int] = field(default_factory=dict[str, int])
    """Requests without an answer, by type."""
    failure: Failure | None = None
    """The first of these failures."""

    @property
    def failed(self) -> int:
        """Requests without an answer."""
        return sum(self.failures.values())

    @property
    def is_overloaded(self) -> bool:
        """True if the server refused so many requests that the level was not measured to its end."""
        return self.refused > OVERLOADED * self.requests

    @property
    def requests_per_second(self) -> float:
        """Requests answered in a second."""
        return (self.requests - self.failed) / self.seconds

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens written in a second; None if the server does not count them."""
        return None if self.tokens is None else self.tokens / self.seconds

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON-like values."""
        return {
            "concurrency": self.concurrency,
            "requests": self.requests,
            "seconds": self.seconds,
            "tokens": self.tokens,
            "requests_per_second": self.requests_per_second,
            "tokens_per_second": self.tokens_per_second,
            "latency_p50": self.latency_p50,
            "latency_p90": self.latency_p90,
            "latency_p99": self.latency_p99,
            "refused": self.refused,
            "failed": self.failed,
            "failures": dict(self.failures),
            "failure": None if self.failure is None else str(self.failure),
        }


@dataclass(frozen=True, kw_only=True)
class LoadCurve:
    """Throughput and latency of a server by the number of requests at once."""

    server: str
    """Its address, without secrets."""
    protocol: str
    model: str
    max_tokens: int
    """Upper limit of the tokens of an answer."""
    levels: tuple[Level, ...]
    """In ascending order of the requests at once."""

    @property
    def counts_tokens(self) -> bool:
        """True if the throughput is known in tokens."""
        return any(level.tokens for level in self.levels)

    def rate(self, level: Level) -> float:
        """Return the throughput by which levels are compared: tokens in a second if they are counted, or else
        requests."""
        return (level.tokens_per_second or 0.0) if self.counts_tokens else level.requests_per_second

    @property
    def knee(self) -> Level | None:
        """The lowest level that reaches 90% of the best throughput: more requests at once wait longer and gain little.
        None if nothing was answered. Levels at which the server was overloaded do not count."""
        best = self.best
        usable = (level for level in self.levels if not level.is_overloaded)
        return next((level for level in usable if best and self.rate(level) >= ENOUGH * best), None)

    @property
    def best(self) -> float:
        """The best throughput of a level at which the server was not overloaded; 0 if there is none."""
        return max((self.rate(level) for level in self.levels if not level.is_overloaded), default=0.0)

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON-like values; `knee` is its number of requests at once."""
        return {
            "server": self.server,
            "protocol": self.protocol,
            "model": self.model,
            "max_tokens": self.max_tokens,
            "knee": None if self.knee is None else self.knee.concurrency,
            "levels": [level.to_dict() for level in self.levels],
        }


def measure_curve(
    server: Server,
    *,
    model: str | None = None,
    concurrency: Sequence[int] = LEVELS,
    requests: int | None = None,
    calls: Sequence[Call] = (),
    max_tokens: int = 32,
    timeout: float = 600.0,
    progress: Progress | None = None,
) -> LoadCurve:
    """Measure throughput and latency with several numbers of requests at once, from the lowest to the highest.

    A level at which nothing is answered, or at which the server refuses many requests, is the last one.

    Args:
        model: Name of the model. None takes the only one of the server.
        requests: Requests at each level; None is 4 for each one at once, and at least 16.
        calls: Questions to ask, from the first one again when all have been asked. Their models and sampling options
            are replaced. Without them, the model is asked for numbers in words.
        max_tokens: Upper limit of the tokens of an answer.
        timeout: Seconds for a request.

    Raises:
        Failure: The server cannot be reached, or does not answer the first request.
        OptionError: An option cannot work, or the server has several models and none is named.
    """
    check_counts(requests=requests, **{f"concurrency of {size}": size for size in concurrency})
    pool_options(timeout)  # refuses a wrong time before anything is asked
    if not concurrency:
        raise OptionError("concurrency must name at least one number of requests at once, got none")
    found = look_at(server, timeout=timeout)
    model = model or found.only_model
    if model is None:
        raise OptionError(f"name a model: the server has {', '.join(found.models[:10]) or 'no list of models'}")
    server = replace(server, protocol=found.protocol)
    asked = with_options(cycle(calls) if calls else short_calls(), model, max_tokens)
    # The first request may have to load the model. It is not part of any level.
    first = measure_level(server, [next(asked)], concurrency=1, timeout=timeout)
    if first.failure is not None:
        raise first.failure
    sizes = {size: requests or max(4 * size, 16) for size in sorted(set(concurrency))}
    levels: list[Level] = []
    done = 0
    for size, number in sizes.items():
        level = measure_level(
            server,
            list(islice(asked, size + number)),
            concurrency=size,
            warm_up=size,
            timeout=timeout,
            progress=shifted(progress, done, sum(sizes) + sum(sizes.values())),
            stop=lambda figures, number=number: figures.refused > OVERLOADED * number,
        )
        levels.append(level)
        done += size + number
        if level.failed == level.requests or level.is_overloaded:
            break
    return LoadCurve(
        server=server_name(server), protocol=found.protocol, model=model, max_tokens=max_tokens, levels=tuple(levels)
    )


def measure_level(
    server: Server,
    calls: Sequence[Call],
    *,
    concurrency: int | None,
    timeout: float,
    warm_up: int = 0,
    progress: Progress | None = None,
    stop: Callable[[ServerStats], bool] | None = None,
) -> Level:
    """Send calls over connections of their own, with a fixed number of them at once.

    Args:
        concurrency: Requests at once. None lets the pool find it out.
        warm_up: Calls that are not counted: the first ones that end. All are counted if the level is stopped.
        stop: Called after every call with the figures of the server; True ends the level, and cancels the requests that
            are under way.
    """
    results: list[Reply | Failure] = []
    most = 0
    with LLMPool(replace(server, limit=concurrency), config=pool_options(timeout)) as pool:
        began = warm = time.perf_counter()
        for _, result in pool.as_ready(calls, ahead=max(len(calls), 1)):
            results.append(result)
            if len(results) == warm_up:
                warm = time.perf_counter()
            if progress is not None:
                progress(len(results), len(calls))
            if stop is not None:
                figures = pool.stats().servers[0]
                most = max(most, figures.in_flight)
                if stop(figures):
                    warm, warm_up = began, 0
                    break
        seconds = time.perf_counter() - warm
        refused = pool.stats().servers[0].refused
    return _level(concurrency or most, results[warm_up:], seconds, refused)


def pool_options(timeout: float) -> PoolConfig:
    """Return the options of a pool that measures: it repeats nothing that failed, and waits for no lost server.

    Raises:
        OptionError: The time is not a number.
    """
    return PoolConfig(timeout=timeout, attempts=1, patience=0.0)


def look_at(server: Server, *, timeout: float = LOOK_SECONDS) -> Found:
    """Ask a server which protocol it speaks, which models it has, and which of them are in memory.

    Raises:
        Failure: It cannot be asked.
        OptionError: The URL or the key cannot be used.
    """
    with LoopThread("brim-llm-look") as thread:
        return thread.call(_look(server, min(timeout, LOOK_SECONDS)))


def server_name(server: Server) -> str:
    """Return the address of a server for people: without keys and passwords.

    Raises:
        OptionError: The URL or the key cannot be used.
    """
    return open_endpoint(server).name


def short_calls() -> Iterator[Call]:
    """Yield calls that all differ from their first words on, without end."""
    return (Call(messages=chat(PROMPT.format(number=number))) for number in count(1))


def with_options(calls: Iterable[Call], model: str, max_tokens: int) -> Iterator[Call]:
    """Yield calls to a model, with an upper limit of the tokens of an answer and no other options."""
    sampling = Sampling(max_tokens=max_tokens)  # without a seed and a temperature, equal calls are not joined
    return (replace(call, model=model, sampling=sampling) for call in calls)


def shifted(progress: Progress | None, before: int, total: int) -> Progress | None:
    """Return the progress of a part of a measurement, of whose `total` requests `before` have ended."""
    return None if progress is None else lambda done, _: progress(before + done, total)


def _level(concurrency: int, results: Sequence[Reply | Failure], seconds: float, refused: int) -> Level:
    replies = [result for result in results if isinstance(result, Reply)]
    failures = [result for result in results if isinstance(result, Failure)]
    latencies = sorted(reply.latency for reply in replies)
    counted = [reply.completion_tokens for reply in replies if reply.completion_tokens is not None]
    p50, p90, p99 = (percentile(latencies, share) if latencies else None for share in (0.5, 0.9, 0.99))
    return Level(
        concurrency=concurrency,
        requests=len(results),
        seconds=max(seconds, 1e-9),
        tokens=sum(counted) if counted else None,
        latency_p50=p50,
        latency_p90=p90,
        latency_p99=p99,
        refused=refused,
        failures=Counter(type(failure).__name__ for failure in failures),
        failure=failures[0] if failures else None,
    )


async def _look(server: Server, seconds: float) -> Found:
    endpoint = cast("DetectingEndpoint | HttpEndpoint", open_endpoint(server))
    try:
        async with asyncio.timeout(seconds):
            models = await _names(endpoint.models())
            loaded = await _names(endpoint.loaded())
    except TimeoutError:
        raise TimedOut(f"no list of models after {seconds:g} s", server=endpoint.name) from None
    finally:
        await endpoint.close()
    protocol = endpoint.protocol
    assert protocol != "auto", "a server that was asked has a protocol"
    return Found(protocol=protocol, models=models, loaded=loaded)


async def _names(asking: Coroutine[Any, Any, list[str]]) -> tuple[str, ...]:
    """Return the names in a list of models; none if the server has no such list."""
    try:
        return tuple(await asking)
    except Rejected as failure:
        if failure.status in NO_LIST:
            return ()
        raise
