"""Lay out a scene: where every grid, text and arrow of a picture stands, in pixels.

Nothing is drawn here: `raster` paints a figure as pixels, `svg` writes it as shapes, and both look alike. Groups stand
side by side and wrap into rows. No text is wider than the picture: one that would be is shortened, which "..." shows.
"""

from collections.abc import Sequence
from typing import NamedTuple

from brim.core.errors import OptionError
from brim.core.options import check_counts
from brim.envs.arc.look.font import ADVANCE, HEIGHT, ascii_text
from brim.envs.arc.look.limits import CELL, LARGEST_CELL
from brim.envs.arc.look.scene import Grid, Group, Mask, Panel, Scene

MARGIN = 8
"""Pixels around the picture."""
GAP = 24
"""Pixels between groups."""
ARROW = 40
"""Pixels that an arrow takes, with the room around it."""
WIDEST = 1200
"""Pixels after which groups wrap into another row."""


class PlacedGrid(NamedTuple):
    """A grid whose upper left corner is at x, y. It takes a pixel more than its cells, for the last line."""

    x: int
    y: int
    grid: Grid
    selected: Mask | None


class PlacedText(NamedTuple):
    """One line of text whose upper left corner is at x, y."""

    x: int
    y: int
    text: str


class PlacedArrow(NamedTuple):
    """An arrow to the right, `ARROW` wide, whose left end is at x and whose middle is at y."""

    x: int
    y: int


class Figure(NamedTuple):
    """A laid out scene."""

    width: int
    height: int
    cell: int
    """Pixels of a cell, with the line on its left or upper side."""
    scale: int
    """Pixels of a pixel of the font."""
    title: str
    """The whole title, as it was given."""
    grids: tuple[PlacedGrid, ...]
    texts: tuple[PlacedText, ...]
    arrows: tuple[PlacedArrow, ...]


def lay_out(scene: Scene, *, cell: int = CELL, widest: int = WIDEST, least: tuple[int, int] = (0, 0)) -> Figure:
    """Lay out a scene with cells of `cell` pixels. Only a single group can be wider than `widest`.

    The picture has at least the width and height `least`.

    Raises:
        OptionError: The cell is not between 1 and 64 pixels.
    """
    check_counts(cell=cell)
    if cell > LARGEST_CELL:
        raise OptionError(f"cell must be at most {LARGEST_CELL} pixels, got {cell}")
    scale = 1 if cell < 10 else 2
    drawn = _Drawing(cell=cell, scale=scale)
    rows = _wrapped([drawn.size(group) for group in scene.groups], widest)
    width = max(max(_row_width(row) for row in rows) + 2 * MARGIN, least[0])
    y = MARGIN
    if scene.title:
        drawn.write(MARGIN, y, scene.title, width - 2 * MARGIN)
        y += drawn.line + MARGIN
    groups = iter(scene.groups)
    for row in rows:
        x = MARGIN
        for size in row:
            drawn.place(next(groups), x, y)
            x += size[0] + GAP
        y += max(height for _, height in row) + GAP
    return Figure(
        width=width,
        height=max(y - GAP + MARGIN, least[1]),
        cell=cell,
        scale=scale,
        title=scene.title,
        grids=tuple(drawn.grids),
        texts=tuple(drawn.texts),
        arrows=tuple(drawn.arrows),
    )


def _wrapped(sizes: Sequence[tuple[int, int]], widest: int) -> list[list[tuple[int, int]]]:
    """Return the sizes of the groups, row by row."""
    rows: list[list[tuple[int, int]]] = []
    for size in sizes:
        if rows and _row_width([*rows[-1], size]) + 2 * MARGIN <= widest:
            rows[-1].append(size)
        else:
            rows.append([size])
    return rows


def _row_width(row: Sequence[tuple[int, int]]) -> int:
    return sum(width for width, _ in row) + GAP * (len(row) - 1)


class _Drawing:
    """The parts of a figure while it is laid out."""

    def __init__(self, *, cell: int, scale: int) -> None:
        self.cell = cell
        self.scale = scale
        self.line = (HEIGHT + 5) * scale
        """Pixels from one line of text to the next."""
        self.grids: list[PlacedGrid] = []
        self.texts: list[PlacedText] = []
        self.arrows: list[PlacedArrow] = []

    def write(self, x: int, y: int, text: str, room: int) -> None:
        """Place text; if it is wider than `room`, its beginning and three dots."""
        most = max(room // (ADVANCE * self.scale), 1)
        if len(ascii_text(text)) > most:
            text = ascii_text(text)[: max(most - 3, 0)] + "..."[:most]
        self.texts.append(PlacedText(x, y, text))

    def size(self, group: Group) -> tuple[int, int]:
        """Return width and height of a group."""
        panels = [self._panel_size(panel) for panel in group.panels]
        width = sum(width for width, _ in panels) + ARROW * (len(panels) - 1)
        texts = [self._text_width(caption) for caption in group.captions]
        height = max(height for _, height in panels) + self.line * len(group.captions)
        return max(width, *texts, 0), height

    def place(self, group: Group, x: int, y: int) -> None:
        """Place the captions, panels and arrows of a group."""
        room = self.size(group)[0]
        for caption in group.captions:
            self.write(x, y, caption, room)
            y += self.line
        above = self.line * any(panel.caption for panel in group.panels)
        for number, panel in enumerate(group.panels):
            if number:
                self.arrows.append(PlacedArrow(x, y + above + self._arrow_height(group) // 2))
                x += ARROW
            width = self._panel_size(panel)[0]
            if panel.caption:
                self.write(x, y, panel.caption, width)
            if panel.grid is None:
                self.write(x, y + above, "?", width)
            else:
                self.grids.append(PlacedGrid(x, y + above, panel.grid, panel.selected))
            x += width

    def _panel_size(self, panel: Panel) -> tuple[int, int]:
        rows, columns = (1, 1) if panel.grid is None else panel.grid.shape
        width = max(columns, panel.room[1]) * self.cell + 1
        height = max(rows, panel.room[0]) * self.cell + 1
        if panel.grid is None:  # a question mark, which may be larger than a cell
            width, height = max(width, self._text_width("?")), max(height, HEIGHT * self.scale)
        return max(width, self._text_width(panel.caption)), height + self.line * bool(panel.caption)

    def _arrow_height(self, group: Group) -> int:
        """Return the height beside whose middle an arrow stands: that of the lowest grid, so that it touches both."""
        rows = [1 if panel.grid is None else panel.grid.shape[0] for panel in group.panels]
        return min(rows) * self.cell

    def _text_width(self, text: str) -> int:
        return len(ascii_text(text)) * ADVANCE * self.scale
