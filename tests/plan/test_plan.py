"""The promises that concern one epoch of a plan."""

import asyncio
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.plans import configs, lognormal, tables, tokens_seen

from brim import (
    BatchingConfig,
    BatchPlan,
    BatchPlanBuilder,
    DataError,
    LengthCache,
    LengthEntry,
    LengthError,
    OptionError,
    PackingConfig,
    PadPolicy,
)
from brim.data.ids import Ids
from brim.plan.config import BatchingMode


@given(tables(), configs(), st.integers(0, 2))
def test_every_sample_is_in_exactly_one_microbatch_of_an_epoch(table, config, epoch):
    view = BatchPlan.build(table, config, num_epochs=3).get_epoch(epoch)
    _, rows = tokens_seen(view, table)
    assert rows.tolist() == [1] * len(table)
    assert [microbatch.index for microbatch in view] == list(range(len(view)))


@given(tables(), configs())
def test_a_budget_is_a_bound_and_everything_adds_up(table, config):
    view = BatchPlan.build(table, config).get_epoch(0)
    for microbatch in view:
        rows = [microbatch.lengths[a:b].sum() for a, b in zip(microbatch.row_ptr, microbatch.row_ptr[1:], strict=False)]
        assert microbatch.padded_token_count <= config.token_budget
        assert max(rows) <= microbatch.max_len
        assert microbatch.max_len % config.pad_to_multiple == 0
        assert microbatch.batch_size == len(rows) >= 1
        assert config.max_sequences is None or len(rows) <= config.max_sequences
        assert microbatch.packed == (config.packing is not None)
        assert microbatch.samples == table.ids.take(microbatch.indices)
        if config.packing is not None:
            assert max(rows) <= config.packing.max_length
            assert sum(microbatch.packs, ()) == microbatch.samples
            assert microbatch.num_packs == len(rows)
            most = config.packing.max_sequences
            assert most is None or np.diff(microbatch.row_ptr).max() <= most
        else:
            assert microbatch.packs is None
            assert np.array_equal(np.diff(microbatch.row_ptr), np.ones(len(rows)))
    assert view.fill.used == table.lengths.sum()
    assert view.fill.slots == sum(microbatch.padded_token_count for microbatch in view)
    assert view.total_samples == len(table)


@given(tables(), configs())
def test_groups_and_buckets_never_share_a_microbatch(table, config):
    plan = BatchPlan.build(table, config)
    for microbatch in plan.get_epoch(0):
        groups = {table.entry(row).group for row in microbatch.indices}
        assert groups == {microbatch.group}
        if plan.buckets is not None:
            assert set(plan.buckets.bucket_ids(np.maximum(microbatch.lengths, 1)).tolist()) == {microbatch.bucket_id}
            if config.pad_policy is PadPolicy.PAD_TO_BUCKET:
                assert microbatch.max_len == plan.buckets.widths[microbatch.bucket_id]


