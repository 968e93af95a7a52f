"""Metrics of planned batches: their number, shapes and padding."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from brim.core.fill import Fill
from brim.plan.buckets import BucketStats


class Planned(Protocol):
    """The properties that a plan's microbatches and a sampler's batches have in common."""

    @property
    def batch_size(self) -> int: ...
    @property
    def bucket_id(self) -> int: ...
    @property
    def token_count(self) -> int: ...
    @property
    def padded_token_count(self) -> int: ...


@dataclass(frozen=True)
class BatchShapeHistogram:
    """Number of batches of each shape (rows, width)."""

    shapes: Counter[tuple[int, int]] = field(default_factory=Counter[tuple[int, int]])

    @property
    def total_batches(self) -> int:
        return self.shapes.total()

    @property
    def num_shapes(self) -> int:
        """Number of distinct shapes: the programs that a model with one program per shape has to compile."""
        return len(self.shapes)

    def most_common(self, n: int | None = None) -> list[tuple[tuple[int, int], int]]:
        """Return shapes and their counts, the most frequent first; equal counts are sorted by shape."""
        return sorted(self.shapes.items(), key=lambda item: (-item[1], item[0]))[:n]


@dataclass(frozen=True, kw_only=True)
class BatchMetrics:
    """Metrics of the batches of an epoch. Empty microbatches are not counted."""

    num_batches: int
    num_rows: int
    fill: Fill
    shape_histogram: BatchShapeHistogram
    bucket_stats: tuple[BucketStats, ...] = ()
    num_skipped: int = 0
    num_dropped: int = 0

    @classmethod
    def of(
        cls,
        batches: Iterable[Planned],
        *,
        bucket_stats: tuple[BucketStats, ...] = (),
        num_skipped: int = 0,
        num_dropped: int = 0,
    ) -> "BatchMetrics":
        """Compute the metrics of batches."""
        shapes: Counter[tuple[int, int]] = Counter()
        fill = Fill()
        for batch in batches:
            if batch.batch_size:
                shapes[batch.batch_size, batch.padded_token_count // batch.batch_size] += 1
                fill += Fill(batch.token_count, batch.padded_token_count)
        return cls(
            num_batches=shapes.total(),
            num_rows=sum(rows * count for (rows, _), count in shapes.items()),
            fill=fill,
            shape_histogram=BatchShapeHistogram(shapes),
            bucket_stats=bucket_stats,
            num_skipped=num_skipped,
            num_dropped=num_dropped,
        )

    @property
    def efficiency(self) -> float:
        return self.fill.ratio

    @property
    def padding_waste(self) -> float:
        return self.fill.waste

    @property
    def avg_batch_size(self) -> float:
        return self.num_rows / self.num_batches if self.num_batches else 0.0

    def summary(self) -> dict[str, float]:
        return {
            "batches": self.num_batches,
            "rows": self.num_rows,
            "tokens": self.fill.used,
            "padded_tokens": self.fill.slots,
            "efficiency": self.efficiency,
            "avg_batch_size": self.avg_batch_size,
            "shapes": self.shape_histogram.num_shapes,
            "skipped": self.num_skipped,
            "dropped": self.num_dropped,
        }
