"""Paint pictures as pixels: a state, a task with its pairs, an episode as a strip or as frames.

Pixels are numbers of colours in a table of sixteen, as PNG and GIF store them; `rgb_...` look them up. Numbers 0 to 9
are the colours of cells. No library for images is needed: pictures are rectangles and a built-in font.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import OptionError
from brim.envs.arc.episodes.episode import ArcEpisode
from brim.envs.arc.look.figure import ARROW, Figure, PlacedGrid, lay_out
from brim.envs.arc.look.font import text_pixels
from brim.envs.arc.look.limits import CELL
from brim.envs.arc.look.palette import palette as find_palette
from brim.envs.arc.look.palette import rgb_of
from brim.envs.arc.look.scene import Mask, Scene, episode_scene, state_scene, task_scene
from brim.envs.arc.operations import COLOURS
from brim.envs.arc.tasks.task import JaxArcTask

Pixels = NDArray[np.uint8]

PAPER, LINE, TEXT, DARK, LIGHT = range(COLOURS, COLOURS + 5)
"""Numbers of the colours beside those of cells: background, lines between cells, text and arrows, both tones of the
outline of a selection."""
EXTRA = ("#ffffff", "#808080", "#222222", "#000000", "#ffffff")
MOST_PIXELS = 100_000_000
LEAST_LINED = 4
"""Pixels of the smallest cells that have lines between them."""


def rgb_state(
    grid: Any,
    *,
    selected: Any = None,
    input: Any = None,
    target: Any = None,
    palette: str = "arc",
    cell: int = CELL,
) -> Pixels:
    """Return a picture of a working grid, if given between the input and the target of its pair. [height, width, 3]

    Args:
        grid: [rows, columns] of colours. `PADDING` below and to the right is cut off.
        selected: Cells to outline: bool, of the grid's size or larger.
        input: Another grid, shown on the left.
        target: Another grid, shown on the right.
        palette: "arc" or "colour-blind".
        cell: Pixels of a cell, 1 to 64.

    Raises:
        OptionError: The palette is unknown, or the cells are too large.
        DataError: A grid or the selection is not what it should be.

    Example:
        >>> rgb_state([[1, 2, 3]], cell=10).shape
        (27, 47, 3)
    """
    scene = state_scene(grid, selected=selected, input=input, target=target)
    return rgb_scene(scene, palette=palette, cell=cell)


def rgb_task(task: JaxArcTask, *, answers: bool = True, palette: str = "arc", cell: int = CELL) -> Pixels:
    """Return a picture of all pairs of a task. [height, width, 3]

    Without `answers` a question mark stands for the outputs of test pairs.

    Raises:
        OptionError: The palette is unknown, or the cells are too large.
    """
    return rgb_scene(task_scene(task, answers=answers), palette=palette, cell=cell)


def rgb_episode(episode: ArcEpisode, *, answers: bool = True, palette: str = "arc", cell: int = CELL) -> Pixels:
    """Return a strip, wrapped into rows, of the grid after every step of an episode. [height, width, 3]

    The outlined cells are those that the operation was applied to. Without `answers` the target of a test pair is left
    out.

    Raises:
        OptionError: The palette is unknown, or the cells are too large.
        DamagedError: The recorded outcome does not follow from the actions.
    """
    return rgb_scene(episode_scene(episode, answers=answers), palette=palette, cell=cell)


def rgb_scene(scene: Scene, *, palette: str, cell: int) -> Pixels:
    """Return a picture of a scene. [height, width, 3]"""
    return colour_table(palette)[paint(lay_out(scene, cell=cell))]


def colour_table(palette: str) -> Pixels:
    """Return red, green and blue of every number of a painted figure. [15, 3]"""
    return np.concatenate([find_palette(palette).rgb, np.array([rgb_of(one) for one in EXTRA], np.uint8)])


def paint(figure: Figure) -> Pixels:
    """Return a figure as numbers of colours. [height, width]

    Raises:
        OptionError: It has more than 100 million pixels.
    """
    if figure.height * figure.width > MOST_PIXELS:
        raise OptionError(
            f"the picture would have {figure.width:,} x {figure.height:,} pixels, more than {MOST_PIXELS:,}; make cells"
            f" smaller than {figure.cell} pixels, or write an .svg or, of an episode, a .gif"
        )
    pixels = np.full((figure.height, figure.width), PAPER, np.uint8)
    for placed in figure.grids:
        _paint_grid(pixels, placed, figure.cell)
    for text in figure.texts:
        dots = np.kron(text_pixels(text.text), np.ones((figure.scale, figure.scale), np.bool_))
        dots = dots[: figure.height - text.y, : figure.width - text.x]
        pixels[text.y : text.y + dots.shape[0], text.x : text.x + dots.shape[1]][dots] = TEXT
    for arrow in figure.arrows:
        _paint_arrow(pixels, arrow.x, arrow.y)
    return pixels


def _paint_grid(pixels: Pixels, placed: PlacedGrid, cell: int) -> None:
    rows, columns = placed.grid.shape
    # An open cell has the number of the background: `PADDING` is `PAPER`.
    area = pixels[placed.y : placed.y + rows * cell + 1, placed.x : placed.x + columns * cell + 1]
    area[:-1, :-1] = np.kron(placed.grid, np.ones((cell, cell), np.uint8))
    if cell >= LEAST_LINED:
        area[::cell] = LINE
        area[:, ::cell] = LINE
    if placed.selected is not None:
        dark, light = reaches(cell)
        _outline(pixels, placed, cell, dark, DARK)
        _outline(pixels, placed, cell, light, LIGHT)


def reaches(cell: int) -> tuple[int, int]:
    """Return how far the dark and the light line around selected cells reach to both sides, in pixels."""
    dark = min(max(1, cell // 8), 4)
    return dark, dark // 2


def _outline(pixels: Pixels, placed: PlacedGrid, cell: int, reach: int, colour: int) -> None:
    """Paint the border of the selected cells, `reach` pixels to both sides of the line between cells."""
    assert placed.selected is not None
    for row, column, length in edges(placed.selected):
        y, x = placed.y + row * cell, placed.x + column * cell
        pixels[y - reach : y + reach + 1, x - reach : x + length * cell + reach + 1] = colour
    for column, row, length in edges(placed.selected.T):
        y, x = placed.y + row * cell, placed.x + column * cell
        pixels[y - reach : y + length * cell + reach + 1, x - reach : x + reach + 1] = colour


def edges(selected: Mask) -> list[tuple[int, int, int]]:
    """Return the horizontal border of the selected cells: the row that it is above, the first column, the columns.

    The vertical border is that of the transposed selection.
    """
    padded = np.pad(selected, ((1, 1), (0, 0)))
    borders = np.pad(padded[1:] != padded[:-1], ((0, 0), (1, 1))).astype(np.int8)  # [rows + 1, columns + 2]
    changes = np.diff(borders, axis=1)
    begins, ends = np.argwhere(changes == 1), np.argwhere(changes == -1)
    return [(int(row), int(at), int(end - at)) for (row, at), (_, end) in zip(begins, ends, strict=True)]


def _paint_arrow(pixels: Pixels, x: int, y: int) -> None:
    left, right = x + ARROW // 4, x + ARROW - ARROW // 4
    pixels[y - 1 : y + 1, left:right] = TEXT
    for step in range(6):
        pixels[max(y - 1 - step, 0) : y + 1 + step, right - step - 1] = TEXT
