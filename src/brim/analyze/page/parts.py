"""Parts of pages that are rendered by Python and need no JavaScript: text, facts, notes, provenance."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from brim.core.display import readable, visible


@dataclass(frozen=True)
class Fact:
    """A number with its name; `beside` is shown in small letters below it."""

    key: str
    name: str
    value: str
    beside: str = ""


def text_html(text: str, *, keep: str = "") -> str:
    """Return text as HTML that shows it as it is.

    Markup is escaped, and characters that are not printable, such as changes of the writing direction, are shown as
    escape sequences, except for those in `keep`.
    """
    return escape(visible(text, keep=keep))


def facts_html(facts: Sequence[Fact]) -> str:
    return "".join(
        f'<div><dt>{escape(fact.name)}</dt><dd><span data-fact="{fact.key}">{escape(fact.value)}</span>'
        f'<span class="sub" data-beside="{fact.key}">{escape(fact.beside)}</span></dd></div>'
        for fact in facts
    )


def notes_html(notes: Iterable[str]) -> str:
    return "".join(f'<p class="note">{escape(note)}</p>' for note in notes)


def provenance_html(sections: Mapping[str, Mapping[str, Any]]) -> str:
    return "".join(
        f'<div><h3>{text_html(name)}</h3><dl class="prove">'
        + "".join(f"<dt>{text_html(key)}</dt><dd>{_value(value)}</dd>" for key, value in facts.items())
        + "</dl></div>"
        for name, facts in sections.items()
    )


def _value(value: Any) -> str:
    text = text_html("not given" if value is None else readable(value))
    return f"<code>{text}</code>" if isinstance(value, str) and len(value) > 20 and value.isalnum() else text


def brief(number: float) -> str:
    """Format a number briefly, as the page's script does: 1234567 -> 1.23M."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= max(size, 10_000):
            return f"{float(f'{number / size:.3g}'):g}{unit}"
    return f"{number:,.0f}" if number % 1 == 0 else f"{number:,.3g}"
