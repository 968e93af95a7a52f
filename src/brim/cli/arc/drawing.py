"""Print drawings of grids: in the colours that a terminal has, as plain digits elsewhere."""

from typing import Protocol

from rich.text import Text

from brim.cli.terminal import Terminal
from brim.envs.arc.look.ansi import TERMINAL


class Draw(Protocol):
    """A function of `brim.envs.arc.look.ansi` with everything but these two decided."""

    def __call__(self, *, colour: bool, width: int | None) -> str: ...


def print_drawing(draw: Draw) -> None:
    """Print a drawing, with colours if the terminal has them.

    Raises:
        OptionError: The terminal is too narrow for the grids. A file or a pipe has at least 80 columns.
    """
    console = Terminal()
    width = console.width if console.is_terminal else max(console.width, TERMINAL)
    _print(console, draw(colour=has_colour(console), width=width))


def has_colour(console: Terminal) -> bool:
    """Whether stdout is a terminal that shows colours, and nobody asked for none (NO_COLOR, TERM=dumb)."""
    return console.is_terminal and not console.no_color and console.color_system is not None


def in_its_colours(console: Terminal, drawn: str) -> str:
    """Return a drawing with its 24-bit colours replaced by the nearest that the terminal has."""
    with console.capture() as captured:
        _print(console, drawn)
    return captured.get()


def _print(console: Terminal, drawn: str) -> None:
    # Lines that are longer than the terminal are titles: the terminal wraps them.
    console.print(Text.from_ansi(drawn), no_wrap=True, overflow="ignore", crop=False, soft_wrap=True)
