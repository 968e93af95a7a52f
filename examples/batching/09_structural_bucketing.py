"""Structural bucketing: nested samples share a batch only with samples of the same structure.

A sample here is a history: its older parts are compression stages, none to three of them, and its latest part is the
context. Samples of different depth have different structures. Padding them to the deepest would add dummy stages;
batching them by structure pads only inside real stages.
"""

import json
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
from torch.utils.data import DataLoader

from brim import (
    BatchingConfig,
    BatchPlan,
    BucketSampler,
    MismatchError,
    collate_compressed_batch,
    nested_collate,
    open_nested,
    write_nested,
)
from brim.data import axes_by_name

random = np.random.default_rng(0)


def stretch(steps: int) -> dict[str, np.ndarray]:
    return {
        "states": random.integers(0, 9, (steps, 2)),
        "actions": random.integers(0, 5, steps),
        "rewards": random.random(steps),
    }


def history(number: int) -> dict:
    depth = int(random.integers(0, 4))
    return {
        "id": f"h{number}",
        "compression_depth": depth,
        "num_compression_stages": depth,
        "compression_stages": [stretch(int(random.integers(20, 41))) for _ in range(depth)],
        "context": stretch(int(random.integers(10, 41))),
    }


def main(directory: Path) -> None:
    # 1. A file of nested samples and its structures. Lengths are read from the file's index, without reading any array.
    write_nested(directory / "histories.h5", (history(number) for number in range(2000)))
    dataset = open_nested(directory / "histories.h5")
    table = dataset.table
    print(f"{len(dataset)} samples with {len(table.group_names)} structures: {', '.join(table.group_names)}")
    print(f"the deepest: {table.source['structures'][-1]['structure']}")
    print(f"ragged along {', '.join(table.source['structures'][-1]['axes'])}")

    # 2. Batches of at most 32 samples, or of at most 4096 steps with padding. Every sample is in exactly one of them.
    for options in ({"batch_size": 32}, {"token_budget": 4096}):
        sampler = BucketSampler(dataset, **options)
        rows = list(sampler)
        assert Counter(row for batch in rows for row in batch) == Counter(range(2000))
        print(f"{options}: {len(rows)} batches, {sampler.plan.get_epoch(0).fill} full, every sample once")

    # 3. The cost of mixing structures instead: random batches of 32 samples, each padded to all stages of the batch.
    # [samples, axes], 0 where a sample has no such stage
    mixed = random.permutation(np.stack(list(axes_by_name(table).values()), axis=1))
    batches = [mixed[start : start + 32] for start in range(0, 2000, 32)]
    paid = sum(len(batch) * int(batch.max(axis=0).sum()) for batch in batches)
    dummy = sum(int((batch == 0).sum(axis=0) @ batch.max(axis=0)) for batch in batches)
    print(f"mixed: {mixed.sum() / paid:.1%} full; {dummy / paid:.1%} of all steps are in dummy stages")

    # 4. In a loader, with worker processes. Each worker opens the file, and batches do not depend on the number of
    # workers.
    sampler = BucketSampler(dataset, token_budget=4096)
    batches = list(DataLoader(dataset, batch_sampler=sampler, collate_fn=collate_compressed_batch, num_workers=2))
    for batch in batches:
        assert len(batch["compression_stages"]) == batch["num_compression_stages"]
        for stage in (*batch["compression_stages"], batch["context"]):
            assert stage["actions"].shape[1] == int(stage["lengths"].max())  # padded to the longest, and no further
            assert stage["mask"].sum(dim=1).tolist() == stage["lengths"].tolist()
    batch = max(batches, key=lambda batch: batch["num_compression_stages"])
    print(f"Batch compression depth: {batch['num_compression_stages']}")
    print(f"Stage 0 shape: {tuple(batch['compression_stages'][0]['states'].shape)}")

    # 5. Stopped after three batches and resumed, also in another process: the other batches follow in the same order.
    state = json.loads(json.dumps(BucketSampler(dataset, token_budget=4096).state_dict(done=3)))
    again = BucketSampler(dataset, token_budget=4096)
    again.load_state_dict(state)
    rest = list(DataLoader(dataset, batch_sampler=again, collate_fn=collate_compressed_batch))
    assert [batch["id"] for batch in rest] == [batch["id"] for batch in batches[3:]]
    print(f"resumed after 3 batches: the other {len(rest)} follow in the same order")

    # 6. Ranks: shards of one plan, with equally many batches on each.
    ranks = [BucketSampler(dataset, token_budget=4096, rank=rank, world_size=3) for rank in range(3)]
    (each,) = {len(rank) for rank in ranks}
    assert Counter(row for rank in ranks for rows in rank for row in rows) == Counter(range(2000))
    print(f"3 ranks: {each} batches each, every sample once over all of them")

    # 7. Collating samples of different structures is an error that names two of them.
    shallow = next(sample for sample in dataset if not sample["compression_stages"])
    deep = next(sample for sample in dataset if sample["compression_stages"])
    try:
        nested_collate([shallow, deep])
    except MismatchError as error:
        print(f"refused: {error}")

    # 8. The same from lengths alone, as `brim lengths build -d histories.h5` and `brim plan build` do it.
    plan = BatchPlan.build(table, BatchingConfig(token_budget=4096))
    assert [microbatch.indices.tolist() for microbatch in plan.get_epoch(0)] == list(
        BucketSampler(dataset, token_budget=4096)
    )
    print("a plan from the lengths holds the same batches")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
