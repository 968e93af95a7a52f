"""Nested samples in HDF5: the layout that is written here, and the one that people have.

*Ours*, `brim.nested/1`, is the flat columns of `brim.data.nested_columns` as data sets of the same names: a sample costs one slice for each
of its arrays, however many samples there are. Data sets carry Fletcher-32 checksums and metadata those of HDF5 1.10, so a flipped byte is
an error when it is read, which names the sample. There are no variable-length types, which are slow, and no checksum covers.

*Groups*: every group below a root is a sample, and called by its name, in natural order (ep2 before ep10). Groups are dicts; groups whose
members are named exactly 0 .. n - 1 are lists; data sets are arrays, or with no axes numbers and text. Attributes of a group are more keys
of its dict, attributes of a list have no place and are refused, attributes of data sets and of the root are not read. An "id" in a sample
names it instead of the group's name.
"""

import os
import signal
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.core.atomic import atomic_file
from brim.core.errors import BrimError, DamagedError, DataError, MismatchError, OptionError
from brim.core.extras import need
from brim.core.fingerprint import fingerprint
from brim.core.sorting import natural
from brim.data.axes import measure_structures
from brim.data.ids import Ids
from brim.data.lengths import LengthCache
from brim.data.nested import NestedSource, spot_digest, stand_in, with_lists
from brim.data.nested_columns import FORMAT, FlatBuffer, FlatSamples, Tally, samples_fingerprint
from brim.data.structure import ID, PINNED

CHUNK_BYTES, SMALLEST_CHUNK = 64 << 10, 4 << 10
"""What is read and checked at once."""
BUFFER_BYTES = 32 << 20
"""Samples that a writer holds."""
OPEN_CACHE = 1 << 20
"""Bytes of chunks that HDF5 keeps for each data set; the default differs between its versions."""
END_OF_FILE = 28
"""Where the superblock of HDF5 1.10 says how long the file is; what was reserved beyond that is cut off."""
DEEPEST = 50
"""Groups in groups; deeper means that a link leads back up."""


def open_hdf5(path: Path, *, root: str | None = None) -> "FlatHdf5Source | GroupsHdf5Source":
    """
    Raises:
        DataError: It is not HDF5, or of a layout that is not known.
        DamagedError: It is truncated, altered or of another version.
    """
    with _file(path) as file, _reading(f"{path}"):
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
    """Write a file of `brim.nested/1`, whole or not at all. At most 32 MB of samples are held at a time, and an id for each."""
    h5py = need("h5py", extra="hdf5", user="brim.data.nested_hdf5")
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
    """A file of `brim.nested/1`. Its fingerprint covers every id and every value, and is the same for the same samples in NPZ."""

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
            with _reading(f"{self.path}"):
                flat = FlatSamples(_DataSets(file), str(self.path))
            if self._fingerprint and samples_fingerprint(flat.digests) != self._fingerprint:
                raise MismatchError(f"{self.path} holds other samples than when it was opened; open it again")
            here["flat"] = flat
        return here["flat"]


class GroupsHdf5Source(NestedSource):
    """A file in which every group below `root` is a sample.

    The fingerprint covers `root` and the file's bytes, if it is larger than 4 MB at 256 places only: other samples of the same size give
    another one, a few values that were changed in place may not.
    """

    pickled = ("path", "root")
    _fingerprint: str | None = None

    def __init__(self, path: Path, *, root: str | None = None) -> None:
        self.path, self.root = path, root or "/"
        _ = self._names

    def __len__(self) -> int:
        return len(self._names)

    @property
    def ids(self) -> Ids:
        return self.table.ids

    @property
    def fingerprint(self) -> str:
        if self._fingerprint is None:
            self._fingerprint = fingerprint(file=spot_digest(self.path), root=self.root.strip("/"))
        return self._fingerprint

    def _measure(self) -> LengthCache:
        try:
            return measure_structures(_Shapes(self)).with_hashes(self.fingerprint, "")
        except DataError as error:
            raise DataError(f"{self.path}: {error}") from None

    def shapes(self, row: int) -> dict[str, Any]:
        """A sample with stand-ins for its arrays, of which nothing is read."""
        return self._walk(row, _shape)

    def _read(self, row: int) -> dict[str, Any]:
        return self._walk(row, _value)

    def _walk(self, row: int, leaf: Any) -> dict[str, Any]:
        name = self._names[row]
        with _reading(f"{self.path}: sample {name!r}"):
            try:
                found: dict[str, Any] = with_lists(_members(self._here["root"][name], "", leaf))
            except DataError as error:
                raise DataError(f"{self.path}: sample {name!r}: {error}") from None
        id = found.pop(ID, name)
        return {ID: id.decode() if isinstance(id, bytes) else str(id), **found}

    @property
    def _names(self) -> list[str]:
        here = self._here
        if "names" not in here:
            here["root"], here["names"] = _samples_below(_open(self.path), self.path, self.root)
        return here["names"]


class _Shapes:
    """The samples of a source with stand-ins for their arrays, for `measure_structures`."""

    def __init__(self, source: GroupsHdf5Source) -> None:
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, row: int) -> dict[str, Any]:
        return self._source.shapes(row)


