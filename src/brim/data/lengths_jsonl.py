"""A length cache as JSONL: a header line, then one line per sample.

    {"checksum":"...","format":"brim.lengths/2","rows":2,"fingerprint":"...","tokenizer_hash":"...",...}
    {"sample_id":"a","length":5}
    {"sample_id":"b","length":3,"group":"depth-2"}

A truncated or altered file is detected by the header's count and fingerprint, and an altered header by its checksum. A
file without them (written by hand, or by another tool: `{"tokenizer_hash": ..., "version": 1}` or no header at all) is
read without these checks.

Many lines are parsed at once, and become columns before the next ones are read. Lines that do not all have the same
keys and spaces, or have anything wrong about them, are parsed one by one, which finds the line that is wrong.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from brim.core.atomic import atomic_file
from brim.core.errors import DamagedError, DataError
from brim.core.fingerprint import canonical_json, digest_bytes
from brim.core.options import LONGEST
from brim.data.ids import Ids, SampleId, is_id, not_an_id
from brim.data.lengths import FORMAT, FORMAT_1, LengthCache, checked_axes, fingerprint_1, not_a_length

BLOCK = 10_000
BLOCK_BYTES = 1 << 18
MARKS = (b"null", b"true", b"false")
"""Marks before the second, third and fourth value of a line. Keys in another order leave marks in another order."""
SPACE = rb"[ \t\r]*"
QUOTE = ord('"')


HEADER = (
    ("tokenizer_hash", str, "a string"),
    ("dataset_hash", str, "a string"),
    ("fingerprint", str, "a string"),
    ("rows", int, "a number"),
    ("group_names", list, "a list of strings"),
    ("source", dict, "an object"),
)
"""The values of a header, and what each of them must be."""


def write_jsonl(cache: LengthCache, path: str | os.PathLike[str]) -> None:
    header = {"format": FORMAT, "rows": len(cache), "fingerprint": cache.fingerprint, **cache.meta}
    header = {"checksum": _checksum(header), **header}
    with atomic_file(path) as file:
        file.write(orjson.dumps(header) + b"\n")
        for start in range(0, len(cache), BLOCK):
            file.write(_lines(cache, np.arange(start, min(start + BLOCK, len(cache)))))


def _lines(cache: LengthCache, rows: NDArray[np.int64]) -> bytes:
    columns: dict[str, list[Any]] = {"sample_id": [*cache.ids.take(rows)], "length": cache.length[rows].tolist()}
    if cache.groups is not None:
        columns["group"] = [cache.group_names[code] for code in cache.groups[rows].tolist()]
    if cache.axes is not None:
        columns["axes"] = cache.axes[rows].tolist()
    line = b"{%b}\n" % b",".join(b'"%b":%%b' % name.encode() for name in columns)
    return b"".join(map(line.__mod__, zip(*map(_encoded, columns.values()), strict=True)))


def _encoded(values: list[Any]) -> list[bytes]:
    """Return each value as JSON. All are written at once, with a null between two, and taken apart at the nulls."""
    flat: list[Any] = [None] * (2 * len(values) - 1)
    flat[::2] = values
    encoded = orjson.dumps(flat)[1:-1].split(b",null,")
    return encoded if len(encoded) == len(values) else [orjson.dumps(value) for value in values]


class Part(NamedTuple):
    """Consecutive rows as columns."""

    ids: Ids
    lengths: NDArray[np.int32]
    groups: NDArray[np.int32] | None
    """The number of each row's group, in the order in which groups are met."""
    axes: NDArray[np.int32] | None


def read_jsonl(path: Path) -> LengthCache:
    parts: list[Part] = []
    groups: dict[Any, int] = {"": 0}
    try:
        with open(path, "rb") as file:
            first = file.readline()
            header = _header(path, first)
            number, text = (2, b"") if header else (1, first)
            while text := text + file.read(BLOCK_BYTES) + file.readline():
                values = _parse_block(text)
                lines = text.count(b"\n") if values is None else len(values.ids)
                parts.append(_part(values or _parse_lines(path, number, text), groups))
                number, text = number + lines, b""
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    rows = sum(len(part.lengths) for part in parts)
    if not header and not rows:
        raise DataError(f"{path} is empty; build it with: brim lengths build -d DATA -t TOKENIZER -o {path}")
    if "rows" in header and header["rows"] != rows:
        raise DamagedError(f"{path} is truncated: it holds {rows} of {header['rows']} rows; build it again")
    try:
        cache = _joined(parts, groups, header)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    if "fingerprint" not in header:
        _refuse_duplicate(path, cache.ids)
    elif header["fingerprint"] != _fingerprint(cache, header):
        raise DamagedError(f"{path} is damaged: its rows are not the ones that were written; build it again")
    return cache


