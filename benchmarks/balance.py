"""Balance over ranks: the share of their time in which ranks work, if every step waits for its most expensive
microbatch.

Lognormal lengths (median 300, sigma 0.9, at most 8,192), budget 16,384, a microbatch for each rank in a step, which the
plan knows. The share of the ideal is the sum of all costs, divided by the sum over the steps of the highest cost times
the ranks; a microbatch that is missing or empty costs nothing and lowers it. Costs are slots plus squared lengths /
12,288. `other model` is the share if attention costs twice as much in truth. `after the fact` is what brim does where a
plan does not know the ranks: its microbatches are dealt to them by cost, which is what dealing finished batches can do.
"""

import argparse
import time
from collections.abc import Iterator

import numpy as np
from harness import Report, Row, Target, one_thread
from numpy.typing import NDArray

from brim import BatchingConfig, BatchPlan, LengthCache
from brim.data.ids import Ids
from brim.plan.cost import CostModel
from brim.plan.epoch import EpochColumns

BUDGET, MEDIAN, SIGMA, LONGEST = 16_384, 300, 0.9, 8_192
SIZES, RANKS = (2_000, 20_000, 200_000), (8, 64, 256)
SEEDS = (0, 1, 2)
MODEL, OTHER = CostModel(), CostModel(per_square=2 * CostModel().per_square)
BOUNDS = {(20_000, 64): 99.0, (20_000, 256): 97.0, (200_000, 256): 99.5}
MORE_PADDING = 0.5
COLUMNS = {
    "steps": ",",
    "share %": ".2f",
    "other model %": ".2f",
    "after the fact %": ".2f",
    "empty": ",",
    "padding %": ".3f",
    "padding without steps %": ".3f",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed, and at most 20,000 samples")
    options = parser.parse_args()
    one_thread()
    report = Report("balance")
    sizes, seeds = (SIZES[:2], SEEDS[:1]) if options.quick else (SIZES, SEEDS)
    rows = [worst([measured(n, ranks, seed) for seed in seeds]) for n in sizes for ranks in RANKS]
    title = f"Share of the ideal over ranks: the worst of {len(seeds)} data sets"
    report.table(title, rows, COLUMNS, subject="balance")
    report.targets(targets(rows))
    print(f"written: {report.close()}")


def measured(n: int, ranks: int, seed: int) -> Row:
    drawn = MEDIAN * np.exp(SIGMA * np.random.default_rng(seed).standard_normal(n))
    lengths = np.clip(np.rint(drawn), 1, LONGEST).astype(np.int32)
    table = LengthCache(Ids.rows(n), lengths)
    plain = BatchPlan.build(table, BatchingConfig(token_budget=BUDGET))
    config = BatchingConfig(token_budget=BUDGET, microbatches_per_step=ranks)
    wall, cpu = time.perf_counter(), time.process_time()
    plan = BatchPlan.build(table, config)
    columns = plan.columns(0)
    row = Row(f"{n:,} samples, {ranks} ranks", time.perf_counter() - wall, time.process_time() - cpu, 1)
    assert np.array_equal(np.bincount(columns.unit, minlength=n), np.ones(n, np.int64))
    assert columns.slots.max() <= BUDGET
    shared, epoch = plain.columns(0), plain.with_step_size(ranks).get_epoch(0)
    after = shared.cost(MODEL) if epoch.order is None else shared.cost(MODEL)[epoch.order]
    row.columns = {
        "n": n,
        "ranks": ranks,
        "steps": -(-len(columns) // ranks),
        "share %": share(columns.cost(MODEL), ranks),
        "other model %": share(columns.cost(OTHER), ranks),
        "after the fact %": share(after, ranks),
        "empty": plan.shard(0, ranks).deal(0).nulls + int(np.count_nonzero(np.diff(columns.row_ptr) == 0)),
        "padding %": padding(columns),
        "padding without steps %": padding(shared),
    }
    return row


def share(cost: NDArray[np.int64], ranks: int) -> float:
    """Percent of the time of all ranks in which they work. The microbatches of a step are neighbours in `cost`."""
    whole = np.append(cost, np.zeros(-len(cost) % ranks, np.int64)).reshape(-1, ranks)
    return 100 * float(cost.sum()) / (float(whole.max(axis=1).sum()) * ranks)


def padding(columns: EpochColumns) -> float:
    return 100 * (1 - float(columns.tokens.sum()) / float(columns.slots.sum()))


def worst(rows: list[Row]) -> Row:
    """The row with the lowest share, with the most empty microbatches and the most added padding of all."""
    row = min(rows, key=lambda row: row.columns["share %"])
    row.seconds, row.cpu, row.rounds = min(one.seconds for one in rows), min(one.cpu for one in rows), len(rows)
    row.columns["empty"] = max(one.columns["empty"] for one in rows)
    row.columns["more padding"] = max(one.columns["padding %"] - one.columns["padding without steps %"] for one in rows)
    return row


def targets(rows: list[Row]) -> Iterator[Target]:
    for row in rows:
        bound = BOUNDS.get((row.columns["n"], row.columns["ranks"]))
        if bound is None:
            continue
        reached = row.columns["share %"]
        yield Target(f"balance, {row.name}", f"at least {bound}% of the ideal", f"{reached:.2f}%", reached >= bound)
        empty, more = row.columns["empty"], row.columns["more padding"]
        yield Target(f"balance, {row.name}", "no empty microbatch", f"{empty}", empty == 0)
        target = f"at most {MORE_PADDING} points more padding than without steps"
        yield Target(f"balance, {row.name}", target, f"{more:+.2f} points", more <= MORE_PADDING)


if __name__ == "__main__":
    main()
