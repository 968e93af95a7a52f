"""`brim plan analyze` and `brim plan suggest`: how much padding each way of batching has, and the optimal bucket
edges.
"""

import json
from typing import TYPE_CHECKING, Any

import click

from brim.cli.lengths import cache_option
from brim.cli.options import edges_option
from brim.cli.output import check_output, force_option, marked
from brim.cli.show import json_option, show_drawing, show_json, show_prose, show_table, width_option
from brim.core.errors import OptionError
from brim.core.options import check_counts
from brim.plan.config import check_edges
from brim.plan.goal import OptimizationGoal

if TYPE_CHECKING:
    from brim.analyze.capacity.search import Capacity
    from brim.analyze.report import BatchingEfficiencyReport
    from brim.analyze.suggest import BucketSuggestion
    from brim.data.lengths import LengthCache
    from brim.plan.buckets import BucketSpec

GOALS = {
    "waste": OptimizationGoal.MINIMIZE_WASTE,
    "balance": OptimizationGoal.BALANCE_BUCKETS,
    "memory": OptimizationGoal.MINIMIZE_MEMORY,
}


@click.command()
@cache_option
@edges_option("Edges of the buckets in use, if there are any.")
@click.option("--overflow-max", type=int, help="Width of the last bucket.  [default: the longest sample]")
@click.option(
    "-b",
    "--token-budget",
    type=int,
    help="Upper limit of the tokens in a microbatch.  [default: 4096, or the longest sample if that is more]",
)
@click.option(
    "-n",
    "--num-buckets",
    type=int,
    help="Number of optimal buckets to compare with.  [default: as many as in use, else 8]",
)
@click.option(
    "--batch-size", type=int, help="Samples in a random batch.  [default: as many as a budget holds on average]"
)
@click.option(
    "--pack-max-len", type=int, help="Tokens in a packed row.  [default: 2048, or the longest sample if that is more]"
)
@click.option(
    "--pad-to-multiple", type=int, default=1, show_default=True, help="Round widths up to a multiple of this."
)
@click.option("-s", "--seed", type=int, default=42, show_default=True, help="Seed of the orders that are compared.")
@click.option("--bins", default=20, show_default=True, help="Number of bins of the histogram.")
@width_option
@click.option(
    "--measured",
    metavar="FILE",
    help="Measurement of brim bench batch-size -o, from which memory and speed are estimated.",
)
@click.option("-o", "--output", metavar="FILE", help="Also write the report to this file, as JSON.")
@force_option
@json_option
def analyze(
    cache: str,
    bucket_edges: tuple[int, ...] | None,
    overflow_max: int | None,
    width: int,
    measured: str | None,
    output: str | None,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Compare ways of batching these lengths, and recommend one.

    Compares random batches, batches grouped by length, the buckets in use, optimal buckets, sorted windows and packed
    rows by padding, steps of an epoch, distinct shapes, attention (the sum of squared lengths), the largest batch,
    which has to fit into memory, and the speed-up over random batches by the planner's cost model. With --measured,
    costs become seconds and the largest batch becomes bytes.

    \b
    Examples:
      brim plan analyze -l lengths.brim -b 16384
      brim plan analyze -l lengths.jsonl --bucket-edges 128,256,512 -o report.json
      brim plan analyze -l lengths.brim -b 16384 --measured capacity.json

    Exit status: 0 shown, 2 the options are wrong or the cache is damaged.
    """
    counts = ("token_budget", "num_buckets", "batch_size", "pack_max_len", "pad_to_multiple", "bins")
    check_counts(overflow_max=overflow_max, **{name: options[name] for name in counts})
    if bucket_edges is not None:
        check_edges(bucket_edges)
    elif overflow_max is not None:
        raise OptionError("--overflow-max needs --bucket-edges")
    from brim.analyze.report import create_efficiency_report
    from brim.core.atomic import atomic_file
    from brim.data.lengths import LengthCache

    if output is not None:
        check_output(output, force=force, what="a report of this command", ours=marked(b'{\n  "token_budget": '))
    table = LengthCache.load(cache)
    report = create_efficiency_report(
        table,
        _spec(table, bucket_edges, overflow_max),
        num_bins=options.pop("bins"),
        pack_length=options.pop("pack_max_len"),
        capacity=None if measured is None else _capacity(measured),
        **options,
    )
    if output is not None:
        with atomic_file(output) as file:
            file.write(json.dumps(report.to_dict(), indent=2).encode() + b"\n")
    show_json(report.to_dict()) if as_json else _show(report, width)


def _capacity(path: str) -> "Capacity":
    from brim.analyze.capacity.search import Capacity

    capacity = Capacity.load(path)
    if capacity.unit != "tokens":
        raise OptionError(
            f"{path} was measured in {capacity.unit}, not in tokens; measure with: brim bench batch-size -o FILE"
        )
    return capacity


def _spec(table: "LengthCache", edges: tuple[int, ...] | None, overflow_max: int | None) -> "BucketSpec | None":
    from brim.plan.buckets import BucketSpec

    if edges is None:
        return None
    if overflow_max is not None and (not edges or overflow_max != edges[-1]):
        return BucketSpec(edges=edges, overflow_max=overflow_max)
    return BucketSpec.covering(edges, overflow_max or int(table.lengths.max(initial=1)))


def _show(report: "BatchingEfficiencyReport", width: int) -> None:
    edges = () if report.analysis is None else report.analysis.bucket_spec.widths
    show_drawing(lambda fits: report.histogram.to_ascii(fits, edges=edges), width)
    click.echo()
    if report.analysis is not None:
        show_drawing(report.analysis.to_ascii, max(1, width // 2))
        click.echo()
    show_table(report.COLUMNS, report.table())
    click.echo()
    show_prose(report.advice, *report.notes)


@click.command()
@cache_option
@click.option("-n", "--num-buckets", default=4, show_default=True, help="Upper limit of the number of buckets.")
@click.option(
    "-g",
    "--goal",
    type=click.Choice([*GOALS, *map(str, OptimizationGoal)]),
    metavar=f"[{'|'.join(GOALS)}]",
    default="waste",
    show_default=True,
    help="What is minimized: padding, the difference between bucket sizes, or the attention memory of padded rows.",
)
@click.option(
    "--max-length",
    type=int,
    help="Upper limit of a bucket's width; longer samples are in no bucket.  [default: the longest sample]",
)
@click.option(
    "--pad-to-multiple", type=int, default=1, show_default=True, help="Round widths up to a multiple of this."
)
@width_option
@json_option
def suggest(
    cache: str, num_buckets: int, goal: str, max_length: int | None, pad_to_multiple: int, width: int, as_json: bool
) -> None:
    """Find the optimal bucket edges for a goal.

    The answer is exact: no other edges are better by the measure of the goal. The other goals are shown beside it.

    \b
    Examples:
      brim plan suggest -l lengths.brim -n 8
      brim plan suggest -l lengths.jsonl -n 6 --goal memory --pad-to-multiple 16

    Exit status: 0 shown, 2 the options are wrong or the cache is damaged.
    """
    check_counts(num_buckets=num_buckets, max_length=max_length, pad_to_multiple=pad_to_multiple)
    from brim.analyze.counts import check_one_length
    from brim.analyze.histogram import compute_length_histogram
    from brim.analyze.strategies import bucket_flags
    from brim.analyze.suggest import MEASURES, suggest_bucket_edges
    from brim.data.lengths import LengthCache

    table = LengthCache.load(cache)
    check_one_length(table, "bucket edges")
    histogram = compute_length_histogram(table)
    wanted = GOALS.get(goal) or OptimizationGoal(goal)
    found = {
        one: suggest_bucket_edges(histogram, num_buckets, one, max_length, pad_to_multiple=pad_to_multiple)
        for one in OptimizationGoal
    }
    if as_json:
        others = {str(one): suggestion.to_dict() for one, suggestion in found.items() if one is not wanted}
        show_json({**found[wanted].to_dict(), "other_goals": others})
        return
    chosen = found[wanted]
    click.echo(bucket_flags(chosen.bucket_spec))
    click.echo()
    show_drawing(chosen.to_ascii, max(1, width // 2))
    click.echo()
    show_table(["goal", "fill", "largest bucket", "attention"], [_row(one, found) for one in found.values()])
    click.echo()
    show_prose(f"No other edges have a smaller sum of {MEASURES[wanted]}.")


def _row(one: "BucketSuggestion", found: "dict[OptimizationGoal, BucketSuggestion]") -> list[str]:
    """Return a row of the table. Attention is relative to its minimum over all goals."""
    least = found[OptimizationGoal.MINIMIZE_MEMORY].cost
    samples = max(bucket.sample_count for bucket in one.analysis.buckets) / one.analysis.num_samples
    attention = one.analysis.cost(OptimizationGoal.MINIMIZE_MEMORY) / least
    return [str(one.goal), f"{one.analysis.efficiency:.1%}", f"{samples:.1%}", f"{attention:.2f}x"]
