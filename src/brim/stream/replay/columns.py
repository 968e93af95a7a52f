"""`Entries`: stream samples as columns that only grow at their end.

A value that was written is never overwritten: when the arrays are full, the entries that are still wanted are copied to
new arrays. So whoever holds the columns of today can still read them tomorrow without a copy, and the draws and
snapshots of a replay buffer rely on that. Which entries are wanted is decided by the caller. Samples come back from the
columns equal to those that went in.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import begins, ends
from brim.core.errors import DataError
from brim.core.options import LONGEST
from brim.data.ids import SampleId, not_an_id
from brim.envs.episode import EpisodeStatus
from brim.stream.sample import FIELDS, SampleSource, StreamSample

try:
    from brim.stream.replay import _kernel as kernel
except ImportError:  # not compiled here: `_gather` does the same work
    kernel = None

NONE = -1
"""Stands for None in columns of integers, which are never negative; columns of floats have NaN for None."""
SOURCES = list(SampleSource)
STATUSES = list(EpisodeStatus)
OPTIONAL_INTEGERS = ("step_index", "total_steps", "policy_version")
OPTIONAL_NUMBERS = ("reward", "difficulty")
TEXTS = ("dataset_id", "episode_id")
TYPES: dict[str, type[Any]] = {
    **dict.fromkeys(("sample_id", *TEXTS), object),
    **dict.fromkeys((*OPTIONAL_NUMBERS, "timestamp", "priority"), np.float64),
    **dict.fromkeys((*OPTIONAL_INTEGERS, "replay_count", "start"), np.int64),
    **{"length": np.int32, "source": np.int8, "episode_status": np.int8, "success": np.int8, "segmented": np.uint8},
}
CHUNK = 1 << 20
"""Tokens that are handled at once where intermediate arrays are larger than the tokens themselves."""
LARGEST_FLOAT = float(np.finfo(np.float64).max)

Column = NDArray[Any]
Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Entries:
    """Columns by name (`TYPES`), one value per entry, and the flat token columns that `start` and `length` index."""

    columns: dict[str, Column]
    tokens: Column
    """uint16 while all tokens fit, else int32."""
    learned: NDArray[np.uint8]
    segments: NDArray[np.int32] | None = None
    """None if no sample has segments."""

    def __len__(self) -> int:
        return len(self.columns["start"])

    @property
    def nbytes(self) -> int:
        """Memory of all columns; ids and names count as references."""
        flat = [self.tokens, self.learned]
        if self.segments is not None:
            flat.append(self.segments)
        return sum(array.nbytes for array in (*self.columns.values(), *flat))

    @classmethod
    def of(cls, samples: Sequence[StreamSample]) -> "Entries":
        """The columns of some samples.

        Raises:
            DataError: A number does not fit 64 bits.
        """
        count = len(samples)
        lengths = np.fromiter((len(sample.input_ids) for sample in samples), np.int32, count)
        columns: dict[str, Column] = {"length": lengths, "start": begins(lengths)}
        for name in ("sample_id", *TEXTS):
            columns[name] = objects(getattr(sample, name) for sample in samples)
        for name in ("timestamp", "replay_count", "priority"):
            columns[name] = _numbers(samples, name, TYPES[name])
        for name in OPTIONAL_INTEGERS:
            columns[name] = _numbers(samples, name, np.int64, NONE)
        for name in OPTIONAL_NUMBERS:
            columns[name] = _numbers(samples, name, np.float64, np.nan)
        # Enumerations and truth values are stored as small integers.
        statuses = (sample.episode_status for sample in samples)
        successes = (sample.success for sample in samples)
        columns["source"] = np.fromiter((SOURCES.index(sample.source) for sample in samples), np.int8, count)
        columns["episode_status"] = np.fromiter(
            (NONE if s is None else STATUSES.index(s) for s in statuses), np.int8, count
        )
        columns["success"] = np.fromiter((NONE if s is None else bool(s) for s in successes), np.int8, count)
        columns["segmented"] = np.fromiter((sample.segment_ids is not None for sample in samples), np.uint8, count)
        tokens = np.concatenate([np.empty(0, np.int32), *(sample.input_ids for sample in samples)])
        learned = np.concatenate([np.empty(0, np.uint8), *(sample.loss_mask for sample in samples)])
        segments = None
        if columns["segmented"].any():
            own = (sample.segment_ids for sample in samples)
            filled = [np.zeros(n, np.int32) if ids is None else ids for n, ids in zip(lengths, own, strict=True)]
            segments = np.concatenate(filled)
        return cls(columns, tokens, learned, segments)

    @classmethod
    def of_columns(
        cls,
        sample_ids: Sequence[SampleId],
        tokens: NDArray[np.integer[Any]],
        lengths: NDArray[np.integer[Any]],
        *,
        learned: Column | None = None,
        dataset_id: str = "",
        source: SampleSource = SampleSource.OFFLINE,
        reward: NDArray[np.float64] | None = None,
        difficulty: NDArray[np.float64] | None = None,
        success: NDArray[np.integer[Any]] | None = None,
        policy_version: int | None = None,
    ) -> "Entries":
        """Entries whose tokens lie end to end in one array.

        Every token is trained on unless `learned` has a 0 for it. NaN and -1 stand for None.

        Raises:
            DataError: The columns do not fit together, or a value is out of range.
        """
        count, tokens, sizes = len(sample_ids), np.asarray(tokens), np.asarray(lengths)
        mask = np.ones(tokens.shape, np.uint8) if learned is None else np.asarray(learned)
        given = {"reward": reward, "difficulty": difficulty, "success": success}
        some = {name: np.asarray(values) for name, values in given.items() if values is not None}
        check_columns(objects(sample_ids), tokens, sizes, mask, some)
        # One sample with the common values decides, and checks, what is repeated in every row.
        one = StreamSample(
            sample_id=0,
            input_ids=np.empty(0, np.int32),
            loss_mask=np.empty(0, np.uint8),
            dataset_id=dataset_id,
            source=source,
            policy_version=policy_version,
        )
        columns = {name: np.repeat(column, count) for name, column in cls.of([one]).columns.items()}
        columns |= {"sample_id": objects(sample_ids), "length": sizes.astype(np.int32)}
        columns["start"] = begins(columns["length"])
        columns |= {name: values.astype(TYPES[name]) for name, values in some.items()}
        return cls(columns, tokens.astype(np.int32), mask.astype(np.uint8))

    def taken(self, rows: Rows) -> "Entries":
        """Some of the entries, in arrays of their own."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        begin, lengths = columns["start"], columns["length"]
        columns["start"] = begins(lengths)
        segments = None if self.segments is None else gather(self.segments, begin, lengths)
        return Entries(columns, gather(self.tokens, begin, lengths), gather(self.learned, begin, lengths), segments)

    def samples(
        self, rows: Rows, replay_count: NDArray[np.int64] | None = None, replayed_at: float | None = None
    ) -> list[StreamSample]:
        """Some of the entries as samples, equal to those that were added except for `replay_count`.

        With `replayed_at` they are marked as replayed at that time.
        """
        part = self.taken(rows)
        counts = part.columns["replay_count"] if replay_count is None else replay_count
        stops = ends(part.columns["length"])
        spans = list(zip(part.columns["start"].tolist(), stops.tolist(), strict=True))
        values: dict[str, list[Any]] = {
            "input_ids": _cut(part.tokens.astype(np.int32, copy=False), spans),
            "loss_mask": _cut(part.learned, spans),
            "segment_ids": [None] * len(spans),
            "replay_count": counts.tolist(),
        }
        if part.segments is not None:
            pairs = zip(_cut(part.segments, spans), part.columns["segmented"].tolist(), strict=True)
            values["segment_ids"] = [segments if own else None for segments, own in pairs]
        if replayed_at is not None:
            values["source"] = [SampleSource.REPLAY] * len(spans)
            values["timestamp"] = [replayed_at] * len(spans)
        for name in FIELDS:
            if name not in values:
                values[name] = _python_values(name, part.columns[name])
        # The samples passed the checks of `StreamSample` before they became columns.
        return list(map(StreamSample.unchecked, zip(*(values[name] for name in FIELDS), strict=True)))


