"""Buckets: which lengths are padded to the same width.

n edges make n + 1 buckets. Bucket i holds the lengths up to `edges[i]`, the last one those up to `overflow_max`. Longer
samples belong to no bucket. What happens to them is never decided here, but by the planner's `overflow` option.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import OptionError
from brim.core.fill import Fill
from brim.core.options import check_counts
from brim.plan.config import check_edges, listed


@dataclass(frozen=True)
class BucketSpec:
    """The lengths at which buckets end: `edges`, and `overflow_max` for the last bucket.

    Example:
        >>> spec = BucketSpec(edges=(128, 256), overflow_max=512)
        >>> [spec.get_bucket_id(length) for length in (1, 128, 129, 512)]
        [0, 0, 1, 2]
    """

    edges: tuple[int, ...]
    overflow_max: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "edges", tuple(self.edges))
        check_edges(self.edges)
        if self.edges and self.overflow_max <= self.edges[-1]:
            raise OptionError(
                f"overflow_max must be above the last edge, got {self.overflow_max} with edges {listed(self.edges)}"
            )
        check_counts(overflow_max=self.overflow_max)

    @classmethod
    def covering(cls, edges: tuple[int, ...], longest: int) -> "BucketSpec":
        """Return buckets that end at these edges, and one more up to `longest` if the edges do not reach it."""
        if edges and edges[-1] >= longest:
            return cls(edges=edges[:-1], overflow_max=edges[-1])
        return cls(edges=edges, overflow_max=longest)

    @property
    def widths(self) -> tuple[int, ...]:
        """The width that each bucket is padded to."""
        return (*self.edges, self.overflow_max)

    @property
    def num_buckets(self) -> int:
        return len(self.edges) + 1

    @property
    def overflow_bucket_id(self) -> int:
        return len(self.edges)

    def bucket_ids(self, lengths: NDArray[np.integer[Any]]) -> NDArray[np.int32]:
        """Return the bucket of every length. Lengths above `overflow_max` get `num_buckets`, which is no bucket."""
        widths = np.array(self.widths)
        if len(lengths) <= self.overflow_max:
            return np.searchsorted(widths, lengths).astype(np.int32)
        # With more samples than possible lengths, search once for each possible length.
        bucket_of = np.searchsorted(widths, np.arange(self.overflow_max + 2)).astype(np.int32)
        return bucket_of[np.minimum(lengths, self.overflow_max + 1)]

    def get_bucket_id(self, length: int) -> int:
        bucket = int(self.bucket_ids(np.array([length]))[0])
        if length < 0 or bucket == self.num_buckets:
            raise OptionError(f"length {length} is in no bucket: they hold 0 to {self.overflow_max}")
        return bucket

    def get_bucket_max_length(self, bucket_id: int) -> int:
        return self.widths[self._checked(bucket_id)]

    def get_bucket_range(self, bucket_id: int) -> tuple[int, int]:
        """The shortest and the longest length of a bucket, both included."""
        self._checked(bucket_id)
        return (self.widths[bucket_id - 1] + 1 if bucket_id else 0, self.widths[bucket_id])

    def is_overflow(self, bucket_id: int) -> bool:
        return self._checked(bucket_id) == self.overflow_bucket_id

    def _checked(self, bucket_id: int) -> int:
        if not 0 <= bucket_id < self.num_buckets:
            raise OptionError(f"bucket {bucket_id} does not exist: they are numbered 0 to {self.num_buckets - 1}")
        return bucket_id


@dataclass(frozen=True, kw_only=True)
class BucketStats:
    """Statistics of one bucket in which every sample is padded to the bucket's width."""

    bucket_id: int
    bucket_max_length: int
    sample_count: int
    total_tokens: int

    @classmethod
    def of(cls, spec: BucketSpec, lengths: NDArray[np.integer[Any]]) -> "tuple[BucketStats, ...]":
        """Return the statistics of every bucket. Lengths that are in no bucket are not counted."""
        ids = spec.bucket_ids(lengths)
        counts = np.bincount(ids, minlength=spec.num_buckets + 1)
        tokens = np.bincount(ids, weights=lengths, minlength=spec.num_buckets + 1)
        return tuple(
            cls(
                bucket_id=bucket,
                bucket_max_length=width,
                sample_count=int(counts[bucket]),
                total_tokens=int(tokens[bucket]),
            )
            for bucket, width in enumerate(spec.widths)
        )

    @property
    def fill(self) -> Fill:
        return Fill(self.total_tokens, self.sample_count * self.bucket_max_length)

    @property
    def padded_tokens(self) -> int:
        return self.fill.slots

    @property
    def padding_tokens(self) -> int:
        return self.fill.slots - self.fill.used

    @property
    def efficiency(self) -> float:
        return self.fill.ratio

    @property
    def avg_length(self) -> float:
        return self.total_tokens / self.sample_count if self.sample_count else 0.0
