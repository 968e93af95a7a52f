"""A replay buffer as JSON: for people and other programs. Columns (`brim.stream.replay.store`) are smaller and faster.

The file says its format, and a checksum of itself; without a checksum it is believed, so that one can be written or edited by hand.
"""

import json
from dataclasses import asdict, fields
from typing import Any

import numpy as np
import orjson

from brim.core.errors import BrimError, DamagedError, DataError, did_you_mean
from brim.core.fingerprint import digest_bytes
from brim.stream.replay.columns import Entries
from brim.stream.replay.config import ReplayBufferConfig
from brim.stream.replay.slots import ReplayCounts
from brim.stream.replay.state import ReplayState
from brim.stream.sample import EpisodeStatus, SampleSource, StreamSample

FORMAT = "brim.buffer/1"
COUNTS = {"added": "total_added", "evicted": "total_evicted"}
"""What counts are called here, where it is not their name."""
KNOWN = [
    *("format", "config", "slots", "random_words", "keys", "priorities", "samples"),
    *(COUNTS.get(field.name, field.name) for field in fields(ReplayCounts)),
]


def state_to_dict(state: ReplayState, *, arrays: bool = False) -> dict[str, Any]:
    """Samples are oldest first, as `StreamSample.to_dict` has them; a slot is a key modulo `max_size`. `arrays` leaves tokens as arrays."""
    rows = np.arange(len(state.keys))
    counts = {COUNTS.get(name, name): count for name, count in asdict(state.counts).items()}
    return {
        "format": FORMAT,
        "config": state.config.to_dict(),
        **counts,
        "slots": state.high,
        "random_words": {"draws": state.drawn, "evictions": state.evicting},
        "keys": state.keys.tolist(),
        "priorities": state.priorities.tolist(),
        "samples": [
            _plain(sample, arrays) for sample in state.entries.samples(rows, state.entries.columns["replay_count"] + state.replays)
        ],
    }


def state_from_dict(values: dict[str, Any], *, trusted: bool = False) -> ReplayState:
    """`trusted`: a checksum says that the samples are as they were written.

    Raises:
        DataError: Something is missing, or cannot be.
    """
    if values.get("format") != FORMAT:
        raise DataError(f'not a replay buffer: "format" is {values.get("format")!r}, not {FORMAT!r}')
    for name in values:
        if name not in KNOWN:
            raise DataError(f"unknown field {name!r} of a replay buffer.{did_you_mean(name, KNOWN)}")
    try:
        config = ReplayBufferConfig.from_dict(values["config"])
        counts = ReplayCounts(**{field.name: int(values[COUNTS.get(field.name, field.name)]) for field in fields(ReplayCounts)})
        keys, priorities = np.array(values["keys"], np.int64), np.array(values["priorities"], np.float64)
        samples = [_trusted(sample) if trusted else StreamSample.from_dict(sample) for sample in values["samples"]]
        words = values["random_words"]
        entries = Entries.of(samples)
        state = ReplayState(
            *(config, counts, int(values["slots"]), int(words["draws"]), int(words["evictions"]), entries, keys, priorities),
            weights=config.weights(np.where(priorities >= 0, priorities, np.nan)),
            replays=np.zeros(len(keys), np.int64),
        )
    except KeyError as missing:
        raise DataError(f"a replay buffer needs {missing}") from None
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise (error if isinstance(error, BrimError) else DataError(f"not a replay buffer: {error}")) from None
    state.check()
    return state


def state_to_json(state: ReplayState) -> bytes:
    try:
        body = orjson.dumps(state_to_dict(state, arrays=True), option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        body = _dumps(state_to_dict(state))
    return b'%s,"checksum":"%s"}\n' % (body[:-1], digest_bytes(body).encode())


def state_from_json(data: bytes, name: str) -> ReplayState:
    """
    Raises:
        DataError: It is not a replay buffer.
        DamagedError: It is truncated, altered or of another version.
    """
    values = _loads(data, name)
    format = values.get("format")
    if str(format).split("/")[0] != FORMAT.split("/")[0]:
        raise DataError(f"{name} is not a replay buffer")
    if format != FORMAT:
        raise DamagedError(f"{name} is of version {format}, this brim reads {FORMAT}; save the buffer again")
    if (checksum := values.pop("checksum", None)) is not None and checksum != digest_bytes(_dumps(values)):
        raise DamagedError(f'{name} was altered (its checksum differs); save the buffer again, or remove "checksum" to believe it')
    return state_from_dict(values, trusted=checksum is not None)


def _plain(sample: StreamSample, arrays: bool) -> dict[str, Any]:
    """What `to_dict` gives, without its copies."""
    values = {name: getattr(sample, name) for name in NAMES}
    for name in () if arrays else ARRAYS:
        if values[name] is not None:
            values[name] = values[name].tolist()
    values["source"] = str(sample.source)
    values["episode_status"] = None if sample.episode_status is None else str(sample.episode_status)
    return values


NAMES = [field.name for field in fields(StreamSample)]
ARRAYS = {"input_ids": np.int32, "loss_mask": np.uint8, "segment_ids": np.int32}


def _trusted(values: dict[str, Any]) -> StreamSample:
    """A sample that was one when it was written, without its checks."""
    sample, put = object.__new__(StreamSample), object.__setattr__
    for name in NAMES:
        put(sample, name, values[name])
    for name, kind in ARRAYS.items():
        if values[name] is not None:
            put(sample, name, np.array(values[name], kind))
    put(sample, "source", SampleSource(values["source"]))
    if values["episode_status"] is not None:
        put(sample, "episode_status", EpisodeStatus(values["episode_status"]))
    return sample


def _dumps(values: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(values)
    except TypeError:  # an id that orjson cannot write: of more than 64 bits, or no text by the book
        return json.dumps(values, separators=(",", ":"), allow_nan=False).encode()


def _loads(data: bytes, name: str) -> dict[str, Any]:
    try:
        values = orjson.loads(data)
        if isinstance(values, dict) and any(type(sample.get("sample_id")) is float for sample in values.get("samples", ())):
            values = json.loads(data)  # orjson makes floats of integers beyond 64 bits
    except (ValueError, AttributeError, TypeError):
        try:
            values = json.loads(data)
        except ValueError:
            raise DamagedError(f"{name} is truncated or damaged: it is not JSON; save the buffer again") from None
    if not isinstance(values, dict):
        raise DataError(f"{name} is not a replay buffer")
    return values  # pyright: ignore[reportUnknownVariableType]