class Log:
    """Entries with spare room at their end. `view` is what is there now; later additions do not change it."""

    def __init__(self, entries: Entries | None = None) -> None:
        if entries is None:
            entries = replace(Entries.of([]), tokens=np.empty(0, np.uint16))
        self._room = entries
        self.used = len(self._room)
        self.used_tokens = len(self._room.tokens)

    @property
    def view(self) -> Entries:
        return self._room

    def append(self, entries: Entries, live: Callable[[], Rows]) -> Rows | None:
        """Write entries at the end, as the rows from `used` on.

        If they do not fit, the rows that `live` returns are copied to larger arrays first, in their order, and are
        renumbered 0, 1, ... These rows are returned then, and None otherwise.
        """
        if not len(entries):
            return None
        large = len(entries.tokens) > 0 and int(entries.tokens.max()) > 0xFFFF
        wide = np.dtype(np.int32) if large else self._room.tokens.dtype
        too_many = self.used + len(entries) > len(self._room)
        too_long = self.used_tokens + len(entries.tokens) > len(self._room.tokens)
        first_segments = entries.segments is not None and self._room.segments is None
        moved = None
        if too_many or too_long or first_segments or wide != self._room.tokens.dtype:
            moved = live()
            self._move(moved, entries, wide)
        first, start = self.used, self.used_tokens
        self.used += len(entries)
        self.used_tokens += len(entries.tokens)
        for name, column in entries.columns.items():
            self._room.columns[name][first : self.used] = column + start if name == "start" else column
        self._room.tokens[start : self.used_tokens] = entries.tokens
        self._room.learned[start : self.used_tokens] = entries.learned
        if self._room.segments is not None:
            self._room.segments[start : self.used_tokens] = 0 if entries.segments is None else entries.segments
        return moved

    def _move(self, rows: Rows, incoming: Entries, wide: np.dtype[Any]) -> None:
        """Copy rows to arrays with room for half as much again, which makes appending O(1) amortized."""
        old = self._room
        lengths = old.columns["length"][rows]
        held = int(lengths.sum(dtype=np.int64))
        space = (len(rows) + len(incoming)) * 3 // 2 + 16
        token_space = (held + len(incoming.tokens)) * 3 // 2 + 256
        begin = old.columns["start"][rows]
        columns: dict[str, Column] = {}
        for name, kind in TYPES.items():
            columns[name] = np.empty(space, kind)
            columns[name][: len(rows)] = begins(lengths) if name == "start" else old.columns[name][rows]
        tokens = np.empty(token_space, wide)
        learned = np.empty(token_space, np.uint8)
        gather(old.tokens, begin, lengths, tokens[:held])
        gather(old.learned, begin, lengths, learned[:held])
        segments = None
        if old.segments is not None or incoming.segments is not None:
            segments = np.zeros(token_space, np.int32)
            if old.segments is not None:
                gather(old.segments, begin, lengths, segments[:held])
        self._room = Entries(columns, tokens, learned, segments)
        self.used = len(rows)
        self.used_tokens = held


