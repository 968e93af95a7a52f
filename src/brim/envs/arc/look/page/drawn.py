"""Grids as SVG that needs no JavaScript, and the colours of a page as CSS.

A cell has a class for its colour, so the style decides about the palette.
"""

import numpy as np
from numpy.typing import NDArray

from brim.envs.arc.look.palette import PALETTES
from brim.envs.arc.operations import COLOURS

LARGEST_CELL = 14
"""Pixels of a cell in static pictures."""


def palettes_css() -> str:
    """Return rules for all palettes. The first one applies unless `data-palette` of the root names another."""
    rules: list[str] = []
    for number, (name, one) in enumerate(PALETTES.items()):
        root = f':root[data-palette="{name}"]' if number else ":root"
        colours = "".join(f"--c{at}:{colour};" for at, colour in enumerate(one.colours))
        rules.append(f"{root}{{{colours}{''.join(f'--i{at}:{ink};' for at, ink in enumerate(one.inks))}}}")
    for at in range(COLOURS):
        rules.append(f".cells .c{at}{{fill:var(--c{at})}}.cells .i{at}{{fill:var(--i{at})}}")
    return "\n".join(rules)


def grid_svg(grid: NDArray[np.uint8], label: str, *, room: int = 120) -> str:
    """Return a picture of a grid that is at most `room` pixels wide and high. The label must not contain markup."""
    rows, columns = grid.shape
    cell = max(2, min(LARGEST_CELL, room // max(rows, columns)))
    paths = "".join(f'<path class="c{colour}" d="{_path(grid == colour)}"/>' for colour in np.unique(grid).tolist())
    lines = "".join(f"M0 {y * cell + 0.5}H{columns * cell + 1}" for y in range(rows + 1))
    lines += "".join(f"M{x * cell + 0.5} 0V{rows * cell + 1}" for x in range(columns + 1))
    return (
        f'<svg class="cells" role="img" aria-label="{label}" width="{columns * cell + 1}" height="{rows * cell + 1}">'
        f'<g transform="translate(.5 .5) scale({cell})">{paths}</g><path class="lines" d="{lines}"/></svg>'
    )


def _path(cells: NDArray[np.bool_]) -> str:
    """Return the cells as rectangles one row high, in units of cells."""
    edges = np.diff(np.pad(cells, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    begins, ends = np.argwhere(edges > 0), np.argwhere(edges < 0)
    return "".join(
        f"M{left} {row}h{right - left}v1H{left}z"
        for (row, left), (_, right) in zip(begins.tolist(), ends.tolist(), strict=True)
    )
