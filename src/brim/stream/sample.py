"""`StreamSample`: a sample with its origin: its stream, its episode, its reward.

A stream sample is immutable, like the `Sample` that it becomes when it is trained on. Its timestamp is when it was
made; samples that differ in nothing else are equal, and no fingerprint contains it, so runs can be repeated.

It has the methods of a Pydantic model and can be a field of one. Pydantic itself is not required: it is imported only
when a Pydantic model asks for a schema (`sample_schema.py`).
"""

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import DataError, did_you_mean
from brim.core.options import one_of
from brim.data.ids import SampleId
from brim.data.sample import Sample
from brim.envs.episode import EpisodeStatus


class SampleSource(StrEnum):
    """The kind of stream that a sample comes from."""

    OFFLINE = "offline"
    GYM = "gym"
    REPLAY = "replay"
    SYNTHETIC = "synthetic"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StreamSample:
    """Tokens with their origin.

    Example:
        >>> sample = StreamSample(sample_id="a", input_ids=[5, 6, 7], loss_mask=[0, 1, 1], reward=1.0)
        >>> again = sample.with_replay()
        >>> again.is_replay, again.replay_count, sample.replay_count
        (True, 1, 0)
    """

    sample_id: SampleId
    input_ids: NDArray[np.int32]
    """Lists are converted to arrays, here and below."""
    loss_mask: NDArray[np.uint8]
    segment_ids: NDArray[np.int32] | None = None
    dataset_id: str = ""
    source: SampleSource = SampleSource.OFFLINE
    timestamp: float = field(default_factory=time.time)
    """Seconds since 1970."""
    episode_id: str | None = None
    episode_status: EpisodeStatus | None = None
    step_index: int | None = None
    total_steps: int | None = None
    reward: float | None = None
    difficulty: float | None = None
    """From 0 (trivial) to 1 (hardest)."""
    success: bool | None = None
    """Whether the episode was solved; None if that is unknown."""
    policy_version: int | None = None
    """Optimizer steps that the acting policy had been trained for."""
    replay_count: int = 0
    priority: float = 1.0

    def __post_init__(self) -> None:
        """Check all fields, and convert lists and NumPy scalars.

        Raises:
            DataError: The arrays do not fit together, or a number is out of range.
        """
        checked = Sample(self.sample_id, self.input_ids, self.loss_mask, self.segment_ids)
        values: dict[str, Any] = {name: getattr(checked, name) for name in ("input_ids", "loss_mask", "segment_ids")}
        values["source"] = _member("source", self.source, SampleSource)
        if self.episode_status is not None:
            values["episode_status"] = _member("episode_status", self.episode_status, EpisodeStatus)
        for name, kind, wanted, good in _SCALARS:
            value = getattr(self, name)
            if value is None and name not in _NEVER_NONE:
                continue
            if type(value) is not kind:
                values[name] = value = _as(kind, value)
            if not good(value):
                raise DataError(f"sample {self.sample_id!r}: {name} is {getattr(self, name)!r}; it must be {wanted}")
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @classmethod
    def unchecked(cls, values: Iterable[Any]) -> "StreamSample":
        """A sample of values that passed the checks of the constructor before, without repeating them.

        This is for columns and files, where the checks would take most of the time. `values` has one value for every
        name in `FIELDS`, in that order; arrays must have their final type, and they are not copied.
        """
        sample = object.__new__(cls)
        for put, value in zip(_SETTERS, values, strict=True):
            put(sample, value)
        return sample

    @property
    def length(self) -> int:
        return len(self.input_ids)

    def __len__(self) -> int:
        return self.length

    @property
    def is_gym_sample(self) -> bool:
        """Whether the sample belongs to an episode."""
        return self.episode_id is not None

    @property
    def is_replay(self) -> bool:
        return self.source is SampleSource.REPLAY

    def with_replay(self) -> "StreamSample":
        """A copy that is marked as replayed once more, now."""
        return replace(self, source=SampleSource.REPLAY, replay_count=self.replay_count + 1, timestamp=time.time())

    def to_sample(self) -> Sample:
        """The part of it that is trained on."""
        return Sample(self.sample_id, self.input_ids, self.loss_mask, self.segment_ids)

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON-like values; `from_dict` is the inverse."""
        return {name: _plain(getattr(self, name)) for name in FIELDS}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "StreamSample":
        """The sample that `to_dict` wrote.

        Raises:
            DataError: A field is unknown or missing, or has an impossible value.
        """
        for name in values:
            if name not in FIELDS:
                raise DataError(f"unknown field {name!r} of a stream sample.{did_you_mean(str(name), FIELDS)}")
        for name in FIELDS[:3]:
            if name not in values:
                raise DataError(f"a stream sample needs the field {name!r}")
        return cls(**values)

    def model_dump(self, *, mode: Literal["python", "json"] = "python") -> dict[str, Any]:
        """All fields: arrays and enum members as they are, or JSON-like values with `mode="json"`."""
        if one_of("mode", mode, ("python", "json")) == "json":
            return self.to_dict()
        return {name: getattr(self, name) for name in FIELDS}

    def model_dump_json(self) -> str:
        """All fields as one JSON object; `model_validate_json` is the inverse."""
        return json.dumps(self.to_dict(), separators=(",", ":"), allow_nan=False)

    @classmethod
    def model_validate(cls, values: Any) -> "StreamSample":
        """A sample from a mapping, as by `from_dict`; a sample is returned as it is.

        Raises:
            DataError: It is neither, or a field is unknown, missing or impossible.
        """
        if isinstance(values, StreamSample):
            return values
        if not isinstance(values, Mapping):
            raise DataError(f"a stream sample is made of a mapping of its fields, got a {type(values).__name__}")
        return cls.from_dict(values)  # pyright: ignore[reportUnknownArgumentType]

    @classmethod
    def model_validate_json(cls, data: str | bytes) -> "StreamSample":
        """A sample from a JSON object.

        Raises:
            DataError: It is not JSON, or not a stream sample.
        """
        try:
            values = json.loads(data)
        except ValueError as error:
            raise DataError(f"a stream sample cannot be read from this text, which is not JSON: {error}") from None
        return cls.model_validate(values)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Return the schema by which Pydantic validates and serializes a field of this type. Only Pydantic calls it."""
        from brim.stream.sample_schema import core_schema_of

        return core_schema_of(cls)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> Any:
        """The JSON schema of a field of this type. Only Pydantic calls it."""
        from brim.stream.sample_schema import json_schema_of

        return json_schema_of(cls, handler)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StreamSample):
            return NotImplemented
        return all(_same(getattr(self, name), getattr(other, name)) for name in FIELDS if name != "timestamp")

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        """Unpickle through the constructor, which makes arrays read-only again; NumPy's own pickling does not."""
        return (_unpickled, (tuple(getattr(self, name) for name in FIELDS),))


