"""A length cache as JSONL: a header line, then one line per sample.

    {"format":"brim.lengths/1","rows":2,"fingerprint":"...","tokenizer_hash":"...","dataset_hash":"...",...}
    {"sample_id":"a","length":5}
    {"sample_id":"b","length":3,"group":"depth-2"}

A truncated or altered file is detected by the header's count and fingerprint. A file without them (written by hand, or
by another tool: `{"tokenizer_hash": ..., "version": 1}` or no header at all) is read without these checks.
"""

import os
from pathlib import Path
from typing import Any

import orjson

from brim.core.atomic import atomic_file
from brim.core.errors import DamagedError, DataError
from brim.data.ids import SampleId, is_id, not_an_id
from brim.data.lengths import FORMAT, LengthCache, LengthEntry

BLOCK = 10_000


def write_jsonl(cache: LengthCache, path: str | os.PathLike[str]) -> None:
    header = {"format": FORMAT, "rows": len(cache), "fingerprint": cache.fingerprint, **cache.meta}
    with atomic_file(path) as file:
        file.write(orjson.dumps(header) + b"\n")
        for start in range(0, len(cache), BLOCK):
            entries = (cache.entry(row) for row in range(start, min(start + BLOCK, len(cache))))
            file.write(b"".join(_line(entry) for entry in entries))


def _line(entry: LengthEntry) -> bytes:
    row: dict[str, Any] = {"sample_id": entry.sample_id, "length": entry.length}
    if entry.group is not None:
        row["group"] = entry.group
    if entry.axes is not None:
        row["axes"] = entry.axes
    return orjson.dumps(row) + b"\n"


def read_jsonl(path: Path) -> LengthCache:
    header: dict[str, Any] = {}
    ids: list[SampleId] = []
    lengths: list[int] = []
    groups: list[str | None] = []
    axes: list[Any] = []
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                row = _parse(path, number, line)
                if row is None:
                    continue
                if number == 1 and "length" not in row and ("format" in row or "tokenizer_hash" in row):
                    header = _checked_header(path, row)
                    continue
                ids.append(_id(path, number, row))
                lengths.append(row["length"])
                groups.append(row.get("group"))
                axes.append(row.get("axes"))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    if not header and not ids:
        raise DataError(f"{path} is empty; build it with: brim lengths build -d DATA -t TOKENIZER -o {path}")
    if "rows" in header and header["rows"] != len(ids):
        raise DamagedError(f"{path} is truncated: it holds {len(ids)} of {header['rows']} rows; build it again")
    try:
        cache = LengthCache.from_lists(
            ids,
            lengths,
            groups,
            axes,
            group_names=header.get("group_names", ()),
            tokenizer_hash=header.get("tokenizer_hash", ""),
            dataset_hash=header.get("dataset_hash", ""),
            source=header.get("source"),
        )
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    if "fingerprint" in header and header["fingerprint"] != cache.fingerprint:
        raise DamagedError(f"{path} is damaged: its rows are not the ones that were written; build it again")
    return cache


def _parse(path: Path, number: int, line: bytes) -> dict[str, Any] | None:
    if not line.strip():
        return None
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise DamagedError(f"{path}:{number}: not a row of a length cache ({error}); build it again") from None
    if not isinstance(row, dict):
        raise DataError(f"{path}:{number}: expected an object with sample_id and length, found {type(row).__name__}")
    return row


def _checked_header(path: Path, header: dict[str, Any]) -> dict[str, Any]:
    format = header.get("format", FORMAT)
    if format != FORMAT:
        raise DamagedError(f"{path} is of version {format}, this brim reads {FORMAT}; build it again")
    return header


def _id(path: Path, number: int, row: dict[str, Any]) -> SampleId:
    missing = next((name for name in ("sample_id", "length") if name not in row), None)
    if missing is not None:
        raise DataError(
            f"{path}:{number}: {missing!r} is missing (keys: {', '.join(row)}); this is not a length cache, build "
            f"one with: brim lengths build -d {path} -o lengths.jsonl"
        )
    id = row["sample_id"]
    if not is_id(id):
        raise not_an_id(f"{path}:{number}: sample_id is {id!r}")
    return id
