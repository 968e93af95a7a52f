"""Structural bucketing: what dummy compression stages cost, beside what was once estimated of it.

One compressed algorithm-distillation model (that of `brim train distill`) on histories of the darkroom, cut into
samples of depth 0 to 3, equally many of each. Everybody trains on the same samples with the same first weights,
optimizer and threads, and takes equally many steps for an epoch.

    dummy stages            random batches; every sample gets stages of zeros up to the greatest depth, which are read
    brim, batch size        `BucketSampler(dataset, batch_size)`: one structure in a batch
    brim, token budget      `BucketSampler(dataset, token_budget=..., axis_costs={"context": 3})`, of equally many
                            batches as there are with dummy stages; a step of the context goes through more layers than
                            one of a stage

`dummy %` is the share of the steps that the encoder reads which are in stages that do not exist, `padding %` the share
that is padding of real stages. `ms/step` and `seconds` are of an epoch, by 64 of its batches from the smallest to the
largest. `peak MB` is the most that a step took on top of what was there before it, in a process that gives back what it
frees; `resident MB` what the process grew by under glibc's defaults, which keep blocks of sizes that varying batches
may not need again. `largest` is the largest batch, in steps. `loss` is that of samples nobody trained on, each
contender in its own layout, after equally many seconds of training from the first weights.

Every contender is a process of its own; they take turns, and the best round counts, except for the loss, of which the
mean over the rounds does: a round has its own cuts of the histories, first weights and order.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import Report, Row, peak_memory

from brim import BucketSampler, collate_compressed_batch
from brim.analyze.capacity.memory import resident_memory
from brim.envs.darkroom.histories import Histories, write_histories
from brim.train.distill.config import DistillConfig
from brim.train.distill.model import CompressedAD
from brim.train.distill.samples import HistoryDataset
from brim.train.distill.seed_run import new_model
from brim.train.distill.yaml_files import load_config

SAMPLES, BATCH, TIMED, SECONDS, ROUNDS = 32_768, 128, 64, 20.0, 2
HELD_OUT = 512
RATE, CLIP = 1e-3, 1.0
COSTS = {"context": 3}
RETURNED = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_TOP_PAD_": "0"}
"""For glibc: what is freed is given back at once, so that the memory of a process is that of its live tensors."""
DUMMY, SIZED, BUDGETED = "dummy stages", "brim, batch size", "brim, token budget"
COLUMNS = {
    **{
        "ms/step": ".1f",
        "faster %": ".1f",
        "dummy %": ".1f",
        "padding %": ".1f",
        "peak MB": ",.0f",
        "less memory %": ".1f",
        "resident MB": ",.0f",
    },
    **{"largest": ",", "steps": ",", "loss": ".3f", "steps in time": ",.0f"},
}

Rows = Sequence[int]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=SAMPLES, help="how many samples the epoch has")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="how long everybody trains before losses are compared"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--quick", action="store_true", help="an epoch of 512 samples, one round, two seconds of training"
    )
    for hidden in ("--one", "--memory"):
        parser.add_argument(hidden, nargs=3, metavar=("CONTENDER", "FOLDER", "ROUND"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    for work, given in ((measure, options.one), (measure_memory, options.memory)):
        if given:
            name, folder, number = given
            print(json.dumps(work(name, Setting.load(Path(folder)), int(number))))
            return
    samples, seconds, rounds = (512, 2.0, 1) if options.quick else (options.samples, options.seconds, options.rounds)
    report = Report("structure")
    rows = [Row(name) for name in (DUMMY, SIZED, BUDGETED)]
    with tempfile.TemporaryDirectory() as folder:
        Setting(Path(folder), samples, seconds).save()
        for number in range(rounds):
            for row in rows:
                run(row, Path(folder), number)
    for row in rows:
        row.columns["loss"] = float(np.mean(row.columns["loss"]))
        row.columns["faster %"] = 100 * (rows[0].seconds / row.seconds - 1)
        row.columns["less memory %"] = 100 * (1 - row.columns["peak MB"] / rows[0].columns["peak MB"])
    title = f"An epoch of {samples:,} samples in batches of {BATCH} on average, and {seconds:g} seconds of training"
    report.table(title, rows, COLUMNS, subject="structure")
    claims(report, rows)
    print(f"written: {report.close()}")


def claims(report: Report, rows: Sequence[Row]) -> None:
    """The estimates that structural bucketing was proposed with, beside what was measured here."""
    old, *_, new = (row.columns for row in rows)
    lines = [
        ("encoder work on dummy data, before", "30-40%", f"{old['dummy %']:.1f}%"),
        ("encoder work on dummy data, after", "0%", f"{new['dummy %']:.1f}%"),
        ("faster", "15-20%", f"{new['faster %']:.1f}%"),
        ("less memory", "20-30%", f"{new['less memory %']:.1f}%"),
    ]
    print(
        "\n".join(f"{what:36} estimated {estimate:>7}   measured {measured:>7}" for what, estimate, measured in lines)
    )
    report.tables[-1]["estimates"] = [dict(zip(("what", "estimated", "measured"), line, strict=True)) for line in lines]


def run(row: Row, folder: Path, number: int) -> None:
    measured = child("--one", row.name, folder, number)
    measured["peak MB"] = child("--memory", row.name, folder, number, **RETURNED)["peak MB"]
    losses = [*row.columns.get("loss", []), measured.pop("loss")]
    row.rounds += 1
    row.cpu = min(row.cpu, measured.pop("cpu"))
    if (seconds := measured.pop("seconds")) < row.seconds:
        row.seconds = seconds
        row.columns.update(measured)
    row.columns["loss"] = losses


def child(what: str, name: str, folder: Path, number: int, **environment: str) -> dict[str, Any]:
    command = [sys.executable, __file__, what, name, str(folder), str(number)]
    passive = {"OMP_WAIT_POLICY": "PASSIVE"}  # a thread that waits takes no CPU seconds
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **passive, **environment})
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


@dataclass(frozen=True)
class Setting:
    """What all contenders share, in a folder that their processes find it in."""

    folder: Path
    samples: int
    seconds: float

    def save(self) -> None:
        write_histories(self.folder / "histories.h5", self.config.histories)
        (self.folder / "setting.json").write_text(json.dumps({"samples": self.samples, "seconds": self.seconds}))

    @classmethod
    def load(cls, folder: Path) -> "Setting":
        return cls(folder, **json.loads((folder / "setting.json").read_text()))

    @property
    def config(self) -> DistillConfig:
        return load_config()

    def data(self, *, seed: int, samples: int) -> HistoryDataset:
        return HistoryDataset(
            Histories(self.folder / "histories.h5"), replace(self.config.data, samples=samples), seed=seed
        )

    def contender(self, name: str, number: int) -> "Contender":
        return Contender(name, self.data(seed=number, samples=self.samples), self.config.data.depth, seed=number)


class Contender:
    """How samples become batches."""

    def __init__(self, name: str, data: HistoryDataset, depth: int, seed: int) -> None:
        self.name, self.data, self.depth, self.seed = name, data, depth, seed
        if name == BUDGETED:
            self.sampler = budgeted(data, equal_budget(data, -(-len(data) // BATCH)), seed)
        else:
            self.sampler = None if name == DUMMY else BucketSampler(data, BATCH, seed=seed, rank=0, world_size=1)

    def epoch(self, number: int) -> Iterator[Rows]:
        if self.sampler is None:
            order = np.random.default_rng((self.seed, number)).permutation(len(self.data)).tolist()
            return (order[start : start + BATCH] for start in range(0, len(order), BATCH))
        self.sampler.set_epoch(number)
        return iter(self.sampler)

    def batch(self, rows: Rows) -> dict[str, Any]:
        return self.collate(self.data.__getitems__(rows))

    def collate(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        return collate_compressed_batch(samples) if self.sampler is not None else with_dummies(samples, self.depth)


def with_dummies(samples: list[dict[str, Any]], depth: int) -> dict[str, Any]:
    """Every sample with `depth` stages: those it does not have are zeros in front, as long as the others', and the
    encoder reads them.
    """
    empty = {name: column[:0] for name, column in samples[0]["context"].items() if name != "targets"}
    said = dict.fromkeys(("compression_depth", "num_compression_stages"), depth)
    full: list[dict[str, Any]] = []
    for sample in samples:
        stages = sample["compression_stages"]
        full.append({**sample, **said, "compression_stages": [empty] * (depth - len(stages)) + stages})
    batch = collate_compressed_batch(full)
    for stage in batch["compression_stages"]:
        stage["mask"][stage["lengths"] == 0] = True
    return batch


def budgeted(data: HistoryDataset, budget: int, seed: int) -> BucketSampler:
    return BucketSampler(data, token_budget=budget, axis_costs=COSTS, seed=seed, rank=0, world_size=1)


def equal_budget(data: HistoryDataset, batches: int) -> int:
    """The smallest budget that gives no more batches than that."""
    low, high = (int(bound) * max(COSTS.values()) for bound in (data.table.lengths.max(), data.table.lengths.sum()))
    while low < high:
        middle = (low + high) // 2
        if len(budgeted(data, middle, 0)) <= batches:
            high = middle
        else:
            low = middle + 1
    return low


def measure(name: str, setting: Setting, number: int) -> dict[str, Any]:
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    contender = setting.contender(name, number)
    trainer = Trainer(new_model(setting.config, number), contender)
    batches = list(contender.epoch(0))
    sizes, work = zip(*((slots_of(batch), encoder_work(batch)) for batch in map(contender.batch, batches)), strict=True)
    chosen = spread(batches, sizes)
    resident = resident_memory(os.getpid()) / 1e6
    trainer.step(contender.batch(chosen[-1]))  # what is only done once is not timed
    wall, cpu = time.perf_counter(), time.process_time()
    for rows in chosen:
        trainer.step(contender.batch(rows))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    resident = peak_memory() - resident
    loss, taken = train_for(setting, contender, number)
    real, padding, dummy = (sum(column) for column in zip(*work, strict=True))
    slots = max(real + padding + dummy, 1)
    return {
        "seconds": wall / len(chosen) * len(batches),
        "cpu": cpu / len(chosen) * len(batches),
        "ms/step": 1000 * wall / len(chosen),
        "dummy %": 100 * dummy / slots,
        "padding %": 100 * padding / slots,
        "resident MB": resident,
        "largest": max(sizes),
        "steps": len(batches),
        "loss": loss,
        "steps in time": taken,
    }


def measure_memory(name: str, setting: Setting, number: int) -> dict[str, Any]:
    """The most that a step takes on top of what is there before it: over the same steps, the largest batch among
    them.
    """
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    contender = setting.contender(name, number)
    trainer = Trainer(new_model(setting.config, number), contender)
    batches = list(contender.epoch(0))
    chosen = spread(batches, [slots_of(batch) for batch in map(contender.batch, batches)])
    trainer.step(contender.batch(chosen[-1]))
    most = 0.0
    for rows in chosen:
        batch = contender.batch(rows)
        before = resident_memory(os.getpid()) / 1e6
        Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here on
        trainer.step(batch)
        most = max(most, peak_memory() - before)
    return {"peak MB": most}


def spread(batches: Sequence[Rows], sizes: Sequence[int]) -> list[Rows]:
    """`TIMED` of them, from the smallest to the largest, evenly."""
    order = sorted(range(len(batches)), key=lambda place: sizes[place])
    places = np.linspace(0, len(order) - 1, min(TIMED, len(order))).round().astype(int)
    return [batches[order[place]] for place in places]


def encoder_work(batch: dict[str, Any]) -> tuple[int, int, int]:
    """Steps that the encoder reads: of real stages, of their padding, of stages that do not exist."""
    real = padding = dummy = 0
    for stage in batch["compression_stages"]:
        rows, width = stage["actions"].shape
        lengths = stage["lengths"]
        missing = int((lengths == 0).sum()) * width
        real += int(lengths.sum())
        dummy += missing
        padding += rows * width - missing - int(lengths.sum())
    return real, padding, dummy


def slots_of(batch: dict[str, Any]) -> int:
    """Steps of a batch, the context and padding included."""
    return sum(stretch["actions"].numel() for stretch in (*batch["compression_stages"], batch["context"]))


class Trainer:
    def __init__(self, model: CompressedAD, contender: Contender) -> None:
        self.model, self.contender = model, contender
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)

    def step(self, batch: dict[str, Any]) -> None:
        self.model.loss(batch).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def train_for(setting: Setting, contender: Contender, number: int) -> tuple[float, int]:
    """The loss of other samples after so many seconds of training from the first weights, and the steps that were
    taken.
    """
    model = new_model(setting.config, number)
    trainer, taken, end = Trainer(model, contender), 0, time.perf_counter() + setting.seconds
    for epoch in count(1):
        for rows in contender.epoch(epoch):
            if time.perf_counter() > end:
                return held_out_loss(model, setting, contender), taken
            trainer.step(contender.batch(rows))
            taken += 1
    raise AssertionError("never")


def held_out_loss(model: CompressedAD, setting: Setting, contender: Contender) -> float:
    data = setting.data(seed=1_000, samples=HELD_OUT)
    losses: list[float] = []
    with torch.no_grad():
        for row in range(len(data)):
            losses.append(model.loss(contender.collate([data[row]])).item())
    return float(np.mean(losses))


if __name__ == "__main__":
    main()
