"""Counts and sums of the samples and episodes of a stream. The samples themselves are not kept."""

import time
from dataclasses import dataclass, field
from typing import Any

from brim.core.errors import DataError, did_you_mean
from brim.envs.episode import EpisodeStatus
from brim.stream.sample import StreamSample


@dataclass(slots=True)
class Rate:
    """Hits among a number of trials."""

    hits: int = 0
    of: int = 0

    def add(self, hit: bool) -> None:
        self.hits += hit
        self.of += 1

    @property
    def ratio(self) -> float | None:
        """None if there were no trials."""
        return self.hits / self.of if self.of else None


@dataclass(slots=True)
class StreamMetrics:
    """Counts of samples and episodes. A mean is None until there is something to average.

    Example:
        >>> metrics = StreamMetrics()
        >>> metrics.record(StreamSample(sample_id=0, input_ids=[1, 2], loss_mask=[0, 1]))
        >>> metrics.samples, metrics.mean_length, metrics.mean_reward
        (1, 2.0, None)
    """

    samples: int = 0
    tokens: int = 0
    filtered: dict[str, int] = field(default_factory=lambda: {})
    """Samples left out, by reason, such as "too long"."""
    rewards: int = 0
    reward_sum: float = 0.0
    difficulties: int = 0
    difficulty_sum: float = 0.0
    success: Rate = field(default_factory=Rate)
    """Success of the samples for which it is known."""
    episodes: dict[str, int] = field(default_factory=lambda: {})
    """Ended episodes, by status."""
    success_by_difficulty: dict[str, Rate] = field(default_factory=lambda: {})
    """Success of episodes, by level."""
    began: float = field(default_factory=time.monotonic, repr=False, compare=False)
    before: tuple[int, int] = field(default=(0, 0), repr=False, compare=False)
    """Samples and episodes restored by `from_dict`, which are left out of the rates per second."""

    def record(self, sample: StreamSample) -> None:
        """Count a sample that was handed out."""
        self.samples += 1
        self.tokens += sample.length
        if sample.reward is not None:
            self.rewards += 1
            self.reward_sum += sample.reward
        if sample.difficulty is not None:
            self.difficulties += 1
            self.difficulty_sum += sample.difficulty
        if sample.success is not None:
            self.success.add(sample.success)

    def record_filtered(self, reason: str) -> None:
        """Count a sample that was left out, by reason."""
        self.filtered[reason] = self.filtered.get(reason, 0) + 1

    def record_episode(self, status: EpisodeStatus, difficulty: str | None = None) -> None:
        """Count an episode that ended."""
        self.episodes[status.value] = self.episodes.get(status.value, 0) + 1
        if difficulty is not None:
            self.success_by_difficulty.setdefault(difficulty, Rate()).add(status is EpisodeStatus.SUCCESS)

    @property
    def num_filtered(self) -> int:
        return sum(self.filtered.values())

    @property
    def num_episodes(self) -> int:
        return sum(self.episodes.values())

    @property
    def filter_rate(self) -> float | None:
        """The share of samples that were left out."""
        seen = self.samples + self.num_filtered
        return self.num_filtered / seen if seen else None

    @property
    def success_rate(self) -> float | None:
        """The success rate of episodes, or of samples if no episode was counted."""
        if self.num_episodes:
            return self.episodes.get(EpisodeStatus.SUCCESS.value, 0) / self.num_episodes
        return self.success.ratio

    @property
    def mean_length(self) -> float | None:
        return self.tokens / self.samples if self.samples else None

    @property
    def mean_reward(self) -> float | None:
        return self.reward_sum / self.rewards if self.rewards else None

    @property
    def mean_difficulty(self) -> float | None:
        return self.difficulty_sum / self.difficulties if self.difficulties else None

    @property
    def samples_per_second(self) -> float:
        return (self.samples - self.before[0]) / max(time.monotonic() - self.began, 1e-9)

    @property
    def episodes_per_second(self) -> float:
        return (self.num_episodes - self.before[1]) / max(time.monotonic() - self.began, 1e-9)

    def to_dict(self) -> dict[str, Any]:
        """The counts as JSON-like values, without times; `from_dict` is the inverse."""
        rates = {level: [rate.hits, rate.of] for level, rate in self.success_by_difficulty.items()}
        plain = {name: getattr(self, name) for name in _PLAIN}
        return {
            **plain,
            "filtered": dict(self.filtered),
            "episodes": dict(self.episodes),
            "success": [self.success.hits, self.success.of],
            "success_by_difficulty": rates,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "StreamMetrics":
        """The counts that `to_dict` wrote.

        Raises:
            DataError: A count is unknown.
        """
        known = {*_PLAIN, "filtered", "episodes", "success", "success_by_difficulty"}
        for name in values:
            if name not in known:
                raise DataError(f"unknown count {name!r} of a stream.{did_you_mean(name, known)}")
        metrics = cls(**{name: values.get(name, 0) for name in _PLAIN})
        metrics.filtered = dict(values.get("filtered", {}))
        metrics.episodes = dict(values.get("episodes", {}))
        metrics.success = Rate(*values.get("success", (0, 0)))
        levels = values.get("success_by_difficulty", {})
        metrics.success_by_difficulty = {level: Rate(*pair) for level, pair in levels.items()}
        metrics.before = (metrics.samples, metrics.num_episodes)
        return metrics


_PLAIN = ("samples", "tokens", "rewards", "reward_sum", "difficulties", "difficulty_sum")
