"""Nested samples on the command line: measured without a tokenizer, planned by structure, looked at."""

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from brim import BatchPlan, BucketSampler, LengthCache
from brim.cli import HELP, TREE
from brim.cli.app import Group
from brim.data.nested.open import open_nested, write_nested


def brim(line, *, status=0):
    """What a command prints, and what it says on stderr."""
    done = CliRunner().invoke(Group("brim", HELP, TREE), line.split())
    if status == 0:
        assert done.exit_code == 0, done.output
        return done.stdout
    return str(done.exception) if done.exception and not isinstance(done.exception, SystemExit) else done.stderr


def samples():
    random = np.random.default_rng(0)
    for number in range(120):
        depth = number % 3
        stages = [{"states": np.zeros((int(random.integers(2, 20)), 2), np.float32)} for _ in range(depth)]
        yield {"id": f"s{number}", "stages": stages, "context": np.zeros(int(random.integers(1, 9)), np.int64)}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_nested("data.h5", samples())
    write_nested("shards/", samples(), shard_samples=50)
    return tmp_path


@pytest.mark.parametrize("data", ["data.h5", "shards"])
def test_lengths_are_built_planned_and_looked_at(here, data):
    shown = brim(f"lengths build -d {data} -o lengths.brim")
    assert re.search(r"stages=2\s+40\s+context, stages/0/states, stages/1/states", shown)
    facts = json.loads(brim(f"lengths build -d {data} -o lengths.jsonl --json"))
    assert [(group["group"], group["samples"]) for group in facts["groups"]] == [
        ("stages=0", 40),
        ("stages=1", 40),
        ("stages=2", 40),
    ]
    assert facts["groups"][1]["structure"] == "{context: int64[*], stages: [{states: float32[*, 2]}]}"
    assert LengthCache.load("lengths.brim").fingerprint == LengthCache.load("lengths.jsonl").fingerprint
    brim("plan build -l lengths.brim -b 128 -o plan")
    plan = BatchPlan.load("plan")
    assert [microbatch.indices.tolist() for microbatch in plan.get_epoch(0)] == list(
        BucketSampler(open_nested(data), token_budget=128)
    )
    brim("plan verify -p plan -l lengths.jsonl")
    info = json.loads(brim("plan info -p plan --json"))
    assert sum(group["samples"] for group in info["groups"]) == 120
    assert sum(group["microbatches"] for group in info["groups"]) == len(plan.get_epoch(0))
    assert info["groups"][2]["axes"] == ["context", "stages/0/states", "stages/1/states"]
    shares = [json.loads(brim(f"plan info -p plan --json --rank {rank} --world-size 3"))["groups"] for rank in range(3)]
    for number, group in enumerate(info["groups"]):
        assert sum(share[number]["samples"] for share in shares) == group["samples"]
        assert sum(share[number]["microbatches"] for share in shares) == group["microbatches"]
    table = brim("plan info -p plan")
    assert re.search(r"stages=0\s+40\s+\d+\s+\d+\.\d+%", table)
    assert "groups never share a microbatch" in table


def test_what_mixing_structures_would_cost_is_said(here):
    brim("lengths build -d data.h5 -o lengths.brim")
    shown = json.loads(brim("plan analyze -l lengths.brim -b 256 --json"))
    by_name = {strategy["name"].split(" of ")[0]: strategy for strategy in shown["strategies"]}
    assert set(by_name) == {"random batches", "grouped by length", "sorted windows"}
    assert by_name["sorted windows"]["slots"] < by_name["random batches"]["slots"]
    assert "samples of different structures never share a batch" in shown["advice"]
    assert by_name["sorted windows"]["options"] == "-b 256"
    brim("plan build -l lengths.brim -b 256 -o plan")
    brim("plan report -p plan -o report.html")
    assert "stages=2" in (here / "report.html").read_text()


