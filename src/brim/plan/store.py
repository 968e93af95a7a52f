"""Plans on disk: a directory that is written whole or not at all.

    plan.json            options, counts and fingerprints of the plan, with a checksum of itself
    lengths.brim         the length table that the plan was built from
    epoch-0000.brim      the columns of an epoch, mapped into memory; a lazy plan builds them instead

Opening a plan reads plan.json and nothing else. A column is checked against its checksum when it is first used. The
share of one rank is such a directory too, with that rank's microbatches only.
"""

import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from brim.core.atomic import atomic_directory, recover
from brim.core.columns import Columns, write_columns
from brim.core.document import Document
from brim.core.errors import BrimError, DamagedError, DataError
from brim.core.lock import locked
from brim.core.progress import Progress
from brim.data.lengths import LengthCache
from brim.plan.buckets import BucketSpec
from brim.plan.build import ALGORITHM, BuiltEpoch, build_epoch
from brim.plan.config import BatchingConfig
from brim.plan.deal import Deal
from brim.plan.epoch import EpochColumns
from brim.plan.plan import BatchPlan, Share
from brim.plan.units import Counts, Units, make_units, whole_samples

PLAN = Document(format="brim.plan/1", what="a plan", again="build the plan again")
EPOCH_FORMAT = "brim.epoch/1"
INDEX, LENGTHS = "plan.json", "lengths.brim"
PATIENCE = 600.0
"""Upper limit, in seconds, of the time that a writer of a plan waits for another one to finish."""


def epoch_file(epoch: int) -> str:
    return f"epoch-{epoch:04d}.brim"


def save_plan(
    plan: BatchPlan, path: str | os.PathLike[str], *, lazy: bool = False, progress: Progress | None = None
) -> None:
    """Write a plan or a rank's share of one. An existing plan directory is replaced; one with other files is not.

    Processes that write one plan at the same time wait for each other. One that had to wait and then finds its own plan
    there writes nothing; when all ranks build the plan, that is every rank but one.

    Raises:
        OptionError: The directory cannot be written, or holds other files.
        BrimError: Another process has been writing it for ten minutes.
    """
    with locked(path, wait=PATIENCE) as waited:
        if waited and _is_stored(plan, Path(path), lazy=lazy):
            return
        with atomic_directory(path, replaces=is_plan, held=True) as directory:
            write_plan(plan, directory, lazy=lazy, progress=progress)


def _is_stored(plan: BatchPlan, directory: Path, *, lazy: bool) -> bool:
    """Return whether a directory that another process has just written holds this plan, in this form."""
    try:
        there = load_plan(directory)
    except BrimError:
        return False
    return _kind(there, lazy=_is_lazy(there)) == _kind(plan, lazy=lazy and plan.share == Share())


def _is_lazy(plan: BatchPlan) -> bool:
    return isinstance(plan.epochs, StoredEpochs) and plan.epochs.lazy


def _kind(plan: BatchPlan, *, lazy: bool) -> tuple[object, ...]:
    whole = plan.share == Share()
    return (plan.fingerprint, plan.config, plan.num_epochs, whole, plan.rank, plan.world_size, lazy)


def save_shards(
    plan: BatchPlan, path: str | os.PathLike[str], world_size: int, *, progress: Progress | None = None
) -> None:
    """Write the shares of all ranks as `rank_0`, `rank_1`, ... into a directory, which then holds nothing else."""
    with atomic_directory(path, replaces=_holds_shards) as directory:
        for rank in range(world_size):
            if progress is not None:
                progress(rank, world_size)
            (directory / f"rank_{rank}").mkdir()
            write_plan(
                plan.shard(rank, world_size),
                directory / f"rank_{rank}",
                lengths=directory / "rank_0" / LENGTHS if rank else None,
            )


def write_plan(
    plan: BatchPlan,
    directory: Path,
    *,
    lazy: bool = False,
    lengths: Path | None = None,
    progress: Progress | None = None,
) -> None:
    """Write the files of a plan. `lengths` is a file with its table, linked or copied instead of written again."""
    if lengths is None:
        plan.table.save(directory / LENGTHS)
    else:
        _link(lengths, directory / LENGTHS)
    epochs: list[dict[str, Any]] = []
    whole = plan.share == Share()
    for epoch in range(0 if lazy and whole else plan.num_epochs):
        if progress is not None:
            progress(epoch, plan.num_epochs)
        view, dropped = plan.get_epoch(epoch), plan.dropped_units(epoch)
        columns = view.columns if whole or plan.share.partial else view.columns.take(view.places)
        meta = {"epoch": epoch, "fingerprint": columns.fingerprint}
        write_columns(directory / epoch_file(epoch), EPOCH_FORMAT, meta, {**columns.columns, "dropped": dropped})
        epochs.append(_epoch_entry(columns, view.deal, dropped.size))
    index = {
        "algorithm": ALGORITHM,
        "fingerprint": plan.fingerprint,
        "config": plan.config.to_dict(),
        "num_epochs": plan.num_epochs,
        "microbatches_per_step": None if whole else plan.step_size,
        "rank": None if whole else plan.rank,
        "world_size": None if whole else plan.world_size,
        "counts": asdict(plan.counts),
        "buckets": None if plan.buckets is None else list(plan.buckets.widths),
        "lengths": {"fingerprint": plan.table.fingerprint, **plan.table.meta},
        "epochs": epochs,
    }
    PLAN.write(directory / INDEX, index)


def _epoch_entry(columns: EpochColumns, deal: Deal, dropped: int) -> dict[str, Any]:
    return {
        "microbatches": deal.total,
        "sequences": len(columns.unit),
        "tokens": int(columns.tokens.sum()),
        "slots": int(columns.slots.sum()),
        "dropped": dropped,
        "remainder": {"null": deal.nulls, "dropped": deal.dropped, "repeated": deal.repeated},
        "fingerprint": columns.fingerprint,
    }


