"""The flags that decide a plan: what they mean for a new plan and for one that exists, and which are refused."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from click.core import ParameterSource
from click.testing import CliRunner

from brim import BatchingConfig, BatchPlan, LengthCache, OptionError, PackingConfig
from brim.cli.batching import PLANNING, overlaid
from brim.cli.plan.build import build
from brim.cli.plan.verify import verify
from brim.core.errors import BrimError
from brim.data.ids import Ids
from brim.plan import CostModel

COMPAT = Path(__file__).resolve().parents[1] / "compat" / "0.5.0" / "plans"


@pytest.fixture(scope="module")
def table():
    lengths = np.exp(np.random.default_rng(0).normal(5, 0.8, 3000)).clip(1, 2000).astype(np.int32)
    return LengthCache(Ids.rows(len(lengths)), lengths)


@pytest.fixture
def here(table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table.save("lengths.brim")
    return tmp_path


def built(line, output="plan"):
    result = CliRunner().invoke(build, ["-l", "lengths.brim", "-o", output, *line.split()])
    assert result.exit_code == 0, result.exception
    return BatchPlan.load(output)


def refused(line):
    """The one line that refuses these options before anything is read."""
    words = [word.replace("''", "") for word in line.split()]
    error = CliRunner().invoke(build, ["-l", "missing", "-o", "out", *words]).exception
    assert isinstance(error, BrimError), line
    return str(error)


def verified(line, path="plan"):
    """The exit status of `brim plan verify`, and the differences that it lists."""
    result = CliRunner().invoke(verify, ["-p", str(path), *line.split()])
    assert isinstance(result.exception, SystemExit) or result.exception is None, result.exception
    return result.exit_code, [each.strip() for each in result.stdout.splitlines() if each.startswith("  ")]


def typed(line):
    """The options of a command line, and the names of those that were given."""
    ctx = verify.make_context("verify", ["-p", "plan", *line.split()])
    options = {name: ctx.params[name] for name in PLANNING}
    return options, {name for name in options if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT}


def test_pack_alone_keeps_the_packing_of_a_plan(here):
    built("-b 4096 --pack --pack-mode best_fit --pack-max-len 3000 --pack-max-sequences 9")
    assert verified("--pack") == (0, [])
    assert verified("--pack --pack-max-sequences 9") == (0, [])
    assert verified("--pack --pack-mode optimal") == (1, ["other packing mode (best_fit -> optimal)"])
    assert verified("--pack --pack-max-len 9000") == (1, ["other packing max length (3000 -> 9000)"])
    assert verified("--pack", COMPAT / "packed") == (0, [])
    built("-b 4096")
    assert verified("--pack") == (1, ["other packing (none -> rows of 2048)"])


def test_a_run_that_is_resumed_keeps_the_packing_it_was_started_with():
    """The default mode was best fit when this run began."""
    began = BatchingConfig(token_budget=4096, packing=PackingConfig(max_length=512, mode="best_fit", pad_to_max=False))
    assert overlaid(began, *typed("--pack --pack-max-len 512")) == began
    assert overlaid(began, *typed("--pack --pack-mode optimal")).packing.mode == "optimal"
    plain = overlaid(BatchingConfig(token_budget=1024), *typed("--pack"))
    assert (plain.packing.max_length, plain.packing.mode) == (1024, "auto")


def test_of_two_options_that_exclude_each_other_the_one_that_was_given_is_compared(here):
    built("-b 4096 --window 500")
    assert verified("--window-padding 0.05") == (
        1,
        ["other window (500 -> default)", "other window padding (0.01 -> 0.05)"],
    )
    assert verified("--window 500") == (0, [])
    built("-b 4096 --bucket-edges 256,512")
    assert verified("--num-buckets 4") == (
        1,
        ["other bucket edges (256,512 -> default)", "other num buckets (default -> 4)"],
    )
    assert verified("-b 400")[0] == 1


def test_differences_are_words_and_not_values_of_python(here):
    built("-b 4096 --cost 2,1e-4 --drop-last")
    shown = verified("--cost 1,8e-5 --max-sequences 7 --no-shuffle")[1]
    assert shown == [
        "other max sequences (default -> 7)",
        "other cost per token (2 -> 1)",
        "other cost per squared length (0.0001 -> 8e-05)",
        "other shuffle (yes -> no)",
    ]


def test_options_that_have_no_effect_beside_others_are_refused(tmp_path):
    for flag in ("--window 9", "--window-padding 0.01", "--cost 1,8e-5", "--measured m.json"):
        assert "has no effect with --no-shuffle, which keeps the order of the data" in refused(f"--no-shuffle {flag}")
    for flag in ("--window 9", "--window-padding 0.2"):
        assert "with --predictable: all rows of a bucket have one width" in refused(f"--predictable {flag}")
        assert "with --predictable: all rows have one width" in refused(f"--predictable --pack {flag}")
    assert refused("--window 9 --window-padding 0.01") == "give --window or --window-padding, not both: got 9 and 0.01"


@pytest.mark.parametrize("steps", [None, 4])
def test_what_is_refused_has_no_effect(table, steps):
    packing = PackingConfig(max_length=2048, mode="best_fit")
    windows = ({"window": 300}, {"window_padding": 0.2})
    orders = ({}, {"packing": packing}, {"num_buckets": 4})
    predictable = ({"packing": packing}, {"num_buckets": 4, "pad_policy": "pad_to_bucket"})
    cases = [
        *(({"shuffle": False, **how}, what) for how, what in product(orders, (*windows, {"cost": CostModel()}))),
        *product(predictable, windows),
    ]
    for how, what in cases:
        common = {"token_budget": 4096, "microbatches_per_step": steps, **how}
        plain, other = (BatchPlan.build(table, BatchingConfig(**common, **more)) for more in ({}, what))
        assert plain.columns(0).fingerprint == other.columns(0).fingerprint, (how, what)


def test_a_plan_that_was_made_with_an_option_without_effect_is_still_read(here, table):
    config = BatchingConfig(token_budget=4096, shuffle=False, cost=CostModel(), window=300)
    BatchPlan.build(table, config).save("plan")
    assert verified("--no-shuffle --window 300") == (0, [])


def test_messages_name_the_flag(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refused("--pack --pack-max-sequences 0") == "--pack-max-sequences must be at least 1, got 0"
    assert refused("--pack --pack-max-len 0") == "--pack-max-len must be at least 1, got 0"
    assert refused("--pack --pack-max-len -1") == "--pack-max-len must be at least 1, got -1"
    for seconds in ("-1", "nan", "inf"):
        expected = f"--pack-time-limit must be at least 0 and finite, got {seconds}"
        assert refused(f"--pack --pack-time-limit {seconds}") == expected
    assert refused("--pack -b 0") == "token_budget must be at least 1, got 0"


@pytest.mark.parametrize("value", ["1", "1,2,3", "a,b", "1,"])
def test_a_cost_is_two_numbers_or_a_model(value):
    assert refused(f"--cost {value}") == (
        f"--cost {value}: neither two numbers such as 1,8e-5 nor the directory of a model (there is no {value})"
    )


def test_costs_that_cannot_be_are_refused_with_their_flag(tmp_path):
    assert refused("--cost ''").startswith("--cost is empty; give two numbers")
    assert refused("--cost 0,0") == "--cost: the cost of a token must be above 0 and finite, got 0.0"
    assert "--cost: the cost of a squared length must be at most 1/16" in refused("--cost 1,2")
    assert "--cost: cannot read the config of a model" in refused(f"--cost {tmp_path}")


def test_a_budget_that_was_not_given_limits_nothing(here):
    built("-b 9000 --pack --pack-max-len 8192 --overflow skip")
    assert verified("--pack --pack-max-len 8192") == (0, [])
    built("-b 9000 --bucket-edges 64,8000")
    assert verified("--bucket-edges 64,8000") == (0, [])
    with pytest.raises(OptionError, match="bucket edge 8000 is above"):
        overlaid(BatchingConfig(), *typed("--bucket-edges 64,8000"))
