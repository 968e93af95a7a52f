"""Numbers, names and tables as pages write them."""

from collections.abc import Sequence
from html import escape

from brim.analyze.page.parts import brief
from brim.core.display import visible

MISSING = "–"
LONGEST_NAME = 60


def number(value: float | None) -> str:
    """Format a score, an entropy or a log-prob: 0.412, or 1,234.5 if it is large."""
    if value is None:
        return MISSING
    digits = 3 if abs(value) < 100 else 1
    return f"{round(value, digits) + 0.0:,.{digits}f}".replace("-", "−")


def length(value: float | None) -> str:
    """Format a length, or a mean of lengths: 87, 87.3, 1,204."""
    if value is None:
        return MISSING
    return f"{value:,.0f}" if value >= 1000 or value % 1 == 0 else f"{value:,.1f}"


def share(part: float, whole: float) -> str:
    """Format a share as a percentage. One that is small, or almost all, is not rounded to nothing or all."""
    value = part / whole if whole else 0.0
    if 0 < value < 0.0005:
        return "<0.1%"
    if 0.9995 <= value < 1:
        return ">99.9%"
    return f"{value:.0%}" if value in (0, 1) else f"{value:.1%}"


def duration(seconds: float) -> str:
    """Format a duration: 0.8 s, 41 s, 12 min 30 s, 2 h 13 min."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60:,} h {minutes % 60} min"


def counted(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def large(count: float) -> str:
    return f"{count:,.0f}" if count < 1e6 else brief(count)


def named(text: str, what: str = "name") -> str:
    """Return a name that models or data chose, with every character visible, and clipped if it is very long."""
    if len(text) > LONGEST_NAME:
        text = text[: LONGEST_NAME - 1] + "…"
    return visible(text) or f"(no {what})"


def table_html(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table that scrolls by itself where it is too wide. The first cell of a row is its header."""
    names = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in rest)}</tr>'
        for first, *rest in rows
    )
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table></div>'
