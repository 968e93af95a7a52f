"""How full batches are, counted from what was planned."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from brim.core.fill import Fill
from brim.plan.buckets import BucketStats


class Planned(Protocol):
    """What a microbatch of a plan and a batch of a sampler have in common."""

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
    """How many batches there are of each shape (rows, width)."""

    shapes: Counter[tuple[int, int]] = field(default_factory=Counter[tuple[int, int]])

    @property
    def total_batches(self) -> int:
        return self.shapes.total()

    @property
    def num_shapes(self) -> int:
        """How many programs a compiling model would have to compile."""
        return len(self.shapes)

    def most_common(self, n: int | None = None) -> list[tuple[tuple[int, int], int]]:
        """Shapes and counts, the most frequent first; equal counts by shape."""
        return sorted(self.shapes.items(), key=lambda item: (-item[1], item[0]))[:n]


@dataclass(frozen=True, kw_only=True)
class BatchMetrics:
    """What an epoch is made of. Empty microbatches are not counted."""

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
        """Count batches."""
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
