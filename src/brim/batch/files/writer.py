"""`BatchWriter`: write the batches of a plan to files, once, for any number of runs to read.

    manifest.json               which plan, data and tokenizer the batches were made from
    plan/                       the plan
    epoch_0/batch_000000.npz    one file for each microbatch of the plan or of a rank's share, empty ones included

Files appear whole, in order, and are never written twice: a writer that was killed resumes with the first missing file,
and in the end the directory holds the same bytes as without the interruption. Plan, data and directory are checked
before the first file is written.
"""

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from brim.batch.batch import Batch
from brim.batch.collate import collate
from brim.batch.files.manifest import MANIFEST, PLAN, TOKENS, Manifest, batch_file, epoch_files
from brim.batch.files.npz import write_batch
from brim.batch.token_source import SamplesAtHand, check_belongs, token_source
from brim.core.errors import BrimError, DataError, MismatchError, OptionError
from brim.core.fingerprint import fingerprint
from brim.core.lock import locked
from brim.core.npz import NpzError
from brim.core.progress import Progress
from brim.core.temporary import is_leftover
from brim.data.token_store import TokenSource, TokenStore
from brim.plan.epoch import MicrobatchSpec
from brim.plan.plan import BatchPlan


class CollateFn(Protocol):
    """A function that lays out a microbatch as arrays, such as `brim.batch.collate.collate`."""

    def __call__(self, microbatch: MicrobatchSpec, source: TokenSource, /, *, pad_id: int) -> Batch: ...


class Written(NamedTuple):
    """Number of batches that a call wrote, and number of those that were there before."""

    written: int
    kept: int


class BatchWriter:
    """Writes the batches of `plan`, or of a rank's share of one (`plan.shard(rank, world_size)`).

    All ranks get equally many files: where a rank has nothing to do in a round, its file is one token of padding.

    Example:
        >>> writer = BatchWriter(plan, TokenStore.load("tokens.brim"), "batches")  # doctest: +SKIP
        >>> writer.write_all()  # doctest: +SKIP
        Written(written=1200, kept=0)
    """

    def __init__(
        self,
        plan: BatchPlan,
        source: TokenSource | SamplesAtHand,
        output_dir: str | os.PathLike[str],
        collate_fn: CollateFn | None = None,
        pad_id: int | None = None,
    ) -> None:
        """Check the plan, the data and the directory; write nothing.

        `source` is a `TokenStore` or `Samples`, or the samples themselves: in a list, or by id, each a `Sample` or a
        mapping with `input_ids` and `loss_mask`. `collate_fn` is called as `collate` is, and must be the same when a
        write is resumed; only its name is compared, and the keyword arguments of a `functools.partial`. `pad_id` is the
        source's unless given.

        Raises:
            MismatchError: The plan belongs to other data or another tokenizer, or the directory holds the batches of
                another plan.
            OptionError: The directory holds other files.
        """
        self.plan, self.directory = plan, Path(output_dir)
        self.source = token_source(plan, source)
        check_belongs(plan, self.source)
        self.collate_fn: CollateFn = collate_fn or collate
        self.manifest = Manifest(
            fingerprint=plan.fingerprint,
            dataset_hash=_dataset_hash(plan, self.source),
            tokenizer_hash=self.source.tokenizer_hash or plan.table.tokenizer_hash,
            pad_id=self.source.pad_id if pad_id is None else pad_id,
            collate=_name(self.collate_fn),
            rank=plan.rank,
            world_size=plan.world_size,
            microbatches_per_step=plan.step_size,
            batches=tuple(plan.num_microbatches(epoch) for epoch in range(plan.num_epochs)),
        )
        self._claimed = False
        check_directory(self.directory, self.manifest)

    def write_all(self, progress: Progress | None = None) -> Written:
        """Write the missing batches of all epochs."""
        return self._write(range(self.plan.num_epochs), progress)

    def write_epoch(self, epoch: int, progress: Progress | None = None) -> Written:
        """Write the missing batches of one epoch."""
        self.plan.deal(epoch)  # refuses an epoch that does not exist
        return self._write([epoch], progress)

    def missing(self, epoch: int) -> list[int]:
        """Return the numbers of the batches of an epoch that are not written yet."""
        return epoch_files(self.manifest, self.directory, epoch).missing

    @contextmanager
    def claim(self) -> Generator[None, None, None]:
        """Lock the directory against other writers. Every write takes the lock itself; call this to hold it over
        several writes.

        Raises:
            BrimError: Another process is writing there.
        """
        if self._claimed:
            yield
            return
        with _locked(self.directory):
            check_directory(self.directory, self.manifest)
            self._claimed = True
            try:
                yield
            finally:
                self._claimed = False

    def _write(self, epochs: Sequence[int], progress: Progress | None) -> Written:
        with self.claim():
            self._begin()
            missing = {epoch: self.missing(epoch) for epoch in epochs}
            total = sum(self.manifest.batches[epoch] for epoch in epochs)
            kept = done = total - sum(map(len, missing.values()))
            for epoch, numbers in missing.items():
                view = self.plan.get_epoch(epoch) if numbers else ()
                for number in numbers:
                    if progress is not None:
                        progress(done, total)
                    self._write_one(batch_file(self.directory, epoch, number), view[number])
                    done += 1
            if progress is not None:
                progress(done, total)
            return Written(total - kept, kept)

    def _write_one(self, path: Path, microbatch: MicrobatchSpec) -> None:
        batch = self.collate_fn(microbatch, self.source, pad_id=self.manifest.pad_id)
        if (batch.epoch, batch.index, batch.ids) != (microbatch.epoch, microbatch.index, microbatch.samples):
            raise OptionError(
                f"{self.manifest.collate} was asked for batch {microbatch.index} of epoch {microbatch.epoch} and "
                f"{len(microbatch.samples)} samples, and gave batch {batch.index} of epoch {batch.epoch} with "
                f"{len(batch.ids)}; keep what the plan says"
            )
        try:
            write_batch(path, batch, self.manifest.checksum)
        except NpzError as error:
            raise OptionError(f"{self.manifest.collate} gave a batch that cannot be kept: {error}") from None

    def _begin(self) -> None:
        if not (self.directory / MANIFEST).exists():
            self.manifest.save(self.directory)
        try:
            there = BatchPlan.load(self.directory / PLAN).fingerprint == self.manifest.fingerprint
        except BrimError:
            there = False
        if not there:
            self.plan.save(self.directory / PLAN)


