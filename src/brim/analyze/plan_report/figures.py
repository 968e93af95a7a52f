"""The charts of a plan report as one image.

matplotlib is imported when an image is drawn, and only its objects are used: no window is opened and no global state of
pyplot is touched.
"""

import io
import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from brim.analyze.plan_report.page.parts import brief
from brim.analyze.plan_report.view import Dealt, EpochView, imbalance, order_stats
from brim.analyze.plots import METADATA, new_figure
from brim.core.extras import need

if TYPE_CHECKING:
    from brim.analyze.plan_report.report import PlanReport

USER = "brim.analyze.plan_report.figures"
INK, SOFT, USED, WASTE, MARK = "#20242a", "#5b626c", "#2f6fa5", "#c2600a", "#7a3e9d"
POINTS = 20_000
"""The order chart is thinned out to fewer than twice this many points; its line is computed from all of them."""


def draw_png(report: "PlanReport", *, dpi: int = 110) -> bytes:
    """Return the image as the bytes of a PNG file.

    It shows epoch 0: the costs of ranks for the last number of ranks, the microbatches for the first.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    figure = draw(report)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=dpi, metadata=METADATA["png"])
    return content.getvalue()


def draw(report: "PlanReport") -> Any:
    """Draw a matplotlib Figure with a panel for each chart."""
    figure = new_figure(16, 12, user=USER, facecolor="white")
    panels = figure.subplots(3, 3)
    view = report.view
    epoch, few, many = view.epochs[0], view.world_sizes[0], view.world_sizes[-1]
    _lengths(panels[0][0], report)
    _fill(panels[0][1], report, epoch, epoch.dealt[few])
    _shapes(panels[0][2], epoch, epoch.dealt[few])
    _order(panels[1][0], epoch, epoch.dealt[few])
    _costs(panels[1][1], epoch, epoch.dealt[many])
    _ranks(panels[1][2], epoch, epoch.dealt[many])
    _waste(panels[2][0], epoch, epoch.dealt[few], worst_first=False)
    _waste(panels[2][1], epoch, epoch.dealt[few], worst_first=True)
    _strategies(panels[2][2], report)
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.14)
    ticker = need("matplotlib.ticker", extra="plot", user=USER)
    for axes in panels.flat:
        _readable(axes, ticker)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=SOFT, labelsize=8)
        axes.grid(visible=True, color="#ebe8e1", linewidth=0.6)
        axes.set_axisbelow(True)
    title = _plain(f"Plan {report.name}" if report.name else "Batch plan")
    said = "\n".join(textwrap.wrap(_plain(f"{report.verdict} {report.advice}"), 150))
    figure.suptitle(f"{title}\n{said}\nplan {report.plan.fingerprint}", fontsize=11, color=INK, x=0.01, ha="left")
    return figure


def _readable(axes: Any, ticker: Any) -> None:
    """Label ticks as the page does: 2M, not 2.0 with 1e6 at the end of the axis. Axes of names keep their names."""
    for axis in (axes.xaxis, axes.yaxis):
        if not isinstance(axis.get_major_formatter(), ticker.FixedFormatter | ticker.FuncFormatter):
            axis.set_major_formatter(ticker.FuncFormatter(_tick))
            axis.set_minor_formatter(ticker.NullFormatter())


def _tick(value: float, _: int) -> str:
    return brief(value)


def _plain(text: str) -> str:
    """Escape dollar signs, which matplotlib would read as the start of a formula."""
    return text.replace("$", r"\$")


def _named(axes: Any, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize=10, loc="left", color=INK)
    axes.set_xlabel(x, fontsize=8, color=SOFT)
    axes.set_ylabel(y, fontsize=8, color=SOFT)


def _lengths(axes: Any, report: "PlanReport") -> None:
    lengths = report.efficiency.histogram
    bins = lengths.bins
    axes.bar(
        [bin.low for bin in bins],
        [bin.count for bin in bins],
        [bin.high - bin.low + 1 for bin in bins],
        align="edge",
        color=USED,
    )
    for band in report.view.bands if report.view.bucketed else ():
        axes.axvline(band.high + 1, color=MARK, linestyle="--", linewidth=1)
    p50, p99 = lengths.percentiles[50], lengths.percentiles[99]
    _named(axes, f"How long samples are: half up to {p50:,}, 99% up to {p99:,}", "length in tokens", "samples")


def _fill(axes: Any, report: "PlanReport", epoch: EpochView, dealt: Dealt) -> None:
    sums = report.view.band_sums(epoch, dealt.order())
    kept = np.flatnonzero(sums["slots"])
    tokens, slots = sums["tokens"][kept], sums["slots"][kept]
    names = [f"{band.low:,}–{band.high:,}" for band in (report.view.bands[at] for at in kept)]
    places = np.arange(len(kept))
    axes.barh(places, tokens, color=USED)
    axes.barh(places, slots - tokens, left=tokens, color="white", edgecolor=WASTE, hatch="////")
    for place, used, paid in zip(places, tokens.tolist(), slots.tolist(), strict=True):
        axes.annotate(f" {used / paid:.1%}", (paid, place), va="center", fontsize=8, color=INK)
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    _named(axes, "Where the padding is (hatched)", "slots", "bucket" if report.view.bucketed else "width")


def _shapes(axes: Any, epoch: EpochView, dealt: Dealt) -> None:
    shapes, times = epoch.shapes(dealt.order())
    if len(times):
        axes.scatter(shapes[:, 1], shapes[:, 0], s=8 + 240 * times / times.max(), color=USED, alpha=0.5, linewidths=0)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
    _named(axes, f"{len(times):,} batch shapes; a larger circle is more frequent", "width in tokens", "rows")


def _order(axes: Any, epoch: EpochView, dealt: Dealt) -> None:
    values, stats = epoch.width[dealt.order()], order_stats(epoch.width, dealt)
    thin = max(1, len(values) // POINTS)
    axes.plot(np.arange(len(values))[::thin], values[::thin], ".", markersize=2, color=USED, alpha=0.4)
    if len(values) >= 60:
        starts = np.arange(30) * len(values) // 30
        sizes = np.diff(np.append(starts, len(values)))
        axes.plot(starts + sizes / 2, np.add.reduceat(values.astype(np.float64), starts) / sizes, color=WASTE)
    axes.set_ylim(bottom=0)
    _named(
        axes,
        f"Order of epoch 0: lag-1 correlation {stats.lag:.3f}, trend {stats.trend:.3f}",
        "microbatch, in order",
        "width",
    )


def _costs(axes: Any, epoch: EpochView, dealt: Dealt) -> None:
    costs = dealt.step_costs(epoch.cost)
    if dealt.ranks == 1:
        axes.plot(costs[:, 0], ".", markersize=2, color=USED, alpha=0.4)
        _named(axes, "Cost of each step", "optimizer step", "slots")
        return
    mean = costs.mean(axis=1)
    above = np.divide(costs.max(axis=1), mean, out=np.ones_like(mean), where=mean > 0) - 1
    short = dealt.last_step < dealt.deal.step_size and len(above) > 1
    axes.vlines(np.arange(len(above)), 0, 100 * above, color=USED, linewidth=0.8)
    top = max(1.0, 105 * float((above[:-1] if short else above).max(initial=0.0)))
    axes.set_ylim(0, top)
    if short and 100 * above[-1] > top:
        axes.annotate(
            f"the last step is short: {100 * above[-1]:.0f}%",
            (1, 0.98),
            xycoords="axes fraction",
            ha="right",
            va="top",
            fontsize=8,
            color=SOFT,
        )
    _named(
        axes,
        f"{dealt.ranks} ranks: the slowest costs {imbalance(costs):.2%} more than the mean",
        "optimizer step",
        "percent above the mean",
    )


def _ranks(axes: Any, epoch: EpochView, dealt: Dealt) -> None:
    totals = dealt.step_costs(epoch.cost).sum(axis=0)
    axes.bar(np.arange(len(totals)), totals, color=USED, width=0.6)
    if len(totals) <= 16:
        axes.set_xticks(np.arange(len(totals)))
    _named(axes, "What each rank costs over the epoch", "rank", "slots")


def _waste(axes: Any, epoch: EpochView, dealt: Dealt, *, worst_first: bool) -> None:
    padding = epoch.padding[dealt.order()]
    below = np.cumsum(np.sort(padding)[::-1] if worst_first else padding)
    axes.fill_between(np.arange(len(below)), below, color=WASTE, alpha=0.2, linewidth=0)
    axes.plot(below, color=WASTE)
    axes.plot([0, max(len(below) - 1, 1)], [0, int(below[-1]) if len(below) else 0], linestyle=":", color=SOFT)
    order = "worst microbatches first" if worst_first else "in order"
    _named(axes, f"Padding added up, {order}", "microbatches", "slots")


def _strategies(axes: Any, report: "PlanReport") -> None:
    places = np.arange(len(report.rows))
    for place, row in zip(places, report.rows, strict=True):
        waste = row.strategy.fill.waste
        axes.barh(place, 100 * waste, color=WASTE, height=0.6, edgecolor=INK if row.own else WASTE, linewidth=1.5)
        axes.annotate(f" {waste:.1%}, {row.speedup:.2f}×", (100 * waste, place), va="center", fontsize=8, color=INK)
    axes.set_yticks(places, [row.strategy.name for row in report.rows])
    axes.invert_yaxis()
    axes.margins(x=0.3)
    _named(axes, "Padding and expected speed-up of other ways", "percent of slots", "")
