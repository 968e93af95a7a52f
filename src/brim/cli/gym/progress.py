"""Progress of playing: a live table of the lanes, or a line for each tenth where there is no terminal."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from brim.cli.show import tenths_told

MOST_LANES = 16
"""Upper limit of the lanes that have a row of their own in the table; the others share one."""


@contextmanager
def playing(stream: Any, *, episodes: int, quiet: bool) -> Generator[None, None, None]:
    """Show the progress of a stream on stderr within the block."""
    console = Console(stderr=True)
    if quiet:
        yield
    elif console.is_terminal:
        with Live(
            console=console, get_renderable=lambda: _table(stream, episodes), refresh_per_second=8, transient=True
        ):
            yield
    else:
        with tenths_told(lambda: (stream.metrics.num_episodes, episodes), lambda: _line(stream, episodes)):
            yield


def _line(stream: Any, episodes: int) -> str:
    metrics = stream.metrics
    success = "" if metrics.success_rate is None else f", {metrics.success_rate:.1%} solved"
    return (
        f"episode {metrics.num_episodes}/{episodes}, {metrics.episodes_per_second:.1f}/s{success}, {metrics.samples} "
        "samples"
    )


def _table(stream: Any, episodes: int) -> Table:
    lanes = getattr(stream, "lanes", ())
    table = Table(
        box=None,
        pad_edge=False,
        title=_line(stream, episodes),
        title_justify="left",
        caption=_levels(stream),
        caption_justify="left",
    )
    for column in ("lane", "plays", "step", "done", "retries"):
        table.add_column(
            column, justify="left" if column == "plays" else "right", min_width=24 if column == "plays" else None
        )
    for lane in lanes[:MOST_LANES]:
        plays = lane.episode.episode_id if lane.episode else "-"
        table.add_row(
            str(lane.number), plays, str(lane.steps), str(lane.episodes), str(lane.retries) if lane.retries else ""
        )
    if len(lanes) > MOST_LANES:
        rest = lanes[MOST_LANES:]
        table.add_row(
            "",
            f"and {len(rest)} more",
            "",
            str(sum(lane.episodes for lane in rest)),
            str(sum(lane.retries for lane in rest) or ""),
        )
    return table


def _levels(stream: Any) -> str:
    rates = sorted(stream.metrics.success_by_difficulty.items())
    errors = getattr(stream, "errors", {})
    parts = [f"{level} {rate.hits}/{rate.of}" for level, rate in rates]
    return "   ".join([*parts, *(f"{kind} {count}" for kind, count in sorted(errors.items()))])
