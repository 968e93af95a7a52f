"""Token-budget batching: from samples to full batches.

A batch is filled up to a number of tokens, not to a number of samples, and holds samples of similar length. Planning
reads only the lengths: tokens are not read again until a batch is made.
"""

import asyncio
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

from brim import BatchingConfig, BatchMetrics, BatchPlan, BucketSpec, Fill, LengthCache, Sample, TokenBudgetBatchSampler

BUDGET = 4096

# 1. Samples: an id, tokens, and a mask of the trained-on tokens. Here the first third is a prompt, which is not trained
# on. Lengths are long-tailed, as they are in instruction data.
rng = np.random.default_rng(0)
samples: list[Sample] = []
for number, length in enumerate(np.clip(rng.lognormal(5.0, 0.8, size=2000), 4, 2048).astype(int)):
    loss_mask = np.arange(length) >= length // 3
    samples.append(Sample(id=f"s{number}", input_ids=rng.integers(0, 256, size=length), loss_mask=loss_mask))
print(
    f"samples: {len(samples)}; the first has {samples[0].length} tokens, {samples[0].num_loss_tokens} of them "
    "trained on"
)

# 2. The length cache. For a file of samples, `brim lengths build` makes one. JSONL is for reading, columns (.brim) are
# mapped into memory.
cache = LengthCache.from_lengths({sample.id: sample.length for sample in samples})
with tempfile.TemporaryDirectory() as directory:
    for name in ("lengths.jsonl", "lengths.brim"):
        path = Path(directory, name)
        cache.save(path)
        loaded = LengthCache.load(path)
        assert loaded.fingerprint == cache.fingerprint
        assert loaded["s7"] == samples[7].length
        print(f"saved and loaded {name}: {path.stat().st_size:,} bytes, fingerprint {loaded.fingerprint[:8]}")

# 3. Buckets: a sample is padded to the end of its bucket, so three edges and a maximum make four widths.
bucket_spec = BucketSpec(edges=(128, 256, 512), overflow_max=2048)
sampler = TokenBudgetBatchSampler(lengths=cache, bucket_spec=bucket_spec, token_budget=BUDGET, seed=42)
batches = list(sampler.iter_epoch(0))
print(
    f"first batch: {batches[0].batch_size} samples, padded to {batches[0].max_length}, {batches[0].token_count} tokens"
)

# 4. The guarantees: every sample once, no batch above the budget, one bucket in a batch.
seen = Counter(id for batch in batches for id in batch.sample_ids)
assert seen == Counter(sample.id for sample in samples)
print(f"every sample is in exactly one of {len(batches)} batches")

assert max(batch.padded_token_count for batch in batches) <= BUDGET
assert all(bucket_spec.get_bucket_id(cache[id]) == batch.bucket_id for batch in batches for id in batch.sample_ids)
print(f"no batch holds more than {BUDGET} tokens, padding included, or samples of two buckets")

again = TokenBudgetBatchSampler(dict(reversed(list(cache.items()))), bucket_spec, BUDGET, seed=42)
assert list(again.iter_epoch(0)) == batches
assert list(sampler.iter_epoch(1)) != batches
print("the same seed gives the same batches, whatever the order of the dict; another epoch gives others")


async def collect() -> list[object]:
    return [batch async for batch in sampler.iter_epoch(0)]


assert asyncio.run(collect()) == batches
print("`for` and `async for` give the same batches")

# 5. Metrics: how much of the batches is padding, by bucket.
metrics = sampler.compute_metrics(0)
print(
    f"\n{metrics.num_batches} batches of {metrics.avg_batch_size:.1f} samples; {metrics.padding_waste:.1%} of the "
    "slots are padding"
)
for bucket in metrics.bucket_stats:
    low, high = bucket_spec.get_bucket_range(bucket.bucket_id)
    print(f"  lengths {low:>4} to {high:>4}: {bucket.sample_count:>4} samples, fill {bucket.fill}")

# 6. The same samples, grouped in other ways. Fixed shapes suit models that compile a program for each shape; sorted
# windows pad least. `BatchPlan` does both, and the sampler above is an interface to it.
plans = {
    "fixed shapes, edges given": BatchingConfig.predictable(
        token_budget=BUDGET, bucket_edges=(128, 256, 512), overflow_max=2048
    ),
    "fixed shapes, 8 chosen": BatchingConfig.predictable(token_budget=BUDGET, num_buckets=8),
    "sorted windows": BatchingConfig.throughput(token_budget=BUDGET),
}
lengths = [sample.length for sample in samples]
naive = sum(
    (Fill(sum(lengths[i : i + 16]), len(lengths[i : i + 16]) * max(lengths[i : i + 16])) for i in range(0, 2000, 16)),
    Fill(),
)

print(f"\n{'grouping':<28}{'fill':>8}{'batches':>9}{'widths':>8}")
print(f"{'16 samples as they come':<28}{naive!s:>8}{2000 // 16:>9}")
fills: dict[str, Fill] = {}
for name, config in plans.items():
    result = BatchMetrics.of(BatchPlan.build(cache, config).iter_epoch(0))
    widths = {width for _, width in result.shape_histogram.shapes}
    fills[name] = result.fill
    print(f"{name:<28}{result.fill!s:>8}{result.num_batches:>9}{len(widths):>8}")

assert fills["fixed shapes, edges given"] == metrics.fill
ranked = [naive, *fills.values()]
assert [fill.ratio for fill in ranked] == sorted(fill.ratio for fill in ranked)
print("each line is fuller than the one above it; sorted windows are the fullest")
