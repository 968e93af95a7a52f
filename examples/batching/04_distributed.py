"""Distributed training: one plan, any number of ranks.

An epoch is one sequence of microbatches, the global order. Ranks take turns at it in rounds, so after every round the
microbatches that were trained on are a prefix of that sequence, and one number is the position of the run, on 8 ranks
as on 6. The ranks here are a loop; in a real run every process does the same for its own rank, and nothing has to be
sent between them.
"""

import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

from brim import (
    BatchingConfig,
    BatchPlan,
    CheckpointPosition,
    DistributedConfig,
    MicrobatchSpec,
    interleave_microbatches,
    shard_batch_plan,
)
from brim.plan import save_shards

lengths = {f"s{i}": int(n) for i, n in enumerate(np.clip(np.random.default_rng(0).lognormal(6, 1, size=4000), 4, 8192))}
plan = BatchPlan.build(lengths, BatchingConfig.throughput(token_budget=16384), num_epochs=2)

# 1. Rank and world size come from the launcher's environment variables; without a launcher there is one process. An
# incomplete set of variables is an error.
for launcher, variables in {
    "torchrun": {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"},
    "SLURM": {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_NTASKS_PER_NODE": "4"},
    "no launcher": {},
}.items():
    me = DistributedConfig.from_env(variables)  # without an argument: os.environ
    print(f"{launcher}: rank {me.rank} of {me.world_size}")

# 2. Shards. Rank r takes the microbatches r, r + 8, r + 16, ... of the global order, and all ranks take equally many:
# where the last round is short, the others get a null microbatch, which counts for nothing.
shards = [shard_batch_plan(plan, DistributedConfig(rank=rank, world_size=8)) for rank in range(8)]
taken = [list(shard.iter_epoch(0)) for shard in shards]
total = plan.num_microbatches(0)
for rank, microbatches in enumerate(taken):
    assert [m.index for m in microbatches if not m.is_null] == list(range(rank, total, 8))
nulls = sum(m.is_null for microbatches in taken for m in microbatches)
assert {len(microbatches) for microbatches in taken} == {-(-total // 8)}
assert Counter(id for microbatches in taken for m in microbatches for id in m.samples) == Counter(lengths.keys())
print(
    f"\n{total} microbatches on 8 ranks: {len(taken[0])} steps on every rank, {nulls} null microbatches, every "
    "sample exactly once"
)


# 3. Cost. Ranks wait for the slowest of a round, so a round deals microbatches that cost nearly the same. Cost counts
# slots, and attention, which is quadratic in the length. The last round takes what is left over.
def waiting(costs: np.ndarray) -> float:
    """The share of the time that ranks wait; costs is [rounds, ranks]."""
    return 1 - costs.sum() / (costs.max(axis=1).sum() * costs.shape[1])


epochs = [shard.get_epoch(0) for shard in shards]
dealt = np.stack([epoch.columns.take(epoch.places).cost() for epoch in epochs], axis=1)[:-1]
as_they_come = plan.get_epoch(0).columns.cost()[: dealt.size].reshape(-1, 8)
assert waiting(dealt) < waiting(as_they_come)
print(f"ranks wait {waiting(dealt):.1%} of the time; dealt without regard to cost, {waiting(as_they_come):.1%}")


# 4. Killed on 8 ranks, resumed on 6. `microbatch.after` is the position after a step, the same on every rank; it
# carries the plan's fingerprint and the size of a step, so the steps stay what they would have been: 8 microbatches, on
# 6 ranks in two rounds.
def run(
    ranks: list[BatchPlan], start: CheckpointPosition | int, stop_after: int | None = None
) -> list[tuple[int, list[MicrobatchSpec]]]:
    """The rounds of a run: the epoch, and the microbatches that the ranks train at the same time."""
    rounds: list[tuple[int, list[MicrobatchSpec]]] = []
    for together in zip(*(rank.iter_from(start) for rank in ranks), strict=True):
        rounds.append((together[0][0], [microbatch for _, _, microbatch in together]))
        if len(rounds) == stop_after:
            break
    return rounds


with tempfile.TemporaryDirectory() as directory:
    folder, checkpoint = Path(directory, "plan"), Path(directory, "position.json")
    plan.save(folder)
    before = run(shards, 0, stop_after=10)
    _, last = before[-1]
    replace(last[0].after, global_step=10).save(checkpoint)

    position = CheckpointPosition.load(checkpoint)
    loaded = BatchPlan.load(folder)
    after = run([loaded.resume(position, rank, 6) for rank in range(6)], position)
    print(
        f"\nkilled on 8 ranks after {position.global_step} steps, at microbatch {position.microbatch_idx} of epoch "
        f"{position.epoch}"
    )

    for epoch in range(2):
        seen = Counter(id for e, together in before + after if e == epoch for m in together for id in m.samples)
        assert seen == Counter(lengths.keys())
    print("resumed on 6 ranks to the end of epoch 1: nothing repeated, nothing skipped")

    unbroken = run(shards, 0)
    assert [m.samples for _, together in before + after for m in together if not m.is_null] == [
        m.samples for _, together in unbroken for m in together if not m.is_null
    ]
    print("the microbatches come in the order of the run on 8 ranks that was never killed")

    # 5. Shards on disk, one directory for each rank. The same from the shell: brim plan shard -p plan/ -w 8 -o shards/
    # (or: lazarus data batchplan shard -p plan/ -w 8 -o shards/).
    save_shards(BatchPlan.load(folder), Path(directory, "shards"), 8)
    mine = BatchPlan.load(Path(directory, "shards", "rank_3"))
    assert list(mine.iter_epoch(1)) == list(shards[3].iter_epoch(1))
    print(
        f"\nwrote {', '.join(sorted(path.name for path in Path(directory, 'shards').iterdir()))}; rank_3 holds the "
        "share of rank 3"
    )

# 6. Mixing buckets by hand: `interleave_microbatches` spreads every bucket evenly over a list, so any stretch of it has
# the same mix.
fixed = BatchPlan.build(lengths, BatchingConfig.predictable(token_budget=16384, num_buckets=4))
by_bucket = sorted(fixed.iter_epoch(0), key=lambda m: m.bucket_id)
mixed = interleave_microbatches(by_bucket)
print(f"\nbuckets of 24 microbatches in order: {''.join(str(m.bucket_id) for m in by_bucket[:24])}")
print(f"interleaved:                         {''.join(str(m.bucket_id) for m in mixed[:24])}")
whole = Counter(m.bucket_id for m in mixed)
half = Counter(m.bucket_id for m in mixed[: len(mixed) // 2])
assert all(abs(half[bucket] - whole[bucket] / 2) <= 1 for bucket in whole)
print("the first half has half of every bucket")
