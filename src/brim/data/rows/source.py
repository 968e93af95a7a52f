"""Sources: where rows come from, and how a path becomes one.

A source is a list of rows that can be read anywhere and in blocks. A `Block` is two numbers, so the work of reading it can be handed
to another process together with the source, which pickles as its path. Positions inside a source are bytes for JSONL and row numbers
for tables; callers only ever pass on the ones they were given.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import orjson

from brim.core.errors import DataError, OptionError
from brim.data.rows.format import Layout, RowFormat

Torn = Literal["error", "skip"]
READABLE = (
    "brim reads .jsonl, .ndjson, line-delimited .json, .parquet (a file or a directory of them) and directories of datasets.save_to_disk"
)
JSON_SUFFIXES, PARQUET_SUFFIXES = (".jsonl", ".ndjson", ".json"), (".parquet", ".pq")

# What files of other formats start with.
MAGIC = {
    b"PAR1": "a Parquet file; rename it to end in .parquet",
    b"\x1f\x8b": "compressed with gzip; unpack it first: gunzip -k",
    b"\x28\xb5\x2f\xfd": "compressed with zstd; unpack it first: zstd -dk",
    b"BZh": "compressed with bzip2; unpack it first: bunzip2 -k",
    b"\xfd7zXZ": "compressed with xz; unpack it first: unxz -k",
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"ARROW1": "an Arrow file; save it as Parquet, or with datasets.save_to_disk",
    b"\x89HDF": "an HDF5 file, which holds nested samples: brim.open_nested reads it, and brim lengths build if it ends in .h5",
    b"\xff\xfe": "UTF-16 text; convert it first: iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "UTF-16 text; convert it first: iconv -f UTF-16 -t UTF-8",
}


class Block(NamedTuple):
    """A stretch of a source, from one position up to another."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a block, and how many blank lines lay between them."""

    rows: list[dict[str, Any]]
    blank: int = 0


class Source(Protocol):
    """A data set on disk, as it was when it was opened: rows that are appended later are not seen."""

    @property
    def path(self) -> Path: ...
    @property
    def kind(self) -> str: ...
    @property
    def size(self) -> int:
        """Bytes on disk."""
        ...

    @property
    def end(self) -> int:
        """The position behind the last row."""
        ...

    @property
    def torn(self) -> int:
        """How many torn lines at the end are left out."""
        ...

    @property
    def fingerprint(self) -> str:
        """Of what the rows are: not of the path, nor of the time they were written."""
        ...

    def __len__(self) -> int: ...
    def row(self, number: int) -> dict[str, Any]: ...
    def where(self, number: int) -> str:
        """The place of a row, for an error: "train.jsonl:48213"."""
        ...

    def blocks(self, start: int = 0) -> Iterator[Block]:
        """Everything from a position to the end, in blocks of about half a megabyte or a thousand rows."""
        ...

    def read(self, block: Block) -> Rows: ...
    def where_in(self, block: Block, number: int) -> str:
        """The place of the `number`-th row of a block."""
        ...

    def digest(self, end: int) -> str:
        """Of everything before a position. Cheapest when asked for in ascending order."""
        ...

    def starts_with(self, end: int, digest: str) -> bool:
        """Whether an earlier reading up to `end`, which had that digest, can be continued by `blocks(end)`."""
        ...


def open_source(path: str | os.PathLike[str], *, torn: Torn = "error") -> Source:
    """Open a data set. `torn` says what happens to a last line of JSONL that was cut off: an error, or left out and counted.

    Raises:
        DataError: There is nothing there, or not a data set.
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
    from brim.data.rows.jsonl import JsonlSource

    for magic, what in MAGIC.items():
        if head.startswith(magic):
            raise DataError(f"{path} is not JSONL: by its content it is {what}")
    if b"\0" in head:
        raise DataError(f"{path} is not JSONL: it holds binary data")
    if head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
        raise DataError(f"{path} holds one JSON list, not a row on each line; convert it first: jq -c '.[]' {path.name} > rows.jsonl")
    return JsonlSource(path, torn=torn)


def _open_parquet(path: Path, head: bytes) -> Source:
    from brim.data.rows.parquet import ParquetSource

    if not head.startswith(b"PAR1"):
        json = head.lstrip().startswith(b"{")
        raise DataError(f"{path} is not a Parquet file{'; it looks like JSONL: rename it to end in .jsonl' if json else ''}")
    return ParquetSource(path, [path])


def _open_directory(path: Path) -> Source:
    if (path / "dataset_dict.json").is_file():
        raise DataError(f"{path} holds several splits; name one of them: {', '.join(str(path / split) for split in _splits(path))}")
    if (path / "state.json").is_file() and (path / "dataset_info.json").is_file():
        from brim.data.rows.hf_dataset import DatasetSource

        return DatasetSource(path)
    files = sorted(
        file for file in path.iterdir() if file.suffix in PARQUET_SUFFIXES and file.is_file() and not file.name.startswith((".", "_"))
    )
    if files:
        from brim.data.rows.parquet import ParquetSource

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
    """What the rows look like, settled by the first of them; no index of the others is made.

    Raises:
        DataError: There is no row, or the first one does not have the format.
    """
    for block in source.blocks():
        for row in source.read(block).rows:
            try:
                return format.layout(row)
            except DataError as error:
                raise DataError(f"{source.where_in(block, 0)}: {error}") from None
    raise DataError(f"{source.path} has no rows" + (" (only a torn line)" if source.torn else ""))
