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
    from rich.text import Text

GAP = 2
"""Characters between two columns of a table."""
LONG_WORD = 20
"""Words of a table that are longer than this may be broken."""

SECONDS_BETWEEN_LINES = 2.0
"""Seconds between two lines about a search, where there is no terminal."""

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

    No number and no header is ever broken inside. In a terminal that is too narrow, headers of several words take
    several lines, and so do cells of several words; if that is not enough, every row becomes a block of facts.
    """
    from rich.table import Table

    from brim.cli.terminal import Terminal, plain

    terminal = Terminal()
    cells = [list(map(plain, row)) for row in rows]
    columns = [str(column) for column in columns]
    widths = _widths(columns, cells, terminal.width)
    if widths is None:
        _show_blocks(columns, cells, title)
        return
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for at, (column, width) in enumerate(zip(columns, widths, strict=True)):
        table.add_column(column, justify="left" if at == 0 else "right", overflow="fold", width=width)
    for row in cells:
        table.add_row(*row)
    terminal.print(table)


def _widths(columns: Sequence[str], rows: "Sequence[Sequence[Text]]", room: int) -> list[int] | None:
    """Return the width of each column of a table; None if there is too little room."""
    headers = [(len(column), max(map(len, column.split()), default=0)) for column in columns]
    sizes = [
        (
            max(header[0], *(row[at].cell_len for row in rows)) if rows else header[0],
            max(header[1], *(_narrowest(row[at]) for row in rows)) if rows else header[1],
        )
        for at, header in enumerate(headers)
    ]
    widths = [widest for widest, _ in sizes]
    excess = sum(widths) + GAP * (len(widths) - 1) - room
    for at in sorted(range(len(widths)), key=lambda at: sizes[at][1] - sizes[at][0]):
        less = min(max(excess, 0), sizes[at][0] - sizes[at][1])
        widths[at] -= less
        excess -= less
    return None if excess > 0 else widths


def _narrowest(cell: "Text") -> int:
    """Return the width of a number with its unit, else that of the longest word; long ones, such as ids, are folded."""
    words = cell.split(" ")
    number = cell.plain[:1].isdigit() and len(words) <= 2 and cell.cell_len <= LONG_WORD
    return cell.cell_len if number else min(max((word.cell_len for word in words), default=0), LONG_WORD)


def _show_blocks(columns: Sequence[str], rows: "Sequence[Sequence[Text]]", title: str | None) -> None:
    """Print every row of a table as facts, with an empty line between rows."""
    if title is not None:
        click.echo(title)
    for number, row in enumerate(rows):
        if number:
            click.echo()
        show_facts({column: cell.plain for column, cell in zip(columns, row, strict=True)})


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

    def __init__(self, progress: "Progress", task: "TaskID", what: str) -> None:
        self._progress, self._task, self._what = progress, task, what
        self._told: float | None = None
        """When a line about a search was printed last, or when the search began."""

    def __call__(self, done: int, total: int) -> None:
        self._progress.update(self._task, description=self._what, completed=done, total=total, count=f"{done}/{total}")

    def searched(self, rows: int, bound: int) -> None:
        """Show how far the search for patterns of packed rows is: beside the bar, or in a line now and then."""
        state = f"packing: {rows:,} rows, at least {bound:,}"
        self._progress.update(self._task, description=f"{self._what} ({state})")
        now = time.monotonic()
        if self._told is None:
            self._told = now
        if self._progress.disable and now - self._told >= SECONDS_BETWEEN_LINES:
            self._told = now
            click.echo(f"{self._what}, searching for patterns ({state})", err=True)


@contextmanager
def counting_progress(what: str) -> Generator[Counting, None, None]:
    """Show a bar that counts on stderr, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[count]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        yield Counting(progress, progress.add_task(what, total=None, count=""), what)


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
