"""Replay buffers on disk: mapped columns, or JSON if the name ends in .json.

`ReplayState` is everything that a buffer is. Both formats hold all of it, are written whole or not at all, and detect
that a file was truncated or altered. Columns are smaller and faster; JSON is for people and for other programs. A JSON
file without a checksum is accepted, so that one can be written or edited by hand. Nothing is unpickled.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from brim.core.arrays import begins
from brim.core.atomic import atomic_file
from brim.core.columns import Columns, is_columns, write_columns
from brim.core.document import Document
from brim.core.errors import BrimError, DamagedError, DataError, did_you_mean
from brim.core.fingerprint import digest_bytes
from brim.data.ids import SampleId
from brim.envs.episode import EpisodeStatus
from brim.stream.replay.columns import TEXTS, TYPES, Entries, objects
from brim.stream.replay.config import ReplayBufferConfig
from brim.stream.replay.slots import ReplayCounts
from brim.stream.sample import FIELDS, SampleSource, StreamSample

FORMAT = "brim.replay/1"
JSON = Document(
    format="brim.buffer/1",
    what="a replay buffer",
    again='save the buffer again (a file that is edited by hand must have no "checksum")',
    checksum="optional",
)
STATE_COLUMNS = ("keys", "priorities", "weights", "replays")
NUMBERS = [name for name, kind in TYPES.items() if kind is not object and name != "start"]
COUNTS = {field.name: field.name for field in fields(ReplayCounts)} | {
    "added": "total_added",
    "evicted": "total_evicted",
}
"""The names that counts have in JSON."""
KNOWN = ["config", "slots", "random_words", "keys", "priorities", "samples", *COUNTS.values()]
ARRAYS = {"input_ids": np.int32, "loss_mask": np.uint8, "segment_ids": np.int32}


@dataclass(frozen=True, slots=True)
class ReplayState:
    """Everything that a replay buffer is, as columns: entries oldest first, in the slots `keys % max_size`."""

    config: ReplayBufferConfig
    counts: ReplayCounts
    high: int
    """All slots in use are below this one."""
    drawn: int
    """Random words used for draws."""
    evicting: int
    """Random words used for evictions."""
    entries: Entries
    keys: NDArray[np.int64]
    priorities: NDArray[np.float64]
    weights: NDArray[np.float64]
    """The weights in the sum tree."""
    replays: NDArray[np.int64]

    def check(self) -> None:
        """Check that a buffer can be in this state.

        Raises:
            DataError: It cannot.
        """
        counts, size = self.counts, len(self.entries)
        if not len(self.keys) == len(self.priorities) == size:
            keys, priorities = len(self.keys), len(self.priorities)
            raise DataError(f"a replay buffer has {size} samples, {keys} keys and {priorities} priorities")
        accounted = size + counts.evicted + counts.replaced + counts.removed
        if counts.added != accounted or min(counts.evicted, counts.replaced, counts.removed) < 0:
            raise DataError(f"a replay buffer holds {size} samples, which its counts do not add up to: {counts}")
        if size and (int(self.keys[0]) < self.config.max_size or np.any(self.keys[1:] <= self.keys[:-1])):
            raise DataError("the keys of a replay buffer must be positive and increasing")
        slots, additions = self.keys % self.config.max_size, self.keys // self.config.max_size
        known = not np.any(slots >= self.high) and (not size or int(additions[-1]) <= counts.added)
        if not known or not 0 <= self.high <= self.config.max_size:
            raise DataError("the keys of a replay buffer must refer to existing slots and additions")
        taken = np.zeros(self.high, np.bool_)
        taken[slots] = True
        if np.count_nonzero(taken) < size or np.any(additions[1:] <= additions[:-1]):
            raise DataError("two keys of a replay buffer must not share a slot or an addition")
        if min(self.drawn, self.evicting) < 0:
            raise DataError("the counts of random words of a replay buffer must not be negative")
        if not np.all((self.priorities >= 0) & np.isfinite(self.weights)):
            raise DataError("the priorities of a replay buffer must be finite and not negative")


def save_state(state: ReplayState, path: str | os.PathLike[str]) -> None:
    """Write JSON if the name ends in .json, else columns."""
    if Path(path).suffix == ".json":
        with atomic_file(path) as file:
            file.write(_to_json(state))
        return
    entries = state.entries
    columns: dict[str, NDArray[Any]] = {name: getattr(state, name) for name in STATE_COLUMNS}
    columns |= {name: entries.columns[name] for name in NUMBERS}
    columns |= _ids_to_columns(entries.columns["sample_id"].tolist())
    for name in TEXTS:
        columns |= _names_to_columns(name, entries.columns[name].tolist())
    columns |= {"tokens": entries.tokens, "learned": entries.learned}
    if entries.segments is not None:
        columns["segments"] = entries.segments
    meta = {"config": state.config.to_dict(), "counts": asdict(state.counts)}
    meta |= {"high": state.high, "drawn": state.drawn, "evicting": state.evicting}
    write_columns(path, FORMAT, meta, columns)


def load_state(path: str | os.PathLike[str]) -> ReplayState:
    """Read either format.

    Raises:
        DataError: There is no such file, or it is not a replay buffer.
        DamagedError: It is truncated, altered or of another version.
    """
    path = Path(path)
    if path.is_dir():
        raise DataError(f"{path} is a directory, not a replay buffer")
    if not path.is_file():
        raise DataError(f"{path} does not exist")
    if is_columns(path, FORMAT):
        return _from_columns(Columns(path, FORMAT))
    data = path.read_bytes()
    if not data.lstrip().startswith(b"{"):
        raise DataError(f"{path} is not a replay buffer")
    return _from_json(data, str(path))


def state_to_dict(state: ReplayState, *, arrays: bool = False) -> dict[str, Any]:
    """JSON-like values, with samples, oldest first, as `StreamSample.to_dict` writes them.

    `arrays` leaves tokens, masks and segments as NumPy arrays, which orjson writes much faster than lists.
    """
    replay_count = state.entries.columns["replay_count"] + state.replays
    samples = state.entries.samples(np.arange(len(state.keys)), replay_count)
    return {
        "format": JSON.format,
        "config": state.config.to_dict(),
        **{COUNTS[name]: count for name, count in asdict(state.counts).items()},
        "slots": state.high,
        "random_words": {"draws": state.drawn, "evictions": state.evicting},
        "keys": state.keys.tolist(),
        "priorities": state.priorities.tolist(),
        "samples": [_sample_to_dict(sample, arrays) for sample in samples],
    }


def state_from_dict(values: Mapping[str, Any]) -> ReplayState:
    """The inverse of `state_to_dict`.

    Raises:
        DataError: A field is unknown, missing or impossible.
        DamagedError: The values are of another version.
    """
    advice = "pass the result of to_dict()"
    return _from_values(JSON.check(values, "the given dictionary", again=advice, digest=_digest))


def _from_values(values: dict[str, Any], *, trusted: bool = False) -> ReplayState:
    """The state of a checked document. `trusted` skips the checks of samples that a checksum vouches for."""
    for name in values:
        if name not in KNOWN:
            raise DataError(f"unknown field {name!r} of a replay buffer.{did_you_mean(name, KNOWN)}")
    from_dict = _trusted_sample if trusted else StreamSample.from_dict
    try:
        config = ReplayBufferConfig.from_dict(values["config"])
        priorities = np.array(values["priorities"], np.float64)
        state = ReplayState(
            config=config,
            counts=ReplayCounts(**{name: int(values[written]) for name, written in COUNTS.items()}),
            keys=np.array(values["keys"], np.int64),
            priorities=priorities,
            entries=Entries.of([from_dict(sample) for sample in values["samples"]]),
            high=int(values["slots"]),
            drawn=int(values["random_words"]["draws"]),
            evicting=int(values["random_words"]["evictions"]),
            # A negative priority has no weight; `check` reports it.
            weights=config.weights(np.where(priorities >= 0, priorities, np.nan)),
            replays=np.zeros(len(values["keys"]), np.int64),
        )
    except KeyError as missing:
        raise DataError(f"a replay buffer needs {missing}") from None
    except BrimError:
        raise
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise DataError(f"not a replay buffer: {error}") from None
    state.check()
    return state


def _from_columns(columns: Columns) -> ReplayState:
    meta = columns.meta
    try:
        lengths = columns["length"]
        named: dict[str, NDArray[Any]] = {name: columns[name] for name in NUMBERS}
        named |= {"start": begins(lengths), "sample_id": objects(_ids_from_columns(columns))}
        named |= {name: _names_from_columns(name, columns) for name in TEXTS}
        state = ReplayState(
            config=ReplayBufferConfig.from_dict(meta["config"]),
            counts=ReplayCounts(**meta["counts"]),
            high=meta["high"],
            drawn=meta["drawn"],
            evicting=meta["evicting"],
            entries=Entries(named, columns["tokens"], columns["learned"], columns.get("segments")),
            **{name: columns[name] for name in STATE_COLUMNS},
        )
        state.check()
    except (KeyError, TypeError, ValueError) as error:  # the checksums are right, so another program wrote the file
        reason = str(error) if isinstance(error, BrimError) else repr(error)
        raise DamagedError(f"{columns.path} is not as brim writes it ({reason}); save the buffer again") from None
    return state


def _ids_to_columns(ids: list[SampleId]) -> dict[str, NDArray[Any]]:
    """Ids as integers if all are; else as text, with a flag for those that are integers if there are any."""
    kinds = set(map(type, ids))
    if kinds == {int} and all(-(2**63) <= int(id) < 2**63 for id in ids):
        return {"id": np.array(ids, np.int64)}
    columns = _texts_to_columns("id", [str(id) for id in ids])
    if int in kinds:
        columns["id_is_integer"] = np.array([type(id) is int for id in ids], np.uint8)
    return columns


def _ids_from_columns(columns: Columns) -> list[SampleId]:
    if "id" in columns:
        return columns["id"].tolist()
    texts = _texts_from_columns("id", columns)
    if "id_is_integer" not in columns:
        return [*texts]
    flags = columns["id_is_integer"].tolist()
    return [int(text) if whole else text for text, whole in zip(texts, flags, strict=True)]


def _names_to_columns(name: str, values: list[str | None]) -> dict[str, NDArray[Any]]:
    """Store every distinct name once: a code per value, -1 for None, and the texts that the codes stand for."""
    texts = [value for value in dict.fromkeys(values) if value is not None]
    table: dict[str | None, int] = {None: -1, **{text: code for code, text in enumerate(texts)}}
    codes = np.fromiter(map(table.__getitem__, values), np.int32, len(values))
    return {name: codes, **_texts_to_columns(name, texts)}


def _names_from_columns(name: str, columns: Columns) -> NDArray[np.object_]:
    table = objects([*_texts_from_columns(name, columns), None])  # the code -1 is the last item
    return table[columns[name]]


def _texts_to_columns(name: str, texts: list[str]) -> dict[str, NDArray[Any]]:
    """Texts end to end in UTF-8, and where each one ends. Half a surrogate pair, which JSON allows, is kept."""
    joined = "".join(texts)
    sizes = map(len, texts if joined.isascii() else (text.encode("utf-8", "surrogatepass") for text in texts))
    stops = np.cumsum(np.fromiter(sizes, np.int64, len(texts)))
    return {f"{name}_text": np.frombuffer(joined.encode("utf-8", "surrogatepass"), np.uint8), f"{name}_ends": stops}


def _texts_from_columns(name: str, columns: Columns) -> list[str]:
    data, stops = columns[f"{name}_text"].tobytes(), columns[f"{name}_ends"].tolist()
    starts = [0, *stops[:-1]]
    if data.isascii():
        text = data.decode()
        return [text[start:stop] for start, stop in zip(starts, stops, strict=False)]
    return [data[start:stop].decode("utf-8", "surrogatepass") for start, stop in zip(starts, stops, strict=False)]


def _to_json(state: ReplayState) -> bytes:
    """The JSON document, with the checksum of everything before it as its last field."""
    try:
        body = orjson.dumps(state_to_dict(state, arrays=True), option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        body = _dumps(state_to_dict(state))
    return b'%s,"checksum":"%s"}\n' % (body[:-1], digest_bytes(body).encode())


def _from_json(data: bytes, name: str) -> ReplayState:
    signed = False

    def digest(values: dict[str, Any]) -> str:
        """Note that the file has a checksum: the digest is asked for only then."""
        nonlocal signed
        signed = True
        return _digest(values)

    values = JSON.decode(data, name, loads=_loads, digest=digest)
    return _from_values(values, trusted=signed)


def _digest(values: dict[str, Any]) -> str:
    """The checksum that `_to_json` writes."""
    return digest_bytes(_dumps(values))


def _sample_to_dict(sample: StreamSample, arrays: bool) -> dict[str, Any]:
    """The result of `StreamSample.to_dict`, with fewer copies."""
    values = {name: getattr(sample, name) for name in FIELDS}
    if not arrays:
        for name in ARRAYS:
            if values[name] is not None:
                values[name] = values[name].tolist()
    values["source"] = str(sample.source)
    if sample.episode_status is not None:
        values["episode_status"] = str(sample.episode_status)
    return values


def _trusted_sample(values: dict[str, Any]) -> StreamSample:
    """A sample from values that passed the checks when they were written."""
    known = {**values, "source": SampleSource(values["source"])}
    for name, kind in ARRAYS.items():
        if values[name] is not None:
            known[name] = np.array(values[name], kind)
    if values["episode_status"] is not None:
        known["episode_status"] = EpisodeStatus(values["episode_status"])
    return StreamSample.unchecked([known[name] for name in FIELDS])


def _dumps(values: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(values)
    except TypeError:  # an id that orjson cannot write: an integer beyond 64 bits, or half a surrogate pair
        return json.dumps(values, separators=(",", ":"), allow_nan=False).encode()


def _loads(data: bytes) -> Any:
    """Parse JSON by orjson, and by Python's parser what orjson cannot read."""
    try:
        values = orjson.loads(data)
        # orjson reads integers beyond 64 bits as floats.
        if not any(type(one.get("sample_id")) is float for one in values.get("samples", ())):
            return values
    except (ValueError, AttributeError, TypeError):
        pass
    return json.loads(data)
