"""Prioritised replay: drawing batches of 256, updating their priorities, adding, saving and loading.

All buffers hold the same entries of 64 tokens (int32) and the same priorities, and a draw gives tokens, indexes or
keys, and importance weights, except that of chuk-lazarus, which has no weights and gives objects. brim draws without
replacement unless it says otherwise; the others draw with. What was drawn is checked after the clock has stopped.
`seconds` are per call, or per sample when adding. chuk-lazarus takes time in proportion to what is in the buffer, so it
is only run on the small one. It has no update of many priorities, and is asked for one after the other.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from harness import Contender, Report, Row, add_ratios, race
from numpy.typing import NDArray

from brim.stream.replay.buffer import ReplayBuffer
from brim.stream.replay.columns import Entries
from brim.stream.sample import StreamSample

SIZES, QUICK = (100_000, 1_000_000), (20_000,)
SLOW = 100_000  # the largest buffer for chuk-lazarus
BATCH, LENGTH, CALLS, SLOW_CALLS = 256, 64, 500, 5
ALPHA, BETA = 0.6, 0.4
BASE = "brim"
OPERATIONS = ("sample", "update", "sample and update")

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Data:
    tokens: NDArray[np.int32]  # [entries, LENGTH]
    priorities: Floats

    @property
    def n(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class Buffer:
    """A peer's buffer, filled: what it does, and how a draw of it is checked."""

    name: str
    sample: Callable[[], Any]
    update: Callable[[NDArray[np.int64], Floats], Any]
    """Of rows of the data."""
    update_drawn: Callable[[Any, Floats], Any]
    rows: Callable[[Any], tuple[NDArray[Any], NDArray[Any]]]
    """The rows of the data that a draw is of, and its tokens."""
    calls: int = CALLS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="how many entries the buffers hold")
    parser.add_argument("--quick", action="store_true", help="20,000 entries: a look at whether everything runs")
    options = parser.parse_args()
    sizes = QUICK if options.quick else options.sizes
    report = Report("replay")
    for n in sizes:
        rng = np.random.default_rng(0)
        data = Data(rng.integers(0, 50_000, (n, LENGTH), np.int32), rng.random(n) + 0.01)
        buffers = [*brim(data), *cpprb(report, data), *torchrl(report, data), *chuk_lazarus(report, data)]
        for operation in OPERATIONS:
            rows = race([contender(buffer, operation, data) for buffer in buffers], rounds=5, patience=20)
            per_call(rows, {buffer.name: buffer.calls for buffer in buffers})
            title = f"{operation.capitalize()}, batch of {BATCH}, {n:,} entries"
            report.table(
                title, rows, {"microseconds": ",.0f", "ratio": ",.2f"}, subject="replay", operation=operation, n=n
            )
        del buffers
    small = Data(data.tokens[:SLOW], data.priorities[:SLOW])
    adding(report, small)
    with tempfile.TemporaryDirectory() as folder:
        saving(report, small, Path(folder))
        if data.n > small.n:
            saving(report, data, Path(folder))
    print(f"written: {report.close()}")


def contender(buffer: Buffer, operation: str, data: Data) -> Contender:
    rng = np.random.default_rng(1)
    rows = [rng.choice(data.n, BATCH, replace=False) for _ in range(20)]
    values = [rng.random(BATCH) + 0.01 for _ in range(20)]

    def sample() -> Any:
        for _ in range(buffer.calls - 1):
            buffer.sample()
        return buffer.sample()

    def update() -> None:
        for call in range(buffer.calls):
            buffer.update(rows[call % 20], values[call % 20])

    def both() -> Any:
        for call in range(buffer.calls):
            draw = buffer.sample()
            buffer.update_drawn(draw, values[call % 20])
        return draw

    def judge(draw: Any) -> dict[str, Any]:
        if draw is not None:
            drawn, tokens = buffer.rows(draw)
            if len(drawn) != BATCH or not np.array_equal(data.tokens[drawn], tokens.reshape(BATCH, LENGTH)):
                raise AssertionError(f"{buffer.name} gave other tokens than were put in")
        return {}

    return Contender(buffer.name, {"sample": sample, "update": update, "sample and update": both}[operation], judge)


def per_call(rows: list[Row], calls: dict[str, int]) -> None:
    for row in rows:
        row.seconds, row.cpu = row.seconds / calls[row.name], row.cpu / calls[row.name]
        row.columns["microseconds"] = row.seconds * 1e6
    add_ratios(rows, BASE)


def filled(data: Data) -> tuple[ReplayBuffer, NDArray[np.int64]]:
    buffer = ReplayBuffer(max_size=data.n, priority_alpha=ALPHA, importance_beta=BETA)
    return buffer, buffer.add_entries(entries(data), data.priorities)


