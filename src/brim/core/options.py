"""Options: frozen dataclasses, checked when they are made, read from dictionaries, and compared when a run is resumed.

`from_dict` is strict: an unknown name, a missing one or a value of another type is an `OptionError` that names the
option and shows the value. It changes no value beyond what JSON forces: lists become tuples, strings become enums.
"""

import os
import types
from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from enum import Enum
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    SupportsIndex,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from brim.core.errors import MismatchError, OptionError, did_you_mean

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Options = TypeVar("Options", bound=DataclassInstance)
else:
    Options = TypeVar("Options")

LONGEST = 2**31 - 1
"""The longest sequence, and the largest count: lengths are stored in 32 bits."""


def one_of(name: str, value: object, choices: Iterable[str]) -> str:
    """Return `value` as a string if it is one of the choices.

    Raises:
        OptionError: It is none of them.
    """
    choices = [str(choice) for choice in choices]
    if str(value) not in choices:
        hint = did_you_mean(str(value), choices)
        raise OptionError(f"{name} must be one of {', '.join(choices)}, got {value!r}.{hint}")
    return str(value)


def check_counts(**options: int | None) -> None:
    """Refuse options below 1 and above `LONGEST`. None is an option that was not given.

    Raises:
        OptionError: One is out of range, or no integer.
    """
    for name, value in options.items():
        if value is None:
            continue
        if not is_integer(value):
            raise OptionError(f"{name} must be an integer, got {value!r}")
        if value < 1:
            raise OptionError(f"{name} must be at least 1, got {value}")
        if value > LONGEST:
            raise OptionError(f"{name} must be at most {LONGEST}, got {value}")


def is_number(value: object) -> bool:
    """Return whether an option is a number: an integer or a float, and not a boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def to_dict(options: "DataclassInstance") -> dict[str, Any]:
    """Return options as JSON-like values: nested dataclasses as dictionaries, tuples as lists, enums as their values.

    `from_dict` is the inverse.
    """
    return {field.name: _plain(getattr(options, field.name)) for field in fields(options)}


def from_dict(cls: type[Options], values: Mapping[str, Any], *, what: str = "") -> Options:
    """Make options of class `cls` from JSON-like values, as `to_dict` returns them.

    `what` says in messages what the options belong to, such as "a replay buffer".

    Raises:
        OptionError: A name is unknown or missing, or a value is of another type or out of range.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Room:
        ...     size: int = 9
        ...     goal: tuple[int, ...] = ()
        >>> from_dict(Room, {"goal": [2, 3]})
        Room(size=9, goal=(2, 3))
        >>> from_dict(Room, {"sise": 5}, what="a room")
        Traceback (most recent call last):
        brim.core.errors.OptionError: unknown option 'sise' of a room. Did you mean "size"?
    """
    return _made(cls, values, "", f" of {what}" if what else "")


def resumed(
    options: Options, given: Mapping[str, Any], *, may_change: Collection[str] = (), paths: Collection[str] = ()
) -> Options:
    """Return the options of a resumed run: those it began with, and those of `given` that may change.

    Names of nested options are dotted ("training.seeds"). A name in `may_change` stands for everything below it. Two
    spellings of one place are equal for the names in `paths`.

    Raises:
        MismatchError: An option was given that cannot change, with another value than before.
    """
    before = {name: _nested(getattr(options, name)) for name in given}
    after = {name: _nested(value) for name, value in given.items()}
    check_unchanged(before, after, may_change=may_change, paths=paths)
    return _changed(options, given, "", may_change)


def check_unchanged(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    *,
    may_change: Collection[str] = (),
    paths: Collection[str] = (),
) -> None:
    """Compare the options of a run with those it is resumed with, nested dictionaries name by name.

    Raises:
        MismatchError: Some differ that are not in `may_change`. The message lists all of them.
    """
    if differing := _differences(before, after, "", may_change, paths):
        listed = ", ".join(differing)
        raise MismatchError(
            f"these options cannot change when a run is resumed: {listed}; leave them out, or start a new run"
        )


def _differences(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    prefix: str,
    may_change: Collection[str],
    paths: Collection[str],
) -> list[str]:
    differing: list[str] = []
    for key in dict.fromkeys([*before, *after]):
        name, old, new = f"{prefix}{key}", before.get(key), after.get(key)
        if name in may_change or old == new:
            continue
        if name in paths and old and new and os.path.realpath(old) == os.path.realpath(new):
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            below_old, below_new = cast(Mapping[str, Any], old), cast(Mapping[str, Any], new)
            differing += _differences(below_old, below_new, f"{name}.", may_change, paths)
        else:
            differing.append(f"{name} ({old} -> {new})")
    return differing


def _changed(options: Options, given: Mapping[str, Any], prefix: str, may_change: Collection[str]) -> Options:
    """Take from `given` what may change. Everything else is equal already, or another spelling of the same path."""
    taken: dict[str, Any] = {}
    for key, value in given.items():
        name, old = f"{prefix}{key}", getattr(options, key)
        if name in may_change:
            taken[key] = value
        elif _is_options(old) and _is_options(value):
            below = {field.name: getattr(value, field.name) for field in fields(value)}
            taken[key] = _changed(old, below, f"{name}.", may_change)
    return replace(options, **taken)


def _nested(value: Any) -> Any:
    """Turn dataclasses into dictionaries, and leave all other values as they are."""
    if not _is_options(value):
        return value
    return {field.name: _nested(getattr(value, field.name)) for field in fields(value)}


def _is_options(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def _plain(value: Any) -> Any:
    if _is_options(value):
        return to_dict(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast(Iterable[Any], value)]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in cast(Mapping[Any, Any], value).items()}
    return value


def _made(cls: type[Options], values: Any, prefix: str, of: str) -> Options:
    if isinstance(values, cls):
        return values
    if not isinstance(values, Mapping):
        raise OptionError(f"{prefix.rstrip('.') or 'options'}{of} must be named values, got {values!r}")
    known = {field.name: field for field in fields(cls) if field.init}
    for name in cast(Mapping[Any, Any], values):
        if name not in known:
            raise OptionError(f"unknown option {f'{prefix}{name}'!r}{of}.{did_you_mean(str(name), known)}")
    kinds = get_type_hints(cls)
    taken: dict[str, Any] = {}
    for name, field in known.items():
        if name in values:
            taken[name] = _value(kinds[name], values[name], f"{prefix}{name}", of)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise OptionError(f"option {f'{prefix}{name}'!r}{of} is missing")
    return cls(**taken)


def _value(kind: Any, value: Any, name: str, of: str) -> Any:
    """Return `value` as a value of the declared type, which is all that JSON can have lost."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _alternative(get_args(kind), value, name, of)
    if origin is Literal:
        return value if value in get_args(kind) else one_of(f"{name}{of}", value, get_args(kind))
    if origin in (tuple, list):
        return _items(kind, value, name, of)
    if isinstance(kind, type) and issubclass(kind, Enum):
        one_of(f"{name}{of}", value, [str(choice.value) for choice in kind])
        return kind(value)
    if isinstance(kind, type) and is_dataclass(kind):
        return _made(cast(Any, kind), value, f"{name}.", of)
    if not _fits(kind, value):
        raise OptionError(f"{name}{of} must be {_described(kind)}, got {value!r}")
    return value


