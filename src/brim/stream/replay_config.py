"""The options of a replay buffer."""

import math
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, Literal

from brim.core.errors import OptionError, check_counts, did_you_mean, one_of

Duplicates = Literal["replace", "keep", "error"]


class BufferEvictionPolicy(StrEnum):
    """Who goes when the buffer is full and another sample comes."""

    FIFO = "fifo"
    """The oldest."""
    PRIORITY = "priority"
    """The one of lowest priority, and of several the oldest."""
    RANDOM = "random"
    """Anyone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayBufferConfig:
    """
    Raises:
        OptionError: An option has a value that cannot work.
    """

    max_size: int = 100_000
    eviction_policy: BufferEvictionPolicy = BufferEvictionPolicy.FIFO
    priority_alpha: float = 0.6
    """An entry is drawn in proportion to its priority to this power: 0 draws uniformly, 1 by priority."""
    importance_beta: float = 0.4
    """How much of what priorities distort the importance weights make up for: 0 nothing, 1 all of it."""
    seed: int = 42
    min_samples_before_sampling: int = 1
    default_priority: float = 1.0
    """Of a sample that was added without a priority and has none of its own, which is to say 1.0."""
    duplicates: Duplicates = "replace"
    """What becomes of a sample whose id is in the buffer: it replaces the earlier one, both are kept, or it is an error."""

    def __post_init__(self) -> None:
        check_counts(max_size=self.max_size, min_samples_before_sampling=self.min_samples_before_sampling)
        policy = one_of("eviction_policy", self.eviction_policy, BufferEvictionPolicy)
        object.__setattr__(self, "eviction_policy", BufferEvictionPolicy(policy))
        one_of("duplicates", self.duplicates, ("replace", "keep", "error"))
        for name in ("priority_alpha", "importance_beta", "default_priority"):
            if not 0 <= getattr(self, name) < math.inf:
                raise OptionError(f"{name} must be finite and not negative, got {getattr(self, name)!r}")
        if self.min_samples_before_sampling > self.max_size:
            raise OptionError(
                f"min_samples_before_sampling is {self.min_samples_before_sampling}, but the buffer never holds more than {self.max_size}"
            )

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "eviction_policy": str(self.eviction_policy)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "ReplayBufferConfig":
        known = [field.name for field in fields(cls)]
        for name in values:
            if name not in known:
                raise OptionError(f"unknown option {name!r} of a replay buffer.{did_you_mean(name, known)}")
        return cls(**values)
