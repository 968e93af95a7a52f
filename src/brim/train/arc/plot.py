"""A picture of an ARC run: solved tasks, loss and entropy over the updates.

A leaf: it imports matplotlib, and only its objects. No window is opened and no global state of pyplot is touched.
"""

import os
from collections.abc import Sequence
from typing import Any

from brim.analyze.plots import ACCENT, INK, PALE, WARN, check_plot, finish_axes, new_figure, save_figure
from brim.train.arc.report import RANDOM, Evaluation, UpdateReport

USER = "brim.train.arc.plot"


def save_curves(updates: Sequence[UpdateReport], evaluation: Evaluation | None, path: str | os.PathLike[str]) -> None:
    """Write the picture, whole or not at all, in the format that the name ends in.

    Raises:
        OptionError: The name ends in something else than png, svg or pdf.
        MissingExtraError: matplotlib is not installed.
    """
    kind = check_plot(path, user=USER)
    save_figure(draw_curves(updates, evaluation), path, kind)


def draw_curves(updates: Sequence[UpdateReport], evaluation: Evaluation | None) -> Any:
    """Return a matplotlib Figure."""
    figure = new_figure(7, 6, user=USER)
    grid = figure.add_gridspec(2, 2, height_ratios=(2, 1))
    solved = figure.add_subplot(grid[0, :])
    steps = [one.step for one in updates]
    evaluated = [one for one in updates if one.held_out is not None]
    solved.plot(steps, [one.metrics["solved"] for one in updates], color=PALE, label="episodes of training")
    solved.plot(
        [one.step for one in evaluated],
        [one.held_out for one in evaluated],
        "o-",
        color=ACCENT,
        markersize=3,
        label="held-out tasks",
    )
    if evaluation is not None:
        chance = evaluation.total(RANDOM).solved_share
        solved.axhline(chance, color=WARN, linewidth=1, linestyle="--", label=f"random actions: {chance:.1%}")
    solved.set_ylim(0, 1.02)  # a dot at 1 is whole
    solved.set_ylabel("share solved", color=INK)
    solved.legend(loc="upper left", frameon=False, fontsize=9)
    below = [figure.add_subplot(grid[1, place]) for place in range(2)]
    for axes, name in zip(below, ("loss", "entropy"), strict=True):
        axes.plot(steps, [one.metrics[name] for one in updates], color=ACCENT, linewidth=1)
        axes.set_ylabel(name, color=INK)
    for axes in (solved, *below):
        axes.set_xlabel("update", color=INK)
        axes.xaxis.get_major_locator().set_params(integer=True)
        finish_axes(axes)
    return figure