def _header(path: Path, line: bytes) -> dict[str, Any]:
    """Return the header if the first line of a file is one, else an empty dict."""
    row = _parse(path, 1, line) or {}
    if "length" in row or not ("format" in row or "tokenizer_hash" in row):
        return {}
    format = row.get("format")
    if format not in (FORMAT, FORMAT_1, None):
        raise DamagedError(f"{path} is of version {format}, this brim reads {FORMAT}; build it again")
    if format == FORMAT and row.pop("checksum", None) != _checksum(row):
        raise DamagedError(f"{path}:1: the header is damaged (its checksum differs); build it again")
    row = {name: value for name, value in row.items() if value is not None}
    for name, kind, what in HEADER:
        if not isinstance(row.get(name, kind()), kind):
            raise DataError(f"{path}:1: {name} is {row[name]!r}; it must be {what}")
    if not all(type(name) is str for name in row.get("group_names", ())):
        raise DataError(f"{path}:1: group_names is {row['group_names']!r}; it must be a list of strings")
    return row


def _checksum(header: Mapping[str, Any]) -> str:
    return digest_bytes(canonical_json(header))


def _refuse_duplicate(path: Path, ids: Ids) -> None:
    try:
        ids.refuse_duplicate(lambda row: f"entry {row + 1}")
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def _fingerprint(cache: LengthCache, header: Mapping[str, Any]) -> str:
    return fingerprint_1(cache) if header.get("format") == FORMAT_1 else cache.fingerprint


class Values(NamedTuple):
    """The values of consecutive rows, all of them valid."""

    ids: list[Any]
    lengths: list[Any] | NDArray[np.int64]
    groups: list[Any] | None = None
    axes: list[Any] | None = None


def _parse_block(text: bytes) -> Values | None:
    """Return the values of lines that are parsed at once, or None unless they all have the keys of the first, in its
    order and with its spaces, and only valid values.

    What stands between two values is replaced by a mark, a null before the second value and others before those that
    follow, and what ends a line by two nulls, so that all values form one list. No other mark is in it, so if as many
    lines as there were have all marks where they belong, then at least so many texts were replaced. That none was
    replaced in addition, inside a string, follows from the quotes: each text that is replaced has some, each string has
    two, and there are no others.
    """
    text = text.removesuffix(b"\n")
    frame = _Frame.of(text[: text.find(b"\n") + 1].removesuffix(b"\n") or text)
    if frame is None or not text.startswith(frame.opening) or not text.endswith(frame.closing):
        return None
    marks = MARKS[: max(len(frame.between), 1)]
    if any(mark in text for mark in marks):
        return None
    inside = text[len(frame.opening) : -len(frame.closing)]
    inside = _replaced(inside, b"%b\n%b" % (frame.closing, frame.opening), b",null,null,")
    for between, mark in zip(frame.between, marks, strict=False):
        inside = _replaced(inside, between, b",%b," % mark)
    try:
        values = orjson.loads(b"[%b]" % inside)
    except orjson.JSONDecodeError:
        return None
    lines, stride = text.count(b"\n") + 1, 2 * len(frame.keys) + 1
    columns = {key: values[2 * place :: stride] for place, key in enumerate(frame.keys)}
    if len(values) != lines * stride - 2 or not _are_marked(values, len(frame.between), stride, lines):
        return None
    kinds = {key: set(map(type, column)) for key, column in columns.items()}
    strings = sum(
        lines if found == {str} else list(map(type, columns[key])).count(str)
        for key, found in kinds.items()
        if str in found
    )
    quotes = np.count_nonzero(np.frombuffer(text, np.uint8) == QUOTE)
    return _checked(columns, kinds) if quotes == lines * frame.quotes + 2 * strings else None


def _replaced(text: bytes, old: bytes, new: bytes) -> bytes:
    """Replace in JSON; spaces fill `new` up to the length of `old`, because equal lengths are replaced in place."""
    return text.replace(old, new.ljust(len(old)))


class _Frame(NamedTuple):
    """The text around the values of a line."""

    keys: list[str]
    opening: bytes
    """All up to the first value."""
    between: list[bytes]
    """The text before each other value; spaces before a comma or behind a colon can stay where they are."""
    closing: bytes

    @property
    def quotes(self) -> int:
        return b"".join((self.opening, *self.between, self.closing)).count(b'"')

    @classmethod
    def of(cls, line: bytes) -> "_Frame | None":
        """Return the frame of this line; None if it is no object, has too many keys, or writes them with escapes."""
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:
            return None
        if not isinstance(row, dict) or not 0 < len(row) <= len(MARKS) + 1:
            return None
        keys: list[str] = list(row)
        patterns = [
            rb"%b%b%b%b:" % (SPACE + rb"\{" if place == 0 else b",", SPACE, re.escape(orjson.dumps(key)), SPACE)
            for place, key in enumerate(keys)
        ]
        opening = re.match(patterns[0], line)
        between = [re.search(pattern, line) for pattern in patterns[1:]]
        if opening is None or None in between:
            return None
        return cls(keys, opening[0], [found[0] for found in between if found], line[line.rindex(b"}") :])


