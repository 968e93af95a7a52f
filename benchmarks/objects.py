"""Microbatches as objects: what a loop pays that asks a plan for its microbatches one by one, with their ids.

A plan of brim is columns, and a microbatch is made when it is asked for. chuk-lazarus and lhotse make lists of objects;
their ids are strings. brim is measured with row numbers as ids, and with the same strings. Everybody starts from
lengths in the form it likes best, and ends with every microbatch of an epoch made and its ids read.
"""

import argparse
import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from harness import Contender, Report, Row, Target, add_ratios, lognormal, one_thread, race
from samplers import lhotse_batches, texts

from brim import BatchingConfig, BatchPlan, LengthCache
from brim.data.ids import Ids

BUDGET = 16_384
SIZES = (10_000, 100_000, 1_000_000)
EDGES, LONGEST = (128, 256, 512, 1024), 2048  # chuk-lazarus's defaults
BASE, NUMBERS = "brim, string ids", "brim, row numbers"
SLOW = 100_000
"""Most samples for lhotse."""
COLUMNS = {"microbatches": ",", "us each": ".1f", "ratio": ".2f"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="how many samples")
    options = parser.parse_args()
    one_thread()
    report = Report("objects")
    race(list(planned(report, 2_000)), rounds=1)  # warm-up
    found: list[Target] = []
    for n in options.sizes:
        rows = shown(report, f"Planning {n:,} samples and making every microbatch", list(planned(report, n)), n)
        found += targets(n, rows)
        shown(report, f"An epoch of {n:,} samples that is planned already, microbatch by microbatch", list(made(n)), n)
    report.targets(found)
    print(f"written: {report.close()}")


def shown(report: Report, title: str, contenders: list[Contender], n: int) -> list[Row]:
    rows = race(contenders, rounds=5, patience=4)
    add_ratios(rows, BASE, cpu=True)
    for row in rows:
        row.columns["us each"] = 1e6 * row.cpu / row.columns["microbatches"]
    report.table(title, rows, COLUMNS, subject="objects", n=n)
    return rows


def targets(n: int, rows: list[Row]) -> Iterator[Target]:
    brim, peers = rows[0], [row for row in rows if not row.name.startswith("brim")]
    if peers:
        best = min(peers, key=lambda row: row.cpu)
        ratio = best.cpu / brim.cpu
        what = f"{n:,} samples as objects with string ids"
        yield Target(what, "not slower than the fastest peer", f"{ratio:.2f}x ({best.name})", ratio >= 1)


def planned(report: Report, n: int) -> Iterator[Contender]:
    lengths = lognormal(n)
    by_id = {f"sample_{row:07d}": length for row, length in enumerate(lengths.tolist())}
    config = BatchingConfig(token_budget=BUDGET)

    def brim(name: str, ids: Ids) -> Contender:
        def run() -> list[Any]:
            plan = BatchPlan.build(LengthCache(ids, lengths), config)
            return [(microbatch, microbatch.samples) for microbatch in plan.iter_epoch(0)]

        return Contender(name, run, counted)

    yield brim(BASE, LengthCache.from_lengths(by_id).ids)
    yield brim(NUMBERS, Ids.rows(n))
    if module := report.peer("chuk_lazarus.data.batching", "chuk-lazarus"):
        options = module.BatchingConfig.throughput(token_budget=BUDGET, bucket_edges=EDGES, overflow_max=LONGEST)
        hashes = {"dataset_hash": "bench", "tokenizer_hash": "bench"}

        def run() -> list[Any]:
            builder = module.BatchPlanBuilder(lengths=by_id, batching_config=options, **hashes)
            plan = asyncio.run(builder.build(num_epochs=1))
            return [(microbatch, microbatch.samples) for microbatch in plan.get_epoch(0).microbatches]

        yield Contender("chuk-lazarus BatchPlanBuilder", run, counted)
    if n <= SLOW and (sample := lhotse_batches(report)):
        examples = texts(lengths)

        def sampled() -> list[Any]:
            return [(batch, [text.id for text in batch]) for batch in sample(examples, BUDGET)]

        yield Contender("lhotse DynamicBucketingSampler, 30 buckets", sampled, counted)


def counted(microbatches: list[Any]) -> dict[str, Any]:
    return {"microbatches": len(microbatches)}


def made(n: int) -> Iterator[Contender]:
    """Nothing but what is done with a microbatch."""
    lengths = lognormal(n)
    named = LengthCache.from_lengths({f"sample_{row:07d}": length for row, length in enumerate(lengths.tolist())})
    config = BatchingConfig(token_budget=BUDGET)

    def contender(name: str, table: LengthCache, use: Callable[[Any], Any]) -> Contender:
        epoch = BatchPlan.build(table, config).get_epoch(0)
        return Contender(name, lambda: deque(map(use, epoch), 0), lambda _: {"microbatches": len(epoch)})

    yield contender(BASE, named, lambda microbatch: microbatch.samples)
    yield contender(NUMBERS, LengthCache(Ids.rows(n), lengths), lambda microbatch: microbatch.samples)
    yield contender("brim, ids not looked at", named, lambda microbatch: microbatch.indices)


if __name__ == "__main__":
    main()
