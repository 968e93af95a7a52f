"""Progress of `brim train query-mutator`, on stderr: a live table of the run and its servers, or lines."""

import math
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console
from rich.live import Live

from brim.cli.llm.progress import duration, shown
from brim.core.errors import BrimError

LINES = 20
"""Lines of a whole run where there is no terminal."""


class Running:
    """Figures of a run while it runs."""

    def __init__(self, updates: int, steps: int) -> None:
        self._updates = updates
        self._steps = steps
        """Steps of an update."""
        self._update = 0
        self._done = 0
        """Steps of the present update."""
        self._sum = 0.0
        self._valid = 0
        self._first: int | None = None
        self._began = time.monotonic()
        self._last: Any = None
        """The report on the last update."""

    def on_step(self, outcome: Any) -> None:
        self._done += 1
        self._valid += outcome.valid
        self._sum += outcome.reward if outcome.valid else 0.0

    def on_update(self, report: Any) -> None:
        if self._first is None:
            self._first = report.update - 1
        self._update = report.update
        self._updates = report.updates
        self._last = report
        self._done = self._valid = 0
        self._sum = 0.0

    def line(self) -> str:
        """Return one line: how far, how well, how fast, how long still."""
        seconds = max(time.monotonic() - self._began, 1e-3)
        taken = (self._update - (self._first or 0)) * self._steps + self._done
        parts = [f"update {self._update}/{self._updates}", f"{taken / seconds:.1f} steps/s"]
        reward = self._sum / self._valid if self._valid else None
        if reward is None and self._last is not None:
            reward = self._last.reward
        if reward is not None and math.isfinite(reward):
            parts.append(f"reward {reward:.3f}")
        if self._done:
            parts.append(f"step {self._done}/{self._steps}, {1 - self._valid / self._done:.1%} invalid")
        elif self._last is not None:
            parts.append(f"{self._last.invalid_share:.1%} invalid")
        if self._last is not None:
            parts += _of_update(self._last)
        left = self._updates * self._steps - self._update * self._steps - self._done
        if taken and left > 0:
            parts.append(f"ETA {duration(left * seconds / taken)}")
        return ", ".join(parts)


def _of_update(report: Any) -> list[str]:
    parts = [] if report.fill is None else [f"slots {report.fill:.0%} used"]
    if report.speedup is not None:
        saved = max(0.0, report.server_seconds + report.policy_seconds - report.rollout_seconds)
        parts.append(f"{report.speedup:.1f}x one call at a time ({duration(saved)} saved)")
    return parts


@contextmanager
def query_progress(config: Any, *, quiet: bool) -> Generator[Any, None, None]:
    """Show the progress of a run within the block, and yield the hooks that tell of it."""
    from brim.train.query.run import QueryHooks

    if quiet:
        yield QueryHooks()
        return
    console = Console(stderr=True)
    running = Running(config.updates, config.num_processes * config.ppo.num_steps)
    stats: list[Callable[[], Any]] = []
    every = max(1, config.updates // LINES)

    def figures() -> Any:
        try:
            return stats[0]() if stats else None
        except BrimError:  # the pool was closed, because the run is over
            return None

    def on_update(report: Any) -> None:
        running.on_update(report)
        if not console.is_terminal and (report.update % every == 0 or report.update == report.updates):
            click.echo(running.line(), err=True)

    hooks = QueryHooks(
        on_message=lambda text: console.print(text, highlight=False, markup=False, soft_wrap=True),
        on_begin=stats.append,
        on_step=running.on_step,
        on_update=on_update,
    )
    if not console.is_terminal:
        yield hooks
        return
    with Live(
        console=console,
        get_renderable=lambda: shown(running, figures()),
        refresh_per_second=4,
        transient=True,
    ):
        yield hooks