def _are_marked(values: list[Any], marks: int, stride: int, lines: int) -> bool:
    """Whether all marks between values are where they belong, and no others are."""
    ends = values[stride - 2 :: stride] + values[stride - 1 :: stride]
    if ends.count(None) != len(ends):
        return False
    for place in range(marks):
        found, mark = values[2 * place + 1 :: stride], (None, True, False)[place]
        if found.count(mark) != lines or (mark is not None and set(map(type, found)) != {bool}):  # 1 equals True
            return False
    return True


def _checked(columns: Mapping[str, list[Any]], kinds: Mapping[str, set[type]]) -> Values | None:
    """Return the values of these columns, which are of these types, or None if they are not all valid."""
    plain = kinds.get("group", {str}) == {str} and "axes" not in kinds
    if not (plain and kinds.get("sample_id", {None}) <= {int, str} and kinds.get("length") == {int}):
        return None
    lengths = np.array(columns["length"])
    in_range = lengths.dtype == np.int64 and lengths.min() >= 0 and lengths.max() <= LONGEST
    if not in_range:
        return None
    return Values(columns["sample_id"], lengths, columns.get("group"))


def _parse_lines(path: Path, number: int, text: bytes) -> Values:
    """Return the values of lines that are parsed one by one. The first has this number in the file."""
    rows: list[dict[str, Any]] = []
    for at, line in enumerate(text.split(b"\n"), number):
        row = _parse(path, at, line)
        if row is not None:
            _check(f"{path}:{at}", path, row)
            rows.append(row)
    return Values(
        [row["sample_id"] for row in rows],
        [row["length"] for row in rows],
        [row.get("group") for row in rows],
        [row.get("axes") for row in rows],
    )


def _part(values: Values, groups: dict[Any, int]) -> Part:
    """Make columns of values. `groups` has the numbers of the groups that were met, and gets those of new ones."""
    ids, lengths = Ids.of(values.ids), np.array(values.lengths, np.int32)
    codes = None
    if values.groups is not None:
        codes = np.array([groups.setdefault(group or "", len(groups)) for group in values.groups], np.int32)
    ragged = values.axes is not None and any(axes is not None for axes in values.axes)
    return Part(ids, lengths, codes, checked_axes(lengths.tolist(), values.axes or (), ids) if ragged else None)


def _joined(parts: list[Part], groups: dict[Any, int], header: Mapping[str, Any]) -> LengthCache:
    """Return the table of all parts, with the groups in the order of the header, or by name."""
    ids = Ids.joined([part.ids for part in parts])
    lengths = np.concatenate([np.empty(0, np.int32), *(part.lengths for part in parts)])
    codes, names = _groups(parts, groups, header.get("group_names", ()))
    return LengthCache(
        ids,
        lengths,
        groups=codes,
        group_names=names,
        axes=_axes(parts, lengths),
        tokenizer_hash=header.get("tokenizer_hash", ""),
        dataset_hash=header.get("dataset_hash", ""),
        source=header.get("source"),
    )


def _groups(parts: list[Part], numbers: dict[Any, int], order: Any) -> tuple[NDArray[np.int32] | None, tuple[str, ...]]:
    found = [np.zeros(len(part.lengths), np.int32) if part.groups is None else part.groups for part in parts]
    codes = np.concatenate([np.empty(0, np.int32), *found])
    used = {name for name, number in numbers.items() if number or not codes.all()}
    names = list(order) if used == set(order) else sorted(used)
    if names in ([], [""]):
        return None, ()
    place = np.zeros(len(numbers), np.int32)
    place[[numbers[name] for name in names]] = np.arange(len(names))
    return place[codes], tuple(names)


def _axes(parts: list[Part], lengths: NDArray[np.int32]) -> NDArray[np.int32] | None:
    """Join the lengths along all axes. A sample without axes has its whole length along the first one."""
    many = max((part.axes.shape[1] for part in parts if part.axes is not None), default=0)
    if not many:
        return None
    joined = np.zeros((len(lengths), many), np.int32)
    row = 0
    for part in parts:
        axes = part.lengths[:, None] if part.axes is None else part.axes
        joined[row : row + len(axes), : axes.shape[1]] = axes
        row += len(axes)
    return joined


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


def _check(where: str, path: Path, row: dict[str, Any]) -> None:
    """Check a single row.

    Raises:
        DataError: It has no id or no length, or they are not what they must be.
    """
    missing = next((name for name in ("sample_id", "length") if name not in row), None)
    if missing is not None:
        raise DataError(
            f"{where}: {missing!r} is missing (keys: {', '.join(row)}); this is not a length cache, build "
            f"one with: brim lengths build -d {path} -o lengths.jsonl"
        )
    id: SampleId = row["sample_id"]
    if not is_id(id):
        raise not_an_id(f"{where}: sample_id is {id!r}")
    try:
        if type(row["length"]) is not int or not 0 <= row["length"] <= LONGEST:
            raise not_a_length(id, row["length"])
        if row.get("axes") is not None:
            checked_axes([row["length"]], [row["axes"]], [id])
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    if not isinstance(row.get("group"), str | None):
        raise DataError(f"{where}: the group is {row['group']!r}; a group is a string")
