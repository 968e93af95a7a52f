"""`brim plan analyze | suggest` and `lazarus data batching`, run as commands."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.forked import run

from brim import LengthCache
from brim.analyze.capacity.search import Capacity, Trial
from brim.data.ids import Ids

BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    folder = tmp_path_factory.mktemp("analyze")
    lengths = np.clip(np.random.default_rng(0).lognormal(5.7, 0.8, 5000), 1, 3000).astype(np.int32)
    LengthCache(Ids.rows(5000), lengths).save(folder / "lengths.jsonl")
    Capacity(unit="lanes", trials=(Trial(size=1, seconds=1.0, peak=1),)).save(folder / "lanes.json")
    return folder


@pytest.mark.parametrize(
    "line",
    [
        "lazarus data batching histogram -c lengths.jsonl --bins 15",
        "lazarus data batching histogram -c lengths.jsonl --bins 20",
        "lazarus data batching analyze -c lengths.jsonl --bucket-edges 128,256,512",
        "lazarus data batching suggest -c lengths.jsonl --num-buckets 4 --goal waste",
        "brim lengths histogram -c lengths.jsonl --bin-width 500",
        "brim plan analyze -l lengths.jsonl -b 16384 --pad-to-multiple 16 --pack-max-len 1024 --batch-size 8 -n 5",
        "brim plan suggest -l lengths.jsonl -n 64 -g minimize_memory --max-length 2048 --pad-to-multiple 16",
    ],
)
@pytest.mark.parametrize("columns", [80, 40])
def test_lines_run_as_written_and_fit_the_terminal_without_colour(here, line, columns):
    shown = run(line, here, COLUMNS=str(columns)).stdout
    assert "\x1b" not in shown
    unbreakable = ("--bucket-edges", "--overflow-max", "brim plan build")
    assert all(len(row) <= columns for row in shown.splitlines() if columns == 80 and not row.startswith(unbreakable))
    if "histogram" in line or "analyze" in line:
        assert "█" in shown


def test_the_answer_is_in_the_json(here):
    found = json.loads(run("brim plan suggest -l lengths.jsonl -n 6 --json", here).stdout)
    lengths = LengthCache.load(here / "lengths.jsonl").lengths
    widths = np.array([*found["bucket_edges"], found["overflow_max"]])
    assert found["slots"] == widths[np.searchsorted(widths, lengths)].sum()
    assert set(found["other_goals"]) == {"balance_buckets", "minimize_memory"}
    report = json.loads(
        run("brim plan analyze -l lengths.jsonl --bucket-edges 128,256,512 -o report.json --json", here).stdout
    )
    assert report == json.loads((here / "report.json").read_text())
    assert report["buckets"]["overflow_max"] == lengths.max()
    assert [one["name"] for one in report["strategies"]][1:3] == ["grouped by length", "4 buckets now"]


def test_standard_output_is_written_into_as_a_file_and_as_a_pipe(here):
    line = "brim plan analyze -l lengths.jsonl -o /dev/stdout"
    piped = run(line, here).stdout
    assert piped.startswith("{")
    assert "Choose" in piped
    with open(here / "both.txt", "w") as file:
        words = line.split()
        subprocess.run([str(BIN / words[0]), *words[1:]], cwd=here, stdout=file, check=True)
    assert (here / "both.txt").read_text() == piped


def test_buckets_that_suggest_prints_are_taken_by_analyze(here):
    for many in (1, 3):
        flags = run(f"brim plan suggest -l lengths.jsonl -n {many}", here).stdout.splitlines()[0]
        assert f"{many} buckets now" in run(f"brim plan analyze -l lengths.jsonl {flags}", here).stdout


def test_the_words_and_the_table_have_the_same_numbers(here):
    """Also where samples are cut and widths are rounded."""
    for options in (
        "-b 300 --bucket-edges 128 --overflow-max 200",
        "-b 500 --bucket-edges 100,250 --pad-to-multiple 64",
    ):
        found = json.loads(run(f"brim plan analyze -l lengths.jsonl {options} --json", here).stdout)
        fills = {one["name"]: f"{one['fill']:.1%}" for one in found["strategies"]}
        now, best = (
            next(fill for name, fill in fills.items() if name.endswith(end))
            for end in ("buckets now", "optimal buckets")
        )
        said = next(note for note in found["notes"] if "as they are fill" in note)
        assert f"fill {now};" in said
        assert f"fill {best}:" in said


def test_samples_that_are_too_long_are_counted_and_said(here):
    shown = run(
        "lazarus data batching analyze -c lengths.jsonl --bucket-edges 128,256 --overflow-max 1024", here
    ).stdout
    longer = int((LengthCache.load(here / "lengths.jsonl").lengths > 1024).sum())
    assert f"{longer:,} samples are longer than 1,024" in shown
    shown = run("lazarus data batching suggest -c lengths.jsonl --max-length 1000", here).stdout
    assert "in no bucket" in shown


def test_a_measured_machine_gives_bytes_and_seconds(here):
    trials = tuple(Trial(size=size, seconds=size / 1000, peak=10**9 + size) for size in (1024, 4096))
    Capacity(unit="tokens", trials=trials, measured={"model": "tiny"}).save(here / "capacity.json")
    line = "brim plan analyze -l lengths.jsonl --measured capacity.json"
    assert "GB" in run(line, here).stdout
    found = json.loads(run(f"{line} --json", here).stdout)
    assert found["measured"] == {"model": "tiny"}
    assert found["strategies"][0]["seconds"] == pytest.approx(found["strategies"][0]["slots"] / 1000, rel=1e-3)


def test_a_terminal_that_knows_no_blocks_is_no_error(here):
    shown = run("brim lengths histogram -c lengths.jsonl", here, PYTHONIOENCODING="ascii").stdout
    assert "p50" in shown


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("brim plan analyze -l nothing", "nothing does not exist"),
        ("brim plan analyze -l lengths.jsonl -b 0", "token_budget must be at least 1, got 0"),
        ("brim plan analyze -l lengths.jsonl --overflow-max 5", "--overflow-max needs --bucket-edges"),
        ("brim plan analyze -l lengths.jsonl --bucket-edges 512,128", "must ascend"),
        ("brim plan analyze -l lengths.jsonl --bucket-edges 128 --overflow-max 64", "above the last edge"),
        ("brim plan analyze -l lengths.jsonl --bucket-edges 128,2048 -b 1024", "bucket edge 2048 is above"),
        ("brim plan analyze -l lengths.jsonl -o .", "it is a directory"),
        ("brim plan analyze -l lengths.jsonl --pad-to-multiple 0", "at least 1, got 0"),
        ("brim plan analyze -l lengths.jsonl --batch-size 0", "at least 1, got 0"),
        ("brim plan analyze -l lengths.jsonl --pack-max-len 9000 -b 4096", "do not fit the token budget"),
        ("brim plan analyze -l lengths.jsonl --pack-max-len 0", "at least 1"),
        ("brim plan analyze -l lengths.jsonl -n 0", "at least 1, got 0"),
        ("brim plan analyze -l lengths.jsonl --measured nothing", "cannot read nothing"),
        (
            "brim plan analyze -l lengths.jsonl --measured lengths.jsonl",
            "lengths.jsonl is truncated or damaged: it is not JSON",
        ),
        ("brim plan analyze -l lengths.jsonl --measured lanes.json", "measured in lanes, not in tokens"),
        ("brim plan suggest -l lengths.jsonl -n 0", "buckets must be at least 1, got 0"),
        ("brim plan suggest -l lengths.jsonl --max-length 0", "at least 1, got 0"),
        ("brim plan suggest -l lengths.jsonl --pad-to-multiple 0", "at least 1, got 0"),
        ("brim plan suggest -l lengths.jsonl --goal speed", "speed"),
        ("brim lengths histogram -c lengths.jsonl --bin-width 0", "at least 1, got 0"),
    ],
)
def test_bad_options_are_one_line(here, line, words):
    done = run(line, here, status=2)
    assert words in done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
