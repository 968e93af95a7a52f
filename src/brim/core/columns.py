"""A file of named columns, memory-mapped.

Layout: a line with the format's name and version, padded to 64 bytes; the columns, each starting at a multiple of 64; a
JSON index (metadata, and for each column its dtype, size, place and checksum); a last line of 64 bytes with the index's
size and checksum. Opening a file reads a few hundred bytes however long it is, a truncated file has no last line, and
nothing is read unverified. Nothing is ever unpickled. To replace a file that may be open, rename another one over it
(as `write_columns` does): whoever writes into a mapped file changes what was verified, and cutting it off ends the
processes that map it.

A column has one checksum for all its bytes, or one for each of its blocks. The first is for files that are always read
whole. The second is for those of which a few rows are read at a time: the lists of checksums lie behind the column, and
the index has their root (`brim.core.blocks`). The index says which it is, for each column.
"""

import json
import mmap
import os
import shutil
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from brim.core.atomic import atomic_file
from brim.core.blocks import ONE_BLOCK, Blocks, GrowingTree, HashTree, list_sizes
from brim.core.column import Column
from brim.core.errors import DamagedError, DataError
from brim.core.fingerprint import array_bytes, canonical_json, digest_bytes

ALIGN = 64
COPY_BYTES = 1 << 20


def write_columns(
    target: str | os.PathLike[str],
    format: str,
    meta: Mapping[str, Any],
    columns: Mapping[str, NDArray[Any] | Column],
    *,
    blocks: bool = False,
) -> None:
    """Write a file of `format` (such as "brim.lengths/2") whole or not at all. Equal contents give equal bytes.

    `blocks` gives every block of a column a checksum of its own.
    """
    with atomic_file(target) as file:
        file.write(_head(format))
        places = {name: _write_column(file, Column.of(column), blocks) for name, column in columns.items()}
        _write_index(file, format, meta, places)


@contextmanager
def stream_columns(
    target: str | os.PathLike[str], format: str, dtypes: Mapping[str, str]
) -> Generator["ColumnStream", None, None]:
    """The same with checksums of blocks, for columns that do not fit in memory and whose sizes are not known yet: each
    is appended to, piece by piece.

    The first column goes straight to its place; the others wait in unnamed files beside the target until it is
    complete. `meta` of the stream is written at the end, so what is learned on the way can be part of it.
    """
    with atomic_file(target) as file, ExitStack() as stack:
        file.write(_head(format))
        folder = Path(os.path.realpath(target)).parent
        waiting = [stack.enter_context(TemporaryFile(dir=folder)) for _ in range(len(dtypes) - 1)]
        stream = ColumnStream(dict(zip(dtypes, [file, *waiting], strict=True)), dtypes)
        yield stream
        places = stream.close(file)
        _write_index(file, format, stream.meta, places)


class ColumnStream:
    """Columns of a new file that are still growing."""

    def __init__(self, files: Mapping[str, IO[bytes]], dtypes: Mapping[str, str]) -> None:
        self.meta: dict[str, Any] = {}
        self._files = files
        self._dtypes = {name: np.dtype(dtype).newbyteorder("<") for name, dtype in dtypes.items()}
        self._sizes = dict.fromkeys(dtypes, 0)
        self._trees = {name: GrowingTree() for name in dtypes}

    def append(self, name: str, values: NDArray[Any]) -> None:
        data = array_bytes(values.astype(self._dtypes[name], copy=False))
        self._files[name].write(data)
        self._trees[name].update(data)
        self._sizes[name] += values.size

    def close(self, file: IO[bytes]) -> dict[str, dict[str, Any]]:
        """Put the columns that waited behind the first one, and say where each of them lies."""
        places: dict[str, dict[str, Any]] = {}
        start = ALIGN
        for name, source in self._files.items():
            if source is not file:
                source.seek(0)
                shutil.copyfileobj(source, file, COPY_BYTES)
            _pad(file)
            places[name] = {"dtype": self._dtypes[name].str, "size": self._sizes[name], "start": start}
            places[name] |= _write_lists(file, self._trees[name].close())
            start = file.tell()
        return places


