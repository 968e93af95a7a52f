"""Plans on disk: a directory that is written whole or not at all.

    plan.json            options, counts and fingerprints of the plan, with a checksum of itself
    lengths.brim         the length table that the plan was built from
    units.brim           which samples the units are of, if samples were skipped or split
    epoch-0000.brim      the columns of an epoch, mapped into memory; a lazy plan builds them instead

Opening a plan reads plan.json and nothing else. Reading a microbatch reads the headers of the other files and the rows
that it needs, each verified first; nothing takes longer for a larger plan. The share of one rank is such a directory
too, with that rank's microbatches only.
"""

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brim.core.atomic import atomic_directory, recover
from brim.core.column import Column
from brim.core.columns import Columns, write_columns
from brim.core.document import Document
from brim.core.errors import BrimError, DamagedError, DataError
from brim.core.lock import locked
from brim.core.progress import Progress, silent
from brim.data.lengths import LengthCache, fingerprint_1
from brim.plan.buckets import BucketSpec
from brim.plan.build import ALGORITHM, Packed, build_epoch
from brim.plan.config import BatchingConfig
from brim.plan.deal import Deal
from brim.plan.epoch_columns import EpochColumns
from brim.plan.packing.optimal import PatternSearch
from brim.plan.plan import BatchPlan, Share
from brim.plan.units import Counts, StoredUnits, UnitReader, Units, make_units, units_fingerprint, whole_samples

PLAN = Document(format="brim.plan/1", what="a plan", again="build the plan again")
EPOCH_FORMAT, EPOCH_FORMAT_1, UNITS_FORMAT = "brim.epoch/2", "brim.epoch/1", "brim.units/1"
INDEX, LENGTHS, UNITS = "plan.json", "lengths.brim", "units.brim"
PATIENCE = 600.0
"""Upper limit, in seconds, of the time that a writer of a plan waits for another one to finish."""
REPLACED = "load the plan again if it was just replaced, or build it again"


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
                like=directory / "rank_0" if rank else None,
            )


def write_plan(
    plan: BatchPlan,
    directory: Path,
    *,
    lazy: bool = False,
    like: Path | None = None,
    progress: Progress | None = None,
) -> None:
    """Write the files of a plan. `like` is a share of the same plan, whose lengths and units are linked or copied
    instead of written again.
    """
    units = plan.units.columns
    if like is None:
        plan.table.save(directory / LENGTHS)
        if units:
            write_columns(directory / UNITS, UNITS_FORMAT, {}, units, blocks=True)
    else:
        for name in (LENGTHS, UNITS) if units else (LENGTHS,):
            _link(like / name, directory / name)
    epochs: list[dict[str, Any]] = []
    whole = plan.share == Share()
    for epoch in range(0 if lazy and whole else plan.num_epochs):
        if progress is not None:
            progress(epoch, plan.num_epochs)
        view, dropped = plan.get_epoch(epoch), plan.dropped_units(epoch)
        columns = view.columns if whole or plan.share.partial else view.columns.take(view.places)
        meta = {"epoch": epoch, "fingerprint": columns.fingerprint}
        stored = {**columns.columns, "dropped": Column.of(dropped)}
        write_columns(directory / epoch_file(epoch), EPOCH_FORMAT, meta, stored, blocks=True)
        packed = plan.epochs.packed(epoch) if whole else None
        epochs.append(_epoch_entry(columns, view.deal, dropped.size, packed))
    algorithm = plan.epochs.algorithm
    index = {
        "algorithm": algorithm,
        "fingerprint": plan.fingerprint,
        "config": plan.config.to_dict(),
        "num_epochs": plan.num_epochs,
        "microbatches_per_step": None if whole else plan.step_size,
        "rank": None if whole else plan.rank,
        "world_size": None if whole else plan.world_size,
        "counts": asdict(plan.counts),
        "longest": plan.longest,
        "buckets": None if plan.buckets is None else list(plan.buckets.widths),
        "lengths": {"fingerprint": _table_fingerprint(plan.table, algorithm), **plan.table.meta},
        "units": units_fingerprint(units) if units else None,
        "epochs": epochs,
    }
    PLAN.write(directory / INDEX, index)


def _table_fingerprint(table: LengthCache, algorithm: int) -> str:
    """Return the fingerprint of a table as plans of a version of the planner hold it."""
    return fingerprint_1(table) if algorithm == 1 else table.fingerprint


def _epoch_entry(columns: EpochColumns, deal: Deal, dropped: int, packed: Packed | None) -> dict[str, Any]:
    return {
        "microbatches": deal.total,
        "sequences": len(columns.unit),
        "tokens": int(columns.tokens.sum()),
        "slots": int(columns.slots.sum()),
        "dropped": dropped,
        "remainder": {"null": deal.nulls, "dropped": deal.dropped, "repeated": deal.repeated},
        "fingerprint": columns.fingerprint,
        "packed": None if packed is None else packed._asdict(),
    }


def load_plan(path: str | os.PathLike[str], *, report: Progress = silent) -> BatchPlan:
    """Open a plan directory; `report` is called with the progress of a search for patterns.

    Raises:
        DataError: There is no plan there.
        DamagedError: It is truncated, altered or of another version.
    """
    directory = Path(path)
    index = read_index(directory)
    config = BatchingConfig.from_dict(index["config"])
    epochs = StoredEpochs(directory, config, index, report=report)
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
    if index["algorithm"] not in range(1, ALGORITHM + 1):
        raise DamagedError(
            f"{directory} was planned by version {index['algorithm']} of the planner, this brim has {ALGORITHM}; "
            "build the plan again, or finish its run with the brim that started it"
        )
    return index


