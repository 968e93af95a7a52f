"""Latencies of requests, as `Limit` compares them: those of one round, and the lowest of recent rounds.

Requests that take long are answered after short ones. A median of the answers that have come so far would therefore be
too low, most of all when a round is short. So requests without an answer count too, as longer than their age: the
quantiles are those of Kaplan and Meier's estimate (1958), which needs nothing but independence of latencies and the
times at which requests are sent.

Latencies scatter, and a median of few is not worth much. Every median has a standard error, and it is compared on the
safe side: a latency counts as grown by as much as is certain.
"""

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from statistics import fmean
from typing import Generic, NamedTuple, TypeVar

SHORTEST = 1e-6
"""Lower limit of a latency in seconds: it is divided by."""
PRIOR_SCATTER, PRIOR_ANSWERS = 0.5, 4
"""Scatter that is assumed before anything is known, and the number of answers that outweigh it. The scatter of very few
answers may be small by chance."""
LARGEST_SCATTER = 1.5
"""Upper limit of the scatter from which a mean is computed."""
QUARTILES = 1.35
"""Distance of the quartiles of a normal distribution in standard deviations."""
MEMORY = 64
"""Rounds for which the lowest latency is remembered."""

Item = TypeVar("Item")
Kind = Hashable
"""Calls of one kind are alike, so that their latencies can be compared: the same model, chats or embeddings."""


class Typical(NamedTuple):
    """The latencies of one kind of calls in one round, for each token of an answer if tokens are counted."""

    answers: int
    median: float
    scatter: float
    """Standard deviation of the logarithms, as the quartiles tell it."""

    @property
    def error(self) -> float:
        """Relative standard error of the median, as of a log-normal distribution."""
        known = self.answers * self.scatter**2 + PRIOR_ANSWERS * PRIOR_SCATTER**2
        return 1.25 * math.sqrt(known / (self.answers + PRIOR_ANSWERS) / self.answers)

    def at_most(self, errors: float = 1.0) -> float:
        """Return the median, and so many standard errors more."""
        return self.median * math.exp(errors * self.error)

    @property
    def mean_to_median(self) -> float:
        """Ratio of the mean to the median, as of a log-normal distribution."""
        return math.exp(min(self.scatter, LARGEST_SCATTER) ** 2 / 2)


class RoundLatencies:
    """The latencies of the requests that were sent in one round."""

    def __init__(self) -> None:
        self._latencies: dict[tuple[Kind, bool], list[float]] = {}
        """Latencies by kind. Those for each token and those without tokens are different things, so they are kept
        apart."""
        self._tokens: dict[Kind, list[int]] = {}

    def add(self, kind: Kind, latency: float, tokens: int | None) -> None:
        """Add an answer."""
        self._latencies.setdefault((kind, bool(tokens)), []).append(max(latency, SHORTEST) / (tokens or 1))
        if tokens:
            self._tokens.setdefault(kind, []).append(tokens)

    def typical(self, still_open: Iterable[tuple[Kind, float]] = ()) -> dict[Kind, Typical]:
        """Return the latencies of each kind of calls.

        Args:
            still_open: (kind, age in seconds) of the requests that have no answer yet.
        """
        ages: dict[tuple[Kind, bool], list[float]] = {}
        for kind, age in still_open:
            # Their tokens are not known; those of the others are the best guess.
            tokens = self._tokens.get(kind)
            ages.setdefault((kind, tokens is not None), []).append(age / (fmean(tokens) if tokens else 1))
        return {key: _typical(latencies, ages.get(key, [])) for key, latencies in self._latencies.items()}


def _typical(latencies: list[float], ages: list[float]) -> Typical:
    low, middle, high = quartiles(latencies, ages)
    return Typical(len(latencies), middle, math.log(high / low) / QUARTILES)


def quartiles(latencies: Iterable[float], ages: Iterable[float] = ()) -> tuple[float, float, float]:
    """Return the quartiles of latencies, of which some are known only to be longer than an age.

    A quartile that too many open requests hide is the longest latency.

    Example:
        >>> quartiles([1.0, 2.0, 3.0, 4.0])
        (1.0, 2.0, 3.0)
        >>> quartiles([1.0, 2.0], ages=[2.0, 2.0, 0.5])
        (1.0, 2.0, 2.0)
    """
    ended = sorted([(value, False) for value in latencies] + [(age, True) for age in ages])
    longest = max(value for value, is_open in ended if not is_open)
    found: list[float] = []
    surviving = 1.0  # share of the requests that take longer
    for place, (value, is_open) in enumerate(ended):
        if is_open:
            continue
        surviving *= 1.0 - 1.0 / (len(ended) - place)
        while len(found) < 3 and surviving <= 0.75 - 0.25 * len(found) + 1e-9:
            found.append(value)
    low, middle, high = [*found, longest, longest, longest][:3]
    return low, middle, high


class Lowest(Generic[Item]):
    """The item with the lowest value of the last `MEMORY` rounds."""

    def __init__(self, value: Callable[[Item], float]) -> None:
        self._value = value
        self._ascending: deque[tuple[int, Item]] = deque()
        """(round, item), ascending in round and value: an item is dropped when a later one has a lower value."""

    def add(self, round: int, item: Item) -> None:
        """Add the item of a round."""
        known, value = self._ascending, self._value(item)
        while known and self._value(known[-1][1]) >= value:
            known.pop()
        known.append((round, item))
        while known[0][0] < round - MEMORY:
            known.popleft()

    @property
    def item(self) -> Item:
        """The item with the lowest value. One must have been added."""
        return self._ascending[0][1]


def mean_ratio(pairs: Iterable[tuple[int, float]]) -> float:
    """Return the mean of ratios, each with the number of answers that it stands for; 1 if there are none."""
    listed = list(pairs)
    answers = sum(count for count, _ in listed)
    return sum(count * ratio for count, ratio in listed) / answers if answers else 1.0


def ratio(seen: Mapping[Kind, Typical], before: Mapping[Kind, Typical]) -> float:
    """Return the latencies relative to others of their kind, on average; 1 if there are none to compare with."""
    return mean_ratio(
        (typical.answers, typical.median / before[kind].median) for kind, typical in seen.items() if kind in before
    )
