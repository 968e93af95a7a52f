"""`brim arc play`: a person solves a task in the terminal, or a script of keys does."""

import shutil
import sys
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from brim.cli.arc.data import counted, only_task, split_option
from brim.cli.arc.keys import known, typed, written
from brim.cli.arc.names import name_option
from brim.cli.output import check_output, force_option
from brim.cli.show import json_option, show_facts, show_json
from brim.core.errors import OptionError
from brim.envs.arc.look.palette import PALETTES

if TYPE_CHECKING:
    from brim.cli.arc.game import Game
    from brim.envs.arc.episodes.episode import ArcEpisode


@click.command()
@click.argument("source")
@split_option
@click.option("--task", metavar="ID", help="The task to solve, if SOURCE has several.")
@click.option(
    "--mode",
    type=click.Choice(["train", "test"]),
    help="Begin with a demonstration or a test.  [default: test, if the task has one]",
)
@click.option("--pair", type=click.IntRange(0), default=0, show_default=True, help="Number of the pair to begin with.")
@click.option("--keys", metavar="KEYS", help="Press these keys instead of reading them, and print the end.")
@click.option("--record", metavar="FILE", help="Write the played episodes, for brim arc render.")
@name_option("--palette", PALETTES, default="arc", help="Colours of cells.")
@force_option
@json_option
def play(source: str, keys: str | None, record: str | None, force: bool, as_json: bool, **options: Any) -> None:
    """Solve a task yourself, in the terminal.

    SOURCE is arcagi, arcagi2, mock (one task, built in), or the path of a JSON file of tasks or of a directory of them.
    The grid begins as the input. Change it until it is the output that the demonstrations suggest (d shows them), and
    submit it with enter. The answer of a test pair is never shown.

    An operation applies to the selected cells. If none is selected, it applies to the cell at the cursor; moving,
    rotating, mirroring and making black apply to the whole grid then. Regions, pasting and the end of the grid are
    always at the cursor.

    Keys are read from --keys or from stdin if that is not a terminal; then the last view is printed. In --keys a key
    without a character is named: <up> <down> <left> <right> <enter> <space> <escape> <backspace>.

    \b
    Examples:
      brim arc play arcagi --task 007bbfb7
      brim arc play mock --mode train --record mine.json
      brim arc play mock --keys "am<enter>"

    \b
    Keys:
      arrows, hjkl  move the cursor       r R   rotate right, left
      space         select a cell         m M   mirror across, down
      v             select a rectangle    c x p copy, cut, paste
      a, escape     select all, nothing   z     make black
      0 to 9        fill with a colour    g     end the grid at the cursor
      f, 0 to 9     fill a region         i e   input again, pair again
      HJKL          move the content      n b t next pair, pair before, tests
      u             undo                  enter submit
      d             demonstrations        ? q   all keys, quit

    Exit status: 0 played, 2 the options or the data are wrong, 130 interrupted. Recorded episodes are written also if
    the game was interrupted.
    """
    from brim.cli.arc.board import board
    from brim.cli.arc.drawing import print_drawing
    from brim.cli.arc.game import Game
    from brim.envs.arc.episodes import files

    if record is not None:
        check_output(record, force=force, what="a file of recorded episodes", ours=files.is_episodes)
    task = only_task(source, options["task"], split=options["split"])
    kind = options["mode"] or ("test" if task.test else "train")
    game = Game(task, kind=kind, pair=options["pair"])
    scripted = _scripted(keys)
    try:
        if scripted is None:
            _by_hand(game, options["palette"])
        else:
            _press(game, scripted)
    finally:
        episodes = game.episodes()
        if record is not None and episodes:
            files.write_episodes(record, episodes)
    if scripted is not None and not as_json:
        print_drawing(partial(board, game, palette=options["palette"]))
        click.echo()
    _report(task.id, episodes, record, as_json=as_json)


def _scripted(keys: str | None) -> list[str] | None:
    """Return the keys of --keys or of a stdin that is not a terminal; None if a person presses them.

    Raises:
        OptionError: A key is unknown, or there is a person but no terminal to draw on.
    """
    if keys is not None:
        return written(keys)
    if not sys.stdin.isatty():
        return known(typed(sys.stdin.buffer.read().decode(errors="replace")).keys, "stdin")
    if not sys.stdout.isatty():
        raise OptionError("there is no terminal to draw on: stdout is not one; leave it as it is, or give --keys")
    return None


def _press(game: "Game", keys: Iterable[str]) -> None:
    for key in keys:
        if game.left:
            return
        game.press(key)


def _by_hand(game: "Game", palette: str) -> None:
    """Let a person play.

    Raises:
        OptionError: The terminal is too small for the task.
    """
    from brim.cli.arc.board import board
    from brim.cli.arc.drawing import has_colour, in_its_colours
    from brim.cli.arc.screen import CLEAR, resizes, show, taken_terminal, terminal_keys
    from brim.cli.terminal import Terminal

    small = _too_small(game)
    if small is not None:
        raise OptionError(f"{small}; enlarge it, or choose a task of smaller grids")
    console = Terminal()

    def draw() -> None:
        columns = shutil.get_terminal_size().columns
        lines = _too_small(game) or board(game, width=columns, colour=has_colour(console), palette=palette)
        # The last line of the terminal may be in use: a line break there would scroll.
        show(CLEAR + in_its_colours(console, lines).rstrip("\n"))

    with taken_terminal(), resizes() as resized:
        draw()
        for key in terminal_keys(resized):
            if key is not None:
                game.press(key)
            if game.left:
                return
            draw()


def _too_small(game: "Game") -> str | None:
    """Return in words that the terminal is too small; None if it is not."""
    from brim.cli.arc.board import needed

    columns, lines = needed(game)
    size = shutil.get_terminal_size()
    if size.columns >= columns and size.lines >= lines:
        return None
    return (
        f"this task needs a terminal of {columns} columns and {lines} lines, but it has {size.columns} columns and"
        f" {size.lines} lines"
    )


def _report(id: str, episodes: "list[ArcEpisode]", record: str | None, *, as_json: bool) -> None:
    """Print how the episodes ended."""
    written_to = record if episodes else None
    if as_json:
        show_json({"task": id, "episodes": [_facts(one) for one in episodes], "record": written_to})
        return
    lines: dict[str, Any] = {"task": id}
    for number, one in enumerate(episodes):
        ending = "not submitted"
        if one.terminated:
            ending = "solved" if one.solved else "not solved"
        limit = ", which is the limit" if one.truncated else ""
        lines[f"episode {number}"] = f"{one.kind} pair {one.pair}: {ending}, {counted(one.steps, 'step')}{limit}"
    if record is not None:
        lines["recorded"] = written_to or "nothing: no step was taken"
    show_facts(lines)


def _facts(episode: "ArcEpisode") -> dict[str, Any]:
    return {
        "kind": episode.kind,
        "pair": episode.pair,
        "steps": episode.steps,
        "solved": episode.solved and episode.terminated,
        "submitted": episode.terminated,
    }
