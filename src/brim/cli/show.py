"""Output of results: tables and bars for people, JSON for programs, progress on stderr.

rich is imported by the functions that draw with it: every command imports this module, also to print its help.
"""

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Protocol

import click

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

UNBOUNDED = 10_000
"""A width, in characters, that no table reaches."""

width_option = click.option(
    "--width",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    help="Length of the longest bar in characters; less in a narrow terminal.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def show_json(value: Any) -> None:
    import json

    click.echo(json.dumps(value, indent=2, default=str))


def show_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None) -> None:
    """Print a table of numbers: all columns but the first are right-aligned.

    In a terminal that is too narrow, headers of several words take several lines.
    """
    from rich.table import Table

    from brim.cli.terminal import Terminal, plain

    terminal = Terminal()
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for at, column in enumerate(columns):
        table.add_column(column, justify="left" if at == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(plain, row))
    if terminal.measure(table, options=terminal.options.update(width=UNBOUNDED)).maximum > terminal.width:
        for column in table.columns:
            column.header = "\n".join(str(column.header).split())
    terminal.print(table)


def show_words(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table of words: all columns begin on the left."""
    from rich.table import Table

    from brim.cli.terminal import Terminal, plain

    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*map(plain, row))
    Terminal().print(table)


def show_facts(facts: dict[str, Any]) -> None:
    """Print one fact per line."""
    from rich.table import Table

    from brim.cli.terminal import Terminal, plain

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(plain(name), plain(value))
    Terminal().print(table)


def show_drawing(draw: Callable[[int], str], width: int) -> None:
    """Print text with bars of at most `width` characters, or fewer if the terminal is narrower."""
    from rich.text import Text

    from brim.cli.terminal import Terminal

    console = Terminal()
    drawn = draw(width)
    excess = max(len(line) for line in drawn.splitlines()) - console.width
    text = Text(draw(max(1, width - excess)) if excess > 0 else drawn)
    text.highlight_regex(r"[█▏▎▍▌▋▊▉]+", "cyan")
    console.print(text)


def show_prose(*sentences: str) -> None:
    """Print each sentence as a paragraph, wrapped at words."""
    from rich.text import Text

    from brim.cli.terminal import Terminal

    for sentence in sentences:
        Terminal().print(Text(sentence))


def human(number: float) -> str:
    """Format a number in short: 1234567 is 1.2M."""
    for unit in ("", "k", "M", "G"):
        if abs(number) < 1000:
            return f"{number:.0f}{unit}" if unit == "" or number >= 100 else f"{number:.1f}{unit}"
        number /= 1000
    return f"{number:.1f}T"


class Counting:
    """A bar that counts: called with the number of parts done, and of all."""

    def __init__(self, progress: "Progress", task: "TaskID") -> None:
        self._progress, self._task = progress, task

    def __call__(self, done: int, total: int) -> None:
        self._progress.update(self._task, completed=done, total=total)

    def describe(self, what: str) -> None:
        """Change the words beside the bar."""
        self._progress.update(self._task, description=what)


@contextmanager
def counting_progress(what: str) -> Generator[Counting, None, None]:
    """Show a bar that counts on stderr, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        yield Counting(progress, progress.add_task(what, total=None))


@contextmanager
def tenths_told(progress: Callable[[], tuple[int, int]], line: Callable[[], str]) -> Generator[None, None, None]:
    """Print a line on stderr for each tenth of the work, from a thread: for long work where there is no terminal.

    Args:
        progress: Returns the number of parts done and the number of all parts.
        line: Returns the line to print.
    """
    left = Event()

    def tenths() -> int:
        done, total = progress()
        return 10 * done // max(total, 1)

    told = tenths()

    def look() -> None:
        nonlocal told
        if (now := tenths()) > told:
            told = now
            click.echo(line(), err=True)

    def watch() -> None:
        while not left.wait(0.1):
            look()

    watching = Thread(target=watch, name="progress", daemon=True)
    watching.start()
    try:
        yield
    finally:
        left.set()
        watching.join()
        look()


class MeasuringProgress(Protocol):
    def __call__(self, rows: int, tokens: int, done: int, total: int, /) -> None: ...


@contextmanager
def measuring_progress(quiet: bool) -> Generator[MeasuringProgress, None, None]:
    """Show a bar with rows/s, tokens/s and the remaining time on stderr, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}% {task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal, transient=True) as progress:
        task = progress.add_task("measuring", total=None, rate="")
        started: list[float] = []
        first: list[tuple[int, int]] = []

        def update(rows: int, tokens: int, done: int, total: int, /) -> None:
            if not first:
                started.append(time.monotonic())
                first.append((rows, tokens))
            elapsed = max(time.monotonic() - started[0], 1e-3)
            rate = f"{human((rows - first[0][0]) / elapsed)} rows/s {human((tokens - first[0][1]) / elapsed)} tokens/s"
            progress.update(task, completed=done, total=total, rate=rate)

        yield update
