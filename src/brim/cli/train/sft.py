"""`brim train sft`: supervised fine-tuning that follows a plan."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from brim.cli.batching import PLANNING, config_from, overlaid
from brim.cli.options import ROWS, group_flag, planning_options, row_flags
from brim.cli.show import counting_progress, json_option, show_facts, show_json
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
from brim.cli.train.online import (
    ONLINE,
    SAVE_EVERY,
    SCHEDULE,
    online_config,
    online_options,
    resumed_config,
    run_online,
)
from brim.cli.train.outputs import latest_output, new_output
from brim.data.rows.format import RowFormat
from brim.plan.config import BatchingConfig
from brim.plan.distributed import DistributedConfig

DEFAULT_OUTPUT = "checkpoints/sft"

_NOT_CONFIG = ("resume", "quiet", "as_json")

GROUPS = {
    "Main options": (
        "model", "data", "output", "batchplan", "epochs",
        "learning_rate", "token_budget", "pack", "lora_rank", "resume",
    ),
    "Data": (*DATA, "group_field"),
    "Batching": BATCHING,
    "Optimizer": OPTIMIZER,
    "LoRA": LORA,
    "Evaluation": ("eval_data", "eval_split", "eval_every"),
    "Checkpoints and records": CHECKPOINTS,
    "Compute": ("bf16", "attention", "num_workers", "fsdp"),
    "Playing": ("online",),
}  # fmt: skip


@click.command(cls=GroupedCommand, groups=GROUPS)
@model_flags
@click.option(
    "-o", "--output", metavar="DIR", help=f"Checkpoints, curves and the trained model.  [default: {DEFAULT_OUTPUT}]"
)
@tokenizer_flag
@click.option("--batchplan", metavar="DIR", help="Follow this plan.  [default: plan by the options below]")
@planning_options()
@row_flags
@group_flag
@click.option("-e", "--epochs", type=int, help="Times through the data.  [default: those of the plan, or 1]")
@optimizer_flags("cosine", "Schedule of the learning rate; constant with --online.")
@lora_flags
@click.option("--eval-data", metavar="PATH", help="Evaluate on this data.")
@click.option("--eval-split", type=float, default=0.0, show_default=True, help="Or hold out this share of the data.")
@click.option("--eval-every", type=int, help="Steps between evaluations.  [default: at the end of every epoch]")
@checkpoint_flags(500, "Steps between checkpoints, 100 with --online; one is always taken at the end.")
@resume_flag
@compute_flags
@click.option("--fsdp", is_flag=True, help="Shard the model over the ranks (FSDP2).")
@click.option(
    "--online",
    is_flag=True,
    help="Play puzzles and train on what was solved: the same as brim train online, with its options.",
)
@online_options(hidden=True)
@quiet_flag
@json_option
@click.pass_context
def sft(ctx: click.Context, **options: Any) -> None:
    """Fine-tune a causal model on instructions, conversations or text.

    Follows a plan exactly: every sample once an epoch, on any number of ranks. Killed and resumed, also on another
    number of ranks, it takes the steps that were left and no others.

    \b
    Examples:
      brim train sft --model tiny --data train.jsonl
      brim train sft -m DIR -d train.jsonl --batchplan plan/ --bf16 -o run/
      brim train sft -m DIR -d train.jsonl --pack --lora-rank 16 --eval-split 0.05
      brim train sft --resume run/
      torchrun --nproc-per-node 4 -m brim train sft -m DIR -d train.jsonl -o run/

    Exit status: 0 trained, 1 stopped by a signal with a checkpoint, 2 the options or the data are wrong, or training
    failed.
    """
    run_command(ctx, options)


def run_command(ctx: click.Context, options: dict[str, Any]) -> None:
    """Train as the options of a command say, and show the result. `brim train online` calls this too."""
    main, quiet = DistributedConfig.from_env().is_main, options["quiet"]
    given = {name for name in ctx.params if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT}
    resume = None
    if options["resume"] is not None:
        from brim.train.checkpoint import find_checkpoint

        resume = find_checkpoint(options["resume"] or options["output"] or latest_output(DEFAULT_OUTPUT))
        config, plays = _resumed(resume, options, given)
    else:
        config, plays = _config(options, given)
    if resume is not None and options["online"] and not plays:
        raise click.UsageError(
            f"{resume} is of a run that does not play; resume it with brim train sft, without --online"
        )
    if not plays and (useless := sorted(given & ONLINE)):
        raise click.UsageError(f"--{useless[0].replace('_', '-')} has no effect without --online")
    talk = main and not quiet
    bar = counting_progress if talk else _no_bar()
    if talk:
        click.echo(f"{'resuming' if resume else 'writing'} {resume or config.output}", err=True)
    more: dict[str, Any] = {}
    if plays:
        more = run_online(config, resume, talk=talk, bar=bar)
        result = more.pop("result")
    else:
        from brim.cli.train.progress import training_progress
        from brim.train.sft import train_sft

        with training_progress(quiet=not talk, every=config.log_every) as on_step:
            result = train_sft(
                config, resume=resume, on_step=on_step, on_message=lambda text: click.echo(text, err=True), bar=bar
            )
    if main:
        _show(result, more, as_json=options["as_json"])
    if talk:
        _tell_what_next(ctx, config.output, result)
    ctx.exit(1 if result.stopped else 0)


def _show(result: Any, more: dict[str, Any], *, as_json: bool) -> None:
    facts = {
        **more,
        "model": str(result.model),
        "steps": result.steps,
        "taken now": result.taken,
        "first loss": _rounded(result.first_loss),
        "last loss": _rounded(result.last_loss),
        "eval loss": _rounded(result.eval_loss),
        "tokens": result.tokens,
        "tokens/s": round(result.tokens_per_second) if result.taken else None,
        "padding": f"{result.fill.waste:.2%}" if result.taken else None,
        "seconds": round(result.seconds, 1),
        **result.left_out,
        "stopped": result.stopped or None,
    }
    facts = {name: value for name, value in facts.items() if value is not None}
    show_json(facts) if as_json else show_facts(facts)


def _tell_what_next(ctx: click.Context, output: str, result: Any) -> None:
    if result.stopped:
        click.echo(f"stopped with a checkpoint; continue with: {ctx.command_path} --resume {output}", err=True)
    elif result.taken == 0:
        click.echo(
            f"this run is finished: all {result.steps} steps were taken before; the model is in {result.model}",
            err=True,
        )


def _config(options: dict[str, Any], given: set[str]) -> tuple[Any, bool]:
    """Return the options of a new run, and whether it plays."""
    plays = options["online"]
    for name in ("model",) if plays else ("model", "data"):
        if options[name] is None:
            raise click.UsageError(f"--{name} is missing")
    useless = sorted(given & (PLANNING - {"seed"})) if options["batchplan"] is not None else []
    if useless:
        raise click.UsageError(
            f"--{useless[0].replace('_', '-')} has no effect with --batchplan, which is planned already"
        )
    if plays and options["data"] is None and (useless := sorted(given & set(ROWS))):
        raise click.UsageError(f"--{useless[0].replace('_', '-')} has no effect without --data")
    if options["output"] is None and DistributedConfig.from_env().is_distributed:
        raise click.UsageError(
            "--output is needed where several ranks run: each of them would look for a free name by itself"
        )
    from brim.train.config import SftConfig

    batching = BatchingConfig() if options["batchplan"] is not None else config_from(_planning(options))
    output = options["output"] or new_output(DEFAULT_OUTPUT)
    values: dict[str, Any] = {**_plain(options), "output": output, "batching": batching, "format": _format(options)}
    if not plays:
        return SftConfig(**values), False
    # The number of steps is not known in advance, and what was played should not be lost.
    defaults = {"schedule": SCHEDULE, "save_every": SAVE_EVERY}
    values |= {name: value for name, value in defaults.items() if name not in given}
    return online_config({**values, "data": options["data"] or ""}, options, given), True


def _resumed(checkpoint: Path, options: dict[str, Any], given: set[str]) -> tuple[Any, bool]:
    """Return the options of a resumed run, made of its checkpoint and the options given, and whether it plays."""
    from brim.train.checkpoint import load_saved
    from brim.train.config import SftConfig

    saved = load_saved(checkpoint)
    config = SftConfig.from_dict(saved.config)
    values = {name: value for name, value in _plain(options).items() if name in given}
    if given & set(ROWS):
        values["format"] = replace(config.format, **{name: options[name] for name in ROWS if name in given})
    planning = sorted(given & (PLANNING - {"seed"}))
    if planning and config.batchplan is not None:
        raise click.UsageError(
            f"--{planning[0].replace('_', '-')} has no effect on {checkpoint.parent}, which follows {config.batchplan}"
        )
    if planning:
        values["batching"] = overlaid(config.batching, _planning(options), given - {"seed"})
    if options["resume"] and options["output"] and Path(options["output"]).resolve() != checkpoint.parent.resolve():
        raise click.UsageError(
            f"a resumed run stays where it is: leave out --output, or move {checkpoint.parent} first"
        )
    values["output"] = str(checkpoint.parent)
    if (state := saved.sections.get("online")) is not None:
        return resumed_config(state["config"], values, options, given), True
    return config.resumed(**values), False


def _planning(options: dict[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in PLANNING}


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    unlike = {*(PLANNING - {"seed"}), *ROWS, *_NOT_CONFIG, *ONLINE}
    return {name: value for name, value in options.items() if name not in unlike}


def _format(options: dict[str, Any]) -> RowFormat:
    return RowFormat(**{name: options[name] for name in ROWS})


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _no_bar() -> Any:
    from brim.train.prepare import no_bar

    return no_bar
