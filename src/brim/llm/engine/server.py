"""One server as the engine sees it: free slots, pauses, circuit breaker, figures.

The breaker opens after `STREAK` failures in a row and lets one request through after a delay that doubles each time. It
never opens for good: while a call waits, the server is asked again sooner or later.
"""

from collections import deque
from typing import Literal

from brim.core.rng import share
from brim.llm.call import Answer
from brim.llm.endpoint import Endpoint
from brim.llm.engine.durations import Durations
from brim.llm.engine.job import Attempt, Job, Queue
from brim.llm.engine.limit import Limit
from brim.llm.engine.rates import Rate
from brim.llm.failures import Failure, Overloaded, ServerLost

STREAK = 5
"""Failures in a row that open the breaker."""
OPEN_FIRST, OPEN_LONGEST = 0.5, 30.0
"""Seconds for which the breaker stays open: the first time, and at most."""
AWAY_LONGEST = 2.0
"""The same at most for a server to which no connection can be made: an attempt costs nothing there, and its return
should be noticed soon."""
MISSING_FOR = 30.0
"""Seconds for which a server is not asked again for a model that it does not have."""
BUSY_FIRST, BUSY_LONGEST = 0.05, 10.0
"""Seconds for which a server that refuses everything is left alone: the first time, and at most."""
REMEMBERED = 1024
"""Latencies from which the percentiles of the statistics are computed."""
SMOOTHING = 0.2
"""Weight of a new latency in the mean by which servers are compared."""

State = Literal["closed", "open", "half-open"]


