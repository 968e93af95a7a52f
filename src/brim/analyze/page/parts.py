"""Parts of pages that are rendered by Python and need no JavaScript: text, facts, notes, options, provenance."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, cast

from brim import __version__
from brim.core.display import readable, visible

KEPT = "\n\t"
"""White space that is shown as it is in blocks of text."""
PREVIEW = 500
PREVIEW_LINES = 12
LONGEST = 10_000
"""Characters of a text that go into a page; the page says how many do not."""
LONGEST_OPTION = 500


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


def clipped_html(text: str, *, preview: int = PREVIEW, lines: int = PREVIEW_LINES, longest: int = LONGEST) -> str:
    """Return text as a block; of a long one the beginning, and all of it behind an expander."""
    if not text.strip():
        return f'<p class="none">{"empty" if not text else "only white space"}</p>'
    short = "\n".join(text.split("\n", lines)[:lines])[:preview]
    if len(short) == len(text):
        return _block(text)
    left = len(text) - longest
    much = f"{longest:,} of {len(text):,}" if left > 0 else f"all {len(text):,}"
    rest = f'<p class="hint">{left:,} more characters are left out of this page.</p>' if left > 0 else ""
    return (
        f'<div class="long"><div class="lead">{_block(short + "…")}</div>'
        f"<details><summary>Show {much} characters</summary>{_block(text[:longest])}{rest}</details></div>"
    )


def _block(text: str) -> str:
    return f'<div class="text" dir="auto">{text_html(text, keep=KEPT)}</div>'


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


def options_html(options: Mapping[str, Any]) -> str:
    """Return the options of a run in sections: those of the run itself, and those of each mapping among them."""
    sections: dict[str, dict[str, Any]] = {"Run": {"brim": __version__}}
    for name, value in options.items():
        if isinstance(value, Mapping):
            below = cast(Mapping[Any, Any], value)
            sections[_spaced(name)] = {_spaced(key): _shown(one) for key, one in below.items()}
        else:
            sections["Run"][_spaced(name)] = _shown(value)
    return provenance_html(sections)


def _spaced(name: Any) -> str:
    return str(name).replace("_", " ")


def _shown(value: Any) -> Any:
    if isinstance(value, Mapping):
        below = cast(Mapping[Any, Any], value)
        return ", ".join(f"{_spaced(key)}: {readable(_shown(one))}" for key, one in below.items())
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(readable(_shown(one)) for one in cast(Iterable[Any], value)) or "none"
    if isinstance(value, str) and len(value) > LONGEST_OPTION:
        return f"{value[:LONGEST_OPTION]}… ({len(value):,} characters)"
    return value


def brief(number: float) -> str:
    """Format a number briefly, as the page's script does: 1234567 -> 1.23M."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= max(size, 10_000):
            return f"{float(f'{number / size:.3g}'):g}{unit}"
    return f"{number:,.0f}" if number % 1 == 0 else f"{number:,.3g}"
