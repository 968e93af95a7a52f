"""Run every benchmark, then say of each performance claim whether it held in this run.

A claim that fails is a result, not an error: the exit status is 0 unless a benchmark crashed.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from harness import ONE_THREAD, RESULTS, WORDS, print_table
from tables import write_page

HERE = Path(__file__).resolve().parent
PLANNER = ("packing", "packing_families", "planning", "padding", "balance", "objects", "scale", "startup")
"""Benchmarks of the planner: CPU seconds, one thread."""
NAMES = (
    *PLANNER,
    "lengths",
    "analysis",
    "collation",
    "resume",
    "replay",
    "structure",
    "sft",
    "generate",
    "grpo",
    "gym",
    "arc",
    "llm",
    "query",
)
SIZED = ("packing", "planning", "objects", "lengths", "analysis")
QUICK = ("--sizes", "100000")
FULL = ("packing", "planning", "lengths")

Table = dict[str, Any]
Line = dict[str, Any]


Claims = Callable[[list[Table]], "Iterator[Claim]"]


class Claim(NamedTuple):
    """What is claimed, what was measured, and whether it holds; None if it was not measured."""

    claim: str
    measured: str
    holds: bool | None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="100,000 lengths, few steps: a look at whether everything runs"
    )
    parser.add_argument("--full", action="store_true", help="also slow peers at full size: TRL, lhotse, chuk-lazarus")
    parser.add_argument(
        "--only", nargs="+", choices=NAMES, default=NAMES, metavar="NAME", help=f"some of: {', '.join(NAMES)}"
    )
    parser.add_argument(
        "--page",
        action="store_true",
        help="with --only: write docs/benchmarks.md too, where the other benchmarks keep the results of their last run",
    )
    options = parser.parse_args()
    if options.page and options.quick:
        parser.error("docs/benchmarks.md is not made of quick runs; leave out --page or --quick")
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load > cores / 4:
        print(
            f"the machine is busy (load {load:.1f} on {cores} cores): wall times will suffer; trust CPU seconds, or "
            "run again\n",
            flush=True,
        )
    results: dict[str, Any] = {}
    crashed: list[str] = []
    for name in options.only:
        path = RESULTS / f"{name}.json"
        path.unlink(missing_ok=True)
        started = time.monotonic()
        quick = (QUICK if name in SIZED else ("--quick",)) if options.quick else ()
        arguments = [*quick, *(["--full"] if options.full and name in FULL else ())]
        environment = os.environ | (ONE_THREAD if name in PLANNER else {})
        status = subprocess.run([sys.executable, str(HERE / f"{name}.py"), *arguments], env=environment).returncode
        print(f"{name} took {time.monotonic() - started:.0f} s\n", flush=True)
        if status:
            crashed.append(name)
        else:
            results[name] = json.loads(path.read_text())
    if options.page:
        kept = {name: RESULTS / f"{name}.json" for name in NAMES if name not in options.only}
        results |= {name: json.loads(path.read_text()) for name, path in kept.items() if path.exists()}
    claims = [claim for name, found in CLAIMS.items() if name in results for claim in found(results[name]["tables"])]
    print_table(
        "Claims", ["claim", "measured", ""], [(claim.claim, claim.measured, WORDS[claim.holds]) for claim in claims]
    )
    for result in results.values():
        for package, reason in result["not_available"].items():
            print(f"not available in {result['benchmark']}: {package}: {reason}")
    content = [claim._asdict() for claim in claims]
    (RESULTS / "claims.json").write_text(json.dumps(content, indent=2) + "\n")
    if not options.quick and set(results) >= set(PLANNER):
        print(f"written: {write_page(results, content)}")
    if crashed:
        sys.exit(f"crashed: {', '.join(crashed)}")


def targets(prefix: str = "") -> Claims:
    """The claims of a benchmark that says itself what it was to reach."""

    def found(tables: list[Table]) -> Iterator[Claim]:
        for row in lines(pick(tables, subject="targets")):
            yield Claim(f"{prefix}{row['what']}: {row['target']}", row["reached"], row["holds"])

    return found


def lengths(tables: list[Table]) -> Iterator[Claim]:
    loaded = [table for table in tables if table.get("subject") == "load" and line(table, "chuk-lazarus LengthCache")]
    table = max(loaded, key=lambda table: table["n"], default=None)  # a million rows need --full
    n = table["n"] if table else 1_000_000
    yield times(
        f"loading {n:,} rows, columnar: 500x chuk-lazarus",
        line(table, "brim columnar"),
        line(table, "chuk-lazarus LengthCache"),
        500,
    )
    built = pick(tables, subject="build")
    brim = line(built, "brim build_lengths")
    for name in ("encode_batch", "encode_batch_fast"):
        bare = line(built, f"bare tokenizers, {name}")
        claim = f"building lengths: 0.8 of the speed of tokenizers' {name}"
        if brim is None or bare is None:
            yield Claim(claim, "-", None)
            continue
        wall, cpu = bare["seconds"] / brim["seconds"], bare["cpu_seconds"] / brim["cpu_seconds"]
        yield Claim(claim, f"{wall:.2f} ({cpu:.2f} by CPU seconds)", wall >= 0.8)


def analysis(tables: list[Table]) -> Iterator[Claim]:
    for many, optimum in ((4, 61.6), (6, 72.9), (8, 79.1), (12, 85.7)):
        found = [table for table in tables if table.get("buckets") == many]
        fills = [row["fill %"] for table in found for row in lines(table) if row["name"] == "brim"]
        claim = f"{many} buckets on a grid of 16 tokens: at the known optimum of {optimum}% (another draw: within 0.3)"
        yield Claim(
            claim,
            shown(min(fills, default=None), "{:.2f}%"),
            all(abs(fill - optimum) <= 0.3 for fill in fills) if fills else None,
        )
        rivals = [
            (table["rows"][0]["fill %"], row)
            for table in found
            for row in lines(table)
            if not row["name"].startswith("brim")
        ]
        closest = max((row["fill %"] for _, row in rivals), default=None)
        yield Claim(
            f"{many} buckets: fuller than quantiles, powers of two and chuk-lazarus",
            shown(closest, "the fullest of them: {:.2f}%"),
            all(brim > row["fill %"] for brim, row in rivals) if rivals else None,
        )
    counted = line(pick(tables, subject="scale"), "histogram, and edges for three goals")
    seconds = counted and counted["seconds"]
    measured = shown(seconds, "{:.2f} s of wall time")
    yield Claim("10,000,000 lengths analysed: about a second", measured, seconds and seconds <= 1.2)


def collation(tables: list[Table]) -> Iterator[Claim]:
    for table in tables:
        if table.get("subject") in ("batch", "epoch"):
            what = "an epoch" if table["subject"] == "epoch" else f"a batch of {table['kind']} samples"
            peers = [row for row in lines(table) if not row["name"].startswith(("brim", "memcpy"))]
            fastest = min(peers, key=lambda row: row["cpu_seconds"], default=None)
            brim = line(table, "brim collate, padded int64")
            yield times(f"collating {what}: not slower than the fastest peer", brim, fastest, 1, by="cpu_seconds")
    yield from targets()(tables)


def resume(tables: list[Table]) -> Iterator[Claim]:
    table = pick(tables, n=1_000_000, tenth=5)
    brim = line(table, "brim loader")
    yield times(
        "resume in the middle of 1,000,000 samples: 100x skipping",
        brim,
        line(table, "torch DataLoader, skipping, 0 workers"),
        100,
    )
    peers = [row for row in lines(table) if not row["name"].startswith("brim")]
    best = min(peers, key=lambda row: row["seconds"], default=None)
    yield times("resume in the middle of 1,000,000 samples: not slower than the best peer", brim, best, 1)
    exact = [row["exact"] for table in tables for row in lines(table) if row["name"].startswith("brim")]
    yield Claim(
        "resume: the batch that an uninterrupted run has",
        f"{exact.count('yes')} of {len(exact)}",
        set(exact) == {"yes"},
    )


def replay(tables: list[Table]) -> Iterator[Claim]:
    for n in (100_000, 1_000_000):
        table = pick(tables, subject="replay", operation="sample and update", n=n)
        yield times(
            f"replay, sample and update, {n:,} entries: not behind cpprb", line(table, "brim"), line(table, "cpprb"), 1
        )
    for operation in ("sample", "update"):
        table = pick(tables, subject="replay", operation=operation, n=100_000)
        yield times(
            f"replay, {operation}, 100,000 entries: 100x chuk-lazarus",
            line(table, "brim"),
            line(table, "chuk-lazarus"),
            100,
        )
    for what in ("saving", "loading"):
        table = pick(tables, subject=what, n=100_000)
        yield times(
            f"{what} a buffer of 100,000: 10x chuk-lazarus's JSON",
            line(table, "brim"),
            line(table, "chuk-lazarus, JSON"),
            10,
        )


def structure(tables: list[Table]) -> Iterator[Claim]:
    table = pick(tables, subject="structure")
    old, new = line(table, "dummy stages"), line(table, "brim, token budget")
    if old is None or new is None:
        return
    yield Claim(
        "structural bucketing: no encoder work on dummy data",
        f"{new['dummy %']:.1f}% (before: {old['dummy %']:.1f}%)",
        new["dummy %"] == 0,
    )
    yield Claim("structural bucketing: steps at least 20% faster", f"{new['faster %']:.1f}%", new["faster %"] >= 20)
    yield Claim(
        "structural bucketing: at least 20% less memory", f"{new['less memory %']:.1f}%", new["less memory %"] >= 20
    )
    measured = f"{new['loss']:.3f}; dummy stages: {old['loss']:.3f}"
    yield Claim("structural bucketing: no higher loss after equal time", measured, new["loss"] <= old["loss"])


def sft(tables: list[Table]) -> Iterator[Claim]:
    table = pick(tables, subject="sft")
    packed = quickest(table, "brim packed")
    yield faster(
        "SFT, packed: 2x the tokens/s of random padded batches", packed, line(table, "random padded batches"), 2
    )
    yield faster("SFT, packed: not behind TRL's packing (0.95x)", packed, quickest(table, "TRL packing"), 0.95)
    trainer = line(table, "TRL SFTTrainer, packing")
    yield faster(
        "brim train sft, packed: not behind TRL's SFTTrainer (0.95x)",
        line(table, "brim train sft, packed"),
        trainer,
        0.95,
    )


def gym(tables: list[Table]) -> Iterator[Claim]:
    for servers in (1, 2):
        found = line(pick(tables, servers=servers, lanes=64), "brim GymEpisodeStream")
        share = found and found["of the limit %"]
        claim = f"playing on {servers} puzzle server{'s' * (servers > 1)} over 64 lanes each: half of the limit"
        yield Claim(claim, shown(share, "{:.0f}%"), share and share >= 50)


def quickest(table: Table | None, name: str) -> Line | None:
    """The best of its variants."""
    return max(
        (row for row in lines(table) if row["name"].startswith(name)), key=lambda row: row["tokens/s"], default=None
    )


def faster(claim: str, brim: Line | None, peer: Line | None, least: float) -> Claim:
    if brim is None or peer is None:
        return Claim(claim, "-", None)
    wall = brim["tokens/s"] / peer["tokens/s"]
    cpu = wall * (brim["seconds"] / brim["cpu_seconds"]) / (peer["seconds"] / peer["cpu_seconds"])
    return Claim(claim, f"{wall:.2f}x ({cpu:.2f}x by CPU seconds; {brim['name']}, {peer['name']})", wall >= least)


CLAIMS: dict[str, Claims] = {
    **dict.fromkeys(PLANNER, targets()),
    "lengths": lengths,
    "analysis": analysis,
    "collation": collation,
    "resume": resume,
    "replay": replay,
    "structure": structure,
    "sft": sft,
    "generate": targets("generation and scoring, "),
    "grpo": targets("GRPO, "),
    "gym": gym,
    "arc": targets("ARC, "),
    "llm": targets("many model calls, "),
    "query": targets("query environments, "),
}


def times(claim: str, brim: Line | None, peer: Line | None, least: float, *, by: str = "seconds") -> Claim:
    if brim is None or peer is None:
        return Claim(claim, "-", None)
    ratio = peer[by] / brim[by]
    what = "CPU time" if by == "cpu_seconds" else "wall time"
    measured = f"{ratio:,.1f}x ({brim[by]:.4g} s of {what}; {peer['name']}: {peer[by]:.4g} s)"
    return Claim(claim, measured, ratio >= least)


def shown(value: Any, template: str) -> str:
    return "-" if value is None else template.format(value)


def pick(tables: list[Table], **facts: Any) -> Table | None:
    return next((table for table in tables if all(table.get(key) == value for key, value in facts.items())), None)


def lines(table: Table | None) -> list[Line]:
    return table["rows"] if table else []


def line(table: Table | None, name: str) -> Line | None:
    return next((row for row in lines(table) if row["name"] == name), None)


if __name__ == "__main__":
    main()
