"""Units: the sequences that a plan places. A unit is a sample, or a piece of one.

Only this module decides what happens to samples that are too long. All of them are counted, in `Counts`.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import begins, ceil_div, round_up
from brim.core.column import Column
from brim.core.errors import LengthError, OptionError
from brim.core.fingerprint import fingerprint
from brim.core.options import LONGEST
from brim.data.lengths import LengthCache
from brim.plan.config import BatchingConfig


@dataclass(frozen=True)
class Counts:
    """Number of samples and tokens in the data, and of samples that were skipped, truncated or split."""

    samples: int
    tokens: int
    skipped: int = 0
    truncated: int = 0
    truncated_tokens: int = 0
    split: int = 0
    pieces: int = 0
    """Number of units that the split samples became."""

    @property
    def untouched(self) -> bool:
        return not (self.skipped or self.truncated or self.split)


@dataclass(frozen=True, eq=False)
class Units:
    """The units as columns.

    If `sample` is None, unit i is of sample i; if `start` is None, units begin with the first token of their sample.
    """

    length: NDArray[np.int32]
    sample: NDArray[np.int64] | None = None
    start: NDArray[np.int32] | None = None
    group: NDArray[np.int32] | None = None
    axes: NDArray[np.int32] | None = None
    """Lengths along each ragged axis, [units, axes]; `length` is their sum."""

    def __len__(self) -> int:
        return len(self.length)

    def samples(self, units: NDArray[np.int32]) -> NDArray[np.int64]:
        return units.astype(np.int64) if self.sample is None else self.sample[units]

    def starts(self, units: NDArray[np.int32]) -> NDArray[np.int32]:
        return np.zeros(len(units), np.int32) if self.start is None else self.start[units]

    def spans(self, units: NDArray[np.int32]) -> "UnitSpans":
        return UnitSpans(self.samples(units), self.starts(units), self.length.take(units))

    @property
    def columns(self) -> dict[str, Column]:
        """The columns that say what the units are, given the lengths of their samples: none if all are whole."""
        found = {"sample": self.sample, "start": self.start}
        return {name: Column.of(column) for name, column in found.items() if column is not None}


class UnitSpans(NamedTuple):
    """Some units: unit i is `lengths[i]` tokens of row `samples[i]` of the length table, from its token `starts[i]`
    on.
    """

    samples: NDArray[np.int64]
    starts: NDArray[np.int32]
    lengths: NDArray[np.int32]


class UnitReader(Protocol):
    """A source of single units: `Units`, or `StoredUnits`."""

    def spans(self, units: NDArray[np.int32]) -> UnitSpans: ...


class StoredUnits:
    """The units of a plan on disk. Looking some up reads those, and the lengths of their samples."""

    def __init__(self, table: LengthCache, limit: int, sample: Column | None = None, start: Column | None = None):
        self._length, self._limit = table.length, min(limit, LONGEST)
        self._sample, self._start = sample, start

    def spans(self, units: NDArray[np.int32]) -> UnitSpans:
        """However long samples were cut, a unit is what is left of its sample, up to the limit."""
        samples = units.astype(np.int64) if self._sample is None else self._sample[units]
        starts = np.zeros(len(units), np.int32) if self._start is None else self._start[units]
        return UnitSpans(samples, starts, np.minimum(self._length[samples] - starts, np.int32(self._limit)))


def units_fingerprint(columns: dict[str, Column]) -> str:
    """Return a fingerprint of the columns that say what units are, from their checksums."""
    return fingerprint(columns={name: column.identity for name, column in columns.items()})


def whole_samples(table: LengthCache) -> Units:
    """Return units of which each is one whole sample."""
    return Units(table.lengths, group=table.groups, axes=table.axes)


def too_long(table: LengthCache, config: BatchingConfig) -> NDArray[np.int64]:
    """Return the row numbers of the samples that do not fit."""
    long = table.lengths > config.limit
    if table.axes is not None:  # every axis is rounded up by itself
        long |= round_up(table.axes, config.pad_to_multiple).sum(axis=1, dtype=np.int64) > config.token_budget
    return np.flatnonzero(long)


def make_units(table: LengthCache, config: BatchingConfig) -> tuple[Units, Counts]:
    """Turn the samples into units that fit; `config.overflow` decides what happens to samples that are too long.

    Raises:
        LengthError: A sample is too long and `overflow` is "error".
        OptionError: The samples are ragged along several axes, and an option is only for samples with one length.
    """
    lengths, groups, limit, overflow = table.lengths, table.groups, config.limit, config.overflow
    if table.axes is not None:
        _check_nested(config)
    long = too_long(table, config)
    counts = Counts(samples=len(table), tokens=int(lengths.sum(dtype=np.int64)))
    if len(long) == 0:
        return whole_samples(table), counts
    if overflow == "error":
        raise _error(table, long, config)
    if overflow == "truncate":
        lost = int(lengths[long].sum(dtype=np.int64)) - limit * len(long)
        units = Units(np.minimum(lengths, np.int32(limit)), group=groups)
        return units, Counts(samples=len(table), tokens=counts.tokens, truncated=len(long), truncated_tokens=lost)
    if overflow == "skip":
        kept = np.setdiff1d(np.arange(len(table)), long, assume_unique=True)
        group, axes = (None if column is None else column[kept] for column in (groups, table.axes))
        units = Units(lengths[kept], sample=kept, group=group, axes=axes)
        return units, Counts(samples=len(table), tokens=counts.tokens, skipped=len(long))
    pieces = np.maximum(ceil_div(lengths.astype(np.int64), limit), 1)
    sample = np.repeat(np.arange(len(table)), pieces)
    start = (np.arange(len(sample)) - np.repeat(begins(pieces), pieces)) * limit
    length = np.minimum(lengths[sample] - start, limit).astype(np.int32)
    units = Units(length, sample=sample, start=start.astype(np.int32), group=None if groups is None else groups[sample])
    return units, Counts(samples=len(table), tokens=counts.tokens, split=len(long), pieces=int(pieces[long].sum()))


def _check_nested(config: BatchingConfig) -> None:
    """Refuse options that do not work for samples that are ragged along several axes: such samples cannot be cut at one
    place, and have no single width to be packed or bucketed by.
    """
    used = {
        f'overflow="{config.overflow}"': config.overflow in ("truncate", "split"),
        "packing": config.packing is not None,
        "bucket_edges": config.bucket_edges is not None,
        "num_buckets": config.num_buckets is not None,
    }
    for option, given in used.items():
        if given:
            raise OptionError(
                f"{option} is for samples with one length; these are ragged along several axes, so leave it out"
            )


def _error(table: LengthCache, long: NDArray[np.int64], config: BatchingConfig) -> LengthError:
    sizes = (
        round_up(table.axes[long], config.pad_to_multiple).sum(axis=1)
        if table.axes is not None
        else table.lengths[long]
    )
    longest, size = int(long[sizes.argmax()]), int(sizes.max())
    many = "1 sample does" if len(long) == 1 else f"{len(long)} samples do"
    ways = '"skip"' if table.axes is not None else '"truncate", "split" or "skip"'
    return LengthError(
        f"{many} not fit in {config.limit} tokens; the longest is sample {table.ids[longest]!r}, with {size}. Raise "
        f"the limit to {size}, or say what to do with long samples: overflow={ways} (--overflow on the command line)."
    )
