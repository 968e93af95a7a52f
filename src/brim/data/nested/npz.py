"""Nested samples in NPZ: shards of many samples, which are also written, and files of one sample, which are only read.

A file whose member `format` is `brim.nested/1` is a shard: it holds many samples, in the flat columns of
`brim.data.nested.columns`. Any other file is one sample, whose keys are paths: "stages/0/states" is in the first of the
stages. Arrays without axes are numbers or text. The id of such a sample is its "id", text or an integer, or else the
name of the file without the suffix. A directory is all of its files, in natural order (ep2 before ep10).

Samples of a shard cannot be read one by one: a shard is read as a whole, checked against its checksums, and cached
while there is room. Reading many large shards in random order is slow; use HDF5 for that. Nothing is ever unpickled.
"""

import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from brim.core.atomic import atomic_directory, atomic_file
from brim.core.errors import DamagedError, DataError
from brim.core.fingerprint import canonical_json, new_hash
from brim.core.npz import NotPlainError, NpzArchive, NpzError, write_npz
from brim.data.ids import Ids, SampleId, stored_id
from brim.data.lengths import LengthCache
from brim.data.nested.columns import FORMAT, Arrays, FlatBuffer, FlatSamples, Tally, samples_fingerprint
from brim.data.nested.files import Recent, changed, gone
from brim.data.nested.source import NestedSource
from brim.data.nested.structure import ID, PINNED, outline, with_lists

SHARD_SAMPLES = 1000
SHARD = re.compile(r"shard-\d{5,}\.npz")
LEAF = re.compile(r"structures/\d+/\d+")


def write_file(path: Path, samples: Iterable[Mapping[str, Any]]) -> None:
    """Write one file of `brim.nested/1`, whole or not at all. All samples are held in memory until then."""
    buffer = FlatBuffer()
    for number, sample in enumerate(samples):
        buffer.add(sample, number)
    with atomic_file(path) as file:
        _write(file, buffer)


def write_shards(path: Path, samples: Iterable[Mapping[str, Any]], shard_samples: int) -> None:
    """Write a directory of shard-00000.npz and so on, whole or not at all.

    An existing directory is replaced only if it holds nothing but such shards.
    """
    numbered = enumerate(samples)
    ids: list[SampleId] = []
    with atomic_directory(path, replaces=_is_ours) as beside:
        for shard in range(1 << 62):
            buffer = FlatBuffer()
            for number, sample in islice(numbered, shard_samples):
                buffer.add(sample, number)
            if not buffer.ids and shard:
                break
            with atomic_file(beside / f"shard-{shard:05}.npz") as file:
                _write(file, buffer)
            ids += buffer.ids
        Ids.of(ids).refuse_duplicate("sample {}".format)


class NpzSource(NestedSource):
    """Samples of NPZ files.

    The fingerprint covers every id and every value; in files of one sample, by the CRC-32 of each array.
    """

    pickled = ("path", "_files", "_contents", "_starts", "_is_flat", "_ids", "_fingerprint")

    def __init__(self, path: Path, files: Sequence[Path]) -> None:
        """Read the ids and digests of the samples of all files.

        Raises:
            DataError: A file holds objects.
            DamagedError: A file is not NPZ, or is truncated, altered or of another version.
        """
        self.path, self._files = path, list(files)
        self._contents: list[str] = []
        starts, flat, digests, ids = [0], list[bool](), list[NDArray[np.uint8]](), list[Ids]()
        for file in self._files:
            with _archive(file) as archive:
                flat.append(_is_flat(archive))
                digest, id = _flat_names(archive) if flat[-1] else _single_name(archive)
                self._contents.append(archive.contents)
            digests.append(digest)
            ids.append(id)
            starts.append(starts[-1] + len(digest))
        self._starts, self._is_flat = np.array(starts), flat
        self._ids = ids[0] if len(ids) == 1 else Ids.of(id for part in ids for id in part)
        self._fingerprint = samples_fingerprint(np.concatenate(digests))

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def ids(self) -> Ids:
        return self._ids

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    def _measure(self) -> LengthCache:
        tally = Tally()
        for number, flat in enumerate(self._is_flat):
            with self._opened(number) as archive:
                if flat:
                    FlatSamples(_Heads(archive), str(archive.path)).tally(tally)
                else:
                    parts = outline(_single(archive, archive.outline))
                    tally.add(
                        [parts.structure], np.zeros(1, np.int64), [np.array([parts.lengths], np.int64).reshape(1, -1)]
                    )
        return tally.table(self._ids, self._fingerprint)

    def _read(self, row: int) -> dict[str, Any]:
        number = int(np.searchsorted(self._starts, row, side="right")) - 1
        if not self._is_flat[number]:
            with self._opened(number) as archive:
                return {**_single(archive, archive.__getitem__), ID: self._ids[row]}
        shard: FlatSamples = self._here.setdefault("recent", Recent()).get(number, lambda: self._load(number))
        return {ID: self._ids[row], **shard.sample(row - int(self._starts[number]))}

    def _load(self, number: int) -> tuple[FlatSamples, int]:
        with self._opened(number) as archive:
            arrays: Arrays = {name: archive[name] for name in archive}
        return FlatSamples(arrays, str(self._files[number])), sum(array.nbytes for array in arrays.values())

    @contextmanager
    def _opened(self, number: int) -> Generator["_Archive", None, None]:
        with _archive(self._files[number]) as archive:
            if archive.contents != self._contents[number]:
                raise changed(archive.path)
            yield archive


