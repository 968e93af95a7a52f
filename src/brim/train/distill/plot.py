"""A picture of learning in context: the return of each episode on held-out goals, one line for each seed, beside what
others get.

A leaf: it imports matplotlib, and only its objects. No window is opened and no global state of pyplot is touched.
"""

import os
from typing import Any

import numpy as np

from brim.analyze.plots import ACCENT, INK, PALE, WARN, check_plot, finish_axes, new_figure, save_figure
from brim.envs.darkroom.q_learning import QLearning
from brim.train.distill.run import DistillResult

USER = "brim.train.distill.plot"


def save_plot(result: DistillResult, path: str | os.PathLike[str]) -> None:
    """Write the picture, whole or not at all, in the format that the name ends in.

    Raises:
        OptionError: The name ends in something else than png, svg or pdf.
    """
    kind = check_plot(path, user=USER)
    save_figure(draw(result), path, kind)


def draw(result: DistillResult) -> Any:
    """A matplotlib Figure."""
    figure = new_figure(7, 4.4, user=USER)
    axes = figure.subplots()
    curves = np.stack([seed.curve for seed in result.seeds])
    episodes = np.arange(1, curves.shape[1] + 1)
    for seed, curve in zip(result.seeds, curves, strict=True):
        axes.plot(episodes, curve, color=PALE, linewidth=1, label="one seed" if seed is result.seeds[0] else None)
    axes.plot(episodes, curves.mean(axis=0), "o-", color=ACCENT, markersize=3, label=_mean(result))
    others = result.references
    source = others.source[: len(episodes)]
    axes.plot(episodes[: len(source)], source, color=WARN, linewidth=1, linestyle="--", label=_source(result))
    _level(axes, others.best, "knows the goal")
    _level(axes, others.random, "acts at random")
    axes.set_xlim(0.5, len(episodes) + 0.5)
    axes.set_ylim(0, others.best * 1.1)
    axes.set_xlabel("episode in context", color=INK)
    axes.set_ylabel("return on held-out goals", color=INK)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(loc="upper left", bbox_to_anchor=(0, 0.9), frameon=False, fontsize=9)
    finish_axes(axes)
    return figure


def _mean(result: DistillResult) -> str:
    return f"mean of {len(result.seeds)} seeds, acting at temperature {result.config.evaluation.temperature:g}"


def _source(result: DistillResult) -> str:
    """The source is seen as it learns, with the random steps that it takes on purpose: the model may leave those
    out.
    """
    algorithm = result.config.histories.algorithm
    random = algorithm.epsilon if isinstance(algorithm, QLearning) else 0.0
    return "source algorithm as it learns" + (f", {random:.0%} of its steps random" if random else "")


def _level(axes: Any, value: float, name: str) -> None:
    axes.axhline(value, color=INK, linewidth=0.8, linestyle=":")
    place = (0.995, value)
    axes.annotate(
        f"{name}: {value:.1f}",
        place,
        xycoords=("axes fraction", "data"),
        xytext=(0, 2),
        textcoords="offset points",
        ha="right",
        va="bottom",
        color=INK,
        fontsize=8,
    )
