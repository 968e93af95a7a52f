"""From the command line to the first optimizer step: `brim train sft` of this tree beside an older checkout of brim.

Every run is a fresh process on the same rows with a new output directory: it imports, measures, tokenises, plans, loads
the built-in model and takes one step. The clock starts with the process and stops when the line of that step arrives on
stderr; CPU seconds are those of the process and of the workers it has waited for by then. The two take turns, so that a
busy moment hits both; medians count.

    .venv/bin/python benchmarks/first_step.py --old PATH_OF_AN_OLDER_CHECKOUT

Without --old, this tree runs alone. The older checkout needs its kernels compiled (`pip install -e .` or `make` there).
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from harness import ROOT, Report, Row

from brim.data.synthetic import write_sample_data

THIS = "brim, this tree"
OLD = "brim, older checkout"
FIRST = "step 1/"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, metavar="DIR", help="an older checkout of brim, to run side by side")
    parser.add_argument("--rows", type=int, default=100_000, help="rows of brim sample-data")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each")
    parser.add_argument("--tokenizers", nargs="+", default=["byte", "gpt2"], help="tokenizers to run with")
    parser.add_argument("--quick", action="store_true", help="2,000 rows, one round, byte tokenizer")
    options = parser.parse_args()
    if options.quick:
        options.rows, options.rounds, options.tokenizers = 2_000, 1, ["byte"]
    trees = {THIS: ROOT, **({OLD: options.old.resolve()} if options.old is not None else {})}
    report = Report("first_step")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_sample_data(folder / "train.jsonl", options.rows)
        for tokenizer in options.tokenizers:
            rows = measure(trees, folder, tokenizer, options.rounds)
            title = f"To the first step of brim train sft: {options.rows:,} rows, {tokenizer} tokenizer"
            columns = {"ratio": ".2f", "CPU ratio": ".2f"}
            report.table(title, rows, columns, subject="first step", n=options.rows, tokenizer=tokenizer)
    print(f"written: {report.close()}")


def measure(trees: Mapping[str, Path], folder: Path, tokenizer: str, rounds: int) -> list[Row]:
    """The median run of every tree, and its ratio to the older checkout if there is one."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in trees}
    for _ in range(rounds):
        for name, tree in trees.items():
            found[name].append(first_step(tree, folder, tokenizer))
    rows: list[Row] = []
    for name, runs in found.items():
        wall, cpu = (statistics.median(values) for values in zip(*runs, strict=True))
        rows.append(Row(name, wall, cpu, rounds))
    base = rows[-1]
    for row in rows:
        if len(rows) > 1:
            row.columns.update({"ratio": row.seconds / base.seconds, "CPU ratio": row.cpu / base.cpu})
        row.columns["runs"] = found[row.name]
    return rows


def first_step(tree: Path, folder: Path, tokenizer: str) -> tuple[float, float]:
    """Wall and CPU seconds of one run up to its first step."""
    output = folder / "run"
    shutil.rmtree(output, ignore_errors=True)
    command = [sys.executable, "-m", "brim", "train", "sft", "--model", "tiny", "--data", str(folder / "train.jsonl")]
    command += ["--tokenizer", tokenizer, "--max-steps", "1", "--no-tensorboard", "--output", str(output)]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    began = time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said: list[str] = []
    try:
        for line in process.stderr:
            said.append(line)
            if line.startswith(FIRST):
                return time.perf_counter() - began, cpu_seconds(process.pid)
    finally:
        # The checkpoint that follows the step is not part of the measurement.
        process.kill()
        process.wait()
    raise SystemExit(f"{tree} never took a step:\n{''.join(said)}")


def cpu_seconds(pid: int) -> float:
    """User and system time of a process that still runs, and of the children it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
