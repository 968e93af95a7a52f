"""The fill of buckets on a data set: every sample is padded to the width of its bucket.

Samples that are too long for every bucket are counted, never cut. Edges are chosen in `brim.analyze.suggest`, not here.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from brim.analyze.histogram import Countable, compute_length_histogram, count_lengths
from brim.core.display import bar, table_html
from brim.core.fill import Fill
from brim.plan.buckets import BucketSpec, BucketStats
from brim.plan.edges import goal_cost
from brim.plan.goal import OptimizationGoal


@dataclass(frozen=True, kw_only=True)
class BucketAnalysis:
    """The fill of buckets on a data set. Samples too long for every bucket are in none, and counted in `too_long`."""

    bucket_spec: BucketSpec
    buckets: tuple[BucketStats, ...]
    too_long: int
    """Number of samples longer than the widest bucket; the planner's `overflow` option decides what happens to them."""

    @property
    def fill(self) -> Fill:
        return sum((bucket.fill for bucket in self.buckets), Fill())

    @property
    def efficiency(self) -> float:
        return self.fill.ratio

    @property
    def waste(self) -> float:
        return self.fill.waste

    @property
    def num_samples(self) -> int:
        """Number of samples that are in a bucket."""
        return sum(bucket.sample_count for bucket in self.buckets)

    def cost(self, goal: OptimizationGoal) -> int:
        """Return the cost of the buckets by the measure of a goal; less is better."""
        sizes = np.array([bucket.sample_count for bucket in self.buckets], np.int64)
        return goal_cost(goal, sizes, np.array(self.bucket_spec.widths, np.int64))

    def to_dict(self) -> dict[str, Any]:
        return {
            "bucket_edges": list(self.bucket_spec.edges),
            "overflow_max": self.bucket_spec.overflow_max,
            "efficiency": self.efficiency,
            "tokens": self.fill.used,
            "slots": self.fill.slots,
            "too_long": self.too_long,
            "buckets": [
                {
                    "low": low,
                    "high": bucket.bucket_max_length,
                    "samples": bucket.sample_count,
                    "tokens": bucket.total_tokens,
                    "slots": bucket.padded_tokens,
                    "efficiency": bucket.efficiency,
                    "share_of_waste": self._share_of_waste(bucket),
                }
                for low, bucket in zip(self._lows(), self.buckets, strict=True)
            ],
        }

    def to_ascii(self, width: int = 20) -> str:
        """Return a table as text, one line per bucket; the bars show the fill."""
        high = len(str(self.bucket_spec.overflow_max))
        numbers = max(len("samples"), len(f"{self.num_samples:,}"))
        lines = [f"{'lengths':<{2 * high + 1}} {'samples':>{numbers}} {'fill':>6} {'of waste':>8}"]
        for low, bucket in zip(self._lows(), self.buckets, strict=True):
            fill = f"{bucket.efficiency:.1%}" if bucket.sample_count else "-"
            lines.append(
                f"{low:>{high}}-{bucket.bucket_max_length:<{high}} {bucket.sample_count:>{numbers},} {fill:>6} "
                f"{self._share_of_waste(bucket):>8.1%} "
                f"{bar(bucket.efficiency if bucket.sample_count else 0, width)}".rstrip()
            )
        fill = f"{self.efficiency:.1%}" if self.num_samples else "-"
        lines.append(f"{'all':<{2 * high + 1}} {self.num_samples:>{numbers},} {fill:>6}")
        if self.too_long:
            lines.append(f"{_samples(self.too_long)} longer than {self.bucket_spec.overflow_max:,} and in no bucket")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = [
            [
                f"{low:,}-{bucket.bucket_max_length:,}",
                bucket.sample_count,
                f"{self._share_of_waste(bucket):.1%}",
                bucket.efficiency,
            ]
            for low, bucket in zip(self._lows(), self.buckets, strict=True)
        ]
        rows.append(["all", self.num_samples, "100.0%" if self.waste else "-", self.efficiency])
        if self.too_long:
            rows.append([f"longer than {self.bucket_spec.overflow_max:,}: in no bucket", self.too_long, "-", 0.0])
        return table_html(["lengths", "samples", "of the waste", "fill"], rows, title="Buckets", bars=3)

    def _lows(self) -> list[int]:
        return [0, *(left + 1 for left, _ in pairwise(self.bucket_spec.widths))]

    def _share_of_waste(self, bucket: BucketStats) -> float:
        wasted = self.fill.slots - self.fill.used
        return bucket.padding_tokens / wasted if wasted else 0.0


def analyze_bucket_efficiency(lengths: Countable, bucket_spec: BucketSpec) -> BucketAnalysis:
    """Compute the fill of buckets on a data set with these lengths."""
    counts = count_lengths(lengths)
    samples, tokens = counts.sums(np.array(bucket_spec.widths, np.int64))
    stats = zip(bucket_spec.widths, samples.tolist(), tokens.tolist(), strict=True)
    return BucketAnalysis(
        bucket_spec=bucket_spec,
        buckets=tuple(
            BucketStats(bucket_id=number, bucket_max_length=width, sample_count=count, total_tokens=total)
            for number, (width, count, total) in enumerate(stats)
        ),
        too_long=counts.samples - int(samples.sum()),
    )


def visualize_buckets(lengths: Countable, bucket_spec: BucketSpec, width: int = 50) -> str:
    """Return as text the length histogram with the ends of the buckets marked, and the fill of each bucket."""
    histogram = compute_length_histogram(lengths)
    drawn = histogram.to_ascii(width, edges=bucket_spec.widths)
    return f"{drawn}\n\n{analyze_bucket_efficiency(histogram, bucket_spec).to_ascii(max(1, width // 2))}"


def _samples(many: int) -> str:
    return "1 sample is" if many == 1 else f"{many:,} samples are"
