"""Tables and configs that the plan tests share."""

import numpy as np
from hypothesis import strategies as st

from brim.data.lengths import LengthCache, LengthEntry
from brim.plan.config import BatchingConfig, PackingConfig, PackingMode, PadPolicy

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
        "microbatches_per_step": draw(st.none() | st.integers(1, 7)),
        "overflow_max": draw(st.none() | st.integers(LONGEST, 64)),
    }
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
