"""The protocols of streams: samples, metrics, a state to resume from, a way to start over and to stop.

The state of a stream is a dictionary of JSON-like values that says where the next sample comes from; it holds no
samples. `reset` starts over from the first sample with the same seed, and gives the same samples again.
"""

from collections.abc import AsyncIterator, Iterator
from enum import StrEnum
from typing import Any, Protocol, Self, runtime_checkable

from brim.stream.metrics import StreamMetrics
from brim.stream.sample import StreamSample


class StreamState(StrEnum):
    """The life of a stream: idle until the first sample is asked for, then streaming, then one of the last three."""

    IDLE = "idle"
    STREAMING = "streaming"
    EXHAUSTED = "exhausted"
    CLOSED = "closed"
    ERROR = "error"


class _Stream(Protocol):
    @property
    def state(self) -> StreamState: ...
    @property
    def metrics(self) -> StreamMetrics: ...
    def state_dict(self) -> dict[str, Any]:
        """The state to resume from: where the next sample comes from."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state.

        Raises:
            MismatchError: The state belongs to another stream.
        """
        ...


@runtime_checkable
class SampleStream(_Stream, Protocol):
    """A stream that is iterated with `for`."""

    def __iter__(self) -> Iterator[StreamSample]: ...
    def reset(self) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *raised: Any) -> None: ...


@runtime_checkable
class AsyncSampleStream(_Stream, Protocol):
    """A stream that is iterated with `async for`."""

    def __aiter__(self) -> AsyncIterator[StreamSample]: ...
    async def areset(self) -> None: ...
    async def aclose(self) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *raised: Any) -> None: ...
