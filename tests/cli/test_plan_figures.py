"""The figures of a plan that `brim plan build` and `brim plan info` show, beside their definitions."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from brim import BatchingConfig, BatchPlan, LengthCache
from brim.cli.plan.build import build, shard
from brim.cli.plan.figures import balance
from brim.cli.plan.info import info
from brim.cli.plan.report import report
from brim.cli.plan.verify import verify
from brim.data.ids import Ids

COMPAT = Path(__file__).resolve().parents[1] / "compat" / "0.5.0" / "plans"
TABLE = LengthCache(Ids.rows(2000), np.random.default_rng(1).integers(1, 900, 2000).astype(np.int32))


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    TABLE.save("lengths.brim")
    return tmp_path


def shown(command, line, status=0):
    done = CliRunner().invoke(command, line.split())
    assert done.exit_code == status, done.exception
    return done.stdout


def built(line):
    """What people see, and what programs read, of the same plan."""
    words = f"-l lengths.brim -o plan {line}"
    return facts(shown(build, words)), json.loads(shown(build, f"{words} --json"))


def facts(text):
    """Names and values of the facts before the first empty line."""
    lines = [line.rstrip() for line in text.split("\n\n")[0].splitlines()]
    return {name: value.strip() for name, _, value in (line.partition("  ") for line in lines)}


def naive_balance(plan, ranks):
    """From the microbatches themselves: one for each rank in a step."""
    costs = [[cost(each) for each in plan.shard(rank, ranks).get_epoch(0)] for rank in range(ranks)]
    steps = list(zip(*costs, strict=True))
    return sum(map(sum, steps)) / (ranks * sum(map(max, steps)))


def cost(microbatch):
    slots = microbatch.batch_size * microbatch.max_len
    return slots + slots * microbatch.max_len // 12288


@pytest.mark.parametrize("options", [{}, {"drop_last": True}, {"remainder": "drop", "drop_last": True}])
def test_balance_is_the_mean_cost_over_the_mean_of_the_most_expensive(options):
    plan = BatchPlan.build(TABLE, BatchingConfig(token_budget=4096, microbatches_per_step=7, **options))
    found = balance(plan, 0)
    assert found == pytest.approx(naive_balance(plan, 7))
    assert 0.5 < found < 1
    free = BatchPlan.build(TABLE, BatchingConfig(token_budget=4096))
    assert balance(free.shard(1, 4), 0) == pytest.approx(naive_balance(free, 4))


def test_balance_is_shown_where_steps_have_several_microbatches(here):
    text, values = built("--microbatches-per-step 8")
    assert text["balance in epoch 0"] == f"{values['balance']:.1%}"
    assert "balance in epoch 0" in shown(info, "-p plan")
    assert json.loads(shown(info, "-p plan --json"))["balance"] == values["balance"]
    text, values = built("")
    assert "balance in epoch 0" not in text
    assert "balance" not in values


def test_packed_rows_are_shown_with_their_bound(here):
    text, values = built("--pack --pack-mode optimal")
    assert text["packed rows in epoch 0"] == f"{values['packed_rows']:,}"
    assert text["lower bound of packed rows"] == f"{values['lower_bound']:,}"
    assert values["gap"] == values["packed_rows"] / values["lower_bound"] - 1 >= 0
    assert text["above their lower bound"] == f"{values['gap']:.2%}"
    assert json.loads(shown(info, "-p plan --json"))["packed_rows"] == values["packed_rows"]


def test_a_short_last_step_is_told_with_what_becomes_of_it(here):
    microbatches = built("--drop-last")[1]["microbatches in epoch 0"]
    step = next(size for size in range(5, 20) if microbatches % size)
    same = f"--drop-last --microbatches-per-step {step}"
    text, values = built(same)
    short = microbatches % step
    assert values["last_step"] == {"microbatches": short, "of": step}
    assert text["last step in epoch 0"] == f"short: {short} of {step} microbatches"
    by_drop_last = values["dropped in epoch 0"]

    text, values = built(f"{same} --remainder drop")
    kept = sum(len(microbatch.samples) for microbatch in BatchPlan.load("plan").get_epoch(0))
    assert (values["last_step"], values["dropped_microbatches"]) == (None, short)
    assert values["dropped in epoch 0"] == len(TABLE) - kept > by_drop_last
    assert text["dropped in epoch 0"].startswith(f"{len(TABLE) - kept}, with {short} microbatch")
    assert json.loads(shown(info, "-p plan --json"))["per_epoch"][0]["dropped"] == len(TABLE) - kept
    assert "dropped" in shown(info, "-p plan").split("\n\n")[1]

    text, values = built(f"{same} --remainder repeat")
    assert values["repeated_microbatches"] == step - short
    assert text["repeated in epoch 0"].startswith(f"{step - short} microbatch")
    built("")
    assert "dropped" not in shown(info, "-p plan").split("\n\n")[1]


def test_keys_of_0_5_0_are_still_there(here):
    _, values = built("-e 2 --pack")
    assert {"microbatches in epoch 0", "tokens in epoch 0", "padding", "dropped in epoch 0"} < values.keys()
    assert {"written", "samples", "epochs", "skipped", "truncated", "truncated tokens", "split"} < values.keys()
    told = json.loads(shown(info, "-p plan --json"))
    assert {"samples", "tokens", "microbatches per step", "config", "per_epoch", "truncated tokens"} < told.keys()
    first, last = told["per_epoch"]
    assert 0 <= first["meet_again"] <= 1
    assert last["meet_again"] is None
    assert not [key for key in {**values, **told, **first} if "meet again" in key or "packed rows" in key]


def test_info_shows_the_options_that_act(here):
    def options(line):
        built(line)
        return facts(shown(info, "-p plan"))

    assert options("--cost 1,8e-5")["attention costs as much at"] == "12,500 tokens"
    assert {"window padding", "cost per token", "cost per squared length"} < options("--cost 1,8e-5").keys()
    assert "window padding" not in options("--window 100")
    assert not {"window", "window padding"} & options("--predictable").keys()
    assert not {"window", "window padding"} & options("--no-shuffle").keys()
    assert "packing time limit" in options("--pack --pack-mode optimal")
    assert "packing time limit" not in options("--pack --pack-mode best_fit")
    assert "planner" not in options("")
    old = facts(shown(info, f"-p {COMPAT / 'packed'}"))
    assert old["planner"] == "version 1"
    assert not {"window padding", "packing time limit"} & old.keys()
    assert "{" not in shown(info, f"-p {COMPAT / 'packed'}")


def test_figures_over_all_ranks_say_so_beside_those_of_one(here):
    built("-e 2 --microbatches-per-step 4 --pack")
    text = shown(info, "-p plan -w 2 -r 0")
    told = facts(text)
    assert told["samples, over all ranks"] == "2,000"
    assert {"packed rows in epoch 0, over all ranks", "balance in epoch 0, over all ranks"} < told.keys()
    assert "meet again, over all ranks" in text
    assert "samples" not in told
    assert "over all ranks" not in shown(info, "-p plan")


def test_a_search_is_told_by_every_command_that_packs_again(here, monkeypatch):
    """Reading a lazy plan, or verifying any, can take seconds."""
    built("--pack --pack-mode optimal --pack-max-len 1000 --lazy")
    before = shown(info, "-p plan --json")
    told = []
    monkeypatch.setattr("brim.cli.show.Counting.searched", lambda self, rows, bound: told.append((rows, bound)))
    for command, line in ((info, "--json"), (shard, "-w 2 -o shards"), (report, "-o page.html")):
        assert shown(command, f"-p plan {line}")
        assert told, command.name
        told.clear()
    assert shown(info, "-p plan --json") == before
    built("--pack --pack-mode optimal --pack-max-len 1000")
    told.clear()
    assert shown(verify, "-p plan")
    assert told