def entries(data: Data) -> Entries:
    return Entries.of_columns(range(data.n), data.tokens.reshape(-1), np.full(data.n, LENGTH))


def brim(data: Data) -> Iterator[Buffer]:
    for name, replace in ((BASE, False), ("brim, with replacement", True)):
        buffer, keys = filled(data)

        def sample(buffer: ReplayBuffer = buffer, replace: bool = replace) -> Any:
            draw = buffer.sample(BATCH, replace=replace)
            return draw, draw.tokens, draw.keys, draw.weights

        yield Buffer(
            name,
            sample,
            lambda rows, values, buffer=buffer, keys=keys: buffer.update_priorities(keys[rows], values),
            lambda drawn, values, buffer=buffer: buffer.update_priorities(drawn[2], values),
            lambda drawn: (np.array(drawn[0].sample_ids), drawn[1]),
        )


def cpprb(report: Report, data: Data) -> Iterator[Buffer]:
    module = report.peer("cpprb", "cpprb")
    if module is None:
        return
    buffer = module.PrioritizedReplayBuffer(data.n, {"tokens": {"shape": LENGTH, "dtype": np.int32}}, alpha=ALPHA)
    buffer.add(tokens=data.tokens, priorities=data.priorities)
    yield Buffer(
        "cpprb",
        lambda: buffer.sample(BATCH, beta=BETA),
        buffer.update_priorities,
        lambda drawn, values: buffer.update_priorities(drawn["indexes"], values),
        lambda drawn: (drawn["indexes"], drawn["tokens"]),
    )


def torchrl(report: Report, data: Data) -> Iterator[Buffer]:
    if report.peer("torchrl.data", "torchrl") is None:
        return
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, PrioritizedSampler, ReplayBuffer

    try:
        sampler = PrioritizedSampler(data.n, ALPHA, BETA)
    except RuntimeError as error:  # its compiled part is for another torch
        report.not_available["torchrl"] = str(error).splitlines()[0]
        return
    buffer = ReplayBuffer(storage=LazyTensorStorage(data.n), sampler=sampler, batch_size=BATCH)
    buffer.extend(TensorDict({"tokens": torch.from_numpy(data.tokens)}, [data.n]))
    buffer.update_priority(torch.arange(data.n), torch.from_numpy(data.priorities))

    def sample() -> Any:
        return buffer.sample(BATCH, return_info=True)

    yield Buffer(
        "TorchRL",
        sample,
        lambda rows, values: buffer.update_priority(torch.from_numpy(rows), torch.from_numpy(values)),
        lambda drawn, values: buffer.update_priority(drawn[1]["index"], torch.from_numpy(values)),
        lambda drawn: (np.asarray(drawn[1]["index"]), drawn[0]["tokens"].numpy()),
    )


def chuk_lazarus(report: Report, data: Data) -> Iterator[Buffer]:
    module = report.peer("chuk_lazarus.data.batching.streaming", "chuk-lazarus")
    if module is None or data.n > SLOW:
        return
    buffer = module.ReplayBuffer(module.ReplayBufferConfig(max_size=data.n, priority_alpha=ALPHA))
    for one, priority in zip(chuk_samples(module, data), data.priorities.tolist(), strict=True):
        buffer.add(one, priority)

    def update(ids: list[str], values: Floats) -> None:
        for id, value in zip(ids, values.tolist(), strict=True):
            buffer.update_priority(id, value)

    yield Buffer(
        "chuk-lazarus",
        lambda: buffer.sample(BATCH),
        lambda rows, values: update([str(row) for row in rows], values),
        lambda drawn, values: update([one.sample_id for one in drawn], values),
        lambda drawn: (np.array([int(one.sample_id) for one in drawn]), np.array([one.input_ids for one in drawn])),
        SLOW_CALLS,
    )


def chuk_samples(module: Any, data: Data) -> list[Any]:
    mask = (1,) * LENGTH
    common: dict[str, Any] = {"loss_mask": mask, "dataset_id": "bench", "source": module.SampleSource.OFFLINE}
    return [
        module.StreamSample(input_ids=tuple(row), sample_id=str(place), **common)
        for place, row in enumerate(data.tokens.tolist())
    ]