FIELDS = tuple(field.name for field in fields(StreamSample))
"""The names of all fields, in their order."""
_SETTERS: tuple[Callable[[StreamSample, Any], None], ...] = tuple(
    StreamSample.__dict__[name].__set__ for name in FIELDS
)
"""The setters of the slots, which a frozen dataclass hides behind `__setattr__`."""


def _unpickled(values: tuple[Any, ...]) -> StreamSample:
    return StreamSample(**dict(zip(FIELDS, values, strict=True)))


def _as(kind: type[Any], value: Any) -> Any:
    """Convert NumPy scalars to Python's, and integers to floats where a float is wanted; leave the rest to the
    checks.
    """
    plain = value.item() if isinstance(value, np.generic) else value
    return float(plain) if kind is float and type(plain) is int else plain


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _truth(value: Any) -> bool:
    return isinstance(value, bool)


def _count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _real(value: Any) -> bool:
    return type(value) is float and math.isfinite(value)


def _share(value: Any) -> bool:
    return type(value) is float and 0 <= value <= 1


def _weight(value: Any) -> bool:
    return type(value) is float and 0 <= value < math.inf


_SCALARS: tuple[tuple[str, type[Any], str, Callable[[Any], bool]], ...] = (
    ("dataset_id", str, "a string", _text),
    ("timestamp", float, "a finite number", _real),
    ("episode_id", str, "a string", _text),
    ("step_index", int, "an integer that is not negative", _count),
    ("total_steps", int, "an integer that is not negative", _count),
    ("reward", float, "a finite number", _real),
    ("difficulty", float, "a number between 0 and 1", _share),
    ("success", bool, "true or false", _truth),
    ("policy_version", int, "an integer that is not negative", _count),
    ("replay_count", int, "an integer that is not negative", _count),
    ("priority", float, "finite and not negative", _weight),
)
_NEVER_NONE = ("dataset_id", "timestamp", "replay_count", "priority")


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return str(value) if isinstance(value, StrEnum) else value


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return one is not None and other is not None and np.array_equal(one, other)
    return type(one) is type(other) and one == other


def _member(name: str, value: Any, kind: type[StrEnum]) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise DataError(
            f"{name} must be one of {', '.join(kind)}, got {value!r}.{did_you_mean(str(value), kind)}"
        ) from None
