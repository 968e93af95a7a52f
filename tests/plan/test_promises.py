"""The promises of a plan where windows and steps are so small that little data has many of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.plans import LONGEST, configs, run_killed, tables

from brim import BatchingConfig, BatchPlan, DataError, LengthCache
from brim.data.ids import Ids
from brim.plan.grouping.windows import Limits, count_windows
from brim.plan.verify import verify_plan

SMALLEST = 3
"""Fewest microbatches of a window, for these tests."""


@pytest.fixture(autouse=True, scope="module")
def _small_windows():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("brim.plan.grouping.windows.SMALLEST", SMALLEST)
        patch.setattr("brim.plan.grouping.windows.FEWEST", SMALLEST)
        patch.setattr("brim.plan.grouping.group.STEPS", 1)
        patch.setattr("brim.plan.grouping.windows.LARGEST", SMALLEST + 1)
        yield


def test_little_data_has_many_windows_here():
    lengths = np.random.default_rng(0).integers(1, LONGEST, 150).astype(np.int32)
    assert count_windows(lengths, None, Limits(100, 9), window=None, padding=0.2, smallest=SMALLEST)[0] > 5


many = tables(max_size=150)
free = configs(window=None)


@given(many, free, st.integers(1, 9), st.integers(0, 1))
def test_every_sample_comes_once_within_the_budget_and_all_ranks_take_equally_many(table, config, world_size, epoch):
    plan = BatchPlan.build(table, config, num_epochs=2)
    shares = [plan.shard(rank, world_size).get_epoch(epoch) for rank in range(world_size)]
    assert sorted(row for share in shares for spec in share for row in spec.indices.tolist()) == list(range(len(table)))
    assert len({len(share) for share in shares}) == 1
    for spec in plan.get_epoch(epoch):
        assert spec.padded_token_count <= config.token_budget
        assert config.max_sequences is None or spec.batch_size <= config.max_sequences
        assert {table.entry(row).group for row in spec.indices.tolist()} == {spec.group}


@given(many, free)
def test_kernel_and_twin_give_the_same_bytes(table, config):
    compiled = BatchPlan.build(table, config).columns(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("brim.plan.grouping.cutting.kernel", None)
        patch.setattr("brim.plan.grouping.steps.kernel", None)
        twin = BatchPlan.build(table, config).columns(0)
    assert compiled.fingerprint == twin.fingerprint


@settings(max_examples=50)
@given(many, free, st.lists(st.tuples(st.integers(1, 9), st.integers(0, 20)), min_size=1, max_size=4))
def test_killed_anywhere_and_resumed_on_any_number_of_ranks_nothing_is_repeated_or_skipped(table, config, history):
    plan = BatchPlan.build(table, config, num_epochs=2)
    seen = run_killed(plan, [*(world_size for world_size, _ in history), 3], [stop for _, stop in history])
    assert seen == [(epoch, index) for epoch in range(2) for index in range(len(plan.columns(epoch)))]


@settings(max_examples=25)
@given(many, free)
def test_a_saved_plan_is_the_plan_and_verifies(tmp_path_factory, table, config):
    path = tmp_path_factory.mktemp("plan") / "plan"
    plan = BatchPlan.build(table, config)
    plan.save(path)
    loaded = BatchPlan.load(path)
    assert list(loaded.get_epoch(0)) == list(plan.get_epoch(0))
    assert verify_plan(loaded, table, config) == []


@given(st.lists(st.integers(0, LONGEST), min_size=1, max_size=2), free, st.integers(1, 9), st.integers(1, 9))
def test_one_or_two_samples_are_a_plan_for_any_step_and_any_number_of_ranks(lengths, config, step, world_size):
    config = BatchingConfig.from_dict({**config.to_dict(), "microbatches_per_step": step})
    plan = BatchPlan.build(LengthCache(Ids.rows(len(lengths)), np.array(lengths, np.int32)), config)
    shares = [list(plan.shard(rank, world_size).get_epoch(0)) for rank in range(world_size)]
    assert len({len(share) for share in shares}) == 1
    assert sorted(row for share in shares for spec in share for row in spec.indices.tolist()) == [0, 1][: len(lengths)]


def test_two_samples_that_fit_one_microbatch_share_it():
    plan = BatchPlan.build({"a": 2, "b": 3}, BatchingConfig(token_budget=6))
    assert [sorted(spec.samples) for spec in plan.get_epoch(0)] == [["a", "b"]]


def test_no_samples_are_refused():
    with pytest.raises(DataError, match="no samples to plan: the length table is empty"):
        BatchPlan.build({}, BatchingConfig())
