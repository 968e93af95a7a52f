"""Scale: planning ten million samples beside the least that has to be done, a hundred million within 3 GB, opening and
resuming plans of any size, and length tables as JSONL beside orjson alone.

The floor of planning is what any plan with random windows does to its samples: one draw of Philox, two sorts of 64-bit
words and three gathers at random places. Each part is measured by itself, in the same rounds as the plan.

A hundred million are planned, saved and opened in processes of their own, whose lengths come from a file. Opening
counts until the first microbatch after a position in the middle of the epoch is there, with its ids. `orjson alone`
parses every line and keeps nothing.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from harness import Contender, Report, Row, Target, add_ratios, lognormal, one_thread, peak_memory, race
from numpy.typing import NDArray

from brim import BatchingConfig, BatchPlan, LengthCache
from brim.data.ids import Ids

BUDGET = 16_384
PLANNED, STORED = 10_000_000, (1_000_000, 10_000_000, 100_000_000)
ROWS = 1_000_000
SPACE = 3_000_000_000
"""Bytes of disk that the largest plan and its lengths take, with some to spare."""
OVER_FLOOR, PEAK_MB, OPEN_MS, OVER_ORJSON = 1.6, 3_000, 50, 1.7
BASE, FLOOR = "brim, a plan of one epoch", "the floor"
ORJSON = "orjson alone"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the sizes, and no hundred million")
    parser.add_argument("--in-this-process", nargs=2, metavar=("TASK", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    one_thread()
    if options.in_this_process:
        task, folder = options.in_this_process
        print(json.dumps(TASKS[task](Path(folder))))
        return
    report = Report("scale")
    shrink = 10 if options.quick else 1
    found = list(planning(report, PLANNED // shrink))
    found += stored(report, STORED[:2] if options.quick else STORED)
    found += tables(report, ROWS // shrink)
    report.targets(found)
    print(f"written: {report.close()}")


def planning(report: Report, n: int) -> Iterator[Target]:
    lengths, config = lognormal(n), BatchingConfig(token_budget=BUDGET)
    words = np.random.Philox(key=7).random_raw(n)
    places = np.argsort(words)

    def plan() -> Any:
        return BatchPlan.build(LengthCache(Ids.rows(n), lengths), config).columns(0)

    sorts = Sorts(words)
    parts: dict[str, Callable[[], Any]] = {
        "one draw of Philox": lambda: np.random.Philox(key=7).random_raw(n),
        "two sorts of 64-bit words": sorts.run,
        "three gathers": lambda: [lengths.take(places) for _ in range(3)],
    }
    contenders = [Contender(BASE, plan, lambda columns: {"microbatches": len(columns)})]
    contenders += [Contender(name, run, prepare=sorts.prepare) for name, run in parts.items()]
    rows = race(contenders, rounds=5)
    rows.append(Row(FLOOR, sum(row.seconds for row in rows[1:]), sum(row.cpu for row in rows[1:]), rows[1].rounds))
    for row in rows:
        row.columns["ns a sample"] = 1e9 * row.cpu / n
    add_ratios(rows, FLOOR, cpu=True)
    columns = {"ns a sample": ".1f", "ratio": ".2f", "microbatches": ","}
    report.table(f"A plan of {n:,} samples beside its floor", rows, columns, subject="floor", n=n)
    ratio = rows[0].columns["ratio"]
    yield Target(f"plan of {n:,}", f"at most {OVER_FLOOR} x its floor", f"{ratio:.2f} x", ratio <= OVER_FLOOR)


class Sorts:
    """Two sorts of the same random words; they are copied off the clock."""

    def __init__(self, words: NDArray[np.uint64]) -> None:
        self.words = words
        self.copies: list[NDArray[np.uint64]] = []

    def prepare(self) -> None:
        self.copies = [self.words.copy(), self.words.copy()]

    def run(self) -> None:
        for copy in self.copies:
            copy.sort()
        self.copies = []


def stored(report: Report, sizes: tuple[int, ...]) -> Iterator[Target]:
    rows: list[Row] = []
    for n in sizes:
        with tempfile.TemporaryDirectory() as folder:
            if n >= 100_000_000 and shutil.disk_usage(folder).free < SPACE:
                report.not_available[f"a plan of {n:,}"] = f"needs {SPACE / 1e9:.0f} GB in {tempfile.gettempdir()}"
                continue
            (Path(folder) / "samples").write_text(str(n))
            child("make", folder)
            built, opened = child("plan", folder), child("open", folder)
        row = Row(f"{n:,} samples", built["seconds"], built["cpu"], 1, {"n": n, **built, **opened})
        rows.append(row)
    columns = {"ns a sample": ".1f", "peak MB": ",.0f", "save s": ".2f", "open ms": ".2f", "padding %": ".2f"}
    report.table("Plans in processes of their own: planned, saved, opened and resumed", rows, columns, subject="stored")
    largest = next((row.columns for row in rows if row.columns["n"] == STORED[-1]), None)
    what, target = f"plan of {STORED[-1]:,}", f"within {PEAK_MB / 1000:g} GB"
    peak = largest and largest["peak MB"]
    yield Target(what, target, "-" if peak is None else f"{peak:,.0f} MB", None if peak is None else peak <= PEAK_MB)
    for row in rows:
        time_taken, n = row.columns["open ms"], row.columns["n"]
        if n in (STORED[0], STORED[-1]):
            what = f"opening and resuming a plan of {n:,}"
            yield Target(what, f"under {OPEN_MS} ms", f"{time_taken:.1f} ms", time_taken < OPEN_MS)


def child(task: str, folder: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--in-this-process", task, folder]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def make(folder: Path) -> dict[str, float]:
    n, block = int((folder / "samples").read_text()), 1 << 20
    lengths = np.empty(n, np.int32)
    random = np.random.default_rng(0)
    for start in range(0, n, block):
        part = lengths[start : start + block]
        part[:] = np.clip(random.lognormal(np.log(300), 1.0, len(part)), 1, 2048)
    LengthCache(Ids.rows(n), lengths).save(folder / "lengths.brim")
    return {}


def plan_here(folder: Path) -> dict[str, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    plan = BatchPlan.build(LengthCache.load(folder / "lengths.brim"), BatchingConfig(token_budget=BUDGET))
    columns = plan.columns(0)
    found = {"seconds": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    found["ns a sample"] = 1e9 * found["cpu"] / len(columns.unit)
    found["padding %"] = 100 * (1 - float(columns.tokens.sum()) / float(columns.slots.sum()))
    cpu = time.process_time()
    plan.save(folder / "plan")
    return found | {"save s": time.process_time() - cpu, "peak MB": peak_memory()}


def open_here(folder: Path) -> dict[str, float]:
    """The first time in this process, and the CPU time of all its threads."""
    cpu = time.process_time()
    plan = BatchPlan.load(folder / "plan")
    position = plan.get_epoch(0).position(plan.num_microbatches(0) // 2)
    _, _, microbatch = next(plan.resume(position).iter_from(position))
    assert len(microbatch.samples)
    return {"open ms": 1000 * (time.process_time() - cpu)}


TASKS = {"make": make, "plan": plan_here, "open": open_here}


def tables(report: Report, n: int) -> Iterator[Target]:
    """Length tables in the form that brim writes, and in the one that Python's `json` writes."""
    with tempfile.TemporaryDirectory() as folder:
        own, plain, lengths = Path(folder) / "own.jsonl", Path(folder) / "plain.jsonl", lognormal(n).tolist()
        LengthCache.from_lengths({f"sample_{row:07d}": length for row, length in enumerate(lengths)}).save(own)
        with open(plain, "w") as file:
            for row, length in enumerate(lengths):
                file.write(json.dumps({"sample_id": f"sample_{row:07d}", "length": length}) + "\n")
        for path, form in ((own, "as brim writes them"), (plain, "as json.dumps writes them")):
            rows = race(list(parsers(path, n)), rounds=5)
            add_ratios(rows, ORJSON, cpu=True)
            report.table(f"JSONL tables of {n:,} rows, {form}", rows, {"ratio": ".2f"}, subject="jsonl", n=n)
            ratio = next(row.columns["ratio"] for row in rows if row.name.startswith("brim"))
            what = f"JSONL tables of {n:,} rows, {form}"
            yield Target(what, f"at most {OVER_ORJSON} x orjson alone", f"{ratio:.2f} x", ratio <= OVER_ORJSON)


def parsers(path: Path, n: int) -> Iterator[Contender]:
    def alone() -> None:
        with open(path, "rb") as file:
            for line in file:
                orjson.loads(line)

    def kept() -> list[Any]:
        with open(path, "rb") as file:
            return [orjson.loads(line) for line in file]

    def judge(table: LengthCache) -> dict[str, Any]:
        assert len(table) == n
        return {}

    yield Contender("brim LengthCache.load", lambda: LengthCache.load(path), judge)
    yield Contender(ORJSON, alone)
    yield Contender("orjson, rows kept as dicts", kept)


if __name__ == "__main__":
    main()
