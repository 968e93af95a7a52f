"""Optimal bucket edges for a goal: no other edges have a lower cost by the goal's measure."""

from dataclasses import dataclass
from typing import Any

from brim.analyze.buckets import BucketAnalysis, analyze_bucket_efficiency
from brim.analyze.histogram import Countable, count_lengths
from brim.core.errors import DataError, OptionError
from brim.core.options import check_counts, one_of
from brim.plan.buckets import BucketSpec
from brim.plan.edges import widths_for_counts
from brim.plan.goal import OptimizationGoal

MEASURES = {
    OptimizationGoal.MINIMIZE_WASTE: "the slots that samples are padded to",
    OptimizationGoal.BALANCE_BUCKETS: "the squared bucket sizes",
    OptimizationGoal.MINIMIZE_MEMORY: "the attention matrices of padded rows",
}
"""The sum that each goal minimizes, in words."""


@dataclass(frozen=True, kw_only=True)
class BucketSuggestion:
    """Suggested bucket edges, and the fill and cost that they give."""

    goal: OptimizationGoal
    analysis: BucketAnalysis
    pad_to_multiple: int = 1

    @property
    def bucket_spec(self) -> BucketSpec:
        return self.analysis.bucket_spec

    @property
    def edges(self) -> tuple[int, ...]:
        """The edges, for `BatchingConfig.bucket_edges` or --bucket-edges."""
        return self.bucket_spec.edges

    @property
    def overflow_max(self) -> int:
        """The upper limit of the last bucket."""
        return self.bucket_spec.overflow_max

    @property
    def num_buckets(self) -> int:
        return self.bucket_spec.num_buckets

    @property
    def cost(self) -> int:
        """The cost of the buckets by the measure of the goal."""
        return self.analysis.cost(self.goal)

    def to_dict(self) -> dict[str, Any]:
        return {"goal": str(self.goal), "measure": MEASURES[self.goal], "cost": self.cost, **self.analysis.to_dict()}

    def to_ascii(self, width: int = 20) -> str:
        return self.analysis.to_ascii(width)

    def _repr_html_(self) -> str:
        return self.analysis._repr_html_()  # pyright: ignore[reportPrivateUsage]


def suggest_bucket_edges(
    lengths: Countable,
    num_buckets: int = 4,
    goal: OptimizationGoal | str = OptimizationGoal.MINIMIZE_WASTE,
    max_length: int | None = None,
    *,
    pad_to_multiple: int = 1,
) -> BucketSuggestion:
    """Return the best edges for at most `num_buckets` buckets, every width a multiple of `pad_to_multiple`.

    With `max_length`, no bucket is wider; longer samples are in no bucket, and counted in `analysis.too_long`.

    Raises:
        DataError: There are no lengths, or none up to `max_length`.

    Example:
        >>> suggest_bucket_edges([1, 1, 1, 9, 10], num_buckets=2).edges
        (1,)
    """
    goal = OptimizationGoal(one_of("goal", goal, OptimizationGoal))
    check_counts(num_buckets=num_buckets, pad_to_multiple=pad_to_multiple)
    if max_length is not None and max_length < pad_to_multiple:
        raise OptionError(f"max_length must be at least {pad_to_multiple}, got {max_length}")
    counts = count_lengths(lengths)
    kept = counts if max_length is None else counts.up_to(max_length // pad_to_multiple * pad_to_multiple)
    if kept.samples == 0:
        raise DataError(
            f"no sample is short enough for max_length {max_length}: the shortest has {int(counts.lengths[0])} tokens"
        )
    widths = widths_for_counts(kept.lengths, kept.counts, num_buckets, multiple=pad_to_multiple, goal=goal)
    spec = BucketSpec(edges=widths[:-1], overflow_max=widths[-1])
    return BucketSuggestion(
        goal=goal, analysis=analyze_bucket_efficiency(counts, spec), pad_to_multiple=pad_to_multiple
    )
