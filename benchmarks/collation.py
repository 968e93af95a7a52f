"""Collation: from samples of uneven length to the arrays of a batch.

Lognormal lengths, batches of about 25,000 tokens as a plan of brim's gives them, everything learned. brim reads a
mapped token store. The others get the same samples in the form they take: lists of integers, as a data set of Hugging
Face gives them, or NumPy slices of the same store. They do not all make the same things, and `makes` says what:

    t tokens    a attention mask    l labels    p positions    s segment ids    m loss mask    c cu_seqlens

`of memcpy` is how fast the bytes that were made could be copied, in percent of the time they took to make.

The loader's table is about batches of 16,384 slots: CPU seconds of an epoch, all threads together, beside copying the
bytes of its batches, which stay in the cache.
"""

import argparse
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import Contender, Report, Row, Target, add_ratios, lognormal, one_thread, race, timed
from numpy.typing import NDArray
from torch.nn.utils.rnn import pad_sequence

from brim import BatchingConfig, BatchPlan, LengthCache, PackingConfig
from brim.batch.collate import collate, pad_sequences
from brim.batch.torch import TENSORS, loader
from brim.core.columns import write_columns
from brim.data.ids import Ids
from brim.data.token_store import FORMAT, TokenStore
from brim.data.tokenizer.gpt2 import END_OF_TEXT, gpt2_backend
from brim.plan.epoch import MicrobatchSpec

BUDGET, ROW = 25_000, 2048
SAMPLES = 10_000
PAD = 50_256  # GPT-2's end of text; no sample holds it
BASE, COPY = "brim collate, padded int64", "memcpy of as many bytes"
LOADER_BUDGET, OVER_COPY, OVER_COPY_THREAD = 16_384, 6, 8
COLUMNS = {"makes": "", "Mtokens/s": ".1f", "of memcpy %": ".1f", "ratio": ".2f"}

Lists = Mapping[int, list[int]]


