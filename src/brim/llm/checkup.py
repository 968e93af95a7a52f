"""A quick look at a model server: is it there, what does it have, how fast is it, how many requests at once.

It takes a few short requests one after another, and then as many at once as the pool finds right, until that number has
settled. The speed of requests together, divided by the speed of requests alone, tells how many the server really works
on at once: many servers accept any number, and let all but one wait.
"""

import time
from dataclasses import dataclass, replace
from itertools import islice
from statistics import median
from typing import Any

from brim.core.options import check_counts
from brim.llm.call import Call
from brim.llm.config import Server
from brim.llm.engine.limit import START
from brim.llm.engine.stats import ServerStats
from brim.llm.failures import Failure
from brim.llm.measure import (
    Found,
    Level,
    Progress,
    look_at,
    measure_level,
    pool_options,
    server_name,
    shifted,
    short_calls,
    with_options,
)

SHORT = 16
"""Upper limit of the tokens of an answer."""
FEW = 3
"""Requests that are sent one after another, for one token and for `SHORT` tokens."""
LONGEST = 30.0
"""Seconds for which requests are sent together; those under way are then cancelled."""
SETTLED = 48
"""Answers after which a limit counts as found, once it was lowered for the first time."""
HARDLY = 1.5
"""Requests together are hardly faster than alone below this ratio of the throughputs."""


@dataclass(frozen=True, kw_only=True)
class ServerCheck:
    """Findings about a server. None stands for what was not asked, or could not be found out."""

    server: str
    """Its address, without secrets."""
    found: Found | None = None
    model: str | None = None
    """The model that was asked."""
    first_request: float | None = None
    """Seconds of the first request, which may have to load the model."""
    first_token: float | None = None
    """Seconds of a request for one token: the median of a few. It includes the way to the server and back."""
    alone: Level | None = None
    """Requests one after another."""
    together: Level | None = None
    """Requests as many at once as the pool finds right."""
    limit: int | None = None
    """Requests at once that the pool settled on; None if it never had to lower its limit."""
    failure: Failure | None = None
    """Why the rest is missing."""

    @property
    def is_fine(self) -> bool:
        """True if no request failed."""
        failed = [level for level in (self.alone, self.together) if level is not None and level.failed]
        return self.failure is None and not failed

    @property
    def speedup(self) -> float | None:
        """Throughput of requests together, divided by that of requests one after another."""
        if self.alone is None or self.together is None:
            return None
        alone, together = self.alone.tokens_per_second, self.together.tokens_per_second
        if not alone or not together:
            alone, together = self.alone.requests_per_second, self.together.requests_per_second
        return together / alone if alone else None

    @property
    def advice(self) -> tuple[str, ...]:
        """Sentences about what to do, for a server that could do more."""
        speedup, together = self.speedup, self.together
        if self.found is None or speedup is None or together is None or speedup >= HARDLY:
            return ()
        if together.requests < 2 * START:  # too few to tell
            return ()
        slow = f"Requests at once are hardly faster than one after another ({speedup:.1f} times)"
        if self.limit is not None and self.limit > 2:
            return (
                f"{slow}, although the server works on about {self.limit} at once: one keeps its processor busy "
                "already, and more slots would not help.",
            )
        why = "the server seems to work on one request at a time"
        if self.limit is None:
            why += ", or one keeps its processor busy already"
        return (f"{slow}: {why}. {_more_slots(self.found.protocol)}",)

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON-like values."""
        return {
            "server": self.server,
            "fine": self.is_fine,
            "failure": None if self.failure is None else self.failure.to_dict(),
            "protocol": None if self.found is None else self.found.protocol,
            "models": None if self.found is None else list(self.found.models),
            "loaded": None if self.found is None else list(self.found.loaded),
            "model": self.model,
            "first_request_seconds": self.first_request,
            "first_token_seconds": self.first_token,
            "limit": self.limit,
            "speedup": self.speedup,
            "alone": None if self.alone is None else self.alone.to_dict(),
            "together": None if self.together is None else self.together.to_dict(),
            "advice": list(self.advice),
        }


def check_server(
    server: Server,
    *,
    model: str | None = None,
    requests: int = 256,
    timeout: float = 120.0,
    progress: Progress | None = None,
) -> ServerCheck:
    """Look at a server. What is wrong with it is in the result.

    Args:
        model: The model to ask. None takes the only one, or the only one in memory; of several, none is asked.
        requests: Upper limit of the requests that are sent together. Fewer are sent if their best number is found
            sooner, or after half a minute.
        timeout: Seconds for a request, and for loading the model.

    Raises:
        OptionError: An option cannot work, or the URL or the key cannot be used.
    """
    check_counts(requests=requests)
    pool_options(timeout)  # refuses a wrong time before anything is asked
    check = ServerCheck(server=server_name(server))
    try:
        found = look_at(server, timeout=timeout)
    except Failure as failure:
        return replace(check, failure=failure)
    model = model or found.only_model
    check = replace(check, found=found, model=model)
    if model is None:
        return check
    return _measured(check, replace(server, protocol=found.protocol), model, requests, timeout, progress)


class Settling:
    """Watches the limit of a server, and says when it has been found.

    A limit rises until it is met for the first time; then it stays close to what the server can do.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._last = START
        self._since: list[int] = []
        """The limit at every answer since it was lowered for the first time."""

    def __call__(self, figures: ServerStats) -> bool:
        """Note the limit after an answer. Returns whether it has been found, or the time is up."""
        if self._since or figures.limit < self._last:
            self._since.append(figures.limit)
        self._last = figures.limit
        return len(self._since) >= SETTLED or time.monotonic() - self._began > LONGEST

    @property
    def limit(self) -> int | None:
        """The limit on which it settled; None if it was never lowered."""
        return round(median(self._since)) if self._since else None


def _measured(
    check: ServerCheck, server: Server, model: str, requests: int, timeout: float, progress: Progress | None
) -> ServerCheck:
    """Send short requests: one for a start, a few alone, then many together. The first failure ends it."""
    before = 1 + 2 * (1 + FEW)
    asked = short_calls()

    def calls(number: int, max_tokens: int) -> list[Call]:
        return list(with_options(islice(asked, number), model, max_tokens))

    def alone(max_tokens: int) -> Level:
        return measure_level(server, calls(1 + FEW, max_tokens), concurrency=1, warm_up=1, timeout=timeout)

    first = measure_level(server, calls(1, 1), concurrency=1, timeout=timeout)
    check = replace(check, failure=first.failure, first_request=first.latency_p50)
    if first.failure is not None:
        return check
    one_token = alone(1)
    check = replace(check, failure=one_token.failure, first_token=one_token.latency_p50)
    if one_token.failure is not None:
        return check
    check = replace(check, alone=alone(SHORT))
    settling = Settling()
    together = measure_level(
        server,
        calls(requests, SHORT),
        concurrency=None,
        timeout=timeout,
        progress=shifted(progress, before, before + requests),
        stop=settling,
    )
    return replace(check, together=together, limit=settling.limit)


def _more_slots(protocol: str) -> str:
    if protocol == "ollama":
        return "Let it work on more with `OLLAMA_NUM_PARALLEL=8 ollama serve`."
    return (
        "Let it work on more: llama.cpp with `-np 8` (`brim llm serve --slots 8`), Ollama with "
        "`OLLAMA_NUM_PARALLEL=8 ollama serve`."
    )
