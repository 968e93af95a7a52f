"""`PositionedStream`: what streams have in common whose samples are known beforehand, so that a position says all about them.

Such a stream has one position and is its own iterator: `for`, `async for` and `next` go on from it, also after a `break`, and may be
mixed. When it is exhausted it stays so until `reset`. An error leaves it where it was.
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
    """Deriving classes say what their options and their position are, and give out samples."""

    kind: ClassVar[str]

    def __init__(self) -> None:
        self._state, self._metrics = StreamState.IDLE, StreamMetrics()

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
        """Where the next sample comes from, what this stream is, and what has been counted: a few JSON-like values.

        It is about samples that were handed out, not about what has been read ahead. Two streams over the same data with the same
        options take each other's states, whether they are iterated with `for` or with `async for`.
        """
        about = {"format": FORMAT, "kind": self.kind, "options": self._options()}
        return {**about, "position": self._position(), "metrics": self._metrics.to_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there, with the counts from there.

        Raises:
            MismatchError: The state belongs to another stream, and what is different.
        """
        self._check_open()
        if state.get("format") != FORMAT or not state.keys() >= {"kind", "options", "position", "metrics"}:
            raise MismatchError(f"this is not the state of a stream ({FORMAT}): {str(dict(state))[:80]}; pass what state_dict() gave")
        if state["kind"] != self.kind:
            raise MismatchError(f"this is the state of a stream of another kind: {state['kind']!r}, and this one is {self.kind!r}")
        mine, theirs = self._options(), state["options"]
        changed = [name for name in {**theirs, **mine} if _plain(mine.get(name)) != _plain(theirs.get(name))]
        if changed:
            words = ", ".join(f"other {name} ({theirs.get(name)!r:.34} -> {mine.get(name)!r:.34})" for name in changed)
            raise MismatchError(
                f"this state belongs to another stream: {words}. Open the stream as it was, or begin anew without the state"
            )
        metrics = StreamMetrics.from_dict(state["metrics"])
        self._go_to(state["position"])
        self._state, self._metrics = StreamState.IDLE, metrics

    def reset(self) -> None:
        """Start over: the same samples again, and counts from zero."""
        self._check_open()
        self._go_to(None)
        self._state, self._metrics = StreamState.IDLE, StreamMetrics()

    async def areset(self) -> None:
        self.reset()

    def close(self) -> None:
        """No more samples. The position and the counts can still be asked for."""
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
        """Everything that decides which samples come; a state is taken by a stream with the same options only."""

    @abstractmethod
    def _position(self) -> dict[str, int]:
        """As numbers."""

    @abstractmethod
    def _go_to(self, position: Mapping[str, int] | None) -> None:
        """To a position that `_position` gave, or to the beginning. Raises before it changes anything."""

    def _check_open(self) -> None:
        if self._state is StreamState.CLOSED:
            raise BrimError("this stream is closed; open another one")

    def _check_position(self, position: Mapping[str, Any]) -> None:
        names = self._position().keys()
        good = position.keys() == names and all(type(number) is int and number >= 0 for number in position.values())
        if not good:
            raise MismatchError(f"this is not a position of a stream: {dict(position)!s:.100}; it has {', '.join(names)}")


def _plain(value: Any) -> Any:
    """As it comes back from JSON."""
    return list(value) if isinstance(value, tuple) else value
