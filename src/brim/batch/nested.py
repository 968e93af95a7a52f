"""Collate nested samples: stack what is fixed, pad what is ragged, and say which is which.

All samples of a batch have one structure, so there is never a dummy stage: a list of two stages becomes a list of two stages, each of
them as long as its longest. Every array comes with the lengths of its rows and a mask. No framework is imported here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import MismatchError, OptionError
from brim.core.fill import Fill
from brim.data.ids import SampleId
from brim.data.structure import Structure, difference, outline, sample_id
from brim.plan.units import round_up


@dataclass(frozen=True, eq=False)
class NestedBatch:
    """Three trees of the shape of a sample. `lengths` and `masks` have an entry where `data` has an array, and None elsewhere."""

    data: dict[str, Any]
    """Arrays of [rows, longest, ...], numbers as arrays of [rows], text as lists."""
    lengths: dict[str, Any]
    """int64 of [rows]; one array for all arrays of a dict that are equally long."""
    masks: dict[str, Any]
    """bool of [rows, longest], true where there is data."""
    structure: Structure
    ids: tuple[SampleId, ...]
    fill: Fill
    """Of the ragged axes: what is data, of what was made. Arrays of a dict that are equally long count once."""

    def __len__(self) -> int:
        return len(self.ids)


def nested_collate(samples: Sequence[Mapping[str, Any]], *, pad_value: float = 0, pad_to_multiple: int = 1) -> NestedBatch:
    """One batch of nested samples of one structure; see `brim.data.structure` for what a nested sample is.

    Arrays are padded on the right with `pad_value`, to the longest of the batch, rounded up to a multiple of `pad_to_multiple`. A sample
    is called what its "id" says, or by its place in the batch. No samples, which is what a rank gets that has nothing left to do in a step,
    make a batch of nothing.

    Raises:
        MismatchError: Two samples differ in structure; the message names them.
        DataError: A sample holds something that cannot be batched.

    Example:
        >>> batch = nested_collate([{"stages": [np.ones(3)]}, {"stages": [np.ones(2)]}])
        >>> batch.data["stages"][0].shape, batch.lengths["stages"][0]
        ((2, 3), array([3, 2]))
    """
    if pad_to_multiple < 1:
        raise OptionError(f"pad_to_multiple must be at least 1, got {pad_to_multiple}")
    if not samples:
        return NestedBatch({}, {}, {}, structure=Structure(("dict", ())), ids=(), fill=Fill())
    ids = tuple(sample_id(sample, place) for place, sample in enumerate(samples))
    parts = [outline(sample) for sample in samples]
    structure = parts[0].structure
    for id, other in zip(ids, parts, strict=True):
        if other.structure != structure:
            raise MismatchError(
                f"samples {ids[0]!r} and {id!r} have different structures and cannot share a batch: "
                f"{difference(structure, other.structure)}. Batch them with BucketSampler, which never mixes structures"
            )
    shared: dict[tuple[str, bytes], tuple[NDArray[np.int64], NDArray[np.bool_]]] = {}
    data: list[Any] = []
    lengths: list[NDArray[np.int64] | None] = []
    masks: list[NDArray[np.bool_] | None] = []
    for path, is_array, column in zip(
        structure.leaves, structure.is_array, zip(*(part.leaves for part in parts), strict=True), strict=True
    ):
        if not is_array:
            data.append(np.stack(column) if isinstance(column[0], np.ndarray) else list(column))
            lengths.append(None)
            masks.append(None)
            continue
        sizes = np.array([len(array) for array in column], np.int64)
        width = int(round_up(sizes.max(keepdims=True), pad_to_multiple)[0])
        key = (path.rpartition("/")[0], sizes.tobytes())
        if key not in shared:
            shared[key] = (sizes, np.arange(width) < sizes[:, None])
        data.append(_padded(column, width, pad_value, path))
        lengths.append(shared[key][0])
        masks.append(shared[key][1])
    used, slots = (sum(int(part[which].sum() if which == 0 else part[1].size) for part in shared.values()) for which in (0, 1))
    trees = (structure.assemble(leaves) for leaves in (data, lengths, masks))
    return NestedBatch(*trees, structure=structure, ids=ids, fill=Fill(used, slots))


def _padded(arrays: Sequence[NDArray[Any]], width: int, pad_value: float, path: str) -> NDArray[Any]:
    dtype = arrays[0].dtype
    if pad_value and not np.can_cast(np.min_scalar_type(pad_value), dtype, "same_kind"):
        raise OptionError(f"pad_value {pad_value!r} is not a {dtype}, which {path} holds")
    padded = np.full((len(arrays), width, *arrays[0].shape[1:]), pad_value, dtype)
    for row, array in enumerate(arrays):
        padded[row, : len(array)] = array
    return padded
