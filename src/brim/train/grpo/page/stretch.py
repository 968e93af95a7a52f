"""Sums and means over a stretch of rollouts: a whole run, its first tenth, or a point of a curve.

Means are weighted by what they are means of: a reward by the attempts that have one, a length by all attempts. Numbers
of training, which are means over optimizer steps already, count once for each rollout.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from brim.analyze.page.points import divide, mean, short
from brim.train.grpo.page.runs import Evaluated, RunShown, spread
from brim.train.grpo.report import RolloutReport

POINTS = 400
"""Upper limit of the points of a curve."""
ALL_POINTS = 1200
"""Upper limit of the points of all runs together, which wins where there are many runs."""
MOST_PARTS = 8
"""Parts of the reward that have a curve."""

TRAINING = ("entropy", "kl", "policy_kl", "clipped_low", "clipped_high", "grad_norm", "mismatch", "correction")
TIMES = ("rollout", "rewards", "training", "rest")


@dataclass(frozen=True)
class Stretch:
    """Consecutive rollouts. There may be none, and then everything is missing or 0."""

    rollouts: Sequence[RolloutReport]

    def total(self, name: str) -> Any:
        """Return the sum of a count or of a time."""
        return sum(getattr(one, name) for one in self.rollouts)

    def counts(self, name: str) -> dict[str, int]:
        """Return the sum of counts by name, the largest first."""
        found: Counter[str] = Counter()
        for one in self.rollouts:
            found.update(getattr(one, name))
        return {name: count for name, count in found.most_common() if count}

    def mean(self, name: str) -> float | None:
        """Return the mean over rollouts."""
        return mean((getattr(one, name), 1) for one in self.rollouts)

    def over_attempts(self, name: str) -> float | None:
        return mean((getattr(one, name), one.attempts) for one in self.rollouts)

    def over_rewarded(self, name: str) -> float | None:
        """Return the mean over the attempts that have a reward."""
        return mean((getattr(one, name), rewarded(one)) for one in self.rollouts)

    def share(self, part: str, whole: str) -> float | None:
        size = self.total(whole)
        return self.total(part) / size if size else None

    def quartile(self, number: int) -> float | None:
        """Return the mean of a quartile (1 to 3) of the lengths of each rollout."""
        return mean((one.lengths[number], one.attempts) for one in self.rollouts)

    def part(self, name: str) -> float | None:
        """Return the mean of a part of the reward."""
        return mean((one.parts.get(name), rewarded(one)) for one in self.rollouts)

    @property
    def reward(self) -> float | None:
        return self.over_rewarded("reward")

    @property
    def pass_rate(self) -> float | None:
        return self.over_rewarded("pass_rate")

    @property
    def dead(self) -> float | None:
        return self.share("dead", "groups")

    @property
    def dead_low(self) -> float | None:
        return self.share("dead_low", "groups")

    @property
    def truncated(self) -> float | None:
        return self.share("truncated", "attempts")

    @cached_property
    def times(self) -> dict[str, float]:
        """Seconds in each of `TIMES`; their sum is the time of the stretch."""
        parts = [self.total("rollout_seconds"), self.total("reward_seconds"), self.total("train_seconds")]
        rest = sum(
            max(one.seconds - one.rollout_seconds - one.reward_seconds - one.train_seconds, 0.0)
            for one in self.rollouts
        )
        return dict(zip(TIMES, [*parts, rest], strict=True))

    @property
    def seconds(self) -> float:
        return sum(self.times.values())

    def rate(self, tokens: str, seconds: str) -> float | None:
        """Return tokens per second; None if there were none of either."""
        count, time = self.total(tokens), self.total(seconds)
        return count / time if count and time else None


def rewarded(one: RolloutReport) -> int:
    """Return the number of attempts that have a reward."""
    return one.attempts - sum(one.failures.values())


def ends(rollouts: Sequence[RolloutReport]) -> tuple[Stretch, Stretch]:
    """Return the first and the last tenth, of at least one rollout each."""
    size = max(1, len(rollouts) // 10)
    return Stretch(rollouts[:size]), Stretch(rollouts[-size:])


def points_of(runs: Sequence[RunShown]) -> list[list[Stretch]]:
    """Divide every run into the points of its curves. A point stands for the same rollouts in all runs."""
    longest = max((len(run.rollouts) for run in runs), default=0)
    parts = divide(range(longest), min(POINTS, max(2, ALL_POINTS // max(len(runs), 1))))
    return [
        [Stretch(run.rollouts[part[0] : part[-1] + 1]) for part in parts if part[0] < len(run.rollouts)] for run in runs
    ]


def part_names(runs: Sequence[RunShown]) -> list[str]:
    """Return the parts of the rewards, in the order in which they come."""
    return list(dict.fromkeys(name for run in runs for one in run.rollouts for name in one.parts))


def create_curves(points: Sequence[Stretch], parts: Sequence[str], reasons: Sequence[str]) -> dict[str, Any]:
    """Return the curves of a run as lists of numbers for JSON, one for each point, None where it is missing.

    `version` and `step` are places on the axis: the optimizer steps that the weights had seen which drew the responses,
    and those after training on them.
    """
    values = {
        "version": [one.mean("version") for one in points],
        "step": [one.mean("step") for one in points],
        "reward": [one.reward for one in points],
        "pass_rate": [one.pass_rate for one in points],
        "length": [one.over_attempts("length") for one in points],
        "median": [one.quartile(2) for one in points],
        "lower": [one.quartile(1) for one in points],
        "upper": [one.quartile(3) for one in points],
        "turns": [one.over_attempts("turns") for one in points],
        "rollout_fill": [mean((of.rollout_fill, of.rollout_tokens) for of in one.rollouts) for one in points],
        "fill": [mean((of.fill, of.train_tokens) for of in one.rollouts) for one in points],
        "rollout_rate": [one.rate("rollout_tokens", "rollout_seconds") for one in points],
        "train_rate": [one.rate("train_tokens", "train_seconds") for one in points],
    }
    values |= {name: [one.mean(name) for one in points] for name in TRAINING}
    return {
        "first": [one.rollouts[0].rollout for one in points],
        "last": [one.rollouts[-1].rollout for one in points],
        **{name: [short(value) for value in of] for name, of in values.items()},
        "parts": [[short(one.part(name)) for one in points] for name in parts],
        # Counts and seconds, which the page adds up over the runs.
        "groups": [one.total("groups") for one in points],
        "dead_low": [one.total("dead_low") for one in points],
        "dead_high": [one.total("dead") - one.total("dead_low") for one in points],
        "ended": [[one.counts("finish_reasons").get(name, 0) for one in points] for name in reasons],
        "seconds": [[short(one.times[name]) for one in points] for name in TIMES],
    }


def evaluation_curve(evaluations: Sequence[Evaluated]) -> dict[str, Any]:
    """Return the held-out results as lists of numbers for JSON. Of many evaluations, some evenly apart are taken."""
    chosen = [evaluations[at] for at in spread(len(evaluations), POINTS)]
    return {
        "step": [one.step for one in chosen],
        "reward": [short(one.evaluation.reward) for one in chosen],
        "error": [short(one.evaluation.reward_error) for one in chosen],
        "pass_rate": [short(one.evaluation.pass_rate) for one in chosen],
        "tasks": [one.evaluation.tasks for one in chosen],
    }
