"""`LengthCounts`: how often each length occurs.

All that most analyses need: ten million lengths become a few thousand numbers once.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import count_values, merge_counts
from brim.core.errors import DataError, OptionError
from brim.core.options import LONGEST
from brim.data.ids import Ids
from brim.data.lengths import LengthCache

SomeLengths = LengthCache | Mapping[Any, int] | NDArray[np.integer[Any]] | Iterable[int]


def as_table(lengths: "SomeLengths | LengthCounts") -> LengthCache:
    """Lengths in whatever form they are: a cache, a mapping of ids to lengths, an array, numbers one after the other,
    counts.

    Raises:
        DataError: There are none, or one is negative or not an integer.
    """
    if isinstance(lengths, LengthCounts):
        lengths = np.repeat(lengths.lengths.astype(np.int32), lengths.counts)
    if not isinstance(lengths, LengthCache | Mapping):
        column = np.asarray(lengths if isinstance(lengths, np.ndarray) else list(lengths))
        if column.ndim != 1 or (len(column) and column.dtype.kind not in "iu"):
            raise DataError(f"lengths must be one row of integers, got {column.dtype} of shape {column.shape}")
        if len(column) and not 0 <= int(column.min()) <= int(column.max()) <= LONGEST:
            raise DataError(f"lengths must lie between 0 and {LONGEST}, got {int(column.min())} to {int(column.max())}")
        lengths = LengthCache(Ids.rows(len(column)), column.astype(np.int32, copy=False))
    table = LengthCache.from_lengths(lengths)  # pyright: ignore[reportArgumentType]  ids are whatever the mapping has
    if len(table) == 0:
        raise DataError("there are no lengths to count")
    return table


def check_one_length(table: LengthCache, what: str) -> None:
    """
    Raises:
        OptionError: The samples are ragged along several axes, and `what` is for those that have one length.
    """
    if table.axes is not None:
        raise OptionError(f"{what} are for samples with one length; these are nested, and ragged along several axes")


@dataclass(frozen=True, eq=False)
class LengthCounts:
    """Distinct lengths, ascending, and how many samples have each."""

    lengths: NDArray[np.int64]
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, lengths: "SomeLengths | LengthCounts") -> "LengthCounts":
        return lengths if isinstance(lengths, LengthCounts) else cls(*count_values(as_table(lengths).lengths))

    @cached_property
    def below(self) -> NDArray[np.int64]:
        """How many samples are no longer than each length."""
        return np.cumsum(self.counts)

    @property
    def samples(self) -> int:
        return int(self.counts.sum())

    @property
    def tokens(self) -> int:
        return int((self.lengths * self.counts).sum())

    def percentile(self, percent: float) -> int:
        """The smallest length that at least so many percent of the samples do not exceed."""
        many = ceil(Fraction(str(percent)) * self.samples / 100)  # in floats, 7% of 100 is more than 7
        return int(self.lengths[np.searchsorted(self.below, max(many, 1))])

    def up_to(self, longest: int) -> "LengthCounts":
        """Without what is longer."""
        kept = int(np.searchsorted(self.lengths, longest, side="right"))
        return LengthCounts(self.lengths[:kept], self.counts[:kept])

    def cut_to(self, longest: int) -> "LengthCounts":
        """With what is longer cut to it."""
        return LengthCounts(*merge_counts(np.minimum(self.lengths, longest), self.counts))

    def sums(self, ends: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Samples and tokens in ranges of length: range i ends with the length `ends[i]` and starts behind the one
        before. Ends ascend.
        """
        places = np.searchsorted(self.lengths, ends, side="right")
        samples = np.concatenate([[0], self.below])[places]
        tokens = np.concatenate([[0], np.cumsum(self.lengths * self.counts)])[places]
        return np.diff(samples, prepend=0), np.diff(tokens, prepend=0)
