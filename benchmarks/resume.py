"""Continuing in the middle of an epoch: what it costs until the next batch is there, and whether it is the right one.

An epoch of a million short samples in a mapped token store, batches of about 32. All read the same store, which is
open; everything else is built on the clock, in a process that has imported what it needs: loader, workers, order of the
epoch, the first batch, and the end of the workers. Peers get the cheapest samples there are, slices of the store:
skipping data that has to be tokenised costs more by far.

`exact` compares the batch with the one that an uninterrupted run had in this place.
"""

import argparse
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import Contender, Report, add_ratios, race
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler

from brim import BatchingConfig, BatchPlan, LengthCache
from brim.batch.torch import PlanLoader, loader
from brim.core.columns import write_columns
from brim.data.ids import Ids
from brim.data.token_store import FORMAT, TokenStore

SAMPLES, SIZE, SEED = 1_000_000, 32, 7
TENTHS = (1, 5, 9)
BASE = "brim loader"
WORKERS = (0, 2)

Tensor = torch.Tensor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=SAMPLES, help="how many samples the epoch has")
    parser.add_argument("--quick", action="store_true", help="an epoch of 50,000 samples, its middle only")
    options = parser.parse_args()
    samples, tenths = (50_000, (5,)) if options.quick else (options.samples, TENTHS)
    report = Report("resume")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        store = make_store(Path(folder) / "tokens.brim", samples)
        everyone = [*brim(Path(folder), store, tenths), *torch_skipping(store), *accelerate(report, store)]
        everyone += stateful(report, store, tenths)
        for tenth in tenths:
            here = [one.contender(tenth) for one in everyone if tenth <= one.until]
            rows = race(here, rounds=3, patience=2)
            add_ratios(rows, BASE)
            title = f"Continuing at {tenth * 10}% of an epoch of {samples:,} samples"
            report.table(
                title,
                rows,
                {"batches before": ",", "exact": "", "ratio": ",.1f"},
                subject="resume",
                n=samples,
                tenth=tenth,
            )
    print(f"written: {report.close()}")


@dataclass(frozen=True)
class Resumer:
    """`resume` gives the next batch after so many tenths of the epoch; `right` is the batch of an uninterrupted run.

    `until`: further on it would only take longer.
    """

    name: str
    resume: Callable[[int], Tensor]
    right: Callable[[int], Tensor]
    before: Callable[[int], int]
    until: int = 10

    def contender(self, tenth: int) -> Contender:
        def judge(batch: Tensor) -> dict[str, Any]:
            return {
                "exact": "yes" if torch.equal(batch, self.right(tenth)) else "NO",
                "batches before": self.before(tenth),
            }

        return Contender(self.name, lambda: self.resume(tenth), judge)


def make_store(path: Path, samples: int) -> TokenStore:
    """Median 30 tokens, so that a million samples are 130 MB."""
    rng = np.random.default_rng(3)
    lengths = np.clip(rng.lognormal(np.log(30), 0.8, samples), 1, 256).astype(np.int32)
    tokens = rng.integers(1, 50_000, int(lengths.sum(dtype=np.int64)), np.uint16)
    meta = {"pad_id": 0, "dataset_hash": "", "tokenizer_hash": ""}
    write_columns(path, FORMAT, meta, {"tokens": tokens, "learned": np.ones(len(tokens), np.uint8), "length": lengths})
    return TokenStore.load(path)