def load_plan(path: str | os.PathLike[str]) -> BatchPlan:
    """Open a plan directory.

    Raises:
        DataError: There is no plan there.
        DamagedError: It is truncated, altered or of another version.
    """
    directory = Path(path)
    index = read_index(directory)
    config = BatchingConfig.from_dict(index["config"])
    epochs = StoredEpochs(directory, config, index)
    share = None
    if index["rank"] is not None:
        totals = tuple(entry["microbatches"] for entry in index["epochs"])
        share = Share(index["rank"], index["world_size"], partial=True, totals=totals)
    return BatchPlan(epochs, config, index["num_epochs"], step_size=index["microbatches_per_step"], share=share)


def read_index(directory: Path) -> dict[str, Any]:
    """Read plan.json.

    Raises:
        DataError: There is no plan there.
        DamagedError: It is truncated, altered or of another version.
    """
    recover(directory)
    if not directory.is_dir():
        what = "is a file" if directory.exists() else "does not exist"
        raise DataError(
            f"{directory} {what}; a plan is a directory, build one with: brim plan build -l LENGTHS -o {directory}"
        )
    if not (directory / INDEX).exists():
        hint = (
            f"; did you mean one of its ranks, such as {directory / 'rank_0'}?"
            if _holds_shards(directory)
            else f" (no {INDEX} in it)"
        )
        raise DataError(f"{directory} is not a plan{hint}")
    index = PLAN.read(directory / INDEX)
    if index["algorithm"] != ALGORITHM:
        raise DamagedError(
            f"{directory} was planned by version {index['algorithm']} of the planner, this brim has {ALGORITHM}; "
            "build the plan again, or finish its run with the brim that started it"
        )
    return index


class StoredEpochs:
    """Epochs in a plan directory, opened when they are used."""

    def __init__(self, directory: Path, config: BatchingConfig, index: Mapping[str, Any]) -> None:
        self.directory, self.index, self._config = directory, index, config
        self.counts, self.fingerprint = Counts(**index["counts"]), str(index["fingerprint"])
        widths = index["buckets"]
        self.buckets = None if widths is None else BucketSpec(edges=tuple(widths[:-1]), overflow_max=widths[-1])
        self._table: LengthCache | None = None
        self._units: Units | None = None
        self._last: tuple[int, BuiltEpoch] | None = None
        for epoch in range(len(index["epochs"])):
            if not (directory / epoch_file(epoch)).exists():
                raise DamagedError(f"{directory / epoch_file(epoch)} is missing; build the plan again")

    def __reduce__(self) -> tuple[type["StoredEpochs"], tuple[Path, BatchingConfig, Mapping[str, Any]]]:
        """Pickle the directory, options and index, not the columns, so that worker processes can be sent a plan."""
        return (StoredEpochs, (self.directory, self._config, self.index))

    @property
    def table(self) -> LengthCache:
        """The lengths that the plan was built from. On first use, their fingerprint is compared with that in plan.json.

        Raises:
            DamagedError: The lengths are missing, damaged, or those of another plan.
        """
        if self._table is None:
            try:
                table = LengthCache.load(self.directory / LENGTHS)
            except DataError as error:
                raise DamagedError(f"{error}; build the plan again") from None
            if table.fingerprint != self.index["lengths"]["fingerprint"]:
                raise DamagedError(f"{self.directory / LENGTHS} belongs to another plan; build the plan again")
            self._table = table
        return self._table

    @property
    def units(self) -> Units:
        if self._units is None:
            whole = self.counts.untouched
            self._units = whole_samples(self.table) if whole else make_units(self.table, self._config)[0]
        return self._units

    @property
    def lazy(self) -> bool:
        return not self.index["epochs"]

    def num_microbatches(self, epoch: int) -> int:
        return len(self.built(epoch).columns) if self.lazy else self.index["epochs"][epoch]["microbatches"]

    def built(self, epoch: int) -> BuiltEpoch:
        if self._last is None or self._last[0] != epoch:
            built = build_epoch(self.units, self._config, self.buckets, epoch) if self.lazy else self._read(epoch)
            self._last = (epoch, built)
        return self._last[1]

    def _read(self, epoch: int) -> BuiltEpoch:
        path = self.directory / epoch_file(epoch)
        try:
            file = Columns(path, EPOCH_FORMAT)
        except DataError as error:
            raise DamagedError(f"{error}; build the plan again") from None
        if file.meta["fingerprint"] != self.index["epochs"][epoch]["fingerprint"]:
            raise DamagedError(f"{path} belongs to another plan; build the plan again")
        columns = {name: file[name] for name in file if name != "dropped"}
        return BuiltEpoch(EpochColumns(**columns), file["dropped"])

    def damage(self) -> list[str]:
        """Return an error message for every file that is not as it was written."""
        found: list[str] = []
        for epoch in range(len(self.index["epochs"])):
            try:
                self._read(epoch)
            except BrimError as error:
                found.append(str(error))
        try:
            _ = self.table
        except BrimError as error:
            found.append(str(error))
        return found


def is_plan(path: Path) -> bool:
    return (path / INDEX).exists()


def _holds_shards(path: Path) -> bool:
    children = list(path.iterdir())
    return bool(children) and all(child.name.startswith("rank_") and is_plan(child) for child in children)


def _link(existing: Path, new: Path) -> None:
    try:
        os.link(existing, new)
    except OSError:  # another file system, or one without links
        shutil.copyfile(existing, new)
