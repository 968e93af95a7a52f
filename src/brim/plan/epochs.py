"""The source of a plan's epochs: what a `BatchPlan` reads, and `BuiltEpochs`, which builds it in memory."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import DataError, OptionError
from brim.core.fingerprint import fingerprint
from brim.core.progress import Progress, silent
from brim.data.lengths import LengthCache
from brim.plan.buckets import BucketSpec
from brim.plan.build import ALGORITHM, BuiltEpoch, Packed, build_epoch, choose_buckets
from brim.plan.config import BatchingConfig
from brim.plan.epoch import Origin
from brim.plan.epoch_columns import EpochColumns
from brim.plan.packing.optimal import PatternSearch
from brim.plan.units import Counts, Units, make_units
from brim.plan.version_1 import later_options, plan_fingerprint_1


class Epochs(Origin, Protocol):
    """The source of a plan's epochs, such as `BuiltEpochs`, or a directory on disk (`brim.plan.store`)."""

    @property
    def algorithm(self) -> int:
        """Version of the planner."""
        ...

    @property
    def counts(self) -> Counts: ...
    @property
    def units(self) -> Units: ...
    @property
    def longest(self) -> int: ...
    @property
    def buckets(self) -> BucketSpec | None: ...
    def parts(self, epoch: int) -> EpochColumns:
        """Return the columns of an epoch, to read single microbatches from."""
        ...

    def dropped(self, epoch: int) -> NDArray[np.int32]: ...
    def num_microbatches(self, epoch: int) -> int: ...
    def packed(self, epoch: int) -> Packed | None:
        """Return the number of rows that units were packed into, if it is known."""
        ...


class BuiltEpochs:
    """Epochs that are built in memory when they are used; the last one is cached."""

    def __init__(
        self,
        table: LengthCache,
        config: BatchingConfig,
        num_epochs: int,
        *,
        algorithm: int = ALGORITHM,
        report: Progress = silent,
    ) -> None:
        if len(table) == 0:
            raise DataError("there are no samples to plan: the length table is empty")
        if algorithm == 1 and (unknown := later_options(config)):
            raise OptionError(f"version 1 of the planner has no option {', '.join(unknown)}")
        self.table, self._config, self._num_epochs, self.algorithm = table, config, num_epochs, algorithm
        self.units, self.counts = make_units(table, config)
        if len(self.units) == 0:
            raise DataError(
                f'there are no samples to plan: overflow="skip" leaves out all {len(table)}, none fits in '
                f"{config.limit}"
            )
        self.buckets = choose_buckets(self.units, config)
        self._search = None if config.packing is None else PatternSearch(config.packing.time_limit, report)
        self._last: tuple[int, BuiltEpoch] | None = None
        self._fingerprint: str | None = None

    @property
    def fingerprint(self) -> str:
        if self._fingerprint is None:
            self._fingerprint = plan_fingerprint(self.table, self._config, self._num_epochs, algorithm=self.algorithm)
        return self._fingerprint

    @property
    def unit_reader(self) -> Units:
        return self.units

    @property
    def longest(self) -> int:
        return int(self.units.length.max(initial=0))

    def parts(self, epoch: int) -> EpochColumns:
        return self._built(epoch).columns

    def dropped(self, epoch: int) -> NDArray[np.int32]:
        return self._built(epoch).dropped

    def num_microbatches(self, epoch: int) -> int:
        return len(self.parts(epoch))

    def packed(self, epoch: int) -> Packed | None:
        return self._built(epoch).packed

    def _built(self, epoch: int) -> BuiltEpoch:
        if self._last is None or self._last[0] != epoch:
            built = build_epoch(
                self.units, self._config, self.buckets, epoch, algorithm=self.algorithm, search=self._search
            )
            self._last = (epoch, built)
        return self._last[1]


def plan_fingerprint(table: LengthCache, config: BatchingConfig, num_epochs: int, *, algorithm: int = ALGORITHM) -> str:
    """Return a fingerprint of everything that reaches a tensor: data, tokenizer, lengths, groups, options, number of
    epochs, and the version of the planner.
    """
    if algorithm == 1:
        return plan_fingerprint_1(table, config, num_epochs)
    return fingerprint(lengths=table.fingerprint, config=config.identity, epochs=num_epochs, algorithm=algorithm)
