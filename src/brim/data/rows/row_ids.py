"""The ids of rows: the values of a field, or row numbers.

Either all rows of a data set have an id or none has. Worker processes return ids as `IdBlock`s, journals store them as
such, and `join_ids` joins them into one `Ids` column.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import DataError
from brim.data.ids import Ids, SampleId, is_id, not_an_id
from brim.data.rows.format import ID_FIELDS, Layout, Row, kind_of, missing

SMALLEST, LARGEST = -(2**63), 2**63 - 1


def row_id(row: Row, layout: Layout, number: int) -> SampleId:
    """Return the id of a row: the value of its id field, or `number` if the layout has none.

    Raises:
        DataError: The row has no id though others have, or has one though others have none, or it is not a string or an
            integer.
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
    if not is_id(id):
        raise not_an_id(f'"{field}" is {kind_of(id)} ({id!r:.40})')
    if isinstance(id, int) and not SMALLEST <= id <= LARGEST:
        raise DataError(f'"{field}" is {id}, which does not fit in 64 bits; write it as a string')
    return id


@dataclass(frozen=True, slots=True)
class IdBlock:
    """The ids of consecutive rows: integers, or UTF-8 text with the byte offset of the end of each id; neither if ids
    are row numbers.
    """

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
    """Join blocks into one column. If a data set mixes integers and strings, all of them become strings."""
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
    """Return the ids of a finished cache as one block."""
    if ids.numbers is not None:
        return IdBlock(numbers=ids.numbers)
    if ids.text is not None:
        text, ends = ids.text
        return IdBlock(text=text.tobytes(), ends=ends)
    return IdBlock() if layout.id_field is None else IdBlock(numbers=np.arange(len(ids)))
