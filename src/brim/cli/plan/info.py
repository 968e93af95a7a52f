"""`brim plan info`: the contents of a plan."""

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from brim.cli.batching import option_facts
from brim.cli.options import check_rank
from brim.cli.plan.figures import balance_figures, dropped_figures, packed_figures
from brim.cli.show import counting_progress, json_option, show_facts, show_json, show_table
from brim.core.errors import OptionError
from brim.core.fill import Fill
from brim.plan.config import BatchingMode

if TYPE_CHECKING:
    from brim.plan.epoch import EpochPlan
    from brim.plan.plan import BatchPlan


@click.command()
@click.option("-p", "--plan", "path", required=True, metavar="DIR", help="Plan to show.")
@click.option(
    "-n",
    "--show-batches",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Number of microbatches to list.",
)
@click.option("-r", "--rank", type=int, help="Show the share of this rank.  [default: 0 if -w is given]")
@click.option("-w", "--world-size", type=int, help="Number of ranks.")
@json_option
def info(path: str, show_batches: int, rank: int | None, world_size: int | None, as_json: bool) -> None:
    """Show the contents of a plan.

    "meet again" is the share of pairs of samples in a microbatch that also share one in the next epoch: the lower, the
    more random; it needs a plan of two epochs or more. "above their lower bound" is the share of packed rows that a
    better packing could save at most. "balance" is the mean cost of a microbatch divided by the mean cost of the most
    expensive one of each step: the share of their time in which ranks work, if each takes one microbatch of a step.

    With --world-size, figures are those of the rank, unless they say that they are over all ranks.

    \b
    Examples:
      brim plan info -p plan/
      brim plan info -p plan/ -n 5 --rank 3 --world-size 8

    Exit status: 0 shown, 2 the plan is missing or damaged.
    """
    if rank is not None and world_size is None:
        raise OptionError("--rank needs --world-size")
    check_rank(rank, world_size)
    from brim.plan.plan import BatchPlan

    with counting_progress("reading the plan") as progress:
        plan = BatchPlan.load(path, report=progress.searched)
        if world_size is not None:
            plan = plan.shard(rank or 0, world_size)
        figures = packed_figures(plan, 0) | balance_figures(plan, 0)
        epochs = [_epoch(plan, epoch) for epoch in range(plan.num_epochs)]
        first = plan.get_epoch(0)
        microbatches = [_microbatch(first, index) for index in range(min(show_batches, len(first)))]
        groups = _groups(plan)
    if as_json:
        values: dict[str, Any] = {**_counts(plan), **_facts(plan), **figures.values}
        values |= {"config": plan.config.to_dict(), "per_epoch": epochs, **({"groups": groups} if groups else {})}
        values |= {"skipped_samples": plan.skipped(), "truncated_samples": plan.truncated()}
        show_json({**values, "microbatches": microbatches} if show_batches else values)
        return
    show_facts({**_labelled(plan, _counts(plan)), **_facts(plan), **_labelled(plan, figures.shown), **_options(plan)})
    click.echo()
    shown = _shown(plan, epochs)
    show_table(list(shown[0]), [list(row.values()) for row in shown])
    if groups:
        click.echo()
        show_table(["group", "samples", "microbatches", "padding"], [list(row.values())[:4] for row in groups])
        click.echo(f"groups never share a microbatch; these are of epoch 0{_of_rank(plan)}")
    if microbatches:
        click.echo()
        show_table(list(microbatches[0]), [list(row.values()) for row in microbatches])


def _counts(plan: "BatchPlan") -> dict[str, int]:
    counts = plan.counts
    return {
        "samples": counts.samples,
        "tokens": counts.tokens,
        "skipped": counts.skipped,
        "truncated": counts.truncated,
        "truncated tokens": counts.truncated_tokens,
        "split": counts.split,
    }


def _facts(plan: "BatchPlan") -> dict[str, Any]:
    from brim.plan.build import ALGORITHM

    table, algorithm = plan.table, plan.epochs.algorithm
    facts: dict[str, Any] = {
        "epochs": plan.num_epochs,
        "buckets": None if plan.buckets is None else ",".join(str(width) for width in plan.buckets.widths),
        "microbatches per step": plan.step_size,
        "rank": _of_rank(plan).removeprefix(", rank ") or None,
        "planner": None if algorithm == ALGORITHM else f"version {algorithm}",
        "fingerprint": plan.fingerprint,
        "lengths": table.fingerprint,
        "data": table.dataset_hash or "unknown",
        "tokenizer": table.tokenizer_hash or "unknown",
    }
    return {name: value for name, value in facts.items() if value is not None}


def _labelled(plan: "BatchPlan", facts: dict[str, Any]) -> dict[str, Any]:
    """Return facts that are over all ranks, and say so if the rest is about one."""
    return {name if plan.world_size == 1 else f"{name}, over all ranks": value for name, value in facts.items()}


