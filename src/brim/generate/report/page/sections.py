"""The sections of the page: a title, a few sentences, a place for charts, and tables that need no JavaScript."""

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.analyze.page.forms import MISSING, length, number, share, table_html
from brim.generate.report.collect import Generated
from brim.generate.report.figures import Scores, mean_of, percentiles
from brim.generate.report.page import words
from brim.generate.report.page.cards import cards_html, rows_by_prompt, solving
from brim.generate.report.positions import Gap, Positions
from brim.generate.rollouts import REASONS

SPREAD = ("shortest", "5%", "25%", "median", "75%", "95%", "longest")
TABLE_ROWS = 8
"""Rows of the table of positions, which is there where no chart can be."""


def solved(scores: Scores, generated: Generated) -> str:
    """Return the section on how often prompts are solved."""
    charts = ""
    if scores.compared:
        bars = _titled(
            "Prompts by number of solved responses",
            "A bar counts the prompts with so many solved responses. In hatched parts, all scores of a prompt are "
            "equal: nothing to learn.",
            "solved",
        )
        tries = _titled(
            "Solved by at least one of k",
            "Share of the prompts that k responses solve (pass@k, unbiased). While it rises, more of them help.",
            "tries",
        )
        charts = f'<div class="pair js-only">{bars}{tries}</div>'
    rows: list[list[str]] = []
    kinds: dict[str, list[NDArray[np.int64]]] = {name: [] for name in ("never", "sometimes", "always", "unscored")}
    for inside in rows_by_prompt(generated):
        kinds[solving(generated.score[inside].tolist())].append(inside)
    for name, groups in kinds.items():
        if name == "unscored" and not groups:
            continue
        inside = np.concatenate(groups) if groups else np.empty(0, np.int64)
        means = [mean for _, mean in _means(generated, inside)]
        label = "without a score" if name == "unscored" else f"{name} solved"
        rows.append([label, f"{len(groups):,}", share(len(groups), generated.prompts), *means])
    table = table_html(["prompts", "number", "share", *_mean_names(generated)], rows)
    return _section("solved", "How many prompts are solved", words.solved_words(scores), charts + table)


def lengths(generated: Generated, *, divided: bool) -> str:
    """Return the section on lengths."""
    spread = percentiles(words.lengths_of(generated))
    if spread is None:
        return ""
    head = [f"length in {words.unit_of(generated)}", *SPREAD]
    table = table_html(head, [["all responses", *map(length, spread)]])
    chart = f'{_switch("lengths", divided)}<figure class="js-only" id="lengths-chart"></figure>'
    return _section("lengths", "How long the responses are", words.length_words(generated), chart + table)


def endings(generated: Generated) -> str:
    """Return the section on what ended the responses."""
    rows: list[list[str]] = []
    for at, reason in enumerate(REASONS):
        inside = generated.reason == at
        many = int(inside.sum())
        means = [mean for _, mean in _means(generated, inside)]
        rows.append([reason, f"{many:,}", share(many, len(generated)), *means])
    table = table_html(["ended by", "responses", "share", *_mean_names(generated)], rows)
    body = f'<figure class="js-only" id="endings-chart"></figure>{table}'
    return _section("endings", "How the responses end", words.ending_words(generated), body)


def _mean_names(generated: Generated) -> list[str]:
    return [name for name, _ in _means(generated, np.empty(0, np.int64))]


def _means(generated: Generated, inside: NDArray[Any]) -> list[tuple[str, str]]:
    """Return means over some of the responses with their names, of every number that is known for any response."""
    columns = {
        f"mean length, {words.unit_of(generated)}": (words.lengths_of(generated), length),
        "mean entropy, nats": (generated.entropy, number),
        "mean score": (generated.score, number),
    }
    return [
        (name, form(mean_of(values[inside]))) for name, (values, form) in columns.items() if not np.isnan(values).all()
    ]


CERTAINTY = {
    "entropy": (
        "Mean entropy of a response",
        "Mean over its tokens, in nats: near 0, the model was sure of every token. A bar counts responses.",
    ),
    "logprob": (
        "Mean log-prob of a token",
        "The log-prob of a response divided by its tokens: near 0, the model found its own words likely.",
    ),
}


def certainty(generated: Generated, names: Sequence[str], *, divided: bool) -> str:
    """Return the section on entropies and log-probs of whole responses; nothing if neither is known."""
    if not names:
        return ""
    charts = "".join(_titled(*CERTAINTY[name], name) for name in names)
    spread = percentiles(generated.entropy)
    table = ""
    if spread:
        head = ["mean entropy, nats", "smallest", *SPREAD[1:-1], "largest"]
        table = table_html(head, [["all responses", *map(number, spread)]])
    body = f'{_switch("certainty", divided)}<div class="{_columns(names)} js-only">{charts}</div>{table}'
    return _section("certainty", "How certain the model was", words.certainty_words(generated), body)


