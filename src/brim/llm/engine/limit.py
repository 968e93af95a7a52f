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

Latencies scatter. A round in which they are compared lasts until their median is certain enough, and they count as
grown only by as much as is certain: too many requests at once cost nothing but latency, too few cost throughput. A
limit that was lowered because of latencies is an experiment: if fewer requests are not answered sooner, twice in a row,
nothing had waited, and the limit is put back. From time to time a short round with half of the requests measures the
latency without waiting anew.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from brim.llm.engine.latencies import MEMORY, Kind, Lowest, RoundLatencies, Typical, mean_ratio, ratio

START = 4
"""Requests at once with which a server is first met."""
FEW, MOST = 24, 512
"""Answers that make a round at least, where latencies alone are compared, and at most because they scatter."""
PROBE_FEW, PROBE_MOST = 8, 48
"""The same for a round with half of the requests, which leaves slots idle."""
ERROR, PROBE_ERROR, FIRST_ERROR = 0.1, 0.15, 0.3
"""Relative standard error of a median latency that is small enough to compare it with another: in general, in a round
with half of the requests, and in slow start, where a full server answers half as fast in the next round."""
SURE, FIRST_SURE = 1.0, 2.0
"""Standard errors of both medians that are taken off a latency that seems to have grown; more in slow start, which ends
but once."""
QUEUED = 0.2
"""Share of the service time that requests may wait in a server which reports it, before the limit is lowered."""
NEGLIGIBLE = 0.002
"""Seconds of waiting that are never a reason to lower the limit."""
SERVICES = 256
"""Answers over which the mean service time is taken, where it is reported."""
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
Open = Callable[[], Iterable[tuple[Kind, float]]]
"""Returns (kind, age in seconds) of the requests of the present round that have no answer yet."""


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
        self.latencies = RoundLatencies()

    def add(self, kind: Kind, latency: float, in_flight: int, tokens: int | None) -> None:
        self.answers += 1
        self.flights += in_flight
        self.latencies.add(kind, latency, tokens)

    @property
    def reported(self) -> bool:
        """True if the server says how long requests waited."""
        return 2 * len(self.waits) >= self.answers

    @property
    def flight(self) -> float:
        """Requests in flight, on average."""
        return self.flights / self.answers


