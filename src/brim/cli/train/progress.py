"""Progress of the training commands, on stderr: steps, and for runs that play also episodes and rounds."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from brim.cli.show import human


@contextmanager
def training_progress(*, quiet: bool, every: int) -> Generator[Callable[[Any], None], None, None]:
    """Show a bar with loss, tokens/s, fill and the remaining time; where stderr is not a terminal, a line every `every`
    steps.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("epoch {task.fields[epoch]}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} {task.fields[state]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal, transient=True) as progress:
        task = progress.add_task("training", total=None, epoch=0, state="")

        def on_step(report: Any) -> None:
            state = (
                f"loss {report.loss:.4f} {human(report.tokens / max(report.seconds, 1e-9))} tokens/s fill "
                f"{report.fill.ratio:.1%}"
            )
            if report.eval_loss is not None:
                state += f" eval {report.eval_loss:.4f}"
            progress.update(task, completed=report.step, total=report.steps, epoch=report.epoch, state=state)
            last = report.step == report.steps
            if (
                not quiet
                and not console.is_terminal
                and (report.step % every == 0 or last or report.eval_loss is not None)
            ):
                click.echo(f"step {report.step}/{report.steps} epoch {report.epoch} {state}", err=True)

        yield on_step


@contextmanager
def playing_progress(*, quiet: bool, every: int) -> Generator[Any, None, None]:
    """Show a line for every round; on a terminal also the current episode or step, else a line every `every` steps."""
    from brim.train.online.run import OnlineHooks

    console = Console(stderr=True)
    if quiet:
        yield OnlineHooks()
        return
    episodes = [0]
    with console.status("playing") as status:

        def on_episode(episode: Any) -> None:
            episodes[0] += 1
            status.update(
                f"playing: {episodes[0]} episodes of this round, the last {episode.spec.episode_id}: {episode.reason}"
            )

        def on_step(report: Any) -> None:
            speed = human(report.tokens / max(report.seconds, 1e-9))
            state = (
                f"step {report.step} pass {report.epoch} loss {report.loss:.4f} {speed} tokens/s fill "
                f"{report.fill.ratio:.1%}"
            )
            status.update(state)
            if not console.is_terminal and report.step % every == 0:
                click.echo(state, err=True)

        def on_round(report: Any) -> None:
            episodes[0] = 0
            console.print(_line(report), highlight=False, soft_wrap=True)

        yield OnlineHooks(
            on_step=on_step,
            on_round=on_round,
            on_episode=on_episode,
            on_message=lambda text: click.echo(text, err=True),
        )


def _line(report: Any) -> str:
    rate = (
        "none played"
        if report.success_rate is None
        else f"solved {report.solved}/{report.played} ({report.success_rate:.0%})"
    )
    levels = ", ".join(f"{level} {hits}/{of}" for level, (hits, of) in report.solved_by_level.items())
    window = "too few for a window" if report.window is None else f"window of {report.window}"
    errors = f", errors: {report.errors}" if report.errors else ""
    return (
        f"round {report.round}: {rate}{f' [{levels}]' if len(report.solved_by_level) > 1 else ''}, hints "
        f"{report.guided_solved}/{report.guided}, {report.samples} actions kept, {report.buffer:,} in the replay "
        f"buffer, {window}{errors} ({report.seconds:.1f} s)"
    )
