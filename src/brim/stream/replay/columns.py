"""`Entries`: stream samples as columns that only ever grow at their end.

What was written is never written again: when there is no more room, what is still wanted moves to new arrays. So whoever holds on to the
columns of today can read them tomorrow without a copy, and draws and snapshots of a replay buffer do just that. Which entries are wanted
is the caller's business. A sample comes back as it went in.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import DataError
from brim.data.ids import SampleId
from brim.stream.replay.columns_check import check_columns
from brim.stream.sample import EpisodeStatus, SampleSource, StreamSample

try:
    from brim.stream.replay import _kernel as kernel
except ImportError:  # not compiled here: `_gather` does the same work
    kernel = None

NONE = -1
"""Stands for None in columns of integers, which are not negative; in columns of numbers that is NaN."""
SOURCES, STATUSES = list(SampleSource), list(EpisodeStatus)
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

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Entries:
    """Columns by name (`TYPES`), one value per entry, and the flat columns of tokens that `start` and `length` point into."""

    columns: dict[str, NDArray[Any]]
    tokens: NDArray[Any]
    """uint16 where that is enough, else int32."""
    learned: NDArray[np.uint8]
    segments: NDArray[np.int32] | None = None
    """None if no sample has any."""

    def __len__(self) -> int:
        return len(self.columns["start"])

    @property
    def nbytes(self) -> int:
        flat = (self.tokens, self.learned, *(() if self.segments is None else (self.segments,)))
        return sum(array.nbytes for array in (*self.columns.values(), *flat))

    @classmethod
    def of(cls, samples: Sequence[StreamSample]) -> "Entries":
        """
        Raises:
            DataError: A number does not fit 64 bits.
        """
        lengths = np.fromiter((len(sample.input_ids) for sample in samples), np.int32, len(samples))
        columns: dict[str, NDArray[Any]] = {"length": lengths, "start": ends(lengths) - lengths}
        for name in ("sample_id", *TEXTS):
            columns[name] = objects(getattr(sample, name) for sample in samples)
        for name in ("timestamp", "replay_count", "priority"):
            columns[name] = _numbers(samples, name, TYPES[name])
        for name in OPTIONAL_INTEGERS:
            columns[name] = _numbers(samples, name, np.int64, NONE)
        for name in OPTIONAL_NUMBERS:
            columns[name] = _numbers(samples, name, np.float64, np.nan)
        columns["source"] = np.fromiter((SOURCES.index(sample.source) for sample in samples), np.int8, len(samples))
        columns["episode_status"] = np.fromiter((_place(sample.episode_status) for sample in samples), np.int8, len(samples))
        columns["success"] = np.fromiter(
            (-1 if sample.success is None else bool(sample.success) for sample in samples), np.int8, len(samples)
        )
        columns["segmented"] = np.fromiter((sample.segment_ids is not None for sample in samples), np.uint8, len(samples))
        tokens = np.concatenate([np.empty(0, np.int32), *(sample.input_ids for sample in samples)])
        learned = np.concatenate([np.empty(0, np.uint8), *(sample.loss_mask for sample in samples)])
        segments = None
        if columns["segmented"].any():
            some = (np.zeros(len(sample), np.int32) if sample.segment_ids is None else sample.segment_ids for sample in samples)
            segments = np.concatenate(list(some))
        return cls(columns, tokens, learned, segments)

    @classmethod
    def of_columns(
        cls,
        sample_ids: Sequence[SampleId],
        tokens: NDArray[np.integer[Any]],
        lengths: NDArray[np.integer[Any]],
        *,
        learned: NDArray[Any] | None = None,
        dataset_id: str = "",
        source: SampleSource = SampleSource.OFFLINE,
        reward: NDArray[np.float64] | None = None,
        difficulty: NDArray[np.float64] | None = None,
        success: NDArray[np.integer[Any]] | None = None,
        policy_version: int | None = None,
    ) -> "Entries":
        """Samples whose tokens lie end to end. All are learned unless `learned` says otherwise; NaN and -1 stand for None.

        Raises:
            DataError: The columns do not fit together, or a value is out of range.
        """
        count, tokens, sizes = len(sample_ids), np.asarray(tokens), np.asarray(lengths)
        mask = np.ones(tokens.shape, np.uint8) if learned is None else np.asarray(learned)
        given = {"reward": reward, "difficulty": difficulty, "success": success}
        some = {name: np.asarray(values) for name, values in given.items() if values is not None}
        check_columns(objects(sample_ids), tokens, sizes, mask, some)
        none, nothing = np.empty(0, np.int32), np.empty(0, np.uint8)
        one = StreamSample(
            sample_id=0, input_ids=none, loss_mask=nothing, dataset_id=dataset_id, source=source, policy_version=policy_version
        )
        columns = {name: np.repeat(column, count) for name, column in cls.of([one]).columns.items()}
        columns |= {"sample_id": objects(sample_ids), "length": sizes.astype(np.int32)}
        columns["start"] = ends(columns["length"]) - columns["length"]
        columns |= {name: values.astype(TYPES[name]) for name, values in some.items()}
        return cls(columns, tokens.astype(np.int32), mask.astype(np.uint8))

    def taken(self, rows: Rows) -> "Entries":
        """Some of them, in arrays of their own."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        begin, lengths = columns["start"], columns["length"]
        segments = None if self.segments is None else gather(self.segments, begin, lengths)
        tokens, learned = gather(self.tokens, begin, lengths), gather(self.learned, begin, lengths)
        return Entries({**columns, "start": ends(lengths) - lengths}, tokens, learned, segments)

    def samples(self, rows: Rows, replay_count: NDArray[np.int64] | None = None, replayed_at: float | None = None) -> list[StreamSample]:
        """As they went in, but for `replay_count`. With `replayed_at` they are marked as replayed at that time."""
        part = self.taken(rows)
        tokens = part.tokens.astype(np.int32)
        for array in (tokens, part.learned, part.segments):
            if array is not None:
                array.flags.writeable = False
        counts = part.columns["replay_count"] if replay_count is None else replay_count
        values = [_values(part, name) for name in ("sample_id", *TEXTS, *OPTIONAL_INTEGERS, "source", "episode_status", "success")]
        numbers = [
            part.columns[name].tolist() for name in ("timestamp", "reward", "difficulty", "priority", "segmented", "start", "length")
        ]
        return [
            _sample(tokens, part.learned, part.segments, count, replayed_at, *row)
            for count, *row in zip(counts.tolist(), *values, *numbers, strict=True)
        ]


