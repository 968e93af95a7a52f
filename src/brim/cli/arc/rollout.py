"""`brim arc rollout`: play random actions, and report what happened."""

import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, get_args

import click

from brim.cli.arc.data import chosen_tasks, counted, data_flags, data_text, described
from brim.cli.arc.engines import ENGINES, best_engine, use_engine
from brim.cli.arc.environments import MOST_ENVS, auto_reset_option, make_config, seed_option
from brim.cli.output import check_output, force_option
from brim.cli.show import counting_progress, human, json_option, show_facts, show_json, show_table
from brim.core.errors import OptionError, did_you_mean
from brim.envs.arc.config import EnvironmentConfig, EpisodeMode, SelectionFormat
from brim.envs.arc.operations import ArcOperation

if TYPE_CHECKING:
    from brim.cli.arc.playing import Episode, Recording, Summary
    from brim.envs.arc.tasks.task import JaxArcTask

NUMBERS = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")
GROUPS = {
    "FILL": range(ArcOperation.FILL_0, ArcOperation.FILL_9 + 1),
    "FLOOD_FILL": range(ArcOperation.FLOOD_FILL_0, ArcOperation.FLOOD_FILL_9 + 1),
}
"""Operations that share a line for people."""
RECORDED = 200
MOST_RECORDED = 100_000


