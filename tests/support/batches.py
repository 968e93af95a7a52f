"""Samples with plans for them, and the definition of a batch that the fast code has to agree with."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from brim import BatchingConfig, BatchPlan, LengthCache, PackingConfig, PackingMode, Sample, TokenStore
from brim.batch.batch import IGNORED
from brim.data.lengths import LengthEntry

ARRAYS = ("tokens", "segment_ids", "positions", "loss_mask", "labels", "cu_seqlens")
LONGEST = 24


class Case(NamedTuple):
    """Samples in the order of the plan's table."""

    plan: BatchPlan
    samples: list[Sample]
    pad_id: int

    @property
    def store(self):
        return TokenStore.from_samples(self.samples, pad_id=self.pad_id)


@st.composite
def cases(draw, shortest=0, max_size=25, max_epochs=2):
    """Padded, packed, split, truncated, skipped, grouped; ids of every kind; a pad id that is a real token too."""
    lengths = draw(st.lists(st.integers(shortest, LONGEST), min_size=1, max_size=max_size))
    kind = draw(st.sampled_from(["rows", "integers", "texts"]))
    some = {
        "rows": None,
        "integers": st.integers(-(2**62), 2**62),
        "texts": st.text(st.sampled_from("aé\0語 "), max_size=5),
    }[kind]
    ids = (
        range(len(lengths))
        if some is None
        else draw(st.lists(some, min_size=len(lengths), max_size=len(lengths), unique=True))
    )
    random = np.random.default_rng(draw(st.integers(0, 99)))
    largest = draw(st.sampled_from([2, 9, 100_000]))
    samples = [
        Sample(id, random.integers(0, largest, n), random.integers(0, 2, n)) for id, n in zip(ids, lengths, strict=True)
    ]
    groups = random.choice(["a", "b"], len(lengths)) if draw(st.booleans()) else [None] * len(lengths)
    entries = [LengthEntry(sample.id, sample.length, group) for sample, group in zip(samples, groups, strict=True)]
    plan = BatchPlan.build(
        LengthCache.from_lengths(entries), draw(configs()), num_epochs=draw(st.integers(1, max_epochs))
    )
    return Case(plan, samples, draw(st.sampled_from([0, 1, 256])))


@st.composite
def configs(draw):
    overflow = draw(st.sampled_from(["error", "truncate", "split"]))
    limit = LONGEST if overflow == "error" else draw(st.integers(5, LONGEST))
    packing = PackingConfig(
        max_length=limit, mode=draw(st.sampled_from(list(PackingMode))), pad_to_max=draw(st.booleans())
    )
    return BatchingConfig(
        token_budget=draw(st.integers(LONGEST + 8, 120)),
        overflow=overflow,
        overflow_max=limit,
        packing=packing if draw(st.booleans()) else None,
        pad_to_multiple=draw(st.sampled_from([1, 4])),
        microbatches_per_step=draw(st.none() | st.integers(1, 3)),
        remainder=draw(st.sampled_from(["null", "repeat"])),
        seed=draw(st.integers(0, 3)),
    )


def naive(microbatch, samples, pad_id, *, flat=False):
    """The arrays of a microbatch, one token after the other."""
    bounds = [0, len(microbatch.lengths)] if flat else microbatch.row_ptr.tolist()
    width = max(microbatch.token_count, 1) if flat else microbatch.max_len
    if microbatch.is_null:
        bounds, width = [0, 0], 1
    rows = []
    for first, last in pairwise(bounds):
        row = []  # (token, segment, position, learned)
        for number, sequence in enumerate(range(first, last), 1):
            sample, start = samples[microbatch.indices[sequence]], microbatch.starts[sequence]
            for position in range(microbatch.lengths[sequence]):
                learned = sample.loss_mask[start + position] if position else 0
                row.append((sample.input_ids[start + position], number, position, learned))
        rows.append(row + [(pad_id, 0, 0, 0)] * (width - len(row)))
    grid = np.array(rows, np.int64).reshape(len(rows), width, 4)
    tokens, segments, positions, learned = (grid[:, :, at] for at in range(4))
    return {
        "tokens": tokens,
        "segment_ids": segments,
        "positions": positions,
        "loss_mask": learned,
        "labels": np.where(learned == 1, tokens, IGNORED),
        "cu_seqlens": np.cumsum([0, *microbatch.lengths]),
    }


def assert_same(left, right):
    """Two batches are the same to the last number, type and position."""
    for name in ARRAYS:
        mine, theirs = getattr(left, name), getattr(right, name)
        assert mine.dtype == theirs.dtype, name
        assert np.array_equal(mine, theirs), name
    for name in ("ids", "epoch", "index", "bucket_id", "packed", "after", "ends_step"):
        assert getattr(left, name) == getattr(right, name), name