class Log:
    """Entries with room at their end. `view` is what is there now, for keeps."""

    def __init__(self, entries: Entries | None = None) -> None:
        self._room = replace(Entries.of([]), tokens=np.empty(0, np.uint16)) if entries is None else entries
        self.used = len(self._room)
        self.used_tokens = len(self._room.tokens)

    @property
    def view(self) -> Entries:
        return self._room

    def append(self, entries: Entries, live: Callable[[], Rows]) -> Rows | None:
        """Write entries at the end, as the rows from `used` on.

        Where there is no room for them, the rows that `live` names move to new arrays, in their order, and are renumbered 0, 1, ...;
        they are given back then.
        """
        if not len(entries):
            return None
        large = len(entries.tokens) > 0 and int(entries.tokens.max()) > 0xFFFF
        wide = np.dtype(np.int32) if large else self._room.tokens.dtype
        full = self.used + len(entries) > len(self._room) or self.used_tokens + len(entries.tokens) > len(self._room.tokens)
        moved = None
        if full or wide != self._room.tokens.dtype or (entries.segments is not None and self._room.segments is None):
            moved = live()
            self._move(moved, entries, wide)
        first, start = self.used, self.used_tokens
        self.used, self.used_tokens = first + len(entries), start + len(entries.tokens)
        for name, column in entries.columns.items():
            self._room.columns[name][first : self.used] = column + start if name == "start" else column
        self._room.tokens[start : self.used_tokens] = entries.tokens
        self._room.learned[start : self.used_tokens] = entries.learned
        if self._room.segments is not None:
            self._room.segments[start : self.used_tokens] = 0 if entries.segments is None else entries.segments
        return moved

    def _move(self, rows: Rows, incoming: Entries, wide: np.dtype[Any]) -> None:
        """To arrays with room for half as much again: what is copied here was paid for by what was appended since the last time."""
        old = self._room
        lengths = old.columns["length"][rows]
        held = int(lengths.sum(dtype=np.int64))
        space = (len(rows) + len(incoming)) * 3 // 2 + 16
        token_space = (held + len(incoming.tokens)) * 3 // 2 + 256
        begin = old.columns["start"][rows]
        columns: dict[str, NDArray[Any]] = {}
        for name, kind in TYPES.items():
            columns[name] = np.empty(space, kind)
            columns[name][: len(rows)] = ends(lengths) - lengths if name == "start" else old.columns[name][rows]
        tokens, learned = np.empty(token_space, wide), np.empty(token_space, np.uint8)
        gather(old.tokens, begin, lengths, tokens[:held])
        gather(old.learned, begin, lengths, learned[:held])
        segments = None
        if old.segments is not None or incoming.segments is not None:
            segments = np.zeros(token_space, np.int32)
            if old.segments is not None:
                gather(old.segments, begin, lengths, segments[:held])
        self._room = Entries(columns, tokens, learned, segments)
        self.used, self.used_tokens = len(rows), held


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """The same memory, not to be written to."""
    view = array.view()
    view.flags.writeable = False
    return view


