"""Arrow columns as nested values: the meaning of types, single values, and all structures and lengths at once.

    struct                                         a dict
    list<number>, list<fixed_size_list<number, k>> an array, ragged along the list; [n], [n, k] and so on
    fixed_size_list<number, k>                     an array of length k
    a list of anything else                        a list, whose size is part of the structure
    numbers, bool; string, binary                  numbers; text and bytes
    dictionary                                     the same as its values

A null means that a key is absent; inside a list or an array it is an error. Decimals, times, maps and views are refused
with an error that names the type. This module reads no files: the caller supplies the location of a row for errors.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import DataError
from brim.core.extras import need
from brim.data.nested.structure import PINNED, Node

Place = Callable[[int], str]
"""Returns the location of a row for an error message."""


class Profile:
    """The structures of a column: row i has the structure `nodes[kinds[i]]`, and the j-th row of a kind has arrays of
    the lengths `lengths[kind][j]`.
    """

    def __init__(self, kinds: NDArray[np.int64], nodes: Sequence[Node], lengths: Sequence[NDArray[np.int64]]) -> None:
        self.kinds, self.nodes, self.lengths = kinds, nodes, lengths

    @cached_property
    def rank(self) -> NDArray[np.int64]:
        """The number of each row within its kind."""
        order = np.argsort(self.kinds, kind="stable")
        rank = np.empty(len(self.kinds), np.int64)
        rank[order] = np.arange(len(order)) - np.searchsorted(self.kinds[order], self.kinds[order])
        return rank


class Column(ABC):
    """A column of values, some of which may be missing."""

    present: NDArray[np.bool_]

    @abstractmethod
    def value(self, row: int) -> Any:
        """Return the value of a row, which must be present, in memory of its own."""

    @abstractmethod
    def profile(self) -> Profile:
        """Return the structures of all rows. Those of missing rows have no meaning."""


def column_of(array: Any, path: str, place: Place) -> Column:
    """Return the column of an Arrow array, by its type. `path` is the key of the column, and `place` locates its rows.

    Raises:
        DataError: The type is not supported, or there is a null inside a list or an array. The message names the
            column, and the row of the null.
    """
    types = need("pyarrow", extra="hf", user="brim.data.nested.arrow").types
    kind = array.type
    if types.is_dictionary(kind):
        return column_of(array.dictionary_decode(), path, place)
    if hasattr(array, "storage") and kind.extension_name != "arrow.fixed_shape_tensor":
        return column_of(array.storage, path, place)
    if types.is_struct(kind):
        return StructColumn(array, path, place)
    if types.is_list(kind) or types.is_large_list(kind):
        numbers = _is_numbers(kind.value_type)
        return ArrayColumn(array, path, place) if numbers else ListColumn(_Parts.of(array), path, place)
    if types.is_fixed_size_list(kind):
        return (
            FixedArrayColumn(array, path, place)
            if _is_numbers(kind)
            else ListColumn(_Parts.of_fixed(array), path, place)
        )
    if _is_numbers(kind):
        return PinnedColumn(array) if path in PINNED else NumberColumn(array)
    if types.is_string(kind) or types.is_large_string(kind):
        return TextColumn(array, ("text",))
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return TextColumn(array, ("bytes",))
    if types.is_null(kind):
        return TextColumn(array, ("text",))
    raise DataError(
        f"{place(0)}: column {path!r} is of type {kind}, which nested samples have no word for; save it as numbers, "
        "text, lists or structs"
    )


class StructColumn(Column):
    """A column of dicts. Also the rows of a whole table, which are dicts that are never missing."""

    def __init__(self, array: Any, path: str, place: Place) -> None:
        self.present = _present(array)
        self._fields: dict[str, Column] = {}
        for number, field in enumerate(array.type):
            key, inside = field.name, f"{path}/{field.name}" if path else field.name
            if key in self._fields or not key or "/" in key:
                raise DataError(
                    f"{place(0)}: {path or 'the table'} has the column {key!r}; keys come once, and are words "
                    "without '/'"
                )
            self._fields[key] = column_of(array.field(number), inside, place)
        self._fields = dict(sorted(self._fields.items()))

    def value(self, row: int) -> dict[str, Any]:
        return {key: field.value(row) for key, field in self._fields.items() if field.present[row]}

    def profile(self) -> Profile:
        rows = np.arange(len(self.present))
        picks = [(field.profile(), np.where(field.present, rows, -1)) for field in self._fields.values()]

        def node(nodes: Sequence[Node | None]) -> Node:
            return (
                "dict",
                tuple((key, found) for key, found in zip(self._fields, nodes, strict=True) if found is not None),
            )

        return _combined(len(rows), picks, node)


class ListColumn(Column):
    """A column of lists of dicts, lists, text: everything but numbers."""

    def __init__(self, parts: "_Parts", path: str, place: Place) -> None:
        self.present, self._begin, self._end = parts.present, parts.begin, parts.end
        self._items = column_of(parts.values, path, lambda item: place(parts.row_of(item)))
        inside = np.zeros(len(self._items.present) + 1, np.int64)
        np.add.at(inside, self._begin[self.present], 1)
        np.subtract.at(inside, self._end[self.present], 1)
        if len(missing := np.flatnonzero((np.cumsum(inside)[:-1] > 0) & ~self._items.present)):
            raise DataError(
                f"{place(parts.row_of(int(missing[0])))}: a list in {path!r} has a null in it, which cannot be batched"
            )

    def value(self, row: int) -> list[Any]:
        return [self._items.value(item) for item in range(int(self._begin[row]), int(self._end[row]))]

    def profile(self) -> Profile:
        items = self._items.profile()
        sizes = np.where(self.present, self._end - self._begin, 0)
        kinds, nodes, lengths = np.zeros(len(sizes), np.int64), list[Node](), list[NDArray[np.int64]]()
        for size in np.unique(sizes).tolist():
            rows = np.flatnonzero(sizes == size)
            part = _combined(
                len(rows),
                [(items, self._begin[rows] + number) for number in range(size)],
                lambda nodes: ("list", tuple(nodes)),
            )
            kinds[rows] = part.kinds + len(nodes)
            nodes += part.nodes
            lengths += part.lengths
        return Profile(kinds, nodes, lengths)


class ArrayColumn(Column):
    """A column of arrays whose first axis is ragged."""

    def __init__(self, array: Any, path: str, place: Place) -> None:
        parts = _Parts.of(array)
        self.present, self._begin, self._end = parts.present, parts.begin, parts.end
        self._data, whole = _numbers(parts.values)
        if len(missing := np.flatnonzero(~whole)):
            raise _null(path, place(parts.row_of(int(missing[0]))))

    def value(self, row: int) -> NDArray[Any]:
        return self._data[self._begin[row] : self._end[row]].copy()

    def profile(self) -> Profile:
        return _alike(("array", self._data.dtype.name, self._data.shape[1:]), (self._end - self._begin)[:, None])


class FixedArrayColumn(Column):
    """A column of arrays that are all equally long."""

    def __init__(self, array: Any, path: str, place: Place) -> None:
        self.present = _present(array)
        self._data, whole = _numbers(array)
        if len(missing := np.flatnonzero(self.present & ~whole)):
            raise _null(path, place(int(missing[0])))

    def value(self, row: int) -> NDArray[Any]:
        return self._data[row].copy()

    def profile(self) -> Profile:
        rows, size, *sizes = self._data.shape
        return _alike(("array", self._data.dtype.name, tuple(sizes)), np.full((rows, 1), size, np.int64))


class NumberColumn(Column):
    def __init__(self, array: Any) -> None:
        self._data, self.present = _numbers(array)

    def value(self, row: int) -> Any:
        return self._data[row]

    def profile(self) -> Profile:
        return _alike(("scalar", self._data.dtype.name), np.zeros((len(self._data), 0), np.int64))


class PinnedColumn(NumberColumn):
    """A column of numbers that are part of the structure (`PINNED`)."""

    def value(self, row: int) -> Any:
        return self._data[row].item()

    def profile(self) -> Profile:
        values, kinds = np.unique(self._data, return_inverse=True)
        empty = [np.zeros((count, 0), np.int64) for count in np.bincount(kinds, minlength=len(values)).tolist()]
        return Profile(kinds.astype(np.int64), [("is", value) for value in values.tolist()], empty)


class TextColumn(Column):
    """A column of text, of bytes, or of nothing but nulls."""

    def __init__(self, array: Any, node: Node) -> None:
        self.present, self._array, self._node = _present(array), array, node

    def value(self, row: int) -> str | bytes:
        return self._array[row].as_py()

    def profile(self) -> Profile:
        return _alike(self._node, np.zeros((len(self.present), 0), np.int64))


class _Parts(NamedTuple):
    """The lists of a column: all items, and where those of each row begin and end."""

    present: NDArray[np.bool_]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    values: Any

    @classmethod
    def of(cls, array: Any) -> "_Parts":
        ends = array.offsets.to_numpy().astype(np.int64)
        return cls(_present(array), ends[:-1], ends[1:], array.values)

    @classmethod
    def of_fixed(cls, array: Any) -> "_Parts":
        ends = np.arange(len(array) + 1, dtype=np.int64) * array.type.list_size
        return cls(_present(array), ends[:-1], ends[1:], _items(array))

    def row_of(self, item: int) -> int:
        return int(np.searchsorted(self.end, item, side="right"))


def _combined(
    count: int, columns: Sequence[tuple[Profile, NDArray[np.int64]]], node: Callable[[Sequence[Node | None]], Node]
) -> Profile:
    """Combine columns side by side. Row i takes row `picks[i]` of each profile, or nothing of it if that is -1."""
    matrix = np.zeros((count, len(columns)), np.int64)
    for number, (profile, picks) in enumerate(columns):
        matrix[:, number] = np.where(picks < 0, -1, profile.kinds[picks] if len(profile.kinds) else -1)
    if count and columns:
        unique, kinds = np.unique(matrix, axis=0, return_inverse=True)
        kinds = kinds.reshape(-1).astype(np.int64)
    else:
        unique, kinds = matrix[:1], np.zeros(count, np.int64)
    order = np.argsort(kinds, kind="stable")
    bounds = np.searchsorted(kinds[order], np.arange(len(unique) + 1))
    nodes: list[Node] = []
    lengths: list[NDArray[np.int64]] = []
    for code, chosen in enumerate(cast(list[list[int]], unique.tolist())):
        rows = order[bounds[code] : bounds[code + 1]]
        found = list(zip(chosen, columns, strict=True))
        inside: list[Node | None] = [None if kind < 0 else profile.nodes[kind] for kind, (profile, _) in found]
        nodes.append(node(inside))
        parts = [profile.lengths[kind][profile.rank[picks[rows]]] for kind, (profile, picks) in found if kind >= 0]
        lengths.append(np.concatenate([np.zeros((len(rows), 0), np.int64), *parts], axis=1))
    return Profile(kinds, nodes, lengths)


def _alike(node: Node, lengths: NDArray[np.int64]) -> Profile:
    return Profile(np.zeros(len(lengths), np.int64), [node], [lengths])


def _is_numbers(kind: Any) -> bool:
    """Return whether a type is a number, or a block of numbers of a fixed shape."""
    types = need("pyarrow", extra="hf", user="brim.data.nested.arrow").types
    while types.is_fixed_size_list(kind):
        kind = kind.value_type
    return types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)


def _numbers(array: Any) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return numbers, or blocks of them, as one array, and which of the rows have no null in them."""
    if not hasattr(array.type, "list_size"):
        present = _present(array)
        filled = array if array.null_count == 0 else array.fill_null(False if str(array.type) == "bool" else 0)
        return filled.to_numpy(zero_copy_only=False), present
    data, whole = _numbers(_items(array))
    shape = (len(array), array.type.list_size)
    return data.reshape(*shape, *data.shape[1:]), _present(array) & whole.reshape(shape).all(axis=1)


def _items(array: Any) -> Any:
    """Return the items of lists of one size, including those of null lists."""
    size = array.type.list_size
    return array.values.slice(array.offset * size, len(array) * size)


def _present(array: Any) -> NDArray[np.bool_]:
    if array.null_count == 0:
        return np.ones(len(array), np.bool_)
    return array.is_valid().to_numpy(zero_copy_only=False)


def _null(path: str, where: str) -> DataError:
    return DataError(f"{where}: an array in {path!r} has a null in it, which cannot be batched")
