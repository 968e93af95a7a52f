"""What every stream offers: samples, what has been counted, where it is, and a way to start over and to stop.

A stream's state is a dict of JSON-like values: where the next sample comes from, never the samples. `reset` starts over from the first
sample, with the same seed: the same samples again.
"""

from collections.abc import AsyncIterator, Iterator
from enum import StrEnum
from typing import Any, Protocol, Self, runtime_checkable

from brim.stream.metrics import StreamMetrics
from brim.stream.sample import StreamSample


class StreamState(StrEnum):
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
        """Where the next sample comes from."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there.

        Raises:
            MismatchError: The state belongs to another stream.
        """
        ...


@runtime_checkable
class SampleStream(_Stream, Protocol):
    """For `for`."""

    def __iter__(self) -> Iterator[StreamSample]: ...
    def reset(self) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *raised: Any) -> None: ...


@runtime_checkable
class AsyncSampleStream(_Stream, Protocol):
    """For `async for`."""

    def __aiter__(self) -> AsyncIterator[StreamSample]: ...
    async def areset(self) -> None: ...
    async def aclose(self) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *raised: Any) -> None: ...
