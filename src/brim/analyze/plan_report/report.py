"""`PlanReport`: a report on a plan, as one HTML page or one image, made from the plan and nothing else.

Numbers come from `brim.analyze.plan_report.facts`, sentences from `brim.analyze.plan_report.words`.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

from brim.analyze.plan_report import words
from brim.analyze.plan_report.facts import dealt_facts, epoch_facts, length_bins, provenance, strategy_rows
from brim.analyze.plan_report.page import Page, render_page
from brim.analyze.plan_report.page.parts import StrategyRow
from brim.analyze.plan_report.page.payload import create_payload
from brim.analyze.plan_report.view import PlanView, create_plan_view
from brim.analyze.report import BatchingEfficiencyReport, create_efficiency_report
from brim.analyze.strategies import Strategy, strategy_of
from brim.core.atomic import atomic_file, check_target
from brim.core.errors import MismatchError, OptionError
from brim.data.ids import Ids
from brim.data.lengths import LengthCache
from brim.plan.build import build_epoch
from brim.plan.plan import BatchPlan
from brim.plan.verify import compare_lengths

PAGE_BYTES = 4_000_000
"""Upper limit, about, of the numbers of a page, in bytes."""
NOTEBOOK_BYTES = 400_000
SUFFIXES = (".html", ".png")


@dataclass(frozen=True, eq=False, repr=False)
class PlanReport:
    """A report on a plan, as numbers, an HTML page or an image. Made by `create_plan_report`."""

    view: PlanView
    efficiency: BatchingEfficiencyReport
    """Efficiency report on the plan's lengths, after skipping, cutting or splitting long samples, under its budget."""
    own: Strategy
    """The plan as a strategy; for the share of a rank, the whole plan."""
    name: str
    lengths: str
    """A phrase on whether the plan was compared with given lengths."""

    def __repr__(self) -> str:
        return f"PlanReport({self.plan!r})"

    @property
    def plan(self) -> BatchPlan:
        return self.view.plan

    @property
    def verdict(self) -> str:
        """One or two sentences on the plan's fill and padding."""
        return words.verdict(self)

    @property
    def advice(self) -> str:
        """One sentence on what to choose: this plan, unless another way of batching is noticeably cheaper."""
        return words.advice(self)

    @property
    def rows(self) -> list[StrategyRow]:
        """Rows of the comparison: random batches, the plan unless it is empty, and the other ways of batching."""
        return strategy_rows(self)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Counts of the first epoch, dealt to the first number of ranks."""
        return epoch_facts(self, self.view.epochs[0], self.view.world_sizes[0])

    def to_dict(self) -> dict[str, Any]:
        """Return facts and statistics of every epoch and number of ranks shown, the comparison, and provenance."""
        return {
            "verdict": self.verdict,
            "advice": self.advice,
            **self.facts,
            "ranks": list(self.view.world_sizes),
            "rank": self.view.rank,
            "num_epochs": self.plan.num_epochs,
            "epochs": [
                {"epoch": epoch.epoch, "dealt": {str(ranks): dealt_facts(self, epoch, ranks) for ranks in epoch.dealt}}
                for epoch in self.view.epochs
            ],
            "strategies": [{**row.strategy.to_dict(), "speedup": row.speedup, "own": row.own} for row in self.rows],
            "provenance": provenance(self),
        }

    def html(self, *, max_bytes: int = PAGE_BYTES) -> str:
        """Return the HTML page.

        Numbers that would take more than about `max_bytes` are left out or merged, and a note on the page says so.
        """
        data = create_payload(self.view, max_bytes) | {"lengths": length_bins(self)}
        return render_page(
            Page(
                title=f"Plan {self.name}" if self.name else "Batch plan",
                verdict=self.verdict,
                advice=self.advice,
                facts=words.fact_list(self),
                notes=words.notes(self, data),
                length_words=words.length_words(self),
                band_name="bucket" if self.view.bucketed else "width",
                strategy_words=words.strategy_words(self),
                strategies=self.rows,
                provenance=provenance(self),
                data=data,
            )
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page or the image, by the suffix of the file name, atomically.

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
        return (
            f'<iframe srcdoc="{page}" sandbox="allow-scripts" width="100%" height="720" style="border:0" title="Plan '
            f'report"></iframe>'
        )


def check_report(path: str | os.PathLike[str]) -> str:
    """Check the file name of a report, and return its suffix in lower case.

    Raises:
        OptionError: The name ends in neither .html nor .png, or the file cannot be written.
    """
    check_target(path)
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise OptionError(f"cannot write {path}: a report ends in .html or .png")
    return suffix


def create_plan_report(
    plan: BatchPlan, *, world_sizes: Sequence[int] | None = None, lengths: LengthCache | None = None, name: str = ""
) -> PlanReport:
    """Make a report on a plan, dealt to each of `world_sizes` (default: 1, 2, 4 and 8 ranks).

    A share of a plan is reported for its own rank. `lengths`, if given, are checked against the plan; `name` is for the
    title.

    Raises:
        MismatchError: `lengths` are not those the plan was built from.
        OptionError: A number of ranks is out of range, or the plan is a share, which cannot be dealt to other numbers.
    """
    said = "none were given to compare; the plan's own are shown"
    if lengths is not None:
        check_lengths(plan, lengths, name)
        said = "belong to this plan"
    view = create_plan_view(plan, world_sizes, max_bytes=PAGE_BYTES * 3 // 4)
    columns = plan.columns(0)
    if plan.share.partial:
        columns = build_epoch(plan.units, plan.config, plan.buckets, 0, algorithm=plan.epochs.algorithm).columns
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
        MismatchError: The lengths differ; the message lists all differences.
    """
    found = compare_lengths(plan.table, lengths)
    if found:
        raise MismatchError(
            f"{name or 'this plan'} was built for other lengths: "
            f"{'; '.join(difference.message for difference in found)}. Pass the lengths it was built from, or build "
            "it again with `brim plan build`."
        )


def _planned_lengths(plan: BatchPlan) -> LengthCache:
    """Return the lengths of the planned sequences: without skipped samples, and with long ones cut or split."""
    if plan.counts.untouched:
        return plan.table
    units = plan.units
    return LengthCache(
        Ids.rows(len(units)), units.length, groups=units.group, group_names=plan.table.group_names, axes=units.axes
    )
