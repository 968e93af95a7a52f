"""How many requests a server takes at once, found out while they run.

`Limit` is a state machine without a clock or a network: it is told what happened, and `value` is the number of requests
that may be in flight. Three signals move it:

- A refusal (HTTP 429, 503) says that the requests which were not refused are as many as the server takes.
- A server that reports how long a request waited tells how many of the requests in flight were being worked on. The
  shortest wait of recent rounds is the time on the network and other constant costs, and does not count.
- Otherwise the latency (per token, where tokens are counted) is compared with the lowest one of recent rounds. If it
  has grown and the throughput has not, the surplus of requests only waits.

Every answer raises the limit by 1, which doubles it in every round trip, until the first sign of congestion (slow
start). From then on it is raised once in a round, by a step that begins at 1 and doubles for as long as nothing
happens, after a pause that grows while the same limit is met again and again: a stable server is disturbed rarely, and
one that grew is followed within a few round trips. It is not raised while the requests do not fill it.

Latencies scatter. A round in which they are compared lasts until their median is certain enough, and a limit that was
lowered because of them is an experiment: if fewer requests are not answered sooner, twice in a row, nothing had waited,
and the limit is put back.
"""

import math
from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from statistics import fmean, median, quantiles

START = 4
"""Requests at once with which a server is first met."""
FEW, MOST = 24, 512
"""Answers that make a round at least, where latencies alone are compared, and at most because they scatter."""
ERROR, FIRST_ERROR = 0.1, 0.15
"""Relative standard error of a median latency that is small enough to compare it with another; in slow start, where a
full server answers half as fast in the next round, a larger one will do."""
QUEUED = 0.2
"""Share of the service time that requests may wait in a server which reports it, before the limit is lowered."""
NEGLIGIBLE = 0.002
"""Seconds of waiting that are never a reason to lower the limit."""
SERVICES = 256
"""Answers over which the mean service time is taken, where it is reported."""
SHORTEST = 1e-6
"""Lower limit of a latency in seconds: it is divided by."""
SLOWER = 1.6
"""Ratio of the latency to the lowest recent one that is taken as a sign of waiting."""
CHANGED = 1.5
"""Ratio of latencies of two rounds from which the server itself must have become slower."""
GAIN = 1.15
"""Ratio of throughputs from which a higher limit was worth its latency."""
MARGIN, FELT_MARGIN = 1.06, 1.25
"""The limit is set this much above the estimated capacity, so that no slot is idle between two requests: where waiting
is reported, and where it is guessed from latencies."""
LONGEST_PAUSE, FELT_PAUSE = 8, 2
"""Rounds for which a limit that was met again and again is kept, before a higher one is tried."""
MEMORY = 64
"""Rounds for which the lowest latency is remembered. After that a round with half of the requests measures it anew."""

Kind = Hashable
"""Calls of one kind are alike, so that their latencies can be compared: the same model, chats or embeddings."""
Typical = Mapping[Kind, tuple[int, float]]
"""For each kind the number of answers, and their typical latency."""


class _Round:
    """The answers to requests that were sent in one round."""

    def __init__(self) -> None:
        self.answers = 0
        self.flights = 0
        self.filled = False
        """True if the limit was reached."""
        self.waits: list[float] = []
        self.look_at = 0
        """Answers after which it is worth looking again whether they are enough."""
        self._latencies: dict[Kind, list[float]] = {}
        """Latencies, for each token of an answer if tokens are counted."""

    def add(self, kind: Kind, latency: float, in_flight: int, tokens: int | None) -> None:
        self.answers += 1
        self.flights += in_flight
        # Latencies with and without tokens are different things, so they are kept apart.
        value = max(latency, SHORTEST) / (tokens or 1)
        self._latencies.setdefault((kind, bool(tokens)), []).append(value)

    @property
    def reported(self) -> bool:
        """True if the server says how long requests waited."""
        return 2 * len(self.waits) >= self.answers

    @property
    def flight(self) -> float:
        """Requests in flight, on average."""
        return self.flights / self.answers

    def typical(self) -> Typical:
        """Return the median latencies."""
        return {kind: (len(latencies), median(latencies)) for kind, latencies in self._latencies.items()}

    @property
    def error(self) -> float:
        """Relative standard error of the median, as of a log-normal distribution."""
        latencies = max(self._latencies.values(), key=len)
        if len(latencies) < 2:
            return 1.0
        low, _, high = quantiles(latencies, n=4, method="inclusive")
        scatter = math.log(high / low) / 1.35  # the quartiles are 1.35 standard deviations apart
        return 1.25 * scatter / math.sqrt(len(latencies))


class _Lowest:
    """The lowest value of the last `MEMORY` rounds."""

    def __init__(self) -> None:
        self._ascending: deque[tuple[int, float]] = deque()
        """(round, value), ascending in both: a value is dropped when a later one is lower."""

    def add(self, round: int, value: float) -> float:
        """Add the value of a round, and return the lowest."""
        known = self._ascending
        while known and known[-1][1] >= value:
            known.pop()
        known.append((round, value))
        while known[0][0] < round - MEMORY:
            known.popleft()
        return known[0][1]


