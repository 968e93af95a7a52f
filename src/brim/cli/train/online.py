"""`brim train sft --online`: the options of a run that plays, and what it shows."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from brim.cli.show import human

GYM = {
    "gym_host": "host",
    "gym_port": "port",
    "gym_transport": "transport",
    "games": "games",
    "lanes": "lanes",
    "max_episode_steps": "max_steps",
}
"""Options of ours, and what the gym calls them."""

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

PATIENCE = 64
"""Actions after which an episode of a model that learns is given up: enough for hints to solve easy puzzles."""

ONLINE = {"online", "difficulty_min", "difficulty_max", *GYM, *PLAYING}


def _names(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    return None if value is None else tuple(name.strip() for name in value.split(",") if name.strip())


def online_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add them to a command. They have no defaults here: what was not given is left to the run."""
    options = [
        click.option("--online", is_flag=True, help="Play puzzles on a server, and train on what was solved. See brim gym."),
        click.option("--gym-host", metavar="HOST", help="Where the puzzle server is.  [default: localhost]"),
        click.option("--gym-port", type=int, help="[default: 8023]"),
        click.option("--gym-transport", type=click.Choice(["auto", "tcp", "telnet", "websocket"]), help="[default: auto]"),
        click.option("--games", callback=_names, metavar="NAME,...", help="What to play.  [default: all that are quick]"),
        click.option("--difficulty-min", type=float, help="Easy is 0.3, medium 0.5, hard 0.7.  [default: 0]"),
        click.option("--difficulty-max", type=float, help="Play rises to it with success.  [default: 1]"),
        click.option("--lanes", type=int, help="Episodes that are played at once.  [default: 8]"),
        click.option("--max-episode-steps", type=int, help=f"Actions of an episode, at most.  [default: {PATIENCE}]"),
        click.option("--rounds", type=int, help="Times to play and then train.  [default: 10]"),
        click.option("--episodes-per-round", type=int, help="[default: 64]"),
        click.option("--guided", type=float, help="The share of episodes that hints play, to learn from.  [default: 0.5]"),
        click.option("--learn-from", type=click.Choice(["success", "all"]), help="Which episodes.  [default: success]"),
        click.option("--temperature", type=float, help="Of the model's choices.  [default: 1]"),
        click.option("--buffer-size", type=int, help="Actions that are remembered.  [default: 100000]"),
        click.option("--window-microbatches", type=int, help="Of a window, at most.  [default: 32]"),
        click.option("--passes", type=int, help="Times through a window before the next round.  [default: 4]"),
        click.option("--min-samples", type=int, help="A window is drawn from no fewer actions.  [default: 64]"),
        click.option("--overlap-fraction", type=float, help="Of a window with the one before, at most.  [default: 0.75]"),
        click.option("--max-staleness", type=int, help="How old, in steps, an action of the model may be; 0 for any age.  [default: 1000]"),
        click.option("--priority", type=click.Choice(["none", "reward", "difficulty"]), help="What is drawn more often.  [default: none]"),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def online_config(sft: Any, options: dict[str, Any], given: set[str]) -> Any:
    """The options of a new run."""
    from brim.envs.puzzle.config import GymConfig
    from brim.train.online.config import OnlineConfig

    gym, playing = _split(options, given)
    values: dict[str, Any] = {"max_steps": PATIENCE, "seed": sft.seed, **gym}
    return OnlineConfig(sft=sft, gym=GymConfig(**values), **playing)


def resumed_config(before: dict[str, Any], sft: Any, options: dict[str, Any], given: set[str]) -> Any:
    """Those of a run that goes on, with what may be changed. `sft` is resumed already."""
    from brim.train.online.config import OnlineConfig

    saved = OnlineConfig.from_dict(before)
    gym, playing = _split(options, given, saved.gym.difficulty_range)
    return saved.resumed(sft, gym, playing)


def _split(options: dict[str, Any], given: set[str], ends: tuple[float, float] = (0.0, 1.0)) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was given, for the gym and for the rest. A difficulty that was not stays as in `ends`."""
    gym = {theirs: options[ours] for ours, theirs in GYM.items() if ours in given}
    low, high = options["difficulty_min"], options["difficulty_max"]
    if (low, high) != (None, None):
        gym["difficulty_range"] = (ends[0] if low is None else low, ends[1] if high is None else high)
    playing = {name: options[name] for name in PLAYING if name in given}
    if playing.get("max_staleness") == 0:
        playing["max_staleness"] = None
    return gym, playing


def run_online(config: Any, resume: Path | None, *, talk: bool, bar: Any) -> dict[str, Any]:
    """Train; what to show at the end."""
    from brim.train.online.run import train_online

    with playing_progress(quiet=not talk, every=config.sft.log_every) as hooks:
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


@contextmanager
def playing_progress(*, quiet: bool, every: int) -> Generator[Any, None, None]:
    """A line for every round; on a terminal also what happens now."""
    from brim.train.online.run import OnlineHooks

    console = Console(stderr=True)
    if quiet:
        yield OnlineHooks()
        return
    episodes = [0]
    with console.status("playing") as status:

        def on_episode(episode: Any) -> None:
            episodes[0] += 1
            status.update(f"playing: {episodes[0]} episodes of this round, the last {episode.spec.episode_id}: {episode.reason}")

        def on_step(report: Any) -> None:
            speed = human(report.tokens / max(report.seconds, 1e-9))
            state = f"step {report.step} pass {report.epoch} loss {report.loss:.4f} {speed} tokens/s fill {report.fill.ratio:.1%}"
            status.update(state)
            if not console.is_terminal and report.step % every == 0:
                click.echo(state, err=True)

        def on_round(report: Any) -> None:
            episodes[0] = 0
            console.print(_line(report), highlight=False, soft_wrap=True)

        yield OnlineHooks(on_step=on_step, on_round=on_round, on_episode=on_episode, on_message=lambda text: click.echo(text, err=True))


def _line(report: Any) -> str:
    rate = "none played" if report.success_rate is None else f"solved {report.solved}/{report.played} ({report.success_rate:.0%})"
    levels = ", ".join(f"{level} {hits}/{of}" for level, (hits, of) in report.solved_by_level.items())
    window = "too few for a window" if report.window is None else f"window of {report.window}"
    errors = f", errors: {report.errors}" if report.errors else ""
    return (
        f"round {report.round}: {rate}{f' [{levels}]' if len(report.solved_by_level) > 1 else ''}, hints {report.guided_solved}/"
        f"{report.guided}, {report.samples} actions kept, {report.buffer:,} remembered, {window}{errors} ({report.seconds:.1f} s)"
    )
