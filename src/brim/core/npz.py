"""NPZ files without pickle: arrays by name in a zip archive, read one at a time, and written the same way everywhere.

Reading trusts nothing. A member has to be an array of numbers or text, exactly as large as its header says, under its
own checksum; the sizes are compared before the data is read, so a header alone never makes anybody allocate anything.
No object array is ever decoded, so no file can run anything. Writing is deterministic: equal arrays give equal bytes,
whenever, wherever and under whichever NumPy they are written. `np.load` reads what is written here.
"""

import io
import re
import zipfile
import zlib
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import stand_in
from brim.core.fingerprint import array_bytes
from brim.core.interrupts import interrupts_held

MAGIC = b"\x93NUMPY\x01\x00"
GROWTH_DIGITS = 21
"""Digits for which NumPy leaves room in a header, so that the first axis can grow in place."""
LARGE = 1 << 31
"""Bytes from which on a member of an archive needs sizes of 64 bits."""
COUNT = rb"(?:0|[1-9][0-9]{0,18})"
USUAL = re.compile(
    rb"\{'descr': '([<>|][a-zA-Z][0-9]{1,9})', 'fortran_order': (False|True), "
    rb"'shape': \((|%b,|%b(?:, %b)+)\), \} *\n" % (COUNT, COUNT, COUNT)
)
"""A header of version 1.0 as NumPy and brim write it. NumPy's own parser reads any, and takes ten times as long."""


class NpzError(Exception):
    """The reason why an archive cannot be read: a clause for a sentence that names the file."""


class NotPlainError(NpzError):
    """An archive is whole, but holds something other than arrays of numbers and text."""


class _Head(NamedTuple):
    """The description of an array that stands before its data."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    by_columns: bool

    @property
    def nbytes(self) -> int:
        """The number of bytes that the data must have."""
        return prod(self.shape) * self.dtype.itemsize


class NpzArchive(Mapping[str, Any]):
    """The arrays of an NPZ file by name. Each is read when it is asked for, and checked against its checksum.

    An array that was read is in native byte order, in C order, writable, and in memory of its own.
    """

    def __init__(self, file: Path | IO[bytes], *, stored: bool = False) -> None:
        """Read the list of the arrays and nothing else.

        Args:
            file: A path, or a file that is open for reading.
            stored: Refuse compressed arrays and directories, as no file has that is written here.

        Raises:
            FileNotFoundError: There is no such file.
            NpzError: It is no NPZ file, is damaged, or holds an array twice.
            NotPlainError: It holds something that is not an array.
        """
        with _damage():
            self._archive = zipfile.ZipFile(file)
        try:
            self.members = _members(self._archive, stored)
        except BaseException:  # Ctrl-C too: the file is closed
            self._archive.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._archive.close()

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Read an array.

        Raises:
            KeyError: There is no array of this name.
            NpzError: It is damaged.
            NotPlainError: It is no array of numbers or text.
        """
        member = self.members[name]
        with _damage(), self._open(member) as file:
            head = _head(file, name, member.file_size)
            array = np.frombuffer(file.read(), head.dtype).reshape(head.shape, order="F" if head.by_columns else "C")
            return np.array(array, head.dtype.newbyteorder("="), order="C")

    def _open(self, member: zipfile.ZipInfo) -> IO[bytes]:
        """Open a member to read all of it: at once, unless it is compressed and may be larger than the file."""
        if member.compress_type == zipfile.ZIP_STORED:
            return io.BytesIO(self._archive.read(member))
        return self._archive.open(member)

    def outline(self, name: str) -> NDArray[Any]:
        """Return a stand-in for an array, of its type and shape: only the header is read. An array without axes is
        read.

        It raises what reading the array raises, but checks no checksum.
        """
        member = self.members[name]
        with _damage(), self._archive.open(member) as file:
            head = _head(file, name, member.file_size)
            if head.shape:
                return stand_in(head.dtype, head.shape)
        return self[name]

    def __contains__(self, name: object) -> bool:
        return name in self.members

    def __iter__(self) -> Iterator[str]:
        return iter(self.members)

    def __len__(self) -> int:
        return len(self.members)