def check_columns(ids: Column, tokens: Column, lengths: Column, learned: Column, others: dict[str, Column]) -> None:
    """Check columns that a caller made. `others` are reward, difficulty and success, those that were given.

    The values are checked as they were given, before any cast: as a 32-bit length, 2**32 + 1 would be 1.

    Raises:
        DataError: They do not fit together, or a value is out of range; the message names its column and row.
    """
    for name, column in {"lengths": lengths, **others}.items():
        if column.shape != ids.shape:
            raise DataError(f"{name} has shape {column.shape} for {len(ids)} samples")
    for row, id in enumerate(ids.tolist()):
        if type(id) not in (str, int):
            raise not_an_id(f"sample_ids of row {row} is {id!r}")
    _check_range("lengths", lengths, 0, LONGEST)
    total = int(lengths.sum(dtype=np.int64))
    if not tokens.shape == learned.shape == (total,):
        shapes = f"tokens of shape {tokens.shape} and learned of shape {learned.shape}"
        raise DataError(f"lengths add up to {total} for {shapes}")
    if total and tokens.dtype.kind not in "iu":
        raise DataError(f"tokens must be integers, got an array of {tokens.dtype}")
    _check_range("tokens", tokens, 0, LONGEST, lengths)
    _check_range("learned", learned, 0, 1, lengths)
    ranges: dict[str, tuple[float, float]] = {
        "reward": (-LARGEST_FLOAT, LARGEST_FLOAT),
        "difficulty": (0.0, 1.0),
        "success": (-1, 1),
    }
    for name, column in others.items():
        _check_range(name, column, *ranges[name])


