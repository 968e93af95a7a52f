"""The structure of nested samples: what must be equal for samples to share a batch, and what may be ragged.

A nested sample is made of dicts, lists, arrays, numbers and text. Its *structure* is everything that cannot be padded
away: the keys, how many items each list has, the types, and all sizes of an array but the first. The first axis of an
array is ragged: its length is measured, and padded in a batch. Numbers are data, except those named in `PINNED`, and
"id" names the sample.

The pitfall: an empty list and an array of length 0 are different structures. The list has no items; the array has a
ragged axis that happens to be short. So keep ragged data in arrays, not in lists.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import DataError
from brim.core.fingerprint import digest_bytes
from brim.data.ids import SampleId, not_an_id

ID = "id"
"""The key at the top of a sample that holds its id."""

PINNED = ("compression_depth", "num_compression_stages")
"""Keys of integers at the top of a sample that are part of its structure: if they differ, samples share no batch."""

SHORT = 60
"""Upper limit of the characters in the name of a structure."""

Node = tuple[Any, ...]
"""A node of the tree of a structure: ("dict", ((key, node), ...)), ("list", (node, ...)), ("array", dtype, sizes after
the first), ("scalar", dtype), ("text",), ("bytes",) or ("is", value).
"""

ListPath = tuple[str, ...]
"""The path of a list in a sample: keys, and "" for any index of a list."""


class Outline(NamedTuple):
    """A sample split into its structure and its data."""

    structure: "Structure"
    leaves: tuple[Any, ...]
    """Arrays, numbers and text, in the order of `structure.leaves`."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of the arrays along their first axes."""
        return tuple(len(leaf) for leaf, array in zip(self.leaves, self.structure.is_array, strict=True) if array)


