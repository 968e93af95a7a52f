"""Nested samples in HDF5, in two layouts: flat columns, which are also written, and groups, which are only read.

*Flat columns*, `brim.nested/1`: the columns of `brim.data.nested.columns` as data sets of the same names. Reading a
sample takes one slice for each of its arrays, however many samples there are. Data sets have Fletcher-32 checksums and
metadata those of HDF5 1.10, so reading a flipped byte is an error, which names the sample. There are no variable-length
types, which are slow and which no checksum covers.

*Groups*: every group below a root is a sample, in natural order of their names (ep2 before ep10); `hdf5_groups` defines
its contents. The id of a sample is its "id", text or an integer, or else the name of its group; either way it is text.
"""

import os
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.core.atomic import atomic_file
from brim.core.errors import BrimError, DamagedError, DataError, OptionError
from brim.core.extras import need
from brim.core.fingerprint import fingerprint
from brim.core.interrupts import interrupts_held
from brim.data.ids import Ids, stored_id
from brim.data.lengths import LengthCache
from brim.data.nested.columns import FORMAT, FlatBuffer, FlatSamples, Tally, samples_fingerprint
from brim.data.nested.files import Stamp, changed, gone, spot_digest, stamp
from brim.data.nested.hdf5_groups import lists_in, members, sample_names, shape_of, value_of
from brim.data.nested.lengths import measure_structures
from brim.data.nested.source import NestedSource
from brim.data.nested.structure import ID, ListPath, with_lists

CHUNK_BYTES, SMALLEST_CHUNK = 64 << 10, 4 << 10
"""Upper and lower limit of the bytes of a chunk, which is read and checked as a whole. It has at least one row."""
BUFFER_BYTES = 32 << 20
"""Bytes of samples that a writer buffers before it appends them to the file."""
OPEN_CACHE = 1 << 20
"""Bytes of the chunk cache of HDF5 for each data set. The default differs between its versions."""
END_OF_FILE = 28
"""Byte offset of the length of the file in the superblock of HDF5 1.10. Space reserved beyond that is truncated."""


def open_hdf5(path: Path, *, root: str | None = None) -> "FlatHdf5Source | GroupsHdf5Source":
    """Open an HDF5 file in either layout. `root` is the group that holds the samples, in a file of groups.

    Raises:
        DataError: The file is not HDF5, or its layout is unknown.
        DamagedError: It is truncated, altered or of another version.
    """
    with closing(_open(path)) as file, _reading(f"{path}"):
        format = file.attrs.get("format")
    name = format.decode("utf-8", "replace") if isinstance(format, bytes) else str(format)
    if name.split("/")[0] != FORMAT.split("/")[0]:
        return GroupsHdf5Source(path, root=root)
    if name != FORMAT:
        raise DamagedError(f"{path} is of version {name}, this brim reads {FORMAT}; write the file again")
    if root is not None:
        raise OptionError(f"root={root!r} is for files of groups; {path} is a file of {FORMAT}, which needs none")
    return FlatHdf5Source(path)


def write_hdf5(path: Path, samples: Iterable[Mapping[str, Any]]) -> None:
    """Write a file of `brim.nested/1`, whole or not at all.

    Samples are appended whenever more than 32 MB of them are buffered; the ids of all samples are held in memory.
    """
    h5py = need("h5py", extra="hdf5", user="brim.data.nested.hdf5")
    buffer = FlatBuffer()
    with atomic_file(path, mode="w+b") as place:
        with h5py.File(place.name, "w", libver="v110") as file:
            file.attrs["format"] = np.bytes_(FORMAT)
            for number, sample in enumerate(samples):
                buffer.add(sample, number)
                if buffer.nbytes > BUFFER_BYTES:
                    _append(file, buffer.take(), place.fileno())
            _append(file, {**buffer.take(), **buffer.id_columns()}, place.fileno())
        place.truncate(int.from_bytes(os.pread(place.fileno(), 8, END_OF_FILE), "little"))


