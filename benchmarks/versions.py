"""Compare two checkouts of brim: packing, planning, collation and replay, in processes that take turns.

    python benchmarks/versions.py ../brim-0.5.0

Every round runs in a process of its own with one checkout first on its path, so that a busy moment of the machine hits
both; the best round counts. Jobs use public names that both versions have. A checkout needs its compiled kernels
(`python setup.py build_ext --inplace`): where they are missing, the NumPy twins are measured.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from harness import ROOT, Report, Row, lognormal

Measured = dict[str, tuple[float, float]]
"""Job -> wall seconds and CPU seconds."""

CHILD = "--in-this-process"
DRAWS, ENTRIES = 300, 50_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="the checkout to compare this one with")
    parser.add_argument("--rounds", type=int, default=5)
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
    best: dict[str, dict[str, Row]] = {}
    for _ in range(options.rounds):
        for name, checkout in checkouts.items():
            for job, (wall, cpu) in measure(checkout, options.only).items():
                row = best.setdefault(job, {}).setdefault(name, Row(name))
                row.seconds = min(row.seconds, wall)
                row.cpu = min(row.cpu, cpu)
                row.rounds += 1
    for job, rows in best.items():
        for row in rows.values():
            row.columns["CPU ratio"] = row.cpu / rows["old"].cpu
        report.table(job, rows.values(), {"CPU ratio": ".2f"})
    report.close()


def measure(checkout: Path, jobs: list[str]) -> Measured:
    """One round of the jobs in a process that imports brim from a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).resolve()), CHILD, *jobs]
    printed = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(printed)


def run_here(jobs: list[str]) -> None:
    """Run the jobs in this process and print what they took, as JSON."""
    measured: Measured = {}
    for job in jobs:
        JOBS[job](measured)
    print(json.dumps(measured))


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


def collation(into: Measured) -> None:
    from brim import BatchingConfig, BatchPlan, LengthCache, PackingConfig, Sample, TokenStore, collate

    lengths = lognormal(10_000)
    tokens = np.random.default_rng(2).integers(0, 50_000, int(lengths.sum()), np.int32)
    parts = np.split(tokens, np.cumsum(lengths)[:-1])
    store = TokenStore.from_samples(Sample(row, part, np.ones(len(part), np.uint8)) for row, part in enumerate(parts))
    table = LengthCache.from_lengths(dict(enumerate(lengths.tolist())))
    for name, packed in {"padded": None, "packed": PackingConfig(max_length=2048)}.items():
        plan = BatchPlan.build(table, BatchingConfig(token_budget=16384, packing=packed), num_epochs=1)
        microbatches = list(plan.iter_epoch(0))
        with clock(into, f"collate 10 epochs of 10,000 samples, {name}"):
            for _ in range(10):
                for microbatch in microbatches:
                    collate(microbatch, store)


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
    "replay": replay,
}

if __name__ == "__main__":
    if sys.argv[1:2] == [CHILD]:
        run_here(sys.argv[2:])
    else:
        main()
