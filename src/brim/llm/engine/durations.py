"""Recent latencies of one kind of call at one server: percentiles, and the time after which a request is given up."""

from collections import deque
from collections.abc import Sequence

RECENT = 512
"""Number of latencies that are remembered."""
ENOUGH = 30
"""Number of latencies from which percentiles are used."""
FEW = 5
"""Number of latencies from which the longest of them is used until then."""
AGAIN = 32
"""Latencies between two computations of the percentiles."""
SHORTEST = 0.25
"""Lower limit in seconds of the time after which a request is given up."""
PATIENCE = 4.0
"""A request is given up after this many times the 99th percentile."""
PATIENCE_FIRST = 10.0
"""While there are only a few latencies, it is given up after this many times the longest."""


class Durations:
    """The last `RECENT` latencies, in seconds."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._new = 0
        self._p50 = 0.0
        self._p99 = 0.0
        self._longest_answer = 0
        """The largest `max_tokens` among the calls that were measured."""

    def add(self, seconds: float, max_tokens: int | None) -> None:
        self._recent.append(seconds)
        self._longest_answer = max(self._longest_answer, max_tokens or 0)
        self._new += 1
        if len(self._recent) == ENOUGH or (self._new >= AGAIN and len(self._recent) > ENOUGH):
            ordered = sorted(self._recent)
            self._p50, self._p99 = percentile(ordered, 0.5), percentile(ordered, 0.99)
            self._new = 0

    def give_up_after(self, max_tokens: int | None, timeouts: int) -> float | None:
        """Return the seconds after which a request is given up, or None while too little is known.

        Args:
            max_tokens: Upper limit of the tokens of the answer. Calls that may write more than those measured get
                proportionally more time.
            timeouts: Requests of the same call that were given up before; each doubles the time, so that a call which
                simply takes long gets through.
        """
        if len(self._recent) < FEW:
            return None
        usual = PATIENCE * self._p99 if len(self._recent) >= ENOUGH else PATIENCE_FIRST * max(self._recent)
        seconds = max(usual, SHORTEST)
        if max_tokens and self._longest_answer and max_tokens > self._longest_answer:
            seconds *= max_tokens / self._longest_answer
        return seconds * 2**timeouts

    def hedge_after(self) -> float | None:
        """Return the seconds after which a second request may be sent, or None while too little is known.

        With latencies that hardly differ, the 99th percentile is close to the median, and half of all requests would be
        sent twice; hence the second bound.
        """
        return max(self._p99, 1.5 * self._p50) if len(self._recent) >= ENOUGH else None


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which a share of the ordered values lies (nearest rank).

    Example:
        >>> percentile([1.0, 2.0, 3.0, 4.0], 0.5)
        2.0
    """
    rank = -int(-share * len(ordered) // 1)  # rounded up
    return ordered[min(max(rank, 1), len(ordered)) - 1]
