"""Draw grids as text for a terminal: digits, and with `colour` their colours as 24-bit ANSI escapes.

The characters are the same with and without colour; colour only adds escapes around them. A cell is two characters, the
digit and a blank, or an asterisk if it is selected; where that is too wide and nothing is selected, it is the digit
alone. The cell at the cursor has "<", or "#" if it is selected, and exchanged colours. An open cell is a dot.
Nothing is printed here, and nothing is ever cut off to fit: a drawing that does not fit the given width is refused.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from brim.core.display import visible
from brim.core.errors import OptionError
from brim.core.options import check_counts
from brim.envs.arc.episodes.episode import ArcEpisode
from brim.envs.arc.look.palette import Palette, rgb_of
from brim.envs.arc.look.palette import palette as find_palette
from brim.envs.arc.look.scene import Group, Panel, Scene, episode_scene, state_scene, task_scene
from brim.envs.arc.operations import PADDING
from brim.envs.arc.tasks.task import JaxArcTask

ARROW = "  ->  "
GAP = 3
"""Blanks between groups that stand side by side."""
TERMINAL = 80
"""Usual columns of a terminal."""
RESET = "\x1b[0m"
HIDDEN = "?"
MARKS = (" ", "*")
"""The second character of a cell that is not selected, and of one that is."""
CURSOR = ("<", "#")
"""The same for the cell at the cursor."""


class _Block(NamedTuple):
    """Lines of text that take the same room."""

    lines: tuple[str, ...]
    width: int
    """Columns of the longest line. Escapes take none."""


def draw_state(
    grid: Any,
    *,
    selected: Any = None,
    input: Any = None,
    target: Any = None,
    colour: bool = True,
    palette: str = "arc",
    width: int | None = None,
    rulers: bool = False,
) -> str:
    """Return a working grid as text, if given between the input and the target of its pair.

    Args:
        grid: [rows, columns] of colours. `PADDING` below and to the right is cut off.
        selected: Cells to mark with an asterisk: bool, of the grid's size or larger.
        input: Another grid, shown on the left.
        target: Another grid, shown on the right.
        colour: Whether colours are added as ANSI escapes.
        palette: "arc" or "colour-blind".
        width: Columns that the drawing may have; None for any number.
        rulers: Whether rows and columns are numbered.

    Raises:
        OptionError: The drawing needs more columns than `width`, or the palette is unknown.
        DataError: A grid or the selection is not what it should be.

    Example:
        >>> print(draw_state([[1, 2], [3, 4]], selected=np.eye(2, dtype=bool), colour=False))
        1*2
        3 4*
    """
    scene = state_scene(grid, selected=selected, input=input, target=target)
    return draw_scene(scene, colour=colour, palette=palette, width=width, rulers=rulers)


def draw_task(
    task: JaxArcTask, *, answers: bool = True, colour: bool = True, palette: str = "arc", width: int | None = TERMINAL
) -> str:
    """Return all pairs of a task as text. Without `answers` a question mark stands for the outputs of test pairs.

    Raises:
        OptionError: The drawing needs more columns than `width`, or the palette is unknown.
    """
    return draw_scene(task_scene(task, answers=answers), colour=colour, palette=palette, width=width)


def draw_episode(
    episode: ArcEpisode,
    *,
    answers: bool = True,
    colour: bool = True,
    palette: str = "arc",
    width: int | None = TERMINAL,
) -> str:
    """Return an episode as text: the grid at the beginning and after every step, with the cells that were selected.

    Without `answers` the target of a test pair is left out.

    Raises:
        OptionError: The drawing needs more columns than `width`, or the palette is unknown.
        DamagedError: The recorded outcome does not follow from the actions.
    """
    scene = episode_scene(episode, answers=answers)
    return draw_scene(scene, colour=colour, palette=palette, width=width, flow=True)


def draw_scene(
    scene: Scene, *, colour: bool, palette: str, width: int | None, rulers: bool = False, flow: bool = False
) -> str:
    """Return a scene as text: groups below each other, or, with `flow`, side by side as far as they fit."""
    check_counts(width=width)
    pen = _Pen(colour=colour, palette=find_palette(palette), rulers=rulers)
    # A title or caption that is too long may wrap: only a grid is torn by that.
    lines = [visible(scene.title)] if scene.title else []
    blocks = [_group(group, pen, width) for group in scene.groups]
    rows = _flowing(blocks, width) if flow else [[block] for block in blocks]
    for row in rows:
        lines += [""] * bool(lines)
        lines += _beside(row, [" " * GAP] * (len(row) - 1)).lines
    return "\n".join(line.rstrip(" ") for line in lines)


class _Pen(NamedTuple):
    """How cells are written."""

    colour: bool
    palette: Palette
    rulers: bool


def _group(group: Group, pen: _Pen, width: int | None) -> _Block:
    """Arrange the panels of a group: side by side, below each other if that is too wide, with cells as wide as fits."""
    marked = any(panel.selected is not None or panel.cursor is not None for panel in group.panels)
    cells = [True] if marked or pen.rulers else [True, False]
    tried: list[_Block] = []
    for stacked in (False, True) if len(group.panels) > 1 else (False,):
        for wide in cells:
            panels = [_panel(panel, pen, wide=wide) for panel in group.panels]
            block = _below(panels) if stacked else _beside(panels, [ARROW] * (len(panels) - 1))
            if width is None or block.width <= width:
                return _captioned(group, block)
            tried.append(block)
    least = min(block.width for block in tried)
    raise OptionError(
        f"a drawing of these grids needs {least} columns, but there are {width}; use a wider terminal, or write a"
        " picture to a file (brim arc render -o FILE.png)"
    )


def _captioned(group: Group, block: _Block) -> _Block:
    captions = [visible(caption) for caption in group.captions]
    if captions and len(group.panels) > 1:
        captions[0] += ": " + ARROW.strip().join(f" {_size(panel)} " for panel in group.panels).strip()
    lines = (*captions, *block.lines)
    return _Block(lines, max(block.width, *map(len, captions), 0))


def _size(panel: Panel) -> str:
    return HIDDEN if panel.grid is None else f"{panel.grid.shape[0]}x{panel.grid.shape[1]}"


def _panel(panel: Panel, pen: _Pen, *, wide: bool) -> _Block:
    if panel.grid is None:
        return _Block((*_caption_lines(panel), HIDDEN), max(len(panel.caption), 1))
    rows, columns = panel.grid.shape
    selected = np.zeros((rows, columns), np.bool_) if panel.selected is None else panel.selected
    marks = [[MARKS[mark] for mark in row] for row in selected.tolist()]
    if panel.cursor is not None:
        row, column = panel.cursor
        marks[row][column] = CURSOR[bool(selected[row, column])]
    lines = [
        "".join(_cell(value, mark, pen, wide=wide) for value, mark in zip(values, own, strict=True))
        for values, own in zip(panel.grid.tolist(), marks, strict=True)
    ]
    width = columns * (1 + wide)
    if pen.rulers:
        lines = [*_column_numbers(columns), *(f"{row:2} {line}" for row, line in enumerate(lines))]
        width += 3
    return _Block((*_caption_lines(panel), *lines), max(width, len(panel.caption)))


def _caption_lines(panel: Panel) -> list[str]:
    return [panel.caption] if panel.caption else []


def _cell(value: int, mark: str, pen: _Pen, *, wide: bool) -> str:
    digit = "." if value == PADDING else str(value)
    text = digit + mark * wide
    if not pen.colour:
        return text
    if value == PADDING:
        return f"\x1b[7m{text}{RESET}" if mark in CURSOR else text
    ink, ground = (";".join(map(str, rgb_of(one))) for one in (pen.palette.inks[value], pen.palette.colours[value]))
    bold = "" if mark == MARKS[False] else "1;"
    if mark in CURSOR:
        ink, ground = ground, ink
    return f"\x1b[{bold}38;2;{ink};48;2;{ground}m{text}{RESET}"


def _column_numbers(columns: int) -> list[str]:
    """Return the numbers of the columns, with the tens in a line of their own."""
    tens = "".join(f"{column // 10 or ' '} " for column in range(columns))
    ones = "".join(f"{column % 10} " for column in range(columns))
    return [f"   {line}" for line in ([tens] if columns > 10 else []) + [ones]]


def _beside(blocks: Sequence[_Block], between: Sequence[str]) -> _Block:
    """Put blocks side by side. What stands between two of them is written in the first line of grids only."""
    height = max(len(block.lines) for block in blocks)
    lines: list[str] = []
    for at in range(height):
        line = ""
        for number, block in enumerate(blocks):
            if number:
                line += between[number - 1] if at == 0 else " " * len(between[number - 1])
            own = block.lines[at] if at < len(block.lines) else ""
            line += own + " " * (block.width - _columns(own))
        lines.append(line)
    return _Block(tuple(lines), sum(block.width for block in blocks) + sum(map(len, between)))


def _below(blocks: Sequence[_Block]) -> _Block:
    lines: list[str] = []
    for number, block in enumerate(blocks):
        lines += [ARROW.strip()] if number else []
        lines += block.lines
    return _Block(tuple(lines), max(block.width for block in blocks))


def _flowing(blocks: Sequence[_Block], width: int | None) -> list[list[_Block]]:
    rows: list[list[_Block]] = []
    used = 0
    for block in blocks:
        if rows and (width is None or used + GAP + block.width <= width):
            rows[-1].append(block)
            used += GAP + block.width
        else:
            rows.append([block])
            used = block.width
    return rows


def _columns(line: str) -> int:
    """Return the columns that a line takes."""
    if "\x1b" not in line:
        return len(line)
    # Every escape of this module begins with ESC and ends with the first "m".
    first, *rest = line.split("\x1b")
    return len(first) + sum(len(part) - part.index("m") - 1 for part in rest)