def check_directory(directory: Path, manifest: Manifest) -> None:
    """Check that a directory is new, is empty but for temporary files, or holds batches with the same manifest.

    Raises:
        MismatchError: It holds batches with another manifest.
        OptionError: It holds other files, or is a file.
    """
    if directory.exists() and not directory.is_dir():
        raise OptionError(f"cannot write {directory}: a file is in the way")
    if not directory.exists() or all(is_leftover(path.name) or path.name == TOKENS for path in directory.iterdir()):
        return
    try:
        there = Manifest.load(directory)
    except DataError:
        raise OptionError(
            f"will not write into {directory}: it holds other files; remove them or choose another output"
        ) from None
    if (difference := there.difference(manifest)) is not None:
        raise MismatchError(f"{directory} holds the batches of {difference}; remove it or choose another output")


def _dataset_hash(plan: BatchPlan, source: TokenSource) -> str:
    """Return the hash of the data: that of the source or, if it has none, of the plan's table.

    For a store without a hash, such as one of samples in memory, it is a hash of the tokens, which the hash of the
    plan's table does not cover.
    """
    if source.dataset_hash or not isinstance(source, TokenStore):
        return source.dataset_hash or plan.table.dataset_hash
    return fingerprint(tokens=source.tokens, learned=source.learned, lengths=source.lengths, starts=source.starts)


def _name(function: Any) -> str:
    if isinstance(function, partial):
        options = ", ".join(
            f"{name}={getattr(value, '__name__', repr(value))}" for name, value in function.keywords.items()
        )
        return f"{_name(function.func)}({options})"
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"


@contextmanager
def _locked(directory: Path) -> Generator[None, None, None]:
    """Lock a directory against other writers. If it is created for this and stays empty, it is removed again."""
    is_new = not directory.exists()
    try:
        with locked(directory / MANIFEST, name=directory):
            yield
    finally:
        if is_new and directory.is_dir() and not any(directory.iterdir()):
            directory.rmdir()
