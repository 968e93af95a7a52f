"""`brim train online`, also `brim train sft --online`: fine-tuning that plays puzzles, and the flags of playing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from brim.cli.options import flags, names_callback, planning_options, row_flags
from brim.cli.show import json_option
from brim.cli.train.flags import (
    BATCHING,
    CHECKPOINTS,
    DATA,
    LORA,
    OPTIMIZER,
    GroupedCommand,
    checkpoint_flags,
    compute_flags,
    lora_flags,
    model_flags,
    optimizer_flags,
    quiet_flag,
    resume_flag,
    tokenizer_flag,
)

GYM = {
    "gym_host": "host",
    "gym_port": "port",
    "gym_transport": "transport",
    "games": "games",
    "lanes": "lanes",
    "max_episode_steps": "max_steps",
}
"""Names of flags, and of the options of `GymConfig` that they set."""

PLAYING = (
    "rounds",
    "episodes_per_round",
    "guided",
    "learn_from",
    "temperature",
    "buffer_size",
    "window_microbatches",
    "passes",
    "min_samples",
    "overlap_fraction",
    "max_staleness",
    "priority",
)

EPISODE_STEPS = 64
"""Default limit of the actions in an episode: enough for hints to solve easy puzzles."""

ONLINE = {"online", "difficulty_min", "difficulty_max", *GYM, *PLAYING}
"""Names of the flags that have an effect only in a run that plays."""

SFT_ONLY: dict[str, Any] = {"batchplan": None, "epochs": None, "eval_data": None, "eval_split": 0.0, "eval_every": None}
"""Options of plain fine-tuning that a run that plays does not have, and their defaults."""

SAVE_EVERY = 100
SCHEDULE = "constant"


def online_options(*, hidden: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the flags of playing to a command. They have no defaults here: the options of the run have them."""

    def option(*names: str, **about: Any) -> Any:
        return click.option(*names, hidden=hidden, **about)

    return flags(
        option("--gym-host", metavar="HOST", help="Host of the puzzle server.  [default: localhost]"),
        option("--gym-port", type=int, help="Port of the puzzle server.  [default: 8023]"),
        option("--gym-transport", type=click.Choice(["auto", "tcp", "telnet", "websocket"]), help="[default: auto]"),
        option(
            "--games", callback=names_callback, metavar="NAME,...", help="Games to play.  [default: all that are quick]"
        ),
        option("--difficulty-min", type=float, help="Easy is 0.3, medium 0.5, hard 0.7.  [default: 0]"),
        option("--difficulty-max", type=float, help="Upper limit; play rises to it with success.  [default: 1]"),
        option("--lanes", type=int, help="Episodes that are played at once.  [default: 8]"),
        option(
            "--max-episode-steps",
            type=int,
            help=f"Upper limit of the actions in an episode.  [default: {EPISODE_STEPS}]",
        ),
        option("--rounds", type=int, help="Rounds of playing and training.  [default: 10]"),
        option("--episodes-per-round", type=int, help="Episodes in a round.  [default: 64]"),
        option("--guided", type=float, help="Share of episodes that follow the server's hints.  [default: 0.5]"),
        option("--learn-from", type=click.Choice(["success", "all"]), help="Episodes to train on.  [default: success]"),
        option("--temperature", type=float, help="Sampling temperature of the model's actions.  [default: 1]"),
        option("--buffer-size", type=int, help="Capacity of the replay buffer, in actions.  [default: 100000]"),
        option("--window-microbatches", type=int, help="Upper limit of the microbatches in a window.  [default: 32]"),
        option("--passes", type=int, help="Epochs over a window before the next round.  [default: 4]"),
        option("--min-samples", type=int, help="Fewest actions that a window is drawn from.  [default: 64]"),
        option(
            "--overlap-fraction",
            type=float,
            help="Largest share of a window that was in the one before.  [default: 0.75]",
        ),
        option(
            "--max-staleness",
            type=int,
            help="Largest age of the model's actions, in optimizer steps; 0 is no limit.  [default: 1000]",
        ),
        option(
            "--priority",
            type=click.Choice(["none", "reward", "difficulty"]),
            help="What is drawn more often.  [default: none]",
        ),
    )


GROUPS = {
    "Main options": (
        "model", "data", "output", "games", "rounds", "episodes_per_round",
        "guided", "gym_host", "gym_port", "learning_rate", "resume",
    ),
    "Playing": (
        "gym_transport", "difficulty_min", "difficulty_max", "lanes", "max_episode_steps", "temperature", "learn_from",
    ),
    "Replay buffer and windows": (
        "buffer_size", "window_microbatches", "passes", "min_samples", "overlap_fraction", "max_staleness", "priority",
    ),
    "Data": DATA,
    "Batching": ("token_budget", "pack", *BATCHING),
    "Optimizer": OPTIMIZER,
    "LoRA": ("lora_rank", *LORA),
    "Checkpoints and records": CHECKPOINTS,
    "Compute": ("bf16", "attention", "num_workers"),
}  # fmt: skip