class _Archive(NpzArchive):
    """An NPZ file of nested samples."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path = path

    @property
    def contents(self) -> str:
        """A digest of the name, the checksum and the size of every array. No array is read for it."""
        hash = new_hash()
        hash.update(canonical_json(self.parts()))
        return hash.hexdigest()

    def parts(self) -> list[tuple[str, int, int]]:
        """The name, the checksum and the size of every array, sorted."""
        return sorted((name, member.CRC, member.file_size) for name, member in self.members.items())


class _Heads(Mapping[str, Any]):
    """The columns of a shard, with stand-ins for the leaves, whose data is not read."""

    def __init__(self, archive: _Archive) -> None:
        self._archive = archive

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._archive.outline(name) if LEAF.fullmatch(name) else self._archive[name]

    def __contains__(self, name: object) -> bool:
        return name in self._archive

    def __iter__(self) -> Iterator[str]:
        return iter(self._archive)

    def __len__(self) -> int:
        return len(self._archive)


@contextmanager
def _archive(path: Path) -> Generator[_Archive, None, None]:
    try:
        with _Archive(path) as archive:
            yield archive
    except FileNotFoundError:
        raise gone(path) from None
    except NotPlainError as error:
        raise DataError(f"{path}: {error}; nested samples are arrays of numbers and text: save it as such") from None
    except NpzError as error:
        raise DamagedError(f"{path} is not an NPZ file, or is damaged: {error}; write or fetch it again") from None


def _is_flat(archive: _Archive) -> bool:
    format = archive["format"].tobytes().decode("latin-1") if "format" in archive else ""
    if format.split("/")[0] != FORMAT.split("/")[0]:
        return False
    if format != FORMAT:
        raise DamagedError(f"{archive.path} is of version {format}, this brim reads {FORMAT}; write the file again")
    return True


def _flat_names(archive: _Archive) -> tuple[NDArray[np.uint8], Ids]:
    """Return the digests of the samples of a shard, and their ids."""
    flat = FlatSamples(archive, str(archive.path))
    return flat.digests, flat.ids


def _single_name(archive: _Archive) -> tuple[NDArray[np.uint8], Ids]:
    id = stored_id(_leaf(archive[ID]) if ID in archive else archive.path.stem, str(archive.path))
    hash = new_hash()
    hash.update(canonical_json([str(id), archive.parts()]))
    return np.frombuffer(bytes.fromhex(hash.hexdigest()), np.uint8)[None], Ids.of([id])


def _single(archive: _Archive, get: Any) -> dict[str, Any]:
    """Return a file of one sample as a nested dict, without its id. `get` returns the array of a name."""
    tree: dict[str, Any] = {}
    for name in archive:
        if name == ID:
            continue
        *parents, key = name.split("/")
        place: Any = tree
        for parent in parents:
            place = place.setdefault(parent, {}) if isinstance(place, dict) else None
        if not isinstance(place, dict) or key in place or not all((*parents, key)):
            raise DataError(f"{archive.path}: {name!r} is not a path of keys, or one of its keys is an array too")
        place[key] = _leaf(get(name) if name not in PINNED else archive[name])
    try:
        found: dict[str, Any] = with_lists(tree)
        outline(found)
    except DataError as error:
        raise DataError(f"{archive.path}: {error}") from None
    return found


def _leaf(array: NDArray[Any]) -> Any:
    return array[()] if array.ndim == 0 and array.dtype.kind not in "US" else array.item() if array.ndim == 0 else array


def _write(file: IO[bytes], buffer: FlatBuffer) -> None:
    write_npz(file, {"format": np.frombuffer(FORMAT.encode(), np.uint8), **buffer.id_columns(), **buffer.take()})


def _is_ours(path: Path) -> bool:
    try:
        return all(SHARD.fullmatch(file.name) and _holds_ours(file) for file in path.iterdir())
    except (DataError, DamagedError):
        return False


def _holds_ours(file: Path) -> bool:
    with _archive(file) as archive:
        return _is_flat(archive)
