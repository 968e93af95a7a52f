"""Packing lengths into rows of fixed capacity: CPU seconds and rows, brim beside its peers, from 16 sequences to ten
million and for capacities from 512 to a million.

Everybody plans: lengths go in, and for every row the indices of its sequences come out. NumPy peers get int64 arrays,
lightbinpack gets lists (it is faster with them), TRL an Arrow table, chuk-lazarus its own objects. seqpacker is timed
in both of its forms: flat arrays, as brim gives them, and an object that keeps the rows in Rust. TRL's `bfd` moves
tokens as well; it is stopped where it starts to move them, and its tokens take no memory. chuk-lazarus always moves
tokens, and is quadratic, so it is only run on small sets.

Ordinary lengths are lognormal with a median of a seventh of the capacity; uniform ones are anything up to the capacity,
which gives as many distinct lengths as there can be. Short calls are repeated until the clock has something to measure.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np
from distributions import draw, near
from harness import Contender, Report, Row, Target, add_ratios, chat_mix, number, one_thread, race
from numpy.typing import NDArray

from brim import PackingMode, pack
from brim.plan.packing.rows import Rows

CAPACITIES = (512, 2_048, 8_192, 131_072, 1_000_000)
SIZES = (16, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000)
SHOWN = 2_048
"""The capacity whose contenders are all shown, brim's other modes included."""
SHORTEST = 0.02
QUADRATIC, PYTHON = 1_000, 10_000
"""The largest sets for chuk-lazarus and, except for ordinary lengths and the capacity `SHOWN`, for TRL."""
BASE = "brim BEST_FIT"
COLUMNS = {"rows": ",", "over bound %": ".4f", "ratio": ".2f"}
SUMMARY = {"best peer": "", "peer's s": "", "ratio": ".2f", "rows": ",", "fewest rows of peers": ","}
LARGE = (1_000_000, 10_000_000)
TIMES, TIMES_TRL, OVER_BOUND = 12, 100, 0.1

Lengths = NDArray[np.int32]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="how many lengths")
    parser.add_argument("--capacities", type=int, nargs="+", default=CAPACITIES, help="tokens in a row")
    parser.add_argument("--full", action="store_true", help="run TRL on ten million lengths too (a minute)")
    options = parser.parse_args()
    one_thread()
    report = Report("packing")
    summaries: list[Row] = []
    for kind, lengths_of in KINDS.items():
        for capacity in options.capacities if kind != "chat" else (8_192,):
            found = [compared(report, kind, lengths_of(n, capacity), capacity, options) for n in options.sizes]
            title = f"Packing into rows of {capacity:,}, {kind} lengths: {BASE} beside the best peer of each line"
            report.table(title, found, SUMMARY, subject="summary", data=kind, capacity=capacity)
            summaries += found
    report.targets(targets(summaries))
    print(f"written: {report.close()}")


KINDS: dict[str, Callable[[int, int], Lengths]] = {
    "ordinary": lambda n, capacity: draw("lognormal", n, capacity / 7, longest=capacity),
    "uniform": lambda n, capacity: near(np.random.default_rng(0), n, 0, 1, capacity),
    "chat": lambda n, capacity: chat_mix(n, longest=capacity),
}


def compared(report: Report, kind: str, lengths: Lengths, capacity: int, options: argparse.Namespace) -> Row:
    """A race of everybody, and one line about brim and the best of the others."""
    n, shown = len(lengths), capacity == SHOWN and kind == "ordinary"
    contenders = list(all_contenders(report, lengths, capacity, shown=shown, full=options.full))
    rows = race(contenders, rounds=5 if n <= 100_000 else 3, patience=2, shortest=SHORTEST if n <= 100_000 else 0)
    add_ratios(rows, BASE, cpu=True)
    title = f"{n:,} lengths ({kind}) into rows of {capacity:,}"
    facts: dict[str, Any] = {"data": kind, "n": n, "capacity": capacity, "lower_bound": lower_bound(lengths, capacity)}
    if shown:
        report.table(title, rows, COLUMNS, subject="race", **facts)
    else:
        report.tables.append({"title": title, "subject": "race", **facts, "rows": [row.to_dict() for row in rows]})
    brim, peers = rows[0], [row for row in rows if not row.name.startswith("brim")]
    line = Row(f"{n:,}", brim.seconds, brim.cpu, brim.rounds, {"rows": brim.columns["rows"], "capacity": capacity})
    line.columns.update({"n": n, "data": kind, "over bound %": brim.columns["over bound %"]})
    if peers:
        best = min(peers, key=lambda row: row.cpu)
        line.columns.update(
            {
                "best peer": best.name,
                "peer's s": number(best.cpu),
                "ratio": best.cpu / brim.cpu,
            }
        )
        line.columns["fewest rows of peers"] = min(row.columns["rows"] for row in peers)
    if trl := next((row for row in rows if row.name.startswith("TRL")), None):
        line.columns["TRL ratio"] = trl.cpu / brim.cpu
    return line


