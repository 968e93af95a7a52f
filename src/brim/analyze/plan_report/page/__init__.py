"""The page of a plan report: one self-contained HTML file that needs neither a network nor a server.

Whatever must be readable without JavaScript is rendered here; charts are drawn in the browser, from numbers. Every
value is escaped. The document around it, its style and the frame of its charts come from `brim.analyze.page`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from string import Template
from typing import Any

from brim import __version__
from brim.analyze.page import inline_json as inline_json
from brim.analyze.page import page_file, render_document
from brim.analyze.page.parts import Fact, facts_html, notes_html, provenance_html
from brim.analyze.plan_report.page.parts import StrategyRow, strategies_html

SCRIPTS = ("data.js", "samples.js", "order.js", "report.js")


@dataclass(frozen=True, kw_only=True)
class Page:
    """The contents of a page. Strings are plain text, not HTML."""

    title: str
    verdict: str
    advice: str
    facts: Sequence[Fact]
    notes: Sequence[str]
    length_words: str
    band_name: str
    strategy_words: str
    strategies: Sequence[StrategyRow]
    provenance: Mapping[str, Mapping[str, Any]]
    data: Mapping[str, Any]
    """The numbers from which the charts are drawn, as values for JSON."""


def render_page(page: Page) -> str:
    """Return the whole HTML document."""
    body = Template(page_file(__name__, "report.html")).substitute(
        version=escape(__version__),
        title=escape(page.title),
        verdict=escape(page.verdict),
        advice=escape(page.advice),
        facts=facts_html(page.facts),
        notes=notes_html(page.notes),
        length_words=escape(page.length_words),
        band_name=escape(page.band_name),
        strategy_words=escape(page.strategy_words),
        strategies=strategies_html(page.strategies),
        provenance=provenance_html(page.provenance),
    )
    return render_document(
        title=page.title,
        body=body,
        style=page_file(__name__, "report.css"),
        script="\n".join(page_file(__name__, name) for name in SCRIPTS),
        data=page.data,
    )
