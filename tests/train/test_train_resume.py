"""Runs that are killed and go on: the same weights, every sample once, on any number of ranks."""

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.forked import PATIENCE, Command, run_command
from support.worlds import World, free_port, lines, trained, weights

from brim.plan.config import BatchingConfig, PackingConfig

PACKED = BatchingConfig(token_budget=1024, packing=PackingConfig(max_length=512), overflow="split")


def assert_each_once(output, small, epochs):
    """Every sample in every epoch, exactly once; a sample that was cut to fit is one piece here."""
    ids = [json.loads(line)["id"] for line in (small / "train.jsonl").read_text().splitlines()]
    assert Counter((epoch, id) for epoch, _, id in trained(output)) == Counter(
        (epoch, id) for epoch in range(epochs) for id in ids
    )


@pytest.mark.parametrize("batching", [None, PACKED], ids=["padded", "packed"])
def test_killed_at_a_random_step_and_resumed_the_weights_are_the_same_to_the_bit(options, batching):
    changes = {"batching": batching} if batching else {}
    World(whole := options("whole", epochs=2, **changes)).wait()
    config, steps = options("killed", epochs=2, **changes), len(lines(_path(whole) / "log.jsonl"))
    world = World(config)
    for step in sorted(random.Random(7).sample(range(2, steps), 2)):
        world.wait_for_step(step)
        world.kill()
        assert world.wait() == [{"error": "killed"}]
        has = sorted(path.name for path in _path(config).glob("checkpoint-*"))
        world = World(config, resume=config.output) if has else World(config)
    assert "error" not in world.wait()[0]
    expected, found = weights(_path(whole)), weights(_path(config))
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert trained(_path(config)) == trained(_path(whole))
    losses = [[line["loss"] for line in lines(_path(one) / "log.jsonl")] for one in (whole, config)]
    assert losses[0] == losses[1]


def _path(config):
    return Path(config.output)


@pytest.mark.parametrize("second", [1, 3])
def test_two_ranks_killed_and_resumed_on_another_number_see_every_sample_once(options, small, second):
    config = options(epochs=2)
    world = World(config, 2)
    world.wait_for_step(5)
    world.kill()
    world.wait()
    outcomes = World(config, second, resume=config.output).wait()
    assert [outcome.get("error") for outcome in outcomes] == [None] * second
    assert_each_once(_path(config), small, epochs=2)


def test_one_rank_that_accumulates_two_microbatches_and_two_ranks_give_the_same_weights(options):
    one = options("one", batching=BatchingConfig(token_budget=1024, overflow="truncate", microbatches_per_step=2))
    two = options("two", batching=BatchingConfig(token_budget=1024, overflow="truncate", microbatches_per_step=2))
    assert "error" not in World(one, 1).wait()[0]
    assert [outcome.get("error") for outcome in World(two, 2).wait()] == [None, None]
    found, expected = weights(_path(two)), weights(_path(one))
    assert max(float((found[name] - expected[name]).abs().max()) for name in expected) < 1e-6


def test_a_sharded_model_is_trained_like_a_whole_one_and_resumed_without_shards(options, small):
    batching = BatchingConfig(token_budget=1024, overflow="truncate", microbatches_per_step=2)
    whole, sharded = (
        options("whole", batching=batching, epochs=2),
        options("sharded", batching=batching, epochs=2, fsdp=True),
    )
    assert [outcome.get("error") for outcome in World(whole, 2).wait()] == [None, None]
    world = World(sharded, 2)
    world.wait_for_step(5)
    world.kill()
    world.wait()
    assert World(replace(sharded, fsdp=False), 1, resume=sharded.output).wait()[0].get("error") is None
    found, expected = weights(_path(sharded)), weights(_path(whole))
    assert max(float((found[name] - expected[name]).abs().max()) for name in expected) < 1e-5
    assert_each_once(_path(sharded), small, epochs=2)


def command_of(small, output):
    """The words of a short run."""
    words = ["brim", "train", "sft", "--model", str(small / "model"), "--data", str(small / "train.jsonl")]
    return [*words, "-b", "1024", "--overflow", "truncate", "--record-samples", "--no-tensorboard", "-o", str(output)]


def test_torchrun_starts_the_ranks(small, tmp_path):
    arguments = [*command_of(small, tmp_path / "run"), "--json"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1"]
    launcher += ["--master-port", str(free_port()), "-m", *arguments]
    done = subprocess.run(launcher, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout)["model"] == str(tmp_path / "run" / "model")
    assert (tmp_path / "run" / "samples-rank1.jsonl").exists()
    assert_each_once(tmp_path / "run", small, epochs=1)


def test_a_rank_that_dies_ends_the_others_with_an_error(options):
    config = options(epochs=4)
    world = World(config, 3)
    world.wait_for_step(2)
    world.kill(1)
    first, died, last = world.wait()
    assert died == {"error": "killed"}
    assert "lost contact with another rank" in first["error"]
    assert "lost contact with another rank" in last["error"]


def wait_until(run, happened):
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and run.process.is_alive() and not happened():
        time.sleep(0.01)


def test_the_command_killed_and_resumed_with_nothing_but_resume(options, small, tmp_path):
    run = Command([*command_of(small, tmp_path / "run"), "--save-every", "2", "-e", "2"], tmp_path)
    wait_until(run, lambda: list((tmp_path / "run").glob("checkpoint-*")))
    run.process.kill()
    assert run.wait().returncode == -signal.SIGKILL
    resumed = run_command(["brim", "train", "sft", "--resume", str(tmp_path / "run"), "--json"], tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["model"] == str(tmp_path / "run" / "model")
    assert_each_once(tmp_path / "run", small, epochs=2)


def test_sigterm_ends_with_a_checkpoint_and_status_1(small, tmp_path):
    run = Command([*command_of(small, tmp_path / "run"), "-e", "50"], tmp_path)
    wait_until(run, (tmp_path / "run" / "samples-rank0.jsonl").exists)
    run.process.terminate()
    done = run.wait()
    assert done.returncode == 1, done.stderr
    assert len(list((tmp_path / "run").glob("checkpoint-*"))) == 1
