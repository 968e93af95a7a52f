"""A plot of a `LoadCurve`: throughput above, latency below, over the number of requests at once."""

import os
from collections.abc import Sequence
from typing import Any

from brim.analyze.plots import ACCENT, INK, PALE, WARN, check_plot, finish_axes, new_figure, save_figure
from brim.llm.measure import Level, LoadCurve

USER = "brim.cli.llm.bench_plot"
LATENCIES = (("latency_p50", "median", ACCENT), ("latency_p90", "p90", PALE), ("latency_p99", "p99", INK))
"""Attribute of a level, its name in the plot, its colour."""


def save_plot(curve: LoadCurve, path: str | os.PathLike[str]) -> None:
    """Write the plot atomically, in the format of the file name's suffix.

    Raises:
        OptionError: The name does not end in .png, .svg or .pdf.
    """
    kind = check_plot(path, user=USER)
    save_figure(draw(curve), path, kind)


def draw(curve: LoadCurve) -> Any:
    """Draw the plot and return it as a matplotlib Figure."""
    figure = new_figure(7, 5.2, user=USER)
    rates, latencies = figure.subplots(2, 1, sharex=True)
    _throughput(rates, curve)
    _latency(latencies, curve)
    latencies.set_xscale("log", base=2)
    sizes = [level.concurrency for level in curve.levels]
    latencies.set_xticks(sizes, [f"{size:,}" for size in sizes], rotation=30 if len(sizes) > 12 else 0)
    latencies.minorticks_off()
    figure.suptitle(_literal(f"{curve.model}, at most {curve.max_tokens} tokens an answer"), fontsize=11, color=INK)
    return figure


def _throughput(axes: Any, curve: LoadCurve) -> None:
    """Draw the throughput and the knee, and crosses where requests were refused or failed."""
    levels, knee = _measured(curve), curve.knee
    axes.plot([level.concurrency for level in levels], list(map(curve.rate, levels)), "o-", color=ACCENT, markersize=4)
    if knee is not None:
        axes.axhline(curve.best, color=INK, linewidth=0.6, linestyle=":")
        axes.axvline(knee.concurrency, color=INK, linewidth=0.6, linestyle=":")
        axes.annotate(
            f"knee: {knee.concurrency:,}",
            (knee.concurrency, 0.5 * curve.rate(knee)),
            textcoords="offset points",
            xytext=(6, 0),
            color=INK,
            fontsize=9,
        )
    _crosses(axes, [(level, curve.rate(level)) for level in levels if level.failed], "some requests failed", "x")
    _crosses(axes, [(level, 0.0) for level in curve.levels if level.is_overloaded], "the server refused requests", "X")
    axes.set_ylim(0, 1.12 * max([*map(curve.rate, levels), 1e-3]))
    _finish(axes, "tokens / s" if curve.counts_tokens else "requests / s")


def _crosses(axes: Any, places: Sequence[tuple[Level, float]], label: str, marker: str) -> None:
    if not places:
        return
    sizes, rates = [level.concurrency for level, _ in places], [rate for _, rate in places]
    axes.plot(sizes, rates, marker, color=WARN, label=label, clip_on=False)
    axes.legend(loc="best", frameon=False, fontsize=9)


def _latency(axes: Any, curve: LoadCurve) -> None:
    answered = [level for level in _measured(curve) if level.latency_p50 is not None]
    for name, label, color in LATENCIES:
        seconds = [getattr(level, name) for level in answered]
        axes.plot([level.concurrency for level in answered], seconds, "o-", color=color, markersize=4, label=label)
    if curve.knee is not None:
        axes.axvline(curve.knee.concurrency, color=INK, linewidth=0.6, linestyle=":")
    axes.set_ylim(0, 1.12 * max([level.latency_p99 or 0.0 for level in answered] or [1.0]))
    axes.legend(loc="best", frameon=False, fontsize=9)
    axes.set_xlabel("requests at once", color=INK)
    _finish(axes, "latency, s")


def _measured(curve: LoadCurve) -> list[Level]:
    """Return the levels that were measured to their end."""
    return [level for level in curve.levels if not level.is_overloaded]


def _finish(axes: Any, label: str) -> None:
    axes.set_ylabel(label, color=INK)
    axes.yaxis.set_major_formatter("{x:,g}")
    finish_axes(axes)


def _literal(text: str) -> str:
    """Return a text in which a dollar sign does not begin a formula."""
    return text.replace("$", r"\$")
