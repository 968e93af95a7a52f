"""Token-budget plans: seconds, padding and shapes, brim beside its peers; fixed shapes beside the optimum; memory at
ten million.

One epoch, budget 16384, lognormal lengths, sequences padded as the planner says. brim gets a length table and
chuk-lazarus a dict, both with string ids; brim is timed from the same dict too. Hugging Face's sampler gets a list,
lhotse its text examples. Plans of brim are columns: "as objects" also makes every microbatch of them, as chuk-lazarus
does.
"""

import argparse
import asyncio
import json
import logging
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from harness import Contender, Report, Row, add_ratios, lognormal, peak_memory, print_table, race
from numpy.typing import NDArray

from brim import BatchingConfig, BatchPlan, BatchPlanBuilder, LengthCache, PackingConfig, pack
from brim.data.ids import Ids

BUDGET = 16_384
SIZES = (100_000, 1_000_000, 10_000_000)
OBJECTS = 1_000_000  # the largest set for which everybody has objects for every sample
HAND_EDGES, LONGEST = (128, 256, 512, 1024), 2048  # chuk-lazarus's defaults
BUCKETS = (4, 6, 8, 12, 16)
GRIDS = (1, 16, 64)
COLUMNS = {"microbatches": ",", "padding %": ".2f", "shapes": ",", "largest / budget": ".3f", "ratio": ".2f"}
BASE = "brim sorted windows"