class _DataSets(Mapping[str, Any]):
    """The data sets of a file by name, each opened once: a data set that is opened again has lost its cache of chunks."""

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
    with _interrupts_held():
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


@contextmanager
def _interrupts_held() -> Generator[None, None, None]:
    """Ctrl-C takes effect when the block ends: inside h5py it is mostly lost, in the callbacks that clean up after its objects."""
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


def _reserve(descriptor: int, size: int, columns: Mapping[str, NDArray[Any]]) -> None:
    """Take the space before HDF5 does: after a write that failed it crashes the process, at the latest when that exits."""
    if hasattr(os, "posix_fallocate"):  # macOS has none
        more = sum(column.nbytes + column[:1].nbytes + 2 * CHUNK_BYTES for column in columns.values())
        os.posix_fallocate(descriptor, 0, size + more + more // 8 + CHUNK_BYTES)


def _members(group: Any, path: str, leaf: Any) -> dict[str, Any]:
    """The contents of a group as a dict; `leaf` makes something of a data set."""
    h5py = need("h5py", extra="hdf5", user="brim.data.nested_hdf5")
    if path.count("/") >= DEEPEST:
        raise DataError(f"{path[:60]}.. has groups in groups without end; does a link lead back up?")
    found: dict[str, Any] = {}
    for name in group:
        inside = f"{path}/{name}" if path else name
        member = group.get(name)
        if member is None:
            raise DataError(f"{inside} is a link that leads nowhere")
        found[name] = leaf(member, inside) if isinstance(member, h5py.Dataset) else _members(member, inside, leaf)
    for name in group.attrs:
        if name in found:
            raise DataError(f"{path or 'the sample'} has both a member and an attribute {name!r}")
        if path and found and found.keys() == {str(number) for number in range(len(found))}:
            raise DataError(f"{path} is a list, and has an attribute {name!r}, for which a list has no place")
        found[name] = _plain(group.attrs[name], f"{path}/{name}")
    return found


def _value(dataset: Any, path: str) -> Any:
    h5py = need("h5py", extra="hdf5", user="brim.data.nested_hdf5")
    if dataset.shape is None:
        raise DataError(f"{path} is empty: it has no shape, and no number either")
    if dataset.shape == () and h5py.check_string_dtype(dataset.dtype) is not None:
        return dataset.asstr()[()]
    return _plain(dataset[()], path)


def _shape(dataset: Any, path: str) -> Any:
    if not dataset.shape or path in (ID, *PINNED):
        return _value(dataset, path)
    return stand_in(dataset.dtype, dataset.shape) if dataset.dtype.kind in "biufc" else _plain(np.empty(0, dataset.dtype), path)


def _plain(value: Any, path: str) -> Any:
    """Numbers in the byte order of this machine, or text."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        return bytes(value)
    if not isinstance(value, np.ndarray | np.generic) or value.dtype.kind not in "biufc":
        raise DataError(f"{path} is {getattr(value, 'dtype', type(value).__name__)}, which cannot be batched; arrays hold numbers")
    return value.astype(value.dtype.newbyteorder("="), copy=False)


def _samples_below(file: Any, path: Path, root: str) -> tuple[Any, list[str]]:
    h5py = need("h5py", extra="hdf5", user="brim.data.nested_hdf5")
    with _reading(f"{path}"):
        group = file.get(root)
        if not isinstance(group, h5py.Group):
            raise DataError(f"{path} has no group {root!r}; at its top are: {', '.join(list(file)[:10]) or 'nothing'}")
        names = sorted(group, key=natural)
        for name in names:
            if group.get(name, getclass=True) is not h5py.Group:
                raise DataError(
                    f"{path}: {root.rstrip('/')}/{name} is not a group, and every group below {root} is a sample;"
                    f" name the group that holds the samples: root='/{name}'"
                )
    if not names:
        raise DataError(f"{path} has no samples: there is nothing in {root}")
    return group, names


@contextmanager
def _file(path: Path) -> Generator[Any, None, None]:
    file = _open(path)
    try:
        yield file
    finally:
        file.close()


def _open(path: Path) -> Any:
    h5py = need("h5py", extra="hdf5", user="brim.data.nested_hdf5")
    try:
        return h5py.File(path, "r", rdcc_nbytes=OPEN_CACHE)
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        if not os.path.exists(path):
            raise DataError(f"{path} does not exist") from None
        if not h5py.is_hdf5(path):
            raise DataError(f"{path} is not an HDF5 file, or its beginning is damaged") from None
        raise DamagedError(f"{path} cannot be opened ({_words(error)}); write or fetch it again") from None


@contextmanager
def _reading(where: str) -> Generator[None, None, None]:
    """What h5py raises for bytes that make no sense depends on the bytes."""
    try:
        yield
    except BrimError:
        raise
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, MemoryError) as error:
        raise DamagedError(f"{where} is damaged and cannot be read ({_words(error)}); write or fetch it again") from None


def _words(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
