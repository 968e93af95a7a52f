"""Packing lengths into rows of fixed capacity: seconds and bins, brim beside its peers.

Everybody plans: lengths go in, and for every bin the indices of its sequences come out. NumPy peers get int64 arrays,
lightbinpack gets lists (it is faster with them), TRL an Arrow table, chuk-lazarus its own objects. TRL's `bfd` moves
tokens as well; it is timed as it is, and stopped where it starts to move them. chuk-lazarus always moves tokens, and is
quadratic, so it is only run on small sets.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np
from harness import Contender, Report, add_ratios, chat_mix, lognormal, race
from numpy.typing import NDArray

from brim import PackingMode, pack
from brim.plan.packing import Rows

CAPACITY, MIX_CAPACITY = 2048, 8192
SIZES = (3_000, 10_000, 100_000, 1_000_000, 10_000_000)
MIX_SIZES = (100_000, 1_000_000, 10_000_000)
QUADRATIC, PYTHON = 3_000, 1_000_000  # the largest sets for chuk-lazarus and for TRL
COLUMNS = {"bins": ",", "over bound %": ".4f", "ratio": ".2f"}
BASE = "brim BEST_FIT"

Lengths = NDArray[np.int32]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="how many lengths")
    parser.add_argument("--full", action="store_true", help="run TRL on more than a million lengths too (minutes)")
    options = parser.parse_args()
    report = Report("packing")
    for name, draw, capacity, sizes in (
        ("lognormal", lognormal, CAPACITY, SIZES),
        ("chat mix", chat_mix, MIX_CAPACITY, MIX_SIZES),
    ):
        race(list(contenders(report, draw(2_000), capacity, full=False)), rounds=1)  # warm-up
        for n in options.sizes:
            if n in sizes or sizes is SIZES:
                lengths = draw(n)
                rows = race(list(contenders(report, lengths, capacity, full=options.full)), patience=8)
                add_ratios(rows, BASE)
                bound = lower_bound(lengths, capacity)
                title = f"{n:,} lengths ({name}) into rows of {capacity}; lower bound {bound:,} bins"
                report.table(title, rows, COLUMNS, data=name, n=n, capacity=capacity, lower_bound=bound)
    print(f"written: {report.close()}")


def lower_bound(lengths: Lengths, capacity: int) -> int:
    return -(-int(lengths.sum(dtype=np.int64)) // capacity)


def contenders(report: Report, lengths: Lengths, capacity: int, *, full: bool) -> Iterator[Contender]:
    judge = Judge(lengths, capacity)
    for mode in (PackingMode.BEST_FIT, PackingMode.FIRST_FIT, PackingMode.GREEDY):
        yield Contender(f"brim {mode.name}", lambda mode=mode: pack(lengths, capacity, mode=mode), judge.rows)
    yield from seqpacker(report, lengths, capacity, judge)
    yield from lightbinpack(report, lengths, capacity, judge)
    if len(lengths) <= PYTHON:
        moving = len(lengths) < PYTHON or capacity == CAPACITY  # a million times both would be gigabytes and minutes
        yield from trl(report, lengths, capacity, judge, moving=moving)
    elif full and capacity == CAPACITY:
        yield from trl(report, lengths, capacity, judge, moving=False)
    if len(lengths) <= QUADRATIC:
        yield from chuk_lazarus(report, lengths, capacity, judge)


class Judge:
    """Checks that every sequence is in exactly one bin and no bin is over capacity, and counts the bins."""

    def __init__(self, lengths: Lengths, capacity: int) -> None:
        self.lengths, self.capacity, self.bound = lengths, capacity, lower_bound(lengths, capacity)

    def rows(self, rows: Rows) -> dict[str, float]:
        return self.flat(rows.order, np.diff(rows.ptr))

    def lists(self, bins: list[list[int]]) -> dict[str, float]:
        order = np.fromiter(chain.from_iterable(bins), np.int64, sum(map(len, bins)))
        return self.flat(order, np.fromiter(map(len, bins), np.int64, len(bins)))

    def flat(self, order: NDArray[Any], sizes: NDArray[np.int64]) -> dict[str, float]:
        assert np.array_equal(np.bincount(order, minlength=len(self.lengths)), np.ones(len(self.lengths), np.int64))
        totals = np.add.reduceat(self.lengths[order].astype(np.int64), np.cumsum(sizes) - sizes)
        assert totals.max() <= self.capacity
        return self.count(len(sizes))

    def count(self, bins: int) -> dict[str, float]:
        return {"bins": bins, "over bound %": 100 * (bins / self.bound - 1)}


def seqpacker(report: Report, lengths: Lengths, capacity: int, judge: Judge) -> Iterator[Contender]:
    """Both of its forms: flat arrays, as brim gives them, and an object that keeps the bins in Rust."""
    if module := report.peer("seqpacker", "seqpacker"):
        packer = module.Packer(capacity=capacity, strategy="obfd")
        wide = lengths.astype(np.int64)

        def flat(result: tuple[NDArray[np.int64], NDArray[np.int64]]) -> dict[str, float]:
            order, splits = result
            return judge.flat(order, np.diff(splits, prepend=0, append=len(order)))

        yield Contender("seqpacker obfd, pack_flat", lambda: packer.pack_flat(wide), flat)
        bins = (
            (lambda result: judge.lists(result.bins))
            if len(lengths) <= PYTHON
            else (lambda result: judge.count(result.num_bins))
        )
        yield Contender("seqpacker obfd, pack", lambda: packer.pack(wide), bins)


def lightbinpack(report: Report, lengths: Lengths, capacity: int, judge: Judge) -> Iterator[Contender]:
    """On one core and on all of them."""
    if module := report.peer("lightbinpack", "lightbinpack"):
        values = lengths.tolist()
        yield Contender("lightbinpack obfd", lambda: module.obfd(values, capacity), judge.lists)
        yield Contender("lightbinpack obfdp (all cores)", lambda: module.obfdp(values, capacity), judge.lists)


def trl(report: Report, lengths: Lengths, capacity: int, judge: Judge, *, moving: bool) -> Iterator[Contender]:
    module = report.peer("trl.data_utils", "trl")
    if module is None:
        return
    import pyarrow as pa

    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    tokens = pa.array(np.zeros(offsets[-1], np.uint16))
    small = offsets[-1] < 2**31
    column = (pa.ListArray if small else pa.LargeListArray).from_arrays(
        offsets.astype(np.int32) if small else offsets, tokens
    )
    table = pa.table({"input_ids": column})
    yield Contender("TRL bfd, its plan only", planning_only(module, table, capacity), judge.lists)
    if moving:
        yield Contender(
            "TRL bfd, tokens moved", lambda: module._pack_bfd(table, capacity), lambda packed: judge.count(len(packed))
        )


class _Planned(Exception):  # noqa: N818 - the good outcome
    """TRL's plan is complete."""


