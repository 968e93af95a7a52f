"""Token-budget plans: CPU seconds, padding and shapes, brim beside its peers, from a hundred samples to ten million;
short texts with a large budget and long contexts; fixed shapes beside the optimum; memory at ten million.

One epoch, sequences padded as the planner says. brim gets a length table and chuk-lazarus a dict, both with string ids
up to a million; brim is timed from the same dict too. Hugging Face's sampler gets a list, lhotse its text examples.
Hugging Face's sampler makes no batches but an order, whose batches hold as many samples as brim's do on average.
chuk-lazarus pads to its default edges, scaled with the median. Microbatches as objects are in `objects.py`, padding
over a grid of distributions in `padding.py`.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from distributions import draw
from harness import Contender, Report, Row, Target, add_ratios, lognormal, one_thread, peak_memory, print_table, race
from numpy.typing import NDArray
from samplers import Text, lhotse_batches, texts

from brim import BatchingConfig, BatchPlan, BatchPlanBuilder, LengthCache, PackingConfig, pack
from brim.data.ids import Ids

BUDGET = 16_384
SIZES = (100, 10_000, 1_000_000, 10_000_000)
OBJECTS = 1_000_000
"""The largest set for which everybody has objects for every sample; more only with --full."""
HAND_EDGES, LONGEST = (128, 256, 512, 1024), 2048  # chuk-lazarus's defaults
BUCKETS = (4, 6, 8, 12, 16)
GRIDS = (1, 16, 64)
COLUMNS = {"microbatches": ",", "padding %": ".2f", "shapes": ",", "largest / budget": ".3f", "ratio": ".2f"}
BASE = "brim sorted windows"
MEMORY_MB = 1_500
TINY = 1_000
"""Fewer samples than this are planned in less than a millisecond by everybody: shown, and no target of speed."""
AS_FEW = 1.5
"""A peer makes as few batches as brim if they are at most this many times brim's. Those that make more pad less only
because they leave the budget unused.
"""

Lengths = NDArray[np.int32]


class Setting(NamedTuple):
    """What is planned. `edges` are those of chuk-lazarus, and those of brim's fixed shapes by hand."""

    name: str
    lengths: Lengths
    budget: int
    edges: tuple[int, ...]

    @property
    def title(self) -> str:
        return f"Plans of one epoch: {len(self.lengths):,} {self.name}, budget {self.budget:,}"

    @property
    def longest(self) -> int:
        return max(int(self.lengths.max()), self.edges[-1] + 1)


def ordinary(n: int) -> Setting:
    return Setting("samples", lognormal(n), BUDGET, HAND_EDGES)


def short_texts(n: int) -> Setting:
    return Setting("short texts", draw("lognormal", n, 20, longest=2_048), 131_072, (8, 16, 32, 64))


