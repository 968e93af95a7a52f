"""Batch plans: every batch of a run, decided before it starts.

A plan is a pure function of lengths, options and seed. It is saved as a directory, which can be archived with the run,
verified against the data, sharded over ranks, and resumed from any microbatch.
"""

import tempfile
from pathlib import Path

import numpy as np

from brim import (
    BatchingConfig,
    BatchPlan,
    BatchPlanBuilder,
    LengthCache,
    MismatchError,
    compute_batch_fingerprint,
    verify_batch_fingerprint,
    verify_plan,
)

# 1. Build. The hashes of data and tokenizer become part of the plan's fingerprint.
lengths = {
    f"s{i}": int(n) for i, n in enumerate(np.clip(np.random.default_rng(0).lognormal(5, 0.8, size=5000), 4, 2048))
}
config = BatchingConfig.throughput(token_budget=8192, seed=7)
plan = BatchPlanBuilder(lengths, config, dataset_hash="data-1", tokenizer_hash="byte").build(num_epochs=3)
first = plan.get_epoch(0)
print(
    f"{plan.counts.samples} samples; epoch 0 has {len(first)} microbatches, fill {first.fill}; fingerprint "
    f"{plan.fingerprint[:8]}"
)

with tempfile.TemporaryDirectory() as directory:
    # 2. Save and load. Loading reads plan.json only; columns are mapped, and checked when they are first used.
    folder = Path(directory, "plan")
    plan.save(folder)
    loaded = BatchPlan.load(folder)
    assert loaded.fingerprint == plan.fingerprint
    assert all(list(loaded.iter_epoch(epoch)) == list(plan.iter_epoch(epoch)) for epoch in range(3))
    print(f"saved and loaded: {', '.join(sorted(path.name for path in folder.iterdir()))}")
    print("the loaded plan holds the same microbatches in the same order")

    # 3. Shards. Every rank gets equally many microbatches, and all ranks together get every sample once.
    shards = [loaded.shard(rank, 4) for rank in range(4)]
    for epoch in range(3):
        seen = [id for shard in shards for microbatch in shard.iter_epoch(epoch) for id in microbatch.samples]
        assert sorted(seen) == sorted(lengths)
    assert len({shard.num_microbatches(0) for shard in shards}) == 1
    print(
        f"4 ranks take {shards[0].num_microbatches(0)} microbatches each, and see every sample exactly once per epoch"
    )

    # 4. Resume. `iter_from` starts at the given microbatch without iterating over the earlier ones.
    whole_run = list(plan.iter_from(0))
    done = next(number for number, (epoch, index, _) in enumerate(whole_run) if (epoch, index) == (1, 30))
    rest = list(BatchPlan.load(folder).iter_from(1, 30))
    assert rest == whole_run[done:]
    print(f"from epoch 1, microbatch 30, the run resumes with its last {len(rest)} of {len(whole_run)} microbatches")

    # 5. Fingerprints of batches: keep one in the repository, and a test notices when the batches change.
    expected = compute_batch_fingerprint(plan.iter_epoch(0), config)
    same, words = verify_batch_fingerprint(loaded.iter_epoch(0), expected, config)
    assert same
    print(
        f"\nepoch 0 is {expected.fingerprint[:8]} ({expected.num_batches} batches, {expected.total_tokens} tokens): "
        f"{words}"
    )

    other = BatchPlan.build(plan.table, BatchingConfig.throughput(token_budget=8192, seed=8))
    same, words = verify_batch_fingerprint(other.iter_epoch(0), expected, other.config)
    assert not same
    print(f"with another seed: {words}")

    # 6. Verify that the plan belongs to these lengths and options. Each difference is reported on its own line.
    assert verify_plan(loaded, plan.table, config) == []
    print("\nverified: the plan on disk is the plan for these lengths and options, to the last number")

    edited = {**lengths, "s5": lengths["s5"] + 10, "new": 99}
    del edited["s6"]
    changed = LengthCache.from_lengths(edited, dataset_hash="data-2", tokenizer_hash="byte")
    differences = verify_plan(loaded, changed, BatchingConfig.throughput(token_budget=4096, seed=7))
    assert {difference.kind for difference in differences} == {"added", "removed", "longer", "data", "config"}
    print("against other lengths and options:")
    for difference in differences:
        print(f"  {difference.message}")

    # 7. A position in one plan is refused by another plan.
    position = plan.get_epoch(1)[30].after
    try:
        other.iter_from(position)
    except MismatchError as error:
        print(f"refused: {error}")
    else:
        raise AssertionError("a position entered a foreign plan")

    # 8. One flipped bit in a column is found.
    file = folder / "epoch-0000.brim"
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)
    damage = verify_plan(BatchPlan.load(folder))
    assert [difference.kind for difference in damage] == ["damaged"]
    print(f"damage is found: {damage[0].message.replace(directory, '').lstrip('/')}")
