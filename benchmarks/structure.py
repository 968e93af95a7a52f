"""Structural bucketing: what dummy compression stages cost, beside what was once estimated of it.

One compressed algorithm-distillation model (that of `brim train distill`) on histories of the darkroom, cut into samples of depth 0 to 3,
equally many of each. Everybody trains on the same samples with the same first weights, optimizer and threads, and takes equally many steps
for an epoch.

    dummy stages            random batches; every sample gets stages of zeros up to the greatest depth, and the encoder reads them
    brim, batch size        `BucketSampler(dataset, batch_size)`: one structure in a batch
    brim, token budget      `BucketSampler(dataset, token_budget=...)`, with the budget that gives as many batches as the others have

`dummy %` is the share of the steps that the encoder reads which are in stages that do not exist, `padding %` the share that is padding of
real stages. `ms/step` is the mean over an epoch. `peak MB` is what training took on top of the process that was ready to train; `largest`
is the largest batch, in steps. `loss` is that of samples nobody trained on, each contender in its own layout, after equally many seconds of
training from the first weights. Every contender is a process of its own; they take turns, and the best round counts, except for the loss,
of which the mean over the rounds does: a round has its own first weights and order.
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
from brim.core.memory import resident_memory
from brim.envs.histories import Histories, write_histories
from brim.train.compressed_ad import CompressedAD
from brim.train.distill import new_model
from brim.train.distill_config import DistillConfig
from brim.train.distill_files import load_config
from brim.train.histories import HistoryDataset

SAMPLES, BATCH, SECONDS, ROUNDS = 8192, 128, 20.0, 3
HELD_OUT = 512
RATE, CLIP = 1e-3, 1.0
DUMMY, SIZED, BUDGETED = "dummy stages", "brim, batch size", "brim, token budget"
COLUMNS = {
    **{"ms/step": ".1f", "faster %": ".1f", "dummy %": ".1f", "padding %": ".1f", "peak MB": ",.0f", "less memory %": ".1f"},
    **{"largest": ",", "steps": ",", "loss": ".3f", "steps in time": ",.0f"},
}

Rows = Sequence[int]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=SAMPLES, help="how many samples the epoch has")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long everybody trains before losses are compared")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--quick", action="store_true", help="an epoch of 512 samples, one round, two seconds of training")
    parser.add_argument("--one", nargs=3, metavar=("CONTENDER", "FOLDER", "ROUND"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, folder, number = options.one
        print(json.dumps(measure(name, Setting.load(Path(folder)), int(number))))
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
    print("\n".join(f"{what:36} estimated {estimate:>7}   measured {measured:>7}" for what, estimate, measured in lines))
    report.tables[-1]["estimates"] = [dict(zip(("what", "estimated", "measured"), line, strict=True)) for line in lines]


def run(row: Row, folder: Path, number: int) -> None:
    command = [sys.executable, __file__, "--one", row.name, str(folder), str(number)]
    passive = {"OMP_WAIT_POLICY": "PASSIVE"}  # a thread that waits takes no CPU seconds
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **passive})
    if done.returncode:
        raise SystemExit(f"{row.name} failed:\n{done.stderr}")
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    losses = [*row.columns.get("loss", []), measured.pop("loss")]
    row.rounds += 1
    row.cpu = min(row.cpu, measured.pop("cpu"))
    if (seconds := measured.pop("seconds")) < row.seconds:
        row.seconds = seconds
        row.columns.update(measured)
    row.columns["loss"] = losses


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
        return HistoryDataset(Histories(self.folder / "histories.h5"), replace(self.config.data, samples=samples), seed=seed)


class Contender:
    """How samples become batches."""

    def __init__(self, name: str, data: HistoryDataset, depth: int, seed: int) -> None:
        self.name, self.data, self.depth, self.seed = name, data, depth, seed
        size = {} if name == BUDGETED else {"batch_size": BATCH}
        if name == BUDGETED:
            size["token_budget"] = equal_budget(data, -(-len(data) // BATCH))
        self.sampler = None if name == DUMMY else BucketSampler(data, seed=seed, rank=0, world_size=1, **size)

    def epoch(self, number: int) -> Iterator[Rows]:
        if self.sampler is None:
            order = np.random.default_rng((self.seed, number)).permutation(len(self.data)).tolist()
            return (order[start : start + BATCH] for start in range(0, len(order), BATCH))
        self.sampler.set_epoch(number)
        return iter(self.sampler)

    def collate(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        return collate_compressed_batch(samples) if self.sampler is not None else with_dummies(samples, self.depth)


def with_dummies(samples: list[dict[str, Any]], depth: int) -> dict[str, Any]:
    """Every sample with `depth` stages: those it does not have are zeros in front, as long as the others', and the encoder reads them."""
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


def equal_budget(data: HistoryDataset, batches: int) -> int:
    """The smallest budget that gives no more batches than that."""
    low, high = int(data.table.lengths.max()), int(data.table.lengths.sum())
    while low < high:
        middle = (low + high) // 2
        if len(BucketSampler(data, token_budget=middle, rank=0, world_size=1)) <= batches:
            high = middle
        else:
            low = middle + 1
    return low


def measure(name: str, setting: Setting, number: int) -> dict[str, Any]:
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    config = setting.config
    data = setting.data(seed=number, samples=setting.samples)
    contender = Contender(name, data, config.data.depth, seed=number)
    model = new_model(config, number)
    trainer = Trainer(model, contender)
    batches = list(contender.epoch(0))
    collated = [contender.collate(data.__getitems__(rows)) for rows in batches]
    work, largest = [encoder_work(batch) for batch in collated], max(slots_of(batch) for batch in collated)
    del collated
    ready = resident_memory(os.getpid()) / 1e6
    trainer.step(contender.collate(data.__getitems__(batches[0])))  # what is only done once is not timed
    wall, cpu = time.perf_counter(), time.process_time()
    for rows in batches:
        trainer.step(contender.collate(data.__getitems__(rows)))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = peak_memory() - ready
    loss, taken = train_for(setting, contender, number)
    real, padding, dummy = (sum(column) for column in zip(*work, strict=True))
    slots = max(real + padding + dummy, 1)
    return {
        "seconds": wall,
        "cpu": cpu,
        "ms/step": 1000 * wall / len(batches),
        "dummy %": 100 * dummy / slots,
        "padding %": 100 * padding / slots,
        "peak MB": peak,
        "largest": largest,
        "steps": len(batches),
        "loss": loss,
        "steps in time": taken,
    }


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
    """The loss of other samples after so many seconds of training from the first weights, and the steps that were taken."""
    model = new_model(setting.config, number)
    trainer, taken, end = Trainer(model, contender), 0, time.perf_counter() + setting.seconds
    for epoch in count(1):
        for rows in contender.epoch(epoch):
            if time.perf_counter() > end:
                return held_out_loss(model, setting, contender), taken
            trainer.step(contender.collate(contender.data.__getitems__(rows)))
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
