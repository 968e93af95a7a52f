"""Lengths and options that mean nothing are refused in one line that shows them; lengths of zero mean something."""

import json

import numpy as np
import pytest
from support.forked import run

from brim import (
    BatchingConfig,
    BatchPlan,
    BrimError,
    DataError,
    LengthCache,
    LengthEntry,
    LengthError,
    OptionError,
    PackingConfig,
)
from brim.data.ids import Ids
from brim.plan import CheckpointPosition, CostModel

NOT_LENGTHS = [-1, 2**31, 10**30, float("nan"), 1.0, True, "5", None]


@pytest.mark.parametrize("length", NOT_LENGTHS, ids=repr)
def test_what_is_not_a_length_is_refused_with_the_sample_that_has_it(length, tmp_path):
    message = rf"sample 'b' has length {length!r}; a length is an integer from 0 to 2147483647"
    for lengths in ({"a": 1, "b": length}, [LengthEntry("a", 1), LengthEntry("b", length)]):
        with pytest.raises(DataError, match=message):
            BatchPlan.build(lengths)
    rows = [{"sample_id": "a", "length": 1}, {"sample_id": "b", "length": length}]
    (tmp_path / "lengths.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(BrimError, match=r"lengths\.jsonl:2: "):  # NaN is not JSON at all
        LengthCache.load(tmp_path / "lengths.jsonl")


@pytest.mark.parametrize(
    ("array", "shown"),
    [(np.array([1, -1], np.int32), "-1"), (np.array([1, 2**31]), "2147483648"), (np.array([1, np.nan]), "1.0")],
)
def test_arrays_of_what_is_not_a_length_are_refused(array, shown):
    with pytest.raises(DataError, match=f"has length {shown}; a length is an integer"):
        LengthCache(Ids.rows(2), array)


def test_arrays_of_other_integers_are_the_same_table():
    tables = [LengthCache(Ids.rows(2), np.array([1, 7], dtype)) for dtype in (np.int32, np.int64, np.uint8)]
    assert len({table.fingerprint for table in tables}) == 1


@pytest.mark.parametrize("packing", [None, PackingConfig(max_length=8)])
def test_a_sample_of_no_length_takes_a_slot(packing):
    plan = BatchPlan.build({"a": 0, "b": 0, "c": 8}, BatchingConfig(token_budget=8, packing=packing))
    assert sorted(id for spec in plan.get_epoch(0) for id in spec.samples) == ["a", "b", "c"]
    assert all(spec.max_len >= 1 and spec.padded_token_count <= 8 for spec in plan.get_epoch(0))


def test_a_capacity_below_the_longest_is_refused_with_a_way_out():
    config = BatchingConfig(token_budget=8, packing=PackingConfig(max_length=4))
    with pytest.raises(LengthError, match=r"1 sample does not fit in 4 tokens; the longest is sample 'a', with 5\. "):
        BatchPlan.build({"a": 5, "b": 3}, config)


@pytest.mark.parametrize("step", [3, 100, 2**31 - 1])
def test_a_step_above_the_number_of_microbatches_is_one_short_step(step):
    plan = BatchPlan.build({"a": 5, "b": 3}, BatchingConfig(token_budget=8, microbatches_per_step=step))
    deal = plan.deal(0)
    assert (len(plan.columns(0)), deal.steps) == (2, 1)
    assert [len(list(plan.shard(rank, 2).get_epoch(0))) for rank in range(2)] == [1, 1]


REFUSED = (
    ({"window_padding": float("nan")}, "window_padding must be at least 0 and below 1, got nan"),
    ({"window_padding": "x"}, "got 'x'"),
    ({"window_padding": 1.0}, "got 1.0"),
    ({"window_padding": -0.1}, "got -0.1"),
    ({"cost": 3}, "cost must be a CostModel, got 3"),
    ({"microbatches_per_step": 0}, "microbatches_per_step must be at least 1, got 0"),
    ({"packing": {"max_length": 8}}, "packing must be a PackingConfig, got {'max_length': 8}"),
    ({"bucket_edges": (float("nan"),)}, "bucket_edges must be a list of integers, got "),
    ({"bucket_edges": ("a",)}, "bucket_edges must be a list of integers, got "),
    ({"bucket_edges": 5}, "bucket_edges must be a list of integers, got 5"),
    ({"bucket_edges": (8.5,)}, "bucket_edges must be a list of integers, got "),
)


def test_numbers_that_mean_nothing_are_refused():
    plan = BatchPlan.build({"a": 5, "b": 3}, BatchingConfig(token_budget=8))
    for number in (0, -1, 1.5, "2", None, float("nan"), True):
        if number is not None:
            with pytest.raises(OptionError, match="num_epochs must be"):
                BatchPlan.build({"a": 5}, BatchingConfig(token_budget=8), num_epochs=number)
            with pytest.raises(OptionError, match="microbatches_per_step must be"):
                plan.with_step_size(number)
            with pytest.raises(OptionError, match="world_size must be"):
                plan.shard(0, number)
        if number != 0:
            with pytest.raises(OptionError, match="rank must lie between 0 and 1"):
                plan.shard(2 if number is True else number, 2)
            with pytest.raises(OptionError, match="microbatch_idx must"):
                CheckpointPosition(epoch=0, microbatch_idx=number)
    with pytest.raises(OptionError, match="the cost of a token must be above 0 and finite"):
        CostModel(per_token=10**400)
    with pytest.raises(DataError, match="5 is not the config of a model"):
        CostModel.of_model(5)


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_options_that_mean_nothing_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        BatchingConfig(**options)
    with pytest.raises(OptionError, match="the cost of a token must be above 0 and finite, got 'x'"):
        CostModel(per_token="x")


def test_versions_of_the_planner_that_do_not_exist_and_options_they_did_not_have_are_refused():
    for algorithm in (0, 3):
        with pytest.raises(OptionError, match=f"algorithm must lie between 1 and 2, got {algorithm}"):
            BatchPlan.build({"a": 1}, algorithm=algorithm)
    config = BatchingConfig(window_padding=0.2, cost=CostModel(per_square=0.0))
    with pytest.raises(OptionError, match="version 1 of the planner has no option window_padding, cost"):
        BatchPlan.build({"a": 1}, config, algorithm=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--cost 0,1", "the cost of a token must be above 0 and finite, got 0.0"),
        ("--cost -1,0", "the cost of a token must be above 0 and finite, got -1.0"),
        ("--cost nan,0", "got nan"),
        ("--cost 1,-1", "the cost of a squared length must be at least 0"),
        ("--cost 1,8e-5 --measured a.json", "give --cost or --measured, not both"),
        ("--cost nothing", "--cost nothing: neither two numbers"),
        ("--measured a.json", "costs follow from two measurements at different lengths, got 1"),
        ("--window-padding 1", "window_padding must be at least 0 and below 1, got 1.0"),
        ("--window-padding nan", "got nan"),
        ("--window-padding 0.2 --window 50", "give --window or --window-padding, not both"),
        ("--pack-mode optimal", "--pack-mode needs --pack"),
        (
            "--remainder drop --microbatches-per-step 1000",
            "no optimizer steps: --remainder drop drops a step of 1,000 microbatches if it is short",
        ),
        ("--drop-last -b 64", "no optimizer steps: with so few samples, --drop-last drops everything"),
        ("--microbatches-per-step 0", "microbatches_per_step must be at least 1, got 0"),
    ],
)
def test_the_command_refuses_in_one_line(tmp_path, options, message):
    LengthCache.from_lengths({"a": 5}).save(tmp_path / "lengths.jsonl")
    done = run(f"brim plan build -l lengths.jsonl -o plan {options}", tmp_path, status=2)
    assert message in done.stderr
    assert not (tmp_path / "plan").exists()
    assert "Traceback" not in done.stderr
