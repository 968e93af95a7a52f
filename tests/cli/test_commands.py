"""The installed commands, run as a user runs them: real files, exit status, what is printed where."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.forked import run

from brim import BatchPlan, LengthCache

BIN = Path(sys.executable).parent


@pytest.fixture
def here(pipeline, tmp_path):
    """A copy of the pipeline's files that a test may spoil."""
    shutil.copytree(pipeline, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.mark.parametrize(
    "line",
    [
        "lazarus data lengths build -d train.jsonl -t gpt2 -o lengths.jsonl",
        "lazarus data lengths build -d train.jsonl -t byte -o other.jsonl",
        "lazarus data lengths stats -c lengths.jsonl",
        "lazarus data batchplan build -l lengths.jsonl -e 3 -b 4096 -o batch_plan/",
        "lazarus data batchplan info -p batch_plan/",
        "lazarus data batchplan verify -p batch_plan/ -l lengths.jsonl",
        "lazarus data batchplan shard -p batch_plan/ -w 4 -o shards/",
        "lazarus data batching histogram -c lengths.jsonl --bins 20",
        "lazarus data batching histogram -c lengths.jsonl --bins 15",
    ],
)
def test_every_line_of_the_documents_runs_as_written(here, line):
    done = run(line, here)
    assert done.stdout


def test_the_pipeline_writes_what_it_says(here):
    cache, plan = LengthCache.load(here / "lengths.jsonl"), BatchPlan.load(here / "batch_plan")
    assert len(cache) == 300
    assert plan.num_epochs == 3
    assert plan.config.token_budget == 4096
    assert plan.table.fingerprint == cache.fingerprint
    run("lazarus data batchplan shard -p batch_plan/ -w 4 -o shards/", here)
    shares = [BatchPlan.load(here / "shards" / f"rank_{rank}") for rank in range(4)]
    samples = [id for share in shares for microbatch in share.iter_epoch(2) for id in microbatch.samples]
    assert sorted(samples) == sorted(cache.ids)


def test_results_are_json_on_stdout_when_asked(here):
    stats = json.loads(run("brim lengths stats -c lengths.jsonl --json", here).stdout)
    assert stats["samples"] == 300
    bins = json.loads(run("brim lengths histogram -c lengths.jsonl --bins 7 --json", here).stdout)["bins"]
    assert sum(bin["count"] for bin in bins) == 300
    info = json.loads(run("brim plan info -p batch_plan -n 2 --json", here).stdout)
    assert info["config"]["token_budget"] == 4096
    assert len(info["microbatches"]) == 2
    built = json.loads(run("brim plan build -l lengths.jsonl -b 2048 --pack -o packed --json", here).stdout)
    assert built["samples"] == 300
    shard = json.loads(run("brim plan shard -p packed -w 3 -o shards --json", here).stdout)
    assert shard["ranks"] == 3
    assert json.loads(run("brim plan verify -p packed --json", here).stdout)["ok"] is True
    lengths = json.loads(run("brim lengths build -d train.jsonl -o again.brim --json", here).stdout)
    assert lengths["measured now"] == 300


def test_every_flag_of_plan_build_has_its_effect(here):
    flags = {
        "-b 2000": ("token_budget", 2000),
        "--bucket-edges 64,128": ("bucket_edges", (64, 128)),
        "--num-buckets 3": ("num_buckets", 3),
        "--overflow-max 3000": ("overflow_max", 3000),
        "--overflow split": ("overflow", "split"),
        "--pad-to-multiple 8": ("pad_to_multiple", 8),
        "--max-sequences 4": ("max_sequences", 4),
        "--window 32": ("window", 32),
        "--drop-last": ("drop_last", True),
        "--microbatches-per-step 5": ("microbatches_per_step", 5),
        "--remainder repeat": ("remainder", "repeat"),
        "-s 7": ("seed", 7),
    }
    for flag, (name, value) in flags.items():
        run(f"brim plan build -l lengths.jsonl -o plan {flag}", here)
        assert getattr(BatchPlan.load(here / "plan").config, name) == value
    run("brim plan build -l lengths.jsonl -o plan --predictable --lazy", here)
    plan = BatchPlan.load(here / "plan")
    assert (plan.config.pad_policy, plan.config.num_buckets) == ("pad_to_bucket", 8)
    assert sorted(path.name for path in (here / "plan").iterdir()) == ["lengths.brim", "plan.json"]
    run(
        "brim plan build -l lengths.jsonl -o plan --pack --pack-max-len 1500 --pack-mode greedy --pack-max-sequences 3",
        here,
    )
    packing = BatchPlan.load(here / "plan").config.packing
    assert packing is not None
    assert (packing.max_length, packing.mode, packing.max_sequences, packing.pad_to_max) == (1500, "greedy", 3, False)


def test_what_was_left_out_is_said(here):
    out = run("brim plan build -l lengths.jsonl -b 128 --overflow skip -o plan", here).stdout
    assert "skipped" in out
    out = run("brim plan build -l lengths.jsonl -b 128 --overflow truncate -o plan", here).stdout
    assert "truncated tokens" in out
    info = json.loads(run("brim plan info -p plan --json", here).stdout)
    assert len(info["truncated_samples"]) == info["truncated"] > 0


def test_verify_says_no_with_every_difference(here):
    rows = (here / "train.jsonl").read_text().splitlines()
    first = json.loads(rows[0])
    longer = json.dumps({**first, "response": first["response"] + " and more"})
    added = json.dumps({**first, "id": "brand-new"})
    (here / "train.jsonl").write_text("\n".join([longer, *rows[2:], added]) + "\n")
    run("brim lengths build -d train.jsonl -t byte -o new.jsonl", here)
    out = run("brim plan verify -p batch_plan/ -l new.jsonl --seed 9", here, status=1).stdout
    assert "1 added: brand-new" in out
    assert f"1 removed: {json.loads(rows[1])['id']}" in out
    assert "longer" in out
    assert "other tokenizer" in out
    assert "other data" in out
    assert "other seed (42 -> 9)" in out
    assert "token_budget" not in out
    raw = bytearray((here / "batch_plan" / "epoch-0001.brim").read_bytes())
    raw[100] ^= 4
    (here / "batch_plan" / "epoch-0001.brim").write_bytes(raw)
    assert "epoch-0001.brim: column 'unit' is damaged" in run("brim plan verify -p batch_plan", here, status=1).stdout
    (here / "batch_plan" / "plan.json").write_text("{")
    assert "truncated or damaged" in run("brim plan verify -p batch_plan", here, status=1).stdout


def test_verify_takes_any_option_of_build(here):
    run("brim plan build -l lengths.jsonl -b 2048 --pack --pack-max-len 1024 -o plan", here)
    run("brim plan verify -p plan -l lengths.jsonl -b 2048 --pack --pack-max-len 1024", here)
    out = run("brim plan verify -p plan -b 2048 --pack --pack-max-len 512", here, status=1).stdout
    assert "other packing" in out


def bad_inputs(folder):
    """Command lines that cannot work, and words of the line that says so."""
    (folder / "empty.jsonl").touch()
    (folder / "blank.jsonl").write_text("\n\n")
    (folder / "binary.jsonl").write_bytes(b"PAR1\x00\x01\x02")
    (folder / "latin.jsonl").write_bytes('{"text": "caf\xe9"}\n'.encode("latin-1"))
    (folder / "list.jsonl").write_text('{"text": "a"}\n[1, 2]\n')
    (folder / "null.jsonl").write_text('{"prompt": "a", "response": "b"}\n{"prompt": "a", "response": null}\n')
    (folder / "twice.jsonl").write_text('{"id": 1, "text": "a"}\n{"id": 2, "text": "b"}\n{"id": 1, "text": "c"}\n')
    (folder / "torn.jsonl").write_text('{"text": "a"}\n{"text": "b')
    (folder / "other.jsonl").write_text('{"id": 1, "prompt": "x", "answer": "y"}\n')
    (folder / "folder").mkdir()
    (folder / "cut.jsonl").write_bytes((folder / "lengths.jsonl").read_bytes()[:-40])
    altered = (folder / "lengths.jsonl").read_text().replace('"length":1', '"length":2', 1)
    (folder / "altered.jsonl").write_text(altered)
    (folder / "columns.brim").write_bytes(b"brim.lengths/9\n" + b"\0" * 200)
    shutil.copytree(folder / "batch_plan", folder / "old_plan")
    index = folder / "old_plan" / "plan.json"
    index.write_text(index.read_text().replace("brim.plan/1", "brim.plan/0"))
    build, plan = "brim lengths build -o out.jsonl -d", "brim plan build -l lengths.jsonl -o out"
    return [
        (f"{build} nothing.jsonl", "nothing.jsonl"),
        (f"{build} empty.jsonl", "empty"),
        (f"{build} blank.jsonl", "blank.jsonl"),
        (f"{build} binary.jsonl", "binary.jsonl"),
        (f"{build} latin.jsonl", "latin.jsonl:1"),
        (f"{build} list.jsonl", "list.jsonl:2"),
        (f"{build} null.jsonl", "null.jsonl:2"),
        (f"{build} twice.jsonl", "twice.jsonl:3"),
        (f"{build} torn.jsonl", "torn.jsonl:2"),
        (f"{build} other.jsonl", "--response-field answer"),
        (f"{build} folder", "folder"),
        (f"{build} train.jsonl -t no/such-tokenizer", "no/such-tokenizer"),
        (f"{build} train.jsonl --workers 0", "workers"),
        ("brim lengths build -d train.jsonl -o train.jsonl/x", "cannot write train.jsonl/x"),
        ("brim lengths stats -c train.jsonl", "not a length cache"),
        ("brim lengths stats -c nothing", "nothing does not exist"),
        ("brim lengths stats -c folder", "folder is a directory"),
        ("brim lengths stats -c cut.jsonl", "build it again"),
        ("brim lengths stats -c altered.jsonl", "damaged"),
        ("brim lengths stats -c columns.brim", "version brim.lengths/9"),
        ("brim lengths histogram -c lengths.jsonl --bins 0", "bins must be at least 1, got 0"),
        ("brim lengths histogram -c lengths.jsonl --width 0", "0 is not in the range"),
        (f"{plan} --bucket-edges 256,128", "must ascend"),
        (f"{plan} --bucket-edges=-5,128", "must be positive"),
        (f"{plan} --bucket-edges 128,9999", "bucket edge 9999 is above"),
        (f"{plan} --bucket-edges 1,b", "not a list of numbers"),
        (f"{plan} -b 16", "not fit in 16 tokens"),
        (f"{plan} -b 0", "token_budget must be at least 1, got 0"),
        (f"{plan} -e 0", "epochs must be at least 1, got 0"),
        (f"{plan} --pack-max-len 8", "needs --pack"),
        ("brim plan build -l lengths.jsonl -o folder/../train.jsonl", "a file is in the way"),
        ("brim plan build -l lengths.jsonl -o .", "will not replace"),
        ("brim plan build -l nothing -o out", "nothing does not exist"),
        ("brim plan info -p nothing", "nothing does not exist"),
        ("brim plan info -p train.jsonl", "is a file"),
        ("brim plan info -p folder", "is not a plan"),
        ("brim plan info -p old_plan", "version brim.plan/0"),
        ("brim plan info -p batch_plan -w 0", "world_size must be at least 1, got 0"),
        ("brim plan info -p batch_plan -r 4 -w 4", "rank must lie between 0 and 3, got 4"),
        ("brim plan info -p batch_plan -r 0", "--rank needs --world-size"),
        ("brim plan shard -p batch_plan -w 0 -o out", "world_size must be at least 1, got 0"),
        ("brim plan verify -p batch_plan -l nothing", "nothing does not exist"),
        ("brim plan verify -p nothing", "nothing does not exist"),
        ("brim sample-data -n 0 -o out", "0"),
        ("brim plan biuld", 'Did you mean "build"?'),
        ("lazarus data batchpaln", 'Did you mean "batchplan"?'),
        ("brim plan build", "--lengths"),
    ]


def test_bad_input_is_one_line_exit_2_and_nothing_half_written(here):
    lines = bad_inputs(here)
    before = sorted(path.relative_to(here) for path in here.rglob("*"))
    for line, words in lines:
        done = run(line, here, status=2)
        message = done.stderr.strip().splitlines()[-1]
        assert words in message, (line, message)
        assert done.stdout == ""
        if not message.startswith("Error: "):  # click shows how to use the command as well
            assert len(done.stderr.strip().splitlines()) == 1, line
        assert sorted(path.relative_to(here) for path in here.rglob("*")) == before, line


def test_an_output_in_place_survives_a_failed_build(here):
    before = (here / "lengths.jsonl").read_bytes()
    (here / "bad.jsonl").write_text('{"text": 5}\n')
    run("brim lengths build -d bad.jsonl -o lengths.jsonl", here, status=2)
    run("brim plan build -l bad.jsonl -o batch_plan", here, status=2)
    assert (here / "lengths.jsonl").read_bytes() == before
    run("brim plan verify -p batch_plan -l lengths.jsonl", here)


@pytest.mark.slow
def test_interrupted_it_stops_at_once_and_can_go_on(tmp_path):
    run("brim sample-data -n 15000 -o train.jsonl", tmp_path)
    words = [
        str(BIN / "brim"),
        "lengths",
        "build",
        "-d",
        "train.jsonl",
        "-t",
        "gpt2",
        "-o",
        "lengths.brim",
        "--workers",
        "1",
    ]
    with subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        while not list(tmp_path.glob(".lengths.brim*")) and process.poll() is None:
            pass
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert not (tmp_path / "lengths.brim").exists()
    run("brim lengths build -d train.jsonl -t gpt2 -o lengths.brim", tmp_path)
    assert len(LengthCache.load(tmp_path / "lengths.brim")) == 15000


def test_a_closed_pipe_is_no_error(here):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        words = [str(BIN / "brim"), "plan", "info", "-p", "batch_plan", "-n", "30"]
        done = subprocess.run(words, cwd=here, stdout=writer, stderr=subprocess.PIPE, check=False, text=True)
    finally:
        os.close(writer)
    assert "Traceback" not in done.stderr


def test_python_dash_m_is_the_command(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "brim", "--version"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == run("brim --version", tmp_path).stdout


@pytest.mark.torch
def test_the_training_of_the_demo_is_bounded_by_time(tmp_path):
    done = run("brim demo -n 100 -b 4096 --steps 100000 --seconds 2", tmp_path)
    assert "Training takes at most 2 seconds" in done.stdout
    assert "the time was up after " in done.stdout
    assert "step 1/100000" in done.stderr


@pytest.mark.torch
def test_the_demo_holds_its_checks_and_keeps_its_files(tmp_path):
    done = run("brim demo -n 400 -b 4096 --steps 20 -o kept", tmp_path)
    assert "exactly once" in done.stdout
    assert "packed into" in done.stdout
    assert BatchPlan.load(tmp_path / "kept" / "plan").counts.samples == 400
    assert BatchPlan.load(tmp_path / "kept" / "plan").fingerprint in (tmp_path / "kept" / "report.html").read_text()
    shown = run("brim demo -n 50 --steps 0", tmp_path).stdout
    assert "random batches" in shown
    assert str((tmp_path / "brim-demo.html").resolve()) in shown.splitlines()[-1]
    assert (tmp_path / "brim-demo.html").exists()
