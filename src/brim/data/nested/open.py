"""Open and write data sets of nested samples, in the format that the path names or that its content has."""

import operator
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from brim.core.arrays import natural
from brim.core.atomic import check_target
from brim.core.errors import DataError, OptionError
from brim.core.options import check_counts
from brim.core.progress import Progress
from brim.data.nested.hdf5 import open_hdf5, write_hdf5
from brim.data.nested.npz import SHARD_SAMPLES, NpzSource, write_file, write_shards
from brim.data.nested.parquet import NestedParquetSource
from brim.data.nested.source import NestedSource

READABLE = (
    "nested samples are read from .h5 and .hdf5 (HDF5), .npz (a file or a directory of them) and .parquet (a file "
    "or a directory of them)"
)
HDF5_SUFFIXES, NPZ_SUFFIXES, PARQUET_SUFFIXES = (".h5", ".hdf5"), (".npz",), (".parquet", ".pq")
MAGIC = {b"\x89HDF\r\n\x1a\n": "hdf5", b"PK\x03\x04": "npz", b"PAR1": "parquet"}


def open_nested(path: str | os.PathLike[str], *, root: str | None = None, id_field: str | None = None) -> NestedSource:
    """Open a data set of nested samples. The format is found by the suffix or, if that is unknown, by the content.

    `root` is the group of an HDF5 file below which every group is a sample. `id_field` is the column of Parquet that
    holds the ids; the default is "id" or, if there is no such column, row numbers.

    Raises:
        DataError: The path does not exist, or does not hold nested samples.
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
        return open_hdf5(path, root=root)
    if kind == "npz":
        return NpzSource(path, files)
    return NestedParquetSource(path, files, id_field=id_field)


def write_nested(
    path: str | os.PathLike[str],
    samples: Iterable[Mapping[str, Any]],
    *,
    shard_samples: int | None = None,
    progress: Progress | None = None,
) -> None:
    """Write samples with their ids, in their order: HDF5 for .h5 and .hdf5, one NPZ file for .npz, else a directory of
    NPZ shards.

    The id of a sample without one is its number. HDF5 is streamed; a shard of NPZ is held in memory until it is full,
    after `shard_samples` samples (default 1,000). An earlier output at `path` is replaced when everything is written.
    `progress` is called with the number of samples written and the number of all, which is 0 if it is not known.

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
        write_hdf5(target, counted)
    elif suffix in NPZ_SUFFIXES:
        write_file(target, counted)
    else:
        _check_directory(target, named_so=os.fspath(path).endswith(os.sep))
        check_counts(shard_samples=shard_samples)
        write_shards(target, counted, shard_samples or SHARD_SAMPLES)


def _check_directory(target: Path, *, named_so: bool) -> None:
    """Refuse a name with an unknown suffix, which is more likely a mistake than the name of a new directory."""
    suffix = target.suffix.lower()
    if suffix in PARQUET_SUFFIXES:
        raise OptionError(
            f"cannot write {target}: a column of Parquet has one type for all rows, and nested samples need not; "
            "write .h5 or a directory"
        )
    if suffix and not target.is_dir() and not named_so:
        raise OptionError(
            f"cannot write {target}: {suffix!r} is not a format that is written; use .h5, .npz, or a directory: "
            f"{target}/"
        )


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
        raise DataError(
            f"{path} is by its content a file of {found}, not {kind}; rename it to end in {kinds[found][0]}"
        )
    if (kind or found) is None:
        raise DataError(f"{path}: unknown kind of file {path.suffix!r}; {READABLE}")
    return cast(str, kind or found), [path]


def _recognise_directory(path: Path) -> tuple[str, list[Path]]:
    inside = sorted(
        (file for file in path.iterdir() if not file.name.startswith((".", "_"))), key=lambda file: natural(file.name)
    )
    for kind, other, suffixes in (("npz", PARQUET_SUFFIXES, NPZ_SUFFIXES), ("parquet", NPZ_SUFFIXES, PARQUET_SUFFIXES)):
        if files := [file for file in inside if file.suffix.lower() in suffixes and file.is_file()]:
            if mixed := [file for file in inside if file.suffix.lower() in other]:
                raise DataError(
                    f"{path} holds two formats, such as {files[0].name} and {mixed[0].name}; give each its own "
                    "directory"
                )
            return kind, files
    alone = [file for file in inside if file.suffix.lower() in HDF5_SUFFIXES]
    raise DataError(
        f"{path} is a directory that is not a data set; {f'did you mean {alone[0]}?' if alone else READABLE}"
    )
