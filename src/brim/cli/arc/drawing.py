"""Print drawings of grids: in colour in a terminal, as plain digits elsewhere."""

from typing import Protocol

from rich.text import Text

from brim.cli.show import Terminal
from brim.envs.arc.look.ansi import TERMINAL


class Draw(Protocol):
    """A function of `brim.envs.arc.look.ansi` with everything but these two decided."""

    def __call__(self, *, colour: bool, width: int | None) -> str: ...


def print_drawing(draw: Draw) -> None:
    """Print a drawing. Colours are those that the terminal has, and none if NO_COLOR is set or stdout is no terminal.

    Raises:
        OptionError: The terminal is too narrow for the grids. A file or a pipe has at least 80 columns.
    """
    console = Terminal()
    width = console.width if console.is_terminal else max(console.width, TERMINAL)
    drawn = draw(colour=console.is_terminal, width=width)
    # Lines that are longer than the terminal are titles: the terminal wraps them.
    console.print(Text.from_ansi(drawn), no_wrap=True, overflow="ignore", crop=False, soft_wrap=True)