class FlatHdf5Source(NestedSource):
    """A file of `brim.nested/1`.

    Its fingerprint covers every id and every value, and is the same for the same samples in NPZ.
    """

    pickled = ("path", "_fingerprint")

    def __init__(self, path: Path) -> None:
        self.path, self._fingerprint = path, ""
        self._fingerprint = samples_fingerprint(self._flat.digests)

    def __len__(self) -> int:
        return len(self._flat)

    @property
    def ids(self) -> Ids:
        return self._flat.ids

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    def _measure(self) -> LengthCache:
        tally = Tally()
        with _reading(f"{self.path}"):
            self._flat.tally(tally)
        return tally.table(self.ids, self.fingerprint)

    def _read(self, row: int) -> dict[str, Any]:
        flat = self._flat
        with _reading(f"{self.path}: sample {flat.ids[row]!r} (row {row})"):
            return {ID: flat.ids[row], **flat.sample(row)}

    @property
    def _flat(self) -> FlatSamples:
        here = self._here
        if "flat" not in here:
            file = _open(self.path)
            try:
                with _reading(f"{self.path}"):
                    flat = FlatSamples(_DataSets(file), str(self.path))
            except DamagedError as error:
                raise changed(self.path) if self._fingerprint else error from None
            if self._fingerprint not in ("", samples_fingerprint(flat.digests)):
                raise changed(self.path)
            here["flat"] = flat
        return here["flat"]


class GroupsHdf5Source(NestedSource):
    """A file in which every group below `root` is a sample.

    The fingerprint covers `root` and the bytes of the file; of a file larger than 4 MB, only 256 pieces. Other samples
    of the same size give another one; a few values that were changed in place may not.
    """

    pickled = ("path", "root", "_stamp", "_lists")
    _fingerprint: str | None = None

    def __init__(self, path: Path, *, root: str | None = None) -> None:
        self.path, self.root = path, root or "/"
        self._stamp: Stamp | None = None
        self._lists: frozenset[ListPath] | None = None
        self._stamp = self._opened["stamp"]

    def __len__(self) -> int:
        return len(self._opened["names"])

    @property
    def ids(self) -> Ids:
        return self.table.ids

    @property
    def fingerprint(self) -> str:
        if self._fingerprint is None:
            self._fingerprint = fingerprint(
                file=spot_digest(self.path, self._opened["stamp"]), root=self.root.strip("/")
            )
        return self._fingerprint

    def _measure(self) -> LengthCache:
        try:
            return measure_structures(_Shapes(self)).with_hashes(self.fingerprint, "")
        except DataError as error:
            raise error if str(error).startswith(str(self.path)) else DataError(f"{self.path}: {error}") from None

    def shapes(self, row: int) -> dict[str, Any]:
        """Return a sample with stand-ins for its arrays, whose data is not read."""
        return self._walk(row, shape_of)

    def _read(self, row: int) -> dict[str, Any]:
        return self._walk(row, value_of)

    def _walk(self, row: int, leaf: Any) -> dict[str, Any]:
        root, name = self._opened["root"], self._opened["names"][row]
        with _reading(f"{self.path}: sample {name!r}"):
            try:
                found: dict[str, Any] = with_lists(members(root[name], "", leaf), self._is_list)
            except DataError as error:
                raise DataError(f"{self.path}: sample {name!r}: {error}") from None
        return {ID: str(stored_id(found.pop(ID, name), f"{self.path}: sample {name!r}")), **found}

    def _is_list(self, path: ListPath) -> bool:
        if self._lists is None:
            root, lists = self._opened["root"], set[ListPath]()
            for name in self._opened["names"]:
                with _reading(f"{self.path}: sample {name!r}"):
                    lists.update(lists_in(root[name], ()))
            self._lists = frozenset(lists)
        return path in self._lists

    @property
    def _opened(self) -> dict[str, Any]:
        here = self._here
        if "names" not in here:
            file = _open(self.path)
            found = stamp(file.id.get_vfd_handle())
            if self._stamp not in (None, found):
                file.close()
                raise changed(self.path)
            here["root"], names = self._samples(file)
            here["stamp"], here["names"] = found, names
        return here

    def _samples(self, file: Any) -> tuple[Any, list[str]]:
        """Return the root, and the names of the samples below it."""
        h5py = need("h5py", extra="hdf5", user="brim.data.nested.hdf5")
        with _reading(f"{self.path}"):
            group = file.get(self.root)
            if not isinstance(group, h5py.Group):
                top = ", ".join(map(str, list(file)[:10])) or "nothing"
                raise DataError(f"{self.path} has no group {self.root!r}; at its top are: {top}")
            try:
                names = sample_names(group, self.root)
            except DataError as error:
                raise DataError(f"{self.path}: {error}") from None
        if not names:
            raise DataError(f"{self.path} has no samples: there is nothing in {self.root}")
        return group, names


