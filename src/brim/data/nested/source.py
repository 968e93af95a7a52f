"""Sources of nested samples: what they have in common, and how a path becomes one.

A source is a data set of dicts, lists, arrays, numbers and text, read by row number; `structure.py` says what such samples are made
of. It is a path and little else: a process opens the files when it first reads from them, so a source can be handed to the workers of a
DataLoader, however they are started, and however much the parent has read before. A sample comes in memory of its own every time.

The one thing to get wrong: a handle that is open when a process forks is shared, and the two then move each other's place in the file. So
what is open belongs to one process (`_here`), is never pickled, and a child starts with nothing. Because of that a file is opened many
times, by processes that must see the same samples: what identifies it is pickled, and a file that was replaced meanwhile is refused.
"""

import operator
import os
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import natural
from brim.core.atomic import check_target
from brim.core.errors import DataError, MismatchError, OptionError
from brim.core.fingerprint import new_hash
from brim.core.options import check_counts
from brim.core.progress import Progress
from brim.data.ids import Ids, SampleId
from brim.data.lengths import LengthCache
from brim.data.nested.structure import ID

READABLE = (
    "nested samples are read from .h5 and .hdf5 (HDF5), .npz (a file or a directory of them) and .parquet (a file or a directory of them)"
)
HDF5_SUFFIXES, NPZ_SUFFIXES, PARQUET_SUFFIXES = (".h5", ".hdf5"), (".npz",), (".parquet", ".pq")
MAGIC = {b"\x89HDF\r\n\x1a\n": "hdf5", b"PK\x03\x04": "npz", b"PAR1": "parquet"}

CACHE_BYTES = 256 << 20
"""Decoded data that a process keeps for the next samples, where a sample cannot be read by itself."""

SPOTS, SPOT_BYTES = 256, 16 << 10

Stamp = tuple[int, int, int]
"""The inode, the size and the time of the last change of a file: what tells it from one that took its place."""
ListPath = tuple[str, ...]
"""Where in a sample a list is: keys, and "" for any place in a list."""


class NestedSource(ABC):
    """A data set of nested samples on disk, as it was when it was opened."""

    path: Path
    pickled: ClassVar[tuple[str, ...]]
    """The attributes that another process needs."""
    _pid: int | None = None
    _table: LengthCache | None = None

    @property
    @abstractmethod
    def ids(self) -> Ids: ...

    @property
    def table(self) -> LengthCache:
        """The lengths: a group for each structure, a column for each ragged axis. `dataset_hash` is the source's fingerprint."""
        if self._table is None:
            self._table = self._measure()
        return self._table

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Of what the samples are, not of where they lie. How much of them it covers is said by each source."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _measure(self) -> LengthCache: ...

    @abstractmethod
    def _read(self, row: int) -> dict[str, Any]:
        """A sample, with its id. `row` is in range."""

    def __getitem__(self, row: int) -> dict[str, Any]:
        """
        Raises:
            DataError: The sample holds something that cannot be batched.
            DamagedError: Its bytes are not the ones that were written.
            MismatchError: Its file was changed or replaced since the source was opened. Noticed when a process opens the file.
        """
        row, count = operator.index(row), len(self)
        if not -count <= row < count:
            raise IndexError(f"row {row} of {count} in {self.path}")
        sample = self._read(row % count)
        return {ID: sample.pop(ID), **sample}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[row] for row in range(len(self)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in self.pickled}

    @property
    def _here(self) -> dict[str, Any]:
        """What this process has open and holds."""
        if self._pid != os.getpid():
            self._open: dict[str, Any] = {}
            self._pid = os.getpid()
        return self._open