@given(tables(), configs())
def test_a_microbatch_is_no_wider_than_it_must_be(table, config):
    if config.pad_policy is PadPolicy.PAD_TO_BUCKET or (config.packing and config.packing.pad_to_max):
        return
    for microbatch in BatchPlan.build(table, config).get_epoch(0):
        longest = max(
            1,
            *(
                max(microbatch.lengths[a:b].sum(), 1)
                for a, b in zip(microbatch.row_ptr, microbatch.row_ptr[1:], strict=False)
            ),
        )
        if microbatch.packed and 0 in microbatch.lengths:
            continue  # an empty sequence takes up a slot of its row
        assert microbatch.max_len == -(-longest // config.pad_to_multiple) * config.pad_to_multiple


@given(tables(), st.integers(1, 40), st.sampled_from(["truncate", "split", "skip"]), st.booleans())
def test_long_samples_are_cut_split_or_skipped_as_asked_and_counted(table, limit, overflow, packed):
    packing = PackingConfig(max_length=limit) if packed else None
    config = BatchingConfig(token_budget=max(limit, 40), overflow_max=limit, overflow=overflow, packing=packing)
    long = table.lengths > limit
    if overflow == "skip" and long.all():
        with pytest.raises(DataError, match="leaves out all"):
            BatchPlan.build(table, config)
        return
    plan = BatchPlan.build(table, config)
    seen, rows = tokens_seen(plan.get_epoch(0), table)
    counts = plan.counts
    for row, times in enumerate(seen):
        if overflow == "truncate":
            assert times.tolist() == [1] * min(len(times), limit) + [0] * max(len(times) - limit, 0)
        elif overflow == "split":
            assert times.tolist() == [1] * len(times)
            assert rows[row] == max(1, -(-len(times) // limit))
        else:
            assert times.tolist() == [0 if long[row] else 1] * len(times)
    named = tuple(table.ids.take(np.flatnonzero(long)))
    assert counts.samples == len(table)
    assert plan.skipped() == (named if overflow == "skip" else ())
    assert plan.truncated() == (named if overflow == "truncate" else ())
    assert (counts.skipped, counts.truncated, counts.split) == tuple(
        long.sum() if overflow == way else 0 for way in ("skip", "truncate", "split")
    )
    assert counts.truncated_tokens == (np.maximum(table.lengths - limit, 0).sum() if overflow == "truncate" else 0)
    assert counts.pieces == (rows[long].sum() if overflow == "split" else 0)


def test_a_sample_that_does_not_fit_is_an_error_with_a_way_out():
    lengths = {"a": 8, "b": 3, "c": 10, "d": 9}
    with pytest.raises(
        LengthError,
        match=r"2 samples do not fit in 8 tokens; the longest is sample 'c', with 10\. Raise the limit to 10",
    ):
        BatchPlan.build(lengths, BatchingConfig(token_budget=8))
    with pytest.raises(LengthError, match="1 sample does not fit in 15 tokens"):
        BatchPlan.build({"a": 16}, BatchingConfig(token_budget=16, overflow_max=15))
    with pytest.raises(LengthError, match="not fit in 8 tokens"):  # 10 would be padded to 16
        BatchPlan.build({"a": 10}, BatchingConfig(token_budget=15, pad_to_multiple=8))


@given(tables(), configs(drop_last=True))
def test_what_drop_last_leaves_out_is_named(table, config):
    plan = BatchPlan.build(table, config)
    _, rows = tokens_seen(plan.get_epoch(0), table)
    assert plan.dropped(0) == table.ids.take(np.flatnonzero(rows == 0))
    assert rows.max(initial=0) <= 1
    full = BatchPlan.build(table, BatchingConfig.from_dict({**config.to_dict(), "drop_last": False}))
    assert full.dropped(0) == ()
    assert len(plan.get_epoch(0)) <= len(full.get_epoch(0))


@given(tables(), configs())
def test_same_inputs_same_epoch_and_other_epochs_differ_only_in_order(table, config):
    one, other = (BatchPlan.build(table, config, num_epochs=2) for _ in range(2))
    assert one.fingerprint == other.fingerprint
    assert one.columns(1).fingerprint == other.columns(1).fingerprint
    assert sorted(one.columns(0).unit) == sorted(one.columns(1).unit)


@given(
    st.dictionaries(st.text(max_size=3) | st.integers(0, 50), st.integers(0, 30), min_size=1),
    st.randoms(use_true_random=False),
)
def test_the_order_of_a_dict_does_not_matter(lengths, random):
    if len({str(id) for id in lengths}) < len(lengths):
        return  # 1 and "1" are one id where ids are mixed
    items = list(lengths.items())
    random.shuffle(items)
    config = BatchingConfig(token_budget=64)
    one, other = BatchPlan.build(lengths, config), BatchPlan.build(dict(items), config)
    assert one.fingerprint == other.fingerprint
    assert list(one.get_epoch(0)) == list(other.get_epoch(0))


SCRIPT = """
import sys
from brim import BatchingConfig, BatchPlan, PackingConfig, compute_batch_fingerprint
alike = sys.argv[1] == "patterns"
lengths = {f"s{i}": 30 + i * i % 23 if alike else 1 + i * i % 97 for i in range(300)}
options = {
    "windows": {},
    "steps": {"microbatches_per_step": 3},
    "buckets": {"num_buckets": 4, "microbatches_per_step": 3},
    "packed": {"packing": PackingConfig(max_length=128), "microbatches_per_step": 3},
    "patterns": {"packing": PackingConfig(max_length=145)},
}
config = BatchingConfig(token_budget=512, **options[sys.argv[1]])
plan = BatchPlan.build(lengths, config, num_epochs=2)
print(plan.fingerprint, *(plan.columns(e).fingerprint for e in range(2)))
print(compute_batch_fingerprint(plan.iter_epoch(1), config).fingerprint)
"""

GOLDEN = {
    "windows": (
        "fee9fe600fa30861eda796323690be7c",
        "068bca35d3aa3b7b2c970fe39c128e95",
        "48aeefd227e8be698af3b4e789914502",
        "462d6ac83c18ab31e20d69215b70a313",
    ),
    "steps": (
        "94723711840db0762f02a622ac19b7b1",
        "48d32fee63f8c20957938d3d3639a533",
        "6484f7afe30cc748e3969acd11d076a4",
        "95b252440e432bebfc409d2d8db7eef7",
    ),
    "buckets": (
        "eaafb55e589078fc9aa7a976e06c2992",
        "61504b10284848d5844585879d24b8b0",
        "aa7d3e952a72b2b5570e06053f244231",
        "47ee02f0d7845764e8330d3715153b0f",
    ),
    "packed": (
        "f0d977d77c33f9e48a74c2ddac9fb1bb",
        "eed461337fc04a41a9f3de0b11710ee7",
        "2396a5383b72db8b9d0cf9c84affbd33",
        "7b90afc7eca2bc57f1526bf45653884c",
    ),
    "patterns": (
        "28f1afc26acc3f3231f2c4fe2ae6ba2e",
        "7a115fc255d4fe482aebd7961c8035a7",
        "a306184e3ec773a9fe3a6135ddb022e4",
        "95c38d95ef29e03d5172e4d904b25c51",
    ),
}
"""For each plan: its fingerprint, those of its two epochs, and that of the batches of the second one."""


@pytest.mark.parametrize("name", GOLDEN)
def test_a_plan_is_the_same_in_every_process_and_the_one_it_always_was(name):
    """If this fails because planning was changed on purpose, raise `brim.plan.build.ALGORITHM` and write the new
    numbers down.
    """
    printed = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT, name],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]
    assert printed[0] == printed[1]
    assert tuple(printed[0].split()) == GOLDEN[name]


def test_seeds_and_epochs_are_not_added_up():
    table = LengthCache(Ids.rows(2000), lognormal(2000))
    plans = {
        seed: BatchPlan.build(table, BatchingConfig(token_budget=8192, seed=seed), num_epochs=2) for seed in (42, 43)
    }
    assert plans[42].columns(1).fingerprint != plans[43].columns(0).fingerprint


CHANGES = {
    "token_budget": 4097,
    "bucket_edges": (100,),
    "num_buckets": 3,
    "overflow_max": 3000,
    "overflow": "skip",
    "pad_to_multiple": 8,
    "max_sequences": 7,
    "window": 9,
    "window_padding": 0.02,
    "cost": {"per_token": 2.0},
    "drop_last": True,
    "shuffle": False,
    "packing": {"max_length": 1024},
    "microbatches_per_step": 2,
    "remainder": "drop",
    "seed": 43,
}


def test_every_option_changes_the_fingerprint():
    table = LengthCache(Ids.rows(100), lognormal(100, longest=1024))
    base = BatchingConfig()
    prints = {BatchPlan.build(table, base).fingerprint, BatchPlan.build(table, base, num_epochs=2).fingerprint}
    for name, value in CHANGES.items():
        prints.add(BatchPlan.build(table, BatchingConfig.from_dict({**base.to_dict(), name: value})).fingerprint)
    prints.add(BatchPlan.build(table, BatchingConfig(num_buckets=3, pad_policy=PadPolicy.PAD_TO_BUCKET)).fingerprint)
    for packing in ({"mode": "greedy"}, {"max_sequences": 2}, {"pad_to_max": False}):
        prints.add(
            BatchPlan.build(
                table, BatchingConfig.from_dict({**base.to_dict(), "packing": {"max_length": 1024, **packing}})
            ).fingerprint
        )
    assert len(prints) == 2 + len(CHANGES) + 1 + 3
    assert set(CHANGES) | {"pad_policy"} == set(base.to_dict())


def test_every_part_of_the_lengths_changes_the_fingerprint():
    rows = [("a", 5, None), ("b", 3, None)]
    variants = [
        LengthCache.from_entries([LengthEntry(*row) for row in rows]),
        LengthCache.from_entries([LengthEntry(*row) for row in reversed(rows)]),
        LengthCache.from_entries([LengthEntry("a", 5), LengthEntry("b", 4)]),
        LengthCache.from_entries([LengthEntry("a", 5), LengthEntry("c", 3)]),
        LengthCache.from_entries([LengthEntry("ab", 5), LengthEntry("", 3)]),
        LengthCache.from_entries([LengthEntry("a", 5, "x"), LengthEntry("b", 3, "y")]),
        LengthCache.from_entries([LengthEntry("a", 5, "x"), LengthEntry("b", 3, "x")]),
        LengthCache.from_entries([LengthEntry(*row) for row in rows], tokenizer_hash="t"),
        LengthCache.from_entries([LengthEntry(*row) for row in rows], dataset_hash="d"),
    ]
    assert len({BatchPlan.build(table, BatchingConfig()).fingerprint for table in variants}) == len(variants)


@pytest.mark.parametrize(
    "config", [BatchingConfig(token_budget=16384), BatchingConfig.predictable(token_budget=16384)], ids=str
)
def test_the_order_of_an_epoch_is_unbiased(config):
    """No trend, no memory, no tail of one bucket."""
    view = BatchPlan.build(LengthCache(Ids.rows(100_000), lognormal(100_000)), config).get_epoch(0)
    widths = view.columns.width.astype(float)
    n = len(widths)
    assert abs(np.corrcoef(widths, np.arange(n))[0, 1]) < 4 / n**0.5
    assert abs(np.corrcoef(widths[1:], widths[:-1])[0, 1]) < 4 / n**0.5
    tail, whole = widths[-n // 20 :], widths
    assert abs(tail.mean() - whole.mean()) < 4 * whole.std() / len(tail) ** 0.5
    assert len(np.unique(tail)) > len(np.unique(whole)) / 25


def test_samples_meet_new_company_every_epoch():
    plan = BatchPlan.build(
        LengthCache(Ids.rows(20_000), lognormal(20_000)), BatchingConfig(token_budget=4096), num_epochs=2
    )

    def company(epoch):
        return {
            (a, b)
            for microbatch in plan.iter_epoch(epoch)
            for a, b in zip(microbatch.samples, microbatch.samples[1:], strict=False)
        }

    first, second = company(0), company(1)
    assert len(first & second) < 0.05 * len(first)


def test_sorted_windows_waste_at_most_two_percent_and_packing_almost_nothing():
    table = LengthCache(Ids.rows(100_000), lognormal(100_000))
    assert BatchPlan.build(table, BatchingConfig(token_budget=16384)).get_epoch(0).fill.waste < 0.02
    packed = BatchingConfig(token_budget=16384, packing=PackingConfig(max_length=2048))
    assert BatchPlan.build(table, packed).get_epoch(0).fill.waste < 0.001


def test_a_few_samples_share_one_microbatch_and_small_groups_are_not_cut_up():
    assert len(BatchPlan.build(dict.fromkeys(range(10), 5), BatchingConfig(token_budget=64)).get_epoch(0)) == 1
    entries = [LengthEntry(i, 5, f"group {i % 7}") for i in range(70)]
    assert len(BatchPlan.build(entries, BatchingConfig(token_budget=64)).get_epoch(0)) == 7


def test_fixed_shapes_are_few():
    table = LengthCache(Ids.rows(20_000), lognormal(20_000))
    plan = BatchPlan.build(table, BatchingConfig.predictable(token_budget=16384, num_buckets=8))
    shapes = {microbatch.shape for microbatch in plan.get_epoch(0)}
    assert plan.buckets is not None
    assert {width for _, width in shapes} <= set(plan.buckets.widths)
    assert len(shapes) <= 2 * 8  # a full one and a short one per bucket


def test_an_epoch_is_a_sequence_that_for_and_async_for_walk_alike():
    view = BatchPlan.build({i: i % 9 + 1 for i in range(50)}, BatchingConfig(token_budget=20)).iter_epoch(0)

    async def collect():
        return [microbatch async for microbatch in view]

    assert asyncio.run(collect()) == list(view) == [view[i] for i in range(len(view))] == view[:]
    assert view[-1] == view[len(view) - 1]
    with pytest.raises(IndexError, match=f"microbatch {len(view)} of {len(view)}"):
        view[len(view)]


def test_the_builder_keeps_hashes():
    plan = BatchPlanBuilder({"a": 1}, BatchingConfig(), dataset_hash="d", tokenizer_hash="t").build(num_epochs=2)
    assert (plan.table.dataset_hash, plan.table.tokenizer_hash, plan.num_epochs) == ("d", "t", 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"token_budget": 0}, "token_budget must be at least 1, got 0"),
        ({"bucket_edges": (256, 128)}, "must ascend"),
        ({"bucket_edges": (-5,)}, "must be positive"),
        ({"bucket_edges": (128, 8192)}, "bucket edge 8192 is above the longest sample that fits, 4096"),
        ({"bucket_edges": (128,), "num_buckets": 2}, "not both"),
        ({"pad_policy": "pad_to_bucket"}, "needs buckets"),
        ({"packing": PackingConfig(), "num_buckets": 2}, "packed rows need no buckets"),
        ({"packing": PackingConfig(max_length=8192)}, "packed rows of 8192 tokens do not fit the token budget of 4096"),
        (
            {"overflow": "trunc"},
            "overflow must be one of error, skip, truncate, split, got 'trunc'. Did you mean \"truncate\"?",
        ),
        ({"remainder": "keep"}, "remainder must be one of"),
        ({"window": 0}, "window must be at least 1"),
        ({"microbatches_per_step": 0}, "microbatches_per_step must be at least 1"),
        ({"pad_to_multiple": 5000}, "pad_to_multiple 5000 is above token_budget 4096"),
    ],
)
def test_options_that_cannot_work_are_refused(options, message):
    with pytest.raises(OptionError) as caught:
        BatchingConfig(**options)
    assert message in str(caught.value)


def test_unknown_options_are_refused_with_a_suggestion():
    with pytest.raises(OptionError, match=r"unknown option 'token_buget'\. Did you mean \"token_budget\"\?"):
        BatchingConfig.from_dict({"token_buget": 1})


def test_presets_are_what_they_say():
    assert BatchingConfig.predictable().mode is BatchingMode.PREDICTABLE
    assert BatchingConfig.predictable().num_buckets == 8
    assert BatchingConfig.predictable(bucket_edges=(5,)).num_buckets is None
    assert BatchingConfig.throughput(token_budget=9).mode is BatchingMode.THROUGHPUT
    config = BatchingConfig.predictable(token_budget=77, packing=None)
    assert BatchingConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_no_samples_and_no_epochs_are_refused():
    with pytest.raises(DataError, match="the length table is empty"):
        BatchPlan.build({}, BatchingConfig())
    with pytest.raises(OptionError, match="num_epochs must be an integer of at least 1, got 0"):
        BatchPlan.build({"a": 1}, BatchingConfig(), num_epochs=0)
    with pytest.raises(OptionError, match="epoch 1 does not exist: the plan has epochs 0 to 0"):
        BatchPlan.build({"a": 1}, BatchingConfig()).get_epoch(1)
