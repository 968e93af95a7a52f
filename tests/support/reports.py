"""Plans of every kind that reports are tested on."""

from dataclasses import replace

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from brim import BatchingConfig, BatchPlan, DataError, LengthCache, LengthEntry, PackingConfig
from brim.data.ids import Ids
from support.plans import configs, lognormal, tables

NASTY = '</script><img src=x onerror="alert(1)">&<b>$verdict'


@st.composite
def plans(draw):
    """Windows, buckets and packed rows, with groups, long samples, dropped ones, and every kind of remainder."""
    table = draw(tables(max_size=60))
    config = draw(configs(drop_last=draw(st.booleans()), remainder=draw(st.sampled_from(["null", "drop", "repeat"]))))
    if config.bucket_edges is None and draw(st.booleans()):
        config = replace(
            config, overflow=draw(st.sampled_from(["skip", "truncate", "split"])), overflow_max=draw(st.integers(8, 60))
        )
    try:
        return BatchPlan.build(table, config, num_epochs=draw(st.integers(1, 2)))
    except DataError:  # all of them were skipped
        assume(False)


def table(n=600, *, groups=None, seed=0):
    lengths = lognormal(n, seed=seed)
    if groups is None:
        return LengthCache(Ids.rows(n), lengths)
    return LengthCache.from_lengths(
        LengthEntry(f"s{i}", int(length), groups[i % len(groups)]) for i, length in enumerate(lengths)
    )


def plan(*, n=600, epochs=2, groups=None, **options):
    return BatchPlan.build(
        table(n, groups=groups), BatchingConfig(**{"token_budget": 8192, **options}), num_epochs=epochs
    )


PACKED = PackingConfig(max_length=2048, pad_to_max=True)
FIXED = {"num_buckets": 6, "pad_policy": "pad_to_bucket"}

KINDS = {
    "windows": lambda: plan(),
    "fixed shapes": lambda: plan(**FIXED),
    "buckets padded to their longest": lambda: plan(bucket_edges=(128, 512)),
    "packed": lambda: plan(packing=PACKED),
    "packed, not padded": lambda: plan(packing=PackingConfig(max_length=2048)),
    "groups": lambda: plan(groups=["code", "chat", "maths"]),
    "many groups": lambda: plan(groups=[f"g{i}" for i in range(60)]),
    "skipped": lambda: plan(overflow="skip", overflow_max=500),
    "truncated": lambda: plan(overflow="truncate", overflow_max=500, **FIXED),
    "split": lambda: plan(overflow="split", overflow_max=500),
    "dropped": lambda: plan(drop_last=True, **FIXED),
    "steps of 6, null": lambda: plan(microbatches_per_step=6),
    "steps of 6, drop": lambda: plan(microbatches_per_step=6, remainder="drop"),
    "steps of 6, repeat": lambda: plan(microbatches_per_step=6, remainder="repeat"),
    "fewer microbatches than a step, dropped": lambda: plan(n=5, microbatches_per_step=8, remainder="drop"),
    "one microbatch": lambda: plan(n=3),
    "one sample": lambda: plan(n=1, epochs=1),
    "nothing left": lambda: plan(n=3, drop_last=True, **FIXED),
    "empty samples": lambda: BatchPlan.build(LengthCache(Ids.rows(4), np.zeros(4, np.int32))),
    "a share": lambda: plan().shard(1, 4),
}
