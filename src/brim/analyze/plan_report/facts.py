"""The numbers of a plan report, mostly as dictionaries: counts, statistics, the comparison, and provenance."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from brim import __version__
from brim.analyze.plan_report.page.parts import StrategyRow
from brim.analyze.plan_report.view import METRICS, EpochView, imbalance, order_stats, waste_stats
from brim.data.ids import SampleId
from brim.plan.verify import NAMED

if TYPE_CHECKING:
    from brim.analyze.plan_report.report import PlanReport


def strategy_rows(report: "PlanReport") -> list[StrategyRow]:
    """Return the rows of the comparison: random batches, the plan unless it is empty, the other ways of batching."""
    before, *others = report.efficiency.strategies
    own = [StrategyRow(report.own, gain(report), own=True)] if report.own.batches else []
    return [StrategyRow(before, 1.0), *own, *(StrategyRow(other, other.speedup(before)) for other in others)]


def gain(report: "PlanReport") -> float:
    """Return the speed-up over random batches by the cost per token, so that dropping tokens is no speed-up."""
    before = report.efficiency.strategies[0]
    return (
        report.own.speedup(before) * report.own.fill.used / before.fill.used
        if before.fill.used
        else report.own.speedup(before)
    )


def budget_used(report: "PlanReport") -> float:
    """Return the average share of the token budget that a microbatch takes."""
    return report.own.fill.slots / (report.own.batches * report.plan.config.token_budget)


def epoch_facts(report: "PlanReport", epoch: EpochView, ranks: int) -> dict[str, Any]:
    """Return the counts of an epoch that is dealt to `ranks` ranks."""
    dealt = epoch.dealt[ranks]
    order, deal = dealt.order(), dealt.deal
    fill = epoch.fill(order)
    return {
        "samples": report.plan.counts.samples,
        "sequences": int(epoch.sequences[order].sum()),
        "tokens": fill.used,
        "slots": fill.slots,
        "fill": fill.ratio,
        "microbatches": len(order),
        "steps": deal.steps,
        "microbatches_per_step": deal.step_size,
        "last_step": dealt.last_step,
        "empty": deal.nulls if report.view.rank is None else deal.rounds - len(order),
        "dropped_microbatches": deal.dropped,
        "repeated_microbatches": deal.repeated,
        "dropped_sequences": epoch.dropped,
        "shapes": len(epoch.shapes(order)[1]),
    }


def dealt_facts(report: "PlanReport", epoch: EpochView, ranks: int) -> dict[str, Any]:
    """Return the counts of `epoch_facts`, and statistics of order, balance and padding."""
    dealt = epoch.dealt[ranks]
    waste = waste_stats(epoch.padding[dealt.order()])
    return {
        **epoch_facts(report, epoch, ranks),
        "imbalance": _number(imbalance(dealt.step_costs(epoch.cost))),
        "worst_tenth_of_padding": _number(waste.worst_tenth),
        "half_of_padding_in": _number(waste.half),
        "order": {
            metric: {name: _number(value) for name, value in vars(order_stats(epoch.column(metric), dealt)).items()}
            for metric in METRICS
        },
    }


def length_bins(report: "PlanReport") -> dict[str, Any]:
    """Return the length histogram for a linear and for a log axis, as lists of [low, high, samples], and a summary."""
    lengths = report.efficiency.histogram
    ends = np.unique(np.geomspace(max(lengths.shortest, 1), max(lengths.longest, 1), 61).round().astype(np.int64))
    counts = lengths.counts.sums(ends)[0].tolist()
    starts = [lengths.shortest, *(ends[:-1] + 1).tolist()]
    return {
        "linear": [[bin.low, bin.high, bin.count] for bin in lengths.bins],
        "log": [list(bin) for bin in zip(starts, ends.tolist(), counts, strict=True)],
        "percentiles": lengths.percentiles,
        "shortest": lengths.shortest,
        "longest": lengths.longest,
        "count": lengths.count,
    }


def provenance(report: "PlanReport") -> dict[str, dict[str, Any]]:
    """Return what the plan was made from: fingerprints, samples that were left out or cut, options."""
    plan, table, counts = report.plan, report.plan.table, report.plan.counts
    long = table.ids.take(np.flatnonzero(table.lengths > plan.config.limit)[:NAMED])
    options = plan.config.to_dict()
    packing = options.pop("packing")
    options |= {f"packing_{name}": value for name, value in (packing or {"": None}).items()}
    epochs = {f"epoch {epoch.epoch}": epoch.fingerprint for epoch in report.view.epochs}
    source = {name: str(value) for name, value in table.source.items()}
    return {
        "Fingerprints": {
            "plan": plan.fingerprint,
            **epochs,
            "lengths": table.fingerprint,
            "data": table.dataset_hash or "unknown",
            "tokenizer": table.tokenizer_hash or "unknown",
            "given lengths": report.lengths,
            "brim": __version__,
        },
        "What became of the samples": {
            "samples": counts.samples,
            "skipped": _named(counts.skipped, long),
            "truncated": _named(counts.truncated, long),
            "tokens cut off": counts.truncated_tokens,
            "split": _named(counts.split, long),
            **{
                f"dropped in epoch {epoch.epoch}": _named(epoch.dropped, epoch.dropped_ids)
                for epoch in report.view.epochs
            },
        },
        **({"Where the lengths come from": source} if source else {}),
        "Options": {"buckets end at": None if plan.buckets is None else _shown(plan.buckets.widths)}
        | {name.strip("_").replace("_", " "): _shown(value) for name, value in options.items()},
    }


def _number(value: float) -> float | None:
    return None if np.isnan(value) else value


def _named(number: int, ids: Sequence[SampleId]) -> int | str:
    """Return the number of samples followed by the given ids, the first ones; 0 if there are none."""
    return f"{number:,}: {', '.join(map(str, ids))}{', ...' if number > len(ids) else ''}" if number else 0


def _shown(value: Any) -> Any:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
