"""Units: what is planned. A unit is a sample, or a piece of one.

Here, and only here, a plan decides about samples that are too long. Whatever happens to them is counted.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import LengthError
from brim.data.lengths import LengthCache
from brim.plan.config import Overflow


@dataclass(frozen=True)
class Counts:
    """What became of the samples."""

    samples: int
    tokens: int
    skipped: int = 0
    truncated: int = 0
    truncated_tokens: int = 0
    split: int = 0
    pieces: int = 0
    """How many units the split samples became."""

    @property
    def untouched(self) -> bool:
        return not (self.skipped or self.truncated or self.split)


@dataclass(frozen=True, eq=False)
class Units:
    """Columns over the units. `sample` and `start` are None where unit i is all of sample i."""

    length: NDArray[np.int32]
    sample: NDArray[np.int64] | None = None
    start: NDArray[np.int32] | None = None
    group: NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.length)

    def samples(self, units: NDArray[np.int32]) -> NDArray[np.int64]:
        return units.astype(np.int64) if self.sample is None else self.sample[units]

    def starts(self, units: NDArray[np.int32]) -> NDArray[np.int32]:
        return np.zeros(len(units), np.int32) if self.start is None else self.start[units]


def whole_samples(table: LengthCache) -> Units:
    """Every sample is a unit."""
    return Units(table.lengths, group=table.groups)


def make_units(table: LengthCache, limit: int, overflow: Overflow) -> tuple[Units, Counts]:
    """Cut the samples to units of at most `limit` tokens, as `overflow` says.

    Raises:
        LengthError: A sample is longer and `overflow` is "error".
    """
    lengths, groups = table.lengths, table.groups
    long = np.flatnonzero(lengths > limit)
    counts = Counts(samples=len(table), tokens=int(lengths.sum(dtype=np.int64)))
    if len(long) == 0:
        return whole_samples(table), counts
    if overflow == "error":
        raise _too_long(table, long, limit)
    if overflow == "truncate":
        lost = int(lengths[long].sum(dtype=np.int64)) - limit * len(long)
        units = Units(np.minimum(lengths, np.int32(limit)), group=groups)
        return units, Counts(samples=len(table), tokens=counts.tokens, truncated=len(long), truncated_tokens=lost)
    if overflow == "skip":
        kept = np.flatnonzero(lengths <= limit)
        units = Units(lengths[kept], sample=kept, group=None if groups is None else groups[kept])
        return units, Counts(samples=len(table), tokens=counts.tokens, skipped=len(long))
    pieces = np.maximum(-(-lengths.astype(np.int64) // limit), 1)
    sample = np.repeat(np.arange(len(table)), pieces)
    start = (np.arange(len(sample)) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * limit
    length = np.minimum(lengths[sample] - start, limit).astype(np.int32)
    units = Units(length, sample=sample, start=start.astype(np.int32), group=None if groups is None else groups[sample])
    return units, Counts(samples=len(table), tokens=counts.tokens, split=len(long), pieces=int(pieces[long].sum()))


def _too_long(table: LengthCache, long: NDArray[np.int64], limit: int) -> LengthError:
    longest = int(long[table.lengths[long].argmax()])
    size = int(table.lengths[longest])
    many = "1 sample does" if len(long) == 1 else f"{len(long)} samples do"
    return LengthError(
        f"{many} not fit in {limit} tokens; the longest is sample {table.ids[longest]!r}, with {size}. Raise the limit to {size}, or say "
        'what to do with long samples: overflow="truncate", "split" or "skip" (--overflow on the command line).'
    )
