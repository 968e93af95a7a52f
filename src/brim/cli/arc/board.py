"""Draw a game for the terminal: the grids, the state of the game, and the keys. Nothing is printed here."""

import numpy as np
from rich.cells import cell_len, set_cell_size

from brim.cli.arc.data import counted
from brim.cli.arc.game import Game
from brim.cli.arc.keys import HELP
from brim.core.display import visible
from brim.envs.arc.look.ansi import ARROW, TERMINAL, draw_scene
from brim.envs.arc.look.scene import Group, Panel, Scene
from brim.envs.arc.operations import PADDING

AROUND = 7
"""Lines besides those of the grids: title, captions, a blank, the cursor, the message, and two of keys."""
FOOT = (
    "arrows move  space select  v rectangle  a all  0-9 fill  f region  u undo",
    "enter submit  d demonstrations  n next pair  ? all keys  q quit",
)
BETWEEN = "  "
"""Blanks between the two columns of the list of keys."""


def needed(game: Game) -> tuple[int, int]:
    """Return the columns and lines that every view of a game fits into."""
    height, width = game.config.shape
    columns = max(2 * width, *map(len, FOOT), *map(len, _keys()))
    return columns, max(height + AROUND, len(_keys()) + 2)


def board(game: Game, *, width: int | None, colour: bool, palette: str) -> str:
    """Return what a person sees. No line is longer than `width`, or 80, unless that is less than `needed`."""
    width = TERMINAL if width is None else width
    title = f"{visible(game.task.id)}  {game.kind} pair {game.number}  {counted(game.steps, 'step')}"
    if game.helping:
        return "\n".join([_cut(title, width), "", *_keys()])
    if game.looking is None:
        grids = _scene(game, width)
    else:
        train = game.task.train[game.looking]
        captions = (f"train pair {game.looking}",)
        grids = Scene("", (Group(captions, (Panel("", train.input), Panel("", train.output))),))
    drawn = draw_scene(grids, colour=colour, palette=palette, width=width)
    return "\n".join([_cut(title, width), drawn, "", _standing(game), _cut(game.message, width), *FOOT])


def _scene(game: Game, width: int) -> Scene:
    """Return the input and the working grid; the grid alone where both do not fit."""
    room = np.full(game.config.shape, PADDING, np.uint8)
    rows, columns = game.env.grid.shape
    room[:rows, :columns] = game.env.grid
    selected = game.selected
    panels = [Panel(f"grid {rows}x{columns}", room, selected if selected.any() else None, cursor=game.cursor)]
    given = Panel("input", game.pair.input)
    used = max(2 * game.pair.input.shape[1], len(given.caption)) + len(ARROW)
    if used + max(2 * room.shape[1], len(panels[0].caption)) <= width:
        panels.insert(0, given)
    return Scene("", (Group((), tuple(panels)),))


def _standing(game: Game) -> str:
    row, column = game.cursor
    held = np.argwhere(game.env.clipboard != PADDING)
    clipboard = "empty" if not len(held) else "x".join(str(size) for size in held.max(axis=0) + 1)
    cells = counted(int(game.selected.sum()), "cell")
    return f"row {row}, column {column}  {cells} selected  clipboard {clipboard}"


def _keys() -> list[str]:
    """Return all keys and what they do, in two columns."""
    half = (len(HELP) + 1) // 2
    lines = [f"{keys:<12} {does:<24}" for keys, does in HELP]
    second = [*lines[half:], *[""] * (2 * half - len(lines))]
    return [f"{left}{BETWEEN}{right}".rstrip() for left, right in zip(lines[:half], second, strict=True)]


def _cut(text: str, width: int) -> str:
    """Return a line that is not wider than the terminal; one that would be ends with three dots."""
    return text if cell_len(text) <= width else set_cell_size(text, max(width - 3, 0)) + "..."