class StoredEpochs:
    """Epochs in a plan directory, opened when they are used."""

    def __init__(
        self, directory: Path, config: BatchingConfig, index: Mapping[str, Any], *, report: Progress = silent
    ) -> None:
        self.directory, self.index, self._config = directory, index, config
        self.counts, self.fingerprint = Counts(**index["counts"]), str(index["fingerprint"])
        self.algorithm: int = index["algorithm"]
        widths = index["buckets"]
        self.buckets = None if widths is None else BucketSpec(edges=tuple(widths[:-1]), overflow_max=widths[-1])
        self._table: LengthCache | None = None
        self._units: Units | None = None
        self._unit_reader: UnitReader | None = None
        self._search = None if config.packing is None else PatternSearch(config.packing.time_limit, report)
        self._last: tuple[int, Parts] | None = None
        needed = [epoch_file(epoch) for epoch in range(len(index["epochs"]))]
        for name in [*needed, UNITS] if index.get("units") else needed:
            if not (directory / name).exists():
                raise DamagedError(f"{directory / name} is missing; build the plan again")

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
            self._table = self._read_table()
        return self._table

    def _read_table(self) -> LengthCache:
        try:
            table = LengthCache.load(self.directory / LENGTHS)
        except DataError as error:
            raise DamagedError(f"{error}; build the plan again") from None
        if _table_fingerprint(table, self.algorithm) != self.index["lengths"]["fingerprint"]:
            raise DamagedError(f"{self.directory / LENGTHS} belongs to another plan; {REPLACED}")
        return table

    @property
    def units(self) -> Units:
        """All units, made of the lengths again."""
        if self._units is None:
            whole = self.counts.untouched
            self._units = whole_samples(self.table) if whole else make_units(self.table, self._config)[0]
        return self._units

    @property
    def unit_reader(self) -> UnitReader:
        """The source of single units: a file, except for plans of version 1 that skip or split."""
        if self._unit_reader is None:
            cut = self.counts.skipped or self.counts.split
            if cut and not self.index.get("units"):
                self._unit_reader = self.units
            else:
                self._unit_reader = StoredUnits(self.table, self._config.limit, **(self._read_units() if cut else {}))
        return self._unit_reader

    def _read_units(self) -> dict[str, Column]:
        path = self.directory / UNITS
        try:
            file = Columns(path, UNITS_FORMAT)
        except DataError as error:
            raise DamagedError(f"{error}; build the plan again") from None
        columns = {name: file.column(name) for name in file}
        if units_fingerprint(columns) != self.index["units"]:
            raise DamagedError(f"{path} belongs to another plan; {REPLACED}")
        return columns

    def has_units(self, units: Units) -> bool:
        """Return whether units are those that single ones are looked up in."""
        return self.index.get("units") in (None, units_fingerprint(units.columns))

    @property
    def longest(self) -> int:
        found = self.index.get("longest")
        return int(self.units.length.max(initial=0)) if found is None else found

    @property
    def lazy(self) -> bool:
        return not self.index["epochs"]

    def num_microbatches(self, epoch: int) -> int:
        return len(self.parts(epoch)) if self.lazy else self.index["epochs"][epoch]["microbatches"]

    def parts(self, epoch: int) -> EpochColumns:
        return self._parts(epoch).columns

    def dropped(self, epoch: int) -> NDArray[np.int32]:
        return self._parts(epoch).dropped.whole

    def packed(self, epoch: int) -> Packed | None:
        if self.lazy:
            return self._parts(epoch).packed
        found = self.index["epochs"][epoch].get("packed")
        return None if found is None else Packed(**found)

    def _parts(self, epoch: int) -> "Parts":
        if self._last is None or self._last[0] != epoch:
            self._last = (epoch, self._build(epoch) if self.lazy else self._read(epoch))
        return self._last[1]

    def _build(self, epoch: int) -> "Parts":
        built = build_epoch(
            self.units, self._config, self.buckets, epoch, algorithm=self.algorithm, search=self._search
        )
        return Parts(built.columns, Column.of(built.dropped), built.packed)

    def _read(self, epoch: int) -> "Parts":
        path = self.directory / epoch_file(epoch)
        try:
            file = Columns(path, EPOCH_FORMAT, older=(EPOCH_FORMAT_1,))
        except DataError as error:
            raise DamagedError(f"{error}; build the plan again") from None
        if file.meta["fingerprint"] != self.index["epochs"][epoch]["fingerprint"]:
            raise DamagedError(f"{path} belongs to another plan; {REPLACED}")
        columns: dict[str, Any] = {name: file.column(name) for name in file if name != "dropped"}
        return Parts(EpochColumns(**columns), file.column("dropped"))

    def damage(self) -> list[str]:
        """Return an error message for every file that is not as it was written. All of them are read."""
        checks: list[Callable[[], None]] = [
            partial(self._verify_epoch, epoch) for epoch in range(len(self.index["epochs"]))
        ]
        if self.index.get("units"):
            checks.append(self._verify_units)
        found: list[str] = []
        for check in [*checks, self._verify_table]:
            try:
                check()
            except BrimError as error:
                found.append(str(error))
        return found

    def _verify_epoch(self, epoch: int) -> None:
        parts = self._read(epoch)
        _ = parts.columns.whole, parts.dropped.whole

    def _verify_units(self) -> None:
        for column in self._read_units().values():
            _ = column.whole

    def _verify_table(self) -> None:
        self._read_table().verify()


class Parts(NamedTuple):
    """An epoch of which only what is read is verified."""

    columns: EpochColumns
    dropped: Column
    """Units that `drop_last` left out."""
    packed: Packed | None = None


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
