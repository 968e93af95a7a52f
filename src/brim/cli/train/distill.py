"""`brim train distill`: a model that learns in context, trained on the histories of a learning algorithm."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from brim.cli.show import json_option, show_facts, show_json, show_table
from brim.cli.train.flags import GroupedCommand

if TYPE_CHECKING:
    from brim.train.distill.config import DistillConfig
    from brim.train.distill.run import DistillResult

DEFAULT_OUTPUT = "checkpoints/distill"


def _seeds(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    try:
        return None if value is None else tuple(int(seed) for seed in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of whole numbers such as 0,1,2") from None


GROUPS = {
    "Main options": ("output", "seeds", "steps", "resume"),
    "Results": ("plot", "as_json"),
}


@click.command(cls=GroupedCommand, groups=GROUPS)
@click.argument("configs", nargs=-1, metavar="[CONFIG]...")
@click.option(
    "-o",
    "--output",
    default=DEFAULT_OUTPUT,
    show_default=True,
    metavar="DIR",
    help="Histories, checkpoints and results.",
)
@click.option(
    "--seeds",
    callback=_seeds,
    metavar="N,...",
    help="Train a model for each of these seeds.  [default: those of the config, 0,1,2]",
)
@click.option("--steps", type=int, help="Optimizer steps for each seed.  [default: those of the config]")
@click.option("--resume", is_flag=True, help="Resume the run in the output.")
@click.option("--plot/--no-plot", default=True, show_default=True, help="Draw the returns to OUTPUT/in_context.png.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@json_option
@click.pass_context
def distill(
    ctx: click.Context, configs: tuple[str, ...], output: str, plot: bool, quiet: bool, as_json: bool, **options: Any
) -> None:
    """Distill a learning algorithm into a model that learns in context.

    Records how the algorithm learns to find goals in a dark room, trains a model with a compressed memory to act as it
    would next, and lets the model play goals that it was never trained on: its return rises from episode to episode,
    while its weights stay the same.

    CONFIG are YAML files; later files override earlier ones, and those that come with brim need not be in the current
    directory. The default is config/algorithm/q_learning.yaml, config/env/darkroom.yaml and
    config/model/ad_compressed_dr.yaml.

    \b
    Examples:
      brim train distill
      brim train distill config/algorithm/ppo_base.yaml config/env/darkroom.yaml \\
        config/model/ad_compressed_dr.yaml
      brim train distill config/env/darkroom_small.yaml \\
        config/model/ad_compressed_small.yaml --seeds 0 -o small/
      brim train distill --resume -o small/

    A seed improves if the return in the last third of its episodes is above that in the first by more than twice the
    standard error over goals; with a single held-out goal, which has none, if it is above it.

    SIGTERM and Ctrl-C end the run after the next step, with a checkpoint to resume from.

    Exit status: 0 trained, and every seed improves; 1 trained, and one does not, or stopped by a signal; 2 the options
    or files are wrong, or training failed.
    """
    from brim.cli.train.progress import training_progress
    from brim.core.extras import need
    from brim.train.distill.run import train_distill

    config = _config(configs, output, options)
    if plot:
        need("matplotlib.figure", extra="plot", user="--plot (leave it out with --no-plot)")
    if not quiet:
        click.echo(f"{'resuming' if options['resume'] else 'writing'} {output}", err=True)
    with training_progress(quiet=quiet, every=config.training.log_every * 5) as on_step:
        result = train_distill(
            config,
            output=output,
            resume=options["resume"],
            on_step=on_step,
            on_message=None if quiet else lambda text: click.echo(text, err=True),
        )
    if result.stopped:
        if not quiet:
            click.echo(f"stopped with a checkpoint; continue with: {ctx.command_path} --resume -o {output}", err=True)
        ctx.exit(1)
    if plot:
        from brim.train.distill.plot import save_plot

        save_plot(result, Path(output) / "in_context.png")
    show_json({**result.to_dict(), "seconds": round(result.seconds, 1)}) if as_json else _show(result)
    ctx.exit(0 if all(seed.improves for seed in result.seeds) else 1)


def _config(configs: tuple[str, ...], output: str, options: dict[str, Any]) -> "DistillConfig":
    """Read the options from the files and the command line. If no files are given, a resumed run uses its own."""
    from brim.train.distill.run import config_of
    from brim.train.distill.yaml_files import load_config

    config = config_of(output) if options["resume"] and not configs else load_config(configs)
    given = {name: options[name] for name in ("seeds", "steps") if options[name] is not None}
    return config.with_training(**given)


def _show(result: "DistillResult") -> None:
    rows = [
        (
            f"seed {seed.seed}",
            f"{seed.curve[0]:.2f}",
            f"{seed.curve[-1]:.2f}",
            f"{seed.improvement:+.2f}",
            "" if seed.standard_error is None else f"{seed.standard_error:.2f}",
        )
        for seed in result.seeds
    ]
    show_table(
        ("", "first episode", "last episode", "last third - first", "standard error"),
        rows,
        title="return on held-out goals",
    )
    if rest := [str(seed.seed) for seed in result.seeds if not seed.improves]:
        limit = "0" if result.seeds[0].standard_error is None else "twice the standard error"
        click.echo(f"no improvement above {limit}: seed {', '.join(rest)}")
    others = result.references
    show_facts(
        {
            "acts at random": round(others.random, 2),
            "source, first episode": round(others.source[0], 2),
            f"source, after {len(others.source)}": round(others.source[-1], 2),
            "knows the goal": round(others.best, 2),
            "weights": result.weights,
            **({"padding": f"{result.fill.waste:.2%}"} if result.fill.slots else {}),
            "seconds": round(result.seconds, 1),
        }
    )
