"""Nested samples as flat columns: the layout `brim.nested/1` of both HDF5 and NPZ files.

    structure             [samples] int32      which structure a sample has
    row                   [samples] int64      its number among the samples of that structure
    digest                [samples, 16] uint8  of the sample and its id
    id | id_text, id_ends                      the ids, as `Ids` keeps them; none where they are row numbers
    structures/K/tree     uint8                the structure K, as `Structure.to_json` gives it
    structures/K/L        its leaf L: the arrays of all samples end to end; numbers in a column; text and bytes as uint8
    structures/K/L.ends   int64                where the arrays, texts or bytes of each sample end; numbers need none

This module reads and writes no files: a column is anything that can be sliced, an array or an HDF5 data set. Leaves are
numbered, because a key may be a word that a file format does not allow as a name. An array whose rows are empty has
ends and no data.
"""

import json
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import DamagedError, DataError
from brim.core.fingerprint import DIGEST_BYTES, array_bytes, fingerprint, new_hash
from brim.data.ids import Ids, SampleId
from brim.data.lengths import LengthCache
from brim.data.nested.lengths import structure_table
from brim.data.nested.structure import Node, Structure, outline, sample_id

FORMAT = "brim.nested/1"
PER_PART = 100
"""Bytes that a part of a column takes in memory besides its data."""

Arrays = dict[str, NDArray[Any]]