def _alternative(kinds: tuple[Any, ...], value: Any, name: str, of: str) -> Any:
    """Try the alternatives of a union in their order. If only one can be meant, its error says most."""
    if value is None and type(None) in kinds:
        return None
    others = [kind for kind in kinds if kind is not type(None)]
    for kind in others:
        try:
            return _value(kind, value, name, of)
        except OptionError:
            if len(others) == 1:
                raise
    raise OptionError(f"{name}{of} must be {' or '.join(_described(kind) for kind in kinds)}, got {value!r}")


def _items(kind: Any, value: Any, name: str, of: str) -> Any:
    origin, kinds = get_origin(kind), get_args(kind)
    if not isinstance(value, list | tuple):
        raise OptionError(f"{name}{of} must be a list, got {value!r}")
    items = list(cast(Iterable[Any], value))
    if origin is tuple and not (len(kinds) == 2 and kinds[1] is Ellipsis):
        if len(items) != len(kinds):
            raise OptionError(f"{name}{of} must be a list of {len(kinds)}, got {value!r}")
        each = list(kinds)
    else:
        each = [kinds[0]] * len(items)
    return origin(
        _value(one, item, f"{name}[{at}]", of) for at, (one, item) in enumerate(zip(each, items, strict=True))
    )


def _fits(kind: Any, value: Any) -> bool:
    if kind is int:
        return is_integer(value)
    if kind is float:  # 1 is as good as 1.0, and stays as it is: fingerprints tell them apart
        return isinstance(value, float) or is_integer(value)
    plain = get_origin(kind) or kind
    return not isinstance(plain, type) or isinstance(value, plain)


def is_integer(value: object) -> bool:
    """Return whether an option is an integer, of Python or of NumPy, and not a boolean."""
    return isinstance(value, SupportsIndex) and not isinstance(value, bool)


def _described(kind: Any) -> str:
    names = {int: "an integer", float: "a number", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(kind) or str(getattr(kind, "__name__", kind))
