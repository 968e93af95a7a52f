"""What plans of version 1 of the planner (brim 0.5) are known by.

Plans on disk keep the fingerprint that they were made with, and are verified against it, so it covers what it covered
then: the columns of lengths as a whole, and the options that existed.
"""

from dataclasses import asdict
from typing import Any

from brim.core.fingerprint import fingerprint
from brim.data.lengths import LengthCache, fingerprint_1
from brim.plan.config import BatchingConfig

OPTIONS = (
    "token_budget",
    "bucket_edges",
    "num_buckets",
    "overflow_max",
    "overflow",
    "pad_policy",
    "pad_to_multiple",
    "max_sequences",
    "window",
    "drop_last",
    "packing",
    "microbatches_per_step",
    "remainder",
    "shuffle",
    "seed",
)
PACKING = ("max_length", "mode", "max_sequences", "pad_to_max")


def plan_fingerprint_1(table: LengthCache, config: BatchingConfig, num_epochs: int) -> str:
    return fingerprint(lengths=fingerprint_1(table), config=identity_1(config), epochs=num_epochs, algorithm=1)


def identity_1(config: BatchingConfig) -> dict[str, Any]:
    """Return the options that went into fingerprints: all of them, except `shuffle` if it is True."""
    values = asdict(config)
    options = {name: values[name] for name in OPTIONS if (name, values[name]) != ("shuffle", True)}
    if options["packing"] is not None:
        options["packing"] = {name: options["packing"][name] for name in PACKING}
    return options
