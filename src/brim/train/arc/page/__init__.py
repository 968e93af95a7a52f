"""The page of an ARC run: curves, and held-out tasks by kind, as one self-contained HTML file.

Everything but the charts is rendered here and needs no JavaScript. Nothing here imports JAX.
"""

from collections.abc import Mapping, Sequence
from html import escape
from string import Template
from typing import Any

from brim import __version__
from brim.analyze.page import page_file, render_document
from brim.analyze.page.forms import counted, duration, large, share, table_html
from brim.analyze.page.parts import Fact, facts_html, notes_html, options_html, text_html
from brim.analyze.page.points import divide, mean, short
from brim.core.display import visible
from brim.train.arc.report import GREEDY, RANDOM, SAMPLED, Evaluation, UpdateReport

CURVES = ("loss", "entropy", "value_loss", "reward", "solved", "kl", "clipped")
POINTS = 200
"""Most points of a curve."""


def render_arc_page(
    *,
    title: str,
    updates: Sequence[UpdateReport],
    evaluation: Evaluation | None,
    options: Mapping[str, Any],
    replays: str | None = None,
) -> str:
    """Return the page of a run, finished or stopped, as a whole HTML document.

    Args:
        updates: Reports of all updates, in order.
        evaluation: The evaluation on held-out tasks, if one was made.
        options: Options of the run, shown as they are.
        replays: Address of the page that replays episodes, relative to this one.
    """
    body = Template(page_file(__name__, "arc.html")).substitute(
        version=escape(__version__),
        title=text_html(title),
        verdict=escape(verdict(updates, evaluation)),
        remarks=escape(remarks(evaluation)),
        facts=facts_html(fact_list(updates, evaluation)),
        notes=notes_html(notes(updates)),
        legend=_legend(evaluation),
        evaluation=_evaluation(evaluation, replays),
        options=options_html(options),
    )
    return render_document(
        title=visible(title),
        body=body,
        style=page_file(__name__, "arc.css"),
        script=page_file(__name__, "arc.js"),
        data=page_data(updates, evaluation),
    )


def page_data(updates: Sequence[UpdateReport], evaluation: Evaluation | None) -> dict[str, Any]:
    """Return the data of the charts. A long run is divided into stretches, each with the mean of its values."""
    stretches = divide(updates, POINTS)
    evaluated = [one for one in updates if one.held_out is not None]
    return {
        "updates": len(updates),
        "random": None if evaluation is None else _chance(evaluation),
        "training": {
            "update": [(part[0].step + part[-1].step) / 2 for part in stretches],
            **{
                name: [short(mean((one.metrics.get(name), 1.0) for one in part)) for part in stretches]
                for name in CURVES
            },
        },
        "evaluated": {
            "update": [one.step for one in evaluated],
            "solved": [short(one.held_out) for one in evaluated],
        },
    }


def _chance(evaluation: Evaluation) -> dict[str, Any]:
    score = evaluation.total(RANDOM)
    return {"value": short(score.solved_share), "text": f"random actions {share(score.solved, score.tasks)}"}


def verdict(updates: Sequence[UpdateReport], evaluation: Evaluation | None) -> str:
    """Return the outcome of the run in a sentence."""
    if evaluation is None:
        made = counted(len(updates), "update")
        planned = f" of {updates[-1].steps:,}" if updates else ""
        return f"The run is not finished: {made}{planned} made, and held-out tasks not evaluated."
    agent, chance = evaluation.total(SAMPLED), evaluation.total(RANDOM)
    return (
        f"The agent solves {share(agent.solved, agent.tasks)} of {agent.tasks:,} tasks with rules it was not trained "
        f"on; random actions solve {share(chance.solved, chance.tasks)}."
    )


def remarks(evaluation: Evaluation | None) -> str:
    """Return which kind of task is the hardest, and how the most probable actions compare."""
    if evaluation is None:
        return ""
    scores = evaluation.scores[SAMPLED]
    greedy = evaluation.total(GREEDY)
    said = f"With its most probable actions it solves {share(greedy.solved, greedy.tasks)}."
    if len(scores) < 2:
        return said
    worst = min(scores, key=lambda kind: scores[kind].solved_share)
    return f"{said} The hardest kind is {worst}, with {share(scores[worst].solved, scores[worst].tasks)}."


def fact_list(updates: Sequence[UpdateReport], evaluation: Evaluation | None) -> list[Fact]:
    """Return the large numbers at the top."""
    last = updates[-1] if updates else None
    seconds = sum(one.seconds for one in updates)
    steps = 0 if last is None else last.env_steps
    facts = [
        Fact("updates", "Updates", f"{len(updates):,}", "" if last is None else f"of {last.steps:,}"),
        Fact("steps", "Steps played", large(steps), f"{large(steps / max(seconds, 1e-9))} in a second"),
        Fact("seconds", "Time of training", duration(seconds), "without evaluation"),
    ]
    if evaluation is not None:
        score = evaluation.total(SAMPLED)
        facts.append(Fact("invalid", "Invalid actions", share(score.invalid, score.steps), "on held-out tasks"))
    elif last is not None:
        facts.append(Fact("solved", "Solved in training", share(last.metrics["solved"], 1), "in the last update"))
    return facts


def notes(updates: Sequence[UpdateReport]) -> list[str]:
    """Return what a reader has to know about the charts."""
    if len(updates) <= POINTS:
        return []
    return [f"A point of a curve is the mean of several of the {len(updates):,} updates."]


def _legend(evaluation: Evaluation | None) -> str:
    if evaluation is None:
        return ""
    line = '<line class="edge" x1="0" x2="22" y1="7" y2="7"/>'
    return f'<li><svg aria-hidden="true" viewBox="0 0 22 14">{line}</svg>random actions on the held-out tasks</li>'


def _evaluation(evaluation: Evaluation | None, replays: str | None) -> str:
    if evaluation is None:
        return '<p class="words">Held-out tasks are evaluated when the run is finished.</p>'
    head = ("kind", "tasks", "agent, sampled", "agent, most probable", "random", "steps", "invalid")
    rows: list[list[str]] = []
    for kind, scores in evaluation.rows():
        agent = scores[SAMPLED]
        shares = [share(scores[policy].solved, scores[policy].tasks) for policy in (SAMPLED, GREEDY, RANDOM)]
        mean_steps = f"{agent.steps / agent.tasks:.1f}"
        rows.append([kind, f"{agent.tasks:,}", *shares, mean_steps, share(agent.invalid, agent.steps)])
    link = f'<p class="words"><a href="{escape(replays)}">Replay some of these episodes</a></p>' if replays else ""
    return (
        '<p class="words">Share of the tasks that were solved, each played once. "Sampled" draws actions from the '
        'policy, "random" draws them uniformly from the same operations and rectangles. Steps and invalid actions are '
        f"those of the sampled policy, on average.</p>{table_html(head, rows)}{link}"
    )
