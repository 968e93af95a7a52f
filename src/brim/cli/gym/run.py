"""`brim gym run`: play on a puzzle server, and keep the samples."""

from typing import Any

import click
from click.core import ParameterSource

from brim.cli.output import check_output, force_option, marked
from brim.cli.show import json_option, show_facts, show_json
from brim.envs.puzzle.config import GymConfig
from brim.envs.puzzle.episode import GymEpisode
from brim.envs.puzzle.wire.names import TRANSPORTS

POLICIES = {
    "hint": "follows the hints of the server",
    "random": "a uniformly random legal action",
    "scripted": "the actions of --script FILE: JSONL with game, difficulty, seed, actions",
}
_MOCK_ONLY = ("steps_per_episode", "success_rate")
_REAL_ONLY = (
    "host",
    "port",
    "transport",
    "games",
    "lanes",
    "policy",
    "script",
    "max_steps",
    "timeout",
    "episode_timeout",
    "retries",
    "keep",
)
DEFAULT = GymConfig()


def _names(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    return None if value is None else tuple(name.strip() for name in value.split(","))


@click.command()
@click.option("-t", "--tokenizer", required=True, help="byte, gpt2, a tokenizer.json, a directory, or a hub name.")
@click.option("--host", default=DEFAULT.host, show_default=True, help="Host of the server.")
@click.option(
    "--port", type=click.IntRange(1, 65535), default=DEFAULT.port, show_default=True, help="Port of the server."
)
@click.option(
    "--transport",
    type=click.Choice(TRANSPORTS),
    default="auto",
    show_default=True,
    help="Protocol of the server; auto detects it.",
)
@click.option(
    "--games", callback=_names, metavar="NAME,...", help="Games to play.  [default: all that are quick to generate]"
)
@click.option(
    "--difficulty-min",
    type=float,
    default=0.0,
    show_default=True,
    help="Lowest difficulty to play: easy is 0.3, medium 0.5, hard 0.7.",
)
@click.option("--difficulty-max", type=float, default=1.0, show_default=True, help="Highest difficulty to play.")
@click.option(
    "-n", "--num-episodes", type=click.IntRange(min=1), default=10, show_default=True, help="Number of episodes."
)
@click.option(
    "--lanes", type=int, default=DEFAULT.lanes, show_default=True, help="Number of episodes that are played at once."
)
@click.option(
    "--policy", type=click.Choice(list(POLICIES)), default="hint", show_default=True, help="Policy that plays."
)
@click.option("--script", metavar="FILE", help="Actions of the scripted policy.")
@click.option(
    "--max-steps",
    type=int,
    default=DEFAULT.max_steps,
    show_default=True,
    help="Upper limit of the actions in an episode.",
)
@click.option("--max-samples", type=click.IntRange(min=1), help="Stop after this many samples.")
@click.option(
    "--timeout",
    type=float,
    default=DEFAULT.read_timeout,
    show_default=True,
    help="Seconds to wait for a reply; at most 10 for a connection.",
)
@click.option(
    "--episode-timeout",
    type=float,
    default=DEFAULT.episode_timeout,
    show_default=True,
    help="Upper limit of the seconds of an episode.",
)
@click.option(
    "--retries",
    type=int,
    default=DEFAULT.max_retries,
    show_default=True,
    help="Retries of an episode whose connection failed.",
)
@click.option(
    "--keep",
    type=click.Choice(["all", "success"]),
    default="all",
    show_default=True,
    help="Episodes whose samples are kept.",
)
@click.option(
    "--buffer-size",
    type=click.IntRange(min=1),
    default=100_000,
    show_default=True,
    help="Capacity of the buffer; the oldest samples are evicted.",
)
@click.option(
    "-o", "--output", metavar="FILE", help="Replay buffer to write: JSON if the name ends in .json, else binary."
)
@force_option
@click.option("--seed", type=int, default=42, show_default=True, help="Seed of the puzzles.")
@click.option("--mock", is_flag=True, help="Make up episodes instead of playing; needs no server.")
@click.option("--steps-per-episode", type=int, default=5, show_default=True, help="Actions in a made-up episode.")
@click.option(
    "--success-rate", type=float, default=0.7, show_default=True, help="Share of made-up episodes that are solved."
)
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@json_option
@click.pass_context
def run(ctx: click.Context, **options: Any) -> None:
    """Play puzzles, and make a training sample of every move.

    Plays many episodes at once on a real server, with progress. Every episode ends as success, failure, timeout or
    error, and is counted. The samples can be written as a replay buffer.

    \b
    Examples:
      brim gym run -t gpt2 --mock --num-episodes 10
      brim gym run -t gpt2 --host localhost --port 8023
      brim gym run -t byte --games lights,sudoku -n 1000 --lanes 32 -o buffer.brim
      brim gym run -t byte --policy scripted --script moves.jsonl --keep success

    Exit status: 0 played, 1 episodes ended in an error, 2 the options are wrong or the server is unreachable,
    130 interrupted.
    """
    _refuse_useless(ctx, options)
    if options["output"] is not None:
        if not options["output"]:
            raise click.UsageError("-o needs the name of a file")
        ours = marked(b'"format":"brim.buffer/', b"brim.replay/")
        check_output(options["output"], force=options["force"], what="a replay buffer", ours=ours)
    stream = _mock(options) if options["mock"] else _real(options)
    from brim.cli.gym.progress import playing
    from brim.stream.replay.buffer import ReplayBuffer

    buffer = ReplayBuffer(max_size=options["buffer_size"], seed=options["seed"])
    try:
        with stream, playing(stream, episodes=options["num_episodes"], quiet=options["quiet"]):
            for count, sample in enumerate(stream, 1):
                buffer.add(sample)
                if count == options["max_samples"]:
                    break
    except BaseException:  # also Ctrl-C: write what was played so far
        if options["output"] is not None and buffer.size:
            buffer.save(options["output"])
            click.echo(f"wrote the {buffer.size} samples so far to {options['output']}", err=True)
        raise
    if options["output"] is not None:
        buffer.save(options["output"])
    facts = _facts(stream, buffer, options)
    show_json(facts) if options["as_json"] else show_facts(_readable(facts))
    ctx.exit(1 if facts["errors"] else 0)


def _refuse_useless(ctx: click.Context, options: dict[str, Any]) -> None:
    given = {name for name in options if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT}
    useless = sorted(given & set(_REAL_ONLY if options["mock"] else _MOCK_ONLY))
    if useless:
        raise click.UsageError(
            f"--{useless[0].replace('_', '-')} has no effect {'with' if options['mock'] else 'without'} --mock"
        )
    if (options["script"] is not None) != (options["policy"] == "scripted"):
        raise click.UsageError("--policy scripted and --script FILE go together")


def _mock(options: dict[str, Any]) -> Any:
    from brim.stream.mock_gym import MockGymStream

    return MockGymStream(
        options["tokenizer"],
        num_episodes=options["num_episodes"],
        steps_per_episode=options["steps_per_episode"],
        difficulty_range=(options["difficulty_min"], options["difficulty_max"]),
        success_rate=options["success_rate"],
        seed=options["seed"],
    )


def _real(options: dict[str, Any]) -> Any:
    config = GymConfig(
        host=options["host"],
        port=options["port"],
        transport=options["transport"],
        games=options["games"],
        difficulty_range=(options["difficulty_min"], options["difficulty_max"]),
        lanes=options["lanes"],
        max_steps=options["max_steps"],
        connect_timeout=min(options["timeout"], DEFAULT.connect_timeout),
        read_timeout=options["timeout"],
        episode_timeout=options["episode_timeout"],
        max_retries=options["retries"],
        seed=options["seed"],
    )
    from brim.data.tokenizer.base import load_tokenizer
    from brim.envs.puzzle.policies import HintPolicy, RandomPolicy, ScriptedPolicy
    from brim.stream.gym import GymEpisodeStream

    tokenizer = load_tokenizer(options["tokenizer"])
    if options["policy"] == "scripted":
        policy = ScriptedPolicy.load(options["script"])
    else:
        policy = RandomPolicy(options["seed"]) if options["policy"] == "random" else HintPolicy()
    keep = _succeeded if options["keep"] == "success" else None
    return GymEpisodeStream(config, tokenizer, policy, episodes=options["num_episodes"], keep=keep)


def _succeeded(episode: GymEpisode) -> bool:
    return episode.success


def _facts(stream: Any, buffer: Any, options: dict[str, Any]) -> dict[str, Any]:
    metrics = stream.metrics
    return {
        "episodes": metrics.num_episodes,
        "by_status": {str(status): count for status, count in sorted(metrics.episodes.items())},
        "success_rate": metrics.success_rate,
        "success_by_difficulty": {
            level: {"episodes": rate.of, "successes": rate.hits}
            for level, rate in sorted(metrics.success_by_difficulty.items())
        },
        "errors": dict(sorted(getattr(stream, "errors", {}).items())),
        "samples": metrics.samples,
        "tokens": metrics.tokens,
        "mean_length": metrics.mean_length,
        "mean_reward": metrics.mean_reward,
        "filtered": dict(sorted(metrics.filtered.items())),
        "episodes_per_second": metrics.episodes_per_second,
        "samples_per_second": metrics.samples_per_second,
        "buffer": {"size": buffer.size, "evicted": buffer.total_evicted},
        "output": options["output"],
    }


def _readable(facts: dict[str, Any]) -> dict[str, Any]:
    levels = {
        level: f"{rate['successes']}/{rate['episodes']}" for level, rate in facts["success_by_difficulty"].items()
    }
    lines = {
        "episodes": f"{facts['episodes']} ({listed(facts['by_status'])})",
        "success": "" if facts["success_rate"] is None else f"{facts['success_rate']:.1%}",
        "by difficulty": listed(levels),
        "errors": listed(facts["errors"]),
        "samples": f"{facts['samples']}, {facts['tokens']} tokens",
        "mean length": _rounded(facts["mean_length"]),
        "mean reward": _rounded(facts["mean_reward"]),
        "left out": listed(facts["filtered"]),
        "speed": f"{facts['episodes_per_second']:.1f} episodes/s, {facts['samples_per_second']:.1f} samples/s",
        "buffer": f"{facts['buffer']['size']} samples, {facts['buffer']['evicted']} evicted",
        "written": facts["output"],
    }
    return {name: value for name, value in lines.items() if value}


def listed(counts: dict[str, Any]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _rounded(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