def positions(found: Positions, step: int) -> str:
    """Return the section on the tokens along a response."""
    titles = {
        "entropy": ("Entropy by position", "A falling line: the model becomes surer as it writes."),
        "logprob": ("Log-prob by position", "Dips are places at which unlikely tokens were drawn."),
    }
    names = [name for name in titles if name in found.curves]
    charts = "".join(_titled(*titles[name], f"{name}-positions") for name in names)
    many = len(found.first)
    rows: list[list[str]] = []
    for at in sorted({round(row * (many - 1) / (TABLE_ROWS - 1)) for row in range(TABLE_ROWS)}):
        first, last = found.first[at], found.last[at]
        means = [number(found.curves[name].mean[at]) if name in found.curves else MISSING for name in titles]
        rows.append([f"{first:,}" if first == last else f"{first:,}–{last:,}", f"{found.alive[at]:,}", *means])
    table = table_html(["tokens", "responses", "mean entropy", "mean log-prob"], rows)
    body = f'<div class="{_columns(names)} js-only">{charts}</div><noscript>{table}</noscript>'
    return _section("positions", "Along the response, token by token", words.position_words(found, step), body)


def gap(found: Gap) -> str:
    """Return the section on the two kinds of log-probs."""
    charts = ""
    if not found.is_none:
        by_position = _titled(
            "Difference by position",
            "Sampling minus model: the line is the mean, the band the middle half of the tokens.",
            "gap-positions",
        )
        of_all = _titled(
            "Difference of all tokens",
            "A bar counts tokens; with the model's own distribution all of them would be at 0.",
            "gap",
        )
        charts = f'<div class="halves js-only">{by_position}{of_all}</div>'
    return _section("gap", "Log-probs: sampling against the model", words.gap_words(found), charts)


def prompts(generated: Generated, scores: Scores | None) -> str:
    """Return the section with the prompts and their responses, and the controls that choose among them."""
    kinds: list[tuple[str, str]] = []
    sorts = [("file", "as in the output")]
    if scores is not None:
        kinds += [("all", "all"), ("always", "always solved"), ("sometimes", "sometimes solved")]
        kinds += [("never", "never solved"), *([("unscored", "without a score")] if scores.unscored else [])]
        sorts += [("rate-up", "lowest pass rate first"), ("rate-down", "highest pass rate first")]
    sorts += [("length-down", "longest first"), ("length-up", "shortest first")]
    tools = (
        '<label class="by find">Search <input type="search" id="search" autocomplete="off" spellcheck="false"></label>'
        + (_select("kind", "Prompts", kinds) if kinds else "")
        + _select("ending", "Responses ended by", [("all", "any"), *((reason, reason) for reason in REASONS)])
        + _select("sort", "Sort", sorts)
        + '<button type="button" id="unfold">Unfold all</button>'
    )
    body = (
        f'<div class="tools js-only">{tools}</div><p class="hint js-only" id="matches" aria-live="polite"></p>'
        f'<div id="cards">{cards_html(generated)}</div><button type="button" class="js-only" id="more" hidden></button>'
    )
    return _section("prompts", "Prompts and their responses", words.card_words(generated), body)


def _section(key: str, title: str, said: str, body: str) -> str:
    return (
        f'<section id="{key}" aria-labelledby="{key}-title"><h2 id="{key}-title">{escape(title)}</h2>'
        f'<p class="words" id="{key}-words">{escape(said)}</p>{body}</section>\n'
    )


def _titled(title: str, said: str, chart: str) -> str:
    """Return the place of a chart that is one of several in its section."""
    return f'<div><h3>{escape(title)}</h3><p class="words">{escape(said)}</p><figure id="{chart}-chart"></figure></div>'


def _columns(charts: Sequence[str]) -> str:
    return "halves" if len(charts) > 1 else "one"


def _switch(name: str, divided: bool) -> str:
    """Return the choice of how bars are divided, and the place of their legend."""
    legend = f'<ul class="legend js-only" id="{name}-legend"></ul>'
    if not divided:
        return legend
    return (
        f'<div class="tools js-only"><fieldset class="switch"><legend>Colour by</legend>'
        f'<label><input type="radio" name="{name}" value="ending" checked><span>ending</span></label>'
        f'<label><input type="radio" name="{name}" value="score"><span>solved or not</span></label></fieldset>'
        f"{legend}</div>"
    )


def _select(key: str, label: str, options: Sequence[tuple[str, str]]) -> str:
    listed = "".join(f'<option value="{value}">{escape(name)}</option>' for value, name in options)
    return f'<label class="by">{label} <select id="{key}">{listed}</select></label>'
