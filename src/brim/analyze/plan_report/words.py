"""The sentences of a plan report: verdict, advice, notes. Numbers come from `brim.analyze.plan_report.facts`."""

from typing import TYPE_CHECKING, Any

from brim.analyze.advice import ENOUGH, choose_strategy
from brim.analyze.plan_report.facts import budget_used, gain
from brim.analyze.plan_report.page.parts import Fact, brief

if TYPE_CHECKING:
    from brim.analyze.plan_report.report import PlanReport

SMALL = 0.5
"""Average share of the token budget below which microbatches are reported as too small."""


def verdict(report: "PlanReport") -> str:
    """Return one or two sentences on the plan's fill, padding and speed-up."""
    before, fill = report.efficiency.strategies[0], report.own.fill
    if report.own.batches == 0:
        return "This plan has no microbatches: everything is left out by drop_last."
    wasted = (
        f"{fill.waste:.2%} of the slots it pays for are padding"
        if fill.used < fill.slots
        else "nothing it pays for is padding"
    )
    factor = gain(report)
    speed = f", and an epoch costs {factor:.2f} times less than {before.name}" if factor >= ENOUGH else ""
    return f"This plan is {fill.ratio:.2%} full: {wasted}{speed}.{_small(report)}"


def _small(report: "PlanReport") -> str:
    """Return a sentence if microbatches hardly use the budget, a waste that padding does not show; else nothing."""
    used = budget_used(report)
    if used >= SMALL:
        return ""
    return (
        f" But its microbatches take only {used:.1%} of the budget on average, so there are many more of them than "
        "there need be."
    )


def advice(report: "PlanReport") -> str:
    """Return one sentence on what to choose: this plan, unless another way of batching is noticeably cheaper."""
    chosen = choose_strategy(report.efficiency.strategies)
    dear = report.own.cost * chosen.fill.used > chosen.cost * report.own.fill.used * ENOUGH
    if report.own.batches and not dear and (budget_used(report) >= SMALL or report.own.batches <= 2 * chosen.batches):
        return "Keep it: no other way of batching these lengths is noticeably cheaper."
    return report.efficiency.advice


def fact_list(report: "PlanReport") -> list[Fact]:
    """Return the large numbers at the top of the page."""
    facts = report.facts
    empty = f"and {facts['empty']:,} empty, over all ranks" if facts["empty"] else "none empty"
    return [
        Fact("samples", "Samples", f"{facts['samples']:,}", f"{_counted(facts['sequences'], 'sequence')} dealt"),
        Fact("tokens", "Tokens", brief(facts["tokens"]), f"{facts['tokens']:,} of {facts['slots']:,} slots"),
        Fact("fill", "Fill", f"{facts['fill']:.1%}", f"{1 - facts['fill']:.2%} padding"),
        Fact("microbatches", "Microbatches", f"{facts['microbatches']:,}", empty),
        Fact(
            "steps", "Optimizer steps", f"{facts['steps']:,}", f"{_microbatches(facts['microbatches_per_step'])} each"
        ),
        Fact("shapes", "Distinct shapes", f"{facts['shapes']:,}", "rows × width"),
    ]


def notes(report: "PlanReport", data: dict[str, Any]) -> list[str]:
    """Return sentences on what the page leaves out or merges, and on the rank whose share it shows."""
    found: list[str] = []
    shown, merged = len(data["epochs"]), next((world["merged"] for world in _worlds(data) if "merged" in world), None)
    if shown < report.plan.num_epochs:
        which = "Epoch 0 of" if shown == 1 else f"Epochs 0–{shown - 1} of"
        found.append(
            f"{which} {report.plan.num_epochs} {'is' if shown == 1 else 'are'} shown; more would make the page too "
            "large."
        )
    if merged is not None:
        found.append(
            "The epoch is large: in charts of the order, runs of neighbouring microbatches are added up. Numbers "
            "are exact."
        )
    if report.view.rank is not None:
        found.append(
            f"This is the share of rank {report.view.rank} of {report.plan.world_size}. The comparison is about the "
            "whole plan."
        )
    return found


def length_words(report: "PlanReport") -> str:
    """Describe the distribution of the lengths, and what happened to samples that are too long."""
    lengths, config, cut = report.efficiency.histogram, report.plan.config, report.plan.counts
    p50, p90, p99 = (lengths.percentiles[percent] for percent in (50, 90, 99))
    things = "piece" if cut.split else "sample"
    spread = (
        f"{_counted(lengths.count, things)} of {lengths.shortest:,} to {lengths.longest:,} tokens, "
        f"{lengths.mean:,.1f} on average: "
    )
    half = f"half have at most {p50:,}, nine in ten at most {p90:,}, 99% at most {p99:,}."
    buckets = f" Dashed lines are where the {len(report.view.bands)} buckets end." if report.view.bucketed else ""
    over = {
        "skip": f" {_that_are(cut.skipped, config.limit)} left out.",
        "truncate": f" {_that_are(cut.truncated, config.limit)} cut to that.",
        "split": f" {_that_are(cut.split, config.limit)} in pieces.",
    }.get("" if cut.untouched else config.overflow, "")
    return spread + half + buckets + over


def strategy_words(report: "PlanReport") -> str:
    """Explain the comparison with other ways of batching: the budget, the baseline and the speed-up."""
    before = report.efficiency.strategies[0]
    return (
        f"The same samples under a budget of {report.efficiency.token_budget:,} tokens. Attention and speed-up are "
        f"relative to {before.name}; the speed-up is expected from slots and attention, not measured. The marked row "
        "is this plan."
    )


def _worlds(data: dict[str, Any]) -> list[dict[str, Any]]:
    return [world for epoch in data["epochs"] for world in epoch["worlds"].values()]


def _counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _that_are(number: int, limit: int) -> str:
    return f"{_counted(number, 'sample')} longer than {limit:,} tokens {'is' if number == 1 else 'are'}"


def _microbatches(number: int) -> str:
    return "1 microbatch" if number == 1 else f"{number:,} microbatches"