class ServerState:
    """The state of one server. All times are those of the event loop."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        limit: int | None = None,
        max_limit: int = 1024,
        rpm: float | None = None,
        tpm: float | None = None,
        seed: int = 42,
        number: int = 0,
    ) -> None:
        self.endpoint = endpoint
        self.name = endpoint.name
        self.number = number
        self.limit = Limit(highest=max_limit) if limit is None else Limit(lowest=limit, highest=limit)
        self.in_flight = 0
        self._flying: dict[Attempt, None] = {}
        """Requests in flight."""
        self.reached = False
        """True if it ever sent a reply, of whatever kind."""
        self.failure: Failure | None = None
        """The last failure."""
        self.requests = 0
        self.replies = 0
        self.refused = 0
        self.failures = 0
        self.latencies: deque[float] = deque(maxlen=REMEMBERED)
        self.waits: deque[float] = deque(maxlen=REMEMBERED)
        self.used_seconds = 0.0
        """Sum over all requests of the time that they were in flight."""
        self.slot_seconds = 0.0
        """The limit, summed over the time during which calls were open."""
        self.latency = 0.0
        """Smoothed latency in seconds; 0 before the first answer."""
        self._requests_rate = None if rpm is None else Rate(rpm)
        self._tokens_rate = None if tpm is None else Rate(tpm)
        self._tokens_mean = 0.0
        self._durations: dict[tuple[str, str], Durations] = {}
        self._missing: dict[str, tuple[float, Failure]] = {}
        self._streak = 0
        self._open_until = 0.0
        self._opened = 0
        """Times that the breaker opened since the last reply."""
        self._probing: Attempt | None = None
        self._paused_until = 0.0
        self._busy = 0
        """Refusals since the last reply while nothing else was in flight."""
        self._counted_at: float | None = None
        self._seed = seed

    @property
    def is_down(self) -> bool:
        """True while the breaker is not closed."""
        return self._opened > 0

    def state(self, now: float) -> State:
        if not self._opened:
            return "closed"
        return "open" if now < self._open_until else "half-open"

    def ready_at(self, now: float) -> float | None:
        """Return the time from which a request may be sent: `now` or before if at once, None if not before another one
        has ended."""
        if self._opened:
            if self._probing is not None:
                return None
            return max(self._open_until, self._paused_until)
        if self.in_flight >= self.limit.value:
            return None
        at = self._paused_until
        for rate in (self._requests_rate, self._tokens_rate):
            if rate is not None:
                at = max(at, now + rate.wait(now))
        return at

    def is_free(self, now: float) -> bool:
        """Whether a request may be sent at once."""
        at = self.ready_at(now)
        return at is not None and at <= now

    def lacks(self, model: str, now: float) -> Failure | None:
        """Return the failure with which the server said, not long ago, that it does not have the model."""
        known = self._missing.get(model)
        return known[1] if known is not None and now < known[0] else None

    def sent(self, attempt: Attempt, now: float, *, busy: bool) -> None:
        """Take a slot."""
        self.count_time(now, busy=busy)
        self.in_flight += 1
        self.requests += 1
        self._flying[attempt] = None
        attempt.in_flight = self.in_flight
        self.limit.sent(self.in_flight)
        if self._opened:
            self._probing = attempt
        if self._requests_rate is not None:
            self._requests_rate.take(1, now)
        if self._tokens_rate is not None:
            attempt.tokens = self._tokens_mean or float(attempt.job.max_tokens or 0)
            self._tokens_rate.take(attempt.tokens, now)

    def left(self, attempt: Attempt, now: float, *, busy: bool) -> None:
        """Give the slot back, however the request ended."""
        self.count_time(now, busy=busy)
        self.in_flight -= 1
        self._flying.pop(attempt, None)
        if self._probing is attempt:
            self._probing = None

    def answered(self, attempt: Attempt, answer: Answer, now: float) -> float:
        """Note an answer. Returns its latency in seconds."""
        latency = now - attempt.began
        job = attempt.job
        wait = answer.queue_seconds
        if wait is None and answer.service_seconds is not None:
            wait = max(latency - answer.service_seconds, 0.0)
        service = answer.service_seconds if answer.service_seconds is not None else latency - (wait or 0.0)
        self.limit.answered(
            attempt.round,
            latency,
            in_flight=attempt.in_flight,
            kind=job.queue,
            tokens=answer.completion_tokens or answer.prompt_tokens,
            wait=wait,
            service=service,
            still_open=lambda: self._ages(attempt.round, now),
        )
        self.replies += 1
        self.latencies.append(latency)
        if wait is not None:
            self.waits.append(wait)
        self.latency += (latency - self.latency) * (SMOOTHING if self.latency else 1.0)
        self.durations(job).add(latency, job.max_tokens)
        self._note_tokens(attempt, answer, now)
        self._reset()
        return latency

    def failed(self, attempt: Attempt, failure: Failure, now: float) -> None:
        """Note a failed attempt whose slot was given back already."""
        self.failure = failure
        if not isinstance(failure, ServerLost):
            self.reached = True
        if attempt.tokens and self._tokens_rate is not None:
            self._tokens_rate.take(-attempt.tokens, now)
        if isinstance(failure, Overloaded):
            self._refuse(failure, now)
            return
        self.failures += 1
        if not failure.transient:  # the server is well, and the request is wrong
            self._reset()
            return
        self._streak += 1
        # Of the requests that were in flight when the breaker opened, none opens it once more.
        if self._opened and now < self._open_until:
            return
        if self._opened or self._streak >= STREAK:
            self._opened += 1
            longest = AWAY_LONGEST if is_away(failure) else OPEN_LONGEST
            seconds = min(OPEN_FIRST * 2 ** (self._opened - 1), longest)
            self._open_until = now + seconds * (0.75 + self._jitter("breaker", self._opened) / 2)
            if isinstance(failure, ServerLost):
                self.limit.lost()

    def model_missing(self, model: str, failure: Failure, now: float) -> None:
        self._missing[model] = (now + MISSING_FOR, failure)

    def durations(self, job: Job) -> Durations:
        """Return the recent latencies of calls of the same kind and model."""
        found = self._durations.get(job.queue)
        if found is None:
            found = self._durations[job.queue] = Durations()
        return found

    def count_time(self, now: float, *, busy: bool) -> None:
        """Add the time since the last count to the seconds of slots that were there and that were used."""
        if self._counted_at is not None:
            seconds = now - self._counted_at
            self.used_seconds += self.in_flight * seconds
            if busy:
                self.slot_seconds += max(self.limit.value, self.in_flight) * seconds
            else:
                self.slot_seconds += self.in_flight * seconds
        self._counted_at = now

    def _ages(self, round: int, now: float) -> list[tuple[Queue, float]]:
        """Return kind and age of the requests of a round that have no answer yet."""
        return [(one.job.queue, now - one.began) for one in self._flying if one.round == round]

    def _refuse(self, failure: Overloaded, now: float) -> None:
        self.refused += 1
        self.limit.refused(self.in_flight)
        if failure.retry_after is not None:
            # The same moment for everybody would be the next rush: the pause is up to a quarter longer.
            pause = failure.retry_after * (1.0 + self._jitter("retry-after", self.refused) / 4)
            self._paused_until = max(self._paused_until, now + pause)
        elif self.in_flight == 0:
            # Nothing is being worked on that could make room by its end: this is a limit of another kind, or an outage.
            self._busy += 1
            pause = min(BUSY_FIRST * 2 ** (self._busy - 1), BUSY_LONGEST)
            self._paused_until = max(self._paused_until, now + pause * (0.5 + self._jitter("busy", self.refused)))

    def _note_tokens(self, attempt: Attempt, answer: Answer, now: float) -> None:
        if self._tokens_rate is None:
            return
        tokens = float((answer.prompt_tokens or 0) + (answer.completion_tokens or 0))
        self._tokens_rate.take(tokens - attempt.tokens, now)
        self._tokens_mean += (tokens - self._tokens_mean) * (SMOOTHING if self._tokens_mean else 1.0)

    def _reset(self) -> None:
        self.reached = True
        self._streak = 0
        self._opened = 0
        self._busy = 0

    def _jitter(self, purpose: str, number: int) -> float:
        return share(seed=self._seed, purpose=f"llm/{purpose}/{self.number}", epoch=number)


def is_away(failure: Failure) -> bool:
    """Return whether no connection to the server could be made."""
    return isinstance(failure, ServerLost) and not failure.connected
