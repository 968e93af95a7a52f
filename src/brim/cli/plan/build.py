"""`brim plan build` and `brim plan shard`: write plans."""

from typing import TYPE_CHECKING, Any

import click

from brim.cli.batching import config_from
from brim.cli.options import check_rank, planning_options
from brim.cli.plan.figures import Figures, balance_figures, dropped_figures, last_step_figures, packed_figures
from brim.cli.show import counting_progress, json_option, show_facts, show_json
from brim.core.errors import OptionError

if TYPE_CHECKING:
    from brim.plan.plan import BatchPlan


@click.command()
@click.option("-l", "--lengths", required=True, metavar="FILE", help="Length cache to plan.")
@click.option("-o", "--output", required=True, metavar="DIR", help="Plan to write. An existing plan is replaced.")
@click.option("-e", "--epochs", type=int, default=1, show_default=True, help="Number of epochs.")
@planning_options(("-p", "--predictable"))
@click.option("--lazy", is_flag=True, help="Do not store the epochs; build them when they are used.")
@json_option
def build(lengths: str, output: str, epochs: int, lazy: bool, as_json: bool, **options: Any) -> None:
    """Plan which samples share a batch.

    Reads lengths, never text. The plan is a directory that can be inspected, verified, sharded and kept with the run.

    With --microbatches-per-step, "balance" is the mean cost of a microbatch divided by the mean cost of the most
    expensive one of each step: 100% if no rank ever waits for another.

    \b
    Examples:
      brim plan build -l lengths.jsonl -b 16384 -e 3 -o plan/
      brim plan build -l lengths.jsonl -b 16384 --pack \\
        --overflow truncate -o plan/
      brim plan build -l lengths.jsonl -b 16384 --predictable \\
        --num-buckets 8 -o plan/

    Exit status: 0 written, 2 the options or the data are wrong.
    """
    config = config_from(options)
    if epochs < 1:
        raise OptionError(f"the number of epochs must be at least 1, got {epochs}")
    from brim.data.lengths import LengthCache
    from brim.plan.plan import BatchPlan

    with counting_progress("planning epochs") as progress:
        plan = BatchPlan.build(LengthCache.load(lengths), config, num_epochs=epochs, report=progress.searched)
        check_steps(plan)
        plan.save(output, lazy=lazy, progress=progress)
    counts = plan.counts
    figures = _of_epoch_0(output, lazy=lazy)
    facts: dict[str, Any] = {"written": output, "samples": counts.samples - counts.skipped, "epochs": epochs}
    facts |= figures.values if as_json else figures.shown
    if plan.buckets is not None:
        facts["buckets"] = ",".join(str(width) for width in plan.buckets.widths)
    left_out = {
        "skipped": counts.skipped,
        "truncated": counts.truncated,
        "truncated tokens": counts.truncated_tokens,
        "split": counts.split,
    }
    facts |= {name: value for name, value in left_out.items() if value or as_json}
    facts["fingerprint"] = plan.fingerprint
    show_json(facts) if as_json else show_facts(facts)


def check_steps(plan: "BatchPlan") -> None:
    """Refuse a plan that leaves out all data.

    Raises:
        OptionError: Its first epoch has no optimizer step.
    """
    if not plan.config.drop_last and plan.config.remainder != "drop":
        return
    deal = plan.deal(0)
    if deal.steps:
        return
    why = (
        f"--remainder drop drops a step of {deal.step_size:,} microbatches if it is short, and epoch 0 has only "
        f"{deal.total:,}; take smaller steps, or --remainder null or repeat"
        if deal.total
        else "with so few samples, --drop-last drops everything; leave it out"
    )
    raise OptionError(f"the plan contains no optimizer steps: {why}")


def _of_epoch_0(path: str, *, lazy: bool) -> Figures:
    """Return what epoch 0 is like, and the padding of all epochs, as they were stored; nothing if they were not."""
    from pathlib import Path

    from brim.core.fill import Fill
    from brim.plan.plan import BatchPlan
    from brim.plan.store import read_index

    if lazy:
        return Figures({}, {})
    stored, plan = read_index(Path(path))["epochs"], BatchPlan.load(path)
    fill = sum((Fill(epoch["tokens"], epoch["slots"]) for epoch in stored), Fill())
    facts = {
        "microbatches in epoch 0": stored[0]["microbatches"],
        "tokens in epoch 0": stored[0]["tokens"],
        "padding": f"{fill.waste:.2%}",
    }
    figures = Figures(facts, facts) | dropped_figures(plan, 0) | last_step_figures(plan, 0)
    return figures | balance_figures(plan, 0) | packed_figures(plan, 0)


@click.command()
@click.option("-p", "--plan", "path", required=True, metavar="DIR", help="Plan to shard.")
@click.option("-w", "--world-size", type=int, required=True, help="Number of ranks.")
@click.option("-o", "--output", required=True, metavar="DIR", help="Directory for rank_0, rank_1, ...")
@json_option
def shard(path: str, world_size: int, output: str, as_json: bool) -> None:
    """Write one plan for each rank, all with the same number of microbatches.

    Training does not need this: a rank takes its share of the whole plan, and can resume on another number of ranks.
    Shards are for inspection, and for machines that should hold only their own share.

    \b
    Examples:
      brim plan shard -p plan/ -w 4 -o shards/

    Exit status: 0 written, 2 the options or the plan are wrong.
    """
    check_rank(None, world_size)
    from brim.plan.plan import BatchPlan
    from brim.plan.store import save_shards

    with counting_progress("writing ranks") as progress:
        plan = BatchPlan.load(path, report=progress.searched)
        check_steps(plan.shard(0, world_size))
        save_shards(plan, output, world_size, progress=progress)
    deal = plan.shard(0, world_size).deal(0)
    facts = {
        "written": output,
        "ranks": world_size,
        "microbatches per rank and epoch": deal.rounds,
        "steps per epoch": deal.steps,
        "empty microbatches": deal.nulls,
        "dropped": deal.dropped,
        "repeated": deal.repeated,
    }
    show_json(facts) if as_json else show_facts(facts)
