"""Bucket edges for a data set: how full the buckets are, and how long finding them takes, beside what people use
instead.

Edges: the same lognormal lengths for all (median 300, sigma 0.8, clipped to 4096), the same number of buckets.
Quantiles are NumPy's; chuk-lazarus suggests by its own rules, for each of its goals. All fills are counted here, by one
function. chuk-lazarus gets a dict, as it wants, and at most a million lengths.

Scale: brim only. Ten million lengths counted and analysed; and the dynamic program at its largest, 131,072 distinct
lengths and 64 buckets, by the compiled pass and by its Python twin.
"""

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from harness import Contender, Report, add_ratios, race
from numpy.typing import NDArray

from brim import OptimizationGoal, compute_length_histogram, suggest_bucket_edges
from brim.plan import edges

SIZES = (100_000, 1_000_000)
BUCKETS = (4, 6, 8, 12)
GRID = 16
LONGEST = 4096
DENSE = 131_072


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="how many lengths")
    options = parser.parse_args()
    report = Report("analysis")
    for n in options.sizes:
        lengths = draw(n)
        for many in BUCKETS:
            rows = race(list(suggesting(report, lengths, many)), rounds=3, patience=8)
            add_ratios(rows, "brim")
            title = f"{many} buckets for {n:,} lengths, edges on a grid of {GRID} tokens where the contender has one"
            report.table(
                title, rows, {"fill %": ".2f", "buckets": "d", "ratio": ".1f"}, subject="edges", n=n, buckets=many
            )
    rows = race(list(scale(10 * max(options.sizes))), rounds=3)
    report.table("At scale", rows, {"lengths": ",", "distinct": ",", "buckets": "d"}, subject="scale")
    print(f"written: {report.close()}")


def draw(n: int) -> NDArray[np.int32]:
    return np.clip(np.random.default_rng(0).lognormal(np.log(300), 0.8, n), 1, LONGEST).astype(np.int32)


def suggesting(report: Report, lengths: NDArray[np.int32], many: int) -> Iterator[Contender]:
    def judge(inner: Sequence[int]) -> dict[str, Any]:
        widths = np.array([*(edge for edge in inner if edge < lengths.max()), lengths.max()])
        padded = widths[np.searchsorted(widths, lengths)].sum(dtype=np.int64)
        return {"fill %": 100 * lengths.sum(dtype=np.int64) / padded, "buckets": len(widths)}

    yield Contender("brim", lambda: suggest_bucket_edges(lengths, many, pad_to_multiple=GRID).edges, judge)
    yield Contender("brim, any length", lambda: suggest_bucket_edges(lengths, many).edges, judge)
    for goal in (OptimizationGoal.BALANCE_BUCKETS, OptimizationGoal.MINIMIZE_MEMORY):
        yield Contender(
            f"brim {goal}",
            lambda goal=goal: suggest_bucket_edges(lengths, many, goal, pad_to_multiple=GRID).edges,
            judge,
        )
    yield Contender(
        "quantiles", lambda: np.unique(np.quantile(lengths, np.arange(1, many) / many, method="higher")).tolist(), judge
    )
    yield Contender("powers of two", lambda: [LONGEST >> shift for shift in range(many - 1, 0, -1)], judge)
    if module := report.peer("chuk_lazarus.data.batching", "chuk-lazarus"):
        by_id = {f"sample_{row:07d}": length for row, length in enumerate(lengths.tolist())}
        for goal in module.OptimizationGoal:
            yield Contender(
                f"chuk-lazarus {goal.value}",
                lambda goal=goal: (
                    module.suggest_bucket_edges(by_id, num_buckets=many, goal=goal, max_length=LONGEST).edges
                ),
                judge,
            )


def scale(n: int) -> Iterator[Contender]:
    lengths = draw(n)

    def analyse() -> Any:
        histogram = compute_length_histogram(lengths)
        return [suggest_bucket_edges(histogram, 12, goal) for goal in OptimizationGoal]

    yield Contender(
        "histogram, and edges for three goals",
        analyse,
        lambda _: {"lengths": n, "distinct": len(np.unique(lengths)), "buckets": 12},
    )
    distinct, counts = np.arange(1, DENSE + 1), np.random.default_rng(0).integers(1, 1000, DENSE)

    def judge(_: Any) -> dict[str, Any]:
        return {"lengths": int(counts.sum()), "distinct": DENSE, "buckets": 64}

    yield Contender("edges for 64 buckets", lambda: edges.widths_for_counts(distinct, counts, 64), judge)
    lines = edges._lines(distinct, np.cumsum(counts), OptimizationGoal.MINIMIZE_WASTE)
    yield Contender("edges for 64 buckets, not compiled", lambda: edges._layers(lines, 63), judge)


if __name__ == "__main__":
    main()
