"""Packing where best fit is not enough: rows of every mode of brim on twenty families of lengths, beside the linear
programme.

The bound comes from an independent referee, `cutting_stock.py`, and from the sum of the lengths. It is what is proven
in the time that the referee has, so the distance to the programme is at most what the table says. Peers are those of
`packing.py`; all of them fill the fullest row first. A family that is near its bound for everybody is there as well:
`optimal` must not make it worse.
"""

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import cutting_stock
import numpy as np
from distributions import Lengths, draw, exact, few, near
from harness import Contender, Report, Row, Target, one_thread, race
from packing import Judge, lightbinpack, seqpacker

from brim import PackingMode, pack

OVER_LP, SECONDS = 0.5, 10.0
MILLION = 1_000_000
PATIENCE = 20.0
"""Seconds of the referee for a family."""
COLUMNS = {
    "distinct": ",",
    "bound": ",.0f",
    "rows": ",",
    "over LP %": ".3f",
    "best fit %": ".3f",
    "best peer %": ".3f",
    "best fit s": ".4f",
}

Random = np.random.Generator


def family(
    make: Callable[..., Lengths], *arguments: Any, capacity: int, n: int
) -> tuple[Callable[[int], Lengths], int, int]:
    return (lambda many: make(np.random.default_rng(0), many, *arguments, capacity), capacity, n)


def mixed(rng: Random, n: int, ranges: tuple[tuple[float, float], ...], capacity: int) -> Lengths:
    """Equally many lengths near each of several shares of the capacity."""
    parts = [near(rng, -(-n // len(ranges)), low, high, capacity) for low, high in ranges]
    return rng.permutation(np.concatenate(parts))[:n].astype(np.int32)


def shaped(_: Random, n: int, shape: str, median: float, capacity: int) -> Lengths:
    return draw(shape, n, median, longest=capacity)


HARMONIC = ((0.5001, 0.505), (0.3334, 0.337), (0.1429, 0.146), (0.0233, 0.026))
FAMILIES = {
    "near thirds": family(near, 0.30, 0.36, capacity=2048, n=100_000),
    "just over a third": family(near, 0.335, 0.40, capacity=2048, n=100_000),
    "thirds and halves, five lengths": family(few, (0.32, 0.33, 0.331, 0.5, 0.45), capacity=2048, n=100_000),
    "near halves": family(near, 0.45, 0.55, capacity=2048, n=100_000),
    "near quarters": family(near, 0.22, 0.28, capacity=2048, n=100_000),
    "near fifths": family(near, 0.18, 0.22, capacity=2048, n=100_000),
    "pairs that fill rows": family(exact, 2, 0.05, capacity=1000, n=100_000),
    "triples that fill rows": family(exact, 3, 0.05, capacity=1000, n=100_000),
    "triples of a quarter or more": family(exact, 3, 0.25, capacity=1000, n=10_000),
    "fours that fill rows": family(exact, 4, 0.10, capacity=512, n=100_000),
    "three distinct lengths": family(few, (0.22, 0.31, 0.47), capacity=2048, n=10_000),
    "seven distinct lengths": family(few, (0.15, 0.19, 0.26, 0.34, 0.37, 0.44, 0.58), capacity=2048, n=MILLION),
    "fifteen distinct lengths": family(few, tuple(0.12 + 0.031 * k for k in range(15)), capacity=2048, n=100_000),
    "few distinct, near a third": family(few, (0.29, 0.31, 0.34, 0.36, 0.38), capacity=2048, n=MILLION),
    "harmonic": family(mixed, HARMONIC, capacity=4096, n=100_000),
    "bimodal, a tenth and six tenths": family(mixed, ((0.08, 0.15), (0.55, 0.68)), capacity=2048, n=100_000),
    "uniform": family(near, 0.0, 1.0, capacity=512, n=MILLION),
    "uniform, a fifth to seven tenths": family(near, 0.2, 0.7, capacity=512, n=100_000),
    "lognormal": family(shaped, "lognormal", 300, capacity=2048, n=MILLION),
    "real text": family(shaped, "real text", 58, capacity=512, n=100_000),
}
LARGE = (
    "near thirds",
    "triples that fill rows",
    "uniform, a fifth to seven tenths",
    "uniform",
    "lognormal",
    "harmonic",
)
"""Families that are packed with a million sequences too, for the time."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the sequences")
    options = parser.parse_args()
    one_thread()
    report = Report("packing_families")
    shrink = 10 if options.quick else 1
    rows = [measured(report, name, make(n // shrink), capacity) for name, (make, capacity, n) in FAMILIES.items()]
    title = 'Twenty families of lengths: rows of mode="optimal" over the linear programme; seconds are those of it'
    report.table(title, rows, COLUMNS, subject="families")
    large: list[Row] = []
    for name in LARGE:
        make, capacity, _ = FAMILIES[name]
        lengths = make(MILLION // shrink)
        large += race([optimal(f"{name}, capacity {capacity:,}", lengths, capacity)], rounds=1)
    report.table(f'{MILLION // shrink:,} sequences with mode="optimal"', large, {"rows": ","}, subject="million")
    report.targets(targets(rows, large))
    print(f"written: {report.close()}")


def optimal(name: str, lengths: Lengths, capacity: int) -> Contender:
    return Contender(name, lambda: pack(lengths, capacity, mode=PackingMode.OPTIMAL), Judge(lengths, capacity).rows)


def measured(report: Report, name: str, lengths: Lengths, capacity: int) -> Row:
    judge = Judge(lengths, capacity)
    contenders = [optimal(f"{name}: {len(lengths):,} into {capacity:,}", lengths, capacity)]
    contenders.append(Contender("best fit", lambda: pack(lengths, capacity), judge.rows))
    contenders += [*seqpacker(report, lengths, capacity, judge), *lightbinpack(report, lengths, capacity, judge)]
    rows = race(contenders, rounds=1)
    bound = cutting_stock.bound(lengths, capacity, seconds=PATIENCE)
    least = float(np.ceil(bound.rows - 1e-6))
    over = [100 * (row.columns["rows"] / least - 1) for row in rows]
    row, fit = rows[0], rows[1]
    row.columns.update(
        {
            "distinct": len(np.unique(lengths)),
            "bound": least,
            "programme": bound.programme,
            "referee s": bound.seconds,
            "over LP %": over[0],
            "best fit %": over[1],
            "best peer %": min(over[2:], default=None),
            "best fit s": fit.cpu,
        }
    )
    return row


def targets(rows: list[Row], large: list[Row]) -> Iterator[Target]:
    within = [row for row in rows if row.columns["over LP %"] <= OVER_LP]
    worst = max(rows, key=lambda row: row.columns["over LP %"])
    reached = f"{len(within)} of {len(rows)}; worst: {worst.columns['over LP %']:.3f}% ({worst.name})"
    target = f"within {OVER_LP}% of the linear programme on {len(rows)} families"
    yield Target('packing with mode="optimal"', target, reached, len(within) == len(rows))
    slowest = max(large, key=lambda row: row.cpu)
    target = f"a million sequences in under {SECONDS:g} s"
    yield Target('packing with mode="optimal"', target, f"{slowest.cpu:.2f} s ({slowest.name})", slowest.cpu < SECONDS)
    worse = [row for row in rows if row.columns["over LP %"] > row.columns["best fit %"]]
    reached = f"{len(rows) - len(worse)} of {len(rows)} families"
    yield Target('packing with mode="optimal"', "never more rows than best fit", reached, not worse)


if __name__ == "__main__":
    main()
