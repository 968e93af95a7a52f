"""`brim llm bench`: throughput and latency of a model server by the number of requests at once."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from brim.cli.llm.check import rate_text, seconds_text
from brim.cli.llm.flags import access_flags, model_option, named_servers, server_option, timeout_option
from brim.cli.output import check_output, force_option, marked
from brim.cli.show import counting_progress, json_option, show_facts, show_json, show_prose, show_table
from brim.core.errors import OptionError
from brim.llm.config import LEVELS

if TYPE_CHECKING:
    from brim.llm.call import Call
    from brim.llm.measure import Level, LoadCurve

COLUMNS = ("at once", "requests", "requests/s", "tokens/s", "p50", "p90", "p99", "refused", "failed")
MOST_PROMPTS = 10_000
"""Prompts of a file that are used, the first ones."""


def _numbers(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    """Read numbers such as 1,2,4."""
    words = [word.strip() for word in value.split(",") if word.strip()]
    if not words or not all(word.isascii() and word.isdigit() and int(word) > 0 for word in words):
        raise click.BadParameter(f"{value!r} is not a list of positive numbers such as 1,2,4", ctx, param)
    return tuple(int(word) for word in words)


@click.command()
@server_option(several=False)
@model_option
@access_flags
@click.option(
    "--concurrency",
    callback=_numbers,
    default=",".join(map(str, LEVELS)),
    show_default=True,
    metavar="N,N,...",
    help="Numbers of requests at once.",
)
@click.option(
    "--requests-per-level",
    type=click.IntRange(min=1),
    help="Requests for each of these numbers.  [default: 4 times the number, at least 16]",
)
@click.option(
    "--prompt", metavar="TEXT", help="Prompt of all requests.  [default: each asks for other numbers in words]"
)
@click.option(
    "-i", "--input", "data", metavar="PATH", help="Prompts: JSONL, Parquet, or a Hugging Face data set on disk."
)
@click.option(
    "--prompt-field", metavar="FIELD", help="Field of the prompt in --input.  [default: messages, prompt or text]"
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    default=32,
    show_default=True,
    help="Upper limit of the tokens of an answer.",
)
@timeout_option(600.0)
@click.option("-o", "--output", metavar="FILE", help="Also write the measurement to this file, as JSON.")
@click.option("--plot", metavar="FILE", help="Also draw the measurement: a .png, .svg or .pdf.")
@force_option
@json_option
@click.pass_context
def bench(ctx: click.Context, **options: Any) -> None:
    """Measure throughput and latency of a model server by the number of requests at once.

    The knee is the smallest number that reaches 90% of the best throughput: with more requests at once, each one waits
    longer and little is gained. A request that fails is counted and not repeated. One that is refused because the
    server is busy (HTTP 429, 503) is counted and sent again. With one prompt for all requests, a server that caches
    prompts reads it only once.

    \b
    Examples:
      brim llm bench --model llama3.2
      brim llm bench --server http://127.0.0.1:8080 --concurrency 1,2,4,8 \\
        --plot bench.png
      brim llm bench --model llama3.2 -i prompts.jsonl --max-tokens 256 \\
        -o bench.json

    Exit status: 0 measured, 1 measured, but some requests failed, 2 the options or the server are wrong.
    """
    if options["prompt"] is not None and options["data"] is not None:
        raise click.UsageError("--prompt and --input exclude each other")
    if options["prompt_field"] is not None and options["data"] is None:
        raise click.UsageError("--prompt-field has no effect without --input")
    from brim.cli.llm.bench_plot import save_plot
    from brim.llm.measure import CURVE, measure_curve

    output, plot = options["output"], options["plot"]
    _check_files(output, plot, force=options["force"])
    urls = [] if options["server"] is None else [options["server"]]
    (server,) = named_servers(urls, options["protocol"], options["key_env"])
    calls = _calls(options["prompt"], options["data"], options["prompt_field"])
    with counting_progress("asking") as progress:
        curve = measure_curve(
            server,
            model=options["model"],
            concurrency=options["concurrency"],
            requests=options["requests_per_level"],
            calls=calls,
            max_tokens=options["max_tokens"],
            timeout=options["timeout"],
            progress=progress,
        )
    try:
        if output is not None:
            CURVE.write(output, curve.to_dict())
        if plot is not None:
            save_plot(curve, plot)
    finally:  # it may have taken minutes: show it even if it cannot be written
        show_json(curve.to_dict()) if options["as_json"] else _show(curve)
    ctx.exit(1 if any(level.failed for level in curve.levels) else 0)


def _check_files(output: str | None, plot: str | None, *, force: bool) -> None:
    """Refuse outputs that cannot or must not be written, before anything is measured."""
    from brim.analyze.plots import MARKS, check_plot
    from brim.cli.llm.bench_plot import USER
    from brim.llm.measure import CURVE

    if plot is not None:
        check_plot(plot, user=USER)
        check_output(plot, force=force, what="a plot of this command", ours=marked(*MARKS))
    if output is not None:
        family = CURVE.format.split("/")[0]
        mark = f'"format": "{family}/'.encode()
        check_output(output, force=force, what="a measurement of this command", ours=marked(mark))
    if output is not None and plot is not None and Path(output).absolute() == Path(plot).absolute():
        raise OptionError(f"--output and --plot are the same file, {output}; choose another one for the plot")


def _calls(prompt: str | None, data: str | None, field: str | None) -> "Sequence[Call]":
    """Return the questions to ask; none to ask those that `measure_curve` makes."""
    from brim.llm.answers.rows import read_input
    from brim.llm.answers.template import Prompts
    from brim.llm.call import Call, chat

    if prompt is not None:
        return [Call(messages=chat(prompt))]
    if data is None:
        return []
    prompts = Prompts(field=field)

    def check(row: dict[str, Any]) -> None:
        prompts.messages(row)

    rows = read_input(data, check=check)
    return [Call(messages=prompts.messages(row)) for _, row in islice(rows, MOST_PROMPTS)]


def _show(curve: "LoadCurve") -> None:
    show_facts(
        {
            "server": f"{curve.server}, {curve.protocol}",
            "model": f"{curve.model}, answers of at most {curve.max_tokens} tokens",
        }
    )
    click.echo()
    show_table(COLUMNS, [_row(level, is_knee=level is curve.knee) for level in curve.levels])
    click.echo()
    show_prose(*_sentences(curve))


def _row(level: "Level", *, is_knee: bool) -> Sequence[Any]:
    name = f"{level.concurrency}, knee" if is_knee else str(level.concurrency)
    rates = [rate_text(level.requests_per_second), rate_text(level.tokens_per_second)]
    times = [seconds_text(seconds) for seconds in (level.latency_p50, level.latency_p90, level.latency_p99)]
    if level.is_overloaded:  # the few requests that ended before the level was stopped say nothing about its speed
        rates, times = ["-"] * len(rates), ["-"] * len(times)
    return (name, level.requests, *rates, *times, level.refused, level.failed)


def _sentences(curve: "LoadCurve") -> list[str]:
    sentences: list[str] = []
    knee = curve.knee
    if knee is not None:
        plural = "s" * (knee.concurrency != 1)
        unit = "tokens/s" if curve.counts_tokens else "requests/s"
        sentences.append(
            f"{knee.concurrency} request{plural} at once reach {curve.rate(knee) / curve.best:.0%} of the best "
            f"throughput ({rate_text(curve.best)} {unit}) with a median latency of {seconds_text(knee.latency_p50)}."
        )
        if knee is curve.levels[-1] and len(curve.levels) > 1:
            sentences.append("No larger number was tried: the throughput may still grow; raise --concurrency.")
    for level in curve.levels:
        if level.is_overloaded:
            sentences.append(
                f"At {level.concurrency} at once the server was busy and refused requests {level.refused} times, so "
                "this level was not measured to its end, and no larger number was tried."
            )
        if level.failure is not None:
            kind = type(level.failure).__name__
            sentences.append(
                f"{level.failed} of {level.requests} requests failed at {level.concurrency} at once; the first one: "
                f"{kind}: {level.failure}"
            )
    return sentences
