"""`BatchingEfficiencyReport`: lengths, buckets, suggested edges and strategies in one report, with one sentence of
advice.
"""

from dataclasses import dataclass
from html import escape
from typing import Any

from brim.analyze.advice import advise, notes
from brim.analyze.buckets import BucketAnalysis, analyze_bucket_efficiency
from brim.analyze.capacity.search import Capacity, bytes_text
from brim.analyze.counts import as_table, check_one_length
from brim.analyze.histogram import Countable, LengthHistogram, compute_length_histogram
from brim.analyze.strategies import Strategy, compare_strategies, effective_buckets, longest_kept
from brim.analyze.suggest import BucketSuggestion, suggest_bucket_edges
from brim.core.display import table_html
from brim.core.options import check_counts
from brim.plan.buckets import BucketSpec
from brim.plan.goal import OptimizationGoal

BUDGET = 4096
NUM_BUCKETS = 8


@dataclass(frozen=True, kw_only=True)
class BatchingEfficiencyReport:
    """The padding and cost of a data set under several ways of batching, with advice on which one to choose."""

    histogram: LengthHistogram
    analysis: BucketAnalysis | None
    """The fill of the buckets in use, with the widths that the planner gives them; None if no buckets were given."""
    suggestions: dict[OptimizationGoal, BucketSuggestion]
    """The best bucket edges for every goal, for at most `num_buckets` buckets (default: as many as are in use, else 8).

    Samples that are too long count as cut. Empty for nested samples.
    """
    strategies: tuple[Strategy, ...]
    """The strategies; the first one, random batches, is the baseline of attention and speed-ups."""
    token_budget: int
    advice: str
    """One sentence: which strategy to choose, and why."""
    notes: tuple[str, ...]
    capacity: Capacity | None = None
    """The measured capacity of the machine, if any: memory and speed-ups are then estimated from it."""

    def to_dict(self) -> dict[str, Any]:
        before = self.strategies[0]
        return {
            "token_budget": self.token_budget,
            "histogram": self.histogram.to_dict(),
            "buckets": None if self.analysis is None else self.analysis.to_dict(),
            "suggestions": {str(goal): suggestion.to_dict() for goal, suggestion in self.suggestions.items()},
            "strategies": [self._strategy(one, before) for one in self.strategies],
            "measured": None if self.capacity is None else dict(self.capacity.measured),
            "advice": self.advice,
            "notes": list(self.notes),
        }

    def to_ascii(self, width: int = 40) -> str:
        """Return the whole report as text; bars have at most `width` characters."""
        edges = () if self.analysis is None else self.analysis.bucket_spec.widths
        parts = [self.histogram.to_ascii(width, edges=edges)]
        if self.analysis is not None:
            parts.append(self.analysis.to_ascii(width // 2))
        rows = [[str(cell) for cell in row] for row in self.table()]
        sizes = [max(len(name), *(len(row[at]) for row in rows)) for at, name in enumerate(self.COLUMNS)]
        lines = [[*self.COLUMNS], *rows]
        parts.append(
            "\n".join(
                " ".join(
                    _aligned(cell, size, at) for at, (cell, size) in enumerate(zip(line, sizes, strict=True))
                ).rstrip()
                for line in lines
            )
        )
        return "\n\n".join([*parts, "\n".join([self.advice, *self.notes])])

    COLUMNS = ("batching", "padding", "steps", "shapes", "attention", "peak", "speed-up")

    def _strategy(self, one: Strategy, before: Strategy) -> dict[str, Any]:
        shown = {**one.to_dict(), "speedup": one.speedup(before, self.capacity)}
        return (
            shown
            if self.capacity is None
            else {**shown, "seconds": one.price(self.capacity), "bytes": self.capacity.bytes(one.peak)}
        )

    def table(self) -> list[list[Any]]:
        """Return one row per strategy, formatted for display under `COLUMNS`.

        Attention is relative to the first strategy; the peak is in slots, or in bytes if there is a `capacity`.
        """
        before = self.strategies[0]
        return [
            [
                one.name,
                f"{one.fill.waste:.1%}",
                f"{one.steps:,}",
                f"{one.shapes:,}",
                f"{one.attention / before.attention:.0%}" if before.attention else "-",
                f"{one.peak:,}" if self.capacity is None else bytes_text(self.capacity.bytes(one.peak)),
                f"{one.speedup(before, self.capacity):.2f}x",
            ]
            for one in self.strategies
        ]

    def _repr_html_(self) -> str:
        parts = [self.histogram, self.analysis]
        shown = "".join(part._repr_html_() for part in parts if part is not None)  # pyright: ignore[reportPrivateUsage]
        table = table_html(self.COLUMNS, self.table(), title=f"Ways of batching, budget {self.token_budget:,}")
        said = "".join(f"<p>{escape(sentence)}</p>" for sentence in (self.advice, *self.notes))
        return f"{said}{table}{shown}"


def create_efficiency_report(
    lengths: Countable,
    bucket_spec: BucketSpec | None = None,
    *,
    token_budget: int | None = None,
    num_bins: int = 20,
    num_buckets: int | None = None,
    pad_to_multiple: int = 1,
    batch_size: int | None = None,
    pack_length: int | None = None,
    seed: int = 42,
    capacity: Capacity | None = None,
) -> BatchingEfficiencyReport:
    """Report what a data set with these lengths costs in every way of batching that a user could choose.

    The default token budget is 4096, or the longest sample if that is more. `bucket_spec` are the buckets in use, if
    there are any. With a `capacity` (see `brim bench batch-size`), memory and speed-ups are estimated from the
    measurement. See `compare_strategies` for the other options.

    Raises:
        DataError: There are no lengths.
    """
    table = as_table(lengths.counts if isinstance(lengths, LengthHistogram) else lengths)
    histogram = compute_length_histogram(table, num_bins)
    budget = token_budget if token_budget is not None else max(BUDGET, histogram.longest)
    check_counts(num_buckets=num_buckets)
    if bucket_spec is not None:
        check_one_length(table, "bucket edges")
    many = num_buckets or (bucket_spec.num_buckets if bucket_spec is not None else NUM_BUCKETS)
    buckets = effective_buckets(bucket_spec, budget, pad_to_multiple) if bucket_spec is not None else None
    limit = longest_kept(budget, buckets, pad_to_multiple)
    analysis = analyze_bucket_efficiency(histogram, buckets) if buckets is not None else None
    kept = histogram.counts.cut_to(limit)
    goals = OptimizationGoal if table.axes is None else ()
    suggestions = {goal: suggest_bucket_edges(kept, many, goal, pad_to_multiple=pad_to_multiple) for goal in goals}
    strategies = compare_strategies(
        table,
        budget,
        buckets=buckets,
        num_buckets=many,
        pack_length=pack_length,
        pad_to_multiple=pad_to_multiple,
        batch_size=batch_size,
        seed=seed,
    )
    return BatchingEfficiencyReport(
        histogram=histogram,
        analysis=analysis,
        suggestions=suggestions,
        strategies=strategies,
        token_budget=budget,
        advice=advise(strategies, capacity),
        notes=notes(
            histogram.counts, limit, analysis, suggestions.get(OptimizationGoal.MINIMIZE_WASTE), strategies, capacity
        ),
        capacity=capacity,
    )


def _aligned(cell: str, size: int, at: int) -> str:
    return cell.ljust(size) if at == 0 else cell.rjust(size)