def open_nested(path: str | os.PathLike[str], *, root: str | None = None, id_field: str | None = None) -> NestedSource:
    """Open a data set of nested samples, by its suffix or, where that says nothing, by its content.

    `root` is the group of an HDF5 file below which every group is a sample; `id_field` the column of Parquet that holds the ids, instead
    of "id" or, if there is no such column, of row numbers.

    Raises:
        DataError: There is nothing there, or not nested samples.
        DamagedError: A file is truncated, altered or of another version.
        MissingExtraError: The library for this format is not installed.
    """
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path} does not exist")
    try:
        kind, files = _recognise(path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    if root is not None and kind != "hdf5":
        raise OptionError(f"root={root!r} is the group of an HDF5 file, and {path} is none")
    if id_field is not None and kind != "parquet":
        raise OptionError(f"id_field={id_field!r} is a column of Parquet, and {path} has none")
    if kind == "hdf5":
        from brim.data.nested.hdf5 import open_hdf5

        return open_hdf5(path, root=root)
    if kind == "npz":
        from brim.data.nested.npz import NpzSource

        return NpzSource(path, files)
    from brim.data.nested.parquet import NestedParquetSource

    return NestedParquetSource(path, files, id_field=id_field)


def write_nested(
    path: str | os.PathLike[str],
    samples: Iterable[Mapping[str, Any]],
    *,
    shard_samples: int | None = None,
    progress: Progress | None = None,
) -> None:
    """Write samples, in their order and under their ids: HDF5 for .h5 and .hdf5, one NPZ file for .npz, else a directory of NPZ shards.

    A sample without an id is called by its number. HDF5 is written as a stream; a shard of NPZ is in memory until it is full, after
    `shard_samples` samples (1,000). What is at `path` stays until everything is written. `progress` is called with the number of samples
    written and the number of all, which is 0 where it is not known.

    Raises:
        DataError: A sample cannot be batched, an id comes twice, or there are no samples.
        OptionError: The target cannot be written, or is not a format that is written.
    """
    target, counted = Path(path), _counted(samples, progress)
    suffix = target.suffix.lower()
    if suffix in HDF5_SUFFIXES + NPZ_SUFFIXES:
        if shard_samples is not None:
            raise OptionError(f"shard_samples={shard_samples} is for a directory of shards, and {target} is one file")
        check_target(target)
        if target.exists() and not target.is_file():
            raise OptionError(f"cannot write {target}: it is not a regular file")
    if suffix in HDF5_SUFFIXES:
        from brim.data.nested.hdf5 import write_hdf5

        write_hdf5(target, counted)
    elif suffix in NPZ_SUFFIXES:
        from brim.data.nested.npz import write_npz

        write_npz(target, counted)
    else:
        from brim.data.nested.npz import SHARD_SAMPLES, write_shards

        _check_directory(target, named_so=os.fspath(path).endswith(os.sep))
        check_counts(shard_samples=shard_samples)
        write_shards(target, counted, shard_samples or SHARD_SAMPLES)


def _check_directory(target: Path, *, named_so: bool) -> None:
    """A name with a suffix that is not known is more likely a mistake than a directory."""
    suffix = target.suffix.lower()
    if suffix in PARQUET_SUFFIXES:
        raise OptionError(
            f"cannot write {target}: a column of Parquet has one type for all rows, and nested samples need not; write .h5 or a directory"
        )
    if suffix and not target.is_dir() and not named_so:
        raise OptionError(f"cannot write {target}: {suffix!r} is not a format that is written; use .h5, .npz, or a directory: {target}/")


def _counted(samples: Iterable[Mapping[str, Any]], progress: Progress | None) -> Iterator[Mapping[str, Any]]:
    total = operator.length_hint(samples)
    for done, sample in enumerate(samples, 1):
        yield sample
        if progress is not None and (done % 1000 == 0 or done == total):
            progress(done, total)


def _recognise(path: Path) -> tuple[str, list[Path]]:
    if path.is_dir():
        return _recognise_directory(path)
    if not path.is_file():
        raise DataError(f"{path} is not a regular file")
    with open(path, "rb") as file:
        head = file.read(8)
    if not head:
        raise DataError(f"{path} is empty")
    suffix = path.suffix.lower()
    kinds = {"hdf5": HDF5_SUFFIXES, "npz": NPZ_SUFFIXES, "parquet": PARQUET_SUFFIXES}
    kind = next((kind for kind, suffixes in kinds.items() if suffix in suffixes), None)
    found = next((kind for magic, kind in MAGIC.items() if head.startswith(magic)), None)
    if kind is not None and found is not None and kind != found:
        raise DataError(f"{path} is by its content a file of {found}, not {kind}; rename it to end in {kinds[found][0]}")
    if (kind or found) is None:
        raise DataError(f"{path}: unknown kind of file {path.suffix!r}; {READABLE}")
    return cast(str, kind or found), [path]


def _recognise_directory(path: Path) -> tuple[str, list[Path]]:
    inside = sorted((file for file in path.iterdir() if not file.name.startswith((".", "_"))), key=lambda file: natural(file.name))
    for kind, other, suffixes in (("npz", PARQUET_SUFFIXES, NPZ_SUFFIXES), ("parquet", NPZ_SUFFIXES, PARQUET_SUFFIXES)):
        if files := [file for file in inside if file.suffix.lower() in suffixes and file.is_file()]:
            if mixed := [file for file in inside if file.suffix.lower() in other]:
                raise DataError(f"{path} holds two formats, such as {files[0].name} and {mixed[0].name}; give each its own directory")
            return kind, files
    alone = [file for file in inside if file.suffix.lower() in HDF5_SUFFIXES]
    raise DataError(f"{path} is a directory that is not a data set; {f'did you mean {alone[0]}?' if alone else READABLE}")


def with_lists(tree: Any, is_list: Callable[[ListPath], bool] = lambda path: False, path: ListPath = ()) -> Any:
    """The same, with lists for all dicts but the outermost whose keys are exactly 0 .. n - 1. `is_list` decides what an empty one is."""
    if not isinstance(tree, dict):
        return tree
    found = cast(dict[str, Any], tree)
    if path and is_numbered(found) and (found or is_list(path)):
        return [with_lists(found[str(number)], is_list, (*path, "")) for number in range(len(found))]
    return {key: with_lists(value, is_list, (*path, key)) for key, value in found.items()}


def is_numbered(names: Collection[str]) -> bool:
    """Whether the names are exactly 0 .. n - 1, in any order."""
    return all(str(number) in names for number in range(len(names)))


def stored_id(value: Any, where: str) -> SampleId:
    """The id that a file has for a sample.

    Raises:
        DataError: It is neither text nor an integer. `where` names the file.
    """
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, bool) or not isinstance(plain, str | bytes | int):
        what = repr(plain) if isinstance(plain, bool | float) else f"of type {type(plain).__name__}"
        raise DataError(f"{where}: the id of a sample is {what}; an id is a string or an integer")
    try:
        id = plain.decode() if isinstance(plain, bytes) else plain
        str(id).encode()
    except UnicodeError:
        raise DataError(f"{where}: the id {plain!r} is not text in UTF-8; give the sample another") from None
    return id


