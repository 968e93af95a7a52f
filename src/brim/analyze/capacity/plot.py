"""A plot of a `Capacity`: throughput above, peak memory below, over the sizes.

matplotlib is imported when a plot is drawn, and only its objects are used: no window is opened and no global state of
pyplot is touched.
"""

import os
from typing import Any

from brim.analyze.capacity.search import Capacity, Trial
from brim.analyze.plots import ACCENT, INK, WARN, check_plot, finish_axes, new_figure, save_figure

USER = "brim.analyze.capacity.plot"


def save_plot(capacity: Capacity, path: str | os.PathLike[str], *, title: str = "") -> None:
    """Write the plot atomically, in the format of the file name's suffix.

    Raises:
        OptionError: The name does not end in .png, .svg or .pdf.
    """
    kind = check_plot(path, user=USER)
    save_figure(draw(capacity, title=title), path, kind)


def draw(capacity: Capacity, *, title: str = "") -> Any:
    """Draw the plot and return it as a matplotlib Figure."""
    figure = new_figure(7, 5.2, user=USER)
    rates, memory = figure.subplots(2, 1, sharex=True)
    _throughput(rates, capacity)
    _memory(memory, capacity)
    memory.set_xscale("log", base=2)
    _sizes(memory, capacity)
    if title:
        figure.suptitle(title, fontsize=11, color=INK)
    return figure


def _throughput(axes: Any, capacity: Capacity) -> None:
    fitting, knee = capacity.fitting, capacity.knee
    axes.plot([trial.size for trial in fitting], [trial.rate for trial in fitting], "o-", color=ACCENT, markersize=4)
    axes.axhline(capacity.fastest.rate, color=INK, linewidth=0.6, linestyle=":")
    axes.annotate(
        f"knee: {knee.size:,}",
        (knee.size, knee.rate),
        textcoords="offset points",
        xytext=(0, -26),
        ha="center",
        color=INK,
        fontsize=9,
        arrowprops={"arrowstyle": "-", "color": INK, "linewidth": 0.6},
    )
    axes.set_ylim(0, capacity.fastest.rate * 1.12)
    _finish(axes, f"{capacity.unit} / s")


def _memory(axes: Any, capacity: Capacity) -> None:
    fitting = capacity.fitting
    axes.plot(
        [trial.size for trial in fitting], [_gb(trial.peak) for trial in fitting], "o-", color=ACCENT, markersize=4
    )
    limit = capacity.measured.get("memory_limit")
    if capacity.limit == "out of memory" and isinstance(limit, int):
        axes.axhline(_gb(limit), color=WARN, linewidth=0.8, linestyle="--")
        axes.annotate(
            "limit", (0.01, _gb(limit)), xycoords=("axes fraction", "data"), va="bottom", color=WARN, fontsize=9
        )
    _failures(axes, [trial for trial in capacity.trials if not trial.fits])
    axes.set_ylim(bottom=0)
    axes.margins(y=0.12)
    axes.set_xlabel(capacity.unit, color=INK)
    _finish(axes, "peak memory, GB")


def _failures(axes: Any, failed: list[Trial]) -> None:
    for why in dict.fromkeys(trial.why for trial in failed):
        some = [trial for trial in failed if trial.why == why]
        axes.plot([trial.size for trial in some], [_gb(trial.peak) for trial in some], "x", color=WARN, label=why)
    if failed:
        axes.legend(loc="lower right", frameon=False, fontsize=9)


def _sizes(axes: Any, capacity: Capacity) -> None:
    """Set a tick at each doubling, labelled with the number itself instead of a power of two."""
    ticks = [capacity.trials[0].size]
    while 2 * ticks[-1] <= capacity.trials[-1].size:
        ticks.append(2 * ticks[-1])
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks], rotation=30 if len(ticks) > 8 else 0, fontsize=8)
    axes.minorticks_off()


def _finish(axes: Any, label: str) -> None:
    axes.set_ylabel(label, color=INK)
    axes.yaxis.set_major_formatter("{x:,g}")
    finish_axes(axes)


def _gb(count: int | None) -> float:
    return (count or 0) / 1e9