@dataclass(frozen=True)
class Way:
    """One way from a microbatch to arrays. `flat`: without padding, or several samples to a row."""

    name: str
    makes: str
    make: Callable[[MicrobatchSpec], Any]
    flat: bool = False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=SAMPLES, help="how many samples the epoch has")
    parser.add_argument("--quick", action="store_true", help="an epoch of 2,000 samples")
    options = parser.parse_args()
    one_thread()
    report = Report("collation")
    torch.set_num_threads(1)  # nobody here gains from more, and some lose
    with tempfile.TemporaryDirectory() as folder:
        store = make_store(Path(folder) / "tokens.brim", lognormal(2_000 if options.quick else options.samples))
        table = LengthCache(Ids.rows(len(store)), store.lengths)
        plan = BatchPlan.build(table, BatchingConfig(token_budget=BUDGET))
        microbatches = sorted(plan.get_epoch(0), key=lambda microbatch: microbatch.batch_size)
        full = [microbatch for microbatch in microbatches if microbatch.padded_token_count > 0.9 * BUDGET]
        for kind, at in (("short", -1), ("ordinary", len(full) // 2), ("long", 0)):
            one_batch(report, kind, full[at], store)
        whole_epoch(report, plan, store)
        samples = len(store) if options.quick else 2 * len(store)
        found = list(loaders(report, make_store(Path(folder) / "more.brim", lognormal(samples))))
    report.targets(found)
    print(f"written: {report.close()}")


def make_store(path: Path, lengths: NDArray[np.int32]) -> TokenStore:
    tokens = np.random.default_rng(2).integers(0, PAD, int(lengths.sum(dtype=np.int64)), np.uint16)
    meta = {"pad_id": PAD, "dataset_hash": "", "tokenizer_hash": ""}
    write_columns(path, FORMAT, meta, {"tokens": tokens, "learned": np.ones(len(tokens), np.uint8), "length": lengths})
    return TokenStore.load(path)


def one_batch(report: Report, kind: str, microbatch: MicrobatchSpec, store: TokenStore) -> None:
    ways, wanted = list(all_ways(report, microbatch, store)), rows_of(microbatch, store)
    repeats = [repeats_of(way.make, microbatch) for way in ways]

    def contender(way: Way, repeat: int) -> Contender:
        def run() -> Any:
            for _ in range(repeat - 1):
                way.make(microbatch)
            return way.make(microbatch)

        return Contender(way.name, run, lambda made: {"makes": way.makes, "MB": check(way, made, wanted)})

    copies, copy = 200, memcpy(29 * microbatch.padded_token_count)
    copying = Contender(COPY, lambda: deque(map(copy, range(copies)), 0))
    rows = race([copying, *(contender(way, repeat) for way, repeat in zip(ways, repeats, strict=True))], rounds=7)
    for row, repeat in zip(rows, [copies, *repeats], strict=True):
        row.seconds, row.cpu = row.seconds / repeat, row.cpu / repeat
    finish(rows, microbatch.token_count, copied=29 * microbatch.padded_token_count)
    samples = f"{microbatch.batch_size:,} of up to {microbatch.max_len} tokens, {microbatch.token_count:,} together"
    report.table(
        f"One batch of {kind} samples: {samples}",
        rows,
        COLUMNS,
        subject="batch",
        kind=kind,
        tokens=microbatch.token_count,
    )


def repeats_of(make: Callable[[Any], Any], microbatch: MicrobatchSpec) -> int:
    """So many that the clock has 20 ms to measure."""
    make(microbatch)
    return max(1, int(0.02 / timed(lambda: make(microbatch))[0]))


def memcpy(size: int) -> Callable[[Any], None]:
    """Copies so many bytes: as many as brim makes for each slot of a batch, times its slots.

    They stay in the cache, as batches do. Pages of memory that get in each other's way there make copying up to three
    times as slow, so the fastest of several places is taken.
    """
    places = [(np.empty(size, np.uint8), np.ones(size, np.uint8)) for _ in range(8)]

    def seconds(place: tuple[NDArray[np.uint8], NDArray[np.uint8]]) -> float:
        return min(timed(lambda: deque(map(np.copyto, *zip(*[place] * 50, strict=True)), 0))[0] for _ in range(5))

    target, source = min(places, key=seconds)
    return lambda _: np.copyto(target, source)


def finish(rows: list[Row], tokens: int, *, copied: int) -> None:
    """The first row is the one that copied so many bytes."""
    rows[0].columns["MB"] = copied / 1e6
    speed = rows[0].columns["MB"] / rows[0].seconds
    for row in rows:
        row.columns["Mtokens/s"] = None if row is rows[0] else tokens / row.seconds / 1e6
        row.columns["of memcpy %"] = 100 * row.columns["MB"] / speed / row.seconds
    add_ratios(rows, BASE)


def all_ways(report: Report, microbatch: MicrobatchSpec | None, store: TokenStore) -> Iterator[Way]:
    """For one microbatch, or for any of a plan's."""
    yield Way(BASE, "tlpsmc", lambda m: collate(m, store, dtype=np.int64))
    yield Way("brim collate, padded int32", "tlpsmc", lambda m: collate(m, store))
    yield Way("brim collate, flat int64", "tlpsmc", lambda m: collate(m, store, dtype=np.int64, flat=True), flat=True)
    if microbatch is not None:
        packed, some = as_packed(microbatch, store)
        yield Way(
            "brim collate, packed rows int64", "tlpsmc", lambda _: collate(packed, some, dtype=np.int64), flat=True
        )
    tokens, starts, lengths = store.tokens, store.starts, store.lengths

    def slices(m: MicrobatchSpec) -> list[Any]:
        begin = starts[m.indices].tolist()
        return [tokens[start : start + size] for start, size in zip(begin, lengths[m.indices].tolist(), strict=True)]

    yield Way("brim pad_sequences, int64", "t", lambda m: pad_sequences(slices(m), PAD, dtype=np.int64))
    rows = range(len(store)) if microbatch is None else microbatch.indices.tolist()
    lists = {row: store.sample(row).tokens.tolist() for row in rows}

    def usual(m: MicrobatchSpec) -> Any:
        return pad_sequence(
            [torch.tensor(lists[row]) for row in m.indices.tolist()], batch_first=True, padding_value=PAD
        )

    def sliced(m: MicrobatchSpec) -> Any:
        return pad_sequence(
            [torch.from_numpy(row.astype(np.int64)) for row in slices(m)], batch_first=True, padding_value=PAD
        )

    yield Way("lists, torch.tensor, pad_sequence", "t", usual)
    yield Way("NumPy slices, pad_sequence", "t", sliced)
    yield from hugging_face(report, lists)


def hugging_face(report: Report, lists: Lists) -> Iterator[Way]:
    module = report.peer("transformers", "transformers")
    if module is None:
        return
    tokenizer = module.PreTrainedTokenizerFast(
        tokenizer_object=gpt2_backend(), eos_token=END_OF_TEXT, pad_token=END_OF_TEXT
    )
    assert tokenizer.pad_token_id == PAD
    padded = module.DataCollatorForLanguageModeling(tokenizer, mlm=False)
    flat = module.DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    rows = {row: {"input_ids": tokens} for row, tokens in lists.items()}
    yield Way("HF DataCollatorForLanguageModeling", "tal", lambda m: padded([rows[row] for row in m.indices.tolist()]))
    yield Way(
        "HF DataCollatorWithFlattening", "tlpsc", lambda m: flat([rows[row] for row in m.indices.tolist()]), flat=True
    )


def as_packed(microbatch: MicrobatchSpec, store: TokenStore) -> tuple[MicrobatchSpec, TokenStore]:
    """The same samples in packed rows, and a store of only these."""
    some = store.take(microbatch.indices, dataset_hash="")
    config = BatchingConfig(token_budget=2 * BUDGET, packing=PackingConfig(max_length=ROW))
    (packed,) = BatchPlan.build(LengthCache(Ids.rows(len(some)), some.lengths), config).get_epoch(0)
    return packed, some


def rows_of(microbatch: MicrobatchSpec, store: TokenStore) -> list[NDArray[Any]]:
    return [store.sample(row).tokens for row in microbatch.indices.tolist()]


def check(way: Way, made: Any, wanted: list[NDArray[Any]]) -> float:
    """Whether the tokens (and labels) are those of the samples and the rest is padding; returns the megabytes of what
    was made.
    """
    arrays = arrays_of(made)
    tokens = arrays["tokens"]
    total = sum(map(len, wanted))
    if way.flat and tokens.shape[0] > 1:  # packed rows hold the same tokens, in another order
        kept = arrays["segment_ids"] != 0
        assert np.array_equal(np.sort(tokens[kept]), np.sort(np.concatenate(wanted)))
        assert np.count_nonzero(arrays["positions"][kept] == 0) == len(wanted)
    elif way.flat:
        assert np.array_equal(tokens[0], np.concatenate(wanted))
        assert np.array_equal(arrays["positions"][0], np.concatenate([np.arange(len(row)) for row in wanted]))
    else:
        assert all(np.array_equal(row[: len(want)], want) for row, want in zip(tokens, wanted, strict=True))
        assert np.count_nonzero(tokens != PAD) == total
    if "labels" in arrays:
        learned = arrays["labels"] != -100
        assert np.array_equal(arrays["labels"][learned], tokens[learned])
        # The first token of a sequence is nobody's target.
        assert np.count_nonzero(learned) in (total, total - len(wanted))
    return sum(array.nbytes for array in arrays.values()) / 1e6


NAMES = {"input_ids": "tokens", "position_ids": "positions"}


def arrays_of(made: Any) -> dict[str, NDArray[Any]]:
    if isinstance(made, np.ndarray):
        return {"tokens": made}
    if isinstance(made, torch.Tensor):
        return {"tokens": made.numpy()}
    items: Iterable[tuple[str, Any]] = made.items() if hasattr(made, "items") else vars(made).items()
    kept = (
        (NAMES.get(name, name), value.numpy() if isinstance(value, torch.Tensor) else value) for name, value in items
    )
    return {name: value for name, value in kept if isinstance(value, np.ndarray)}


def whole_epoch(report: Report, plan: BatchPlan, store: TokenStore) -> None:
    """Everybody makes the batches of the plan in its order; brim's time includes reading the plan."""
    epoch = plan.get_epoch(0)
    planned = list(epoch)

    def contender(way: Way, batches: Callable[[], Iterable[Any]]) -> Contender:
        def judge(_: Any) -> dict[str, Any]:
            made = zip(batches(), planned, strict=True)
            return {
                "makes": way.makes,
                "MB": sum(check(way, one, rows_of(microbatch, store)) for one, microbatch in made),
            }

        return Contender(way.name, lambda: deque(batches(), 0), judge)

    def one_by_one(way: Way) -> Contender:
        source = epoch if way.name.startswith("brim") else planned
        return contender(way, lambda: map(way.make, source))

    ways = [one_by_one(way) for way in all_ways(report, None, store)]
    through = Way("brim loader (a thread ahead)", "tlpsmc", lambda _: None)
    ways.insert(1, contender(through, lambda: loader(plan, store, rank=0, world_size=1)))
    copy = memcpy(29 * epoch.fill.slots // len(epoch))
    copying = Contender(COPY, lambda: deque(map(copy, planned), 0))
    rows = race([copying, *ways], rounds=5, patience=8)
    finish(rows, epoch.fill.used, copied=29 * epoch.fill.slots)
    title = f"An epoch: {len(store):,} samples, {epoch.fill.used:,} tokens, {len(epoch):,} batches"
    report.table(title, rows, COLUMNS, subject="epoch", n=len(store), tokens=epoch.fill.used)


def loaders(report: Report, store: TokenStore) -> Iterator[Target]:
    """The loader with and without its thread, with memory of its own for every batch and with memory used again.

    The targets are about the first two, which is how it runs by default.
    """
    table = LengthCache(Ids.rows(len(store)), store.lengths)
    plan = BatchPlan.build(table, BatchingConfig(token_budget=LOADER_BUDGET))
    count = len(plan.get_epoch(0))

    def batches(**options: Any) -> Iterable[Any]:
        return loader(plan, store, rank=0, world_size=1, **options)

    size = sum(tensor.nbytes for batch in batches() for tensor in map(batch.__getattribute__, TENSORS)) // count
    copy = memcpy(size)
    copying = Contender(COPY, lambda: deque(map(copy, range(count)), 0))
    ways = {
        "brim loader without its thread": {"prefetch": 0},
        "brim loader": {},
        "brim loader without its thread, memory used again": {"prefetch": 0, "reuse": True},
        "brim loader, memory used again": {"reuse": True},
    }
    contenders = [
        Contender(name, lambda options=options: deque(batches(**options), 0)) for name, options in ways.items()
    ]
    rows = race([copying, *contenders], rounds=15, shortest=0.05)
    for row in rows:
        row.columns["us a batch"] = 1e6 * row.cpu / count
    add_ratios(rows, COPY, cpu=True)
    title = f"Loader: {count:,} batches of {LOADER_BUDGET:,} slots, {size / 1e3:.0f} KB each"
    report.table(title, rows, {"us a batch": ".1f", "ratio": ".2f"}, subject="loader", batches=count, bytes=size)
    for row in rows[1:3]:
        most = OVER_COPY if "without" in row.name else OVER_COPY_THREAD
        what = row.name.replace("brim loader", "loader", 1)
        yield Target(what, f"at most {most} x memcpy", f"{row.columns['ratio']:.2f} x", row.columns["ratio"] <= most)


if __name__ == "__main__":
    main()