@dataclass(frozen=True)
class _Experiment:
    """A limit that was lowered because latencies had grown."""

    limit: float
    """The limit before."""
    flight: float
    typical: Mapping[Kind, Typical]
    repeated: bool = False
    """True if the first attempt did not help, and the limit was halved once more. Two rounds are needed, because the
    server may have become slower in the middle of the first."""

    def refuted_by(self, flight: float, typical: Mapping[Kind, Typical]) -> bool:
        """Whether fewer requests are not answered sooner: by less than half of what waiting in a queue would explain.

        If they are answered much later, the server has changed in the meantime, which refutes nothing.
        """
        return (1.0 + flight / self.flight) / 2 <= ratio(typical, self.typical) <= CHANGED


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
        self._lowest: dict[Kind, Lowest[Typical]] = {}
        """The lowest typical latencies."""
        self._waits: Lowest[float] = Lowest(float)
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
        still_open: Open = tuple,
    ) -> None:
        """Note the answer to a request that was sent in `round`.

        Args:
            in_flight: Number of requests in flight when it was sent, itself included.
            kind: Kind of the call. Only latencies of the same kind are compared.
            tokens: Tokens of the answer, if they are known.
            wait: Seconds that it waited in the server, if the server reports it.
            service: Seconds that the server worked on it, if the server reports it.
            still_open: Returns (kind, age in seconds) of the requests of the same round that have no answer yet.
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
        if self._refuses or seen.reported or self._is_certain(seen, still_open):
            self._end_round(seen, seen.latencies.typical(still_open()))

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

    def _is_certain(self, seen: _Round, still_open: Open) -> bool:
        """Whether there are enough latencies to compare them with those of other rounds."""
        if self._slow_start:
            few, most, largest = 1, MOST, FIRST_ERROR
        elif self._back_to is None:
            few, most, largest = FEW, MOST, ERROR
        else:
            few, most, largest = PROBE_FEW, PROBE_MOST, PROBE_ERROR
        if seen.answers < max(few, seen.look_at):
            return False
        typical = seen.latencies.typical(still_open()).values()
        error = max(typical, key=lambda one: one.answers).error
        # The error falls with the square root of the number.
        seen.look_at = min(math.ceil(seen.answers * (error / largest) ** 2), most)
        return error <= largest or seen.answers >= most

    def _end_round(self, seen: _Round, typical: Mapping[Kind, Typical]) -> None:
        experiment, self._experiment = self._experiment, None
        if experiment is not None and experiment.refuted_by(seen.flight, typical):
            if not experiment.repeated and self._limit >= 2 * self.lowest:
                self._experiment = _Experiment(experiment.limit, seen.flight, typical, repeated=True)
                self._next_round(self._limit / 2)
            else:
                self._forget(typical)
                self._next_round(experiment.limit)
            return
        surplus = self._reported_surplus(seen) if seen.reported else self._felt_surplus(seen.flight, typical)
        if self._back_to is not None:
            limit, self._back_to = self._back_to, None
            self._next_round(limit)
        elif surplus > 1.0:
            self._relieve(seen, typical, surplus)
        elif not seen.filled or self._slow_start:
            self._next_round(self._limit)
        else:
            self._steady(seen)

    def _relieve(self, seen: _Round, typical: Mapping[Kind, Typical], surplus: float) -> None:
        """Lower the limit to what the server works on at once, and a little more."""
        capacity = seen.flight / surplus
        before = self._limit
        self._refuses = False
        if seen.reported:
            self._lower(min(MARGIN * capacity, before), again=True, longest=LONGEST_PAUSE)
        else:
            if self._slow_start:  # its rounds are short, so that low latencies in them may be chance
                self._lowest.clear()
            self._lower(min(FELT_MARGIN * capacity, before), again=True, longest=FELT_PAUSE)
            self._experiment = _Experiment(before, seen.flight, typical)

    def _reported_surplus(self, seen: _Round) -> float:
        """Return the requests in flight for each one that is worked on, as the server reports it; 1 if few wait."""
        self._waits.add(self.round, min(seen.waits))
        service, wait = self._service, fmean(seen.waits) - self._waits.item
        if wait <= max(QUEUED * service, NEGLIGIBLE):
            return 1.0
        return (service + wait) / service

    def _felt_surplus(self, flight: float, typical: Mapping[Kind, Typical]) -> float:
        """Return the requests in flight for each one that is worked on, as latency and throughput tell; 1 if none
        waits."""
        for kind, one in typical.items():
            self._lowest.setdefault(kind, Lowest(Typical.at_most)).add(self.round, one)
        likely = self._surplus(typical)
        certain = self._surplus(typical, FIRST_SURE if self._slow_start else SURE)
        if certain <= SLOWER:
            self._rate = flight / likely
            return 1.0
        if flight / likely > GAIN * self._rate:
            # A server that works on many requests together: each takes longer, and yet more are done.
            self._forget(typical, divided_by=SLOWER)
            self._rate = flight / SLOWER
            return 1.0
        return certain

    def _surplus(self, typical: Mapping[Kind, Typical], errors: float = 0.0) -> float:
        """Return (time in the queue + service time) / service time; less by so many standard errors."""
        return mean_ratio((one.answers, self._surplus_of(kind, one, errors)) for kind, one in typical.items())

    def _surplus_of(self, kind: Kind, typical: Typical, errors: float) -> float:
        """Return the same for one kind of calls.

        All requests wait for about the same time, so the difference of two medians tells it. It is divided by the mean
        service time, which is longer than the median if the latencies have a long tail.
        """
        base = self._lowest[kind].item
        return 1.0 + (typical.at_most(-errors) / base.at_most(errors) - 1.0) / base.mean_to_median

    def _forget(self, typical: Mapping[Kind, Typical], *, divided_by: float = 1.0) -> None:
        """Compare with these latencies from now on, and with none before."""
        for kind, one in typical.items():
            self._lowest[kind] = Lowest(Typical.at_most)
            self._lowest[kind].add(self.round, one._replace(median=one.median / divided_by))

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
