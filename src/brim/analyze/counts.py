"""`LengthCounts`: the number of samples of each length.

Most analyses need only these counts: ten million lengths are reduced once to a few thousand numbers.
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
    """Return lengths as a `LengthCache`, from a cache, a mapping of ids to lengths, an array, an iterable, or counts.

    Raises:
        DataError: There are no lengths, or one is negative, too large or not an integer.
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
    """Check that every sample has a single length, as `what` (named in the message) needs.

    Raises:
        OptionError: The samples are nested: ragged along several axes.
    """
    if table.axes is not None:
        raise OptionError(f"{what} are for samples with one length; these are nested, and ragged along several axes")


@dataclass(frozen=True, eq=False)
class LengthCounts:
    """The distinct lengths of a data set, ascending, and the number of samples that have each."""

    lengths: NDArray[np.int64]
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, lengths: "SomeLengths | LengthCounts") -> "LengthCounts":
        return lengths if isinstance(lengths, LengthCounts) else cls(*count_values(as_table(lengths).lengths))

    @cached_property
    def below(self) -> NDArray[np.int64]:
        """The cumulative counts: for each length, the number of samples that are no longer."""
        return np.cumsum(self.counts)

    @property
    def samples(self) -> int:
        return int(self.counts.sum())

    @property
    def tokens(self) -> int:
        return int((self.lengths * self.counts).sum())

    def percentile(self, percent: float) -> int:
        """Return the smallest length that at least `percent` percent of the samples do not exceed."""
        many = ceil(Fraction(str(percent)) * self.samples / 100)  # in floats, 7% of 100 is more than 7
        return int(self.lengths[np.searchsorted(self.below, max(many, 1))])

    def up_to(self, longest: int) -> "LengthCounts":
        """Return the counts without the samples that are longer than `longest`."""
        kept = int(np.searchsorted(self.lengths, longest, side="right"))
        return LengthCounts(self.lengths[:kept], self.counts[:kept])

    def cut_to(self, longest: int) -> "LengthCounts":
        """Return the counts with longer samples cut to `longest`."""
        return LengthCounts(*merge_counts(np.minimum(self.lengths, longest), self.counts))

    def sums(self, ends: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the numbers of samples and of tokens in ranges of lengths.

        Range i holds the lengths above `ends[i - 1]` up to and including `ends[i]`. `ends` must ascend.
        """
        places = np.searchsorted(self.lengths, ends, side="right")
        samples = np.concatenate([[0], self.below])[places]
        tokens = np.concatenate([[0], np.cumsum(self.lengths * self.counts)])[places]
        return np.diff(samples, prepend=0), np.diff(tokens, prepend=0)
