"""Open a data set: detect the format of a path, and the layout of its rows.

The suffix of a file decides which format is expected, and its first bytes are checked against that. This module reads
nothing but those bytes and the first block of rows.
"""

import os
from pathlib import Path

import orjson

from brim.core.errors import DataError, OptionError
from brim.data.rows.format import Layout, RowFormat
from brim.data.rows.hf_dataset import DatasetSource
from brim.data.rows.jsonl import JsonlSource
from brim.data.rows.parquet import ParquetSource
from brim.data.rows.source import Source, Torn

READABLE = (
    "brim reads .jsonl, .ndjson, line-delimited .json, .parquet (a file or a directory of them) and directories of "
    "datasets.save_to_disk"
)
JSON_SUFFIXES, PARQUET_SUFFIXES = (".jsonl", ".ndjson", ".json"), (".parquet", ".pq")

# First bytes of files of other formats, and what an error says about such a file.
MAGIC = {
    b"PAR1": "a Parquet file; rename it to end in .parquet",
    b"\x1f\x8b": "compressed with gzip; unpack it first: gunzip -k",
    b"\x28\xb5\x2f\xfd": "compressed with zstd; unpack it first: zstd -dk",
    b"BZh": "compressed with bzip2; unpack it first: bunzip2 -k",
    b"\xfd7zXZ": "compressed with xz; unpack it first: unxz -k",
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"ARROW1": "an Arrow file; save it as Parquet, or with datasets.save_to_disk",
    b"\x89HDF": "an HDF5 file, which holds nested samples: brim.open_nested reads it, and brim lengths build if it "
    "ends in "
    ".h5",
    b"\xff\xfe": "UTF-16 text; convert it first: iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "UTF-16 text; convert it first: iconv -f UTF-16 -t UTF-8",
}


def open_source(path: str | os.PathLike[str], *, torn: Torn = "error") -> Source:
    """Open a data set. If the last line of JSONL was cut off, `torn` decides: "error" raises, "skip" leaves it out and
    counts it.

    Raises:
        DataError: The path does not exist, or is not a data set.
    """
    path = Path(path)
    if torn not in ("error", "skip"):
        raise OptionError(f"torn is {torn!r}; it must be error or skip")
    if not path.exists():
        raise DataError(f"{path} does not exist")
    try:
        if path.is_dir():
            return _open_directory(path)
        if not path.is_file():
            raise DataError(f"{path} is not a regular file; save the rows to a file first")
        with open(path, "rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    if not head:
        raise DataError(f"{path} is empty")
    if path.suffix.lower() in JSON_SUFFIXES:
        return _open_lines(path, head, torn)
    if path.suffix.lower() in PARQUET_SUFFIXES:
        return _open_parquet(path, head)
    other = next((what for magic, what in MAGIC.items() if head.startswith(magic)), None)
    raise DataError(f"{path} is {other}" if other else f"{path}: unknown kind of file {path.suffix!r}; {READABLE}")


def _open_lines(path: Path, head: bytes, torn: Torn) -> Source:
    for magic, what in MAGIC.items():
        if head.startswith(magic):
            raise DataError(f"{path} is not JSONL: by its content it is {what}")
    if b"\0" in head:
        raise DataError(f"{path} is not JSONL: it holds binary data")
    if head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
        raise DataError(
            f"{path} holds one JSON list, not a row on each line; convert it first: jq -c '.[]' {path.name} > "
            "rows.jsonl"
        )
    return JsonlSource(path, torn=torn)


def _open_parquet(path: Path, head: bytes) -> Source:
    if not head.startswith(b"PAR1"):
        json = head.lstrip().startswith(b"{")
        raise DataError(
            f"{path} is not a Parquet file{'; it looks like JSONL: rename it to end in .jsonl' if json else ''}"
        )
    return ParquetSource(path, [path])


def _open_directory(path: Path) -> Source:
    if (path / "dataset_dict.json").is_file():
        raise DataError(
            f"{path} holds several splits; name one of them: {', '.join(str(path / split) for split in _splits(path))}"
        )
    if (path / "state.json").is_file() and (path / "dataset_info.json").is_file():
        return DatasetSource(path)
    files = sorted(
        file
        for file in path.iterdir()
        if file.suffix in PARQUET_SUFFIXES and file.is_file() and not file.name.startswith((".", "_"))
    )
    if files:
        return ParquetSource(path, files)
    inside = sorted(file for file in path.iterdir() if file.suffix in JSON_SUFFIXES)
    hint = f"did you mean {inside[0]}?" if inside else READABLE
    raise DataError(f"{path} is a directory that is not a data set; {hint}")


def _splits(path: Path) -> list[str]:
    try:
        return list(orjson.loads((path / "dataset_dict.json").read_bytes())["splits"])
    except (OSError, ValueError, KeyError, TypeError):
        return sorted(child.name for child in path.iterdir() if child.is_dir())


def layout_of(source: Source, format: RowFormat) -> Layout:
    """Return the layout of the rows, determined from the first one. The others are not indexed.

    Raises:
        DataError: There is no row, or the first one has no field of any known shape.
    """
    for block in source.blocks():
        for row in source.read(block).rows:
            try:
                return format.layout(row)
            except DataError as error:
                raise DataError(f"{source.where_in(block, 0)}: {error}") from None
    raise DataError(f"{source.path} has no rows" + (" (only a torn line)" if source.torn else ""))
