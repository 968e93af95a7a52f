"""One batch in one NPZ file: integers only, and the same bytes for the same batch.

    input_ids     [rows, width]     loss_mask     [rows, width], 1 where a token is trained on
    segment_ids   [rows, width]     positions     [rows, width]
    cu_seqlens    [segments + 1]    labels        [rows, width], only if they are not input_ids under the mask
    sample_ids    [segments] integers; or the ids as concatenated UTF-8 bytes, with the end of each in sample_ends
    bucket_id, max_len, index, epoch              one number each
    directory     16 bytes: the checksum of the manifest beside which the file was written

`np.load` reads these files. The reader here trusts nothing in them (see `brim.core.npz`), and accepts integers only.
"""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.batch.batch import IGNORED, Batch
from brim.core.atomic import atomic_file
from brim.core.errors import DamagedError
from brim.core.fingerprint import array_bytes
from brim.core.npz import NpzArchive, NpzError, npz_bytes
from brim.data.ids import Ids, SampleId
from brim.plan.epoch import MicrobatchSpec

GRIDS = ("input_ids", "loss_mask", "segment_ids", "positions")
"""The arrays of [rows, width] that every file has."""
NUMBERS = ("bucket_id", "max_len", "index", "epoch")

AGAIN = "delete it and write the batches again: only what is missing is written"

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Stored:
    """The content of one file: the arrays under their names in a `Batch`, and which batch of the plan they are."""

    arrays: Arrays
    ids: tuple[SampleId, ...]
    epoch: int
    index: int
    bucket_id: int


def write_batch(path: Path, batch: Batch, directory: str) -> None:
    """Write a batch to a file, whole or not at all. `directory` is the checksum of its manifest, in hexadecimal.

    Raises:
        NpzError: The batch could not be read back: its arrays do not fit together.
    """
    arrays = _arrays(batch)
    _checked(arrays)
    arrays["directory"] = np.frombuffer(bytes.fromhex(directory), np.uint8)
    data = npz_bytes(arrays)
    with atomic_file(path, durable=False) as file:  # a batch that is lost is written again
        file.write(data)


def read_batch(path: Path, directory: str, spec: MicrobatchSpec) -> Batch:
    """Read the batch of a microbatch as it was collated.

    Raises:
        DamagedError: The file is missing, truncated or altered, belongs to another directory or microbatch, or holds
            something other than the arrays of a batch.
    """
    try:
        arrays = _read_arrays(path.read_bytes())
        written_for = array_bytes(arrays.pop("directory")).hex()
        stored = _checked(arrays)
    except FileNotFoundError:
        raise DamagedError(f"{path} is missing; write the batches again: only what is missing is written") from None
    except OSError as error:
        raise DamagedError(f"cannot read {path}: {error.strerror or error}") from None
    except NpzError as error:
        raise DamagedError(f"{path} is damaged: {error}; {AGAIN}") from None
    except KeyError as error:
        raise DamagedError(f"{path} is not a batch of ours: it has no array {error}; {AGAIN}") from None
    if written_for != directory:
        raise DamagedError(f"{path} was written for another directory of batches; {AGAIN}")
    found = (stored.epoch, stored.index, stored.bucket_id, stored.ids)
    if found != (spec.epoch, spec.index, spec.bucket_id, spec.samples):
        name = f"batch {stored.index} of epoch {stored.epoch}"
        raise DamagedError(f"{path} is {name}, under the name of another; {AGAIN}")
    return Batch(**stored.arrays, spec=spec)


def _read_arrays(data: bytes) -> Arrays:
    with NpzArchive(io.BytesIO(data), stored=True) as archive:
        arrays: Arrays = dict(archive)
    for name, array in arrays.items():
        if array.dtype.kind not in "iu":
            raise NpzError(f"{name!r} is not a plain array of integers")
    return arrays


def _arrays(batch: Batch) -> Arrays:
    arrays: Arrays = {name: np.asarray(getattr(batch, name)) for name in GRIDS}
    if not np.array_equal(batch.labels, _learned(batch.tokens, batch.loss_mask)):
        arrays["labels"] = np.asarray(batch.labels)
    text = Ids.of(batch.ids).text
    if text is not None:
        arrays |= {"sample_ids": text[0], "sample_ends": text[1]}
    else:
        arrays["sample_ids"] = np.array(batch.ids, np.int64)
    return {
        **arrays,
        "cu_seqlens": batch.cu_seqlens,
        **{name: np.array(getattr(batch, name), np.int64) for name in NUMBERS},
    }


def _checked(arrays: Arrays) -> Stored:
    """Check that the arrays of a file fit together, and separate those of the batch from those that identify it."""
    tokens, mask, segments, positions = (arrays[name] for name in GRIDS)
    if tokens.dtype not in (np.dtype(np.int32), np.dtype(np.int64)):
        raise NpzError(f"its input_ids are {tokens.dtype}, not int32 or int64")
    labels = arrays["labels"] if "labels" in arrays else _learned(tokens, mask)
    if tokens.ndim != 2 or any(array.shape != tokens.shape for array in (mask, segments, positions, labels)):
        raise NpzError("its arrays have different shapes")
    ids, bounds, numbers = _ids(arrays), arrays["cu_seqlens"], {name: arrays[name] for name in NUMBERS}
    if any(number.shape for number in numbers.values()) or bounds.shape != (len(ids) + 1,):
        raise NpzError(f"it has {len(ids)} sample ids for {bounds.size - 1} segments")
    going_up = bounds[0] == 0 and not np.any(np.diff(bounds) < 0)
    if not going_up or int(bounds[-1]) != np.count_nonzero(segments) or int(numbers["max_len"]) != tokens.shape[1]:
        raise NpzError("its segments are not where its boundaries say")
    return Stored(
        arrays={
            "tokens": tokens,
            "segment_ids": segments,
            "positions": positions,
            "loss_mask": mask,
            "labels": labels,
            "cu_seqlens": bounds,
        },
        ids=ids,
        epoch=int(numbers["epoch"]),
        index=int(numbers["index"]),
        bucket_id=int(numbers["bucket_id"]),
    )


def _learned(tokens: NDArray[Any], mask: NDArray[Any]) -> NDArray[Any]:
    if mask.shape != tokens.shape:
        raise NpzError("its arrays have different shapes")
    return np.where(mask != 0, tokens, tokens.dtype.type(IGNORED))


def _ids(arrays: Arrays) -> tuple[SampleId, ...]:
    ids, ends = arrays["sample_ids"], arrays.get("sample_ends")
    if ids.ndim == 1 and ends is None and ids.dtype == np.int64:
        return tuple(ids.tolist())
    if ids.ndim == 1 and ends is not None and ends.ndim == 1 and ids.dtype == np.uint8 and ends.dtype == np.int64:
        sizes = np.diff(ends, prepend=0)
        if int(sizes.min(initial=0)) >= 0 and int(sizes.sum()) == len(ids):
            try:
                return tuple(Ids.strings(ids, ends))
            except UnicodeDecodeError:
                pass
    raise NpzError("its sample ids are not readable")
