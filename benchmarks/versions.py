"""Compare two checkouts of brim: packing, planning, collation, files of batches and replay, in two processes that take
turns.

    python benchmarks/versions.py ../brim-0.5.0

Each checkout has a process of its own, and in every round both do the same job, one directly behind the other, in an
order that changes; the ratio is the median over the rounds, so that a busy moment of the machine hits both. Jobs use
public names that both versions have. A checkout needs its compiled kernels (`python setup.py build_ext --inplace`):
where they are missing, the NumPy twins are measured.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from harness import ROOT, Report, Row, lognormal

Measured = dict[str, tuple[float, float]]
"""Job -> wall seconds and CPU seconds."""

CHILD = "--in-this-process"
DRAWS, ENTRIES = 300, 50_000
EPOCHS = 20
"""How often an epoch is collated for one measurement: once takes some milliseconds, too short for a ratio."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="the checkout to compare this one with")
    parser.add_argument("--rounds", type=int, default=11)
    names = ", ".join(JOBS)
    parser.add_argument(
        "--only", nargs="+", choices=list(JOBS), default=list(JOBS), metavar="JOB", help=f"some of: {names}"
    )
    options = parser.parse_args()
    checkouts = {"old": options.old.resolve(), "new": ROOT}
    for checkout in checkouts.values():
        if not (checkout / "src" / "brim").is_dir():
            parser.error(f"{checkout} is not a checkout of brim: it has no src/brim")
    report = Report("versions")
    children = {name: Child(checkout) for name, checkout in checkouts.items()}
    for job in options.only:
        rounds: list[dict[str, Measured]] = []
        for number in range(options.rounds + 1):
            turns = list(children) if number % 2 else list(children)[::-1]
            rounds.append({name: children[name].run(job) for name in turns})
        compare(report, rounds[1:])  # the first one warms up
    for child in children.values():
        child.close()
    report.close()


def compare(report: Report, rounds: list[dict[str, Measured]]) -> None:
    """A table for each part of a job."""
    for part in rounds[0]["old"]:
        rows: list[Row] = []
        for name in ("old", "new"):
            walls, cpus = zip(*(measured[name][part] for measured in rounds), strict=True)
            ratios = [measured[name][part][1] / measured["old"][part][1] for measured in rounds]
            row = Row(name, min(walls), min(cpus), len(rounds))
            row.columns["CPU ratio"], row.columns["quarter"], row.columns["three quarters"] = (
                float(np.quantile(ratios, share)) for share in (0.5, 0.25, 0.75)
            )
            rows.append(row)
        report.table(part, rows, {"CPU ratio": ".2f", "quarter": ".2f", "three quarters": ".2f"})


