"""`brim arc bench`: the speed of the engines that can be used here."""

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any, get_args

import click

from brim.cli.arc.data import chosen_tasks, counted, data_flags, described
from brim.cli.arc.engines import ENGINES, EngineArrays, is_slow, unusable, use_engine
from brim.cli.arc.environments import MOST_ENVS, auto_reset_option, make_config, seed_option
from brim.cli.options import names_callback
from brim.cli.show import human, json_option, show_json, show_prose, show_table
from brim.core.errors import OptionError
from brim.core.options import one_of
from brim.envs.arc.config import EnvironmentConfig, JaxArcConfig, SelectionFormat

if TYPE_CHECKING:
    from brim.envs.arc.tasks.bank import TaskBank

DRAWN = 16
"""Steps whose actions are drawn before the clock starts; they are played over and over."""
LONGEST = 3600
"""Upper limit of the seconds of a measurement."""
MOST_DRAWN = 2**18
"""Upper limit of the actions that are drawn, for the memory that they take: masks of large batches."""


def _sizes(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    """Read batch sizes such as 1,64,1024."""
    words = [word.strip() for word in value.split(",")]
    for word in words:
        if not word.isdecimal() or not 1 <= int(word) <= MOST_ENVS:
            raise click.BadParameter(f"{word!r} is not a number from 1 to {MOST_ENVS}", ctx, param)
    return tuple(int(word) for word in words)


def _some_of(choices: tuple[str, ...]) -> Callable[[click.Context, click.Parameter, str | None], Any]:
    def read(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...] | None:
        names = names_callback(ctx, param, value)
        return None if names is None else tuple(one_of(f"--{param.name}", name, choices) for name in names)

    return read


@click.command()
@data_flags
@click.option(
    "--batch-sizes",
    callback=_sizes,
    default="64,1024",
    show_default=True,
    metavar="N,...",
    help="Numbers of environments.",
)
@click.option(
    "--formats",
    callback=_some_of(get_args(SelectionFormat)),
    default="point",
    show_default=True,
    metavar="NAME,...",
    help="How actions select cells: some of point, bbox and mask.",
)
@click.option(
    "--engines",
    callback=_some_of(tuple(ENGINES)),
    metavar="NAME,...",
    help="Some of numpy, cpu and jax.  [default: all that can be used here]",
)
@auto_reset_option
@click.option(
    "--seconds",
    type=float,
    default=0.1,
    show_default=True,
    help="Length of each measurement.",
)
@seed_option
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@json_option
def bench(quiet: bool, as_json: bool, **options: Any) -> None:
    """Measure the steps per second of the engines that can be used here.

    Plays random actions in a loop of Python: one call steps all environments. A step of a batch counts as often as it
    has environments. The first step, which compiles, is timed apart; it takes longest with engine jax, which compiles
    for every size and every format. These are seconds of the clock, so other work on the machine slows them down.

    \b
    Examples:
      brim arc bench
      brim arc bench --data mock --engines numpy --formats point,bbox,mask
      brim arc bench --batch-sizes 1024,16384 --seconds 2 --json

    Exit status: 0 measured, 2 the options or the data are wrong.
    """
    if not 0 < options["seconds"] <= LONGEST:
        raise OptionError(f"--seconds must be above 0 and at most {LONGEST}, got {options['seconds']}")
    from brim.envs.arc.tasks.bank import build_bank

    tasks = chosen_tasks(**{name: options[name] for name in ("data", "split", "ids", "max_size")})
    engines, left_out = options["engines"], dict[str, str]()
    if engines is None:
        left_out = {engine: reason for engine in ENGINES if (reason := unusable(engine)) is not None}
        engines = [engine for engine in ENGINES if engine not in left_out]
    if not engines or not options["formats"]:
        raise OptionError("there is nothing to measure: --engines and --formats need at least one name each")
    ready = {engine: use_engine(engine, user="brim arc bench") for engine in engines}
    measured: list[dict[str, Any]] = []
    for engine, arrays in ready.items():
        for selection_format in options["formats"]:
            asked = {
                **options,
                "selection_format": selection_format,
                "operations": None,
                "mode": "train",
                "max_episode_steps": EnvironmentConfig().max_episode_steps,
            }
            config = make_config(tasks, engine, asked)
            bank = build_bank(tasks, config)
            for envs in options["batch_sizes"]:
                if not quiet:
                    click.echo(f"{engine}, {selection_format}, {counted(envs, 'environment')}", err=True)
                facts = {"engine": engine, "format": selection_format, "envs": envs}
                times = measure(config, bank, arrays, envs=envs, seconds=options["seconds"], seed=options["seed"])
                measured.append({**facts, **times})
    facts = {
        **described(options["data"], options["split"], tasks),
        "auto_reset": options["auto_reset"],
        "measured": measured,
        "left_out": left_out,
        "kernel_compiled": not is_slow(),
    }
    show_json(facts) if as_json else _show(facts)


def measure(
    config: JaxArcConfig, bank: "TaskBank", arrays: EngineArrays, *, envs: int, seconds: float, seed: int
) -> dict[str, float]:
    """Return the steps per second of a batch, and the seconds of its first reset and step.

    All drawn actions are played at least once, also if that takes longer than `seconds`.
    """
    from brim.cli.arc.random_actions import RandomActions, random_keys
    from brim.envs.arc.batch import batch_reset, compiled_batch_step

    actions = RandomActions(config, envs=envs, seed=seed)
    steps_drawn = max(1, min(DRAWN, MOST_DRAWN // envs))
    drawn = [type(one)(*(arrays.put(part) for part in one)) for one in map(actions.at, range(steps_drawn))]
    keys = arrays.put(random_keys(envs, seed=seed, purpose="arc environments"))
    started = perf_counter()
    states, _ = batch_reset(keys, config, bank)
    states = arrays.wait(compiled_batch_step(states, drawn[0], config, donate=True)).states
    first = perf_counter() - started
    steps = 0
    started = perf_counter()
    while perf_counter() - started < seconds:
        for chosen in drawn:
            states = compiled_batch_step(states, chosen, config, donate=True).states
        arrays.wait(states.status)
        steps += len(drawn)
    elapsed = perf_counter() - started
    return {"steps_per_second": steps * envs / elapsed, "first_step_seconds": first}


def _show(facts: dict[str, Any]) -> None:
    rows = [
        (
            one["engine"],
            one["format"],
            f"{one['envs']:,}",
            human(one["steps_per_second"]),
            "" if one["engine"] == "numpy" else f"{one['first_step_seconds']:.2f}",
        )
        for one in facts["measured"]
    ]
    show_table(("engine", "format", "environments", "steps/s", "first step (s)"), rows)
    for engine, reason in facts["left_out"].items():
        show_prose(f"{engine} is left out: {reason}")
    if not facts["kernel_compiled"]:
        show_prose("The kernel is not compiled here: numpy runs environments one at a time.")
