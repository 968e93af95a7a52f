"""The page of GRPO runs: what was learned, and whether it can be trusted, as one self-contained HTML file.

Everything but the charts is rendered here and needs no JavaScript. The text of models is shown and never obeyed: it is
escaped, none of it is handed to the script, and characters that cannot be seen are made visible. A page can be made
while its runs still run.
"""

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from string import Template

from brim import __version__
from brim.analyze.page import page_file, render_document
from brim.analyze.page.forms import counted, named
from brim.analyze.page.parts import facts_html, notes_html, text_html
from brim.core.display import visible
from brim.train.grpo.page import sections, words
from brim.train.grpo.page.remarks import remarks
from brim.train.grpo.page.runs import RunShown, are_alike, short_names
from brim.train.grpo.page.stretch import (
    MOST_PARTS,
    Stretch,
    create_curves,
    evaluation_curve,
    part_names,
    points_of,
)

__all__ = ["RunShown", "render_grpo_page"]

NAMED_RUNS = 6
SCRIPTS = ("lines.js", "areas.js", "grpo.js")


def render_grpo_page(runs: Sequence[RunShown]) -> str:
    """Return the page of one run, or of several ones beside each other, as a whole HTML document.

    Several runs are averaged if they differ in nothing but their seed and their output.
    """
    names = short_names([run.name for run in runs])
    title = names[0] if len(runs) == 1 else _title(names)
    runs = [replace(run, name=named(name)) for run, name in zip(runs, names, strict=True)]
    every = [one for run in runs for one in run.rollouts]
    points, parts = points_of(runs), part_names(runs)
    reasons = list(Stretch(every).counts("finish_reasons"))
    most = max(map(len, points), default=0)
    through, groups = sections.texts_html(runs)
    body = Template(page_file(__name__, "grpo.html")).substitute(
        version=escape(__version__),
        title=text_html(title),
        verdict=escape(words.verdict(runs)),
        remarks=escape(words.advice(runs)),
        facts=facts_html(words.fact_list(runs)),
        notes=notes_html([*remarks(runs), *words.notes(runs, most)]),
        names=sections.names_html(runs),
        reward=sections.reward_html(runs),
        parts=sections.parts_html(parts[:MOST_PARTS]),
        ends=sections.ends_html(runs),
        dead_words=escape(words.dead_words(runs)),
        responses=sections.charts_html(
            ["length", "ended", "dead", *(["turns"] if any(one.turns != 1 for one in every) else [])]
        ),
        health=sections.charts_html(_health(runs)),
        time_words=escape(words.time_words(runs)),
        speed=sections.charts_html(["time", "rate", "fill"]),
        through_words=escape(sections.through_words(runs)),
        through=through,
        groups=groups,
        options=sections.provenance_html(runs),
    )
    data = {
        "averaged": len(runs) > 1 and are_alike(runs),
        "parts": [named(name) for name in parts[:MOST_PARTS]],
        "reasons": [named(name, "reason") for name in reasons],
        "runs": [
            {
                "name": run.name,
                "curves": create_curves(of, parts[:MOST_PARTS], reasons),
                "evaluations": evaluation_curve(run.evaluations),
            }
            for run, of in zip(runs, points, strict=True)
        ],
    }
    return render_document(
        title=visible(title),
        body=body,
        style=page_file(__name__, "grpo.css"),
        script="\n".join(page_file(__name__, name) for name in SCRIPTS),
        data=data,
    )


def _title(names: Sequence[str]) -> str:
    more = len(names) - NAMED_RUNS
    return f"{counted(len(names), 'run')}: {', '.join(names[:NAMED_RUNS])}{f' and {more:,} more' if more > 0 else ''}"


def _health(runs: Sequence[RunShown]) -> list[str]:
    """Return the charts of training. Those of numbers that a run need not have are there if one has them."""
    charts = {"entropy": None, "kl": "kl", "policy-kl": None, "clipped": None, "norm": None, "mismatch": None}
    charts["correction"] = "correction"
    return [chart for chart, name in charts.items() if name is None or _any(runs, name)]


def _any(runs: Sequence[RunShown], name: str) -> bool:
    return any(getattr(one, name) is not None for run in runs for one in run.rollouts)
