"""The other names of the planner: sampler, metrics, fingerprints, ranks from the environment."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.plans import configs, tables

from brim import (
    BatchingConfig,
    BatchMetrics,
    BatchPlan,
    BucketSpec,
    DistributedConfig,
    LengthError,
    OptionError,
    TokenBudgetBatchSampler,
    compute_batch_fingerprint,
    interleave_microbatches,
    shard_batch_plan,
    verify_batch_fingerprint,
)


def test_the_quick_start_runs_as_written(capsys):
    from brim import (
        BucketSpec,
        TokenBudgetBatchSampler,
    )

    async def main():
        # Sample lengths (normally from tokenized data)
        lengths = {f"s{i}": 100 + i * 10 for i in range(50)}

        # Configure bucketing
        bucket_spec = BucketSpec(
            edges=(128, 256, 512),
            overflow_max=1024,
        )

        # Create sampler
        sampler = TokenBudgetBatchSampler(
            lengths=lengths,
            bucket_spec=bucket_spec,
            token_budget=2048,
            seed=42,
        )

        # Iterate batches
        async for batch in sampler.iter_epoch(epoch=0):
            print(f"Batch: {batch.batch_size} samples, {batch.max_length} max len")

    asyncio.run(main())
    lines = capsys.readouterr().out.splitlines()
    assert sum(int(line.split()[1]) for line in lines) == 50
    assert {int(line.split()[3]) for line in lines} == {128, 256, 512, 1024}


@given(st.lists(st.integers(1, 100), min_size=1, max_size=60), st.integers(100, 400), st.integers(0, 3), st.booleans())
def test_a_sampler_keeps_to_buckets_and_budget_and_loses_nothing(lengths, budget, epoch, drop_last):
    spec = BucketSpec(edges=(10, 40), overflow_max=100)
    sampler = TokenBudgetBatchSampler(
        {f"s{i}": length for i, length in enumerate(lengths)}, spec, budget, drop_last=drop_last
    )
    batches = list(sampler.iter_epoch(epoch))
    ids = [id for batch in batches for id in batch.sample_ids]
    assert len(set(ids)) == len(ids)
    for batch in batches:
        real = [lengths[int(id[1:])] for id in batch.sample_ids]
        assert {spec.get_bucket_id(length) for length in real} == {batch.bucket_id}
        assert batch.max_length == spec.get_bucket_max_length(batch.bucket_id)
        assert batch.padded_token_count == batch.batch_size * batch.max_length <= budget
        assert batch.token_count == sum(real)
    metrics = sampler.compute_metrics(epoch)
    assert metrics.num_rows == len(ids) == len(lengths) - metrics.num_dropped
    assert drop_last or metrics.num_dropped == 0
    assert metrics.num_batches == len(batches) == metrics.shape_histogram.total_batches
    assert metrics.fill.used == sum(batch.token_count for batch in batches)
    assert metrics.efficiency + metrics.padding_waste == pytest.approx(1)
    assert sum(stats.sample_count for stats in metrics.bucket_stats) == len(lengths)
    assert batches == sampler.iter_epoch(epoch)[:]
    assert metrics.summary()["batches"] == len(batches)


def test_a_sampler_refuses_long_samples_or_counts_them():
    spec = BucketSpec(edges=(10,), overflow_max=20)
    with pytest.raises(LengthError, match="sample 'b', with 21"):
        TokenBudgetBatchSampler({"a": 5, "b": 21}, spec, 100)
    sampler = TokenBudgetBatchSampler({"a": 5, "b": 21}, spec, 100, overflow="skip")
    assert (sampler.num_samples, sampler.num_skipped) == (1, 1)
    assert sampler.compute_metrics().num_skipped == 1


def test_a_bucket_wider_than_the_budget_holds_what_fits():
    spec = BucketSpec(edges=(128,), overflow_max=4096)
    sampler = TokenBudgetBatchSampler({"a": 900, "b": 100}, spec, token_budget=1000)
    assert all(batch.padded_token_count <= 1000 for batch in sampler.iter_epoch())
    with pytest.raises(LengthError, match="not fit in 1000 tokens"):
        TokenBudgetBatchSampler({"a": 1001}, spec, token_budget=1000)


@given(tables(), configs())
def test_metrics_count_what_the_plan_holds(table, config):
    view = BatchPlan.build(table, config).get_epoch(0)
    metrics = BatchMetrics.of(view)
    assert metrics.fill == view.fill
    assert metrics.num_batches == len(view)
    assert metrics.num_rows == view.columns.row_ptr[-1]
    assert metrics.shape_histogram.num_shapes == len({microbatch.shape for microbatch in view})
    assert sum(count for _, count in metrics.shape_histogram.most_common()) == len(view)


PLAN = BatchPlan.build({f"s{i}": i % 50 + 1 for i in range(200)}, BatchingConfig(token_budget=256))


def test_a_batch_fingerprint_covers_order_boundaries_and_widths():
    batches = list(PLAN.iter_epoch(0))
    one, two = batches[0], batches[1]
    joined = replace(
        one,
        samples=one.samples + two.samples,
        indices=np.concatenate([one.indices, two.indices]),
        starts=np.concatenate([one.starts, two.starts]),
        lengths=np.concatenate([one.lengths, two.lengths]),
        row_ptr=np.arange(len(one.samples) + len(two.samples) + 1),
    )
    wider = replace(one, max_len=one.max_len + 1)
    other_start = replace(one, starts=one.starts + 1)
    variants = [
        batches,
        batches[::-1],
        [joined, *batches[2:]],
        [wider, *batches[1:]],
        [other_start, *batches[1:]],
        batches[:-1],
        [],
    ]
    assert len({compute_batch_fingerprint(variant).fingerprint for variant in variants}) == len(variants)


def test_verifying_batches_says_how_they_differ():
    batches = list(PLAN.iter_epoch(0))
    expected = compute_batch_fingerprint(batches, PLAN.config)
    assert verify_batch_fingerprint(batches, expected, PLAN.config) == (True, "the batches are the same")
    assert verify_batch_fingerprint(batches, expected.fingerprint)[0]
    assert not verify_batch_fingerprint(batches, "")[0]
    assert not verify_batch_fingerprint(batches, expected)[0]  # no config
    for other, word in ((batches[:-1], "num batches"), (batches[::-1], "fingerprint")):
        ok, message = verify_batch_fingerprint(other, expected, PLAN.config)
        assert not ok
        assert message.startswith(word)
    assert "config hash" in verify_batch_fingerprint(batches, expected, BatchingConfig(seed=9))[1]
    sampler = TokenBudgetBatchSampler({"a": 1, "b": 2}, BucketSpec(edges=(1,), overflow_max=2), 4)
    assert compute_batch_fingerprint(sampler.iter_epoch()).matches(compute_batch_fingerprint(sampler.iter_epoch()))


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0, 1, 0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}, (3, 8, 1, 4)),
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3"}, (3, 8, 3, 4)),
        (
            {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "9"},
            (1, 2, 0, 1),
        ),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_LOCALID": "1", "SLURM_NTASKS_PER_NODE": "2"}, (5, 6, 1, 2)),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "6"}, (5, 6, 0, 1)),
        ({"WORLD_SIZE": "1"}, (0, 1, 0, 1)),
    ],
)
def test_ranks_come_from_torchrun_openmpi_or_slurm(environ, expected):
    config = DistributedConfig.from_env(environ)
    assert (config.rank, config.world_size, config.local_rank, config.local_world_size) == expected
    assert config.is_main == (config.rank == 0)
    assert config.is_distributed == (config.world_size > 1)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"RANK": "3"}, "RANK is 3 but WORLD_SIZE is not set"),
        ({"WORLD_SIZE": "8"}, "WORLD_SIZE is 8 but RANK is not set"),
        ({"WORLD_SIZE": "abc"}, "WORLD_SIZE is abc but RANK is not set"),
        ({"RANK": "x", "WORLD_SIZE": "8"}, "RANK is not a number: 'x'"),
        ({"RANK": "8", "WORLD_SIZE": "8"}, "rank must lie between 0 and world_size - 1 = 7, got 8"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "world_size must be at least 1, got 0"),
    ],
)
def test_incomplete_or_impossible_ranks_are_refused(environ, message):
    with pytest.raises(OptionError, match=message):
        DistributedConfig.from_env(environ)


def test_this_process_gets_its_share(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    share = shard_batch_plan(PLAN)
    assert (share.rank, share.world_size) == (1, 3)
    assert shard_batch_plan(PLAN, DistributedConfig(rank=2, world_size=3)).rank == 2


@given(tables(), configs(num_buckets=4, packing=None, bucket_edges=None), st.integers(1, 4))
def test_interleaving_spreads_every_bucket_evenly(table, config, world_size):
    microbatches = sorted(BatchPlan.build(table, config).get_epoch(0), key=lambda microbatch: microbatch.bucket_id)
    spread = interleave_microbatches(microbatches)
    assert [microbatch.index for microbatch in spread] == list(range(len(microbatches)))
    assert sorted(microbatch.samples for microbatch in spread) == sorted(
        microbatch.samples for microbatch in microbatches
    )
    buckets = [microbatch.bucket_id for microbatch in spread]
    for bucket in set(buckets):
        share = buckets.count(bucket) / len(buckets)
        for end in range(len(buckets)):
            assert abs(buckets[:end].count(bucket) - share * end) <= len(set(buckets))


def test_interleaving_keeps_empty_microbatches_empty():
    views = [PLAN.shard(rank, 64).get_epoch(0) for rank in range(64)]
    spread = interleave_microbatches([microbatch for view in views for microbatch in view])
    assert sum(microbatch.is_null for microbatch in spread) == views[0].deal.nulls > 0