class Child:
    """A process that imports brim from a checkout and does the jobs it is told."""

    def __init__(self, checkout: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(Path(__file__).resolve()), CHILD]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, job: str) -> Measured:
        assert self.process.stdin
        assert self.process.stdout
        print(job, file=self.process.stdin, flush=True)
        if not (line := self.process.stdout.readline()):
            raise SystemExit(f"the job {job} failed with exit status {self.process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def run_here() -> None:
    """Do the jobs that are named on standard input, and print what each took, as JSON."""
    for line in sys.stdin:
        measured: Measured = {}
        gc.collect()
        JOBS[line.strip()](measured)
        print(json.dumps(measured), flush=True)


@contextmanager
def clock(into: Measured, job: str) -> Iterator[None]:
    wall = time.perf_counter()
    cpu = time.process_time()
    yield
    into[job] = time.perf_counter() - wall, time.process_time() - cpu


def packing(into: Measured) -> None:
    from brim import PackingMode, pack

    lengths = lognormal(1_000_000)
    for mode in PackingMode:
        with clock(into, f"pack a million lengths, {mode.value}"):
            pack(lengths, 2048, mode=mode)


def planning(into: Measured) -> None:
    from brim import BatchingConfig, BatchPlan, LengthCache, PackingConfig

    table = LengthCache.from_lengths(dict(enumerate(lognormal(1_000_000).tolist())))
    configs = {
        "sorted windows": BatchingConfig(token_budget=16384),
        "fixed shapes": BatchingConfig(token_budget=16384, num_buckets=8, pad_policy="pad_to_bucket"),
        "packed rows": BatchingConfig(token_budget=16384, packing=PackingConfig(max_length=2048)),
    }
    for name, config in configs.items():
        with clock(into, f"plan an epoch of a million samples, {name}"):
            BatchPlan.build(table, config, num_epochs=1).get_epoch(0)


@cache
def collation_inputs() -> tuple[Any, dict[str, Any]]:
    """A token store and two plans over it."""
    from brim import BatchingConfig, BatchPlan, LengthCache, PackingConfig, Sample, TokenStore

    lengths = lognormal(10_000)
    tokens = np.random.default_rng(2).integers(0, 50_000, int(lengths.sum()), np.int32)
    parts = np.split(tokens, np.cumsum(lengths)[:-1])
    store = TokenStore.from_samples(Sample(row, part, np.ones(len(part), np.uint8)) for row, part in enumerate(parts))
    table = LengthCache.from_lengths(dict(enumerate(lengths.tolist())))
    layouts = {"padded": None, "packed": PackingConfig(max_length=2048)}
    return store, {
        name: BatchPlan.build(table, BatchingConfig(token_budget=16384, packing=packing), num_epochs=1)
        for name, packing in layouts.items()
    }


def collation(into: Measured) -> None:
    from brim import collate

    store, plans = collation_inputs()
    for name, plan in plans.items():
        microbatches = list(plan.iter_epoch(0))
        with clock(into, f"collate {EPOCHS} epochs of 10,000 samples, {name}"):
            for _ in range(EPOCHS):
                for microbatch in microbatches:
                    collate(microbatch, store)


def files(into: Measured) -> None:
    from brim import BatchReader, BatchWriter

    store, plans = collation_inputs()
    with TemporaryDirectory() as folder:
        writer = BatchWriter(plans["padded"], store, folder)
        with clock(into, "write the batches of 10,000 samples as NPZ files"):
            writer.write_all()
        reader = BatchReader(folder)
        reader.plan.get_epoch(0)
        with clock(into, "read the batches of 10,000 samples from NPZ files"):
            for _ in reader.iter_epoch(0):
                pass


def replay(into: Measured) -> None:
    from brim import ReplayBuffer, StreamSample

    tokens = np.arange(64, dtype=np.int32)
    mask = np.ones(64, np.uint8)
    samples = [StreamSample(sample_id=row, input_ids=tokens, loss_mask=mask) for row in range(ENTRIES)]
    buffer = ReplayBuffer(max_size=ENTRIES, priority_alpha=0.6, importance_beta=0.4)
    priorities = np.random.default_rng(3).uniform(0.1, 1.0, ENTRIES)
    with clock(into, f"add {ENTRIES:,} entries"):
        buffer.add_batch(samples, priorities)
    with clock(into, f"{DRAWS} draws of 256 with new priorities"):
        for _ in range(DRAWS):
            draw = buffer.sample(256)
            buffer.update_priorities(draw.keys, priorities[:256])
    with TemporaryDirectory() as folder:
        path = Path(folder) / "buffer.brim"
        with clock(into, f"save {ENTRIES:,} entries"):
            buffer.save(path)
        with clock(into, f"load {ENTRIES:,} entries"):
            ReplayBuffer.load(path)


JOBS: dict[str, Callable[[Measured], None]] = {
    "packing": packing,
    "planning": planning,
    "collation": collation,
    "files": files,
    "replay": replay,
}

if __name__ == "__main__":
    if sys.argv[1:2] == [CHILD]:
        run_here()
    else:
        main()
