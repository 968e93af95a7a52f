"""The sections of the page: titles, words, places for charts, and texts that need no JavaScript."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from brim.analyze.page.forms import counted, named, table_html
from brim.analyze.page.parts import options_html, text_html
from brim.core.display import readable
from brim.train.grpo.page import words
from brim.train.grpo.page.attempts import GROUP_ATTEMPTS, Titles, group_html, longest_text
from brim.train.grpo.page.runs import RunShown, differences
from brim.train.grpo.page.through import MOST_EVALUATIONS, chosen_evaluations, count_texts, followed_tasks, through_html
from brim.train.grpo.report import RolloutReport

MOST_GROUPS = 4
"""Groups shown of a rollout."""
RUNS_WITH_TEXTS = 8
"""Runs whose responses are shown."""

CHARTS: Mapping[str, tuple[str, str]] = {
    "reward": (
        "Mean reward",
        "Of the attempts of each rollout, and of held-out tasks with the standard error.",
    ),
    "held": ("Held-out reward", "Mean reward on tasks that are never trained on."),
    "pass": ("Pass rate", "Share of the attempts that solve their task."),
    "held-pass": ("Held-out pass rate", "Share of the attempts that solve a task which is never trained on."),
    "length": ("Length of responses", "Tokens that the model writes in an attempt: the median and the middle half."),
    "turns": ("Turns", "Turns of an episode, on average."),
    "ended": ("How attempts end", "Share of the attempts by what ended them. length: cut off."),
    "dead": (
        "Dead groups",
        "Share of the groups whose rewards do not differ. Good: few; all fail: too hard, all pass: too easy.",
    ),
    "entropy": (
        "Entropy",
        "Of the model's distribution at the drawn tokens. Good: it falls slowly; near 0 early on, exploring has ended.",
    ),
    "kl": ("KL to the reference", "How far the model is from where it began, for a token. Good: it grows slowly."),
    "policy-kl": (
        "KL of an update",
        "How far the steps on a rollout move the policy, for a token. Good: small and steady.",
    ),
    "clipped": (
        "Clipped tokens",
        "Share of the drawn tokens whose gradient is cut off. Above 20%, steps are large or responses old.",
    ),
    "norm": ("Gradient norm", "Before clipping. Peaks mean single steps that are unlike the others."),
    "mismatch": (
        "Mismatch",
        "Mean difference of log-probabilities between drawing and training. Good: far below 0.02 nats.",
    ),
    "correction": ("Correction", "Mean weight that corrects for the mismatch. Good: close to 1."),
    "fill": ("Fill", "Share of the computed slots that hold a token: while generating, and while training."),
    "rate": ("Tokens per second", "Drawn while generating, and put through the model while training."),
    "time": ("Time of a rollout", "Wall-clock seconds of a rollout and of the training on it, by what they went to."),
}

TRAINING: Mapping[str, tuple[str, str]] = {
    "reward": ("Reward in training", "Mean reward of the attempts of each rollout."),
    "pass": ("Pass rate in training", "Share of the attempts that solve their task."),
}
"""Charts that are named otherwise where held-out tasks have a chart of their own."""


def chart_html(key: str, title: str = "", said: str = "") -> str:
    """Return the place of a chart, with its title, a sentence and a legend."""
    title, said = (title, said) if title else CHARTS[key]
    return (
        f'<div><h3>{escape(title)}</h3><p class="words">{escape(said)}</p>'
        f'<ul class="legend" id="{key}-legend"></ul><figure id="{key}-chart"></figure></div>'
    )


def charts_html(keys: Sequence[str]) -> str:
    """Return the places of charts, as many beside each other as there is room for."""
    return f'<div class="thirds js-only">{"".join(map(chart_html, keys))}</div>'


def reward_html(runs: Sequence[RunShown]) -> str:
    """Return the places of the charts of reward and pass rate.

    One run has training and held-out tasks in the same chart. Several runs have a chart for either, where it is known.
    """
    evaluated = [one.evaluation for run in runs for one in run.evaluations]
    held_out = any(one.reward is not None for one in evaluated)
    held_out_passed = any(one.pass_rate is not None for one in evaluated)
    passed = any(one.pass_rate is not None for run in runs for one in run.rollouts)
    if len(runs) == 1:
        beside = chart_html("pass") if passed or held_out_passed else ""
        return f'<div class="{"pair" if beside else "one"} js-only">{chart_html("reward")}{beside}</div>'
    shown = {"held": held_out, "reward": True, "held-pass": held_out_passed, "pass": passed}
    charts = [chart_html(key, *TRAINING.get(key, ())) for key, known in shown.items() if known]
    return f'<div class="{"halves" if len(charts) > 1 else "one"} js-only">{"".join(charts)}</div>'


def names_html(runs: Sequence[RunShown]) -> str:
    """Return the place for the names of the runs and their colours; nothing if there is one run."""
    return '<ul class="legend js-only" id="runs-legend" aria-label="Runs"></ul>' if len(runs) > 1 else ""


def parts_html(names: Sequence[str]) -> str:
    """Return the places of the charts of the parts of the reward; nothing if there is only one part."""
    if len(names) < 2:
        return ""
    charts = "".join(
        chart_html(f"part-{at}", f"Part: {named(name)}", "Mean over the attempts of each rollout.")
        for at, name in enumerate(names)
    )
    return f'<div class="thirds js-only">{charts}</div>'


def ends_html(runs: Sequence[RunShown]) -> str:
    """Return tables with the numbers of the first and the last tenth of each run."""
    tables = "".join(
        (f"<h3>{text_html(run.name)}</h3>" if len(runs) > 1 else "")
        + table_html(["", "first tenth of the rollouts", "last tenth"], words.ends_table(run))
        for run in runs
        if run.rollouts
    )
    return f"<details><summary>Numbers of the first and the last tenth</summary>{tables}</details>" if tables else ""


def texts_html(runs: Sequence[RunShown]) -> tuple[str, str]:
    """Return two sections: the same tasks through training, and groups of the first and the last rollout."""
    shown = runs[:RUNS_WITH_TEXTS]
    followed = [(chosen := chosen_evaluations(run), followed_tasks(chosen)) for run in shown]
    groups = [[(name, one, one.shown[:MOST_GROUPS]) for name, one in end_rollouts(run)] for run in shown]
    texts = sum(count_texts(tasks) for _, tasks in followed)
    texts += sum(min(len(group.attempts), GROUP_ATTEMPTS) for run in groups for *_, some in run for group in some)
    longest = longest_text(texts)
    left = len(runs) - len(shown)
    more = f'<p class="hint">The responses of {counted(left, "more run")} are not shown.</p>' if left else ""
    through = [through_html(chosen, tasks, longest) if tasks else "" for chosen, tasks in followed]
    played = ["".join(_rollout(name, one, some, longest) for name, one, some in run) for run in groups]
    none = '<p class="words">No evaluation shows responses.</p>', '<p class="words">No groups were kept.</p>'
    return (
        (_choice(shown) + _by_run(shown, through) + more) if any(through) else none[0],
        (_choice(shown) + _by_run(shown, played) + more) if any(played) else none[1],
    )


def end_rollouts(run: RunShown) -> list[tuple[str, RolloutReport]]:
    """Return the first and the last rollout that show groups, with a name."""
    known = [one for one in run.rollouts if one.shown]
    if len(known) < 2:
        return [("Rollout", one) for one in known]
    return [("First rollout", known[0]), ("Last rollout", known[-1])]


def _rollout(name: str, one: RolloutReport, groups: Sequence[Any], longest: int) -> str:
    titles = Titles.of([group.prompt for group in groups])
    listed = "".join(group_html(group, titles, longest, is_open=at == 0) for at, group in enumerate(groups))
    left = one.groups - len(groups)
    return f"<h3>{name} ({one.rollout:,}), drawn by the weights of step {one.version:,}</h3>{listed}" + (
        f'<p class="hint">{counted(left, "more group")} of this rollout {"is" if left == 1 else "are"} not shown.</p>'
        if left > 0
        else ""
    )


def through_words(runs: Sequence[RunShown]) -> str:
    most = max((len(run.evaluations) for run in runs), default=0)
    said = "Held-out tasks that every evaluation attempts: answers to the same prompt, beside each other."
    return f"{said} {MOST_EVALUATIONS} of {most:,} evaluations are shown." if most > MOST_EVALUATIONS else said


def provenance_html(runs: Sequence[RunShown]) -> str:
    """Return the options: those that differ between the runs in a table, and all of those of the run that is chosen."""
    table = ""
    if differing := differences(runs):
        rows = [[named(name), *(named(readable(value)) for value in values)] for name, values in differing.items()]
        table = "<h3>What differs, beside the seed</h3>" + table_html(["option", *(run.name for run in runs)], rows)
    listed = [f'<div class="proofs">{options_html(run.options)}</div>' for run in runs]
    return table + _choice(runs) + _by_run(runs, listed)


def _choice(runs: Sequence[RunShown]) -> str:
    """Return the choice of a run; nothing if there is one."""
    if len(runs) < 2:
        return ""
    options = "".join(f'<option value="{at}">{text_html(run.name)}</option>' for at, run in enumerate(runs))
    return (
        f'<div class="tools js-only"><label class="by">Run <select class="chosen-run">{options}</select></label></div>'
    )


def _by_run(runs: Sequence[RunShown], bodies: Sequence[str]) -> str:
    """Return a block for each run. Without JavaScript all of them are shown, each below its name."""
    if len(runs) < 2:
        return "".join(bodies)
    return "".join(
        f'<div class="of-run" data-run="{at}"><p class="run-name">{text_html(run.name)}</p>'
        f"{body or '<p class=words>Nothing was kept of this run.</p>'}</div>"
        for at, (run, body) in enumerate(zip(runs, bodies, strict=True))
    )