def _operations(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """Read operations such as 0-9,resize,34."""
    return None if value is None else read_operations(value)


def read_operations(text: str) -> tuple[int, ...]:
    """Return the numbers of operations that are given by number, range of numbers or name, in any case.

    Raises:
        OptionError: One of them does not exist.

    Example:
        >>> read_operations("0-2,resize,Submit,34")
        (0, 1, 2, 33, 34)
    """
    numbers: set[int] = set()
    names = {one.name: int(one) for one in ArcOperation}
    for part in map(str.strip, text.split(",")):
        name = part.upper().replace("-", "_")
        if name in names:
            numbers.add(names[name])
        elif found := NUMBERS.fullmatch(part):
            first, last = int(found[1]), int(found[2] or found[1])
            if first > last or last >= len(ArcOperation):
                raise OptionError(f"operations are numbered from 0 to {len(ArcOperation) - 1}, got {part}")
            numbers.update(range(first, last + 1))
        else:
            raise OptionError(
                f"unknown operation {part!r}: give numbers, ranges such as 0-9, or names such as RESIZE."
                f"{did_you_mean(name, names)}"
            )
    return tuple(sorted(numbers))


@click.command()
@data_flags
@click.option(
    "--envs", type=click.IntRange(1, MOST_ENVS), default=64, show_default=True, help="Number of environments."
)
@click.option("--steps", type=click.IntRange(min=1), default=100, show_default=True, help="Steps of each environment.")
@click.option(
    "--max-episode-steps",
    type=click.IntRange(min=1),
    default=EnvironmentConfig().max_episode_steps,
    show_default=True,
    help="Steps after which an episode is truncated.",
)
@click.option(
    "--mode",
    type=click.Choice(get_args(EpisodeMode)),
    default="train",
    show_default=True,
    help="Begin episodes with demonstration pairs or with test pairs.",
)
@auto_reset_option
@click.option(
    "--format",
    "selection_format",
    type=click.Choice(get_args(SelectionFormat)),
    default="point",
    show_default=True,
    help="How actions select cells: one cell, a rectangle, or any cells.",
)
@click.option(
    "--operations",
    callback=_operations,
    metavar="OP,...",
    help="Operations to choose from: numbers, ranges or names, such as 0-9,resize,submit.  [default: all]",
)
@click.option(
    "--engine",
    type=click.Choice(["auto", *ENGINES]),
    default="auto",
    show_default=True,
    help="What computes the steps; the results are the same. auto is numpy where the kernel is compiled, else jax.",
)
@seed_option
@click.option("-o", "--output", metavar="FILE", help="Write a line of JSON for every finished episode to this file.")
@click.option("--record", metavar="FILE", help="Write finished episodes with all their actions, for brim arc render.")
@click.option(
    "--record-limit",
    type=click.IntRange(1, MOST_RECORDED),
    help=f"Upper limit of the episodes that --record keeps.  [default: {RECORDED}]",
)
@force_option
@json_option
def rollout(output: str | None, record: str | None, force: bool, as_json: bool, **options: Any) -> None:
    """Play random actions in many environments at once, and report rewards, similarity and speed.

    Every action is an operation and a selection that are drawn uniformly. The arrays have the size of the largest grid
    of the data, so many selections are outside of the working grid: such an action is invalid and changes nothing. The
    result depends on the data, the options and the seed. It is the same for every engine, and the first environments
    of a larger batch play what they play in a smaller one.

    \b
    Examples:
      brim arc rollout --data mock
      brim arc rollout --data arcagi --envs 1024 --steps 200
      brim arc rollout --data my-tasks/ --format bbox --mode test --json
      brim arc rollout --operations 0-9,resize,submit -o episodes.jsonl
      brim arc rollout --data mock --record episodes.json

    Exit status: 0 played, 2 the options or the data are wrong.
    """
    if options["record_limit"] is not None and record is None:
        raise click.UsageError("--record-limit needs --record")
    from brim.cli.arc.playing import Recording, play
    from brim.core.atomic import atomic_file
    from brim.envs.arc.episodes import files

    if output is not None:
        check_output(output, force=force, what="a file of this command", ours=is_episodes)
    if record is not None:
        check_output(record, force=force, what="a file of recorded episodes", ours=files.is_episodes)
    tasks = chosen_tasks(**{name: options[name] for name in ("data", "split", "ids", "max_size")})
    engine = best_engine() if options["engine"] == "auto" else options["engine"]
    arrays = use_engine(engine, user="brim arc rollout")
    config = make_config(tasks, engine, options)
    steps = options["steps"]
    recording = None
    if record is not None:
        recording = Recording(tasks, config, limit=options["record_limit"] or RECORDED)
    with (
        nullcontext() if output is None else atomic_file(output) as file,
        counting_progress("playing") as progress,
    ):
        summary = play(
            tasks,
            config,
            arrays,
            envs=options["envs"],
            steps=steps,
            seed=options["seed"],
            on_step=lambda step: progress(step, steps),
            on_episode=lambda episode: _write(file, episode),
            recording=recording,
        )
    facts = _facts(tasks, engine, options, summary, output)
    if record is not None and recording is not None:
        facts |= {"record": _record(record, recording), "recorded": len(recording.finished)}
    if as_json:
        show_json(facts)
    else:
        show_facts(_readable(facts))
        click.echo()
        show_table(("operation", "played", "invalid"), _rows(facts["operations"]))


def _record(path: str, recording: "Recording") -> str | None:
    """Write the recorded episodes, and return the path; None if no episode ended."""
    from brim.envs.arc.episodes import files

    if not recording.finished:
        return None
    files.write_episodes(path, recording.finished)
    return path


def _write(file: IO[bytes] | None, episode: "Episode") -> None:
    import orjson

    if file is not None:
        file.write(orjson.dumps(episode._asdict(), option=orjson.OPT_APPEND_NEWLINE))


def is_episodes(path: Path) -> bool:
    """Return whether every line of the file is one of this command: one line of the user's own must not be lost."""
    with open(path, "rb") as file:
        return all(_is_episode(line) for line in file)


def _is_episode(line: bytes) -> bool:
    from brim.cli.arc.playing import Episode

    try:
        return list(json.loads(line)) == list(Episode._fields)
    except (ValueError, TypeError):
        return False


def _facts(
    tasks: "list[JaxArcTask]", engine: str, options: dict[str, Any], summary: "Summary", output: str | None
) -> dict[str, Any]:
    finished = summary.episodes
    asked = ("selection_format", "mode", "auto_reset", "max_episode_steps", "envs", "steps", "seed")
    return {
        **described(options["data"], options["split"], tasks),
        **{name.removeprefix("selection_"): options[name] for name in asked},
        "engine": engine,
        "played": summary.played,
        "episodes": finished,
        "truncated": summary.truncated,
        "solved": summary.solved,
        "mean_reward": summary.reward / finished if finished else None,
        "mean_length": summary.length / finished if finished else None,
        "mean_similarity": summary.similarity / finished if finished else None,
        "best_similarity": summary.best_similarity,
        "invalid_share": int(summary.invalid.sum()) / summary.played,
        "operations": {
            one.name: {"played": int(summary.operations[one]), "invalid": int(summary.invalid[one])}
            for one in ArcOperation
        },
        "steps_per_second": summary.played / max(summary.seconds, 1e-9),
        "first_step_seconds": summary.first_seconds,
        "output": output,
    }


def _readable(facts: dict[str, Any]) -> dict[str, Any]:
    played = f"{counted(facts['played'], 'step')} in {counted(facts['envs'], 'environment')}"
    submitted = facts["episodes"] - facts["truncated"]
    lines = {
        "data": f"{data_text(facts)}: {counted(facts['tasks'], 'task')}",
        "played": f"{played}, by engine {facts['engine']}",
        "episodes": f"{facts['episodes']:,} ({submitted:,} submitted, {facts['truncated']:,} at the step limit)",
        "solved": f"{facts['solved']:,}",
    }
    if facts["episodes"]:
        lines |= {
            "mean reward": f"{facts['mean_reward']:.3f} per episode",
            "mean length": f"{facts['mean_length']:.1f} steps",
            "mean similarity": f"{facts['mean_similarity']:.3f} at the end of an episode",
        }
    compiled = "" if facts["engine"] == "numpy" else f", after {facts['first_step_seconds']:.1f} s of compilation"
    lines |= {
        "best similarity": f"{facts['best_similarity']:.3f} after any step",
        "invalid": f"{facts['invalid_share']:.1%} of the actions",
        "speed": f"{human(facts['steps_per_second'])} steps/s{compiled}",
    }
    if facts["output"] is not None:
        lines["written"] = facts["output"]
    if "recorded" in facts:
        lines["recorded"] = _recorded_text(facts)
    return lines


def _recorded_text(facts: dict[str, Any]) -> str:
    kept, finished = facts["recorded"], facts["episodes"]
    if not kept:
        return "nothing: no episode ended"
    if kept == finished:
        return f"{facts['record']}, all {counted(kept, 'episode')}"
    return f"{facts['record']}, {kept:,} of {counted(finished, 'episode')}; --record-limit decides how many"


def _rows(operations: dict[str, dict[str, int]]) -> list[tuple[str, int, int]]:
    """Return a line for each operation that was played, and one for all colours of filling."""
    names = list(operations)
    grouped = {names[number]: group for group, numbers in GROUPS.items() for number in numbers}
    rows: dict[str, list[int]] = {}
    for name, counts in operations.items():
        row = rows.setdefault(grouped.get(name, name), [0, 0])
        row[0] += counts["played"]
        row[1] += counts["invalid"]
    return [(name, played, invalid) for name, (played, invalid) in rows.items() if played]
