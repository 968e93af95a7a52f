"""The ids of rows: taken from a field or the row number, and no two alike.

Either all rows of a data set have an id or none has. Ids travel as `IdBlock`s, which are what a worker process sends back and what a
journal keeps, and end up as one `Ids` column.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import DataError
from brim.core.rng import raw_bits
from brim.data.format import ID_FIELDS, Layout, Row, kind_of, missing
from brim.data.ids import Ids, SampleId

SMALLEST, LARGEST = -(2**63), 2**63 - 1
CHUNK = 1 << 20


def row_id(row: Row, layout: Layout, number: int) -> SampleId:
    """The id of the row that is the `number`-th of its data set.

    Raises:
        DataError: The row has no id though others have, or has one though others have none, or it is not a string or an integer.
    """
    field = layout.id_field
    if field is None:
        extra = next((name for name in ID_FIELDS if name in row), None)
        if extra is not None:
            raise DataError(f'this row has an "{extra}" but the first row has none; give every row one, or none')
        return number
    id = row.get(field)
    if id is None:
        raise DataError(missing(row, field, "id"))
    if isinstance(id, bool) or not isinstance(id, str | int):
        raise DataError(f'"{field}" is {kind_of(id)} ({id!r:.40}); an id is a string or an integer')
    if isinstance(id, int) and not SMALLEST <= id <= LARGEST:
        raise DataError(f'"{field}" is {id}, which does not fit in 64 bits; write it as a string')
    return id


@dataclass(frozen=True, slots=True)
class IdBlock:
    """The ids of consecutive rows: integers, or UTF-8 text with the end of each id; neither where ids are row numbers."""

    numbers: NDArray[np.int64] | None = None
    text: bytes = b""
    ends: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, ids: Sequence[SampleId], layout: Layout) -> "IdBlock":
        if layout.id_field is None:
            return cls()
        if all(type(id) is int for id in ids):
            return cls(numbers=np.array(ids, np.int64))
        encoded = [str(id).encode() for id in ids]
        return cls(text=b"".join(encoded), ends=np.cumsum([len(id) for id in encoded], dtype=np.int64))

    def as_text(self) -> "IdBlock":
        if self.numbers is None:
            return self
        encoded = [b"%d" % id for id in self.numbers.tolist()]
        return IdBlock(text=b"".join(encoded), ends=np.cumsum([len(id) for id in encoded], dtype=np.int64))


def join_ids(blocks: Sequence[IdBlock], rows: int) -> Ids:
    """One column; where a data set mixes integers and strings, all of them become strings."""
    if all(block.numbers is None and block.ends is None for block in blocks):
        return Ids.rows(rows)
    if all(block.numbers is not None for block in blocks):
        return Ids.integers(np.concatenate([block.numbers for block in blocks if block.numbers is not None]))
    texts = [block.as_text() for block in blocks]
    ends: list[NDArray[np.int64]] = []
    offset = 0
    for block in texts:
        if block.ends is not None:
            ends.append(block.ends + offset)
            offset += len(block.text)
    return Ids.strings(np.frombuffer(b"".join(block.text for block in texts), np.uint8), np.concatenate(ends))


def split_ids(ids: Ids, layout: Layout) -> IdBlock:
    """The column of a finished cache, as the block that it was joined from."""
    if "id" in ids.columns:
        return IdBlock(numbers=ids.columns["id"])
    if "id_text" in ids.columns:
        return IdBlock(text=ids.columns["id_text"].tobytes(), ends=ids.columns["id_ends"])
    return IdBlock() if layout.id_field is None else IdBlock(numbers=np.arange(len(ids)))


def find_duplicate(ids: Ids) -> tuple[int, int] | None:
    """The first row whose id an earlier row has, as (earlier, later).

    Strings are hashed to 64 bits and the hashes sorted, 16 bytes for an id however long it is; rows with equal hashes are then compared
    for real, so an accident among the hashes is never reported.
    """
    if not ids.columns:
        return None
    keys = ids.columns["id"] if "id" in ids.columns else _hashes(ids.columns["id_text"], ids.columns["id_ends"])
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    alike = keys[1:] == keys[:-1]
    pairs: list[tuple[int, int]] = []
    for start, stop in _runs(alike):
        seen: dict[SampleId, int] = {}
        for row in sorted(order[start : stop + 1].tolist()):
            if ids[row] in seen:
                pairs.append((seen[ids[row]], row))
                break
            seen[ids[row]] = row
    return min(pairs, key=lambda pair: pair[1], default=None)


def _runs(alike: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Stretches of equal neighbours, as first and last position."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], alike, [False]]).astype(np.int8)))
    return [(int(start), int(stop)) for start, stop in zip(edges[::2], edges[1::2], strict=True)]


def _hashes(text: NDArray[np.uint8], ends: NDArray[np.int64]) -> NDArray[np.uint64]:
    """For each id the sum of (byte + 1) times a random odd weight that depends on its place in the id, modulo 2**64."""
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    longest = int((ends - starts).max(initial=0))
    weights = raw_bits(longest, seed=0, purpose="id-hash") | np.uint64(1)
    hashes = np.zeros(len(ends), np.uint64)
    first = 0
    while first < len(ends):
        last = max(first + 1, int(np.searchsorted(ends, starts[first] + CHUNK, side="right")))
        a, b = int(starts[first]), int(ends[last - 1])
        sizes = ends[first:last] - starts[first:last]
        place = np.arange(b - a) - np.repeat(starts[first:last] - a, sizes)
        terms: NDArray[Any] = (text[a:b].astype(np.uint64) + np.uint64(1)) * weights[place]
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms, dtype=np.uint64)])
        hashes[first:last] = sums[ends[first:last] - a] - sums[starts[first:last] - a]
        first = last
    return hashes