def _check_range(name: str, column: Column, lowest: float, highest: float, lengths: Column | None = None) -> None:
    """Require integers if the bounds are integers, else numbers or NaN. With `lengths` it is a column of tokens."""
    if not column.size:
        return
    if column.dtype.kind not in "biuf":
        raise DataError(f"{name} must be numbers of 64 bits or fewer, got an array of {column.dtype}")
    whole = isinstance(lowest, int)
    if whole and column.dtype.kind == "f":
        good = (column >= lowest) & (column <= highest) & (column == np.floor(column))
    elif column.min() >= lowest and column.max() <= highest:
        return
    else:
        good = (column >= lowest) & (column <= highest) | (not whole and np.isnan(column))
    if not good.all():
        place = row = int(np.argmin(good))
        if lengths is not None:
            row = int(np.searchsorted(np.cumsum(lengths, dtype=np.int64), place, side="right"))
        allowed = f"between {lowest:.4g} and {highest:.4g}, or NaN for none"
        if whole:
            allowed = f"an integer from {lowest} to {highest}"
        raise DataError(f"{name} of row {row} is {column[place]}; it must be {allowed}")


def read_only(array: Column) -> Column:
    """A view of the same memory that cannot be written to."""
    view = array.view()
    view.flags.writeable = False
    return view


def gather(source: Column, begin: NDArray[np.int64], lengths: NDArray[np.int32], out: Column | None = None) -> Column:
    """Copy stretches of a flat array end to end, to a new array or to `out`, which may be of a wider type."""
    if out is None:
        out = np.empty(int(lengths.sum(dtype=np.int64)), source.dtype)
    if kernel is not None and (source.dtype == out.dtype or (source.itemsize, out.itemsize) == (2, 4)):
        begin, lengths = np.ascontiguousarray(begin), np.ascontiguousarray(lengths)
        kernel.gather(source, begin, lengths, out, source.itemsize, out.itemsize)
    else:
        _gather(source, begin, lengths, out)
    return out


def _gather(source: Column, begin: NDArray[np.int64], lengths: NDArray[np.int32], out: Column) -> None:
    """Do the work of `kernel.gather` in NumPy."""
    if not len(begin):
        return
    stops = ends(lengths)
    starts = stops - lengths
    # Stretches that are neighbours in the source as well form a run. Where runs are long, each is copied by a slice.
    first = np.flatnonzero(np.concatenate([[True], begin[1:] != begin[:-1] + lengths[:-1]]))
    if len(first) * 4 <= len(begin):
        run_stops = [*starts[first[1:]].tolist(), len(out)]
        for start, to, stop in zip(begin[first].tolist(), starts[first].tolist(), run_stops, strict=True):
            out[to:stop] = source[start : start + stop - to]
        return
    # Otherwise every token is copied by its index, in parts, because an index takes eight bytes.
    low = 0
    while low < len(begin):
        high = max(low + 1, int(np.searchsorted(stops, stops[low] + CHUNK)))
        to = int(starts[low])
        shifts = np.repeat(begin[low:high] - (starts[low:high] - to), lengths[low:high])
        index = np.arange(int(stops[high - 1]) - to) + shifts
        out[to : to + len(index)] = source[index]
        low = high


def objects(values: Iterable[Any]) -> NDArray[np.object_]:
    """A column of Python objects, also where NumPy would make another array of them."""
    values = list(values)
    column = np.empty(len(values), object)
    column[:] = values
    return column


def _cut(flat: Column, spans: list[tuple[int, int]]) -> list[Column]:
    """The stretches of a flat column as read-only views."""
    flat.flags.writeable = False
    return [flat[start:stop] for start, stop in spans]


def _numbers(samples: Sequence[StreamSample], name: str, kind: type[Any], none: Any = None) -> Column:
    values = [getattr(sample, name) for sample in samples]
    try:
        return np.array([none if value is None else value for value in values], kind)
    except (OverflowError, TypeError, ValueError):
        bad = next(value for value in values if not _fits(value, kind))
        raise DataError(f"{name} of a sample is not a number of 64 bits: {bad!r}") from None


def _fits(value: Any, kind: type[Any]) -> bool:
    try:
        return value is None or bool(np.array(value, kind) == value)
    except (OverflowError, TypeError, ValueError):
        return False


def _python_values(name: str, column: Column) -> list[Any]:
    """A column as the values that a `StreamSample` holds: codes become members, `NONE` and NaN become None."""
    values = column.tolist()
    if name == "source":
        return [SOURCES[code] for code in values]
    if name == "episode_status":
        return [None if code == NONE else STATUSES[code] for code in values]
    if name == "success":
        return [None if code == NONE else bool(code) for code in values]
    if name in OPTIONAL_INTEGERS:
        return [None if value == NONE else value for value in values]
    if name in OPTIONAL_NUMBERS:
        return [None if value != value else value for value in values]
    return values
