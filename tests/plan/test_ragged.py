"""Samples that are ragged along several axes, and plans that keep the order of the data."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.plans import configs, tables

from brim import BatchingConfig, BatchPlan, DataError, LengthCache, LengthEntry, LengthError, OptionError, PackingConfig
from brim.data.ids import Ids
from brim.plan.grouping.ragged import cut_runs, near_order
from brim.plan.verify import verify_plan

AXES = 4


@st.composite
def nested_tables(draw, max_size=60, longest=20):
    """Groups with one to four axes each."""
    used = {group: draw(st.integers(1, AXES)) for group in "abc"}
    entries = []
    for number in range(draw(st.integers(1, max_size))):
        group = draw(st.sampled_from("abc"))
        axes = [draw(st.integers(0, longest)) for _ in range(used[group])] + [0] * (AXES - used[group])
        entries.append(LengthEntry(f"s{number}", sum(axes), group, tuple(axes)))
    return LengthCache.from_entries(entries)


@st.composite
def nested_configs(draw, **fixed):
    options = {
        "token_budget": draw(st.integers(100, 600)),
        "seed": draw(st.integers(0, 5)),
        "pad_to_multiple": draw(st.sampled_from([1, 1, 4])),
        "max_sequences": draw(st.none() | st.integers(1, 5)),
        "window": draw(st.none() | st.integers(1, 30)),
        "microbatches_per_step": draw(st.none() | st.integers(1, 4)),
        "shuffle": draw(st.booleans()),
    }
    return BatchingConfig(**{**options, **fixed})


def slots(table, rows, multiple):
    """What a padded batch of these rows costs: each axis as long as its longest, rounded up."""
    return len(rows) * max(1, sum(-(-int(longest) // multiple) * multiple for longest in table.axes[rows].max(axis=0)))


@given(nested_tables(), nested_configs())
def test_a_microbatch_is_charged_what_it_costs_when_every_axis_is_padded_by_itself(table, config):
    plan = BatchPlan.build(table, config)
    seen = []
    for microbatch in plan.get_epoch(0):
        if microbatch.is_null:
            continue
        assert (
            microbatch.padded_token_count
            == slots(table, microbatch.indices, config.pad_to_multiple)
            <= config.token_budget
        )
        assert {table.entry(row).group for row in microbatch.indices} == {microbatch.group}
        assert microbatch.batch_size <= (config.max_sequences or len(table))
        assert np.array_equal(microbatch.lengths, table.lengths[microbatch.indices])
        seen += microbatch.indices.tolist()
    assert sorted(seen) == list(range(len(table)))


@given(nested_tables(), nested_configs(), st.integers(1, 5))
def test_every_sample_is_seen_once_on_any_number_of_ranks(table, config, world_size):
    plan = BatchPlan.build(table, config)
    shares = [plan.shard(rank, world_size).get_epoch(0) for rank in range(world_size)]
    assert len({len(share) for share in shares}) == 1
    assert sorted(row for share in shares for microbatch in share for row in microbatch.indices) == list(
        range(len(table))
    )


@given(nested_tables(), nested_configs(drop_last=True))
def test_what_drop_last_leaves_out_could_have_taken_another_row(table, config):
    plan = BatchPlan.build(table, config)
    cut_where_full = {"drop_last": False, "microbatches_per_step": None}
    full = BatchPlan.build(table, BatchingConfig.from_dict({**config.to_dict(), **cut_where_full}))
    kept = {tuple(microbatch.indices) for microbatch in plan.get_epoch(0)}
    gone = [microbatch for microbatch in full.get_epoch(0) if tuple(microbatch.indices) not in kept]
    assert sorted(plan.dropped(0)) == sorted(id for microbatch in gone for id in microbatch.samples)
    for microbatch in gone:
        assert microbatch.max_len * (microbatch.batch_size + 1) <= config.token_budget
        assert microbatch.batch_size < (config.max_sequences or len(table) + 1)


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=2, max_size=2), min_size=1, max_size=200),
    st.integers(18, 400),
    st.none() | st.integers(1, 9),
)
def test_runs_are_cut_where_the_next_row_would_not_fit(rows, budget, most):
    """The two-line definition: take rows as long as (rows so far) x (sum of the largest of each axis) fits."""
    axes = np.array(rows, np.int32)
    starts, _ = cut_runs(axes, np.array([0, len(axes)]), budget=budget, max_rows=most)
    expected, start = [], 0
    for end in range(1, len(axes) + 1):
        if (end - start) * max(1, axes[start:end].max(axis=0).sum()) > budget or end - start > (most or len(axes)):
            expected.append(start)
            start = end - 1
    assert starts.tolist() == [*expected, start]


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 4), st.integers(1, 9), st.integers(0, 99))
def test_near_order_moves_rows_inside_their_window_only(first, second, axes, per, seed):
    values = np.random.default_rng(seed).integers(0, 50, (first + second, axes)).astype(np.int32)
    bounds = np.array([0, first, first + second])
    order = near_order(values, bounds, np.array([per, per]))
    assert sorted(order[:first]) == list(range(first))
    assert sorted(order[first:]) == list(range(first, first + second))


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=100))
def test_along_one_axis_near_order_is_a_sort_up_to_the_size_of_a_microbatch(lengths):
    values = np.array(lengths, np.int32)[:, None]
    order = near_order(values, np.array([0, len(values)]), np.array([4]))
    pieces = [sorted(values[order[start : start + 4], 0]) for start in range(0, len(order), 4)]
    assert [value for piece in pieces for value in piece] == sorted(lengths)


def test_two_ragged_axes_are_filled_far_better_than_by_their_sum():
    random = np.random.default_rng(0)
    axes = np.minimum(np.exp(5 + 0.8 * random.standard_normal((4000, 2))), 2000).astype(np.int32) + 1
    total = axes.sum(axis=1, dtype=np.int32)
    nested = BatchPlan.build(LengthCache(Ids.rows(4000), total, axes=axes), BatchingConfig(token_budget=16_000))
    by_sum = BatchPlan.build(LengthCache(Ids.rows(4000), total), BatchingConfig(token_budget=16_000))
    paid = sum(slots(nested.table, microbatch.indices, 1) for microbatch in by_sum.get_epoch(0))
    assert nested.get_epoch(0).fill.ratio > 1.3 * total.sum() / paid


@given(tables(), configs(shuffle=False))
def test_without_shuffle_batches_keep_the_order_of_the_data_in_every_epoch(table, config):
    plan = BatchPlan.build(table, config, num_epochs=2)
    one, two = (plan.columns(epoch) for epoch in range(2))
    assert one.fingerprint == two.fingerprint
    microbatches = [microbatch for microbatch in plan.get_epoch(0) if not microbatch.is_null]
    assert sorted(row for microbatch in microbatches for row in microbatch.indices) == list(range(len(table)))
    assert all(microbatch.padded_token_count <= config.token_budget for microbatch in microbatches)
    if config.packing is None:
        starts = [int(microbatch.indices[0]) for microbatch in microbatches]
        assert starts == sorted(starts)
        for microbatch in microbatches:
            assert microbatch.indices.tolist() == sorted(microbatch.indices.tolist())
            kinds = (microbatch.group, microbatch.bucket_id)
            between = range(int(microbatch.indices[0]), int(microbatch.indices[-1]))
            others = [m for m in microbatches if (m.group, m.bucket_id) == kinds and m is not microbatch]
            assert not any(row in between for m in others for row in m.indices.tolist())


def test_without_shuffle_another_seed_changes_nothing_and_ranks_take_turns():
    table = LengthCache.from_lengths([LengthEntry(f"s{number}", 5) for number in range(12)])
    plans = [BatchPlan.build(table, BatchingConfig(token_budget=10, shuffle=False, seed=seed)) for seed in (1, 2)]
    assert [list(m.samples) for m in plans[0].get_epoch(0)] == [list(m.samples) for m in plans[1].get_epoch(0)]
    ranks = [[m.index for m in plans[0].shard(rank, 2).get_epoch(0)] for rank in range(2)]
    assert ranks == [[0, 2, 4], [1, 3, 5]]


def test_a_nested_sample_that_does_not_fit_is_an_error_or_left_out():
    entries = [LengthEntry("a", 10, "x", (6, 4)), LengthEntry("b", 9, "x", (5, 4)), LengthEntry("c", 2, "x", (1, 1))]
    table = LengthCache.from_entries(entries)
    with pytest.raises(
        LengthError,
        match=r"1 sample does not fit in 9 tokens; the longest is sample 'a', with 10.*overflow=\"skip\" \(",
    ):
        BatchPlan.build(table, BatchingConfig(token_budget=9))
    # 8 + 4 and 8 + 4.
    with pytest.raises(LengthError, match="2 samples do not fit in 8 tokens; the longest is sample 'a', with 12"):
        BatchPlan.build(table, BatchingConfig(token_budget=11, pad_to_multiple=4))
    plan = BatchPlan.build(table, BatchingConfig(token_budget=11, pad_to_multiple=4, overflow="skip"))
    assert plan.skipped() == ("a", "b")
    assert [microbatch.samples for microbatch in plan.get_epoch(0)] == [("c",)]


@pytest.mark.parametrize(
    "options",
    [
        {"overflow": "truncate"},
        {"overflow": "split"},
        {"bucket_edges": (5,)},
        {"num_buckets": 2},
        {"packing": PackingConfig(max_length=9)},
    ],
)
def test_options_for_one_length_are_refused_for_several(options):
    table = LengthCache.from_entries([LengthEntry("a", 10, "x", (6, 4))])
    with pytest.raises(OptionError, match="ragged along several axes"):
        BatchPlan.build(table, BatchingConfig(**options))


@given(nested_tables(max_size=20), nested_configs())
def test_lengths_and_plans_of_nested_samples_are_the_same_after_a_file(tmp_path_factory, table, config):
    directory = tmp_path_factory.mktemp("plan")
    for name in ("lengths.brim", "lengths.jsonl"):
        table.save(directory / name)
        read = LengthCache.load(directory / name)
        assert read.fingerprint == table.fingerprint
        assert np.array_equal(read.axes, table.axes)
    plan = BatchPlan.build(table, config)
    plan.save(directory / "plan")
    opened = BatchPlan.load(directory / "plan")
    assert verify_plan(opened, table, config) == []
    assert list(opened.get_epoch(0)) == list(plan.get_epoch(0))


def test_samples_of_no_length_take_a_slot_each():
    table = LengthCache.from_entries([LengthEntry(f"s{number}", 0, "x", (0, 0)) for number in range(50)])
    plan = BatchPlan.build(table, BatchingConfig(token_budget=4))
    sizes = [microbatch.batch_size for microbatch in plan.get_epoch(0)]
    assert sum(sizes) == 50
    assert max(sizes) == 4
    assert all(microbatch.padded_token_count <= 4 for microbatch in plan.get_epoch(0))


def test_every_axis_is_rounded_up_before_it_is_held_against_the_budget():
    table = LengthCache.from_entries([LengthEntry("a", 6, "x", (3, 3)), LengthEntry("b", 2, "x", (1, 1))])
    with pytest.raises(LengthError, match="sample 'a', with 8"):
        BatchPlan.build(table, BatchingConfig(token_budget=7, pad_to_multiple=4, overflow="error"))
    plan = BatchPlan.build(table, BatchingConfig(token_budget=8, pad_to_multiple=4))
    assert all(microbatch.padded_token_count == 8 for microbatch in plan.get_epoch(0))


@given(tables(), st.integers(2, 5))
def test_without_shuffle_other_step_sizes_do_not_deal_anew(table, ranks):
    plan = BatchPlan.build(table, BatchingConfig(token_budget=64, shuffle=False))
    order = [microbatch.samples for microbatch in plan.get_epoch(0)]
    shares = [plan.shard(rank, ranks).get_epoch(0) for rank in range(ranks)]
    dealt = [
        microbatch.samples for round in zip(*shares, strict=True) for microbatch in round if not microbatch.is_null
    ]
    assert dealt == order


def test_axes_are_part_of_a_fingerprint_and_must_add_up():
    def table(*axes):
        return LengthCache.from_entries([LengthEntry("a", 10, None, axes)])

    assert (
        len(
            {
                table(6, 4).fingerprint,
                table(4, 6).fingerprint,
                LengthCache.from_entries([LengthEntry("a", 10)]).fingerprint,
            }
        )
        == 3
    )
    with pytest.raises(DataError, match=r"sample 'a' has length 10 and axes \[6, 5\]"):
        table(6, 5)
    with pytest.raises(DataError, match="do not add up"):
        LengthCache(Ids.rows(1), np.array([3], np.int32), axes=np.array([[1, 1]], np.int32))
