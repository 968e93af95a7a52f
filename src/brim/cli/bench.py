"""`brim bench`: measure this machine."""

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import click

from brim.cli.options import attention_option
from brim.cli.output import check_output, force_option, marked
from brim.cli.show import human, json_option, show_drawing, show_facts, show_json, show_prose
from brim.core.errors import OptionError
from brim.core.options import check_counts

if TYPE_CHECKING:
    from brim.analyze.capacity.search import Capacity, Trial
    from brim.train.measured_step import TrainingTrial

Attempt = Callable[[int], "Trial"]

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
MULTIPLE = 64
"""Budgets are multiples of this if packed, of the length of a row if padded."""
BAR = 24
LENGTH = 512


def _memory(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Read a size such as 2GB as bytes."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?) *([KMGT]I?)?B?", value.strip().upper())
    if match is None:
        raise click.BadParameter(f"{value!r} is not a size such as 2GB, 900MB or 1.5GiB", ctx, param)
    return int(float(match[1]) * UNITS[match[2] or ""])


def _share(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """Read a share such as 5% as 0.05."""
    try:
        return float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a share such as 5%", ctx, param) from None


@click.command("batch-size")
@click.option(
    "-m", "--model", required=True, metavar="MODEL", help="tiny (built in), a directory, or a name in the local cache."
)
@click.option(
    "-t",
    "--tokenizer",
    help="As for brim train sft.  [default: the model's own; for tiny that of the lengths, or byte]",
)
@click.option("-l", "--lengths", metavar="FILE", help="Length cache to draw lengths from; for padded, its longest.")
@click.option("--length", type=int, help=f"One length for all samples.  [default: {LENGTH}]")
@click.option(
    "--layout",
    type=click.Choice(["packed", "padded"]),
    default="packed",
    show_default=True,
    help="Segments in one flat row, or full rows.",
)
@click.option("--start", type=int, default=512, show_default=True, help="First budget to try, in tokens.")
@click.option("--most", type=int, help="Largest budget to try.  [default: limited by memory and --max-seconds]")
@click.option(
    "--memory",
    callback=_memory,
    metavar="SIZE",
    help="Memory limit, such as 2GB.  [default: 90% of the available memory; on a GPU all of it]",
)
@click.option(
    "--max-seconds",
    type=float,
    default=10.0,
    show_default=True,
    help="Upper limit of the seconds of a step; larger budgets are too slow.",
)
@click.option(
    "--steps", type=int, default=3, show_default=True, help="Timed steps for each budget, after one warm-up step."
)
@click.option(
    "--resolution",
    callback=_share,
    default="5%",
    show_default=True,
    metavar="SHARE",
    help="Relative accuracy of the largest budget.",
)
@click.option(
    "--lora-rank", type=int, default=0, show_default=True, help="Rank of LoRA adapters to train; 0 trains all weights."
)
@click.option("--bf16", is_flag=True, help="Compute in bfloat16; weights stay in float32.")
@attention_option
@click.option("-s", "--seed", type=int, default=42, show_default=True, help="Seed of the tokens and lengths.")
@click.option("-o", "--output", metavar="FILE", help="Also write the measurement to this file, as JSON.")
@click.option("--plot", metavar="FILE", help="Also draw the measurement: a .png, .svg or .pdf.")
@force_option
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@json_option
def batch_size(output: str | None, plot: str | None, force: bool, quiet: bool, as_json: bool, **options: Any) -> None:
    """Find the largest token budget that fits into memory, and the speed of every budget.

    Takes real training steps (forward, backward, optimizer) in a child process that may run out of memory. The budget
    is doubled until it does, and then bisected. Every token is trained on, so real data takes no more memory. Peak
    memory is that of the whole process; on a GPU, that of its tensors.

    \b
    Examples:
      brim bench batch-size --model tiny --memory 2GB
      brim bench batch-size --model DIR -l lengths.brim --bf16 --plot curve.png
      brim bench batch-size --model DIR --layout padded --length 2048 -o cap.json

    Exit status: 0 measured, 2 the options are wrong, or not even the smallest budget fits.
    """
    if options["lengths"] is not None and options["length"] is not None:
        raise OptionError("give --length or --lengths, not both")
    check_counts(**{name: options[name] for name in ("length", "start", "most", "steps")})
    if not 0 < options["max_seconds"] < float("inf"):
        raise OptionError(f"max_seconds must be above 0 and finite, got {options['max_seconds']}")
    if not 0 <= options["resolution"] < 1:
        raise OptionError(f"resolution must be at least 0 and below 1, got {options['resolution']}")
    _check_files(output, plot, force)
    from brim.analyze.capacity.attempts import Attempts
    from brim.analyze.capacity.plot import save_plot
    from brim.analyze.capacity.search import Search, find_capacity

    trial = _trial(options)
    multiple = MULTIPLE if trial.layout == "packed" else trial.length
    search = Search(
        unit="tokens", multiple=multiple, **{name: options[name] for name in ("start", "most", "resolution")}
    )
    asked = {name: options[name] for name in ("start", "most", "resolution", "max_seconds", "steps")}
    with (
        _progress(quiet=quiet) as shown,
        Attempts(
            trial, memory=options["memory"], max_seconds=options["max_seconds"], steps=options["steps"]
        ) as attempts,
    ):
        capacity = find_capacity(shown(attempts), search, measured={**attempts.facts, **asked})
    try:
        if output is not None:
            capacity.save(output)
        if plot is not None:
            save_plot(capacity, plot, title=_title(capacity))
    finally:  # it took minutes: show it even if it cannot be written
        show_json(capacity.to_dict()) if as_json else _show(capacity)


def _check_files(output: str | None, plot: str | None, force: bool) -> None:
    """Refuse outputs that cannot or must not be written, before anything is measured."""
    from brim.analyze.capacity.plot import USER
    from brim.analyze.plots import MARKS, check_plot

    if plot is not None:
        check_plot(plot, user=USER)
        check_output(plot, force=force, what="a plot of this command", ours=marked(*MARKS))
    if output is not None:
        check_output(
            output, force=force, what="a measurement of this command", ours=marked(b'"format": "brim.capacity/')
        )


def _trial(options: dict[str, Any]) -> "TrainingTrial":
    from brim.data.lengths import LengthCache
    from brim.train.config import SftConfig
    from brim.train.measured_step import TrainingTrial, draw_lengths

    length, drawn, tokenizer = LENGTH if options["length"] is None else options["length"], None, options["tokenizer"]
    if options["lengths"] is not None:
        table = LengthCache.load(options["lengths"])
        drawn = draw_lengths(table.lengths, options["seed"]) if options["layout"] == "packed" else None
        length = max(int(table.lengths.max(initial=0)), 2)
        if options["model"] == "tiny":
            tokenizer = tokenizer or table.source.get("tokenizer")
    same = {name: options[name] for name in ("model", "lora_rank", "bf16", "attention", "seed")}
    config = SftConfig(**same, tokenizer=tokenizer, data="", output="")
    return TrainingTrial(config=config, layout=options["layout"], length=length, drawn=drawn, memory=options["memory"])


@contextmanager
def _progress(*, quiet: bool) -> Generator[Callable[[Attempt], Attempt], None, None]:
    """Yield a wrapper that reports attempts on stderr: a line for each, and in a terminal a spinner while one runs."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False, quiet=quiet, soft_wrap=True)
    status = console.status("loading the model")

    def shown(attempt: Attempt) -> Attempt:
        def attempt_and_tell(size: int) -> "Trial":
            status.update(f"trying {size:,} tokens")
            trial = attempt(size)
            console.print(_line(trial))
            return trial

        return attempt_and_tell

    with status if console.is_terminal and not quiet else nullcontext():
        yield shown


def _line(trial: "Trial") -> str:
    from brim.analyze.capacity.search import bytes_text, seconds_text

    if trial.fits:
        return (
            f"{trial.size:,} tokens: {seconds_text(trial.seconds)} s, {human(trial.rate)} tokens/s, "
            f"{bytes_text(trial.peak)}"
        )
    return f"{trial.size:,} tokens: {trial.why}{f', {trial.detail}' if trial.detail else ''}"


def _show(capacity: "Capacity") -> None:
    from brim.analyze.capacity.search import bytes_text

    facts = capacity.measured
    shown = {
        "model": f"{facts['model']}, {human(facts['trained_weights'])} of {human(facts['weights'])} weights trained, "
        f"{facts['dtype']}",
        "microbatch": f"{facts['layout']}, {_lengths(facts)}, attention {facts['attention']}",
        "machine": f"{facts['device']}, {facts['cores']} cores, at most {bytes_text(facts['memory_limit'])}, torch "
        f"{facts['torch']}",
    }
    show_facts(shown)
    click.echo()
    show_drawing(capacity.to_ascii, BAR)
    click.echo()
    show_prose(capacity.advice, plan_with(capacity))


def plan_with(capacity: "Capacity") -> str:
    """Return advice on the budget: fast enough, and large enough for the longest sample if that fits."""
    longest, largest = capacity.measured["length"], capacity.largest.size
    pack = " --pack" if capacity.measured["layout"] == "packed" else ""
    if longest > largest:
        why = (
            "more than was tried"
            if capacity.limit == "most"
            else f"more than {'is fast enough' if capacity.limit == 'too slow' else 'fits'}"
        )
        return (
            f"Plan with -b {largest}{pack} and --overflow truncate, split or skip: the longest sample has "
            f"{longest:,} tokens, {why}."
        )
    return f"Plan with -b {max(capacity.knee.size, longest)}{pack}."


def _lengths(facts: Any) -> str:
    drawn = facts["lengths"] != "all the same"
    return f"lengths drawn from the data, up to {facts['length']:,}" if drawn else f"all of {facts['length']:,} tokens"


def _title(capacity: "Capacity") -> str:
    facts = capacity.measured
    return f"{facts['model']}, {facts['layout']}, {_lengths(facts)}; {facts['device']}, {facts['cores']} cores"
