"""Write pictures as SVG: the same layout as the pictures in pixels, sharp at every size.

A file is complete in itself: no scripts, no style sheets, no fonts or images from elsewhere. Texts from data are made
visible and escaped, so an id of a task cannot become markup.
"""

import re
from html import escape
from itertools import groupby

from brim.core.display import visible
from brim.envs.arc.look.figure import ARROW, Figure, PlacedGrid, lay_out
from brim.envs.arc.look.font import ADVANCE, HEIGHT
from brim.envs.arc.look.palette import Palette
from brim.envs.arc.look.palette import palette as find_palette
from brim.envs.arc.look.raster import EXTRA, LEAST_LINED, edges, reaches
from brim.envs.arc.look.scene import Scene
from brim.envs.arc.operations import PADDING

MARK = "<!-- brim arc picture -->"
"""Comment in every file, by which an earlier picture is recognised."""
PAPER, LINE, TEXT, DARK, LIGHT = EXTRA
NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML cannot hold."""


def svg_text(scene: Scene, *, palette: str, cell: int) -> str:
    """Return a scene as an SVG document.

    Raises:
        OptionError: The palette is unknown, or the cells are too large.
    """
    figure = lay_out(scene, cell=cell)
    colours = find_palette(palette)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{figure.width}" height="{figure.height}"'
        f' viewBox="0 0 {figure.width} {figure.height}" role="img">',
        MARK,
        f"<title>{_text(figure.title or 'ARC grid')}</title>",
        f'<rect width="100%" height="100%" fill="{PAPER}"/>',
        *(_grid(placed, figure, colours) for placed in figure.grids),
        *_arrows(figure),
        *_texts(figure),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _text(text: str) -> str:
    return escape(NOT_XML.sub("\ufffd", visible(text)))


def _grid(placed: PlacedGrid, figure: Figure, colours: Palette) -> str:
    """Return a grid, with one rectangle for each run of equal cells in a row."""
    cell = figure.cell
    rows, columns = placed.grid.shape
    runs: list[str] = []
    for row, values in enumerate(placed.grid.tolist()):
        at = 0
        for value, run in groupby(values):
            count = len(list(run))
            if value != PADDING:
                place = f'x="{at * cell}" y="{row * cell}" width="{count * cell}" height="{cell}"'
                runs.append(f'<rect {place} fill="{colours.colours[value]}"/>')
            at += count
    lines = ""
    if cell >= LEAST_LINED:
        across = "".join(f"M0 {row * cell}h{columns * cell}" for row in range(rows + 1))
        down = "".join(f"M{column * cell} 0v{rows * cell}" for column in range(columns + 1))
        lines = f'<path d="{across}{down}" stroke="{LINE}" fill="none"/>'
    cells = "".join(runs)
    crisp = f'<g transform="translate({placed.x}.5 {placed.y}.5)" shape-rendering="crispEdges">'
    return f"{crisp}{cells}{lines}{_selection(placed, cell)}</g>"


def _selection(placed: PlacedGrid, cell: int) -> str:
    if placed.selected is None:
        return ""
    across = "".join(f"M{at * cell} {row * cell}h{length * cell}" for row, at, length in edges(placed.selected))
    down = "".join(f"M{at * cell} {row * cell}v{length * cell}" for at, row, length in edges(placed.selected.T))
    dark, light = reaches(cell)
    outline = f'<path d="{across}{down}" fill="none" stroke-linecap="square"'
    return (
        f'{outline} stroke="{DARK}" stroke-width="{2 * dark + 1}"/>'
        f'{outline} stroke="{LIGHT}" stroke-width="{2 * light + 1}"/>'
    )


def _arrows(figure: Figure) -> list[str]:
    reach = ARROW // 4
    return [
        f'<path d="M{arrow.x + reach} {arrow.y}h{ARROW - 2 * reach}m-6 -6l6 6l-6 6" fill="none" stroke="{TEXT}"'
        ' stroke-width="2"/>'
        for arrow in figure.arrows
    ]


def _texts(figure: Figure) -> list[str]:
    """Return the texts in the size that they have in pixels: a character of a monospaced font is 0.6 em wide."""
    size = round(ADVANCE * figure.scale / 0.6)
    style = f'font-family="monospace" font-size="{size}" fill="{TEXT}" xml:space="preserve"'
    return [
        f'<text x="{one.x}" y="{one.y + HEIGHT * figure.scale}" {style}>{_text(one.text)}</text>'
        for one in figure.texts
    ]
