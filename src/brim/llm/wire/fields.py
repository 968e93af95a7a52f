"""Read texts, counts and vectors out of a server's JSON.

A field that carries the answer must be there and be right, or the reply is a `BadReply`. A field that only informs
(token counts, durations) is None when it is missing or makes no sense.
"""

import base64
import binascii
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import orjson
from numpy.typing import NDArray

from brim.llm.call import Call
from brim.llm.failures import BadReply, Failure, Rejected
from brim.llm.wire.address import Address
from brim.llm.wire.statuses import quoted

_FIXED = ("model", "messages", "prompt", "input", "stream", "n")


def add_extra(address: Address, call: Call, body: dict[str, Any]) -> None:
    """Add the further fields that a call asks for (`Sampling.extra`) to the body of its request.

    Raises:
        Rejected: One of them is what the call itself says, or would change the shape of the reply.
    """
    extra = call.sampling.extra
    if not extra:
        return
    for name in _FIXED:
        if name in extra:
            raise Rejected(f'"{name}" cannot be among the further fields of a request (extra)', server=address.name)
    body.update(extra)


def encoded(address: Address, body: dict[str, Any]) -> bytes:
    """Return the body of a request as JSON.

    Raises:
        Rejected: Something in it cannot be JSON.
    """
    try:
        return orjson.dumps(body, default=_plain)
    except TypeError as error:
        reason = str(error)
    raise Rejected(f"the call cannot be written as JSON: {reason}", server=address.name)


def _plain(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(cast(Mapping[str, Any], value))
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def bad(address: Address, reason: str, body: bytes = b"") -> BadReply:
    """Return the failure for a reply that cannot be understood, with the beginning of `body`."""
    said = quoted(address, body[:1000].decode("utf-8", "replace")) if body else ""
    return BadReply(f"the reply cannot be understood: {reason}" + (f": {said}" if said else ""), server=address.name)


def decoded(address: Address, body: bytes) -> dict[str, Any]:
    """Return the JSON object of a reply.

    Raises:
        BadReply: It is empty, no JSON, or no object.
    """
    if not body.strip():
        raise bad(address, "it is empty")
    failure: Failure
    try:
        reply = orjson.loads(body)
    except ValueError:
        failure = bad(address, "it is not JSON", body)
    else:
        if isinstance(reply, dict):
            return cast(dict[str, Any], reply)
        failure = bad(address, "it is no JSON object", body)
    raise failure


def mapping(value: Any) -> dict[str, Any]:
    """Return an object of the reply, or an empty one if it is missing or something else."""
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def rows(value: Any) -> list[Any] | None:
    """Return a list of the reply, or None if it is missing or something else."""
    return cast(list[Any], value) if isinstance(value, list) else None


def names(address: Address, value: Any, fields: Sequence[str]) -> list[str]:
    """Return the names in a list of models: of each, the first of `fields` that is a text.

    Raises:
        BadReply: It is not a list.
    """
    listed = rows(value)
    if listed is None:
        raise bad(address, "the list of models is missing")
    found = (next((mapping(row)[name] for name in fields if text(mapping(row).get(name))), "") for row in listed)
    return [name for name in found if name]


def text(value: Any) -> str | None:
    """Return a text, or None for anything else."""
    return value if isinstance(value, str) else None


def count(value: Any) -> int | None:
    """Return a number of tokens, or None for anything else."""
    return value if type(value) is int and value >= 0 else None


def amount(fields: Mapping[str, Any], name: str) -> float | None:
    """Return a finite number that is not negative, or None for anything else."""
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) and value >= 0 else None


def matrix(address: Address, vectors: Sequence[Any], expected: int) -> NDArray[np.float32]:
    """Return vectors as float32 [n, d].

    Raises:
        BadReply: They are not `expected` lists of numbers, all of one size and finite.
    """
    if len(vectors) != expected:
        raise bad(address, f"{expected} texts were sent and {len(vectors)} vectors came back")
    if not expected:
        return np.zeros((0, 0), np.float32)
    sizes = {len(vector) if isinstance(vector, (list, np.ndarray)) else -1 for vector in vectors}
    if -1 in sizes or 0 in sizes:
        raise bad(address, "a vector is empty, or is not a list of numbers")
    if len(sizes) > 1:
        raise bad(address, f"the vectors have unlike sizes, from {min(sizes)} to {max(sizes)}")
    try:
        array = np.asarray(vectors)
    except (ValueError, OverflowError):  # lists within lists
        array = np.zeros(0)
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise bad(address, "a vector is not a list of numbers")
    with np.errstate(over="ignore", invalid="ignore"):
        result = array.astype(np.float32)
    if not np.isfinite(result).all():
        raise bad(address, "a vector holds a number that is not finite")
    return result


def vector(value: Any) -> Any:
    """Return a vector as it can stand in `matrix`: some servers send little-endian float32 in base64."""
    if not isinstance(value, str):
        return value
    try:
        return np.frombuffer(base64.b64decode(value, validate=True), "<f4")
    except (ValueError, binascii.Error):
        return None
