"""Length histograms, as numbers, text and HTML."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from brim.analyze.counts import LengthCounts, SomeLengths
from brim.core.arrays import ceil_div
from brim.core.display import bar, facts_html, table_html
from brim.core.errors import OptionError

MOST_BINS = 100_000
PERCENTILES = (5, 25, 50, 75, 90, 95, 99)


@dataclass(frozen=True, kw_only=True)
class HistogramBin:
    """The number of samples with a length from `low` to `high`, both included."""

    low: int
    high: int
    count: int


@dataclass(frozen=True, kw_only=True)
class LengthHistogram:
    """The distribution of lengths: bins, extremes, mean and percentiles."""

    bins: tuple[HistogramBin, ...]
    count: int
    total: int
    shortest: int
    longest: int
    mean: float
    percentiles: dict[int, int]
    """For each of `PERCENTILES`, the smallest length that at least so many percent of the samples do not exceed."""
    counts: LengthCounts = field(repr=False, compare=False)
    """The number of samples of each length, from which other analyses are computed."""

    def percentile(self, percent: float) -> int:
        if not 0 <= percent <= 100:
            raise OptionError(f"a percentile lies between 0 and 100, got {percent}")
        return self.counts.percentile(percent)

    def to_dict(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "tokens": self.total,
            "shortest": self.shortest,
            "longest": self.longest,
            "mean": self.mean,
            "percentiles": {f"p{percent}": length for percent, length in self.percentiles.items()},
            "bins": [asdict(bin) for bin in self.bins],
        }

    def to_ascii(self, width: int = 50, edges: Sequence[int] = ()) -> str:
        """Return the histogram as text: bars of at most `width` characters, and the bucket ends given as `edges`."""
        most = max(bin.count for bin in self.bins)
        digits, numbers = len(str(self.longest)), len(f"{most:,}")
        lines: list[str] = []
        for bin in self.bins:
            lines.append(
                f"{bin.low:>{digits}}-{bin.high:<{digits}} {bin.count:>{numbers},} "
                f"{bar(bin.count / most, width)}".rstrip()
            )
            inside = [edge for edge in edges if bin.low <= edge <= bin.high]
            if inside:
                lines.append(
                    f"{' ' * (2 * digits + 1)} {' ' * numbers} └ bucket{'s end' if len(inside) > 1 else ' ends'} at "
                    f"{_listed(inside)}"
                )
        named = "  ".join(f"p{percent} {length:,}" for percent, length in self.percentiles.items())
        return "\n".join([*lines, f"mean {self.mean:,.1f}  {named}"])

    def _repr_html_(self) -> str:
        rows = [[f"{bin.low:,}-{bin.high:,}", bin.count, bin.count / self.count] for bin in self.bins]
        facts = {"samples": self.count, "tokens": self.total, "mean": f"{self.mean:,.1f}"}
        facts |= {f"p{percent}": length for percent, length in self.percentiles.items()}
        return facts_html(facts, title="Lengths") + table_html(["length", "samples", "share"], rows, bars=2)


Countable = SomeLengths | LengthCounts | LengthHistogram
"""The types that analyses accept: lengths, or counts or a histogram made from them."""


def count_lengths(lengths: Countable) -> LengthCounts:
    """Count the samples of each length.

    Raises:
        DataError: There are no lengths.
    """
    return lengths.counts if isinstance(lengths, LengthHistogram) else LengthCounts.of(lengths)


def compute_length_histogram(lengths: Countable, num_bins: int = 20, bin_width: int | None = None) -> LengthHistogram:
    """Count lengths in at most `num_bins` bins of equal width (the last may be narrower), or in bins of `bin_width`.

    Widths are integers, rounded up, so there can be fewer bins than `num_bins`.

    Raises:
        DataError: There are no lengths.
    """
    if num_bins < 1:
        raise OptionError(f"the number of bins must be at least 1, got {num_bins}")
    if bin_width is not None and bin_width < 1:
        raise OptionError(f"the width of a bin must be at least 1, got {bin_width}")
    counts = count_lengths(lengths)
    shortest, longest = int(counts.lengths[0]), int(counts.lengths[-1])
    width = bin_width or ceil_div(longest - shortest + 1, num_bins)
    many = ceil_div(longest - shortest + 1, width)
    if many > MOST_BINS:
        raise OptionError(
            f"{many:,} bins of {width} are more than {MOST_BINS:,}, which is more than anyone can read; widen them"
        )
    lows = np.arange(shortest, longest + 1, width)
    highs = np.minimum(lows + width - 1, longest)
    samples, _ = counts.sums(highs)
    return LengthHistogram(
        bins=tuple(
            HistogramBin(low=low, high=high, count=count)
            for low, high, count in zip(lows.tolist(), highs.tolist(), samples.tolist(), strict=True)
        ),
        count=counts.samples,
        total=counts.tokens,
        shortest=shortest,
        longest=longest,
        mean=counts.tokens / counts.samples,
        percentiles={percent: counts.percentile(percent) for percent in PERCENTILES},
        counts=counts,
    )


def _listed(edges: Sequence[int]) -> str:
    return ", ".join(f"{edge:,}" for edge in edges)
