"""Length histograms."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import DataError, OptionError

PERCENTILES = (5, 25, 50, 75, 90, 95, 99)


@dataclass(frozen=True, kw_only=True)
class HistogramBin:
    """Lengths from `low` to `high`, both included."""

    low: int
    high: int
    count: int


@dataclass(frozen=True, kw_only=True)
class LengthHistogram:
    """How lengths are distributed."""

    bins: tuple[HistogramBin, ...]
    count: int
    total: int
    shortest: int
    longest: int
    mean: float
    percentiles: dict[int, int]
    """The smallest length that at least so many percent of the samples do not exceed."""


def compute_length_histogram(lengths: NDArray[np.integer[Any]], num_bins: int = 20) -> LengthHistogram:
    """Count lengths in `num_bins` bins of equal width (the last may be narrower); fewer where there are fewer distinct widths.

    Raises:
        DataError: There are no lengths.
    """
    if num_bins < 1:
        raise OptionError(f"the number of bins must be at least 1, got {num_bins}")
    if len(lengths) == 0:
        raise DataError("there are no lengths to count")
    counts = np.bincount(lengths)
    below = np.cumsum(counts)
    shortest, longest = int(np.flatnonzero(counts)[0]), len(counts) - 1
    width = -(-(longest - shortest + 1) // num_bins)
    lows = range(shortest, longest + 1, width)
    bins = tuple(HistogramBin(low=low, high=min(low + width - 1, longest), count=int(counts[low : low + width].sum())) for low in lows)
    total = int((counts * np.arange(len(counts))).sum())
    return LengthHistogram(
        bins=bins,
        count=len(lengths),
        total=total,
        shortest=shortest,
        longest=longest,
        mean=total / len(lengths),
        percentiles={percent: int(np.searchsorted(below, percent / 100 * len(lengths))) for percent in PERCENTILES},
    )