def gather(source: NDArray[Any], begin: NDArray[np.int64], lengths: NDArray[np.int32], out: NDArray[Any] | None = None) -> NDArray[Any]:
    """Stretches of a flat array, end to end, in a new array or in `out`, which may be of a wider type."""
    if out is None:
        out = np.empty(int(lengths.sum(dtype=np.int64)), source.dtype)
    if kernel is not None and (source.dtype == out.dtype or (source.itemsize, out.itemsize) == (2, 4)):
        kernel.gather(source, np.ascontiguousarray(begin), np.ascontiguousarray(lengths), out, source.itemsize, out.itemsize)
    else:
        _gather(source, begin, lengths, out)
    return out


def _gather(source: NDArray[Any], begin: NDArray[np.int64], lengths: NDArray[np.int32], out: NDArray[Any]) -> None:
    """The twin of `kernel.gather`: stretches that follow each other are copied as one if that helps, else all by index."""
    if not len(begin):
        return
    stops = ends(lengths)
    first = np.flatnonzero(np.concatenate([[True], begin[1:] != begin[:-1] + lengths[:-1]]))
    if len(first) * 4 <= len(begin):
        runs = zip(
            begin[first].tolist(), (stops - lengths)[first].tolist(), [*(stops - lengths)[first[1:]].tolist(), len(out)], strict=True
        )
        for start, to, stop in runs:
            out[to:stop] = source[start : start + stop - to]
        return
    low = 0
    while low < len(begin):  # in parts: an index takes eight bytes for a token
        high = max(low + 1, int(np.searchsorted(stops, stops[low] + CHUNK)))
        to = int(stops[low] - lengths[low])
        place = np.arange(int(stops[high - 1]) - to) + np.repeat(
            begin[low:high] - (stops[low:high] - lengths[low:high] - to), lengths[low:high]
        )
        out[to : to + len(place)] = source[place]
        low = high


def ends(lengths: NDArray[np.int32]) -> NDArray[np.int64]:
    return np.cumsum(lengths, dtype=np.int64)


def objects(values: Iterable[Any]) -> NDArray[np.object_]:
    values = list(values)
    column = np.empty(len(values), object)
    column[:] = values
    return column


def _numbers(samples: Sequence[StreamSample], name: str, kind: type[Any], none: Any = None) -> NDArray[Any]:
    values = [getattr(sample, name) for sample in samples]
    try:
        return np.array([none if value is None else value for value in values], kind)
    except (OverflowError, TypeError, ValueError):
        raise DataError(
            f"{name} of a sample is not a number of 64 bits: {next(value for value in values if not _fits(value, kind))!r}"
        ) from None


def _fits(value: Any, kind: type[Any]) -> bool:
    try:
        return value is None or bool(np.array(value, kind) == value)
    except (OverflowError, TypeError, ValueError):
        return False


def _place(status: EpisodeStatus | None) -> int:
    return -1 if status is None else STATUSES.index(status)


def _values(part: Entries, name: str) -> list[Any]:
    column = part.columns[name]
    match name:
        case "source":
            return [SOURCES[code] for code in column.tolist()]
        case "episode_status":
            return [None if code < 0 else STATUSES[code] for code in column.tolist()]
        case "success":
            return [None if code < 0 else bool(code) for code in column.tolist()]
        case _ if column.dtype == np.int64:
            return [None if value == NONE else value for value in column.tolist()]
        case _:
            return column.tolist()


def _sample(
    tokens: NDArray[np.int32],
    learned: NDArray[np.uint8],
    segments: NDArray[np.int32] | None,
    replay_count: int,
    replayed_at: float | None,
    sample_id: SampleId,
    dataset_id: str,
    episode_id: str | None,
    step_index: int | None,
    total_steps: int | None,
    policy_version: int | None,
    source: SampleSource,
    episode_status: EpisodeStatus | None,
    success: bool | None,
    timestamp: float,
    reward: float,
    difficulty: float,
    priority: float,
    segmented: int,
    start: int,
    length: int,
) -> StreamSample:
    """Without the checks of `StreamSample`: it passed them before."""
    sample, put = object.__new__(StreamSample), object.__setattr__
    stop = start + length
    put(sample, "sample_id", sample_id)
    put(sample, "input_ids", tokens[start:stop])
    put(sample, "loss_mask", learned[start:stop])
    put(sample, "segment_ids", segments[start:stop] if segmented and segments is not None else None)
    put(sample, "dataset_id", dataset_id)
    put(sample, "source", source if replayed_at is None else SampleSource.REPLAY)
    put(sample, "timestamp", timestamp if replayed_at is None else replayed_at)
    put(sample, "episode_id", episode_id)
    put(sample, "episode_status", episode_status)
    put(sample, "step_index", step_index)
    put(sample, "total_steps", total_steps)
    put(sample, "reward", None if reward != reward else reward)
    put(sample, "difficulty", None if difficulty != difficulty else difficulty)
    put(sample, "success", success)
    put(sample, "policy_version", policy_version)
    put(sample, "replay_count", replay_count)
    put(sample, "priority", priority)
    return sample