Lengths = NDArray[np.int32]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="how many lengths")
    parser.add_argument("--memory-of", nargs=2, metavar=("TASK", "LENGTHS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_of:
        print(json.dumps(measure_here(*options.memory_of)))
        return
    report = Report("planning")
    race(list(contenders(report, lognormal(5_000))), rounds=1)  # warm-up
    for n in options.sizes:
        rows = race(list(contenders(report, lognormal(n))), rounds=5 if n <= OBJECTS else 3, patience=10)
        add_ratios(rows, BASE)
        report.table(
            f"Plans of one epoch: {n:,} lengths (lognormal), budget {BUDGET}", rows, COLUMNS, subject="plan", n=n
        )
    fixed_shapes(report, min(max(options.sizes), 1_000_000))
    memory(report, max(options.sizes))
    print(f"written: {report.close()}")


def contenders(report: Report, lengths: Lengths) -> Iterator[Contender]:
    named = len(lengths) <= OBJECTS
    by_id = {f"sample_{row:07d}": length for row, length in enumerate(lengths.tolist())} if named else {}
    ids = LengthCache.from_lengths(by_id).ids if named else Ids.rows(len(lengths))

    def build(**options: Any) -> BatchPlan:
        # A new table each time: a table remembers its fingerprint.
        plan = BatchPlanBuilder(LengthCache(ids, lengths), BatchingConfig(token_budget=BUDGET, **options)).build(
            num_epochs=1
        )
        plan.get_epoch(0)  # epochs are built when they are first asked for
        return plan

    yield Contender(BASE, build, judge_plan)
    if named:
        yield Contender(f"{BASE}, as objects", lambda: (plan := build(), list(plan.iter_epoch(0)))[0], judge_plan)
        config = BatchingConfig(token_budget=BUDGET)
        yield Contender(f"{BASE}, from a dict", lambda: BatchPlan.build(by_id, config).get_epoch(0), judge_epoch)
    for buckets in BUCKETS:
        options = {"num_buckets": buckets, "pad_policy": "pad_to_bucket"}
        yield Contender(f"brim fixed shapes, {buckets} buckets", lambda options=options: build(**options), judge_plan)
    edges = {"bucket_edges": HAND_EDGES, "overflow_max": LONGEST, "pad_policy": "pad_to_bucket"}
    yield Contender("brim fixed shapes, edges by hand", lambda: build(**edges), judge_plan)
    yield Contender("brim packed, rows of 2048", lambda: build(packing=PackingConfig(max_length=LONGEST)), judge_plan)
    if named:
        yield from chuk_lazarus(report, by_id)
        yield from hugging_face(report, lengths)
        yield from lhotse(report, lengths)


def judge_plan(plan: BatchPlan) -> dict[str, Any]:
    return judge_epoch(plan.get_epoch(0))


def judge_epoch(epoch: Any) -> dict[str, Any]:
    columns = epoch.columns
    assert np.array_equal(np.bincount(columns.unit), np.ones(len(epoch.origin.units), np.int64))  # everyone, once
    shapes = Counter(zip(np.diff(columns.row_ptr).tolist(), columns.width.tolist(), strict=True))
    return judge(shapes, int(columns.tokens.sum()))


def judge(shapes: Counter[tuple[int, int]], tokens: int) -> dict[str, Any]:
    """`shapes` counts microbatches by (rows, width)."""
    slots = sum(rows * width * count for (rows, width), count in shapes.items())
    largest = max(rows * width for rows, width in shapes)
    return {
        "microbatches": shapes.total(),
        "padding %": 100 * (1 - tokens / slots),
        "shapes": len(shapes),
        "largest / budget": largest / BUDGET,
        "slots": slots,
    }


def chuk_lazarus(report: Report, by_id: dict[str, int]) -> Iterator[Contender]:
    module = report.peer("chuk_lazarus.data.batching", "chuk-lazarus")
    if module is None:
        return
    config = module.BatchingConfig.throughput(token_budget=BUDGET, bucket_edges=HAND_EDGES, overflow_max=LONGEST)

    def build() -> Any:
        builder = module.BatchPlanBuilder(
            lengths=by_id, batching_config=config, dataset_hash="bench", tokenizer_hash="bench"
        )
        return asyncio.run(builder.build(num_epochs=1))

    def judged(plan: Any) -> dict[str, Any]:
        microbatches = plan.get_epoch(0).microbatches
        assert sorted(id for microbatch in microbatches for id in microbatch.samples) == sorted(by_id)
        return judge(
            Counter((len(microbatch.samples), microbatch.max_len) for microbatch in microbatches), sum(by_id.values())
        )

    yield Contender("chuk-lazarus BatchPlanBuilder", build, judged)


def hugging_face(report: Report, lengths: Lengths) -> Iterator[Contender]:
    module = report.peer("transformers.trainer_pt_utils", "transformers")
    if module is None:
        return
    size, values = 32, lengths.tolist()

    def judged(indices: list[int]) -> dict[str, Any]:
        assert sorted(indices) == list(range(len(values)))
        batches = (indices[start : start + size] for start in range(0, len(indices), size))
        return judge(Counter((len(batch), max(values[i] for i in batch)) for batch in batches), sum(values))

    yield Contender(
        "HF LengthGroupedSampler, batches of 32",
        lambda: list(module.LengthGroupedSampler(size, lengths=values)),
        judged,
    )


class Text:
    """What lhotse asks of a text example."""

    __slots__ = ("dataloading_info", "id", "num_tokens")

    def __init__(self, id: str, num_tokens: int) -> None:
        self.id, self.num_tokens = id, num_tokens


def lhotse(report: Report, lengths: Lengths) -> Iterator[Contender]:
    module = report.peer("lhotse.dataset.sampling.dynamic_bucketing", "lhotse")
    base = report.peer("lhotse.dataset.sampling.base", "lhotse")
    if module is None or base is None:
        return
    logging.getLogger().setLevel(logging.ERROR)
    texts = [Text(str(row), length) for row, length in enumerate(lengths.tolist())]

    def sample() -> list[list[Text]]:
        constraint = base.TokenConstraint(max_tokens=BUDGET)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sampler = module.DynamicBucketingSampler(texts, constraint=constraint, num_buckets=30, shuffle=True, seed=0)
            return [list(batch) for batch in sampler]

    def judged(batches: Iterable[list[Text]]) -> dict[str, Any]:
        batches = list(batches)
        assert sorted(int(text.id) for batch in batches for text in batch) == list(range(len(texts)))
        shapes = Counter((len(batch), max(text.num_tokens for text in batch)) for batch in batches)
        return judge(shapes, int(lengths.sum(dtype=np.int64)))

    yield Contender("lhotse DynamicBucketingSampler, 30 buckets", sample, judged)


def fixed_shapes(report: Report, n: int) -> None:
    """What brim's plans with chosen buckets pad, beside the least that any buckets on the same grid can."""
    lengths = lognormal(n)
    tokens = int(lengths.sum(dtype=np.int64))
    rows: list[Row] = []
    for multiple in GRIDS:
        optimum = least_slots(lengths, max(BUCKETS), multiple)
        for buckets in BUCKETS:
            config = BatchingConfig(
                token_budget=BUDGET, num_buckets=buckets, pad_policy="pad_to_bucket", pad_to_multiple=multiple
            )
            slots = judge_plan(BatchPlan.build(LengthCache(Ids.rows(n), lengths), config))["slots"]
            best = optimum[buckets - 1]
            columns = {"grid": multiple, "buckets": buckets, "slots": slots, "least slots": best}
            rows.append(Row(f"{buckets} buckets, multiples of {multiple}", columns=columns))
    report.tables.append(
        {"title": "fixed shapes", "subject": "optimum", "n": n, "rows": [row.to_dict() for row in rows]}
    )
    head = ["", "padding %", "least possible %", "slots over optimum"]
    cells = [
        [row.name, f"{100 * (1 - tokens / slots):.4f}", f"{100 * (1 - tokens / best):.4f}", f"{slots - best:,}"]
        for row in rows
        for slots, best in [(row.columns["slots"], row.columns["least slots"])]
    ]
    print_table(f"Fixed shapes and a plain dynamic program over {n:,} lengths", head, cells)


def least_slots(lengths: Lengths, most: int, multiple: int) -> list[int]:
    """The referee: the least slots with 1, 2, ...

    `most` buckets, by trying every place for every bucket's start. O(most * widths^2).
    """
    widths, counts = np.unique(-(-lengths.astype(np.int64) // multiple) * multiple, return_counts=True)
    below = np.concatenate([[0], np.cumsum(counts)])
    best = np.full(len(widths) + 1, np.iinfo(np.int64).max // 2)  # best[j]: the shortest j widths covered
    best[0] = 0
    found: list[int] = []
    for _ in range(most):
        best = np.array(
            [0, *(np.min(best[:end] + (below[end] - below[:end]) * widths[end - 1]) for end in range(1, len(best)))]
        )
        found.append(int(best[-1]))
    return found


TASKS = {
    "pack": "packed",
    "plan-packed": "packed and planned",
    "plan-sorted": "planned, sorted windows",
    "plan-fixed": "planned, 8 fixed shapes",
}


def memory(report: Report, n: int) -> None:
    """Peak resident memory of brim, each task in a process of its own that maps the lengths from a file."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("row numbers", "strings"):
            path = Path(folder) / kind.split()[0]
            LengthCache(Ids.rows(n) if kind == "row numbers" else string_ids(n), lognormal(n)).save(path)
            for task, title in TASKS.items():
                command = [sys.executable, __file__, "--memory-of", task, str(path)]
                measured = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                rows.append(Row(f"{title}; ids are {kind}", columns={"task": task, "ids": kind, **measured}))
    report.tables.append({"title": "memory", "subject": "memory", "n": n, "rows": [row.to_dict() for row in rows]})
    cells = [[row.name, f"{row.columns['start MB']:,.0f}", f"{row.columns['peak MB']:,.0f}"] for row in rows]
    print_table(f"Peak RSS of brim, MB: {n:,} lengths (lognormal)", ["", "before", "peak"], cells)


def string_ids(n: int) -> Ids:
    """sample_00000000, sample_00000001, ..., made column by column: ten million Python strings are no part of this."""
    digits = np.arange(n)[:, None] // 10 ** np.arange(7, -1, -1) % 10 + ord("0")
    text = np.concatenate([np.tile(np.frombuffer(b"sample_", np.uint8), (n, 1)), digits.astype(np.uint8)], axis=1)
    return Ids.strings(text.ravel(), np.arange(1, n + 1) * text.shape[1])


def measure_here(task: str, path: str) -> dict[str, float]:
    start = peak_memory()
    table = LengthCache.load(path)
    if task == "pack":
        result: Any = pack(table.lengths, LONGEST)
    else:
        options = {
            "plan-packed": {"packing": PackingConfig(max_length=LONGEST)},
            "plan-sorted": {},
            "plan-fixed": {"num_buckets": 8, "pad_policy": "pad_to_bucket"},
        }[task]
        result = BatchPlan.build(table, BatchingConfig(token_budget=BUDGET, **options)).get_epoch(0)
    assert len(result)
    return {"start MB": start, "peak MB": peak_memory()}


if __name__ == "__main__":
    main()
