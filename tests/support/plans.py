"""Tables and configs that the plan tests share."""

import json

import numpy as np
from hypothesis import strategies as st

from brim.data.lengths import LengthCache, LengthEntry
from brim.plan.config import BatchingConfig, PackingConfig, PackingMode, PadPolicy
from brim.plan.cost import CostModel
from brim.plan.position import CheckpointPosition

LONGEST = 60


@st.composite
def tables(draw, max_size=80):
    lengths = draw(st.lists(st.integers(0, LONGEST), min_size=1, max_size=max_size))
    groups = draw(st.none() | st.lists(st.sampled_from(["a", "b", "c"]), min_size=len(lengths), max_size=len(lengths)))
    return LengthCache.from_lengths(
        LengthEntry(f"s{i}", length, groups[i] if groups else None) for i, length in enumerate(lengths)
    )


@st.composite
def configs(draw, **fixed):
    budget = draw(st.integers(LONGEST + 8, 400))
    options = {
        "token_budget": budget,
        "seed": draw(st.integers(0, 5)),
        "pad_to_multiple": draw(st.sampled_from([1, 1, 8])),
        "max_sequences": draw(st.none() | st.integers(1, 5)),
        "window": draw(st.none() | st.integers(1, 30)),
        "window_padding": draw(st.sampled_from([0.01, 0.0, 0.2])),
        "cost": draw(st.sampled_from([None, CostModel(per_square=0.0), CostModel(per_square=1 / 64)])),
        "microbatches_per_step": draw(st.none() | st.integers(1, 7)),
        "overflow_max": draw(st.none() | st.integers(LONGEST, 64)),
    }
    if options["window"] is not None:
        del options["window_padding"]
    way = draw(st.sampled_from(["windows", "edges", "chosen", "padded", "packed"]))
    if way == "edges":
        options["bucket_edges"] = tuple(sorted(draw(st.sets(st.integers(1, LONGEST), max_size=4))))
    if way == "chosen":
        options["num_buckets"] = draw(st.integers(1, 5))
    if way in ("edges", "chosen") and draw(st.booleans()):
        options["pad_policy"] = PadPolicy.PAD_TO_BUCKET
    if way == "packed":
        options["packing"] = PackingConfig(
            max_length=draw(st.integers(LONGEST, 64)),
            mode=draw(st.sampled_from(list(PackingMode))),
            max_sequences=draw(st.none() | st.integers(1, 4)),
            pad_to_max=draw(st.booleans()),
        )
    return BatchingConfig(**{**options, **fixed})


def lognormal(n, *, seed=0, longest=2048):
    random = np.random.default_rng(seed)
    return np.clip(np.exp(np.log(300) + random.standard_normal(n)), 1, longest).astype(np.int32)


def tokens_seen(microbatches, table):
    """How often each token of each sample is seen."""
    seen = [np.zeros(length, int) for length in table.lengths.tolist()]
    rows = np.zeros(len(table), int)
    for microbatch in microbatches:
        for row, start, length in zip(microbatch.indices, microbatch.starts, microbatch.lengths, strict=True):
            seen[row][start : start + length] += 1
            rows[row] += 1
    return seen, rows


def run_killed(plan, world_sizes, stops):
    """Train, get killed after so many rounds, continue on another number of ranks from the saved position; every sample
    in order seen.
    """
    seen, position, rounds_left = [], None, list(stops)
    for world_size in world_sizes:
        shares = [
            plan.shard(rank, world_size) if position is None else plan.resume(position, rank, world_size)
            for rank in range(world_size)
        ]
        streams = [share.iter_from(0) if position is None else share.iter_from(position) for share in shares]
        stop = rounds_left.pop(0) if rounds_left else None
        for number, round in enumerate(zip(*streams, strict=True)):
            if number == stop:
                break
            assert len({(epoch, index) for epoch, index, _ in round}) == 1
            assert len({microbatch.after for _, _, microbatch in round}) == 1
            seen += [(epoch, microbatch.index) for epoch, _, microbatch in round if not microbatch.is_null]
            position = CheckpointPosition(**json.loads(json.dumps(vars(round[0][2].after))))
        else:
            break
    return seen