def targets(lines: list[Row]) -> Iterator[Target]:
    found = [line.columns for line in lines if "ratio" in line.columns]
    slower = [line for line in found if line["ratio"] < 1]
    worst = min(found, key=lambda line: line["ratio"], default=None)
    reached = worst and (
        f"{len(found) - len(slower)} of {len(found)} lines; the worst: {worst['ratio']:.2f}x ({worst['n']:,} "
        f"{worst['data']} lengths into {worst['capacity']:,}; {worst['best peer']})"
    )
    yield Target(
        "packing, any size and capacity", "not slower than the fastest peer", reached or "-", _all(found, slower)
    )
    more = [line for line in found if line["rows"] > line["fewest rows of peers"]]
    reached = f"{len(found) - len(more)} of {len(found)} lines"
    yield Target("packing, any size and capacity", "no more rows than the best peer", reached, _all(found, more))
    for n in LARGE:
        line = next((one for one in found if (one["n"], one["capacity"], one["data"]) == (n, SHOWN, "ordinary")), None)
        what = f"packing {n:,} ordinary lengths into {SHOWN:,}"
        for target, name, least in (
            (f"{TIMES}x the fastest peer", "ratio", TIMES),
            (f"{TIMES_TRL}x the plan of TRL bfd", "TRL ratio", TIMES_TRL),
        ):
            ratio = line and line.get(name)
            yield Target(what, target, "-" if ratio is None else f"{ratio:.1f}x", ratio and ratio >= least)
        over = line and line["over bound %"]
        reached = "-" if over is None else f"+{over:.4f}%"
        yield Target(
            what, f"within {OVER_BOUND}% of the lower bound", reached, None if over is None else over <= OVER_BOUND
        )


def _all(found: list[Any], against: list[Any]) -> bool | None:
    return not against if found else None


def lower_bound(lengths: Lengths, capacity: int) -> int:
    return -(-int(lengths.sum(dtype=np.int64)) // capacity)


def all_contenders(report: Report, lengths: Lengths, capacity: int, *, shown: bool, full: bool) -> Iterator[Contender]:
    judge, n = Judge(lengths, capacity), len(lengths)
    for mode in (PackingMode.BEST_FIT, PackingMode.FIRST_FIT, PackingMode.GREEDY) if shown else (PackingMode.BEST_FIT,):
        yield Contender(f"brim {mode.name}", lambda mode=mode: pack(lengths, capacity, mode=mode), judge.rows)
    yield from seqpacker(report, lengths, capacity, judge)
    yield from lightbinpack(report, lengths, capacity, judge)
    if n <= PYTHON or (shown and (n <= LARGE[0] or full)):
        yield from trl(report, lengths, capacity, judge)
    if n <= QUADRATIC and shown:
        yield from chuk_lazarus(report, lengths, capacity, judge)


class Judge:
    """Checks that every sequence is in exactly one row and no row is over capacity, and counts the rows."""

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

    def count(self, rows: int) -> dict[str, float]:
        return {"rows": rows, "over bound %": 100 * (rows / self.bound - 1)}


def seqpacker(report: Report, lengths: Lengths, capacity: int, judge: Judge) -> Iterator[Contender]:
    if module := report.peer("seqpacker", "seqpacker"):
        packer = module.Packer(capacity=capacity, strategy="obfd")
        wide = lengths.astype(np.int64)

        def flat(result: tuple[NDArray[np.int64], NDArray[np.int64]]) -> dict[str, float]:
            order, splits = result
            return judge.flat(order, np.diff(splits, prepend=0, append=len(order)))

        yield Contender("seqpacker obfd, pack_flat", lambda: packer.pack_flat(wide), flat)
        yield Contender("seqpacker obfd, pack", lambda: packer.pack(wide), lambda result: judge.count(result.num_bins))


def lightbinpack(report: Report, lengths: Lengths, capacity: int, judge: Judge) -> Iterator[Contender]:
    if module := report.peer("lightbinpack", "lightbinpack"):
        values = lengths.tolist()
        checked = len(lengths) <= LARGE[0]  # checking more lists takes longer than making them
        count = judge.lists if checked else lambda bins: judge.count(len(bins))
        yield Contender("lightbinpack obfd", lambda: module.obfd(values, capacity), count)


def trl(report: Report, lengths: Lengths, capacity: int, judge: Judge) -> Iterator[Contender]:
    module = report.peer("trl.data_utils", "trl")
    if module is None:
        return
    import pyarrow as pa

    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    column = pa.LargeListArray.from_arrays(offsets, pa.nulls(offsets[-1]))
    plan = planning_only(module, pa.table({"input_ids": column}), capacity)
    yield Contender("TRL bfd, its plan only", plan, judge.lists)


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
