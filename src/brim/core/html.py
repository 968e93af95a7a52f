"""Small pieces of HTML for notebooks: tables, and bars inside them. Everything that is shown is escaped."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from brim.core.drawing import readable


def table_html(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str = "", bars: int | None = None) -> str:
    """A table. With `bars`, the column of that number holds shares from 0 to 1, which are drawn as well as written."""
    head = "".join(f'<th style="text-align:{"left" if at == 0 else "right"}">{escape(name)}</th>' for at, name in enumerate(columns))
    body = "".join(f"<tr>{''.join(_cell(value, at, bar=at == bars) for at, value in enumerate(row))}</tr>" for row in rows)
    caption = f'<caption style="text-align:left">{escape(title)}</caption>' if title else ""
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def facts_html(facts: Mapping[str, Any], *, title: str = "") -> str:
    """One fact per line."""
    rows = "".join(
        f'<tr><th scope="row" style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(readable(value))}</td></tr>'
        for name, value in facts.items()
    )
    caption = f'<caption style="text-align:left">{escape(title)}</caption>' if title else ""
    return f"<table>{caption}<tbody>{rows}</tbody></table>"


def _cell(value: Any, at: int, *, bar: bool) -> str:
    if not bar:
        return f'<td style="text-align:{"left" if at == 0 else "right"};font-variant-numeric:tabular-nums">{escape(readable(value))}</td>'
    drawn = f"background:linear-gradient(90deg,#4477aa66 {value:.2%},transparent {value:.2%})"
    return f'<td style="min-width:10em;text-align:right;font-variant-numeric:tabular-nums;{drawn}">{value:.1%}</td>'