def stand_in(dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """An array of this shape that takes no memory: it has a structure and lengths, and zeros for data."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def stamp(descriptor: int) -> Stamp:
    """Of a file that is open."""
    found = os.fstat(descriptor)
    return found.st_ino, found.st_size, found.st_mtime_ns


def changed(path: Path) -> MismatchError:
    return MismatchError(f"{path} is not the file that was opened: it was changed or replaced since; open the data set again")


def gone(path: Path) -> DataError:
    return DataError(f"{path} does not exist any more; open the data set again")


def spot_digest(path: Path, expected: Stamp) -> str:
    """A digest of a file that reads at most 4 MB of it: all of a small file; of a larger one its size and 256 places, evenly spaced.

    Other data of the same size gives another digest. A few bytes that were changed in a large file may not.

    Raises:
        MismatchError: The file has another stamp than the one expected.
    """
    hash, size = new_hash(), expected[1]
    hash.update(f"{size}\n".encode())
    try:
        with open(path, "rb") as file:
            if size <= SPOTS * SPOT_BYTES:
                hash.update(file.read(size))
            else:
                for spot in range(SPOTS):
                    file.seek((size - SPOT_BYTES) * spot // (SPOTS - 1))
                    hash.update(file.read(SPOT_BYTES))
            found = stamp(file.fileno())
    except FileNotFoundError:
        raise gone(path) from None
    if found != expected:
        raise changed(path)
    return hash.hexdigest()


@contextmanager
def interrupts_held() -> Generator[None, None, None]:
    """Ctrl-C takes effect when the block ends. For libraries that lose it, or that are left in a state they cannot be closed in."""
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(previous):
        yield
        return
    came: list[tuple[int, Any]] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
    if came:
        previous(*came[0])


class Recent:
    """The values that were used last, up to so many bytes; always at least one."""

    def __init__(self, limit: int = CACHE_BYTES) -> None:
        self._limit = limit
        self._values: dict[Any, tuple[Any, int]] = {}

    def get(self, key: Any, load: Callable[[], tuple[Any, int]]) -> Any:
        """The value of a key; `load` gives it with its size in bytes."""
        entry = self._values.pop(key, None) or load()
        self._values[key] = entry
        total = 0
        for number, older in enumerate(reversed(list(self._values))):
            total += self._values.get(older, (None, 0))[1]  # another thread may have taken it out
            if number and total > self._limit:
                self._values.pop(older, None)
        return entry[0]
