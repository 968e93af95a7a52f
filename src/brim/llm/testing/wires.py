"""The interface of the two wire formats of the test server, and what they share: see `ollama_wire`, `openai_wire`.

A wire turns the body of an HTTP request into a `Call`, and a finished `Request` into bytes. It opens no connection and
knows nothing of faults.
"""

from collections.abc import Mapping
from typing import Any, Protocol, cast

import orjson

from brim.core.errors import OptionError
from brim.llm.call import Call, Message, Sampling
from brim.llm.testing.behaviour import Refusal
from brim.llm.testing.service import Request, Service


class Wire(Protocol):
    """One wire format."""

    calls: frozenset[str]
    """Paths that ask a model."""
    stream_type: str
    """Content type of an answer that is streamed."""

    def __init__(self, service: Service) -> None: ...

    def call(self, path: str, body: dict[str, Any]) -> Call:
        """Return what the body of a request asks for.

        Raises:
            Refusal: The body is not a valid request.
        """
        ...

    def streams(self, path: str, body: dict[str, Any]) -> bool:
        """True if the answer is to be streamed."""
        ...

    def reply(self, request: Request) -> bytes:
        """Return the whole answer, which is not streamed."""
        ...

    def pieces(self, request: Request) -> list[bytes]:
        """Return the parts of a streamed answer, one for each token."""
        ...

    def last(self, request: Request) -> bytes:
        """Return the end of a streamed answer, which has its durations."""
        ...

    def error(self, status: int, message: str) -> bytes:
        """Return the body of a reply with an error status."""
        ...

    def missing(self, path: str, model: str) -> bytes:
        """Return the body of the reply for a model that the server does not have."""
        ...

    def error_piece(self, message: str) -> bytes:
        """Return an error as part of a streamed answer, which has begun with HTTP status 200."""
        ...

    def information(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, bytes] | None:
        """Return status and body for a path that asks about the server, or None if there is no such path."""
        ...


def to_json(value: Any) -> bytes:
    """Return JSON; NumPy arrays become lists."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def text_list(value: Any, field: str) -> tuple[str, ...]:
    """Return a string, or a list of strings, as a tuple.

    Raises:
        Refusal: It is neither.
    """
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in cast(list[Any], value)):
        raise Refusal(f"{field} must be a string or a list of strings")
    return tuple(cast(list[str], value))


def message_list(value: Any) -> tuple[Message, ...]:
    """Return the messages of a conversation.

    Raises:
        Refusal: They are not a list of objects.
    """
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in cast(list[Any], value)):
        raise Refusal("messages must be a list of objects")
    return tuple(cast(list[Message], value))


def sampling(options: Mapping[str, Any], *, max_tokens: Any, logprobs: bool, extra: dict[str, Any]) -> Sampling:
    """Return sampling options that both formats name alike.

    Raises:
        Refusal: One of them cannot work.
    """
    stop = options.get("stop") or ()
    top_k = options.get("top_k")
    unlimited = max_tokens is None or (isinstance(max_tokens, int) and max_tokens < 0)  # Ollama's -1 and -2
    try:
        return Sampling(
            max_tokens=None if unlimited else max_tokens,
            temperature=options.get("temperature"),
            top_p=options.get("top_p"),
            top_k=None if top_k is None else max(top_k, 0),
            min_p=options.get("min_p"),
            seed=options.get("seed"),
            stop=text_list(stop, "stop") if stop else (),
            logprobs=logprobs,
            extra=extra,
        )
    except (OptionError, TypeError) as error:
        raise Refusal(str(error)) from None
