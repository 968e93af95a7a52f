"""`PlanReport`: a plan to look at. One HTML page, or one picture, made from a plan and nothing else.

Numbers come from `brim.analyze.plan_report.view`, what to choose from `brim.analyze.report`; this module puts them into words.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from brim import __version__
from brim.analyze.advice import ENOUGH, choose_strategy
from brim.analyze.plan_report.page import Page, render_page
from brim.analyze.plan_report.page.parts import Fact, StrategyRow, brief
from brim.analyze.plan_report.page.payload import create_payload
from brim.analyze.plan_report.view import METRICS, EpochView, PlanView, create_plan_view, imbalance, order_stats, waste_stats
from brim.analyze.report import BatchingEfficiencyReport, create_efficiency_report
from brim.analyze.strategies import Strategy, strategy_of
from brim.core.atomic import atomic_file, check_target
from brim.core.errors import MismatchError, OptionError
from brim.data.ids import Ids, SampleId
from brim.data.lengths import LengthCache
from brim.plan.build import build_epoch
from brim.plan.plan import BatchPlan
from brim.plan.verify import NAMED, compare_lengths

PAGE_BYTES = 4_000_000
"""What the numbers of a page may take."""
NOTEBOOK_BYTES = 400_000
SMALL = 0.5
"""The share of the budget below which microbatches are small enough to be worth a word."""
SUFFIXES = (".html", ".png")


@dataclass(frozen=True, eq=False, repr=False)
class PlanReport:
    """Everything there is to see in a plan. Made by `create_plan_report`."""

    view: PlanView
    efficiency: BatchingEfficiencyReport
    """Of the plan's lengths, as they are after cutting, under its budget."""
    own: Strategy
    """The plan itself, as one of the strategies; a share of a plan stands for the whole one."""
    name: str
    lengths: str
    """What is known of the lengths: whether they were compared, and with what."""

    def __repr__(self) -> str:
        return f"PlanReport({self.plan!r})"

    @property
    def plan(self) -> BatchPlan:
        return self.view.plan

    @property
    def verdict(self) -> str:
        """How full the plan is, and what it wastes."""
        before, fill = self.efficiency.strategies[0], self.own.fill
        if self.own.batches == 0:
            return "This plan has no microbatches: everything is left out by drop_last."
        wasted = f"{fill.waste:.2%} of the slots it pays for are padding" if fill.used < fill.slots else "nothing it pays for is padding"
        gain = self._gain
        speed = f", and an epoch costs {gain:.2f} times less than {before.name}" if gain >= ENOUGH else ""
        return f"This plan is {fill.ratio:.2%} full: {wasted}{speed}.{self._small()}"

    @property
    def _gain(self) -> float:
        """Over random batches, by the cost of a token: what is dropped is no saving."""
        before = self.efficiency.strategies[0]
        return self.own.speedup(before) * self.own.fill.used / before.fill.used if before.fill.used else self.own.speedup(before)

    @property
    def _used(self) -> float:
        """How much of the budget a microbatch takes on average."""
        return self.own.fill.slots / (self.own.batches * self.plan.config.token_budget)

    def _small(self) -> str:
        """A budget that is hardly used is the one waste that padding does not show."""
        if self._used >= SMALL:
            return ""
        return (
            f" But its microbatches take only {self._used:.1%} of the budget on average, so there are many more of them than there need be."
        )

    @property
    def advice(self) -> str:
        """What to choose: this plan, unless another way of batching is noticeably cheaper."""
        chosen = choose_strategy(self.efficiency.strategies)
        dear = self.own.cost * chosen.fill.used > chosen.cost * self.own.fill.used * ENOUGH
        if self.own.batches and not dear and (self._used >= SMALL or self.own.batches <= 2 * chosen.batches):
            return "Keep it: no other way of batching these lengths is noticeably cheaper."
        return self.efficiency.advice

    @property
    def rows(self) -> list[StrategyRow]:
        """The comparison: what all are compared with, the plan unless it is empty, the other ways."""
        before, *others = self.efficiency.strategies
        own = [StrategyRow(self.own, self._gain, own=True)] if self.own.batches else []
        return [StrategyRow(before, 1.0), *own, *(StrategyRow(other, other.speedup(before)) for other in others)]

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Of the first epoch on the first number of ranks."""
        return self._facts(self.view.epochs[0], self.view.world_sizes[0])

    def _facts(self, epoch: EpochView, ranks: int) -> dict[str, Any]:
        dealt = epoch.dealt[ranks]
        order, deal = dealt.order(), dealt.deal
        fill = epoch.fill(order)
        return {
            "samples": self.plan.counts.samples,
            "sequences": int(epoch.sequences[order].sum()),
            "tokens": fill.used,
            "slots": fill.slots,
            "fill": fill.ratio,
            "microbatches": len(order),
            "steps": deal.steps,
            "microbatches_per_step": deal.step_size,
            "last_step": dealt.last_step,
            "empty": deal.nulls if self.view.rank is None else deal.rounds - len(order),
            "dropped_microbatches": deal.dropped,
            "repeated_microbatches": deal.repeated,
            "dropped_sequences": epoch.dropped,
            "shapes": len(epoch.shapes(order)[1]),
        }

    def to_dict(self) -> dict[str, Any]:
        """Facts and statistics of every epoch and number of ranks that is shown, the comparison, and provenance."""
        return {
            "verdict": self.verdict,
            "advice": self.advice,
            **self.facts,
            "ranks": list(self.view.world_sizes),
            "rank": self.view.rank,
            "num_epochs": self.plan.num_epochs,
            "epochs": [
                {"epoch": epoch.epoch, "dealt": {str(ranks): self._dealt(epoch, ranks) for ranks in epoch.dealt}}
                for epoch in self.view.epochs
            ],
            "strategies": [{**row.strategy.to_dict(), "speedup": row.speedup, "own": row.own} for row in self.rows],
            "provenance": self._provenance(),
        }

    def _dealt(self, epoch: EpochView, ranks: int) -> dict[str, Any]:
        dealt = epoch.dealt[ranks]
        waste = waste_stats(epoch.padding[dealt.order()])
        return {
            **self._facts(epoch, ranks),
            "imbalance": _number(imbalance(dealt.step_costs(epoch.cost))),
            "worst_tenth_of_padding": _number(waste.worst_tenth),
            "half_of_padding_in": _number(waste.half),
            "order": {
                metric: {name: _number(value) for name, value in vars(order_stats(epoch.column(metric), dealt)).items()}
                for metric in METRICS
            },
        }

    def html(self, *, max_bytes: int = PAGE_BYTES) -> str:
        """The page. Numbers that would take more than about `max_bytes` are left out or merged, and the page says which."""
        data = create_payload(self.view, max_bytes) | {"lengths": self._length_bins()}
        return render_page(
            Page(
                title=f"Plan {self.name}" if self.name else "Batch plan",
                verdict=self.verdict,
                advice=self.advice,
                facts=self._fact_list(),
                notes=self._notes(data),
                length_words=self._length_words(),
                band_name="bucket" if self.view.bucketed else "width",
                strategy_words=self._strategy_words(),
                strategies=self.rows,
                provenance=self._provenance(),
                data=data,
            )
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page or the picture, as the name says, whole or not at all.

        Raises:
            OptionError: The name ends in neither .html nor .png.
            MissingExtraError: It ends in .png, and matplotlib is not installed.
        """
        if check_report(path) == ".html":
            content = self.html().encode()
        else:
            from brim.analyze.plan_report.figures import draw_png

            content = draw_png(self)
        with atomic_file(path) as file:
            file.write(content)

    def _repr_html_(self) -> str:
        page = escape(self.html(max_bytes=NOTEBOOK_BYTES), quote=True)
        return f'<iframe srcdoc="{page}" sandbox="allow-scripts" width="100%" height="720" style="border:0" title="Plan report"></iframe>'

    def _fact_list(self) -> list[Fact]:
        facts = self.facts
        empty = f"and {facts['empty']:,} empty, over all ranks" if facts["empty"] else "none empty"
        return [
            Fact("samples", "Samples", f"{facts['samples']:,}", f"{_counted(facts['sequences'], 'sequence')} dealt"),
            Fact("tokens", "Tokens", brief(facts["tokens"]), f"{facts['tokens']:,} of {facts['slots']:,} slots"),
            Fact("fill", "Fill", f"{facts['fill']:.1%}", f"{1 - facts['fill']:.2%} padding"),
            Fact("microbatches", "Microbatches", f"{facts['microbatches']:,}", empty),
            Fact("steps", "Optimizer steps", f"{facts['steps']:,}", f"{_microbatches(facts['microbatches_per_step'])} each"),
            Fact("shapes", "Distinct shapes", f"{facts['shapes']:,}", "rows × width"),
        ]

    def _notes(self, data: dict[str, Any]) -> list[str]:
        found: list[str] = []
        shown, merged = len(data["epochs"]), next((world["merged"] for world in _worlds(data) if "merged" in world), None)
        if shown < self.plan.num_epochs:
            which = "Epoch 0 of" if shown == 1 else f"Epochs 0–{shown - 1} of"
            found.append(f"{which} {self.plan.num_epochs} {'is' if shown == 1 else 'are'} shown; more would make the page too large.")
        if merged is not None:
            found.append("The epoch is large: in charts of the order, runs of neighbouring microbatches are added up. Numbers are exact.")
        if self.view.rank is not None:
            found.append(f"This is the share of rank {self.view.rank} of {self.plan.world_size}. The comparison is about the whole plan.")
        return found

    def _length_words(self) -> str:
        lengths, config, cut = self.efficiency.histogram, self.plan.config, self.plan.counts
        p50, p90, p99 = (lengths.percentiles[percent] for percent in (50, 90, 99))
        things = "piece" if cut.split else "sample"
        spread = (
            f"{_counted(lengths.count, things)} of {lengths.shortest:,} to {lengths.longest:,} tokens, {lengths.mean:,.1f} on average: "
        )
        half = f"half have at most {p50:,}, nine in ten at most {p90:,}, 99% at most {p99:,}."
        buckets = f" Dashed lines are where the {len(self.view.bands)} buckets end." if self.view.bucketed else ""
        over = {
            "skip": f" {_that_are(cut.skipped, config.limit)} left out.",
            "truncate": f" {_that_are(cut.truncated, config.limit)} cut to that.",
            "split": f" {_that_are(cut.split, config.limit)} in pieces.",
        }.get("" if cut.untouched else config.overflow, "")
        return spread + half + buckets + over

    def _length_bins(self) -> dict[str, Any]:
        """The histogram twice, for an axis of either kind: [low, high, samples]."""
        lengths = self.efficiency.histogram
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

    def _strategy_words(self) -> str:
        before = self.efficiency.strategies[0]
        return (
            f"The same samples under a budget of {self.efficiency.token_budget:,} tokens. Attention and speed-up are relative to "
            f"{before.name}; the speed-up is expected from slots and attention, not measured. The marked row is this plan."
        )

    def _provenance(self) -> dict[str, dict[str, Any]]:
        plan, table, counts = self.plan, self.plan.table, self.plan.counts
        long = table.ids.take(np.flatnonzero(table.lengths > plan.config.limit)[:NAMED])
        options = plan.config.to_dict()
        packing = options.pop("packing")
        options |= {f"packing_{name}": value for name, value in (packing or {"": None}).items()}
        epochs = {f"epoch {epoch.epoch}": epoch.fingerprint for epoch in self.view.epochs}
        source = {name: str(value) for name, value in table.source.items()}
        return {
            "Fingerprints": {
                "plan": plan.fingerprint,
                **epochs,
                "lengths": table.fingerprint,
                "data": table.dataset_hash or "unknown",
                "tokenizer": table.tokenizer_hash or "unknown",
                "given lengths": self.lengths,
                "brim": __version__,
            },
            "What became of the samples": {
                "samples": counts.samples,
                "skipped": _named(counts.skipped, long),
                "truncated": _named(counts.truncated, long),
                "tokens cut off": counts.truncated_tokens,
                "split": _named(counts.split, long),
                **{f"dropped in epoch {epoch.epoch}": _named(epoch.dropped, epoch.dropped_ids) for epoch in self.view.epochs},
            },
            **({"Where the lengths come from": source} if source else {}),
            "Options": {"buckets end at": None if plan.buckets is None else _shown(plan.buckets.widths)}
            | {name.strip("_").replace("_", " "): _shown(value) for name, value in options.items()},
        }


