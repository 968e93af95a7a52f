"""The numbers that the page draws, as JSON: columns in base64, in the narrowest type that holds them.

The page gets numbers, not images, so switching the epoch or the number of ranks needs no Python. If the numbers are too
large, later epochs are left out first; if the first epoch alone is too large, its microbatches are merged: runs of
whole steps are added up. The page says so in either case.
"""

import base64
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.analyze.plan_report.view import (
    METRICS,
    Dealt,
    EpochView,
    Numbers,
    PlanView,
    imbalance,
    order_stats,
    smallest,
    waste_stats,
)
from brim.core.arrays import ceil_div
from brim.plan.deal import NULL

NAMED_GROUPS = 24
"""Upper limit of the groups that are shown: if there are more, the smallest ones share the last bar."""
POINT_BYTES = 18
"""Estimated bytes of a run of merged microbatches, for each rank."""

Columns = dict[str, NDArray[Any]]


def create_payload(view: PlanView, max_bytes: int) -> dict[str, Any]:
    """Return all numbers of a plan that the page draws, in about `max_bytes` of JSON."""
    groups, group_of = _groups(view)
    room = max_bytes * 3 // 4  # base64 takes four bytes for three
    epochs: list[dict[str, Any]] = []
    for epoch in view.epochs:
        columns = _columns(view, epoch, group_of)
        size = sum(column.nbytes for column in columns.values() if not _constant(column))
        size += sum(
            smallest(_sentinel(dealt, len(epoch))).nbytes for dealt in epoch.dealt.values() if not _identity(dealt)
        )
        merged = size > room and not epochs
        if size > room and epochs:
            break
        room -= size
        worlds = {str(ranks): _world(epoch, dealt) for ranks, dealt in epoch.dealt.items()}
        for ranks, dealt in epoch.dealt.items():
            share = max_bytes * 3 // 4 // len(worlds)
            worlds[str(ranks)] |= (
                _merged(view, epoch, dealt, columns, share) if merged else {"places": _places(dealt, len(epoch))}
            )
        shown = {} if merged else {"columns": {name: encode(column) for name, column in columns.items()}}
        epochs.append({"epoch": epoch.epoch, "count": len(epoch), "dropped": epoch.dropped, **shown, "worlds": worlds})
        if merged:
            break
    return {
        "ranks": list(view.world_sizes),
        "share": view.rank,
        "epochs": epochs,
        "num_epochs": view.plan.num_epochs,
        "bands": [[band.low, band.high] for band in view.bands],
        "bucketed": view.bucketed,
        "packed": view.plan.config.packing is not None,
        "groups": groups,
    }


def _columns(view: PlanView, epoch: EpochView, group_of: NDArray[np.int64] | None) -> Columns:
    """Return the columns of the microbatches, in the order of `epoch`. `extra` is what attention adds to the cost."""
    columns: Columns = {
        "rows": epoch.rows,
        "width": epoch.width,
        "padding": epoch.padding,
        "extra": epoch.cost.astype(np.int64) - epoch.slots,
        "band": view.band(epoch),
        "sequences": epoch.sequences,
    }
    if view.plan.config.packing is None:
        del columns["sequences"]  # equal to the rows
    if epoch.group is not None and group_of is not None:
        columns["group"] = group_of[epoch.group]
    return {name: smallest(column) for name, column in columns.items()}


def _groups(view: PlanView) -> tuple[list[str], NDArray[np.int64] | None]:
    """Return the names of the groups shown, and for each group of the plan the index of its name."""
    names, first = view.plan.table.group_names, view.epochs[0]
    if not names or first.group is None:
        return [], None
    if len(names) <= NAMED_GROUPS:
        return list(names), np.arange(len(names))
    slots = np.zeros(len(names), np.int64)
    np.add.at(slots, first.group, first.slots)
    largest = np.sort(np.argsort(-slots, kind="stable")[: NAMED_GROUPS - 1])
    group_of = np.full(len(names), NAMED_GROUPS - 1)
    group_of[largest] = np.arange(len(largest))
    return [*(names[group] for group in largest), f"{len(names) - len(largest)} other groups"], group_of


def _world(epoch: EpochView, dealt: Dealt) -> dict[str, Any]:
    """Return the numbers of an epoch for one number of ranks; lists begin with all ranks together, then each rank."""
    deal, costs = dealt.deal, dealt.step_costs(epoch.cost)
    seen = [None, *range(dealt.ranks)] if dealt.ranks > 1 else [None]
    return {
        "ranks": dealt.ranks,
        "rounds": deal.rounds,
        "steps": deal.steps,
        "step_size": deal.step_size,
        "rounds_per_step": deal.rounds_per_step,
        "last_step": dealt.last_step,
        "nulls": deal.nulls,
        "dropped": deal.dropped,
        "repeated": deal.repeated,
        "imbalance": _number(imbalance(costs)),
        "facts": [_facts(epoch, dealt.order(rank)) for rank in seen],
        "stats": {metric: [_stats(epoch, dealt, metric, rank) for rank in seen] for metric in METRICS},
        "waste": [_waste(epoch.padding[dealt.order(rank)]) for rank in seen],
    }


