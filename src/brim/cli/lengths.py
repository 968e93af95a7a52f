"""`brim lengths`: measure a data set, look at the result."""

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from brim.cli.options import ROWS, group_flag, row_flags
from brim.cli.show import json_option, measuring_progress, show_drawing, show_facts, show_json, show_table, width_option
from brim.core.options import check_counts
from brim.data.rows.format import RowFormat

cache_option = click.option(
    "-c", "--cache", "-l", "--lengths", "cache", required=True, metavar="FILE", help="Length cache to read."
)


def _costs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, int]:
    """Read costs such as ("context=3", ...) into a dict."""
    costs: dict[str, int] = {}
    for value in values:
        axis, _, cost = value.rpartition("=")
        if not axis or not cost.isdecimal():
            raise click.BadParameter(f"{value!r} is not an axis and a whole number such as context=3", ctx, param)
        costs[axis] = int(cost)
    return costs


@click.command()
@click.option(
    "-d",
    "--data",
    "--dataset",
    "data",
    required=True,
    metavar="PATH",
    help="JSONL, Parquet, or a Hugging Face data set on disk; for nested samples HDF5, NPZ or Parquet.",
)
@click.option(
    "-t",
    "--tokenizer",
    default="byte",
    show_default=True,
    help="byte, arc, a tokenizer.json, a directory, or a name in the local cache.",
)
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="FILE",
    help="Length cache to write: JSONL if the name ends in .jsonl, else columns.",
)
@row_flags
@group_flag
@click.option(
    "--nested",
    is_flag=True,
    help="Rows of Parquet are nested samples: measure their structure.  [HDF5 and NPZ always are]",
)
@click.option("--root", metavar="GROUP", help="The group of an HDF5 file that holds the samples.  [default: the file]")
@click.option(
    "--axis-cost",
    "axis_costs",
    multiple=True,
    callback=_costs,
    metavar="AXIS=N",
    help="Cost of a step along this axis of nested samples. Can be repeated.",
)
@click.option("--workers", type=int, help="Number of processes.  [default: all cores for large data, one for small]")
@click.option(
    "--torn-line",
    "torn",
    type=click.Choice(["error", "skip"]),
    default="error",
    show_default=True,
    help="What to do with an incomplete last line.",
)
@click.option("-q", "--quiet", is_flag=True, help="No progress bar.")
@json_option
@click.pass_context
def build(
    ctx: click.Context,
    data: str,
    tokenizer: str,
    output: str,
    nested: bool,
    root: str | None,
    axis_costs: dict[str, int],
    workers: int | None,
    torn: str,
    quiet: bool,
    as_json: bool,
    **rows: str | None,
) -> None:
    """Tokenize a data set and keep the lengths.

    Rows may be text, prompt/response, instruction/input/output, messages, or input_ids. A build that was killed
    resumes when it is started again. After rows were appended to the data, only those are measured.

    Nested samples (HDF5, NPZ, or Parquet with --nested) have no text: samples of one structure become a group, and
    every ragged axis is measured.

    \b
    Examples:
      brim lengths build -d train.jsonl -t byte -o lengths.jsonl
      brim lengths build -d train.jsonl -t gpt2 -o lengths.brim
      brim lengths build -d qa.parquet -o lengths.brim \\
        --prompt-field question --response-field answer
      brim lengths build -d histories.h5 -o lengths.brim
      brim lengths build -d histories.h5 --axis-cost context=3 -o lengths.brim

    Exit status: 0 written, 2 the options or the data are wrong.
    """
    check_counts(workers=workers)
    format = RowFormat(**{name: rows[name] for name in ROWS})  # pyright: ignore[reportArgumentType]  checked there
    if nested or root is not None or axis_costs or _always_nested(Path(data)):
        _refuse_text(ctx)
        _build_nested(data, output, root, rows["id_field"], axis_costs, as_json)
        return
    from brim.data.measure import build_lengths

    with measuring_progress(quiet) as progress:
        built = build_lengths(data, output, tokenizer, format, workers=workers, torn=torn, progress=progress)  # pyright: ignore[reportArgumentType]
    cache = built.cache
    facts = {
        "written": output,
        "samples": len(cache),
        "tokens": int(cache.lengths.sum(dtype="int64")),
        "measured now": len(cache) - built.reused - built.resumed,
        "reused": built.reused,
        "resumed": built.resumed,
        "blank lines": cache.source.get("blank", 0),
        "torn lines skipped": cache.source.get("torn", 0),
        "data": cache.dataset_hash,
        "tokenizer": cache.tokenizer_hash,
    }
    show_json(facts) if as_json else show_facts(facts)


