"""Progress of `brim train grpo`, on stderr: a live table of the last rollouts, or lines where there is no terminal."""

import math
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from brim.cli.llm.progress import duration
from brim.cli.show import human
from brim.cli.terminal import plain

LINES = 20
"""Lines of a whole run where there is no terminal."""
ROWS = 12
"""Rollouts in the table."""
GAP = 2
"""Spaces between two columns."""


@dataclass(frozen=True)
class Column:
    """A column of the table."""

    name: str
    importance: int
    """Columns with the smallest number are dropped first where there is no room; the largest ones never are."""
    cell: Callable[[Any], str]
    """Makes a cell from a `RolloutReport`."""


ALWAYS = 99
IN_LINES = 5
"""Importance from which on a column is told in the lines where there is no terminal."""


class Running:
    """Figures of a run while it runs. One thread tells them, another one may show them."""

    def __init__(self, *, has_reference: bool, is_evaluated: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._columns = [
            column
            for column in COLUMNS
            if (has_reference or column.name != "KL") and (is_evaluated or column.name != "held-out")
        ]
        self._clock = clock
        self._reports: tuple[Any, ...] = ()
        self._reported = clock()
        """When the last rollout was reported."""
        self._step: Any = None
        """The report on the last step since then; None before the first one."""
        self._evaluating = 0
        """Tasks of the evaluation that is under way, or 0."""
        self._attempts = (0, 0)
        """Attempts that have ended, and all of them, of the rollout or evaluation that is under way."""
        self._held_out = ""
        """The reward of the last evaluation after a rollout, in words."""
        self._told = -1
        """Part of the run, in `LINES` parts, that a line was told about."""

    def on_attempt(self, done: int, total: int) -> None:
        before, all_before = self._attempts
        if self._evaluating and all_before and before >= all_before:
            self._evaluating = 0  # the evaluation was over: these are attempts of the next rollout
        self._step = None
        self._attempts = (done, total)

    def on_evaluation(self, tasks: int) -> None:
        self._evaluating = tasks
        self._attempts = (0, 0)

    def on_step(self, report: Any) -> None:
        self._evaluating = 0
        self._step = report

    def on_rollout(self, report: Any) -> None:
        self._evaluating = 0
        self._step = None
        self._attempts = (0, 0)
        self._reports = (*self._reports, report)[-ROWS:]
        self._reported = self._clock()
        if cell := _held_out(report):
            self._held_out = f", held-out {cell} at step {report.step}"

    def is_line_due(self) -> bool:
        """Say whether the last rollout is told in a line: about `LINES` of a whole run are, the first and last ones
        among them."""
        last = self._reports[-1]
        part = LINES * last.step // max(last.steps, 1)
        is_due = part > self._told or last.step >= last.steps
        self._told = max(part, self._told)
        return is_due

    def line(self) -> str:
        """Return the last rollout in one line: how far, how well, how fast, how long still."""
        last = self._reports[-1]
        parts = [f"rollout {last.rollout}", f"step {last.step}/{last.steps}"]
        parts += [
            f"{column.name} {cell}"
            for column in self._columns
            if column.name not in ("rollout", "step") and column.importance >= IN_LINES and (cell := column.cell(last))
        ]
        left = self._left()
        return ", ".join([*parts, f"ETA {duration(left)}"] if left else parts)

    def state(self) -> str:
        """Return what happens now, and how long the run still takes."""
        done, total = self._attempts
        counted = f" {done}/{total}" if total else ""
        if self._evaluating:
            now = f"evaluating{counted or f' {self._evaluating} tasks'}"
        elif self._step is not None:
            now = f"training: step {self._step.step}/{self._step.steps}"
        elif total:
            now = f"rolling out{counted}"
        else:
            now = "rolling out" if self._reports else "starting"
        left = self._left()
        return f"{now}{f', ETA {duration(left)}' if left else ''}{self._held_out}"

    def _left(self) -> float:
        """Return the seconds that the run still takes, judged by the rollouts in the table; 0 if that is not known."""
        if not self._reports:
            return 0.0
        first, last = self._reports[0], self._reports[-1]
        seconds, steps = sum(one.seconds for one in self._reports[1:]), last.step - first.step
        if not steps:  # there is one rollout, or nothing to learn in the others
            seconds, steps = last.seconds, last.step - last.version
        if steps <= 0:
            return 0.0
        return max(0.0, (last.steps - last.step) * seconds / steps - (self._clock() - self._reported))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = max(1, min(ROWS, console.size.height - 3))
        if reports := self._reports[-rows:]:
            yield table_of(self._columns, reports, options.max_width)
        yield Text(self.state(), overflow="ellipsis", no_wrap=True)


def table_of(columns: Sequence[Column], reports: Sequence[Any], width: int) -> Table:
    """Return a table of rollouts that is at most `width` wide, without the columns for which there is no room."""
    cells = {column.name: [column.cell(one) for one in reports] for column in columns}
    kept = [column for column in columns if any(cells[column.name])]

    def size(column: Column) -> int:
        return max(len(column.name), *map(len, cells[column.name]))

    while sum(map(size, kept)) + GAP * (len(kept) - 1) > width:
        least = min(kept, key=lambda column: column.importance)
        if least.importance == ALWAYS:
            break
        kept.remove(least)
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), collapse_padding=True)
    for column in kept:
        table.add_column(column.name, justify="right", no_wrap=True)
    for at in range(len(reports)):
        table.add_row(*(plain(cells[column.name][at]) for column in kept))
    return table


