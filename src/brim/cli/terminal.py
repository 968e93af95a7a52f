"""The terminal as commands write to it, through rich: nothing is highlighted, and markup in data is not interpreted."""

from typing import Any

from rich.console import Console
from rich.text import Text

from brim.core.display import readable, visible


class Terminal(Console):
    """A console that highlights nothing. If the reader of stdout has closed it, `brim.cli.app` handles the error."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def plain(value: Any) -> Text:
    """Return a value as text that is printed as it is.

    Names come from the data: markup in them is not interpreted, and characters that would control the terminal
    (escapes, control characters, changes of the writing direction) are shown as escape sequences.
    """
    return Text(visible(readable(value)))
