"""The options of a replay buffer, and what they make of priorities."""

import math
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from operator import index
from typing import Any, Literal, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from brim.core.errors import OptionError, did_you_mean
from brim.core.options import check_counts, one_of
from brim.data.ids import SampleId

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
    """An entry is drawn in proportion to its priority to this power: 0 draws all alike, 1 by priority. Priority 0 comes last always."""
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
        if isinstance(self.seed, bool) or not isinstance(self.seed, SupportsIndex):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionError(f"seed must be an integer, got {self.seed!r}")
        for name in ("max_size", "min_samples_before_sampling", "seed"):
            object.__setattr__(self, name, index(getattr(self, name)))  # also of NumPy, which JSON does not know
        policy = one_of("eviction_policy", self.eviction_policy, BufferEvictionPolicy)
        object.__setattr__(self, "eviction_policy", BufferEvictionPolicy(policy))
        one_of("duplicates", self.duplicates, ("replace", "keep", "error"))
        for name in ("priority_alpha", "importance_beta", "default_priority"):
            value: Any = getattr(self, name)
            if not isinstance(value, float | int | np.number) or not 0 <= value < math.inf:
                raise OptionError(f"{name} must be finite and not negative, got {value!r}")
            object.__setattr__(self, name, value if type(value) is int else float(value))
        if self.default_priority > self.largest_priority:
            raise OptionError(f"default_priority must be at most {self.largest_priority:.3g}, got {self.default_priority!r}")
        if self.min_samples_before_sampling > self.max_size:
            raise OptionError(
                f"min_samples_before_sampling is {self.min_samples_before_sampling}, but the buffer never holds more than {self.max_size}"
            )

    @property
    def largest_priority(self) -> float:
        """Sums of larger ones could be infinite."""
        return math.exp(667 / max(self.priority_alpha, 1.0))

    def weights(self, priorities: NDArray[np.float64]) -> NDArray[np.float64]:
        """priority ** alpha, and 0 for 0 also where alpha is 0."""
        return priorities**self.priority_alpha if self.priority_alpha else np.sign(priorities)

    def check_priority(self, priority: float, *, of: SampleId) -> None:
        """
        Raises:
            OptionError: It is not a number, negative, or too large.
        """
        if not (isinstance(priority, float | int | np.number) and 0 <= priority <= self.largest_priority):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionError(f"sample {of!r}: priority is {priority!r}; it must lie between 0 and {self.largest_priority:.3g}")

    def checked_priorities(self, given: ArrayLike, count: int) -> NDArray[np.float64]:
        """
        Raises:
            OptionError: There are not as many, or one is as above.
        """
        try:
            values = np.asarray(given, np.float64)
        except (TypeError, ValueError) as error:
            raise OptionError(f"priorities must be numbers, one for each sample: {error}") from None
        if values.shape != (count,):
            raise OptionError(f"priorities of shape {values.shape} for {count} samples")
        largest = self.largest_priority
        if count and not (np.minimum.reduce(values) >= 0 and np.maximum.reduce(values) <= largest):
            row = int(np.argmin((values >= 0) & (values <= largest)))
            raise OptionError(f"row {row}: priority is {values[row]}; it must lie between 0 and {largest:.3g}")
        return values

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "eviction_policy": str(self.eviction_policy)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "ReplayBufferConfig":
        known = [field.name for field in fields(cls)]
        for name in values:
            if name not in known:
                raise OptionError(f"unknown option {name!r} of a replay buffer.{did_you_mean(name, known)}")
        return cls(**values)