def _facts(epoch: EpochView, order: Numbers) -> list[int]:
    """Return the numbers of microbatches, sequences, tokens, slots and distinct shapes."""
    fill = epoch.fill(order)
    return [
        len(order),
        int(epoch.sequences[order].sum()),
        fill.used,
        fill.slots,
        len(np.unique(_shape_keys(epoch)[order])),
    ]


def _shape_keys(epoch: EpochView) -> Numbers:
    return epoch.rows.astype(np.int64) << 32 | epoch.width


def _stats(epoch: EpochView, dealt: Dealt, metric: str, rank: int | None) -> list[float | None]:
    stats = order_stats(epoch.column(metric), dealt, rank)
    return [_number(value) for value in (stats.lag, stats.step_lag, stats.trend, stats.tail)]


def _waste(padding: Numbers) -> list[float | None]:
    stats = waste_stats(padding)
    return [_number(stats.worst_tenth), _number(stats.half)]


def _number(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 6)


def _merged(view: PlanView, epoch: EpochView, dealt: Dealt, columns: Columns, room: int) -> dict[str, Any]:
    """Merge runs of `merged` steps, added up for each rank, into columns [runs, ranks] of about `room` bytes.

    `width` is a mean instead of a sum; `slowest`, [runs], is the sum of the costs of each step's slowest rank.
    """
    rounds, deal = len(dealt.places), dealt.deal
    runs = max(room // (POINT_BYTES * dealt.ranks), 1)
    steps = ceil_div(deal.steps, runs)
    starts = np.arange(0, rounds, steps * deal.rounds_per_step)
    real = dealt.places != NULL

    def summed(column: NDArray[Any]) -> Numbers:
        values = np.where(real, column.astype(np.int64)[dealt.places], 0)
        return np.add.reduceat(values, starts, axis=0).reshape(-1)

    count = np.add.reduceat(real.astype(np.int64), starts, axis=0).reshape(-1)
    slowest = np.add.reduceat(dealt.step_costs(epoch.cost).max(axis=1), np.arange(0, deal.steps, steps))
    order = dealt.order()
    shapes, times = epoch.shapes(order)
    points = {
        "count": count,
        "width": summed(epoch.width) // np.maximum(count, 1),
        "slots": summed(epoch.slots),
        "padding": summed(epoch.padding),
        "cost": summed(epoch.cost),
    }
    return {
        "merged": steps,
        "columns": {name: encode(smallest(column)) for name, column in points.items()},
        "slowest": encode(smallest(slowest)),
        "shapes": [encode(smallest(column)) for column in (shapes[:, 0], shapes[:, 1], times)],
        "bands": _sums(view.band_sums(epoch, order)),
        "groups": _group_sums(columns, epoch, order, len(_groups(view)[0])),
    }


def _sums(sums: dict[str, Numbers]) -> dict[str, list[int]]:
    return {name: column.tolist() for name, column in sums.items()}


def _group_sums(columns: Columns, epoch: EpochView, order: Numbers, groups: int) -> dict[str, list[int]] | None:
    if "group" not in columns:
        return None
    group, sums = columns["group"][order], np.zeros((4, groups), np.int64)
    for row, column in zip(sums, (np.ones_like(epoch.rows), epoch.sequences, epoch.tokens, epoch.slots), strict=True):
        np.add.at(row, group, column[order])
    return _sums(dict(zip(("microbatches", "sequences", "tokens", "slots"), sums, strict=True)))


def _places(dealt: Dealt, count: int) -> dict[str, Any]:
    """Encode the places, [rounds, ranks] flattened; `count` stands for an empty microbatch.

    If they are 0, 1, 2, ..., the order of the columns, only their number is stored, as `identity`.
    """
    return {"identity": dealt.places.size} if _identity(dealt) else encode(smallest(_sentinel(dealt, count)))


def _sentinel(dealt: Dealt, count: int) -> Numbers:
    return np.where(dealt.places == NULL, count, dealt.places).reshape(-1)


def _identity(dealt: Dealt) -> bool:
    flat = dealt.places.reshape(-1)
    return bool(np.array_equal(flat, np.arange(len(flat))))


def _constant(column: NDArray[Any]) -> bool:
    return len(column) > 0 and bool((column == column[0]).all())


def encode(column: NDArray[Any]) -> dict[str, Any]:
    """Encode a column of unsigned integers as base64, or as one value if all are equal.

    64-bit integers become 64-bit floats, the numbers of JavaScript.
    """
    if _constant(column):
        return {"value": int(column[0]), "count": len(column)}
    kind = {1: "u1", 2: "u2", 4: "u4", 8: "f8"}[column.dtype.itemsize]
    return {"type": kind, "data": base64.b64encode(column.astype(f"<{kind}").tobytes()).decode()}