def _write_column(file: IO[bytes], column: Column, blocks: bool) -> dict[str, Any]:
    data = array_bytes(column.whole)
    place = {"dtype": column.dtype.newbyteorder("<").str, "size": data.nbytes // column.dtype.itemsize}
    place |= {"start": file.tell()}
    file.write(data)
    _pad(file)
    return place | (_write_lists(file, column.tree) if blocks else {"checksum": digest_bytes(data)})


def _write_lists(file: IO[bytes], tree: HashTree) -> dict[str, Any]:
    place = {"lists": file.tell(), "root": tree.root}
    for checksums in tree.lists:
        file.write(checksums)
    _pad(file)
    return place


def _pad(file: IO[bytes]) -> None:
    file.write(b"\0" * (-file.tell() % ALIGN))


def _head(format: str) -> bytes:
    return f"{format}\n".encode().ljust(ALIGN, b"\0")


def _write_index(file: IO[bytes], format: str, meta: Mapping[str, Any], places: Mapping[str, Any]) -> None:
    index = canonical_json({"format": format, "meta": dict(meta), "columns": places})
    file.write(index)
    file.write(f"{len(index)} {digest_bytes(index)}".encode().ljust(ALIGN - 1) + b"\n")


class Columns:
    """A file of columns, open for reading. Pickles as its path, so it can be sent to worker processes."""

    def __init__(
        self, path: str | os.PathLike[str], format: str, *, older: tuple[str, ...] = (), check: bool = True
    ) -> None:
        """Open without reading the columns. `check=False` verifies nothing: for a file that another process has
        verified.

        Args:
            older: Earlier versions of the format that are read, too.

        Raises:
            DataError: There is no such file, or it is of another kind.
            DamagedError: It is truncated, its index is altered, or it is of another version.
        """
        self.path, self._formats, self._check = Path(path), (format, *older), check
        self._map = _map(self.path)
        index = self._read_index()
        self.format: str = index["format"]
        self.meta: dict[str, Any] = index["meta"]
        self._places: dict[str, dict[str, Any]] = index["columns"]
        self._columns: dict[str, Column] = {}

    def __reduce__(self) -> Any:
        return (_reopen, (self.path, self._formats))

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """The numbers of a column, read-only, mapped from the file; checked once against their checksums.

        Raises:
            DamagedError: The bytes are not the ones that were written.
        """
        return self.column(name).whole

    def get(self, name: str) -> NDArray[Any] | None:
        """The numbers of a column, or None if there is none of this name."""
        return self[name] if name in self._places else None

    def column(self, name: str) -> Column:
        """The column, of which only what is read is verified. One with a single checksum is verified as a whole."""
        if name not in self._columns:
            self._columns[name] = self._open(name)
        return self._columns[name]

    def verify(self) -> None:
        """Read all columns.

        Raises:
            DamagedError: The bytes of one are not the ones that were written.
        """
        for name in self:
            _ = self[name]

    def _open(self, name: str) -> Column:
        place, what = self._places[name], f"{self.path}: column {name!r}"
        if _end(place) > len(self._map):
            raise DamagedError(f"{self.path} is damaged (bytes of column {name!r} are missing); write the file again")
        values = np.frombuffer(self._map, np.dtype(place["dtype"]), place["size"], place["start"])
        data = self._map[place["start"] : place["start"] + values.nbytes]
        if "root" not in place:
            checksum = bytes.fromhex(place["checksum"])
            return Column(values, Blocks(data, checksum, bits=ONE_BLOCK) if self._check else None, what=what)
        tree = HashTree.read(self._map[place["lists"] :], values.nbytes, place["root"])
        return Column(values, Blocks.under(tree, data) if self._check else None, tree=tree, what=what)

    def _read_index(self) -> dict[str, Any]:
        format = self._formats[0]
        kind = format.split("/")[0]
        head = bytes(self._map[:ALIGN]).split(b"\n")[0].decode("ascii", "replace")
        if head.split("/")[0] != kind:
            raise DataError(f"{self.path} is not a {kind} file")
        if head not in self._formats:
            raise DamagedError(f"{self.path} is of version {head}, this brim reads {format}; write the file again")
        try:
            size, checksum = bytes(self._map[-ALIGN:]).split()
            index = bytes(self._map[-ALIGN - int(size) : -ALIGN])
            whole = self._map[-1] == ord("\n") and digest_bytes(index) == checksum.decode()
        except ValueError:
            whole, index = False, b""
        if not whole:
            raise DamagedError(f"{self.path} is truncated or damaged (its index is not readable); write the file again")
        return json.loads(index)


def _end(place: Mapping[str, Any]) -> int:
    """Return the offset at which a column and its lists of checksums end."""
    nbytes = place["size"] * np.dtype(place["dtype"]).itemsize
    if "lists" not in place:
        return place["start"] + nbytes
    return max(place["start"] + nbytes, place["lists"] + sum(list_sizes(nbytes)))


def _reopen(path: Path, formats: tuple[str, ...]) -> Columns:
    return Columns(path, formats[0], older=formats[1:])


def is_columns(path: Path, format: str) -> bool:
    """Whether the file starts like one of this kind, whatever its version."""
    kind = format.split("/")[0].encode() + b"/"
    with open(path, "rb") as file:
        return file.read(len(kind)) == kind


def _map(path: Path) -> memoryview:
    try:
        with open(path, "rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except ValueError:
        raise DataError(f"{path} is empty") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
