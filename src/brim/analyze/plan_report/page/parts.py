"""The part of the page that is about plans and is rendered by Python: the comparison with other ways of batching."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from brim.analyze.page.parts import Fact as Fact
from brim.analyze.page.parts import brief as brief
from brim.analyze.strategies import Strategy
from brim.core.display import readable

BAR = 88
"""Width of a bar in units of its SVG: the pixels that report.css gives it on a screen."""


@dataclass(frozen=True)
class StrategyRow:
    """A row of the comparison. `own` marks the plan that the page is about."""

    strategy: Strategy
    speedup: float
    own: bool = False


def strategies_html(rows: Sequence[StrategyRow]) -> str:
    """Return the comparison as a table of numbers with bars. The first row is the baseline."""
    names = ("batching", "padding", "microbatches", "shapes", "attention", "peak memory, slots", "expected speed-up")
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    attention = rows[0].strategy.attention
    fastest = max(row.speedup for row in rows)
    most = max(row.strategy.attention for row in rows)
    peak = max(row.strategy.peak for row in rows)
    body = "".join(_row(row, attention, fastest, most, peak) for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _row(row: StrategyRow, attention: int, fastest: float, most: int, peak: int) -> str:
    one = row.strategy
    options = f'<span class="options">{escape(one.options)}</span>' if one.options else ""
    cells = [
        _barred(f"{one.fill.waste:.2%}", one.fill.waste, waste=True),
        readable(one.batches),
        readable(one.shapes),
        _barred(f"{one.attention / attention:.0%}" if attention else "-", one.attention / most if most else 0.0),
        _barred(readable(one.peak), one.peak / peak if peak else 0.0),
        _barred(f"{row.speedup:.2f}×", row.speedup / fastest if fastest else 0.0),
    ]
    name = f"{escape(one.name)}{options}"
    return (
        f"<tr{' class=own' if row.own else ''}><th "
        f'scope="row">{name}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
    )


def _barred(text: str, share: float, *, waste: bool = False) -> str:
    """Return text with a bar below it.

    The bar is an SVG sized by attributes, because the page's Content-Security-Policy allows no inline styles.
    """
    kind = "full is-waste" if waste else "full"
    return (
        f'{text}<svg class="bar" viewBox="0 0 {BAR} 5" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="back" width="{BAR}" height="5" rx="2"/><rect class="{kind}" width="{share * BAR:.1f}" '
        f'height="5" rx="2"/></svg>'
    )