class _Shapes:
    """The samples of a source with stand-ins for their arrays, for `measure_structures`."""

    def __init__(self, source: GroupsHdf5Source) -> None:
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, row: int) -> dict[str, Any]:
        return self._source.shapes(row)


class _DataSets(Mapping[str, Any]):
    """The data sets of a file by name, each opened once: opening a data set again would lose its chunk cache."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._found: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._found:
            self._found[name] = self._file[name]
        return self._found[name]

    def __contains__(self, name: object) -> bool:
        return name in self._file

    def __iter__(self) -> Iterator[str]:
        return iter(self._file)

    def __len__(self) -> int:
        return len(self._file)


def _append(file: Any, columns: Mapping[str, NDArray[Any]], descriptor: int) -> None:
    with interrupts_held():  # h5py mostly loses an interrupt, in the callbacks that free its objects
        _reserve(descriptor, file.id.get_filesize(), columns)
        for name, column in columns.items():
            if name not in file:
                row = max(1, column[:1].nbytes)
                rows = max(1, min(CHUNK_BYTES // row, max(SMALLEST_CHUNK // row, len(column))))
                shape, chunks = column.shape, (rows, *column.shape[1:])
                file.create_dataset(name, data=column, maxshape=(None, *shape[1:]), chunks=chunks, fletcher32=True)
            else:
                dataset, before = file[name], file[name].shape[0]
                dataset.resize(before + len(column), axis=0)
                dataset[before:] = column
        file.flush()


def _reserve(descriptor: int, size: int, columns: Mapping[str, NDArray[Any]]) -> None:
    """Allocate the disk space before HDF5 does: after a failed write, HDF5 crashes the process, at the latest when it
    exits.
    """
    if hasattr(os, "posix_fallocate"):  # macOS has none
        more = sum(column.nbytes + column[:1].nbytes + 2 * CHUNK_BYTES for column in columns.values())
        os.posix_fallocate(descriptor, 0, size + more + more // 8 + CHUNK_BYTES)


def _open(path: Path) -> Any:
    h5py = need("h5py", extra="hdf5", user="brim.data.nested.hdf5")
    try:
        return h5py.File(path, "r", rdcc_nbytes=OPEN_CACHE)
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        if not os.path.exists(path):
            raise gone(path) from None
        if not h5py.is_hdf5(path):
            raise DataError(f"{path} is not an HDF5 file, or its beginning is damaged") from None
        raise DamagedError(f"{path} cannot be opened ({_words(error)}); write or fetch it again") from None


@contextmanager
def _reading(where: str) -> Generator[None, None, None]:
    """Turn errors of h5py into `DamagedError`. Which error it raises for damaged bytes depends on the bytes."""
    try:
        yield
    except BrimError:
        raise
    except (
        OSError,
        RuntimeError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        IndexError,
        OverflowError,
        MemoryError,
    ) as error:
        raise DamagedError(
            f"{where} is damaged and cannot be read ({_words(error)}); write or fetch it again"
        ) from None


def _words(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