def adding(report: Report, data: Data) -> None:
    """To an empty buffer, in the form that each takes."""
    mask = np.ones(LENGTH, np.uint8)
    samples = [StreamSample(sample_id=place, input_ids=row, loss_mask=mask) for place, row in enumerate(data.tokens)]
    columns, priorities = entries(data), data.priorities.tolist()

    def brim_one_by_one() -> int:
        buffer = ReplayBuffer(max_size=data.n)
        for one, priority in zip(samples, priorities, strict=True):
            buffer.add(one, priority)
        return buffer.snapshot().size  # with what was still to be written

    def brim_batch(add: Callable[[ReplayBuffer], Any]) -> int:
        buffer = ReplayBuffer(max_size=data.n)
        add(buffer)
        return buffer.size

    everyone = [
        Contender(BASE, partial(brim_batch, lambda buffer: buffer.add_batch(samples, data.priorities))),
        Contender("brim, one by one", brim_one_by_one),
        Contender("brim, columns", partial(brim_batch, lambda buffer: buffer.add_entries(columns, data.priorities))),
    ]
    if (module := report.peer("cpprb", "cpprb")) is not None:

        def fill(one_by_one: bool, module: Any = module) -> int:
            buffer = module.PrioritizedReplayBuffer(
                data.n, {"tokens": {"shape": LENGTH, "dtype": np.int32}}, alpha=ALPHA
            )
            if not one_by_one:
                buffer.add(tokens=data.tokens, priorities=data.priorities)
            else:
                for row, priority in zip(data.tokens, priorities, strict=True):
                    buffer.add(tokens=row, priorities=priority)
            return buffer.get_stored_size()

        everyone += [
            Contender("cpprb, columns", partial(fill, False)),
            Contender("cpprb, one by one", partial(fill, True)),
        ]
    if (module := report.peer("chuk_lazarus.data.batching.streaming", "chuk-lazarus")) is not None:
        objects = chuk_samples(module, data)

        def chuk(module: Any = module) -> int:
            buffer = module.ReplayBuffer(module.ReplayBufferConfig(max_size=data.n))
            for one, priority in zip(objects, priorities, strict=True):
                buffer.add(one, priority)
            return buffer.size

        everyone.append(Contender("chuk-lazarus, one by one", chuk))
    rows = race(everyone, rounds=3)
    per_call(rows, dict.fromkeys([one.name for one in everyone], data.n))
    report.table(
        f"Adding {data.n:,} samples", rows, {"microseconds": ",.2f", "ratio": ",.2f"}, subject="adding", n=data.n
    )


def saving(report: Report, data: Data, folder: Path) -> None:
    """To a file and back.

    What is loaded goes on where the saved one was, except chuk-lazarus's, whose draws start again.
    """
    buffer, _ = filled(data)
    file, text, foreign = folder / "buffer.brim", folder / "buffer.json", folder / "chuk.json"

    def size(path: Path) -> Callable[[Any], dict[str, Any]]:
        return lambda _: {"MB": path.stat().st_size / 1e6}

    def same(path: Path) -> Callable[[ReplayBuffer], dict[str, Any]]:
        def judge(loaded: ReplayBuffer) -> dict[str, Any]:
            if not np.array_equal(
                loaded.sample(BATCH).keys, ReplayBuffer.from_state(buffer.state()).sample(BATCH).keys
            ):
                raise AssertionError("the loaded buffer draws something else")
            return size(path)(loaded)

        return judge

    saves = [Contender(BASE, lambda: buffer.save(file), size(file))]
    loads = [Contender(BASE, lambda: ReplayBuffer.load(file), same(file))]
    if data.n <= SLOW:
        saves.append(Contender("brim, JSON", lambda: buffer.save(text), size(text)))
        loads.append(Contender("brim, JSON", lambda: ReplayBuffer.load(text), same(text)))
    module = report.peer("chuk_lazarus.data.batching.streaming", "chuk-lazarus")
    if module is not None and data.n <= SLOW:
        other = module.ReplayBuffer(module.ReplayBufferConfig(max_size=data.n))
        for one, priority in zip(chuk_samples(module, data), data.priorities.tolist(), strict=True):
            other.add(one, priority)

        def chuk_load() -> Any:
            return module.ReplayBuffer.from_dict(json.loads(foreign.read_text()))

        saves.append(
            Contender(
                "chuk-lazarus, JSON",
                lambda: foreign.write_text(json.dumps(other.to_dict(), default=str)),
                size(foreign),
            )
        )
        loads.append(Contender("chuk-lazarus, JSON", chuk_load, size(foreign)))
    for what, everyone in (("saving", saves), ("loading", loads)):
        rows = race(everyone, rounds=3, patience=8)
        add_ratios(rows, BASE)
        report.table(
            f"{what.capitalize()} {data.n:,} entries", rows, {"MB": ",.1f", "ratio": ",.1f"}, subject=what, n=data.n
        )


if __name__ == "__main__":
    main()
