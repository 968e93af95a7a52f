"""`BatchReader`: the batches that a `BatchWriter` wrote, in the order of their plan.

Any batch is read in O(1), by the name of its file. A batch is returned exactly as it was collated, or not at all: each
file is checked against its checksums, the manifest and the plan, and one that is damaged, from another directory or
under the name of another batch raises DamagedError.
"""

import os
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import overload

from brim.batch.batch import Batch
from brim.batch.files.manifest import PLAN, Files, Manifest, batch_file, epoch_files
from brim.batch.files.npz import read_batch
from brim.core.errors import BrimError, DamagedError, OptionError
from brim.plan.epoch import EpochPlan, MicrobatchSpec
from brim.plan.plan import BatchPlan
from brim.plan.position import CheckpointPosition


class BatchReader:
    """A directory of batches, open for reading. Pickles as its path."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """Read the manifest and nothing else.

        Raises:
            DataError: The directory holds no batches.
            DamagedError: The manifest is truncated, altered or of another version.
        """
        self.directory = Path(directory)
        self.manifest = Manifest.load(self.directory)
        self._view: EpochPlan | None = None

    def __reduce__(self) -> tuple[type["BatchReader"], tuple[Path]]:
        return (BatchReader, (self.directory,))

    @property
    def num_epochs(self) -> int:
        return self.manifest.num_epochs

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the plan that the batches follow."""
        return self.manifest.fingerprint

    def __len__(self) -> int:
        """Return the number of batches in all epochs."""
        return self.manifest.total_batches

    def num_batches(self, epoch: int) -> int:
        self._check_epoch(epoch)
        return self.manifest.batches[epoch]

    @cached_property
    def plan(self) -> BatchPlan:
        """The plan that the batches follow, or this rank's share of it."""
        path = self.directory / PLAN
        try:
            plan = BatchPlan.load(path)
        except BrimError as error:
            raise DamagedError(f"{error}; or write the batches again, which replaces the plan") from None
        if plan.fingerprint != self.fingerprint or (plan.rank, plan.world_size) != (
            self.manifest.rank,
            self.manifest.world_size,
        ):
            raise DamagedError(
                f"{path} is another plan than that of the batches; delete it and write the batches again"
            )
        return plan if plan.share.partial else plan.with_step_size(self.manifest.microbatches_per_step)

    def verify_fingerprint(self, expected: str) -> bool:
        """Return whether the batches are those of the plan with this fingerprint."""
        return self.fingerprint == expected

    def files(self, epoch: int) -> Files:
        """Return which batches of an epoch are missing, and which files do not belong there. Reads no file."""
        self._check_epoch(epoch)
        return epoch_files(self.manifest, self.directory, epoch)

    def get_batch(self, epoch: int, number: int) -> Batch:
        """Return one batch, as it was collated.

        Raises:
            DamagedError: Its file is missing, damaged, or of another batch.
        """
        if not 0 <= number < self.num_batches(epoch):
            raise OptionError(
                f"batch {number} does not exist: epoch {epoch} has batches 0 to {self.num_batches(epoch) - 1}"
            )
        return self._read(number, self._epoch(epoch)[number])

    def iter_epoch(self, epoch: int = 0) -> "EpochBatches":
        """Return the batches of an epoch in order, for `for` and `async for`.

        Raises:
            DamagedError: A file is missing, or one does not belong there. This is checked before the first batch is
                read, not in the middle of training.
        """
        missing, strangers = self.files(epoch)
        folder = batch_file(self.directory, epoch, 0).parent
        if missing:
            first = batch_file(self.directory, epoch, missing[0]).name
            also = f", and holds {strangers[0]}, which does not belong there" if strangers else ""
            raise DamagedError(
                f"{folder} lacks {len(missing)} of its {self.num_batches(epoch)} batches, the first is "
                f"{first}{also}; write them again"
            )
        if strangers:
            raise DamagedError(
                f"{folder} holds {strangers[0]}, which does not belong there ({len(strangers)} in all); remove it"
            )
        return EpochBatches(self, epoch)

    def iter_epoch_specs(self, epoch: int = 0) -> EpochPlan:
        """Return the planned microbatches of an epoch. Reads no batch."""
        return self.plan.iter_epoch(epoch)

    def iter_from(self, epoch: "int | CheckpointPosition", microbatch_idx: int = 0) -> Iterator[Batch]:
        """Iterate over the batches from a position to the end of the last epoch. The position is the `after` of a batch
        or of a microbatch of the plan.

        Raises:
            MismatchError: The position belongs to another plan, or to optimizer steps of another size.
        """
        specs = self.plan.iter_from(epoch, microbatch_idx)
        return (self._read(self._number(at, start), spec) for at, start, spec in specs)

    def _number(self, epoch: int, start: int) -> int:
        """Return the number of the round that starts at `start` in the global order; `start` comes from the plan, so
        there is one.
        """
        number = self.plan.deal(epoch).round_number(start)
        assert number is not None
        return number

    def _epoch(self, epoch: int) -> EpochPlan:
        """Return the plan of an epoch. The last one is cached, because its order may have to be computed."""
        if self._view is None or self._view.epoch != epoch:
            self._view = self.plan.get_epoch(epoch)
        return self._view

    def _read(self, number: int, spec: MicrobatchSpec) -> Batch:
        return read_batch(batch_file(self.directory, spec.epoch, number), self.manifest.checksum, spec)

    def _check_epoch(self, epoch: int) -> None:
        if not 0 <= epoch < self.num_epochs:
            raise OptionError(f"epoch {epoch} does not exist: there are epochs 0 to {self.num_epochs - 1}")


@dataclass(frozen=True, eq=False)
class EpochBatches(Sequence[Batch]):
    """The batches of one epoch: a sequence with O(1) access that reads the file of a batch on access."""

    reader: BatchReader
    epoch: int

    def __len__(self) -> int:
        return self.reader.num_batches(self.epoch)

    @overload
    def __getitem__(self, index: int) -> Batch: ...
    @overload
    def __getitem__(self, index: slice) -> list[Batch]: ...
    def __getitem__(self, index: int | slice) -> Batch | list[Batch]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)} in epoch {self.epoch}")
        return self.reader.get_batch(self.epoch, index % len(self))

    async def __aiter__(self) -> AsyncIterator[Batch]:
        for batch in self:
            yield batch
