"""Plans of version 1 of the planner (brim 0.5): their fingerprints, and the options that they know.

Plans on disk keep the fingerprint that they were made with, and are verified against it, so it covers what it covered
then: the columns of lengths as a whole, and the options that existed.
"""

from dataclasses import asdict, fields, replace
from typing import Any

from brim.core.fingerprint import fingerprint
from brim.data.lengths import LengthCache, fingerprint_1
from brim.plan.config import BatchingConfig, PackingConfig, PackingMode

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
    """Return the options that went into fingerprints: all of them, except `shuffle` if it is True.

    Later options are added where they are set, so that plans with them have no fingerprint of version 1.
    """
    values = asdict(config)
    options = {name: values[name] for name in OPTIONS if (name, values[name]) != ("shuffle", True)}
    if config.packing is not None:
        packing = asdict(packing_1(config.packing))
        options["packing"] = {name: packing[name] for name in PACKING}
    return options | later_options(config)


def packing_1(packing: PackingConfig) -> PackingConfig:
    """Return the options of packing as version 1 understands them: its default was best fit, without a search."""
    return replace(packing, mode=PackingMode.BEST_FIT) if packing.mode is PackingMode.AUTO else packing


def later_options(config: BatchingConfig) -> dict[str, Any]:
    """Return the options that version 1 did not have and that are not at their defaults, by name."""
    found = {name: value for name, value in _set_options(config) if name not in OPTIONS}
    if config.packing is not None:
        found |= {f"packing.{name}": value for name, value in _set_options(config.packing) if name not in PACKING}
        if config.packing.mode is PackingMode.OPTIMAL:
            found["packing.mode"] = str(PackingMode.OPTIMAL)
    return found


def _set_options(config: BatchingConfig | PackingConfig) -> list[tuple[str, Any]]:
    values = asdict(config)
    return [(field.name, values[field.name]) for field in fields(config) if values[field.name] != field.default]
