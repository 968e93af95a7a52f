"""Read a data set in chunks of samples, from any place in any epoch.

In the order of the file, a chunk is a block of the source: nothing is indexed, the first sample comes after one block
was read, and a place records its block, so resuming reads nothing before it. Shuffled, a chunk is a few rows of a
window of `buffer_size` rows, and one window is held at a time; see `shuffle.py`. JSON lines then need the offsets of
all rows: one pass over the file, and eight bytes for each row.

The chunk of a place does not depend on what was read before. One thread reads at a time; others wait.
"""

import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from brim.core.errors import MismatchError
from brim.data.rows.source import Source
from brim.data.rows.table import TableSource
from brim.stream.offline.rows import RowReader
from brim.stream.offline.shuffle import ShuffledRows
from brim.stream.sample import StreamSample

CHUNK_ROWS = 256
"""Rows of a shuffled window that are tokenised together."""


class Place(NamedTuple):
    """A position before a row of an epoch, counted in the order of iteration."""

    epoch: int = 0
    row: int = 0
    block: int = 0
    """The position in the source where the block of this row begins; 0 if shuffled."""
    block_row: int = 0
    """The number of the first row of that block; 0 if shuffled."""


class Chunk(NamedTuple):
    place: Place
    samples: list[StreamSample]
    """One sample for every row from `place` on."""
    after: Place | None
    """The place of the next chunk; None after the last epoch."""


class Shuffling(NamedTuple):
    buffer_size: int
    seed: int


class ChunkReader:
    """Reads chunks. Its only state is a cache: the shuffled order of one epoch, and the rows of one window."""

    def __init__(self, source: Source, rows: RowReader, *, epochs: int | None, shuffling: Shuffling | None) -> None:
        self.source = source
        self.rows = rows
        self.epochs = epochs
        self.shuffling = shuffling
        self._lock = threading.Lock()
        self._order: ShuffledRows | None = None
        self._window: tuple[int, int, list[int], list[dict[str, Any]]] | None = None  # epoch, number, row numbers, rows

    def read(self, place: Place) -> Chunk:
        """Read the chunk at a place.

        Raises:
            DataError: A row of the block or window is not valid.
            MismatchError: There is no such place.
        """
        with self._lock:
            return self._in_order(place) if self.shuffling is None else self._shuffled(place, self.shuffling)

    def all(self) -> Iterator[StreamSample]:
        """Iterate over the samples of all rows, in the order of the source."""
        place: Place | None = Place()
        while place is not None and place.epoch == 0:
            with self._lock:
                chunk = self._in_order(place)
            yield from chunk.samples
            place = chunk.after

    def fingerprint(self) -> str:
        """The fingerprint of the source."""
        with self._lock:
            return self.source.fingerprint

    def forget(self) -> None:
        """Free the cached rows."""
        with self._lock:
            self._window = self._order = None

    def _in_order(self, place: Place) -> Chunk:
        block = next(self.source.blocks(place.block), None)
        if block is None:
            return Chunk(place, [], self._next_epoch(place))
        rows, skip = self.source.read(block).rows, place.row - place.block_row
        if not 0 <= skip <= len(rows):
            raise MismatchError(
                f"row {place.row} is not in the block of {self.source.path} that begins with row {place.block_row}; "
                "start from the beginning, without the state"
            )
        numbers = range(place.row, place.block_row + len(rows))
        samples = self.rows.samples(rows[skip:], numbers, lambda k: self.source.where_in(block, skip + k))
        behind = place.block_row + len(rows)
        on = Place(place.epoch, behind, block.stop, behind) if block.stop < self.source.end else self._next_epoch(place)
        return Chunk(place, samples, on)

    def _shuffled(self, place: Place, how: Shuffling) -> Chunk:
        order = self._order
        if order is None or order.epoch != place.epoch:
            order = self._order = ShuffledRows(
                len(self.source), window=how.buffer_size, seed=how.seed, epoch=place.epoch
            )
        if place.row > order.rows:
            raise MismatchError(
                f"there is no row {place.row} in {self.source.path}, which has {order.rows}; start from the "
                "beginning, without the state"
            )
        if place.row == order.rows:
            return Chunk(place, [], self._next_epoch(place))
        number, first = divmod(place.row, how.buffer_size)
        if self._window is None or self._window[:2] != (place.epoch, number):
            self._window = None  # free the old window before the new one is read
            self._window = (place.epoch, number, *self._read_window(order, number))
        numbers, rows = self._window[2][first : first + CHUNK_ROWS], self._window[3][first : first + CHUNK_ROWS]
        samples = self.rows.samples(rows, numbers, lambda k: self.source.where(numbers[k]))
        behind = place.row + len(rows)
        return Chunk(place, samples, Place(place.epoch, behind) if behind < order.rows else self._next_epoch(place))

    def _read_window(self, order: ShuffledRows, number: int) -> tuple[list[int], list[dict[str, Any]]]:
        """Read the rows of a window in ascending order, so that no part of the source is read twice."""
        numbers = order.in_window(number)
        ascending = np.sort(numbers)
        stretches = np.split(ascending, np.flatnonzero(np.diff(ascending) > 1) + 1)
        rows = {at: row for stretch in stretches for at, row in self._stretch(int(stretch[0]), int(stretch[-1]) + 1)}
        return numbers.tolist(), [rows[at] for at in numbers.tolist()]

    def _stretch(self, start: int, stop: int) -> Iterator[tuple[int, dict[str, Any]]]:
        source = self.source
        if isinstance(source, TableSource):
            return zip(range(start, stop), source.rows(start, stop), strict=True)
        return ((at, source.row(at)) for at in range(start, stop))

    def _next_epoch(self, place: Place) -> Place | None:
        return Place(place.epoch + 1) if self.epochs is None or place.epoch + 1 < self.epochs else None
