"""`StreamSample`: a sample and how it came about: from which stream, in which episode, with what reward.

Immutable, like `Sample`, which it becomes when it is trained on. Its timestamp is when it was made; two samples that differ in nothing else
are equal, and no fingerprint contains it: runs can be repeated, moments cannot.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import DataError, did_you_mean
from brim.data.ids import SampleId
from brim.data.sample import Sample

DIFFICULTIES: Mapping[str, float] = {"trivial": 0.1, "easy": 0.3, "medium": 0.5, "hard": 0.7, "expert": 0.9}
"""What difficulties in words are as numbers."""


class SampleSource(StrEnum):
    OFFLINE = "offline"
    GYM = "gym"
    REPLAY = "replay"
    SYNTHETIC = "synthetic"


class EpisodeStatus(StrEnum):
    """How an episode stands. The last four are how it can end."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCESS = "success"
    FAILURE = "failure"
    TIMEOUT = "timeout"
    ERROR = "error"


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
    """Lists become arrays, here and below."""
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
    """From 0 to 1."""
    success: bool | None = None
    """Of the episode, or None if nobody knows."""
    policy_version: int | None = None
    """How many optimizer steps the policy that acted had behind it."""
    replay_count: int = 0
    priority: float = 1.0

    def __post_init__(self) -> None:
        """
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
        return self.episode_id is not None

    @property
    def is_replay(self) -> bool:
        return self.source is SampleSource.REPLAY

    def with_replay(self) -> "StreamSample":
        """A copy that says it was played again."""
        return replace(self, source=SampleSource.REPLAY, replay_count=self.replay_count + 1, timestamp=time.time())

    def to_sample(self) -> Sample:
        """What is trained on."""
        return Sample(self.sample_id, self.input_ids, self.loss_mask, self.segment_ids)

    def to_dict(self) -> dict[str, Any]:
        """As JSON-like values; `from_dict` is the inverse."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "StreamSample":
        """
        Raises:
            DataError: A field is unknown or missing, or has a value that it cannot have.
        """
        known = [field.name for field in fields(cls)]
        for name in values:
            if name not in known:
                raise DataError(f"unknown field {name!r} of a stream sample.{did_you_mean(name, known)}")
        for name in known[:3]:
            if name not in values:
                raise DataError(f"a stream sample needs the field {name!r}")
        return cls(**values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StreamSample):
            return NotImplemented
        names = [field.name for field in fields(self) if field.name != "timestamp"]
        return all(_same(getattr(self, name), getattr(other, name)) for name in names)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies are as immutable: arrays that were pickled could be written to."""
        return (_made_again, (tuple(getattr(self, field.name) for field in fields(self)),))


FIELDS = tuple(field.name for field in fields(StreamSample))
"""The names of all fields, in their order."""
_SETTERS: tuple[Callable[[StreamSample, Any], None], ...] = tuple(StreamSample.__dict__[name].__set__ for name in FIELDS)
"""The setters of the slots, which a frozen dataclass hides behind `__setattr__`."""


def _made_again(values: tuple[Any, ...]) -> StreamSample:
    return StreamSample(**{field.name: value for field, value in zip(fields(StreamSample), values, strict=True)})


def _as(kind: type[Any], value: Any) -> Any:
    """Numbers from arrays become plain ones and integers real ones, if that is what is wanted; others stay, to be refused."""
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
        raise DataError(f"{name} must be one of {', '.join(kind)}, got {value!r}.{did_you_mean(str(value), kind)}") from None
