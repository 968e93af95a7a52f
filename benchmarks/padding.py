"""Padding of sorted windows over a grid of distributions, medians, budgets and sizes, beside the samplers of lhotse and
Hugging Face on the same lengths, and beside a global sort; and how many pairs of samples meet again in the next epoch.

A row is one data set: its size is chosen so that an epoch has about as many microbatches as `AIMS` says, just above the
numbers where a target begins. The floor is the padding of one global sort, cut from the wide end where the budget ends.
Plans are built with default options. Hugging Face's sampler has no budget: its batches hold as many samples as brim's
do on average, so that both make equally many. lhotse costs many times as much as everybody else, so rows with more than
`SLOW` samples run without it, except that every distribution, median and budget has a row with it.
"""

import argparse
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from distributions import SHAPES, draw
from harness import Report, Row, Target, one_thread
from numpy.typing import NDArray
from samplers import hugging_face, lhotse

from brim import BatchingConfig, BatchPlan, LengthCache
from brim.data.ids import Ids
from brim.plan.company import meet_again

MEDIANS = (20, 60, 150, 300, 1000, 3000)
BUDGETS = (4_096, 16_384, 65_536, 131_072)
AIMS = (60, 210, 1_000, 3_050)
"""Microbatches in an epoch, about."""
MANY, COMPANY = 200, 3_000
"""From so many microbatches on, padding and pairs that meet again have a bound of their own."""
PADDING, OVER_FLOOR, MEETING = 1.2, 1.3, 5.0
SLOW, MOST = 20_000, 3_000_000
"""Most samples of a row for lhotse, and of any row."""
COLUMNS = {
    "microbatches": ",",
    "padding %": ".3f",
    "floor %": ".3f",
    "target %": ".3f",
    "lhotse %": ".2f",
    "HF %": ".2f",
    "meet again %": ".2f",
}

Lengths = NDArray[np.int32]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one median and two budgets")
    options = parser.parse_args()
    one_thread()
    report = Report("padding")
    medians, budgets = ((300,), BUDGETS[:2]) if options.quick else (MEDIANS, BUDGETS)
    everything: list[Row] = []
    for shape in SHAPES:
        rows = [row for median in medians for budget in budgets for row in grid_rows(report, shape, median, budget)]
        title = f"Padding of sorted windows: {shape} lengths; seconds are those of planning two epochs"
        report.table(title, rows, COLUMNS, subject="padding", shape=shape)
        everything += rows
    report.targets(targets(everything))
    print(f"written: {report.close()}")


def grid_rows(report: Report, shape: str, median: int, budget: int) -> Iterator[Row]:
    mean = float(draw(shape, 50_000, median, longest=budget, seed=1).mean())
    for aim in AIMS:
        n = round(aim * budget / mean)
        if n <= MOST:
            lengths = draw(shape, n, median, longest=budget)
            name = f"median {median:,}, budget {budget:,}, {n:,} samples"
            yield measured(report, shape, name, lengths, budget, slow=aim == AIMS[0])


def measured(report: Report, shape: str, name: str, lengths: Lengths, budget: int, *, slow: bool) -> Row:
    """Padding of brim and of the peers, in percent; `slow` allows lhotse any size."""
    table, config = LengthCache(Ids.rows(len(lengths)), lengths), BatchingConfig(token_budget=budget)
    wall, cpu = time.perf_counter(), time.process_time()
    plan = BatchPlan.build(table, config, num_epochs=2)
    first, second = plan.columns(0), plan.columns(1)
    row = Row(name, time.perf_counter() - wall, time.process_time() - cpu, 1)
    tokens, floor = int(lengths.sum(dtype=np.int64)), sorted_padding(lengths, budget)
    row.columns.update(
        {
            "data": f"{shape}, {name}",
            "budget": budget,
            "microbatches": len(first),
            "padding %": 100 * (1 - tokens / int(first.slots.sum())),
            "floor %": floor,
            "target %": PADDING if len(first) >= MANY else OVER_FLOOR * floor,
            "meet again %": 100 * meet_again(first, second, len(lengths)),
        }
    )
    if sampler := hugging_face(report):
        batches = sampler(lengths, -(-len(lengths) // len(first)))
        row.columns["HF %"] = padding_of(batches, lengths)
    if (slow or len(lengths) <= SLOW) and (sampler := lhotse(report)):
        row.columns["lhotse %"] = padding_of(sampler(lengths, budget), lengths)
    return row


def sorted_padding(lengths: Lengths, budget: int) -> float:
    """Padding in percent if all samples are sorted, and each batch takes as many of the longest left as fit."""
    widths = np.sort(lengths)[::-1].tolist()
    at = slots = 0
    while at < len(widths):
        rows = min(budget // widths[at], len(widths) - at)
        slots += rows * widths[at]
        at += rows
    return 100 * (1 - sum(widths) / slots)


def padding_of(batches: tuple[NDArray[np.int64], NDArray[np.int64]], lengths: Lengths) -> float:
    """Padding in percent of batches: the rows of all of them, and where each begins."""
    order, starts = batches
    assert np.array_equal(np.bincount(order, minlength=len(lengths)), np.ones(len(lengths), np.int64))
    widest = np.maximum.reduceat(lengths[order], starts).astype(np.int64)
    slots = int((widest * np.diff(starts, append=len(order))).sum())
    return 100 * (1 - int(lengths.sum(dtype=np.int64)) / slots)


def targets(rows: list[Row]) -> Iterator[Target]:
    found = [row.columns for row in rows]
    many = [row for row in found if row["microbatches"] >= MANY]
    fewer = [row for row in found if row["microbatches"] < MANY]
    yield judged(
        f"padding, {MANY} microbatches or more", many, "padding %", "target %", f"at most {PADDING}%, {len(many)} rows"
    )
    yield judged(
        f"padding, fewer than {MANY} microbatches",
        fewer,
        "padding %",
        "target %",
        f"at most {OVER_FLOOR} x the global sort, {len(fewer)} rows",
    )
    for peer in ("lhotse", "HF"):
        beside = [row for row in found if row.get(f"{peer} %") is not None]
        yield judged(f"padding beside {peer}", beside, "padding %", f"{peer} %", f"never behind, {len(beside)} rows")
    company = [row | {"bound": MEETING} for row in found if row["microbatches"] >= COMPANY]
    what = f"pairs that meet again, {COMPANY:,} microbatches or more"
    yield judged(what, company, "meet again %", "bound", f"at most {MEETING:g}%, {len(company)} rows")


def judged(what: str, rows: list[dict[str, Any]], column: str, bound: str, target: str) -> Target:
    """Whether a column is at most another one in every row; the row that is nearest to it, or farthest above."""
    if not rows:
        return Target(what, target, "-", None)
    above = [row for row in rows if row[column] > row[bound] + 1e-9]
    worst = max(rows, key=lambda row: row[column] / max(row[bound], 1e-9))
    reached = f"{len(rows) - len(above)} of {len(rows)} rows; worst: {worst[column]:.2f}% beside {worst[bound]:.2f}% "
    return Target(what, target, f"{reached}({worst['data']})", not above)


if __name__ == "__main__":
    main()