def planning_only(module: Any, table: Any, capacity: int) -> Callable[[], list[list[int]]]:
    """TRL's own function, unchanged, without what it does to tokens: it is handed an Arrow that leaves them where they
    are.
    """
    compute = module.pc

    class StillTokens:
        def __getattr__(self, name: str) -> Any:
            return getattr(compute, name)

        def filter(self, values: Any, mask: Any) -> Any:  # keeps non-empty sequences, and all are
            return values

        def list_slice(self, values: Any, start: int, stop: int) -> Any:  # cuts long sequences, and none is
            return values

        def take(self, values: Any, indices: Any) -> Any:  # the first step behind the plan
            raise _Planned

    def plan() -> list[list[int]]:
        module.pc = StillTokens()
        try:
            module._pack_bfd(table, capacity)
        except _Planned as stop:
            frame = next(frame for frame in _frames(stop) if "bins" in frame.f_locals)
            return [bin["ids"] for bin in frame.f_locals["bins"]]
        finally:
            module.pc = compute
        raise RuntimeError("TRL moves its tokens in another way than this benchmark knows")

    return plan


def _frames(error: BaseException) -> Iterable[Any]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def chuk_lazarus(report: Report, lengths: Lengths, capacity: int, judge: Judge) -> Iterator[Contender]:
    module = report.peer("chuk_lazarus.data.batching.planning.packing", "chuk-lazarus")
    if module is None:
        return
    sequences = [
        module.SequenceToPack(sample_id=str(number), input_ids=(0,) * length, loss_mask=(1,) * length)
        for number, length in enumerate(lengths.tolist())
    ]

    def bins(packs: list[Any]) -> dict[str, float]:
        return judge.lists([[int(id) for id in packed.sample_ids] for packed in packs])

    for mode in (module.PackingMode.BEST_FIT, module.PackingMode.GREEDY):
        config = module.PackingConfig(mode=mode, max_length=capacity)
        yield Contender(
            f"chuk-lazarus {mode.name}", lambda config=config: module.pack_sequences(sequences, config), bins
        )


if __name__ == "__main__":
    main()
