"""The page of a query-mutator run: what was learned, as one self-contained HTML file.

Everything but the charts is rendered here and needs no JavaScript. The text of models is shown and never obeyed: it is
escaped, none of it is handed to the script, and characters that cannot be seen are made visible.
"""

from collections.abc import Mapping, Sequence
from html import escape
from string import Template
from typing import Any

from brim import __version__
from brim.analyze.page import page_file, render_document
from brim.analyze.page.forms import named
from brim.analyze.page.parts import facts_html, notes_html, options_html, text_html
from brim.analyze.page.points import short
from brim.core.display import visible
from brim.train.query.page import words
from brim.train.query.page.choices import count_choices
from brim.train.query.page.pairs import examples_html, filters_html, leading_pairs, pair_words, pairs_html
from brim.train.query.page.stretch import Stretch, create_curves, ends, stretch_of, stretches
from brim.train.query.report import Evaluation, UpdateReport

SCRIPTS = ("curves.js", "bars.js", "choices.js", "training.js")


def render_training_page(
    *,
    title: str,
    updates: Sequence[UpdateReport],
    evaluation: Evaluation | None,
    options: Mapping[str, Any],
    best: float | None = None,
) -> str:
    """Return the page of a run, finished or stopped, as a whole HTML document.

    Args:
        updates: Reports of all updates, in order.
        evaluation: The comparison of questions before and after, if one was made.
        options: Options of the run, shown as they are: they must not contain secrets. A mapping among the values
            becomes a section of its own.
        best: Mean reward of the best possible choice of mutators, where it is known.
    """
    run = stretch_of(updates)
    tenths, fifths = ends(updates, 10), ends(updates, 5)
    points = stretches(updates)
    choices = count_choices(run, fifths if len(updates) > 1 else fifths[:1])
    body = Template(page_file(__name__, "training.html")).substitute(
        version=escape(__version__),
        title=text_html(title),
        verdict=escape(words.verdict(run, *tenths, evaluation, best)),
        remarks=escape(words.remarks(run, evaluation)),
        facts=facts_html(words.fact_list(run, evaluation)),
        notes=notes_html(words.notes(run, len(points))),
        choice_words=escape(words.choice_words(choices)),
        time_words=escape(words.time_words(run)),
        invalid=_invalid(run),
        pairs=_pairs(evaluation),
        examples=_examples(updates),
        options=options_html(options),
    )
    data = {
        "updates": len(updates),
        "best": short(best),
        "curves": create_curves(points),
        "choices": choices.to_json(),
        "totals": {name: short(getattr(run, name)) for name in ("waiting", "policy", "learning", "other")}
        | {"server": short(run.server), "queue": short(run.queue)},
        "invalid": _failures(run),
    }
    return render_document(
        title=visible(title),
        body=body,
        style=page_file(__name__, "training.css"),
        script="\n".join(page_file(__name__, name) for name in SCRIPTS),
        data=data,
    )


def _invalid(run: Stretch) -> str:
    """Return the section on invalid steps; nothing if there are none."""
    if not run.invalid:
        return ""
    return Template(page_file(__name__, "invalid.html")).substitute(words=escape(words.invalid_words(run)))


def _failures(run: Stretch) -> list[dict[str, Any]]:
    """Return each type of failure with its number of steps, and the first and last update in which it happened."""
    found: list[dict[str, Any]] = []
    for name, count in run.invalid.items():
        hit = [one.update for one in run.updates if one.invalid.get(name)]
        found.append({"name": named(name), "count": count, "first": hit[0], "last": hit[-1]})
    return found


def _pairs(evaluation: Evaluation | None) -> str:
    if evaluation is None or not evaluation.pairs:
        return '<p class="words">Questions were not compared before and after rewriting in this run.</p>'
    shown = leading_pairs(evaluation)
    return (
        f'<p class="words">{escape(pair_words(evaluation, shown))}</p>'
        f'<div class="tools js-only">{filters_html(shown)}</div>'
        f'<p class="hint js-only" id="matches" aria-live="polite"></p>'
        f'<div id="cards">{pairs_html(shown)}</div>'
        f'<button type="button" class="js-only" id="more" hidden>Show more</button>'
    )


def _examples(updates: Sequence[UpdateReport]) -> str:
    ends = [("first", updates[0]), ("last", updates[-1])][: len(updates)] if updates else []
    parts = [
        f"<h3>{'The only' if len(updates) == 1 else f'The {name}'} update ({one.update:,})</h3>"
        f"{examples_html(one.examples)}"
        for name, one in ends
        if one.examples
    ]
    return "".join(parts) or '<p class="words">No steps were recorded.</p>'
