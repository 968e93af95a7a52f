"""Sums and means over a stretch of updates: the whole run, its first tenth, or a point of a curve.

Means are weighted by what they are means of: a reward by its valid steps, an episode's return by its episodes. Numbers
that are not finite count as missing.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from brim.analyze.page.points import divide, mean, short
from brim.train.query.report import UpdateReport

POINTS = 500
"""Upper limit of the points of a curve."""


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Consecutive updates, added up. Times are sums in seconds."""

    updates: Sequence[UpdateReport]
    first: int
    """Number of the first update; 0 if there is none."""
    last: int
    steps: int
    invalid: dict[str, int]
    fallbacks: int
    episodes: int
    solved: int
    calls: int
    cached: int
    waiting: float
    """Time of the rollouts in which the policy had nothing to do: it waited for calls."""
    policy: float
    learning: float
    other: float
    """The rest of the wall-clock time."""
    server: float
    queue: float
    reward: float | None
    episode_return: float | None
    fill: float | None
    """Share of the slots that was used, averaged over the time of the rollouts."""
    metrics: dict[str, float]

    @property
    def seconds(self) -> float:
        """Wall-clock time: the sum of the four parts."""
        return self.waiting + self.policy + self.learning + self.other

    @property
    def valid(self) -> int:
        return self.steps - sum(self.invalid.values())

    @property
    def invalid_share(self) -> float:
        return sum(self.invalid.values()) / self.steps if self.steps else 0.0

    @property
    def solved_share(self) -> float | None:
        return self.solved / self.episodes if self.episodes else None

    @property
    def speedup(self) -> float | None:
        """How many times as long the rollouts would have taken with one call at a time; None without calls."""
        rollout = self.waiting + self.policy
        return (self.server + self.policy) / rollout if self.server and rollout else None


def stretch_of(updates: Sequence[UpdateReport]) -> Stretch:
    """Add up updates. There may be none."""
    policy = [(one, min(one.policy_seconds, one.rollout_seconds)) for one in updates]
    invalid: Counter[str] = Counter()
    for one in updates:
        invalid.update(one.invalid)
    names = {name: None for one in updates for name in one.metrics}
    metrics = {name: mean((one.metrics.get(name), 1) for one in updates) for name in names}
    return Stretch(
        updates=updates,
        first=updates[0].update if updates else 0,
        last=updates[-1].update if updates else 0,
        steps=sum(one.steps for one in updates),
        invalid={name: count for name, count in invalid.most_common() if count},
        fallbacks=sum(one.fallbacks for one in updates),
        episodes=sum(one.episodes for one in updates),
        solved=sum(one.solved for one in updates),
        calls=sum(one.calls for one in updates),
        cached=sum(one.cached for one in updates),
        waiting=sum(one.rollout_seconds - seconds for one, seconds in policy),
        policy=sum(seconds for _, seconds in policy),
        learning=sum(one.update_seconds for one in updates),
        other=sum(max(one.seconds - one.rollout_seconds - one.update_seconds, 0.0) for one in updates),
        server=sum(one.server_seconds for one in updates),
        queue=sum(one.queue_seconds for one in updates),
        reward=mean((one.reward, valid_steps(one)) for one in updates),
        episode_return=mean((one.episode_return, one.episodes) for one in updates),
        fill=mean((one.fill, one.rollout_seconds) for one in updates),
        metrics={name: value for name, value in metrics.items() if value is not None},
    )


def valid_steps(update: UpdateReport) -> int:
    return update.steps - sum(update.invalid.values())


def ends(updates: Sequence[UpdateReport], parts: int) -> tuple[Stretch, Stretch]:
    """Return the first and the last of so many parts of a run, of at least one update each."""
    size = max(1, len(updates) // parts)
    return stretch_of(updates[:size]), stretch_of(updates[-size:])


def stretches(updates: Sequence[UpdateReport], most: int = POINTS) -> list[Stretch]:
    """Divide a run into at most `most` stretches of nearly equal length."""
    return [stretch_of(part) for part in divide(updates, most)]


def create_curves(points: Sequence[Stretch]) -> dict[str, Any]:
    """Return the curves as lists of numbers for JSON, one number for each point, None where it is missing.

    Times are seconds of an update, on average.
    """
    times = ("waiting", "policy", "learning", "other", "server", "queue")
    metrics = ("entropy", "kl", "clip_fraction", "explained_variance")
    return {
        "first": [point.first for point in points],
        "last": [point.last for point in points],
        "steps": [point.valid for point in points],
        "episodes": [point.episodes for point in points],
        "reward": [short(point.reward) for point in points],
        "return": [short(point.episode_return) for point in points],
        "solved": [short(point.solved_share) for point in points],
        "invalid": [short(point.invalid_share) for point in points],
        **{name: [short(point.metrics.get(name)) for point in points] for name in metrics},
        **{name: [short(getattr(point, name) / len(point.updates)) for point in points] for name in times},
    }