def brim(folder: Path, store: TokenStore, tenths: tuple[int, ...]) -> Iterator[Resumer]:
    """The position is a few numbers; the plan is opened again."""
    path = folder / "plan"
    config = BatchingConfig(token_budget=SIZE * int(store.lengths.mean()))
    BatchPlan.build(LengthCache(Ids.rows(len(store)), store.lengths), config).save(path)

    def start(**options: Any) -> PlanLoader:
        return loader(BatchPlan.load(path), options.pop("store", store), rank=0, world_size=1, **options)

    def resume(tenth: int, **options: Any) -> Tensor:
        continued = start(**options)
        continued.load_state_dict(states[tenth])
        return first(iter(continued))

    whole = start()
    marks = {len(whole) * tenth // 10: tenth for tenth in tenths}
    states: dict[int, dict[str, Any]] = {}
    right: dict[int, Tensor] = {}
    for place, batch in enumerate(whole):  # the uninterrupted run
        if place in marks:
            right[marks[place]] = batch.input_ids
        if place + 1 in marks:
            states[marks[place + 1]] = whole.state_dict()
    before = {tenth: place for place, tenth in marks.items()}
    common = {"right": right.__getitem__, "before": before.__getitem__}
    yield Resumer(BASE, resume, **common)
    checked = "brim loader, the store opened and checked too"
    yield Resumer(checked, lambda tenth: resume(tenth, store=TokenStore.load(folder / "tokens.brim")), **common)
    yield Resumer("brim loader, 2 workers", lambda tenth: resume(tenth, num_workers=2), **common)


def first(batches: Iterator[Any]) -> Tensor:
    """The next batch; then the iterator ends, and its workers with it."""
    batch = next(batches)
    del batches
    return batch if isinstance(batch, Tensor) else batch.input_ids


class Rows(Dataset[Tensor]):
    """A map-style data set over the store."""

    def __init__(self, store: TokenStore) -> None:
        self.store = store

    def __len__(self) -> int:
        return len(self.store)

    def __getitem__(self, row: int) -> Tensor:
        return torch.from_numpy(self.store.sample(row).tokens.astype(np.int64))


class Stream(IterableDataset[Tensor]):
    """The same rows in the same order, one after the other."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Tensor]:
        return map(self.rows.__getitem__, shuffled(self.rows))


def shuffled(rows: Rows) -> RandomSampler:
    return RandomSampler(rows, generator=torch.Generator().manual_seed(SEED))


def padded(rows: list[Tensor]) -> Tensor:
    return pad_sequence(rows, batch_first=True)


def skipped(store: TokenStore, tenth: int) -> int:
    return -(-len(store) // SIZE) * tenth // 10


def reference(store: TokenStore) -> Callable[[int], Tensor]:
    """The batch in this place of the order of the sampler, which no loader was asked for."""
    rows = Rows(store)
    order: list[list[int]] = list(BatchSampler(shuffled(rows), SIZE, False))
    return lambda tenth: padded([rows[row] for row in order[skipped(store, tenth)]])


def torch_skipping(store: TokenStore) -> Iterator[Resumer]:
    rows, right = Rows(store), reference(store)

    def resume(tenth: int, workers: int) -> Tensor:
        batches = iter(DataLoader(rows, SIZE, sampler=shuffled(rows), collate_fn=padded, num_workers=workers))
        for _ in islice(batches, skipped(store, tenth)):
            pass
        return first(batches)

    for workers in WORKERS:
        name = f"torch DataLoader, skipping, {workers} workers"
        skip = partial(resume, workers=workers)
        yield Resumer(name, skip, right, lambda tenth: skipped(store, tenth), until=5 if workers else 10)


def accelerate(report: Report, store: TokenStore) -> Iterator[Resumer]:
    module = report.peer("accelerate", "accelerate")
    if module is None:
        return
    rows, right = Rows(store), reference(store)

    def resume(tenth: int, *, stream: bool) -> Tensor:
        data: dict[str, Any] = {"dataset": Stream(rows)} if stream else {"dataset": rows, "sampler": shuffled(rows)}
        whole = DataLoader(**data, batch_size=SIZE, collate_fn=padded)
        return first(iter(module.skip_first_batches(whole, skipped(store, tenth))))

    for name, stream in (("map-style", False), ("iterable", True)):
        yield Resumer(
            f"Accelerate skip_first_batches, {name}",
            lambda tenth, stream=stream: resume(tenth, stream=stream),
            right,
            lambda tenth: skipped(store, tenth),
        )


def stateful(report: Report, store: TokenStore, tenths: tuple[int, ...]) -> Iterator[Resumer]:
    """Its states come from a real pass.

    Snapshots are as rare as that allows, which makes the pass cheaper and changes no state.
    """
    module = report.peer("torchdata.stateful_dataloader", "torchdata")
    if module is None:
        return
    warnings.filterwarnings("ignore", "'set_vital' is deprecated")
    rows = Rows(store)
    marks = {skipped(store, tenth): tenth for tenth in tenths}
    every = int(np.gcd.reduce(np.array(list(marks), np.int64)))

    def start(workers: int) -> Any:
        generator = torch.Generator().manual_seed(SEED)
        options: dict[str, Any] = {"collate_fn": padded, "num_workers": workers, "snapshot_every_n_steps": every}
        return module.StatefulDataLoader(rows, SIZE, shuffle=True, generator=generator, **options)

    for workers in WORKERS:
        states: dict[int, Any] = {}
        right: dict[int, Tensor] = {}
        whole = start(workers)
        batches = iter(whole)
        for place in range(max(marks) + 1):
            if place in marks:
                states[marks[place]] = whole.state_dict()
            batch = next(batches)
            if place in marks:
                right[marks[place]] = batch
        del batches

        def resume(tenth: int, workers: int = workers, states: dict[int, Any] = states) -> Tensor:
            continued = start(workers)
            continued.load_state_dict(states[tenth])
            return first(iter(continued))

        yield Resumer(
            f"StatefulDataLoader, {workers} workers", resume, right.__getitem__, lambda tenth: skipped(store, tenth)
        )


if __name__ == "__main__":
    main()
