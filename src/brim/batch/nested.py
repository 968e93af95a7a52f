"""Collate nested samples: stack values of fixed size, pad ragged arrays, and return the lengths and masks of these.

All samples of a batch have one structure, so there is never a dummy stage: a list of two stages becomes a list of two
stages, each padded to the longest in the batch. Every ragged array comes with the lengths of its rows and a mask. No
framework is imported here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import round_up
from brim.core.errors import MismatchError, OptionError
from brim.core.fill import Fill
from brim.data.ids import SampleId
from brim.data.nested.structure import Outline, Structure, difference, outline, sample_id


@dataclass(frozen=True, eq=False)
class NestedBatch:
    """A batch of nested samples: three trees with the structure of a sample.

    `lengths` and `masks` have an entry where `data` has an array, and None elsewhere.
    """

    data: dict[str, Any]
    """Arrays of [rows, longest, ...], numbers as arrays of [rows], text as lists."""
    lengths: dict[str, Any]
    """Lengths of the rows, int64 of [rows]; arrays of a dict that are equally long share one."""
    masks: dict[str, Any]
    """Masks, bool of [rows, longest], true where there is data."""
    structure: Structure
    ids: tuple[SampleId, ...]
    fill: Fill
    """Fill of the ragged axes: steps that are data, out of all steps with padding.

    Arrays of a dict that are equally long in this batch count once.
    """

    def __len__(self) -> int:
        return len(self.ids)


def nested_collate(
    samples: Sequence[Mapping[str, Any]], *, pad_value: float = 0, pad_to_multiple: int = 1
) -> NestedBatch:
    """Collate nested samples of one structure; see `brim.data.nested.structure` for what a nested sample is.

    Arrays are padded on the right with `pad_value`, to the longest of the batch, rounded up to a multiple of
    `pad_to_multiple`. The id of a sample is its "id", or its index in the batch. No samples, as in an empty microbatch,
    give an empty batch.

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
    structure = _common_structure(ids, parts)
    axes: dict[tuple[str, bytes], Axis] = {}
    data: list[Any] = []
    along: list[Axis | None] = []
    for path, values in zip(structure.leaves, zip(*(part.leaves for part in parts), strict=True), strict=True):
        if path not in structure.tables:
            data.append(np.stack(values) if isinstance(values[0], np.ndarray) else list(values))
            along.append(None)
            continue
        lengths = np.array([len(array) for array in values], np.int64)
        axis = axes.setdefault((structure.tables[path], lengths.tobytes()), Axis.of(lengths, pad_to_multiple))
        data.append(_padded(values, axis.mask.shape[1], pad_value, path))
        along.append(axis)
    return NestedBatch(
        data=structure.assemble(data),
        lengths=structure.assemble(axis and axis.lengths for axis in along),
        masks=structure.assemble(axis and axis.mask for axis in along),
        structure=structure,
        ids=ids,
        fill=Fill(
            sum(int(axis.lengths.sum()) for axis in axes.values()), sum(axis.mask.size for axis in axes.values())
        ),
    )


class Axis(NamedTuple):
    """A ragged axis in a batch: the length of each row, and a mask that is true where there is data."""

    lengths: NDArray[np.int64]
    mask: NDArray[np.bool_]

    @classmethod
    def of(cls, lengths: NDArray[np.int64], multiple: int) -> "Axis":
        width = int(round_up(lengths, multiple).max())
        return cls(lengths, np.arange(width) < lengths[:, None])


def _common_structure(ids: Sequence[SampleId], parts: Sequence[Outline]) -> Structure:
    first = parts[0].structure
    for id, part in zip(ids, parts, strict=True):
        if part.structure != first:
            raise MismatchError(
                f"samples {ids[0]!r} and {id!r} have different structures and cannot share a batch: "
                f"{difference(first, part.structure)}. Batch them with BucketSampler, which never mixes structures"
            )
    return first


def _padded(arrays: Sequence[NDArray[Any]], width: int, pad_value: float, path: str) -> NDArray[Any]:
    dtype = arrays[0].dtype
    if dtype.kind in "biu":
        low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        if not low <= pad_value <= high or pad_value != int(pad_value):
            raise OptionError(f"pad_value {pad_value!r} is not a {dtype}, which {path} holds")
    padded = np.full((len(arrays), width, *arrays[0].shape[1:]), pad_value, dtype)
    for row, array in enumerate(arrays):
        padded[row, : len(array)] = array
    return padded
