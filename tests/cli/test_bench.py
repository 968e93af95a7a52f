"""`brim bench batch-size` as it is typed, on a machine with little memory."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from brim import BrimError, LengthCache
from brim.analyze.capacity.attempts import Attempts
from brim.analyze.capacity.search import Capacity, Trial
from brim.cli.bench import batch_size, plan_with
from brim.train.config import SftConfig
from brim.train.measured_step import TrainingTrial

OFFLINE = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
MEMORY = 900 * 10**6
PATIENCE = 120


def command(folder, line, **more):
    words = [sys.executable, "-m", "brim", "bench", "batch-size", *line.split()]
    done = subprocess.run(
        words, cwd=folder, env=OFFLINE, capture_output=True, text=True, timeout=PATIENCE, check=False, **more
    )
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.torch
def test_the_budget_is_found_where_memory_really_runs_out_and_a_fresh_process_can_train_with_it(tmp_path, monkeypatch):
    """One measurement, looked at from all sides: it takes its seconds."""
    line = (
        "--model tiny --memory 900MB --start 4096 --resolution 50% --steps 1 --max-seconds 60 -o capacity.json "
        "--plot curve.png"
    )
    done = command(tmp_path, line)
    assert done.returncode == 0, done.stderr
    capacity = Capacity.load(tmp_path / "capacity.json")
    assert capacity.limit == "out of memory"
    assert capacity.largest.peak <= MEMORY
    assert capacity.failed.size > capacity.largest.size
    facts = capacity.measured
    assert (facts["model"], facts["layout"], facts["length"], facts["dtype"]) == ("tiny", "packed", 512, "float32")
    assert (facts["memory_limit"], facts["steps"], facts["resolution"], facts["most"]) == (MEMORY, 1, 0.5, None)

    told = done.stderr.splitlines()
    assert sorted(line.split(" tokens: ")[0] for line in told) == sorted(f"{trial.size:,}" for trial in capacity.trials)
    assert any("out of memory, above 900 MB" in line for line in told)
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert "\x1b" not in done.stdout
    assert all(f"{trial.size:,}  " in done.stdout for trial in capacity.trials)
    assert capacity.advice in " ".join(done.stdout.split())
    assert plan_with(capacity) in done.stdout
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    trial = TrainingTrial(config=SftConfig(model="tiny", data="", output=""))
    # No two processes take quite the same.
    with Attempts(trial, memory=MEMORY * 11 // 10, steps=1, max_seconds=60) as attempt:
        again = attempt(capacity.largest.size)
    assert again.fits, again


@pytest.mark.torch
def test_a_budget_that_memory_did_not_limit_says_so(tmp_path):
    LengthCache.from_lengths({"a": 30, "b": 100, "c": 64}).save(tmp_path / "lengths.jsonl")
    line = "--model tiny -l lengths.jsonl --layout padded --most 350 --start 1 --steps 1 --max-seconds 60 --json -q"
    done = command(tmp_path, line)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    shown = json.loads(done.stdout)
    assert [trial["size"] for trial in shown["trials"]] == [100, 200, 300]  # whole rows of the longest
    assert (shown["limit"], shown["largest"], shown["measured"]["length"]) == ("most", 300, 100)
    assert "300 is the largest that was to be tried, and it fits: what memory allows was not reached" in shown["advice"]
    assert Capacity.from_dict(shown).to_dict() == shown


@pytest.mark.parametrize(
    ("length", "layout", "said"),
    [
        (100, "packed", "Plan with -b 128 --pack."),
        (200, "padded", "Plan with -b 200."),
        (
            300,
            "packed",
            "Plan with -b 256 --pack and --overflow truncate, split or skip: the longest sample has 300 tokens, "
            "more than was tried.",
        ),
    ],
)
def test_the_budget_to_plan_with_holds_the_longest_sample_if_one_can(length, layout, said):
    trials = tuple(Trial(size=size, seconds=seconds, peak=1) for size, seconds in ((64, 1), (128, 1), (256, 2)))
    assert plan_with(Capacity(unit="tokens", trials=trials, measured={"length": length, "layout": layout})) == said


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "Missing option '-m'"),
        ("--model tiny --memory lots", "'lots' is not a size such as 2GB"),
        ("--model tiny --memory -2GB", "'-2GB' is not a size"),
        ("--model tiny --memory 0", "memory must be at least 1 byte, got 0"),
        ("--model tiny --resolution fine", "'fine' is not a share such as 5%"),
        ("--model tiny --resolution 100%", "resolution must be at least 0 and below 1, got 1.0"),
        ("--model tiny --steps 0", "steps must be at least 1, got 0"),
        ("--model tiny --max-seconds 0", "max_seconds must be above 0 and finite, got 0.0"),
        ("--model tiny --max-seconds inf", "max_seconds must be above 0 and finite, got inf"),
        ("--model tiny --start 0", "start must be at least 1, got 0"),
        ("--model tiny --most 63", "most must be at least 64, because sizes are multiples of it, got 63"),
        ("--model tiny --layout padded --length 1000 --most 999", "most must be at least 1000"),
        ("--model tiny --length 1", "length must be at least 2"),
        ("--model tiny --length 5 -l lengths.jsonl", "give --length or --lengths, not both"),
        ("--model tiny -l nothing.jsonl", "nothing.jsonl does not exist"),
        ("--model tiny --layout loose", "'loose' is not one of"),
        ("--model tiny --lora-rank 4", "LoRA needs a trained model below it"),
        ("--model tiny --plot curve.bmp", "cannot plot to curve.bmp: the name must end in .png, .svg, .pdf"),
        ("--model tiny -o .", "cannot write .: it is a directory"),
    ],
)
def test_wrong_options_are_one_line_before_a_model_is_loaded(tmp_path, monkeypatch, line, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Attempts, "__enter__", lambda self: pytest.fail("a process was started"))
    done = CliRunner().invoke(batch_size, line.split())
    said = str(done.exception) if isinstance(done.exception, BrimError) else done.stderr.splitlines()[-1]
    assert done.exit_code != 0
    assert message in said
    assert "\n" not in said
    assert done.stdout == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.torch
def test_what_only_the_model_shows_to_be_wrong_is_one_line_too(tmp_path):
    done = command(tmp_path, "--model tiny --length 9000")
    assert done.returncode == 2
    assert done.stderr == "LengthError: a length of 9000 is more than the model tiny has positions: 8192; lower it\n"
    assert done.stdout == ""


@pytest.mark.torch
def test_ctrl_c_ends_it_and_its_child(tmp_path):
    words = [sys.executable, "-m", "brim", "bench", "batch-size", "--model", "tiny", "--max-seconds", "600"]
    running = subprocess.Popen(
        words, cwd=tmp_path, env=OFFLINE, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    with running:
        assert "512 tokens" in running.stderr.readline()
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        assert children
        running.send_signal(signal.SIGINT)
        assert running.stderr.read().splitlines()[-1] == "interrupted"
        assert running.wait(PATIENCE) == 130
    deadline = time.monotonic() + PATIENCE
    while any(os.path.exists(f"/proc/{pid}") for pid in children):
        assert time.monotonic() < deadline
        time.sleep(0.02)