@click.command(cls=GroupedCommand, groups=GROUPS)
@model_flags
@click.option(
    "-o", "--output", metavar="DIR", help="Checkpoints, curves and the trained model.  [default: checkpoints/sft]"
)
@tokenizer_flag
@planning_options()
@row_flags
@optimizer_flags(SCHEDULE, "Schedule of the learning rate.")
@lora_flags
@checkpoint_flags(SAVE_EVERY, "Steps between checkpoints; one is always taken at the end.")
@resume_flag
@compute_flags
@online_options(hidden=False)
@quiet_flag
@json_option
@click.pass_context
def online(ctx: click.Context, **options: Any) -> None:
    """Fine-tune a causal model on puzzles that it plays.

    In every round it plays puzzles on a server (brim gym serve), puts what was solved into a replay buffer, and trains
    on a window of it. Some episodes follow the server's hints, so that there is something to learn from at the start.
    The samples of --data, if it is given, are in the replay buffer from the start.

    \b
    Examples:
      brim gym serve &
      brim train online --model tiny --games lights --difficulty-max 0.3
      brim train online -m DIR -d train.jsonl --gym-port 8023 --rounds 20 -o run/
      brim train online --resume run/ --rounds 40

    Exit status: 0 trained, 1 stopped by a signal with a checkpoint, 2 the options or the data are wrong, or training
    failed.
    """
    from brim.cli.train.sft import run_command

    run_command(ctx, {**SFT_ONLY, "group_field": None, "fsdp": False, **options, "online": True})


def online_config(values: dict[str, Any], options: dict[str, Any], given: set[str]) -> Any:
    """Make the options of a new run that plays. `values` are the options of training."""
    from brim.envs.puzzle.config import GymConfig

    if useless := sorted(given & SFT_ONLY.keys()):
        raise click.UsageError(
            f"--{useless[0].replace('_', '-')} has no effect in a run that plays (--online); leave it out"
        )
    gym, playing = _split(options, given)
    training = {name: value for name, value in values.items() if name not in SFT_ONLY}
    chosen: dict[str, Any] = {"max_steps": EPISODE_STEPS, "seed": training["seed"], **gym}
    playground = GymConfig(**chosen)
    from brim.train.online.config import OnlineConfig  # this one takes long to import

    return OnlineConfig(**training, gym=playground, **playing)


def resumed_config(before: dict[str, Any], training: dict[str, Any], options: dict[str, Any], given: set[str]) -> Any:
    """Make the options of a resumed run: those it was started with, changed by those that were given and may change."""
    from brim.train.online.config import OnlineConfig

    saved = OnlineConfig.from_dict(before)
    gym, playing = _split(options, given, saved.gym.difficulty_range)
    return saved.resumed_online(training, gym, playing)


def _split(
    options: dict[str, Any], given: set[str], ends: tuple[float, float] = (0.0, 1.0)
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options that were given, for the gym and for the rest. A difficulty not given is that of `ends`."""
    gym = {theirs: options[ours] for ours, theirs in GYM.items() if ours in given}
    low, high = options["difficulty_min"], options["difficulty_max"]
    if (low, high) != (None, None):
        gym["difficulty_range"] = (ends[0] if low is None else low, ends[1] if high is None else high)
    playing = {name: options[name] for name in PLAYING if name in given}
    if playing.get("max_staleness") == 0:
        playing["max_staleness"] = None
    return gym, playing


def run_online(config: Any, resume: Path | None, *, talk: bool, bar: Any) -> dict[str, Any]:
    """Train, and return the result and the facts to show at the end."""
    from brim.cli.train.progress import playing_progress
    from brim.train.online.run import train_online

    with playing_progress(quiet=not talk, every=config.log_every) as hooks:
        result = train_online(config, resume=resume, hooks=hooks, bar=bar)
    rates = [report.success_rate for report in result.rounds]
    known = [rate for rate in rates if rate is not None]
    return {
        "result": result.sft,
        "rounds": len(result.rounds),
        "episodes": sum(report.episodes for report in result.rounds),
        "episodes with errors": sum(sum(report.errors.values()) for report in result.rounds) or None,
        "success of the model": " ".join("-" if rate is None else f"{rate:.0%}" for rate in rates) or None,
        "first, best and last": f"{known[0]:.0%}, {max(known):.0%}, {known[-1]:.0%}" if known else None,
        "remembered": result.rounds[-1].buffer if result.rounds else 0,
    }
