"""The promises that concern ranks: exactly once, equal steps, equal cost, the same steps on any number of ranks, exact
resume.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.plans import configs, lognormal, run_killed, tables

from brim import (
    BatchingConfig,
    BatchPlan,
    CheckpointPosition,
    DamagedError,
    DataError,
    LengthCache,
    MismatchError,
    OptionError,
)
from brim.data.ids import Ids
from brim.plan.deal import Deal, deal_order

SMALL = LengthCache(Ids.rows(400), lognormal(400, longest=500))


def epoch_of_all_ranks(plan, world_size, epoch=0):
    return [plan.shard(rank, world_size).get_epoch(epoch) for rank in range(world_size)]


@given(tables(), configs(), st.integers(1, 64), st.integers(0, 1))
def test_over_all_ranks_every_microbatch_is_taken_exactly_once(table, config, world_size, epoch):
    plan = BatchPlan.build(table, config, num_epochs=2)
    views = epoch_of_all_ranks(plan, world_size, epoch)
    samples = [row for view in views for microbatch in view for row in microbatch.indices.tolist()]
    assert sorted(samples) == list(range(len(table)))
    assert len({len(view) for view in views}) == 1
    assert all(len(list(view)) == len(view) for view in views)
    real = sorted(microbatch.index for view in views for microbatch in view if not microbatch.is_null)
    assert real == list(range(len(plan.get_epoch(epoch).columns)))
    assert sum(microbatch.is_null for view in views for microbatch in view) == views[0].deal.nulls


@pytest.mark.parametrize("world_size", range(1, 65))
def test_world_sizes_from_1_to_64_see_every_sample_once_in_equally_many_rounds(world_size):
    plan = BatchPlan.build(SMALL, BatchingConfig(token_budget=1024))
    views = epoch_of_all_ranks(plan, world_size)
    assert sorted(row for view in views for microbatch in view for row in microbatch.indices.tolist()) == list(
        range(400)
    )
    assert len({len(view) for view in views}) == 1


def test_more_ranks_than_microbatches_is_one_step_with_empty_ones():
    plan = BatchPlan.build({"a": 1, "b": 2}, BatchingConfig(token_budget=2))
    views = epoch_of_all_ranks(plan, 5)
    assert [len(view) for view in views] == [1] * 5
    assert sorted(microbatch.samples for view in views for microbatch in view) == [(), (), (), ("a",), ("b",)]
    empty = next(microbatch for view in views for microbatch in view if microbatch.is_null)
    assert (empty.batch_size, empty.token_count, empty.padded_token_count, empty.fill.ratio) == (0, 0, 0, 1.0)


@given(st.integers(0, 200), st.integers(1, 20), st.integers(1, 30), st.sampled_from(["null", "drop", "repeat"]))
def test_a_deal_gives_every_rank_equally_many_whatever_the_numbers(total, step_size, world_size, remainder):
    deal = Deal(total, step_size, world_size, remainder)
    taken = [deal.indices(rank).tolist() for rank in range(world_size)]
    assert {len(indices) for indices in taken} == {deal.rounds}
    rounds = [deal.round(number) for number in range(deal.rounds)]
    assert rounds == list(deal.rounds_from(0))
    assert taken == [[deal.index(round, rank) for round in rounds] for rank in range(world_size)]
    assert [deal.round_number(round.start) for round in rounds] == list(range(deal.rounds))
    flat = sorted(index for indices in taken for index in indices if index >= 0)
    short = total % step_size
    if remainder == "null" or short == 0:
        assert flat == list(range(total))
        assert (deal.dropped, deal.repeated) == (0, 0)
    elif remainder == "drop":
        assert flat == list(range(total - short))
        assert (deal.dropped, deal.repeated) == (short, 0)
    else:
        again = [i % total for i in range(step_size - short)]
        assert flat == sorted([*range(total), *again])
        assert (deal.dropped, deal.repeated) == (0, step_size - short)
    assert deal.nulls == sum(index < 0 for indices in taken for index in indices)
    assert deal.steps == len({round.start // step_size for round in rounds})


@given(tables(), configs(microbatches_per_step=6), st.lists(st.integers(1, 17), min_size=2, max_size=4))
def test_the_same_steps_happen_on_any_number_of_ranks(table, config, world_sizes):
    plan = BatchPlan.build(table, config)
    steps = []
    for world_size in world_sizes:
        per_step: dict[int, set[int]] = {}
        for rank in range(world_size):
            view = plan.shard(rank, world_size).get_epoch(0)
            for number, microbatch in enumerate(view):
                if not microbatch.is_null:
                    assert microbatch.index % 6 % world_size == rank
                    per_step.setdefault(number // view.deal.rounds_per_step, set()).add(microbatch.index)
        steps.append(per_step)
    assert all(step == steps[0] for step in steps)


@settings(max_examples=60)
@given(
    tables(max_size=40), configs(), st.lists(st.tuples(st.integers(1, 17), st.integers(0, 20)), min_size=1, max_size=5)
)
def test_killed_at_any_microbatch_and_resumed_on_any_number_of_ranks_nothing_is_repeated_or_skipped(
    table, config, history
):
    plan = BatchPlan.build(table, config, num_epochs=2)
    seen = run_killed(plan, [*(world_size for world_size, _ in history), 3], [stop for _, stop in history])
    assert seen == [(epoch, index) for epoch in range(2) for index in range(len(plan.columns(epoch)))]


def test_killed_at_every_microbatch_8_ranks_become_6():
    plan = BatchPlan.build(SMALL, BatchingConfig(token_budget=2048), num_epochs=2)
    everything = [(epoch, index) for epoch in range(2) for index in range(len(plan.columns(epoch)))]
    rounds = plan.shard(0, 8).total_microbatches
    for stop in range(rounds + 1):
        assert run_killed(plan, [8, 6], [stop]) == everything


def test_a_resumed_run_sees_the_microbatches_of_the_unbroken_one_in_the_same_steps():
    plan = BatchPlan.build(SMALL, BatchingConfig(token_budget=2048))
    unbroken = [microbatch for rank in range(4) for microbatch in plan.shard(rank, 4).get_epoch(0)]
    _, _, last = list(plan.shard(0, 4).iter_from(0))[2]
    rest = [
        microbatch for rank in range(3) for _, _, microbatch in plan.resume(last.after, rank, 3).iter_from(last.after)
    ]
    expected = {microbatch.index: microbatch.samples for microbatch in unbroken if microbatch.index >= 12}
    assert {microbatch.index: microbatch.samples for microbatch in rest if not microbatch.is_null} == expected


def test_the_microbatches_of_a_round_cost_nearly_the_same():
    """Dealt without regard to cost, as the order of one rank is, rounds of 8 differ much more."""
    plan = BatchPlan.build(LengthCache(Ids.rows(50_000), lognormal(50_000)), BatchingConfig(token_budget=16384))

    def imbalance(view):
        cost = view.columns.cost() if view.order is None else view.columns.cost()[view.order]
        rounds = cost[: len(cost) // 8 * 8].reshape(-1, 8)
        return (rounds.max(1) / rounds.mean(1)).mean()

    assert imbalance(plan.shard(0, 8).get_epoch(0)) < 1.02
    assert imbalance(plan.get_epoch(0)) > 1.06


@given(st.lists(st.integers(0, 100), max_size=100), st.integers(1, 12), st.integers(0, 3))
def test_a_dealt_order_is_a_permutation_whose_full_steps_are_neighbours_in_cost(cost, step_size, epoch):
    cost = np.array(cost, np.int64)
    order = deal_order(cost, step_size, seed=1, epoch=epoch)
    assert sorted(order.tolist()) == list(range(len(cost)))
    full = len(cost) // step_size * step_size
    spread = np.ptp(cost[order[:full]].reshape(-1, step_size), axis=1).sum() if full else 0
    assert spread <= np.ptp(cost) if len(cost) else True


@pytest.mark.parametrize(("remainder", "expected"), [("null", (0, 0)), ("drop", (1, 0)), ("repeat", (0, 1))])
def test_what_is_left_over_is_counted(remainder, expected):
    plan = BatchPlan.build(dict.fromkeys(range(5), 1), BatchingConfig(token_budget=1, remainder=remainder)).shard(0, 2)
    deal = plan.deal(0)
    assert (deal.dropped, deal.repeated) == expected


def test_shares_cannot_be_shared_again_and_ranks_must_exist():
    plan = BatchPlan.build({"a": 1}, BatchingConfig())
    with pytest.raises(OptionError, match="already the share of rank 1 of 2"):
        plan.shard(1, 2).shard(0, 2)
    with pytest.raises(OptionError, match="world_size must be at least 1, got 0"):
        plan.shard(0, 0)
    for rank in (-1, 2):
        with pytest.raises(OptionError, match=f"rank must lie between 0 and 1, got {rank}"):
            plan.shard(rank, 2)


def test_positions_that_do_not_belong_are_refused():
    plan = BatchPlan.build(SMALL, BatchingConfig(token_budget=2048), num_epochs=2)
    other = BatchPlan.build(SMALL, BatchingConfig(token_budget=2048, seed=1), num_epochs=2)
    _, _, microbatch = next(plan.shard(0, 8).iter_from(0))
    for use in (other.resume, other.shard(0, 8).iter_from):
        with pytest.raises(MismatchError, match="belongs to another plan"):
            use(microbatch.after)
    with pytest.raises(
        MismatchError, match=r"made with steps of 8 microbatches, here they are 6; continue with plan\.resume"
    ):
        plan.shard(0, 6).iter_from(microbatch.after)
    with pytest.raises(OptionError, match="does not fix its steps"):
        plan.shard(0, 6).iter_from(0, 8)
    with pytest.raises(OptionError, match="epoch 2 does not exist"):
        plan.iter_from(2, 1)
    length = len(plan.get_epoch(0))
    for bad in (-1, length + 1):
        with pytest.raises(OptionError, match=f"microbatch {bad} does not exist: epoch 0 has {length}"):
            plan.iter_from(0, bad)
    fixed = BatchPlan.build(SMALL, BatchingConfig(token_budget=2048, microbatches_per_step=4))
    with pytest.raises(MismatchError, match="the plan has steps of 4 microbatches, not 8"):
        fixed.with_step_size(8)


def test_the_end_of_an_epoch_is_the_start_of_the_next_and_the_end_of_the_last_is_the_end():
    plan = BatchPlan.build({"a": 1}, BatchingConfig(), num_epochs=2)
    (first, second) = (microbatch for _, _, microbatch in plan.iter_from(0))
    assert (first.after.epoch, first.after.microbatch_idx) == (1, 0)
    assert [microbatch for _, _, microbatch in plan.iter_from(first.after)] == [second]
    assert list(plan.iter_from(second.after)) == []


def test_a_position_is_a_small_file_that_is_whole_or_refused(tmp_path):
    plan = BatchPlan.build({"a": 1, "b": 2}, BatchingConfig(token_budget=2))
    position = replace(plan.get_epoch(0)[0].after, global_step=17)
    position.save(tmp_path / "position.json")
    assert CheckpointPosition.load(tmp_path / "position.json") == position
    whole = (tmp_path / "position.json").read_bytes()
    for damaged in (
        whole[:20],
        b"",
        b"[]",
        whole.replace(b"brim.position/1", b"brim.position/9"),
        whole.replace(b"epoch", b"epic"),
    ):
        (tmp_path / "position.json").write_bytes(damaged)
        with pytest.raises(DamagedError):
            CheckpointPosition.load(tmp_path / "position.json")
    with pytest.raises(DataError, match="No such file"):
        CheckpointPosition.load(tmp_path / "nothing")
    for field in ("epoch", "microbatch_idx", "global_step"):
        with pytest.raises(OptionError, match=f"{field} must not be negative, got -1"):
            replace(position, **{field: -1})


@given(
    st.integers(0, 200), st.integers(1, 20), st.integers(1, 30), st.sampled_from(["null", "drop", "repeat"]), st.data()
)
def test_how_many_rounds_are_left_is_known_without_counting_them(total, step_size, world_size, remainder, data):
    deal = Deal(total, step_size, world_size, remainder)
    position = data.draw(st.integers(0, deal.length + 5))
    assert deal.rounds_left(position) == len(list(deal.rounds_from(position)))
    assert deal.rounds_left(0) == deal.rounds
