"""`collate_compressed_batch`: samples with compression stages as a dict of tensors.

A thin face of `nested_collate` for training loops that index a batch by name: every dict of arrays gets its `lengths` and its `mask`. A
leaf: it imports torch.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from brim.batch.nested import NestedBatch, nested_collate
from brim.core.errors import DataError, MismatchError
from brim.core.extras import need
from brim.data.structure import ID

if TYPE_CHECKING:
    import torch
else:
    torch = need("torch", extra="torch", user="brim.batch.compressed")

STAGES, COUNT = "compression_stages", "num_compression_stages"


def collate_compressed_batch(batch: Sequence[Mapping[str, Any]], *, pad_to_multiple: int = 1) -> dict[str, Any]:
    """The samples of one compression depth as tensors, padded inside each stage and nowhere else.

    A sample has a list of dicts of arrays under "compression_stages", and whatever else belongs to it. The batch has the same keys. In a
    dict whose arrays are equally long, such as a stage, "lengths" and "mask" are added; where they are not, "NAME_lengths" and "NAME_mask"
    for each. "num_compression_stages" is a number, "id" a list. Use it as the `collate_fn` of a `DataLoader` over a `BucketSampler`.

    Raises:
        MismatchError: Two samples have different structures, such as other numbers of stages.
        DataError: A sample has no stages to speak of, or a key that would be overwritten.
    """
    if not batch:
        return {STAGES: [], COUNT: 0, ID: []}
    collated = nested_collate(batch, pad_to_multiple=pad_to_multiple)
    stages = collated.data.get(STAGES)
    if not isinstance(stages, list):
        raise DataError(f"sample {collated.ids[0]!r} has no list of {STAGES} (keys: {', '.join(collated.data)}); use nested_collate")
    count = len(cast(list[Any], stages))
    if collated.data.get(COUNT, count) != count:
        raise MismatchError(f"sample {collated.ids[0]!r} says {COUNT} {collated.data[COUNT]} and has {count}")
    return {**as_tensors(collated), COUNT: count}


def as_tensors(batch: NestedBatch) -> dict[str, Any]:
    """The data of a batch as tensors, with lengths and masks beside the arrays they belong to; see `collate_compressed_batch`."""
    return {**cast(dict[str, Any], _tensors(batch.data, batch.lengths, batch.masks)), ID: list(batch.ids)}


def _tensors(data: Any, lengths: Any, masks: Any) -> Any:
    if isinstance(data, list) and isinstance(lengths, list):
        return [_tensors(*item) for item in zip(cast(list[Any], data), cast(list[Any], lengths), cast(list[Any], masks), strict=True)]
    if not isinstance(data, dict):
        return torch.from_numpy(data) if hasattr(data, "dtype") else data
    named = cast(dict[str, Any], data)
    result = {name: _tensors(value, lengths[name], masks[name]) for name, value in named.items()}
    arrays = [name for name in named if hasattr(lengths[name], "dtype")]
    together = len({id(lengths[name]) for name in arrays}) == 1
    for name in arrays[:1] if together else arrays:
        for key, value in (("lengths", lengths[name]), ("mask", masks[name])):
            key = key if together else f"{name}_{key}"
            if key in named:
                raise DataError(f"the key {key!r} beside {name!r} is where its {key.rpartition('_')[2]} would go; rename it")
            result[key] = torch.from_numpy(value)
    return result
