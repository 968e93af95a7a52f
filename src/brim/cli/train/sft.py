"""`brim train`: supervised fine-tuning that follows a plan."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from brim.cli.options import PLANNING, attention_option, config_from, overlaid, planning_options
from brim.cli.show import counting_progress, human, json_option, show_facts, show_json
from brim.cli.train.online import ONLINE, online_config, online_options, resumed_config, run_online
from brim.data.rows.format import RowFormat
from brim.plan.distributed import DistributedConfig

DEFAULT_OUTPUT = "checkpoints/sft"

_ROWS = ("shape", "text_field", "prompt_field", "response_field", "id_field", "group_field")
_NOT_CONFIG = ("resume", "quiet", "as_json")


def _targets(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    return None if value is None else tuple(name.strip() for name in value.split(","))


@click.command()
@click.option("-m", "--model", metavar="MODEL", help="tiny (built in), a directory, or a name in the local Hugging Face cache.")
@click.option("-d", "--data", metavar="PATH", help="JSONL, Parquet, or a Hugging Face data set on disk.")
@click.option("-o", "--output", metavar="DIR", help=f"Checkpoints, curves and the trained model.  [default: {DEFAULT_OUTPUT}]")
@click.option("-t", "--tokenizer", help="As for brim lengths build.  [default: the model's own; for tiny the plan's, or byte]")
@click.option("--batchplan", metavar="DIR", help="Follow this plan.  [default: plan by the options below]")
@planning_options()
@click.option("--shape", default="auto", show_default=True, help="What a row is, if it could be several.")
@click.option("--text-field", help="The field that holds the text.")
@click.option("--prompt-field", help="The field that holds the prompt.")
@click.option("--response-field", help="The field that holds the response.")
@click.option("--id-field", help="The field that holds the id.")
@click.option("--group-field", help="Rows that differ in this field never share a microbatch.")
@click.option("-e", "--epochs", type=int, help="Times through the data.  [default: those of the plan, or 1]")
@click.option("--max-steps", type=int, help="Stop after so many optimizer steps.")
@click.option("--learning-rate", "--lr", type=float, help="[default: 2e-5; with LoRA 2e-4; for tiny 1e-3]")
@click.option(
    "--schedule",
    type=click.Choice(["cosine", "linear", "constant"]),
    default="cosine",
    show_default=True,
    help="Of the learning rate; constant with --online.",
)
@click.option("--warmup-steps", type=int, help="Steps of rising learning rate.  [default: 3% of all]")
@click.option("--weight-decay", type=float, default=0.0, show_default=True, help="Of matrices; vectors do not decay.")
@click.option("--clip-norm", type=float, default=1.0, show_default=True, help="The largest norm of the gradient; 0 for no limit.")
@click.option(
    "--tokens-per-step", type=int, help="Accumulate gradients over so many tokens, on all ranks.  [default: one microbatch for each rank]"
)
@click.option("--bf16", is_flag=True, help="Compute in bfloat16; weights stay in float32.")
@click.option("--lora-rank", type=int, default=0, show_default=True, help="Train low-rank adapters of this rank; 0 trains all weights.")
@click.option("--lora-alpha", type=float, help="[default: twice the rank]")
@click.option("--lora-dropout", type=float, default=0.0, show_default=True, help="Of the adapters.")
@click.option("--lora-targets", callback=_targets, metavar="NAME,...", help="Layers.  [default: all linear ones but the head]")
@click.option("--eval-data", metavar="PATH", help="Evaluate on this data.")
@click.option("--eval-split", type=float, default=0.0, show_default=True, help="Or hold out this share of the data.")
@click.option("--eval-every", type=int, help="In steps.  [default: at the end of every epoch]")
@click.option(
    "--save-every",
    type=int,
    default=500,
    show_default=True,
    help="Steps between checkpoints, 100 with --online; one is always taken at the end.",
)
@click.option("--keep", type=int, default=2, show_default=True, help="How many checkpoints stay.")
@click.option("--log-every", type=int, default=10, show_default=True, help="Steps between points of the curves.")
@click.option(
    "--resume", is_flag=False, flag_value="", metavar="[DIR]", help="Go on from the last checkpoint of the output, or from this one."
)
@click.option(
    "--num-workers", type=int, default=0, show_default=True, help="Worker processes; 0 makes batches in a thread, which is faster."
)
@attention_option
@click.option("--fsdp", is_flag=True, help="Shard the model over the ranks (FSDP2).")
@click.option("--tensorboard/--no-tensorboard", default=True, show_default=True, help="Curves in OUTPUT/tensorboard.")
@click.option("--record-samples", is_flag=True, help="Write which samples each step was trained on.")
@online_options
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@json_option
@click.pass_context
def sft(ctx: click.Context, **options: Any) -> None:
    """Fine-tune a causal model on instructions, conversations or text.

    Follows a plan exactly: every sample once an epoch, on any number of ranks. Killed and resumed, also on another number of ranks, it
    takes the steps that were left and no others.

    With --online it plays puzzles on a server (brim gym serve), remembers what was solved, and trains on that; --data is remembered too.

    \b
    Examples:
      brim train sft --model tiny --data train.jsonl
      brim train sft --model DIR --data train.jsonl --batchplan plan/ --bf16 -o run/
      brim train sft --model DIR --data train.jsonl --pack --lora-rank 16 --eval-split 0.05
      brim train sft --resume run/
      brim train sft --model tiny --online --gym-port 8023 --games nqueens
      torchrun --nproc-per-node 4 -m brim train sft --model DIR --data train.jsonl -b 16384 -o run/

    Exit status: 0 trained, 1 stopped by a signal with a checkpoint, 2 the options or the data are wrong, or training failed.
    """
    from brim.train.sft import find_checkpoint, train_sft

    main, quiet = DistributedConfig.from_env().is_main, options["quiet"]
    given = {name for name in options if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT}
    resume, online = None, None
    if options["resume"] is not None:
        resume = find_checkpoint(options["resume"] or options["output"] or _latest_output())
        config, online = _resumed(resume, options, given)
    else:
        config = _config(options, given)
        online = online_config(config, options, given) if options["online"] else None
    if resume is not None and online is None and options["online"]:
        raise click.UsageError(f"{resume} is of a run that does not play; leave out --online")
    if online is None and (useless := sorted(given & ONLINE)):
        raise click.UsageError(f"--{useless[0].replace('_', '-')} has no effect without --online")
    talk = main and not quiet
    bar = counting_progress if talk else _no_bar()
    if talk:
        click.echo(f"{'resuming' if resume else 'writing'} {resume or config.output}", err=True)
    more: dict[str, Any] = {}
    if online is not None:
        more = run_online(online, resume, talk=talk, bar=bar)
        result = more.pop("result")
    else:
        with training_progress(quiet=not talk, every=config.log_every) as on_step:
            result = train_sft(config, resume=resume, on_step=on_step, on_message=lambda text: click.echo(text, err=True), bar=bar)
    if main:
        facts = {
            **more,
            "model": str(result.model),
            "steps": result.steps,
            "taken now": result.taken,
            "first loss": _rounded(result.first_loss),
            "last loss": _rounded(result.last_loss),
            "eval loss": _rounded(result.eval_loss),
            "tokens": result.tokens,
            "tokens/s": round(result.tokens_per_second),
            "padding": f"{result.fill.waste:.2%}",
            "seconds": round(result.seconds, 1),
            **result.left_out,
            "stopped": result.stopped or None,
        }
        facts = {name: value for name, value in facts.items() if value is not None}
        show_json(facts) if options["as_json"] else show_facts(facts)
    ctx.exit(1 if result.stopped else 0)


def _config(options: dict[str, Any], given: set[str]) -> Any:
    from brim.plan.config import BatchingConfig
    from brim.train.config import SftConfig

    for name in ("model",) if options["online"] else ("model", "data"):
        if options[name] is None:
            raise click.UsageError(f"--{name} is missing")
    useless = sorted(given & (PLANNING - {"seed"})) if options["batchplan"] is not None else []
    if useless:
        raise click.UsageError(f"--{useless[0].replace('_', '-')} has no effect with --batchplan, which is planned already")
    batching = BatchingConfig() if options["batchplan"] is not None else config_from(_planning(options))
    if options["output"] is None and DistributedConfig.from_env().is_distributed:
        raise click.UsageError("--output is needed where several ranks run: each of them would look for a free name by itself")
    output = options["output"] or _new_output()
    values: dict[str, Any] = {**_plain(options), "output": output, "batching": batching, "format": _format(options)}
    if options["online"] and options["data"] is None and (useless := sorted(given & set(_ROWS))):
        raise click.UsageError(f"--{useless[0].replace('_', '-')} has no effect without --data")
    if options["online"]:  # nobody knows how many steps there will be, and what was played is not played again for nothing
        values |= {"data": options["data"] or ""}
        values |= {name: value for name, value in {"schedule": "constant", "save_every": 100}.items() if name not in given}
    return SftConfig(**values)


def _resumed(checkpoint: Path, options: dict[str, Any], given: set[str]) -> tuple[Any, Any]:
    """The options of the run, and of the command line only those that were given. The second are those of a run that plays, or None."""
    from brim.train.checkpoint import load_saved
    from brim.train.config import SftConfig

    saved = load_saved(checkpoint)
    config = SftConfig.from_dict(saved.config)
    values = {name: value for name, value in _plain(options).items() if name in given}
    if given & set(_ROWS):
        values["format"] = replace(config.format, **{name: options[name] for name in _ROWS if name in given})
    if given & (PLANNING - {"seed"}):
        values["batching"] = overlaid(config.batching, _planning(options), given - {"seed"})
    if options["resume"] and options["output"] and Path(options["output"]).resolve() != checkpoint.parent.resolve():
        raise click.UsageError(f"a resumed run goes on where it is: leave out --output, or move {checkpoint.parent} first")
    values["output"] = str(checkpoint.parent)
    config = config.resumed(**values)
    return config, resumed_config(saved.online["config"], config, options, given) if saved.online is not None else None


def _planning(options: dict[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in PLANNING}


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    unlike = {*(PLANNING - {"seed"}), *_ROWS, *_NOT_CONFIG, *ONLINE}
    return {name: value for name, value in options.items() if name not in unlike}


def _format(options: dict[str, Any]) -> RowFormat:
    return RowFormat(**{name: options[name] for name in _ROWS})


def _new_output() -> str:
    """The default output, or the first one behind it that holds no run."""
    number, output = 1, DEFAULT_OUTPUT
    while Path(output, "run.json").exists():
        number += 1
        output = f"{DEFAULT_OUTPUT}-{number}"
    return output


def _latest_output() -> str:
    number, output = 1, DEFAULT_OUTPUT
    while Path(f"{DEFAULT_OUTPUT}-{number + 1}", "run.json").exists():
        number += 1
        output = f"{DEFAULT_OUTPUT}-{number}"
    return output


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _no_bar() -> Any:
    from brim.train.prepare import no_bar

    return no_bar


@contextmanager
def training_progress(*, quiet: bool, every: int) -> Generator[Callable[[Any], None], None, None]:
    """A bar with loss, tokens/s, fill and the time that is left; where stderr is not a terminal, a line now and then."""
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
            state = f"loss {report.loss:.4f} {human(report.tokens / max(report.seconds, 1e-9))} tokens/s fill {report.fill.ratio:.1%}"
            if report.eval_loss is not None:
                state += f" eval {report.eval_loss:.4f}"
            progress.update(task, completed=report.step, total=report.steps, epoch=report.epoch, state=state)
            last = report.step == report.steps
            if not quiet and not console.is_terminal and (report.step % every == 0 or last or report.eval_loss is not None):
                click.echo(f"step {report.step}/{report.steps} epoch {report.epoch} {state}", err=True)

        yield on_step
