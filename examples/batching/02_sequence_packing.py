"""Sequence packing: several samples in one row, without attention between them.

A row of fixed length holds whole samples end to end. Segment ids say which token belongs to which sample (0 is
padding), positions restart with every sample, and the attention mask does not cross from one to the next: packed
training equals unpacked training.
"""

from collections import Counter

import numpy as np

from brim import (
    BatchingConfig,
    BatchMetrics,
    BatchPlan,
    PackingConfig,
    PackingMode,
    Sample,
    compute_packing_metrics,
    create_segment_attention_mask,
    pack_sequences,
)

ROW = 512

# 1. Samples, most of them much shorter than a row.
rng = np.random.default_rng(0)
samples: list[Sample] = []
for number, length in enumerate(np.clip(rng.lognormal(4.3, 0.7, size=1000), 4, ROW).astype(int)):
    samples.append(Sample(id=number, input_ids=rng.integers(1, 1000, size=length), loss_mask=np.ones(length, np.uint8)))
tokens = sum(sample.length for sample in samples)
print(f"{len(samples)} samples, {tokens} tokens; one per row of {ROW} would fill {tokens / (len(samples) * ROW):.1%}")

# 2. The modes, and a lower bound: no packing needs fewer rows.
print(f"\n{'mode':<12}{'rows':>6}{'samples per row':>18}{'fill':>9}{'above bound':>13}")
packed = {mode: pack_sequences(samples, PackingConfig(max_length=ROW, mode=mode)) for mode in PackingMode}
for mode, rows in packed.items():
    metrics = compute_packing_metrics(rows)  # PackingMetrics
    print(f"{mode.name:<12}{metrics.num_rows:>6}{metrics.packing_ratio:>18.2f}{metrics.fill!s:>9}{metrics.gap:>13.2%}")
    assert metrics.lower_bound <= metrics.num_rows < len(samples) / 4
assert len(packed[PackingMode.OPTIMAL]) <= len(packed[PackingMode.BEST_FIT]) <= len(packed[PackingMode.FIRST_FIT])
print(
    "FIRST_FIT keeps the order of arrival, for streams; BEST_FIT and GREEDY place the longest first and need fewer "
    "rows;\nOPTIMAL searches for patterns of whole rows, and AUTO does so where that may save more than 0.5% of them"
)

# 3. Every sample is in exactly one row, whole.
rows = packed[PackingMode.BEST_FIT]
assert Counter(id for row in rows for id in row.sample_ids) == Counter(sample.id for sample in samples)
for row in rows:
    for segment, id in enumerate(row.sample_ids, 1):
        inside = row.segment_ids == segment
        assert np.array_equal(row.input_ids[inside], samples[id].input_ids)
        assert np.array_equal(row.positions[inside], np.arange(samples[id].length))
        assert row.loss_mask[inside][0] == 0  # after the usual shift, the sample before would predict this target
print(
    f"\nevery sample is in exactly one of {len(rows)} rows, whole; positions restart, and no sample learns to "
    "predict the next"
)

# 4. The attention mask of a small row. "#" is an allowed pair: the query is the line, the key is the column.
small = [Sample(id=name, input_ids=[7] * len(name), loss_mask=[1] * len(name)) for name in ("aaaa", "bbb", "cc")]
(row,) = pack_sequences(small, PackingConfig(max_length=11))
mask = create_segment_attention_mask(row.segment_ids)
print(f"\na row of {row.num_segments} samples {row.sample_ids}, fill {row.fill}")
print(
    f"segment_ids {row.segment_ids}\npositions   {row.positions}\nloss_mask   {row.loss_mask}\ncu_seqlens  "
    f"{row.cu_seqlens}"
)
for line in mask:
    print("  " + "".join("#" if allowed else "." for allowed in line))

# 5. No mask crosses a segment, looks ahead, or touches padding.
for row in rows:
    query, key = np.nonzero(create_segment_attention_mask(row.segment_ids))
    assert (row.segment_ids[query] == row.segment_ids[key]).all()
    assert (row.segment_ids[key] > 0).all()
    assert (key <= query).all()
print(f"in all {len(rows)} masks no token attends to another sample, to a later token or to padding")


# 6. So attention over a packed row gives each sample the same result as attention over the sample alone.
def attend(hidden: np.ndarray, mask: np.ndarray) -> np.ndarray:
    scores = hidden @ hidden.T / np.sqrt(hidden.shape[1]) + mask
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True) @ hidden


row = max(rows, key=lambda row: row.num_segments)
hidden = rng.normal(size=(ROW, 16))
together = attend(hidden, create_segment_attention_mask(row.segment_ids, kind="additive"))
for start, end in zip(row.cu_seqlens, row.cu_seqlens[1:], strict=False):
    alone = attend(hidden[start:end], create_segment_attention_mask(np.ones(end - start, np.int32), kind="additive"))
    assert np.allclose(together[start:end], alone)
print(f"attention over a row of {row.num_segments} samples equals attention over each of them alone")

# 7. In a plan, packing comes first and the token budget second: rows of 512, eight to a microbatch.
lengths = {sample.id: sample.length for sample in samples}
padded = BatchMetrics.of(
    BatchPlan.build(lengths, BatchingConfig.predictable(token_budget=8 * ROW, bucket_edges=(ROW,))).iter_epoch(0)
)
plan = BatchPlan.build(lengths, BatchingConfig(token_budget=8 * ROW, packing=PackingConfig(max_length=ROW)))
planned = BatchMetrics.of(plan.iter_epoch(0))
assert planned.fill.used == padded.fill.used == tokens
print(
    f"\npadded to {ROW}: {padded.num_batches} microbatches, fill {padded.fill}; packed: {planned.num_batches}, fill "
    f"{planned.fill}"
)
print(f"packing needs {1 - planned.fill.slots / padded.fill.slots:.0%} fewer slots for the same tokens")