class FlatBuffer:
    """A buffer that converts samples to columns.

    `take` returns what was added since its last call, so that a writer can stream.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self.ids: list[SampleId] = []
        self._codes: dict[Structure, int] = {}
        self._kinds: list[_Kind] = []
        self._parts: dict[str, list[Any]] = {}

    def add(self, sample: Mapping[str, Any], number: int) -> None:
        """Add a copy of a sample, the `number`-th of its writer. The number is its id if it has none of its own.

        Raises:
            DataError: The sample cannot be batched.
        """
        try:
            parts, id = outline(sample), sample_id(sample, number)
            code = self._code(parts.structure)
            kind = self._kinds[code]
            leaves = [_stored(leaf, node) for leaf, node in zip(parts.leaves, kind.nodes, strict=True)]
            digest = _digest(str(id), kind.tree, leaves)
        except UnicodeEncodeError as error:
            raise DataError(f"sample {number}: {error.object[:40]!r} is not text that UTF-8 has bytes for") from None
        except DataError as error:
            raise DataError(f"sample {number}: {error}") from None
        self._append("structure", np.int32(code))
        self._append("row", np.int64(kind.count))
        self._append("digest", np.frombuffer(digest, np.uint8)[None])
        kind.count += 1
        self.ids.append(id)
        for leaf, (array, node) in enumerate(zip(leaves, kind.nodes, strict=True)):
            name = f"structures/{code}/{leaf}"
            if node[0] != "scalar":
                kind.ends[leaf] += len(array)
                self._append(f"{name}.ends", np.int64(kind.ends[leaf]))
            if not _is_hollow(node):
                self._append(name, array)

    def take(self) -> Arrays:
        """Return what was added to the columns since the last call, without the ids, whose type depends on them all."""
        parts, self._parts, self.nbytes = self._parts, {}, 0
        return {
            name: np.array(found, found[0].dtype) if found[0].ndim == 0 else np.concatenate(found)
            for name, found in parts.items()
        }

    def id_columns(self) -> Arrays:
        """Return the columns of the ids of all samples.

        Raises:
            DataError: There are no samples, or an id comes twice.
        """
        if not self.ids:
            raise DataError("there are no samples to write")
        ids = Ids.of(self.ids)
        ids.refuse_duplicate("sample {}".format)
        return ids.to_columns()

    def _code(self, structure: Structure) -> int:
        code = self._codes.setdefault(structure, len(self._codes))
        if code == len(self._kinds):
            self._kinds.append(_Kind(structure))
            self._append(f"structures/{code}/tree", np.frombuffer(self._kinds[code].tree.encode(), np.uint8))
        return code

    def _append(self, name: str, part: Any) -> None:
        self._parts.setdefault(name, []).append(part)
        self.nbytes += part.nbytes + PER_PART


class _Kind:
    """The state of a buffer for one structure: its leaves, the number of its samples, and where each leaf ends."""

    def __init__(self, structure: Structure) -> None:
        self.nodes, self.tree = leaf_nodes(structure), structure.to_json()
        self.count = 0
        self.ends = [0] * len(self.nodes)


class FlatSamples:
    """Samples that are stored in columns.

    Columns of a few bytes per sample (structures, digests, ids, numbers, ends) are held in memory; arrays and text are
    sliced when they are accessed.
    """

    def __init__(self, columns: Mapping[str, Any], where: str) -> None:
        """Read the columns of structures, digests and ids. `where` names the file in errors.

        Raises:
            DamagedError: The columns do not fit together.
        """
        self._columns, self._where = columns, where
        self.kinds: NDArray[np.int64] = self._column("structure", 1).astype(np.int64)
        self._rows = self._column("row", 1)
        self.digests = self._column("digest", 2)
        stored = {name: self._column(name, 1) for name in Ids.COLUMNS if name in columns}
        self.ids = Ids.from_columns(len(self.kinds), stored)
        count = 0
        while f"structures/{count}/tree" in columns:
            count += 1
        self._kinds: list[FlatKind | None] = [None] * count
        fits = (
            len(self._rows) == len(self.kinds)
            and self.digests.shape == (len(self.kinds), DIGEST_BYTES)
            and self.ids.is_whole()
        )
        if not fits or not np.array_equal(self._rows, _ranks(self.kinds)) or not _within(self.kinds, count):
            raise self._damaged("its columns do not fit together")

    def __len__(self) -> int:
        return len(self.kinds)

    def sample(self, row: int) -> dict[str, Any]:
        """Return a sample without its id, in memory of its own."""
        kind = self.kind(int(self.kinds[row]))
        return kind.structure.assemble(kind.leaves(int(self._rows[row])))

    def tally(self, tally: "Tally") -> None:
        """Add the lengths of all samples to a tally. No array is read."""
        kinds = [self.kind(number) for number in range(len(self._kinds))]
        tally.add([kind.structure for kind in kinds], self.kinds, [kind.lengths for kind in kinds])

    def kind(self, number: int) -> "FlatKind":
        """Return all samples of one structure."""
        if (kind := self._kinds[number]) is None:
            kind = self._kinds[number] = self._open_kind(number)
        return kind

    def _open_kind(self, number: int) -> "FlatKind":
        prefix, count = f"structures/{number}", int(np.count_nonzero(self.kinds == number))
        try:
            structure = Structure.from_json(self._column(f"{prefix}/tree", 1).tobytes().decode())
        except (DataError, UnicodeDecodeError) as error:
            raise self._damaged(str(error)) from None
        found: list[_Leaf] = []
        for leaf, node in enumerate(leaf_nodes(structure)):
            name = f"{prefix}/{leaf}"
            if node[0] == "scalar":
                column = self._column(name, 1)
                if len(column) != count or column.dtype != np.dtype(node[1]):
                    raise self._damaged(f"{name} has {len(column)} numbers for {count} samples")
                found.append(_Leaf(node, column, None))
                continue
            ends, data = self._column(f"{name}.ends", 1), None if _is_hollow(node) else self._columns.get(name)
            shape, dtype = (node[2], np.dtype(node[1])) if node[0] == "array" else ((), np.dtype(np.uint8))
            if len(ends) != count or (np.diff(ends, prepend=0) < 0).any():
                raise self._damaged(f"{name}.ends does not go up for {count} samples")
            if not _is_hollow(node) and (
                data is None or data.shape != (int(ends[-1]) if count else 0, *shape) or data.dtype != dtype
            ):
                raise self._damaged(f"{name} is missing, or not as long as its ends say")
            found.append(_Leaf(node, data, ends.astype(np.int64)))
        return FlatKind(structure, found, count)

    def _column(self, name: str, axes: int) -> NDArray[Any]:
        if name not in self._columns:
            raise self._damaged(f"it has no column {name!r}")
        column = np.asarray(self._columns[name][()])
        if column.ndim != axes:
            raise self._damaged(f"its column {name!r} has the shape {column.shape}")
        return column

    def _damaged(self, what: str) -> DamagedError:
        return DamagedError(f"{self._where} is damaged: {what}; write it again")


class _Leaf(NamedTuple):
    node: Node
    data: Any
    """The column, which can be sliced; None if rows are empty."""
    ends: NDArray[np.int64] | None


class FlatKind:
    """The samples of one structure."""

    def __init__(self, structure: Structure, found: Sequence[_Leaf], count: int) -> None:
        self.structure, self._found, self._count = structure, found, count

    def leaves(self, row: int) -> list[Any]:
        return [self._leaf(leaf, row) for leaf in self._found]

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """The lengths of the arrays, [samples, arrays]."""
        columns = [
            np.diff(leaf.ends, prepend=0) for leaf in self._found if leaf.node[0] == "array" and leaf.ends is not None
        ]
        return np.stack(columns, axis=1) if columns else np.zeros((self._count, 0), np.int64)

    def _leaf(self, leaf: _Leaf, row: int) -> Any:
        node, data, ends = leaf
        if ends is None:
            return data[row]
        start, stop = int(ends[row - 1]) if row else 0, int(ends[row])
        if node[0] == "array" and (data is None or start == stop):
            return np.empty((stop - start, *node[2]), node[1])
        found = data[start:stop]
        if node[0] == "array":
            return found.copy() if isinstance(data, np.ndarray) else found
        return found.tobytes().decode() if node[0] == "text" else found.tobytes()


class Tally:
    """Collects the structures and lengths of samples part by part, in their order."""

    def __init__(self) -> None:
        self._codes: dict[Structure, int] = {}
        self._kinds: list[NDArray[np.int64]] = []
        self._lengths: list[list[NDArray[np.int64]]] = []

    def add(
        self, structures: Sequence[Structure], kinds: NDArray[np.integer[Any]], lengths: Sequence[NDArray[Any]]
    ) -> None:
        """Add the samples of one part, described as for `structure_table`."""
        codes = np.zeros(len(structures), np.int64)
        for number, (structure, rows) in enumerate(zip(structures, lengths, strict=True)):
            codes[number] = code = self._codes.setdefault(structure, len(self._codes))
            if code == len(self._lengths):
                self._lengths.append([])
            self._lengths[code].append(rows)
        self._kinds.append(codes[kinds])

    def table(self, ids: Ids, dataset_hash: str) -> LengthCache:
        kinds = np.concatenate([np.empty(0, np.int64), *self._kinds])
        lengths = [np.concatenate(rows) for rows in self._lengths]
        return structure_table(list(self._codes), kinds, lengths, ids=ids, dataset_hash=dataset_hash)


def samples_fingerprint(digests: NDArray[np.uint8]) -> str:
    """Return the fingerprint of samples with these digests, in their order. It does not depend on their files."""
    return fingerprint(nested=digests)


def leaf_nodes(structure: Structure) -> list[Node]:
    """Return the nodes of the leaves, in the order of `structure.leaves`."""
    found: list[Node] = []
    stack = [structure.tree]
    while stack:
        node = stack.pop()
        if node[0] == "dict":
            stack += [child for _, child in reversed(node[1])]
        elif node[0] == "list":
            stack += reversed(node[1])
        elif node[0] != "is":
            found.append(node)
    return found


def _is_hollow(node: Node) -> bool:
    return node[0] == "array" and math.prod(node[2]) == 0


def _stored(leaf: Any, node: Node) -> NDArray[Any]:
    """Return a leaf as an array. Arrays are copied: the caller may fill the same memory with the next sample."""
    if node[0] in ("text", "bytes"):
        return np.frombuffer(leaf.encode() if node[0] == "text" else leaf, np.uint8)
    return np.array(leaf, dtype=np.dtype(node[1]), order="C")


def _digest(id: str, tree: str, leaves: Sequence[NDArray[Any]]) -> bytes:
    """Return the digest of a sample. Sizes are hashed before the data, so no two samples hash the same bytes."""
    sizes = [len(leaf) if leaf.ndim else -1 for leaf in leaves]
    hash = new_hash()
    hash.update(json.dumps([id, tree, sizes]).encode() + b"\n")
    for leaf in leaves:
        hash.update(array_bytes(leaf))
    return bytes.fromhex(hash.hexdigest())


def _ranks(kinds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each row the number of earlier rows of the same kind."""
    order = np.argsort(kinds, kind="stable")
    first = np.searchsorted(kinds[order], kinds[order])
    ranks = np.empty(len(kinds), np.int64)
    ranks[order] = np.arange(len(kinds)) - first
    return ranks


def _within(kinds: NDArray[np.int64], count: int) -> bool:
    return len(kinds) == 0 or (int(kinds.min()) >= 0 and int(kinds.max()) < count)
