"""The options of a replay buffer, and the weights and checks of priorities that follow from them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from operator import index
from typing import Any, Literal, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from brim.core.errors import OptionError
from brim.core.options import check_counts, from_dict, one_of, to_dict
from brim.data.ids import SampleId

Duplicates = Literal["replace", "keep", "error"]


class BufferEvictionPolicy(StrEnum):
    """Which entry is evicted when the buffer is full."""

    FIFO = "fifo"
    """The oldest one."""
    PRIORITY = "priority"
    """The one of lowest priority; the oldest of several."""
    RANDOM = "random"
    """A uniformly random one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayBufferConfig:
    """The options of a replay buffer.

    Raises:
        OptionError: An option has a value that cannot work.
    """

    max_size: int = 100_000
    eviction_policy: BufferEvictionPolicy = BufferEvictionPolicy.FIFO
    priority_alpha: float = 0.6
    """Priority exponent alpha: entries are drawn in proportion to priority ** alpha; 0 is uniform."""
    importance_beta: float = 0.4
    """Importance-sampling exponent beta (Schaul et al. 2016): 0 is no correction, 1 is full correction."""
    seed: int = 42
    min_samples_before_sampling: int = 1
    default_priority: float = 1.0
    """The priority of a sample that is added without one and whose own is 1.0, the default of a sample."""
    duplicates: Duplicates = "replace"
    """A sample whose id is in the buffer replaces the earlier one, is kept beside it, or is an error."""

    def __post_init__(self) -> None:
        check_counts(max_size=self.max_size, min_samples_before_sampling=self.min_samples_before_sampling)
        if isinstance(self.seed, bool) or not isinstance(self.seed, SupportsIndex):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionError(f"seed must be an integer, got {self.seed!r}")
        for name in ("max_size", "min_samples_before_sampling", "seed"):
            object.__setattr__(self, name, index(getattr(self, name)))  # NumPy integers cannot be written as JSON
        policy = one_of("eviction_policy", self.eviction_policy, BufferEvictionPolicy)
        object.__setattr__(self, "eviction_policy", BufferEvictionPolicy(policy))
        one_of("duplicates", self.duplicates, ("replace", "keep", "error"))
        for name in ("priority_alpha", "importance_beta", "default_priority"):
            value: Any = getattr(self, name)
            if not isinstance(value, float | int | np.number) or not 0 <= value < math.inf:
                raise OptionError(f"{name} must be finite and not negative, got {value!r}")
            object.__setattr__(self, name, value if type(value) is int else float(value))
        if self.default_priority > self.largest_priority:
            raise OptionError(
                f"default_priority must be at most {self.largest_priority:.3g}, got {self.default_priority!r}"
            )
        if self.min_samples_before_sampling > self.max_size:
            raise OptionError(
                f"min_samples_before_sampling is {self.min_samples_before_sampling}, but the replay buffer never holds "
                f"more than {self.max_size}; lower it, or raise max_size"
            )

    @property
    def largest_priority(self) -> float:
        """Upper limit of a priority: sums of larger ones could be infinite."""
        return math.exp(667 / max(self.priority_alpha, 1.0))

    def weights(self, priorities: NDArray[np.float64]) -> NDArray[np.float64]:
        """priority ** alpha; a priority of 0 has the weight 0 also if alpha is 0."""
        return priorities**self.priority_alpha if self.priority_alpha else np.sign(priorities)

    def check_priority(self, priority: float, *, of: SampleId) -> None:
        """Check the priority of the sample with the id `of`.

        Raises:
            OptionError: It is not a number, negative, or too large.
        """
        if not (isinstance(priority, float | int | np.number) and 0 <= priority <= self.largest_priority):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionError(
                f"sample {of!r}: priority is {priority!r}; it must lie between 0 and {self.largest_priority:.3g}"
            )

    def checked_priorities(self, given: ArrayLike, count: int) -> NDArray[np.float64]:
        """Convert priorities, one for each of `count` samples, to an array.

        Raises:
            OptionError: There are more or fewer, or one is not a number, negative, or too large.
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
        """The options as JSON-like values; `from_dict` is the inverse."""
        return to_dict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ReplayBufferConfig":
        """The options from JSON-like values. NumPy scalars are accepted as well.

        Raises:
            OptionError: An option is unknown, or has a value that cannot work.
        """
        plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}
        return from_dict(cls, plain, what="a replay buffer")
