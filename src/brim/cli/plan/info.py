"""`brim plan info`: the contents of a plan."""

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from brim.cli.plan.packed import packed_facts
from brim.cli.show import json_option, show_facts, show_json, show_table
from brim.core.errors import OptionError
from brim.core.fill import Fill

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
@click.option("-r", "--rank", type=int, help="Show the share of this rank; needs --world-size.")
@click.option("-w", "--world-size", type=int, help="Number of ranks.")
@json_option
def info(path: str, show_batches: int, rank: int | None, world_size: int | None, as_json: bool) -> None:
    """Show the contents of a plan.

    "meet again" is the share of pairs of samples in a microbatch that also share one in the next epoch: the lower, the
    more random. "above their lower bound" is the share of packed rows that a better packing could save at most.

    \b
    Examples:
      brim plan info -p plan/
      brim plan info -p plan/ -n 5 --rank 3 --world-size 8

    Exit status: 0 shown, 2 the plan is missing or damaged.
    """
    if rank is not None and world_size is None:
        raise OptionError("--rank needs --world-size")
    from brim.plan.plan import BatchPlan

    plan = BatchPlan.load(path)
    if world_size is not None:
        plan = plan.shard(rank or 0, world_size)
    facts = {**_facts(plan), **packed_facts(plan, 0)}
    epochs = [_epoch(plan, epoch) for epoch in range(plan.num_epochs)]
    first = plan.get_epoch(0)
    microbatches = [_microbatch(first, index) for index in range(min(show_batches, len(first)))]
    groups = _groups(plan)
    if as_json:
        shown: dict[str, Any] = {**facts, "config": plan.config.to_dict(), "per_epoch": epochs}
        shown |= {"groups": groups} if groups else {}
        shown |= {"skipped_samples": plan.skipped(), "truncated_samples": plan.truncated()}
        show_json({**shown, "microbatches": microbatches} if show_batches else shown)
        return
    options = {name: value for name, value in plan.config.to_dict().items() if value is not None and name != "packing"}
    packing = plan.config.to_dict()["packing"]
    options |= {f"packing {name}": value for name, value in (packing or {}).items() if value is not None}
    show_facts({**facts, **{name.replace("_", " "): value for name, value in options.items()}})
    click.echo()
    show_table(list(epochs[0]), [list(epoch.values()) for epoch in epochs])
    if groups:
        click.echo()
        show_table(["group", "samples", "microbatches", "padding"], [list(row.values())[:4] for row in groups])
        click.echo(f"groups never share a microbatch; these are of epoch 0{_of_rank(plan)}")
    if microbatches:
        click.echo()
        show_table(list(microbatches[0]), [list(row.values()) for row in microbatches])


def _facts(plan: "BatchPlan") -> dict[str, Any]:
    counts, table = plan.counts, plan.table
    facts: dict[str, Any] = {
        "samples": counts.samples,
        "tokens": counts.tokens,
        "skipped": counts.skipped,
        "truncated": counts.truncated,
        "truncated tokens": counts.truncated_tokens,
        "split": counts.split,
        "epochs": plan.num_epochs,
        "buckets": None if plan.buckets is None else ",".join(str(width) for width in plan.buckets.widths),
        "microbatches per step": plan.step_size,
        "rank": _of_rank(plan).removeprefix(", rank ") or None,
        "fingerprint": plan.fingerprint,
        "lengths": table.fingerprint,
        "data": table.dataset_hash or "unknown",
        "tokenizer": table.tokenizer_hash or "unknown",
    }
    return {name: value for name, value in facts.items() if value is not None}


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
        "meet again": _meet_again(plan, number),
    }


def _meet_again(plan: "BatchPlan", number: int) -> str:
    """Return the share of the pairs of samples in a microbatch that also share one in the next epoch."""
    from brim.plan.company import meet_again

    if number + 1 == plan.num_epochs or plan.share.partial:
        return "-"
    return f"{meet_again(plan.columns(number), plan.columns(number + 1), len(plan.units)):.1%}"


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
