"""Progress of many calls: a live table of the servers, or a line for each tenth where there is no terminal."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from brim.cli.show import human, tenths_told
from brim.cli.terminal import plain


@dataclass
class Tally:
    """Counters of a run. One thread counts, another one shows them."""

    total: int
    """Questions of the whole run."""
    before: int = 0
    """Questions that an earlier run answered."""
    answered: int = 0
    """Questions that this run answered."""
    failed: int = 0
    tokens: int = 0
    """Tokens of the answers that came now; of the texts, if they are embedded."""
    started: float = field(default_factory=time.monotonic)

    @property
    def ended(self) -> int:
        """Questions that need not be asked any more by this run."""
        return self.before + self.answered + self.failed

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def line(self) -> str:
        """Return one line: how far, how fast, how long still."""
        seconds = max(self.seconds, 1e-3)
        now = self.answered + self.failed
        parts = [
            f"{self.ended}/{self.total}",
            f"{human(now / seconds)} calls/s" if now / seconds >= 10 else f"{now / seconds:.1f} calls/s",
        ]
        if self.tokens:
            parts.append(f"{human(self.tokens / seconds)} tokens/s")
        if now and self.ended < self.total:
            parts.append(f"ETA {duration((self.total - self.ended) * seconds / now)}")
        if self.failed:
            parts.append(f"{self.failed} failed")
        return ", ".join(parts)


class Line(Protocol):
    """Something that says in a line how far it is."""

    def line(self) -> str: ...


class Told(Line, Protocol):
    """Work that counts its parts."""

    @property
    def ended(self) -> int: ...
    @property
    def total(self) -> int: ...


def duration(seconds: float) -> str:
    """Format a time span: 75 is 1:15, 3675 is 1:01:15."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@contextmanager
def asking(tally: Told, stats: Callable[[], Any] | None, *, quiet: bool) -> Generator[None, None, None]:
    """Show the progress of a run on stderr within the block.

    `stats` returns the `PoolStats` of the moment. Without it, there is one line and no table.
    """
    console = Console(stderr=True)
    if quiet:
        yield
    elif console.is_terminal:
        with Live(
            console=console,
            get_renderable=lambda: shown(tally, stats and stats()),
            refresh_per_second=4,
            transient=True,
        ):
            yield
    else:
        with tenths_told(lambda: (tally.ended, tally.total), tally.line):
            yield


def shown(tally: Line, stats: Any) -> RenderableType:
    """Return what is shown live: the line of the run, and a row for each server."""
    if stats is None:
        return Text(tally.line())
    table = Table(box=None, pad_edge=False)
    for column in ("server", "limit", "in flight", "median", "requests", "refused", "state"):
        table.add_column(column, justify="left" if column in ("server", "state") else "right")
    for server in stats.servers:
        median = "" if server.latency_p50 is None else f"{1000 * server.latency_p50:.0f} ms"
        state = {"closed": "", "open": "paused after failures", "half-open": "retrying"}.get(server.state, server.state)
        counts = (server.limit, server.in_flight, median, server.requests, server.refused or "", state)
        table.add_row(plain(server.name), *map(plain, counts))
    return Group(Text(tally.line()), table)
