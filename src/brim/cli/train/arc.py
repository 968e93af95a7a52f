"""`brim train arc`: an agent that solves generated ARC tasks, trained with PPO in JAX."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from brim.cli.options import flags, names_callback
from brim.cli.show import json_option, show_facts, show_json, show_table
from brim.cli.train.flags import GroupedCommand, bare_option, quiet_flag, resume_flag
from brim.core.options import check_counts

if TYPE_CHECKING:
    from brim.train.arc.config import ArcPpoConfig
    from brim.train.arc.report import Evaluation, UpdateReport
    from brim.train.arc.run import ArcHooks, ArcResult

DEFAULT_OUTPUT = "checkpoints/arc"
CURVES = "curves.png"
NOT_OPTIONS = ("output", "resume", "evaluate", "plot", "quiet", "as_json")
EVALUATED = ("evaluate", "held_out", "as_json")
"""Flags that have an effect beside --evaluate."""
COUNTS = (
    "size",
    "tasks",
    "held_out",
    "max_episode_steps",
    "envs",
    "steps",
    "updates",
    "epochs",
    "minibatches",
    "width",
    "save_every",
    "keep",
    "eval_every",
)
"""Flags that are at least 1: the options of the run check them again, but take long to import."""
LINES = 20
"""Lines of a whole run where there is no terminal."""

GROUPS = {
    "Main options": ("output", "kinds", "size", "updates", "seed", "resume", "evaluate"),
    "Tasks": ("tasks", "held_out", "max_episode_steps"),
    "PPO": (
        "envs", "steps", "epochs", "minibatches", "learning_rate", "discount", "trace", "clip", "entropy",
        "value_weight", "max_norm", "width",
    ),
    "Checkpoints and records": ("save_every", "keep", "eval_every", "plot"),
}  # fmt: skip

main_flags = flags(
    bare_option("-o", "--output", metavar="DIR", help=f"Checkpoints, curves, pages.  [default: {DEFAULT_OUTPUT}]"),
    bare_option(
        "--kinds",
        callback=names_callback,
        metavar="KIND,...",
        help="Kinds of tasks: some of recolour,fill,move,flip.  [default: all of them]",
    ),
    bare_option("--size", type=int, help="Rows and columns of all grids, from 5 to 30.  [default: 5]"),
    bare_option("--updates", type=int, help="Updates of the whole run.  [default: 80]"),
    bare_option("--seed", type=int, help="Seed of tasks, weights and actions.  [default: 0]"),
    resume_flag,
    click.option(
        "--evaluate",
        metavar="DIR",
        help="Train nothing: evaluate the last checkpoint of this run, or this checkpoint.",
    ),
)
task_flags = flags(
    bare_option("--tasks", type=int, help="Tasks for training.  [default: 4096]"),
    bare_option("--held-out", type=int, help="Tasks for evaluation, with other rules.  [default: 400]"),
    bare_option("--max-episode-steps", type=int, help="Steps of an episode at most.  [default: 6]"),
)
ppo_flags = flags(
    bare_option("--envs", type=int, help="Environments that play at the same time.  [default: 2048]"),
    bare_option("--steps", type=int, help="Steps of each environment in an update.  [default: 6]"),
    bare_option("--epochs", type=int, help="Passes over the steps of an update.  [default: 2]"),
    bare_option("--minibatches", type=int, help="Optimizer steps of a pass.  [default: 8]"),
    bare_option("--learning-rate", "--lr", type=float, help="First learning rate, decreasing to 0.  [default: 0.0015]"),
    bare_option("--discount", type=float, help="Discount factor of later rewards.  [default: 0.95]"),
    bare_option("--trace", type=float, help="Lambda of the advantage estimates.  [default: 0.9]"),
    bare_option("--clip", type=float, help="Clipping of the probability ratio.  [default: 0.2]"),
    bare_option("--entropy", type=float, help="Weight of the entropy bonus.  [default: 0.004]"),
    bare_option("--value-weight", type=float, help="Weight of the value loss.  [default: 0.5]"),
    bare_option("--max-norm", type=float, help="Upper limit of the gradient's norm.  [default: 0.5]"),
    bare_option("--width", type=int, help="Channels of the network.  [default: 32]"),
)
record_flags = flags(
    bare_option("--save-every", type=int, help="Updates between checkpoints.  [default: 25]"),
    bare_option("--keep", type=int, help="Number of checkpoints to keep.  [default: 2]"),
    bare_option("--eval-every", type=int, help="Updates between evaluations on held-out tasks.  [default: 10]"),
    click.option("--plot/--no-plot", default=True, show_default=True, help=f"Draw the curves to OUTPUT/{CURVES}."),
)


@click.command(cls=GroupedCommand, groups=GROUPS)
@main_flags
@task_flags
@ppo_flags
@record_flags
@quiet_flag
@json_option
@click.pass_context
def arc(ctx: click.Context, **options: Any) -> None:
    """Train an agent that solves small ARC tasks.

    The tasks are generated. Each follows one rule, such as "objects of colour 3 become colour 5", which its
    demonstrations show. PPO in JAX trains on many environments at once, and the agent is evaluated on rules that it
    was not trained on, by kind of task, beside random actions.

    \b
    Examples:
      brim train arc
      brim train arc --kinds recolour,flip --updates 60 -o run/
      brim train arc --resume run/
      brim train arc --evaluate run/ --held-out 2000

    Afterwards, open OUTPUT/report.html (curves, tasks by kind) and OUTPUT/episodes.html, which replays solved and
    failed episodes.

    SIGTERM and Ctrl-C end the run after the present update, with a checkpoint to resume from.

    Exit status: 0 trained or evaluated, 1 stopped by a signal with a checkpoint, 2 the options or files are wrong, or
    training failed.
    """
    given = {name for name in ctx.params if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT}
    if options["evaluate"] is not None:
        _evaluate(given, options)
        return
    config, output, resume = _config(given, options)
    result = _train(config, output, resume, options)
    show_json(_facts(result)) if options["as_json"] else _show(result)
    if not options["quiet"]:
        _say_how_it_ended(ctx, result)
    ctx.exit(1 if result.stopped else 0)


def _evaluate(given: set[str], options: dict[str, Any]) -> None:
    """Evaluate a checkpoint and print the table."""
    for name in sorted(given):
        if name not in EVALUATED:
            raise click.UsageError(f"--{name.replace('_', '-')} has no effect on --evaluate; leave it out")
    from brim.train.arc.agent import load_agent

    agent = load_agent(options["evaluate"])
    found = agent.evaluate(options["held_out"])
    if options["as_json"]:
        show_json({"update": agent.update, **_scores(found)})
        return
    _show_table(found)


def _config(given: set[str], options: dict[str, Any]) -> "tuple[ArcPpoConfig, str, Path | None]":
    """Return the options of a new or resumed run, its output, and the checkpoint to resume from."""
    values = {name: value for name, value in options.items() if name in given and name not in NOT_OPTIONS}
    check_counts(**{name: options[name] for name in COUNTS})
    from brim.cli.train.outputs import checkpoint_to_resume, new_output
    from brim.train.arc.config import ArcPpoConfig

    if options["resume"] is None:
        return ArcPpoConfig(**values), options["output"] or new_output(DEFAULT_OUTPUT), None
    from brim.train.arc.checkpoint import read_saved

    checkpoint = checkpoint_to_resume(options, DEFAULT_OUTPUT)
    return read_saved(checkpoint).config.resumed(**values), str(checkpoint.parent), checkpoint


def _train(config: "ArcPpoConfig", output: str, resume: Path | None, options: dict[str, Any]) -> "ArcResult":
    from brim.core.extras import need
    from brim.train.arc.run import train_arc

    if options["plot"]:
        need("matplotlib.figure", extra="plot", user="--plot (leave it out with --no-plot)")
    quiet = options["quiet"]
    if not quiet:
        click.echo(f"{'resuming' if resume else 'writing'} {resume or output}", err=True)
    with _progress(config.updates, quiet=quiet) as hooks:
        result = train_arc(config, output=output, resume=resume, hooks=hooks)
    if options["plot"] and result.updates:
        from brim.train.arc.plot import save_curves

        save_curves(result.updates, result.evaluation, Path(output) / CURVES)
    return result


@contextmanager
def _progress(updates: int, *, quiet: bool) -> "Generator[ArcHooks, None, None]":
    """Show a bar with the share of solved tasks and the remaining time; where stderr is not a terminal, some lines."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from brim.train.arc.run import ArcHooks

    if quiet:
        yield ArcHooks()
        return
    console = Console(stderr=True)
    columns = (BarColumn(), TextColumn("{task.completed}/{task.total} {task.fields[state]}"), TimeRemainingColumn())
    every = -(-updates // LINES)
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("training", total=updates, state="compiling")
        state = _State()

        def on_update(report: "UpdateReport") -> None:
            text = state.text(report)
            progress.update(task, completed=report.step, state=text)
            if not console.is_terminal and (report.step % every == 0 or report.step in (1, updates)):
                click.echo(f"update {report.step}/{updates} {text}", err=True)

        yield ArcHooks(on_message=_say, on_update=on_update)


class _State:
    """The figures of the last update, and of the last evaluation."""

    def __init__(self) -> None:
        self._held_out = ""

    def text(self, report: "UpdateReport") -> str:
        if report.held_out is not None:
            self._held_out = f", held out {report.held_out:.1%}"
        return f"solved {report.metrics['solved']:.1%}{self._held_out}"


def _say(text: str) -> None:
    click.echo(text, err=True)


def _say_how_it_ended(ctx: click.Context, result: "ArcResult") -> None:
    if result.stopped:
        _say(f"stopped with a checkpoint; continue with: {ctx.command_path} --resume {result.output}")
    elif not result.taken:
        _say(f"this run is finished: all {len(result.updates)} updates were made before")


def _scores(found: "Evaluation") -> dict[str, Any]:
    """Return shares by kind and policy as JSON-like values."""
    from dataclasses import asdict

    return {
        "solved": {
            kind: {policy: score.solved_share for policy, score in scores.items()} for kind, scores in found.rows()
        },
        "scores": asdict(found)["scores"],
    }


def _facts(result: "ArcResult") -> dict[str, Any]:
    """Return the figures of a run as JSON-like values."""
    last = result.updates[-1] if result.updates else None
    return {
        "updates": len(result.updates),
        "updates_now": result.taken,
        "env_steps": 0 if last is None else last.env_steps,
        "metrics": None if last is None else last.metrics,
        "evaluation": None if result.evaluation is None else _scores(result.evaluation),
        "page": str(result.page),
        "seconds": round(result.seconds, 1),
        "stopped": result.stopped,
    }


def _show(result: "ArcResult") -> None:
    if result.evaluation is not None:
        _show_table(result.evaluation)
    facts = _facts(result)
    solved = None if facts["metrics"] is None else facts["metrics"]["solved"]
    lines = {
        "updates": facts["updates"],
        "made now": facts["updates_now"],
        "steps of all environments": facts["env_steps"],
        "solved in training": None if solved is None else f"{solved:.1%} of the episodes of the last update",
        "page": facts["page"],
        "seconds": facts["seconds"],
    }
    show_facts({name: value for name, value in lines.items() if value is not None})


def _show_table(found: "Evaluation") -> None:
    rows = [
        (
            kind,
            scores["sampled"].tasks,
            *(f"{scores[policy].solved_share:.1%}" for policy in ("sampled", "greedy", "random")),
            f"{scores['sampled'].invalid_share:.1%}",
        )
        for kind, scores in found.rows()
    ]
    columns = ("kind", "tasks", "agent, sampled", "agent, greedy", "random", "invalid actions")
    show_table(columns, rows, title="solved held-out tasks")
