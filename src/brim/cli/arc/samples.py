"""`brim arc samples`: make training data of recorded episodes."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from brim.cli.output import check_output, force_option
from brim.cli.show import json_option, show_facts, show_json
from brim.core.errors import DataError
from brim.stream.arc.config import ArcSampleConfig, Grids, Overflow, Per

if TYPE_CHECKING:
    from brim.stream.arc.stream import ArcEpisodeStream

OURS = ("id", "input_ids", "loss_mask", "episode_id", "total_steps")
"""Names that every row of this command has."""


@click.command()
@click.argument("episodes", metavar="EPISODES")
@click.option(
    "-o", "--output", metavar="FILE", required=True, help="Write a line of JSON for every sample to this file."
)
@click.option(
    "--per",
    type=click.Choice(get_args(Per)),
    default="episode",
    show_default=True,
    help="One sample for each episode, or one for each step.",
)
@click.option("--demonstrations", type=int, help="Upper limit of the demonstrations that are shown.  [default: all]")
@click.option(
    "--grids",
    type=click.Choice(get_args(Grids)),
    default="all",
    show_default=True,
    help="The grid after each action: written whole, as changed cells where these are shorter, or left out.",
)
@click.option("--target", is_flag=True, help="Show the output of the pair to work on, which tells the answer.")
@click.option("--only-solved", is_flag=True, help="Leave out episodes that did not terminate solved.")
@click.option("--learn-invalid", is_flag=True, help="Train on invalid actions too.")
@click.option("--max-length", type=int, help="Upper limit of the tokens of a sample.  [default: none]")
@click.option(
    "--overflow",
    type=click.Choice(get_args(Overflow)),
    default="error",
    show_default=True,
    help="What happens to longer samples: an error, or they are left out and counted.",
)
@force_option
@json_option
def samples(episodes: str, output: str, force: bool, as_json: bool, **options: Any) -> None:
    """Make training data of recorded ARC episodes: grids and actions as tokens, actions to be learned.

    EPISODES is a file of brim arc rollout --record, or of write_episodes. The rows hold token ids of the tokenizer arc;
    docs/arc/samples.md lists its words. Samples that the options leave out are counted, by reason.

    \b
    Examples:
      brim arc samples episodes.json --only-solved -o train.jsonl
      brim arc samples episodes.json --per step --demonstrations 2 -o train.jsonl
      brim arc samples episodes.json --max-length 2048 --overflow skip -o t.jsonl
      brim train sft --model tiny --data train.jsonl --tokenizer arc

    Exit status: 0 written, 2 the options or the data are wrong.
    """
    config = ArcSampleConfig(**options)
    check_output(output, force=force, what="a file of this command", ours=_is_ours)
    from brim.stream.arc.samples import write_rows
    from brim.stream.arc.stream import ArcEpisodeStream

    stream = ArcEpisodeStream(episodes, config)
    try:
        write_rows(output, stream)
    except DataError:
        if stream.metrics.samples or not stream.metrics.filtered:
            raise
        raise DataError(f"no episode of {episodes} becomes a sample: {_left_out(stream.metrics.filtered)}") from None
    facts = _facts(stream, output)
    show_json(facts) if as_json else show_facts(_readable(facts))


def _facts(stream: "ArcEpisodeStream", output: str) -> dict[str, Any]:
    metrics = stream.metrics
    return {
        "episodes": metrics.num_episodes,
        "solved": metrics.episodes.get("success", 0),
        "samples": metrics.samples,
        "tokens": metrics.tokens,
        "mean_length": metrics.mean_length,
        "left_out": metrics.filtered,
        "output": output,
    }


def _readable(facts: dict[str, Any]) -> dict[str, Any]:
    return {
        **{name.replace("_", " "): value for name, value in facts.items()},
        "mean length": f"{facts['mean_length']:.1f}",
        "left out": _left_out(facts["left_out"]) or "none",
    }


def _left_out(filtered: dict[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in filtered.items())


def _is_ours(path: Path) -> bool:
    """Return whether every line of the file is one of this command: one line of the user's own must not be lost."""
    with open(path, "rb") as file:
        return all(_is_row(line) for line in file)


def _is_row(line: bytes) -> bool:
    try:
        row = json.loads(line)
    except ValueError:
        return False
    return isinstance(row, dict) and all(name in row for name in OURS)