def check_report(path: str | os.PathLike[str]) -> str:
    """The suffix of a report of this name.

    Raises:
        OptionError: It ends in neither .html nor .png, or cannot be written.
    """
    check_target(path)
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise OptionError(f"cannot write {path}: a report ends in .html or .png")
    return suffix


def create_plan_report(
    plan: BatchPlan, *, world_sizes: Sequence[int] | None = None, lengths: LengthCache | None = None, name: str = ""
) -> PlanReport:
    """A report on a plan, dealt to 1, 2, 4 and 8 ranks unless other numbers are given; of a share, as its rank sees it.

    Raises:
        MismatchError: `lengths` are not those the plan was built from.
        OptionError: A number of ranks is below 1, or the plan is a share, which cannot be dealt again.
    """
    said = "none were given to compare; the plan's own are shown"
    if lengths is not None:
        check_lengths(plan, lengths, name)
        said = "belong to this plan"
    view = create_plan_view(plan, world_sizes, max_bytes=PAGE_BYTES * 3 // 4)
    columns = plan.columns(0)
    if plan.share.partial:
        columns = build_epoch(plan.units, plan.config, plan.buckets, 0).columns
    efficiency = create_efficiency_report(
        _planned_lengths(plan),
        token_budget=plan.config.token_budget,
        num_bins=80,
        num_buckets=None if plan.buckets is None else plan.buckets.num_buckets,
        pad_to_multiple=plan.config.pad_to_multiple,
        seed=plan.config.seed,
    )
    return PlanReport(view, efficiency, strategy_of("this plan", columns), name, said)


def check_lengths(plan: BatchPlan, lengths: LengthCache, name: str = "") -> None:
    """Refuse lengths that the plan was not built from.

    Raises:
        MismatchError: They are not, with everything that differs.
    """
    found = compare_lengths(plan.table, lengths)
    if found:
        raise MismatchError(
            f"{name or 'this plan'} was built for other lengths: {'; '.join(difference.message for difference in found)}. Pass the lengths "
            "it was built from, or build it again with `brim plan build`."
        )


def _planned_lengths(plan: BatchPlan) -> LengthCache:
    """The lengths as they are planned: what is skipped is left out, what is too long is cut."""
    if plan.counts.untouched:
        return plan.table
    units = plan.units
    return LengthCache(Ids.rows(len(units)), units.length, groups=units.group, group_names=plan.table.group_names, axes=units.axes)


def _worlds(data: dict[str, Any]) -> list[dict[str, Any]]:
    return [world for epoch in data["epochs"] for world in epoch["worlds"].values()]


def _counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _that_are(number: int, limit: int) -> str:
    return f"{_counted(number, 'sample')} longer than {limit:,} tokens {'is' if number == 1 else 'are'}"


def _microbatches(number: int) -> str:
    return "1 microbatch" if number == 1 else f"{number:,} microbatches"


def _number(value: float) -> float | None:
    return None if np.isnan(value) else value


def _named(number: int, ids: Sequence[SampleId]) -> int | str:
    """How many samples, and which; the first ones by name."""
    return f"{number:,}: {', '.join(map(str, ids))}{', ...' if number > len(ids) else ''}" if number else 0


def _shown(value: Any) -> Any:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