def _ratio(typical: Typical, base: Mapping[Kind, float]) -> float:
    """Return the latencies relative to others of their kind, on average; 1 if there are none to compare with."""
    pairs = [(count, latency / base[kind]) for kind, (count, latency) in typical.items() if kind in base]
    answers = sum(count for count, _ in pairs)
    return sum(count * ratio for count, ratio in pairs) / answers if answers else 1.0


@dataclass(frozen=True)
class _Experiment:
    """A limit that was lowered because latencies had grown."""

    limit: float
    """The limit before."""
    flight: float
    typical: Typical
    repeated: bool = False
    """True if the first attempt did not help, and the limit was halved once more. Two rounds are needed, because the
    server may have become slower in the middle of the first."""

    def refuted_by(self, seen: _Round) -> bool:
        """Whether fewer requests are not answered sooner: by less than half of what waiting in a queue would explain.

        If they are answered much later, the server has changed in the meantime, which refutes nothing.
        """
        before = {kind: latency for kind, (_, latency) in self.typical.items()}
        return (1.0 + seen.flight / self.flight) / 2 <= _ratio(seen.typical(), before) <= CHANGED


class Limit:
    """The limit of one server. A fixed one has `lowest == highest`.

    Example:
        >>> limit = Limit(highest=64)
        >>> for _ in range(4):
        ...     limit.answered(limit.round, 0.05, in_flight=4)
        >>> limit.value
        8
        >>> limit.refused(in_flight=6)
        >>> limit.value
        6
    """

    def __init__(self, *, lowest: int = 1, highest: int = 1024) -> None:
        self.lowest = lowest
        self.highest = highest
        self.round = 0
        """Number of the present round. A request belongs to the round in which it was sent."""
        self._limit = float(min(max(START, lowest), highest))
        self._seen = _Round()
        self._slow_start = True
        self._ceiling = 2 * self._limit
        """The limit that slow start may reach in this round."""
        self._step = 1
        """The next raise."""
        self._pause = 0
        """Rounds left before a higher limit is tried."""
        self._pauses = 1
        """Length of the next pause."""
        self._met = 0.0
        """The limit at which congestion was last met."""
        self._refuses = False
        """True if the last congestion was a refusal."""
        self._lowest: dict[Kind, _Lowest] = {}
        """The lowest typical latencies."""
        self._waits = _Lowest()
        self._service = 0.0
        """Mean service time that the server reports, over the last `SERVICES` answers of whichever round: requests that
        take long are answered after their round has ended, and a mean without them would be too low."""
        self._services = 0
        self._rate = 0.0
        """Throughput of the last round in which nothing seemed to wait, relative to that of a request alone."""
        self._experiment: _Experiment | None = None
        self._probe_in = 4
        """Rounds until the latency is measured with half of the requests."""
        self._probes_apart = 4
        self._back_to: float | None = None
        """The limit to return to after such a round."""

    @property
    def value(self) -> int:
        return int(self._limit)

    def sent(self, in_flight: int) -> None:
        """Note that a request was sent; `in_flight` includes it."""
        if in_flight >= self.value:
            self._seen.filled = True

    def answered(
        self,
        round: int,
        latency: float,
        *,
        in_flight: int,
        kind: Kind = "",
        tokens: int | None = None,
        wait: float | None = None,
        service: float | None = None,
    ) -> None:
        """Note the answer to a request that was sent in `round`.

        Args:
            in_flight: Number of requests in flight when it was sent, itself included.
            kind: Kind of the call. Only latencies of the same kind are compared.
            tokens: Tokens of the answer, if they are known.
            wait: Seconds that it waited in the server, if the server reports it.
            service: Seconds that the server worked on it, if the server reports it.
        """
        if self.lowest == self.highest:
            return
        if self._slow_start and 2 * in_flight >= self.value:
            self._limit = min(self._limit + 1.0, self._ceiling, float(self.highest))
        if wait is not None and service:
            self._services = min(self._services + 1, SERVICES)
            self._service += (service - self._service) / self._services
        if round != self.round:
            return
        seen = self._seen
        seen.add(kind, latency, in_flight, tokens)
        if wait is not None and service:
            seen.waits.append(wait)
        if seen.answers < seen.flight:
            return
        if self._refuses or seen.reported or self._is_certain(seen):
            self._end_round(seen)

    def refused(self, in_flight: int) -> None:
        """Note that the server refused a request because it is busy; `in_flight` counts those that are left."""
        level = max(self.lowest, in_flight)
        if level >= self._limit:
            return
        self._refuses = True
        self._experiment = None
        # Refusals that follow each other without a finished round in between are one event: the server refused a burst.
        self._lower(level, again=self._pause != self._pauses, longest=LONGEST_PAUSE)

    def lost(self) -> None:
        """Note that the server was unreachable: begin again, as with a server that was never met."""
        round = self.round + 1
        self.__init__(lowest=self.lowest, highest=self.highest)
        self.round = round

    def _is_certain(self, seen: _Round) -> bool:
        """Whether there are enough latencies to compare them with those of other rounds."""
        if self._slow_start:
            few, largest = 1, FIRST_ERROR
        elif self._back_to is None:
            few, largest = FEW, ERROR
        else:  # with half of the requests slots are idle, so this round is kept short
            few, largest = FEW // 3, ERROR
        if seen.answers < max(few, seen.look_at):
            return False
        error = seen.error
        # The error falls with the square root of the number.
        seen.look_at = min(math.ceil(seen.answers * (error / largest) ** 2), MOST)
        return error <= largest or seen.answers >= MOST

    def _end_round(self, seen: _Round) -> None:
        experiment, self._experiment = self._experiment, None
        if experiment is not None and experiment.refuted_by(seen):
            if not experiment.repeated and self._limit >= 2 * self.lowest:
                self._experiment = _Experiment(experiment.limit, seen.flight, seen.typical(), repeated=True)
                self._next_round(self._limit / 2)
            else:
                self._forget(seen.typical())
                self._next_round(experiment.limit)
            return
        surplus = self._reported_surplus(seen) if seen.reported else self._felt_surplus(seen)
        if self._back_to is not None:
            limit, self._back_to = self._back_to, None
            self._next_round(limit)
        elif surplus > 1.0:
            self._relieve(seen, surplus)
        elif not seen.filled or self._slow_start:
            self._next_round(self._limit)
        else:
            self._steady(seen)

    def _relieve(self, seen: _Round, surplus: float) -> None:
        """Lower the limit to what the server works on at once, and a little more."""
        capacity = seen.flight / surplus
        before = self._limit
        self._refuses = False
        if seen.reported:
            self._lower(min(MARGIN * capacity, before), again=True, longest=LONGEST_PAUSE)
        else:
            self._lower(min(FELT_MARGIN * capacity, before), again=True, longest=FELT_PAUSE)
            self._experiment = _Experiment(before, seen.flight, seen.typical())

    def _reported_surplus(self, seen: _Round) -> float:
        """Return the requests in flight for each one that is worked on, as the server reports it; 1 if few wait."""
        least = self._waits.add(self.round, min(seen.waits))
        service, wait = self._service, fmean(seen.waits) - least
        if wait <= max(QUEUED * service, NEGLIGIBLE):
            return 1.0
        return (service + wait) / service

    def _felt_surplus(self, seen: _Round) -> float:
        """Return the requests in flight for each one that is worked on, as latency and throughput tell; 1 if none
        waits."""
        typical = seen.typical()
        base = {
            kind: self._lowest.setdefault(kind, _Lowest()).add(self.round, latency)
            for kind, (_, latency) in typical.items()
        }
        slower = _ratio(typical, base)
        if slower <= SLOWER:
            self._rate = seen.flight / slower
            return 1.0
        if seen.flight / slower > GAIN * self._rate:
            # A server that works on many requests together: each takes longer, and yet more are done.
            self._forget(typical, divided_by=SLOWER)
            self._rate = seen.flight / SLOWER
            return 1.0
        return slower

    def _forget(self, typical: Typical, *, divided_by: float = 1.0) -> None:
        """Compare with these latencies from now on, and with none before."""
        for kind, (_, latency) in typical.items():
            self._lowest[kind] = _Lowest()
            self._lowest[kind].add(self.round, latency / divided_by)

    def _lower(self, limit: float, *, again: bool, longest: int) -> None:
        if again:
            near = 0.85 * self._met <= limit <= 1.18 * self._met
            self._pauses = min(2 * self._pauses, longest) if near else 1
        self._met = limit
        self._slow_start = False
        self._pause = self._pauses
        self._step = 1
        self._back_to = None
        self._next_round(limit)

    def _steady(self, seen: _Round) -> None:
        """Keep the limit, try a higher one, or measure the latency with half of the requests."""
        self._probe_in -= 1
        if self._probe_in <= 0 and not seen.reported and self._limit > self.lowest:
            self._probes_apart = min(2 * self._probes_apart, MEMORY)
            self._probe_in = self._probes_apart
            self._back_to = self._limit
            self._next_round(self._limit / 2)
        elif self._pause > 0:
            self._pause -= 1
            self._next_round(self._limit)
        else:
            # Rounds in which latencies are compared are long, so the first step is larger.
            least = 1 if self._refuses or seen.reported else int(self._limit / 8)
            step = max(self._step, least)
            self._step = 2 * step
            self._next_round(min(self._limit + step, 2 * self._limit))

    def _next_round(self, limit: float) -> None:
        self._limit = float(min(max(limit, self.lowest, 1), self.highest))
        self._ceiling = 2 * self._limit
        self._seen = _Round()
        self.round += 1

    def __repr__(self) -> str:
        return f"Limit({self.value}{', slow start' if self._slow_start else ''})"