def test_random_batches_pay_for_every_stage_that_one_of_their_samples_has(here):
    brim("lengths build -d data.h5 -o lengths.brim")
    shown = json.loads(brim("plan analyze -l lengths.brim -b 100000 --json"))
    random = shown["strategies"][0]
    longest = dict.fromkeys(("context", "0", "1"), 0)
    for sample in samples():
        longest["context"] = max(longest["context"], len(sample["context"]))
        for number, stage in enumerate(sample["stages"]):
            longest[str(number)] = max(longest[str(number)], len(stage["states"]))
    assert random["name"] == "random batches of 120"  # one batch of everything
    assert random["slots"] == 120 * sum(longest.values())


@pytest.mark.parametrize(
    "line", ["-d data.h5 -o data.h5", "-d shards -o shards/shard-00000.npz", "-d data.h5 -o notes.txt"]
)
def test_lengths_are_never_written_over_something_else(here, line):
    (here / "notes.txt").write_text("mine")
    target = here / line.split()[-1]
    before = target.read_bytes()
    assert "will not" in brim(f"lengths build {line}", status=2)
    assert target.read_bytes() == before


def test_options_for_text_and_for_one_length_are_refused(here):
    assert "--tokenizer has no effect on nested samples" in brim("lengths build -d data.h5 -t byte -o x.brim", status=2)
    assert "--text-field has no effect" in brim("lengths build -d shards --text-field a -o x.brim", status=2)
    brim("lengths build -d data.h5 -o lengths.brim")
    assert "ragged along several axes" in brim("plan build -l lengths.brim --num-buckets 4 -o plan", status=2)
    assert "bucket edges are for samples with one length" in brim("plan suggest -l lengths.brim", status=2)
    assert "bucket edges are for samples with one length" in brim(
        "plan analyze -l lengths.brim --bucket-edges 8,16", status=2
    )
    assert not (here / "plan").exists()


def test_parquet_is_nested_if_it_is_said_to_be(here):
    rows = pa.table({"id": ["a", "b"], "tokens": [[1, 2, 3], [4]], "stages": [[[1.0]], [[1.0], [2.0, 3.0]]]})
    pq.write_table(rows, "data.parquet")
    facts = json.loads(brim("lengths build -d data.parquet --nested -o lengths.brim --json"))
    assert [group["group"] for group in facts["groups"]] == ["stages=1", "stages=2"]
    assert LengthCache.load("lengths.brim").get_all() == {"a": 4, "b": 4}


def test_a_group_of_an_hdf5_file_can_hold_the_samples(here):
    import h5py

    with h5py.File("other.h5", "w") as file:
        for number in range(3):
            file[f"train/ep{number}/x"] = np.zeros(number + 1)
    assert json.loads(brim("lengths build -d other.h5 --root /train -o lengths.brim --json"))["samples"] == 3
    assert LengthCache.load("lengths.brim").get_all() == {"ep0": 1, "ep1": 2, "ep2": 3}


def test_no_shuffle_keeps_the_order_of_the_data(here):
    brim("lengths build -d data.h5 -o lengths.brim")
    brim("plan build -l lengths.brim -b 128 --no-shuffle -o plan")
    starts = [int(microbatch.indices[0]) for microbatch in BatchPlan.load("plan").get_epoch(0)]
    assert starts == sorted(starts)
    assert json.loads(brim("plan info -p plan --json"))["config"]["shuffle"] is False


def test_costs_of_axes_are_part_of_the_lengths(here):
    plain = json.loads(brim("lengths build -d data.h5 -o plain.brim --json"))
    dear = json.loads(brim("lengths build -d data.h5 --axis-cost context=3 --axis-cost stages=2 -o dear.brim --json"))
    contexts = sum(len(sample["context"]) for sample in samples())
    assert dear["steps"] == 3 * contexts + 2 * (plain["steps"] - contexts)
    assert "'context' is not an axis and a whole number" in brim(
        "lengths build -d data.h5 --axis-cost context -o x.brim", status=2
    )
    assert "Did you mean" in brim("lengths build -d data.h5 --axis-cost contex=3 -o x.brim", status=2)