def _options(plan: "BatchPlan") -> dict[str, Any]:
    """Return the options of a plan as facts; those that do not act beside the others are left out."""
    config = plan.config
    values = {name: value for name, value in config.to_dict().items() if name not in _idle(plan) and value is not None}
    if "packing" in values:
        searches = plan.epochs.algorithm > 1 and values["packing"]["mode"] in ("auto", "optimal")
        idle = [] if searches else ["time_limit"]
        values["packing"] = {
            name: value for name, value in values["packing"].items() if name not in idle and value is not None
        }
    facts: dict[str, Any] = {}
    for name, value in values.items():
        facts |= option_facts(name, value)
        if name == "cost" and config.cost is not None and config.cost.attention_scale is not None:
            facts["attention costs as much at"] = f"{config.cost.attention_scale:,} tokens"
    return facts


def _idle(plan: "BatchPlan") -> set[str]:
    """Return the names of options that change nothing in this plan."""
    config = plan.config
    one_width = config.mode is BatchingMode.PREDICTABLE if config.packing is None else config.packing.pad_to_max
    idle: set[str] = set()
    if not config.shuffle or (one_width and plan.epochs.algorithm > 1):
        idle |= {"window", "window_padding"}
    if config.window is not None or plan.epochs.algorithm == 1 or plan.table.axes is not None:
        idle.add("window_padding")
    if not config.shuffle or plan.epochs.algorithm == 1:
        idle.add("cost")
    return idle


def _epoch(plan: "BatchPlan", number: int) -> dict[str, Any]:
    import numpy as np

    view = plan.get_epoch(number)
    columns, places = view.columns, view.places[view.places >= 0]
    shapes = Counter(zip(np.diff(columns.row_ptr)[places].tolist(), columns.width[places].tolist(), strict=True))
    return {
        "epoch": view.epoch,
        "microbatches": len(view),
        "steps": view.num_steps,
        "empty": int(np.sum(view.places < 0)),
        "sequences": view.total_samples,
        "tokens": view.total_tokens,
        "padding": f"{view.fill.waste:.2%}",
        "shapes": len(shapes),
        "meet_again": _meet_again(plan, number),
        "dropped": dropped_figures(plan, number).values[f"dropped in epoch {number}"],
    }


def _meet_again(plan: "BatchPlan", number: int) -> float | None:
    """Return the share of the pairs of samples in a microbatch that also share one in the next epoch."""
    from brim.plan.company import meet_again

    if number + 1 == plan.num_epochs or plan.share.partial:
        return None
    return meet_again(plan.columns(number), plan.columns(number + 1), len(plan.units))


def _shown(plan: "BatchPlan", epochs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the facts of epochs as a table for people: without what does not occur."""
    rows: list[dict[str, Any]] = []
    for epoch in epochs:
        again = epoch["meet_again"]
        row = {name: value for name, value in epoch.items() if name not in ("meet_again", "dropped")}
        rows.append(row | _labelled(plan, {"meet again": "-" if again is None else f"{again:.1%}"}))
        if any(each["dropped"] for each in epochs):
            rows[-1] |= _labelled(plan, {"dropped": epoch["dropped"]})
    return rows


def _microbatch(view: "EpochPlan", index: int) -> dict[str, Any]:
    microbatch = view[index]
    names = ", ".join(str(id) for id in microbatch.samples[:4]) + (", ..." if len(microbatch.samples) > 4 else "")
    return {
        "#": index,
        "global": microbatch.index if not microbatch.is_null else "empty",
        "rows": microbatch.batch_size,
        "width": microbatch.max_len,
        "padding": f"{microbatch.fill.waste:.1%}",
        "samples": names,
    }


def _groups(plan: "BatchPlan") -> list[dict[str, Any]]:
    """Return the facts of each group in this share, and for nested samples its structure."""
    import numpy as np

    view = plan.get_epoch(0)
    columns, names = view.columns.take(view.places[view.places >= 0]), plan.table.group_names
    if columns.group is None:
        return []
    rows, slots = (
        np.diff(columns.row_ptr if columns.seq_ptr is None else columns.seq_ptr[columns.row_ptr]),
        columns.slots,
    )
    known = {each["name"]: each for each in plan.table.source.get("structures", [])}
    groups: list[dict[str, Any]] = []
    for number, name in enumerate(names):
        mine = columns.group == number
        fill = Fill(int(columns.tokens[mine].sum()), int(slots[mine].sum()))
        facts = {
            "group": name,
            "samples": int(rows[mine].sum()),
            "microbatches": int(mine.sum()),
            "padding": f"{fill.waste:.2%}",
        }
        groups.append({**facts, **{key: value for key, value in known.get(name, {}).items() if key != "name"}})
    return groups


def _of_rank(plan: "BatchPlan") -> str:
    return f", rank {plan.rank} of {plan.world_size}" if plan.world_size > 1 else ""