def write_npz(file: IO[bytes], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays of numbers or text as an archive without compression. Equal arrays give equal bytes."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            with interrupts_held():
                _write(archive, name, array)


def npz_bytes(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return what `write_npz` would write."""
    buffer = io.BytesIO()
    with interrupts_held(), zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            _write(archive, name, array)
    return buffer.getvalue()


def _write(archive: zipfile.ZipFile, name: str, array: NDArray[Any]) -> None:
    """Write one array. The caller holds interrupts back: one between opening a member and the block that closes it
    would leave an archive that cannot be closed.
    """
    info = zipfile.ZipInfo(f"{name}.npy")  # is dated 1980, whatever the time
    info.create_system = 3  # and from Unix, whatever the machine
    with archive.open(info, "w", force_zip64=array.nbytes >= LARGE) as member:
        member.write(_header(array))
        member.write(array_bytes(array))


def _header(array: NDArray[Any]) -> bytes:
    """Return a header of version 1.0 as NumPy writes it, but the same under every NumPy."""
    words = f"{{'descr': '{array.dtype.newbyteorder('<').str}', 'fortran_order': False, 'shape': {array.shape}, }}"
    if array.shape:
        words += " " * (GROWTH_DIGITS - len(str(array.shape[0])))
    padding = " " * (-(len(MAGIC) + 2 + len(words) + 1) % 64)
    header = f"{words}{padding}\n".encode()
    return MAGIC + len(header).to_bytes(2, "little") + header


def _members(archive: zipfile.ZipFile, stored: bool) -> dict[str, zipfile.ZipInfo]:
    members: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        if member.is_dir() and not stored:
            continue
        if not member.filename.endswith(".npy") or (stored and member.compress_type != zipfile.ZIP_STORED):
            raise NotPlainError(f"{member.filename!r} is not a plain array")
        name = member.filename.removesuffix(".npy")
        if name in members:
            raise NpzError(f"it holds {name!r} twice")
        members[name] = member
    return members


def _head(file: IO[bytes], name: str, size: int) -> _Head:
    """Read the header at the beginning of a member of `size` bytes, and check that the rest is as large as it says."""
    try:
        head = _usual_head(file) or _any_head(file, name)
    except (NpzError, zipfile.BadZipFile, zlib.error, EOFError, OSError):
        raise
    except Exception:  # whatever Python's parser raises for bytes that are no literal, and NumPy for other literals
        raise NpzError(f"{name!r} has no readable header") from None
    if head.dtype.hasobject:
        raise NotPlainError(f"{name!r} holds Python objects, which are never loaded")
    rest = size - file.tell()
    if rest != head.nbytes:
        raise NpzError(f"{name!r} has {rest} bytes, which is not the shape {head.shape}")
    return head


def _usual_head(file: IO[bytes]) -> _Head | None:
    """Read a header of the usual form; None, and the file at its beginning again, if it has another."""
    start = file.read(len(MAGIC) + 2)
    if start.startswith(MAGIC):
        words = USUAL.fullmatch(file.read(int.from_bytes(start[len(MAGIC) :], "little")))
        if words is not None:
            counts = tuple(int(count) for count in words[3].split(b",") if count)
            return _Head(np.dtype(words[1].decode()), counts, words[2] == b"True")
    file.seek(0)
    return None


def _any_head(file: IO[bytes], name: str) -> _Head:
    """Read a header of any form. NumPy parses it as a literal: nothing in it is evaluated."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise NotPlainError(f"{name!r} is not an array of numbers or text")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, by_columns, dtype = read(file)
    return _Head(dtype, shape, by_columns)


@contextmanager
def _damage() -> Generator[None, None, None]:
    """Turn what zipfile and NumPy raise for an archive that is cut off or altered into the one error for it."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        OSError,
        ValueError,
        NotImplementedError,
        RuntimeError,
        OverflowError,
        MemoryError,
    ):
        # All but the first are for headers that make no sense: an unknown method, a place before the beginning.
        raise NpzError("it is cut off or altered") from None