def _always_nested(data: Path) -> bool:
    """Return whether the data has a format that holds only nested samples."""
    from brim.data.nested.open import HDF5_SUFFIXES, NPZ_SUFFIXES

    suffixes = {data.suffix.lower()} | ({file.suffix.lower() for file in data.iterdir()} if data.is_dir() else set())
    return not suffixes.isdisjoint(HDF5_SUFFIXES + NPZ_SUFFIXES)


def _refuse_text(ctx: click.Context) -> None:
    """Refuse the flags that concern text."""
    given = {name for name in ctx.params if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT}
    if useless := sorted(given - {"data", "output", "id_field", "nested", "root", "axis_costs", "quiet", "as_json"}):
        raise click.UsageError(f"--{useless[0].replace('_', '-')} has no effect on nested samples, which have no text")


def _build_nested(
    data: str, output: str, root: str | None, id_field: str | None, axis_costs: dict[str, int], as_json: bool
) -> None:
    """Measure nested samples, and show their groups."""
    import numpy as np

    from brim.core.atomic import check_target
    from brim.data.measure import check_output
    from brim.data.nested.lengths import charge_axes
    from brim.data.nested.open import open_nested

    check_target(output)
    check_output(Path(output), Path(data))
    table = open_nested(data, root=root, id_field=id_field).table
    if axis_costs:
        table = charge_axes(table, axis_costs)
    table.save(output)
    assert table.groups is not None  # one for each structure
    counts = np.bincount(table.groups, minlength=len(table.group_names)).tolist()
    groups: list[dict[str, Any]] = [
        {"group": each["name"], "samples": count, "axes": each["axes"], "structure": each["structure"]}
        for each, count in zip(table.source["structures"], counts, strict=True)
    ]
    steps = int(table.lengths.sum(dtype="int64"))
    facts: dict[str, Any] = {"written": output, "samples": len(table), "steps": steps, "data": table.dataset_hash}
    if as_json:
        show_json({**facts, "groups": groups})
        return
    show_facts(facts)
    click.echo()
    show_table(
        ["group", "samples", "ragged along"],
        [[each["group"], each["samples"], ", ".join(each["axes"])] for each in groups],
    )


@click.command()
@cache_option
@json_option
def stats(cache: str, as_json: bool) -> None:
    """Summarize a length cache.

    \b
    Examples:
      brim lengths stats -c lengths.jsonl
      brim lengths stats -c lengths.brim --json

    Exit status: 0 shown, 2 the cache is missing or damaged.
    """
    from brim.analyze.histogram import compute_length_histogram
    from brim.data.lengths import LengthCache

    table = LengthCache.load(cache)
    histogram = compute_length_histogram(table)
    facts = {
        "samples": histogram.count,
        "tokens": histogram.total,
        "shortest": histogram.shortest,
        "longest": histogram.longest,
        "mean": round(histogram.mean, 1),
        **{f"p{percent}": length for percent, length in histogram.percentiles.items()},
        "groups": len(table.group_names),
        "data": table.dataset_hash or "unknown",
        "tokenizer": table.tokenizer_hash or "unknown",
        "fingerprint": table.fingerprint,
    }
    show_json(facts) if as_json else show_facts(facts)


@click.command()
@cache_option
@click.option("--bins", default=20, show_default=True, help="Number of bins.")
@click.option("--bin-width", type=int, help="Tokens in a bin, instead of a number of bins.")
@width_option
@json_option
def histogram(cache: str, bins: int, bin_width: int | None, width: int, as_json: bool) -> None:
    """Draw the histogram of the lengths.

    \b
    Examples:
      brim lengths histogram -c lengths.jsonl --bins 15
      brim lengths histogram -c lengths.jsonl --bin-width 256 --json

    Exit status: 0 shown, 2 the cache is missing or damaged.
    """
    check_counts(bins=bins, bin_width=bin_width)
    from brim.analyze.histogram import compute_length_histogram
    from brim.data.lengths import LengthCache

    counted = compute_length_histogram(LengthCache.load(cache), bins, bin_width)
    show_json(counted.to_dict()) if as_json else show_drawing(counted.to_ascii, width)