@dataclass(frozen=True)
class Structure:
    """The structure of samples. Samples of equal structure can be stacked once their ragged axes are padded."""

    tree: Node

    @cached_property
    def leaves(self) -> tuple[str, ...]:
        """The paths of everything that holds data, in the order of the keys."""
        return tuple(path for path, _ in _leaves(self.tree, ""))

    @cached_property
    def is_array(self) -> tuple[bool, ...]:
        """Whether each of the leaves is an array, with a ragged first axis."""
        return tuple(node[0] == "array" for _, node in _leaves(self.tree, ""))

    @cached_property
    def arrays(self) -> tuple[str, ...]:
        """The paths of the arrays."""
        return tuple(path for path, array in zip(self.leaves, self.is_array, strict=True) if array)

    @cached_property
    def tables(self) -> dict[str, str]:
        """For each array, the path of the dict it is in: it may share its axis with other arrays of that dict. For an
        item of a list, the path of the array itself.
        """
        lists = {path for path, _ in _lists(self.tree, "")}
        parents = (path.rpartition("/")[0] for path in self.arrays)
        return {path: path if parent in lists else parent for path, parent in zip(self.arrays, parents, strict=True)}

    @cached_property
    def text(self) -> str:
        """The structure as text. Different structures have different texts.

        Example:
            >>> structure_of({"x": np.zeros((3, 2)), "stages": [np.zeros(3), np.zeros(4)]}).text
            '{stages: [float64[*] x 2], x: float64[*, 2]}'
        """
        return _text(self.tree)

    @cached_property
    def name(self) -> str:
        """A short name for people: the first pinned number, else the sizes of the lists, else the whole text.

        It is shortened to `SHORT` characters. Two structures may have the same name.
        """
        sizes = [f"{path}={size}" for path, size in _pinned(self.tree)] or [
            f"{path}={size}" for path, size in _lists(self.tree, "")
        ]
        name = ", ".join(sizes) or self.text
        return name if len(name) <= SHORT else f"{name[: SHORT - 12].rstrip(', ')}.. #{self.mark}"

    @cached_property
    def mark(self) -> str:
        """Eight hexadecimal digits of a digest, to tell apart structures with the same name."""
        return digest_bytes(self.text.encode())[:8]

    def to_json(self) -> str:
        return json.dumps(self.tree, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Structure":
        """Read a structure from the text that `to_json` returned.

        Raises:
            DataError: The text is something else.
        """
        try:
            structure = cls(_tuples(json.loads(text)))
            _ = structure.leaves, structure.text
        except (ValueError, TypeError, IndexError, KeyError):
            raise DataError(f"{text[:60]!r} is not a structure") from None
        return structure

    def assemble(self, leaves: Iterable[Any]) -> dict[str, Any]:
        """Build a sample, or anything of this structure, from its leaves: the inverse of `outline`, but for the id."""
        return cast(dict[str, Any], _assemble(self.tree, iter(leaves)))


def structure_of(sample: Mapping[str, Any]) -> Structure:
    """Return the structure of a sample.

    Raises:
        DataError: The sample holds something that cannot be batched.
    """
    return outline(sample).structure


def outline(sample: Mapping[str, Any]) -> Outline:
    """Split a sample into its structure and its data. Lists of numbers and arrays of any library become NumPy arrays.

    Raises:
        DataError: It holds something that cannot be batched, such as None.
    """
    if not isinstance(sample, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]  from users
        raise DataError(f"a nested sample is a dict, not a {type(sample).__name__}")
    leaves: list[Any] = []
    try:
        tree = _outline({key: value for key, value in sample.items() if key != ID}, "", leaves)
    except RecursionError:
        raise DataError("the sample is nested too deeply, or in itself") from None
    return Outline(Structure(tree), tuple(leaves))


def sample_id(sample: Mapping[str, Any], default: SampleId) -> SampleId:
    """Return the id of a sample, or `default` if it has none.

    Raises:
        DataError: Its id is neither a string nor an integer.
    """
    id = sample.get(ID, default)
    if isinstance(id, np.ndarray) and id.ndim == 0:
        id = id.item()
    if isinstance(id, bool) or not isinstance(id, str | int | np.integer):
        raise not_an_id(f"the id of a sample is {id!r}")
    try:
        return str(id.encode(), "utf-8") if isinstance(id, str) else int(id)
    except UnicodeEncodeError:
        raise DataError(f"the id of a sample is {id!r}, which is not valid text") from None


def difference(first: Structure, second: Structure) -> str:
    """Describe the first place at which two structures differ."""
    return _difference(first.tree, second.tree, "")


def _outline(value: Any, path: str, leaves: list[Any]) -> Node:
    if isinstance(value, Mapping):
        named = cast(Mapping[Any, Any], value)
        return ("dict", tuple((key, _outline(named[key], _join(path, key), leaves)) for key in _keys(named, path)))
    if isinstance(value, str | bytes):
        leaves.append(value)
        return ("text",) if isinstance(value, str) else ("bytes",)
    if isinstance(value, list | tuple):
        items = cast(Sequence[Any], value)
        if not items or not all(isinstance(item, int | float | np.number | np.bool_) for item in items):
            return ("list", tuple(_outline(item, _join(path, number), leaves) for number, item in enumerate(items)))
    elif not isinstance(value, bool | int | float) and not hasattr(value, "__array__"):
        what = f"a {type(value).__name__}" if value is not None else "None, which cannot be batched: leave the key out"
        raise DataError(f"{path} is {what}; a nested sample is made of dicts, lists, arrays, numbers and text")
    array = _array(value, path)
    if array.ndim == 0 and path in PINNED:
        if array.dtype.kind not in "iu":
            raise DataError(f"{path} is {value!r}; it tells structures apart, and is an integer")
        return ("is", int(array))
    leaves.append(array)
    return ("scalar", array.dtype.name) if array.ndim == 0 else ("array", array.dtype.name, array.shape[1:])


def _array(value: Any, path: str) -> NDArray[Any]:
    """Convert numbers to a NumPy array in native byte order. Nothing is rounded or left out."""
    if isinstance(value, np.ma.MaskedArray):
        raise DataError(f"{path} is a masked array; fill it, or put the mask beside it as an array")
    if hasattr(value, "detach"):
        value = value.detach()
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise DataError(f"{path} cannot be made an array: {str(error).splitlines()[0]}") from None
    if array.dtype.kind not in "biufc" or array.dtype.char in "gG":
        raise DataError(
            f"{path} is an array of {array.dtype}; arrays hold numbers of at most 64 bits, or 128 if they are complex"
        )
    if (
        array.dtype.kind == "f"
        and isinstance(value, list | tuple)
        and all(isinstance(item, int) for item in cast(list[Any], value))
    ):
        raise DataError(f"{path} holds integers that do not fit 64 bits together")
    return array.astype(array.dtype.name, copy=False)


def _keys(value: Mapping[Any, Any], path: str) -> list[str]:
    for key in value:
        if not isinstance(key, str) or not key or "/" in key:
            raise DataError(f"{path or 'the sample'} has the key {key!r}; keys are words without '/'")
    return sorted(value)


def _join(path: str, key: str | int) -> str:
    return f"{path}/{key}" if path else str(key)


def _children(node: Node, path: str) -> Iterator[tuple[str, Node]]:
    if node[0] == "dict":
        yield from ((_join(path, key), child) for key, child in node[1])
    elif node[0] == "list":
        yield from ((_join(path, number), child) for number, child in enumerate(node[1]))


def _leaves(node: Node, path: str) -> Iterator[tuple[str, Node]]:
    if node[0] in ("dict", "list"):
        for child_path, child in _children(node, path):
            yield from _leaves(child, child_path)
    elif node[0] != "is":
        yield path, node


def _lists(node: Node, path: str) -> Iterator[tuple[str, int]]:
    if node[0] == "list":
        yield path, len(node[1])
    for child_path, child in _children(node, path):
        yield from _lists(child, child_path)


def _pinned(node: Node) -> list[tuple[str, Any]]:
    found = [(key, child[1]) for key, child in node[1] if child[0] == "is"]
    return found[:1]


def _assemble(node: Node, leaves: Iterator[Any]) -> Any:
    if node[0] == "dict":
        return {key: _assemble(child, leaves) for key, child in node[1]}
    if node[0] == "list":
        return [_assemble(child, leaves) for child in node[1]]
    return node[1] if node[0] == "is" else next(leaves)


def _text(node: Node) -> str:
    if node[0] == "dict":
        return (
            "{"
            + ", ".join(f"{key if key.isidentifier() else json.dumps(key)}: {_text(child)}" for key, child in node[1])
            + "}"
        )
    if node[0] == "list":
        runs = [(text, len(list(run))) for text, run in groupby(_text(child) for child in node[1])]
        return "[" + ", ".join(text if count == 1 else f"{text} x {count}" for text, count in runs) + "]"
    if node[0] == "array":
        return f"{node[1]}[{', '.join(['*', *map(str, node[2])])}]"
    return str(node[1]) if node[0] in ("scalar", "is") else node[0]


def _difference(first: Node, second: Node, path: str) -> str:
    where = path or "the sample"
    if first[0] == second[0] == "dict":
        ours, theirs = dict(first[1]), dict(second[1])
        if missing := sorted(ours.keys() ^ theirs.keys()):
            return f"{_join(path, missing[0])} is only in the {'first' if missing[0] in ours else 'second'}"
    if first[0] == second[0] == "list" and len(first[1]) != len(second[1]):
        return f"{where} has {len(first[1])} items in the first and {len(second[1])} in the second"
    for (child_path, child), (_, other) in zip(
        _children(first, path), _children(second, path), strict=first[0] == second[0]
    ):
        if child != other:
            return _difference(child, other, child_path)
    return f"{where} is {_text(first)} in the first and {_text(second)} in the second"


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in cast(list[Any], value)) if isinstance(value, list) else value


def with_lists(tree: Any, is_list: Callable[[ListPath], bool] = lambda path: False, path: ListPath = ()) -> Any:
    """Return the tree with lists in place of all dicts whose keys are exactly 0 .. n - 1, except for the outermost.

    `is_list` decides by its path whether an empty dict becomes a list.
    """
    if not isinstance(tree, dict):
        return tree
    found = cast(dict[str, Any], tree)
    if path and is_numbered(found) and (found or is_list(path)):
        return [with_lists(found[str(number)], is_list, (*path, "")) for number in range(len(found))]
    return {key: with_lists(value, is_list, (*path, key)) for key, value in found.items()}


def is_numbered(names: Collection[str]) -> bool:
    """Return whether the names are exactly 0 .. n - 1, in any order."""
    return all(str(number) in names for number in range(len(names)))