def long_contexts(n: int) -> Setting:
    lengths = draw("lognormal", n, 8_000, longest=131_072)
    return Setting("long contexts", lengths, 131_072, (4_096, 8_192, 16_384, 32_768))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="how many lengths")
    parser.add_argument("--full", action="store_true", help="everybody plans ten million samples too (minutes)")
    parser.add_argument("--memory-of", nargs=2, metavar=("TASK", "LENGTHS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    one_thread()
    if options.memory_of:
        print(json.dumps(measure_here(*options.memory_of)))
        return
    report = Report("planning")
    race(list(contenders(report, ordinary(5_000), everybody=True)), rounds=1)  # warm-up
    most = min(max(options.sizes), 1_000_000)
    settings = [ordinary(n) for n in options.sizes] + [short_texts(most), long_contexts(most // 10)]
    found: list[Target] = []
    for setting in settings:
        n = len(setting.lengths)
        everyone = list(contenders(report, setting, everybody=n <= OBJECTS or options.full))
        rows = race(everyone, rounds=5, patience=5, shortest=0.02 if n <= 10_000 else 0)
        add_ratios(rows, BASE, cpu=True)
        facts: dict[str, Any] = {"n": n, "data": setting.name, "speed_is_claimed": n >= TINY}
        report.table(setting.title, rows, COLUMNS, subject="plan", **facts)
        found += plan_targets(setting, rows)
    found.append(fixed_shapes(report, most))
    found.append(memory(report, max(options.sizes)))
    report.targets(found)
    print(f"written: {report.close()}")


def plan_targets(setting: Setting, rows: list[Row]) -> Iterator[Target]:
    """Beside the best peer in time, and the best in padding among those that make as few batches."""
    brim, peers = rows[0], [row for row in rows if not row.name.startswith("brim")]
    if not peers:
        return
    what = f"plan of {len(setting.lengths):,} {setting.name}, budget {setting.budget:,}"
    fastest = min(peers, key=lambda row: row.cpu)
    if len(setting.lengths) >= TINY:
        ratio = fastest.cpu / brim.cpu
        yield Target(what, "not slower than the fastest peer", f"{ratio:.2f}x ({fastest.name})", ratio >= 1)
    most = AS_FEW * brim.columns["microbatches"]
    as_few = [row for row in peers if row.columns["microbatches"] <= most]
    target = "no more padding than the best peer that makes as few batches"
    if not as_few:
        yield Target(what, target, "no peer makes as few", None)
        return
    fullest = min(as_few, key=lambda row: row.columns["padding %"])
    padding, least = brim.columns["padding %"], fullest.columns["padding %"]
    reached = f"{_padding(brim)}; {_padding(fullest)} ({fullest.name})"
    yield Target(what, target, reached, padding <= least)


def _padding(row: Row) -> str:
    return f"{row.columns['padding %']:.2f}% in {row.columns['microbatches']:,} batches"


def contenders(report: Report, setting: Setting, *, everybody: bool) -> Iterator[Contender]:
    lengths, n = setting.lengths, len(setting.lengths)
    named = n <= OBJECTS
    by_id = {f"sample_{row:08d}": length for row, length in enumerate(lengths.tolist())} if everybody else {}
    ids = LengthCache.from_lengths(by_id).ids if named else Ids.rows(n)
    judge = Judge(setting)

    def build(**options: Any) -> BatchPlan:
        # A new table each time: a table remembers its fingerprint.
        config = BatchingConfig(token_budget=setting.budget, **options)
        plan = BatchPlanBuilder(LengthCache(ids, lengths), config).build(num_epochs=1)
        plan.get_epoch(0)  # epochs are built when they are first asked for
        return plan

    yield Contender(BASE, build, judge.plan)
    if named:
        config = BatchingConfig(token_budget=setting.budget)
        yield Contender(f"{BASE}, from a dict", lambda: BatchPlan.build(by_id, config).get_epoch(0), judge.epoch)
    if setting.name == "samples" and n >= OBJECTS:
        for buckets in BUCKETS:
            options = {"num_buckets": buckets, "pad_policy": "pad_to_bucket"}
            run = lambda options=options: build(**options)  # noqa: E731
            yield Contender(f"brim fixed shapes, {buckets} buckets", run, judge.plan)
        packing = PackingConfig(max_length=LONGEST)
        yield Contender("brim packed, rows of 2048", lambda: build(packing=packing), judge.plan)
    edges = {"bucket_edges": setting.edges, "overflow_max": setting.longest, "pad_policy": "pad_to_bucket"}
    yield Contender("brim fixed shapes, edges by hand", lambda: build(**edges), judge.plan)
    yield from grouped(report, setting, judge)
    if everybody:
        yield from chuk_lazarus(report, setting, by_id, judge)
        yield from buckets_of_lhotse(report, setting, judge)


class Judge:
    """Checks that everyone is there once, and counts microbatches, shapes and padding."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.tokens = setting, int(setting.lengths.sum(dtype=np.int64))

    def plan(self, plan: BatchPlan) -> dict[str, Any]:
        return self.epoch(plan.get_epoch(0))

    def epoch(self, epoch: Any) -> dict[str, Any]:
        columns = epoch.columns
        assert np.array_equal(np.bincount(columns.unit), np.ones(len(epoch.origin.units), np.int64))
        return self.shapes(Counter(zip(np.diff(columns.row_ptr).tolist(), columns.width.tolist(), strict=True)))

    def rows(self, batches: Iterable[list[int]]) -> dict[str, Any]:
        batches, lengths = list(batches), self.setting.lengths.tolist()
        assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
        return self.shapes(Counter((len(batch), max(lengths[row] for row in batch)) for batch in batches))

    def shapes(self, shapes: Counter[tuple[int, int]]) -> dict[str, Any]:
        """`shapes` counts microbatches by (rows, width)."""
        slots = sum(rows * width * count for (rows, width), count in shapes.items())
        largest = max(rows * width for rows, width in shapes)
        return {
            "microbatches": shapes.total(),
            "padding %": 100 * (1 - self.tokens / slots),
            "shapes": len(shapes),
            "largest / budget": largest / self.setting.budget,
            "slots": slots,
        }


def chuk_lazarus(report: Report, setting: Setting, by_id: dict[str, int], judge: Judge) -> Iterator[Contender]:
    module = report.peer("chuk_lazarus.data.batching", "chuk-lazarus")
    if module is None:
        return
    config = module.BatchingConfig.throughput(
        token_budget=setting.budget, bucket_edges=setting.edges, overflow_max=setting.longest
    )

    def build() -> Any:
        builder = module.BatchPlanBuilder(
            lengths=by_id, batching_config=config, dataset_hash="bench", tokenizer_hash="bench"
        )
        return asyncio.run(builder.build(num_epochs=1))

    def judged(plan: Any) -> dict[str, Any]:
        microbatches = plan.get_epoch(0).microbatches
        assert sorted(id for microbatch in microbatches for id in microbatch.samples) == sorted(by_id)
        return judge.shapes(Counter((len(microbatch.samples), microbatch.max_len) for microbatch in microbatches))

    yield Contender("chuk-lazarus BatchPlanBuilder", build, judged)


def grouped(report: Report, setting: Setting, judge: Judge) -> Iterator[Contender]:
    module = report.peer("transformers.trainer_pt_utils", "transformers")
    if module is None:
        return
    tokens = int(setting.lengths.sum(dtype=np.int64))
    size, values = -(-len(setting.lengths) * setting.budget // max(tokens, setting.budget)), setting.lengths.tolist()

    def judged(order: list[int]) -> dict[str, Any]:
        return judge.rows(order[start : start + size] for start in range(0, len(order), size))

    name = f"HF LengthGroupedSampler, batches of {size:,}"
    yield Contender(name, lambda: list(module.LengthGroupedSampler(size, lengths=values)), judged)


def buckets_of_lhotse(report: Report, setting: Setting, judge: Judge) -> Iterator[Contender]:
    sample = lhotse_batches(report)
    if sample is None:
        return
    examples = texts(setting.lengths)

    def judged(batches: list[list[Text]]) -> dict[str, Any]:
        return judge.rows([int(text.id) for text in batch] for batch in batches)

    run: Callable[[], list[list[Text]]] = lambda: sample(examples, setting.budget)  # noqa: E731
    yield Contender("lhotse DynamicBucketingSampler, 30 buckets", run, judged)


def fixed_shapes(report: Report, n: int) -> Target:
    """What brim's plans with chosen buckets pad, beside the least that any buckets on the same grid can."""
    lengths = lognormal(n)
    judge, tokens = Judge(ordinary(n)), int(lengths.sum(dtype=np.int64))
    rows: list[Row] = []
    for multiple in GRIDS:
        optimum = least_slots(lengths, max(BUCKETS), multiple)
        for buckets in BUCKETS:
            config = BatchingConfig(
                token_budget=BUDGET, num_buckets=buckets, pad_policy="pad_to_bucket", pad_to_multiple=multiple
            )
            slots = judge.plan(BatchPlan.build(LengthCache(Ids.rows(n), lengths), config))["slots"]
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
    over = max(row.columns["slots"] - row.columns["least slots"] for row in rows)
    target = f"at the optimum of dynamic programming ({len(rows)} settings)"
    return Target("fixed shapes", target, f"at most {over:,} slots over it", over == 0)


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


def memory(report: Report, n: int) -> Target:
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
    peak = max(row.columns["peak MB"] for row in rows)
    return Target(f"{n:,} lengths packed and planned", f"below {MEMORY_MB:,} MB", f"{peak:,.0f} MB", peak < MEMORY_MB)


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
