"""The parts of a state, an observation or an action, whatever it is made of: named, so that a difference can be
named."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray


def parts(value: Any, name: str = "") -> dict[str, Any]:
    """The arrays and plain values that a value is made of, by their path: a dict, a sequence, a dataclass, or a nesting
    of these."""
    found = dict(_walk(value, name))
    return {path or "it": part for path, part in found.items()}


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    inner: Mapping[Any, Any]
    if isinstance(value, Mapping):
        inner = cast(Mapping[Any, Any], value)
    elif is_dataclass(value) and not isinstance(value, type):
        inner = {field.name: getattr(value, field.name) for field in fields(value)}
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        inner = cast(Any, value)._asdict()
    elif isinstance(value, tuple | list):
        inner = dict(enumerate(cast(list[Any], value)))
    else:
        # Arrays of any library are compared as NumPy's.
        yield path, np.asarray(value) if hasattr(value, "__array__") else value
        return
    for key, part in inner.items():
        yield from _walk(part, f"{path}.{key}" if path else str(key))


def of_lanes(found: dict[str, Any], lanes: NDArray[np.bool_]) -> dict[str, Any]:
    """Select the entries of some lanes from every part that has one entry for each lane."""
    return {
        name: part[lanes]
        for name, part in found.items()
        if isinstance(part, np.ndarray) and part.shape[:1] == lanes.shape
    }


def difference(one: dict[str, Any], other: dict[str, Any]) -> str | None:
    """The name of the first part in which two values differ."""
    for name in [*one, *(name for name in other if name not in one)]:
        if name not in one or name not in other:
            return name
        left, right = one[name], other[name]
        if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
            same = left.shape == right.shape and left.dtype == right.dtype and _content(left) == _content(right)
        else:
            same = type(left) is type(right) and left == right
        if not same:
            return name
    return None


def form(part: Any) -> str:
    """The type and shape of a part."""
    return f"{part.dtype}{list(part.shape)}" if isinstance(part, np.ndarray) else type(part).__name__


def short(value: Any) -> str:
    """The beginning of a value, on one line, for messages."""
    return " ".join(f"{value!r}".split())[:80]


def _content(array: NDArray[Any]) -> Any:
    """The bits of an array, in which NaN equals itself; or its objects."""
    return array.tolist() if array.dtype.kind == "O" else array.tobytes()
