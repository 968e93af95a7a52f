"""Values as people read them: text bars, numbers with thousands separators, text whose every character can be seen, and
small HTML tables for notebooks.

Everything that goes into HTML is escaped here.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any


def bar(share: float, width: int) -> str:
    """Draw `share` (0 to 1) as a bar of at most `width` characters, to an eighth of a character.

    A share above 0 always draws something, however small it is.
    """
    eighths = max(round(share * width * 8), int(share > 0))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def readable(value: Any) -> str:
    """Format a value for people: integers with thousands separators, booleans as yes and no."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def visible(text: str, *, keep: str = "") -> str:
    r"""Return text in which characters that are not printable are written as escape sequences.

    They are control characters (ANSI escapes among them), changes of the writing direction, invisible characters,
    unusual spaces and lone surrogates: text that contains them can look like something else, or control a terminal.
    Those in `keep` stay as they are.

    Example:
        >>> print(visible("red: \x1b[31m"))
        red: \x1b[31m
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode() for char in text
    )


def table_html(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str = "", bars: int | None = None
) -> str:
    """Return an HTML table.

    With `bars`, the column of that number holds shares from 0 to 1, which are drawn as bars behind their percentages.
    """
    head = "".join(f'<th style="text-align:{_align(at)}">{escape(name)}</th>' for at, name in enumerate(columns))
    body = "".join(
        f"<tr>{''.join(_cell(value, at, bar=at == bars) for at, value in enumerate(row))}</tr>" for row in rows
    )
    return f"<table>{_caption(title)}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def facts_html(facts: Mapping[str, Any], *, title: str = "") -> str:
    """Return an HTML table with one named fact per row."""
    rows = "".join(
        f'<tr><th scope="row" style="text-align:left">{escape(name)}</th><td '
        f'style="text-align:left">{escape(readable(value))}</td></tr>'
        for name, value in facts.items()
    )
    return f"<table>{_caption(title)}<tbody>{rows}</tbody></table>"


def _caption(title: str) -> str:
    return f'<caption style="text-align:left">{escape(title)}</caption>' if title else ""


def _align(at: int) -> str:
    return "left" if at == 0 else "right"


def _cell(value: Any, at: int, *, bar: bool) -> str:
    numbers = "font-variant-numeric:tabular-nums"
    if not bar:
        return f'<td style="text-align:{_align(at)};{numbers}">{escape(readable(value))}</td>'
    drawn = f"background:linear-gradient(90deg,#4477aa66 {value:.2%},transparent {value:.2%})"
    return f'<td style="min-width:10em;text-align:right;{numbers};{drawn}">{value:.1%}</td>'
