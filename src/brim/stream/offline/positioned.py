"""`PositionedStream`: the base of streams over known data, whose state is a position.

Such a stream has one position and is its own iterator: `for`, `async for` and `next` continue from it, also after a
`break`, and may be mixed. An exhausted stream stays exhausted until `reset`. An error leaves the position where it was.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from brim.core.errors import BrimError, MismatchError
from brim.stream.metrics import StreamMetrics
from brim.stream.protocols import StreamState
from brim.stream.sample import StreamSample

FORMAT = "brim.stream/1"


class PositionedStream(ABC):
    """Subclasses define their options and their position, and hand out samples."""

    kind: ClassVar[str]

    def __init__(self) -> None:
        self._state = StreamState.IDLE
        self._metrics = StreamMetrics()

    @property
    def state(self) -> StreamState:
        return self._state

    @property
    def metrics(self) -> StreamMetrics:
        return self._metrics

    def __iter__(self) -> Self:
        return self

    def __aiter__(self) -> Self:
        return self

    @abstractmethod
    def __next__(self) -> StreamSample: ...

    @abstractmethod
    async def __anext__(self) -> StreamSample: ...

    def state_dict(self) -> dict[str, Any]:
        """The position, the options and the metrics of the stream, as JSON-like values.

        The position is that of the samples that were handed out, not of those that were read ahead. Streams over the
        same data with the same options accept each other's states, whether iterated with `for` or with `async for`.
        """
        about = {"format": FORMAT, "kind": self.kind, "options": self._options()}
        return {**about, "position": self._position(), "metrics": self._metrics.to_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state, with its metrics.

        Raises:
            MismatchError: The state belongs to another stream; the message lists the differences.
        """
        self._check_open()
        if state.get("format") != FORMAT or not state.keys() >= {"kind", "options", "position", "metrics"}:
            raise MismatchError(
                f"this is not the state of a stream ({FORMAT}): {str(dict(state))[:80]}; pass the result of "
                "state_dict()"
            )
        if state["kind"] != self.kind:
            raise MismatchError(
                f"this is the state of a stream of another kind: {state['kind']!r}, and this one is {self.kind!r}; "
                "resume it with that kind of stream"
            )
        mine, theirs = self._options(), state["options"]
        changed = [name for name in {**theirs, **mine} if _plain(mine.get(name)) != _plain(theirs.get(name))]
        if changed:
            words = ", ".join(f"other {name} ({theirs.get(name)!r:.34} -> {mine.get(name)!r:.34})" for name in changed)
            raise MismatchError(
                f"this state belongs to another stream: {words}. Open the stream as before, or start without the state"
            )
        metrics = StreamMetrics.from_dict(state["metrics"])
        self._go_to(state["position"])
        self._state = StreamState.IDLE
        self._metrics = metrics

    def reset(self) -> None:
        """Start over: the same samples again, with metrics from zero."""
        self._check_open()
        self._go_to(None)
        self._state = StreamState.IDLE
        self._metrics = StreamMetrics()

    async def areset(self) -> None:
        self.reset()

    def close(self) -> None:
        """End the stream. Its state and metrics can still be read."""
        self._state = StreamState.CLOSED

    async def aclose(self) -> None:
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: Any) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await self.aclose()

    @abstractmethod
    def _options(self) -> dict[str, Any]:
        """Everything that decides which samples come. A state is accepted only by a stream with equal options."""

    @abstractmethod
    def _position(self) -> dict[str, int]:
        """The position as named integers."""

    @abstractmethod
    def _go_to(self, position: Mapping[str, int] | None) -> None:
        """Move to a position that `_position` returned, or to the beginning. An error leaves the stream unchanged."""

    def _check_open(self) -> None:
        if self._state is StreamState.CLOSED:
            raise BrimError("this stream is closed; open another one")

    def _check_position(self, position: Mapping[str, Any]) -> None:
        names = self._position().keys()
        good = position.keys() == names and all(type(number) is int and number >= 0 for number in position.values())
        if not good:
            raise MismatchError(
                f"this is not a position of a stream: {dict(position)!s:.100}; it must have the integers "
                f"{', '.join(names)}"
            )


def _plain(value: Any) -> Any:
    """A value as it comes back from JSON."""
    return list(value) if isinstance(value, tuple) else value