def _number(value: float | None, digits: int = 3) -> str:
    """Format a number of training in few characters: 0.412, 2e-06, 12.3."""
    if value is None or not math.isfinite(value):
        return "" if value is None else str(value)
    if value and abs(value) < 10**-digits:
        return f"{value:.0e}"
    return f"{value:.{digits}f}" if abs(value) < 10 else f"{value:.1f}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _part(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else ""


def _rate(tokens: int, seconds: float) -> str:
    return human(tokens / seconds) if tokens and seconds else ""


def _held_out(report: Any) -> str:
    return "" if report.evaluation is None else _number(report.evaluation.reward)


def _times(report: Any) -> str:
    """Return the shares of rollout, rewards, training and the rest of the time, in percent."""
    parts = [report.rollout_seconds, report.reward_seconds, report.train_seconds]
    rest = max(0.0, report.seconds - sum(parts))
    whole = sum(parts) + rest
    return "/".join(f"{100 * part / whole:.0f}" for part in (*parts, rest)) if whole else ""


COLUMNS = (
    Column("rollout", ALWAYS, lambda one: str(one.rollout)),
    Column("step", ALWAYS, lambda one: f"{one.step}/{one.steps}"),
    Column("reward", ALWAYS, lambda one: _number(one.reward)),
    Column("pass", 12, lambda one: _share(one.pass_rate)),
    Column("held-out", 13, _held_out),
    Column("length", 11, lambda one: f"{one.length:.0f}"),
    Column("entropy", 9, lambda one: _number(one.entropy)),
    Column("KL", 8, lambda one: _number(one.kl)),
    Column("dead", 10, lambda one: _part(one.dead, one.groups)),
    Column("cut off", 7, lambda one: _part(one.truncated, one.attempts)),
    Column("fill", 4, lambda one: _share(one.fill)),
    Column("rollout tok/s", 6, lambda one: _rate(one.rollout_tokens, one.rollout_seconds)),
    Column("train tok/s", 5, lambda one: _rate(one.train_tokens, one.train_seconds)),
    Column("roll/reward/train/rest %", 3, _times),
)


@contextmanager
def grpo_progress(config: Any, *, quiet: bool) -> Generator[Any, None, None]:
    """Show the progress of a run within the block, and yield the hooks that tell of it."""
    from brim.train.grpo.hooks import GrpoHooks

    if quiet:
        yield GrpoHooks()
        return
    console = Console(stderr=True)
    running = Running(has_reference=config.kl_coef > 0, is_evaluated=config.eval_prompts > 0)

    def on_rollout(report: Any) -> None:
        running.on_rollout(report)
        if not console.is_terminal and running.is_line_due():
            click.echo(running.line(), err=True)

    hooks = GrpoHooks(
        on_message=lambda text: console.print(text, highlight=False, markup=False, soft_wrap=True),
        on_attempt=running.on_attempt,
        on_evaluation=running.on_evaluation,
        on_step=running.on_step,
        on_rollout=on_rollout,
    )
    if not console.is_terminal:
        yield hooks
        return
    with Live(running, console=console, refresh_per_second=4, transient=True):
        yield hooks
