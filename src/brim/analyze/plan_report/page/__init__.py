"""The page of a plan report: one self-contained HTML file that needs neither a network nor a server.

Whatever must be readable without JavaScript is rendered here; charts are drawn in the browser, from numbers. Every
value is escaped, and a Content-Security-Policy with the hashes of the page's own style and script allows no others.
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from brim import __version__
from brim.analyze.plan_report.page.parts import Fact, StrategyRow, facts_html, provenance_html, strategies_html

SCRIPTS = ("data.js", "draw.js", "samples.js", "order.js", "report.js")


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
    style = _text("report.css")
    script = '"use strict";\n' + "\n".join(_text(name) for name in SCRIPTS)
    return Template(_text("report.html")).substitute(
        policy=_policy(style, script),
        version=escape(__version__),
        title=escape(page.title),
        css=style,
        verdict=escape(page.verdict),
        advice=escape(page.advice),
        facts=facts_html(page.facts),
        notes=_notes(page.notes),
        length_words=escape(page.length_words),
        band_name=escape(page.band_name),
        strategy_words=escape(page.strategy_words),
        strategies=strategies_html(page.strategies),
        provenance=provenance_html(page.provenance),
        data=inline_json(page.data),
        script=script,
    )


def inline_json(value: Any) -> str:
    """Return JSON that cannot end the script element it is placed in, whatever strings it contains."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _notes(notes: Iterable[str]) -> str:
    return "".join(f'<p class="note">{escape(note)}</p>' for note in notes)


def _text(name: str) -> str:
    return files(__name__).joinpath(name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    rules = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
    return rules


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
