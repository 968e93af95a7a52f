"""`collate_compressed_batch`: samples with compression stages as a dict of tensors.

A thin wrapper of `nested_collate` for training loops that index a batch by name. The keys of a batch depend on the
structure of its samples alone, never on their lengths. This module imports torch.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from brim.batch.nested import nested_collate
from brim.core.errors import DataError, MismatchError
from brim.core.extras import need
from brim.data.ids import SampleId
from brim.data.nested.structure import ID

if TYPE_CHECKING:
    import torch
else:
    torch = need("torch", extra="torch", user="brim.batch.compressed")

STAGES, COUNT = "compression_stages", "num_compression_stages"


def collate_compressed_batch(batch: Sequence[Mapping[str, Any]], *, pad_to_multiple: int = 1) -> dict[str, Any]:
    """Collate samples of one compression depth into tensors. Arrays are padded; stages are never added as padding.

    A sample has a list of dicts of arrays under "compression_stages", and any other keys. The batch has the same keys.
    The arrays of a dict inside a sample, such as a stage, must be equally long, and get their "lengths" and "mask"
    beside them; an array at the top gets "NAME_lengths" and "NAME_mask". "num_compression_stages" is a number, "id" a
    list. Use it as the `collate_fn` of a `DataLoader` over a `BucketSampler`.

    Raises:
        MismatchError: Two samples have different structures, such as other numbers of stages, or
            "num_compression_stages" is not the number of stages.
        DataError: A sample has no list of stages, arrays of a dict differ in length, or a key would be overwritten.
    """
    if not batch:
        return {STAGES: [], COUNT: 0, ID: []}
    collated = nested_collate(batch, pad_to_multiple=pad_to_multiple)
    stages = collated.data.get(STAGES)
    if not isinstance(stages, list):
        kind = "is no list" if STAGES in collated.data else f"is not among its keys ({', '.join(collated.data)})"
        raise DataError(f"{STAGES} of sample {collated.ids[0]!r} {kind}; use nested_collate for samples without stages")
    count = len(cast(list[Any], stages))
    if collated.data.get(COUNT, count) != count:
        raise MismatchError(f"sample {collated.ids[0]!r} says {COUNT} {collated.data[COUNT]} and has {count}")
    tensors = cast(dict[str, Any], _tensors(collated.data, collated.lengths, collated.masks, "", collated.ids))
    return {**tensors, COUNT: count, ID: list(collated.ids)}


def _tensors(data: Any, lengths: Any, masks: Any, path: str, ids: tuple[SampleId, ...]) -> Any:
    """Return `data` with tensors for its arrays, and their lengths and masks beside them."""
    if isinstance(data, list) and isinstance(lengths, list):
        items = zip(cast(list[Any], data), cast(list[Any], lengths), cast(list[Any], masks), strict=True)
        return [_tensors(*item, f"{path}/{number}", ids) for number, item in enumerate(items)]
    if not isinstance(data, dict):
        return torch.from_numpy(data) if hasattr(data, "dtype") else data
    named = cast(dict[str, Any], data)
    result = {
        name: _tensors(value, lengths[name], masks[name], f"{path}/{name}" if path else name, ids)
        for name, value in named.items()
    }
    for name in (name for name in named if hasattr(lengths[name], "dtype")):
        keys = (f"{name}_lengths", f"{name}_mask") if not path else ("lengths", "mask")
        for key, value in zip(keys, (lengths[name], masks[name]), strict=True):
            if key in named:
                raise DataError(
                    f"{path or 'the sample'} has a key {key!r}, where what is told of {name!r} would go; rename it"
                )
            if key == "lengths" and key in result and (result[key].numpy() != value).any():
                row = int((result[key].numpy() != value).argmax())
                raise DataError(
                    f"the arrays of {path} differ in length in sample {ids[row]!r}: {name!r} has {value[row]}, "
                    f"others {result[key][row]}; put them into dicts of their own, or at the top of the sample"
                )
            result[key] = torch.from_numpy(value)
    return result
