"""Collate a planned microbatch into arrays.

Sequences are copied once, from the token store to their place in the batch, several to a row where rows are packed.
Segments and positions follow from the lengths in the plan, labels from the loss mask; nothing is guessed from token
values.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from brim.batch.batch import IGNORED, Batch
from brim.batch.buffers import INT32, Memory, empty_arrays
from brim.core.errors import DataError, LengthError, OptionError
from brim.core.options import LONGEST
from brim.data.sample import Sample
from brim.data.token_store import Spans, TokenSource, TokenStore
from brim.plan.epoch import MicrobatchSpec

try:
    from brim.batch import _kernel as kernel
except ImportError:  # not compiled: `_fill` does the same
    kernel = None

INT64 = np.dtype(np.int64)

Integers = NDArray[np.integer[Any]]

LOWEST = -LONGEST - 1
"""The smallest pad id."""

KINDS = {np.dtype(np.uint16): "H", np.dtype(np.uint32): "I", np.dtype(np.int32): "i"}
"""The kernel's codes for the token types that it can read."""


class LaidOut(NamedTuple):
    """The arrays of a `Batch`, and what was counted while they were filled."""

    tokens: NDArray[Any]
    segment_ids: NDArray[np.int32]
    positions: NDArray[Any]
    loss_mask: NDArray[np.uint8]
    labels: NDArray[Any]
    cu_seqlens: NDArray[np.int32]
    num_tokens: int  # without padding
    longest: int
    num_loss_tokens: int


def collate(
    microbatch: MicrobatchSpec,
    source: TokenSource,
    *,
    pad_id: int | None = None,
    dtype: type[Any] = np.int32,
    flat: bool = False,
    buffers: Memory | None = None,
) -> Batch:
    """Return the arrays of a microbatch. `dtype` is that of tokens, labels and positions: np.int32 or np.int64.

    `flat` lays all sequences end to end in one row without padding, for attention that keeps segments apart by
    `cu_seqlens`. An empty microbatch becomes one token of padding, which is not trained on. `buffers`, such as
    `Buffers(4, allocate)`, gives the memory of the batch, which is then overwritten by the fourth batch after it.

    Raises:
        MismatchError: A row is shorter than the plan says: the plan was built for other data.
    """
    made = arrange(microbatch, source, pad_id=pad_id, dtype=np.dtype(dtype), flat=flat, memory=buffers)
    return Batch(*made[:6], spec=microbatch)


def arrange(
    microbatch: MicrobatchSpec,
    source: TokenSource,
    *,
    pad_id: int | None = None,
    dtype: np.dtype[Any] = INT32,
    flat: bool = False,
    shape: tuple[int, int] | None = None,
    memory: Memory | None = None,
) -> LaidOut:
    """Return the arrays and counts of a microbatch, without a `Batch` around them; see `collate`.

    `shape` may be larger than that of the microbatch: what it does not fill holds padding only.
    """
    if dtype not in (INT32, INT64):
        raise OptionError(f"dtype must be int32 or int64, got {dtype}")
    lengths, row_ptr = microbatch.lengths, microbatch.row_ptr
    spans = source.spans(microbatch.indices, microbatch.starts, lengths)
    if flat:
        row_ptr = np.array([0, len(lengths)])
    if shape is None:
        shape = (1, 1) if microbatch.is_null else microbatch.shape
        if flat:
            shape = (1, max(int(lengths.sum()), 1))
    return lay_out(spans, lengths, row_ptr, shape, source.pad_id if pad_id is None else pad_id, dtype, memory)


def default_collate(
    samples: Sequence[Sample], max_len: int | None = None, pad_id: int = 0, *, dtype: type[Any] = np.int32
) -> Batch:
    """Collate samples, one to a row, padded on the right to `max_len`, by default to the longest.

    Raises:
        LengthError: A sample is longer than `max_len`. Nothing is ever cut off here.
    """
    if not samples:
        raise DataError("there are no samples to collate")
    store = TokenStore.from_samples(samples)
    longest = int(store.lengths.max())
    width = longest if max_len is None else max_len
    if longest > width:
        sample = samples[int(store.lengths.argmax())]
        raise LengthError(
            f"sample {sample.id!r} has {longest} tokens and does not fit in {width}; raise max_len, or cut it before"
        )
    spec = MicrobatchSpec.unplanned((sample.id for sample in samples), store.lengths, width)
    return collate(spec, store, pad_id=pad_id, dtype=dtype)


def pad_sequences(
    sequences: Sequence[ArrayLike], pad_value: int = 0, max_length: int | None = None, dtype: type[Any] = np.int32
) -> NDArray[Any]:
    """Stack sequences of uneven length, padded on the right to `max_length`, by default to the longest.

    Raises:
        LengthError: A sequence is longer than `max_length`.
    """
    rows = [np.asarray(sequence) for sequence in sequences]
    longest = max((len(row) for row in rows), default=0)
    width = longest if max_length is None else max_length
    if longest > width:
        raise LengthError(f"a sequence of {longest} does not fit in {width}; raise max_length, or cut it before")
    padded = np.full((len(rows), width), pad_value, dtype)
    for place, row in zip(padded, rows, strict=True):
        place[: len(row)] = row
    return padded


def lay_out(
    spans: Spans,
    lengths: Integers,
    row_ptr: Integers,
    shape: tuple[int, int],
    pad_id: int,
    dtype: np.dtype[Any] = INT32,
    memory: Memory | None = None,
) -> LaidOut:
    """Lay sequences out in rows and return the arrays of a `Batch`, with what was counted.

    Row r holds sequences `row_ptr[r]` to `row_ptr[r + 1]`, end to end.
    """
    if not LOWEST <= pad_id <= LONGEST:
        raise OptionError(f"pad_id must be an integer of 32 bits, got {pad_id!r}")
    if spans.learned.itemsize != 1:
        raise DataError(f"the loss mask is of {spans.learned.dtype}; a token source has a mask of uint8")
    arrays = empty_arrays(shape, len(lengths), dtype, memory)
    kind = KINDS.get(spans.tokens.dtype)
    if kernel is not None and kind is not None:
        lengths, row_ptr = np.ascontiguousarray(lengths, INT32), np.ascontiguousarray(row_ptr, INT64)
        counts = kernel.lay_out(*spans, lengths, row_ptr, kind, *shape, pad_id, IGNORED, *arrays)
    else:
        counts = _fill(spans, lengths, row_ptr, pad_id, *arrays)
    return LaidOut(*arrays, *counts)


def _fill(
    spans: Spans,
    lengths: Integers,
    row_ptr: Integers,
    pad_id: int,
    tokens: Any,
    segment_ids: Any,
    positions: Any,
    loss_mask: Any,
    labels: Any,
    cu_seqlens: Any,
) -> tuple[int, int, int]:
    """Fill the arrays as the kernel does, and return its counts: tokens, the longest sequence, trained-on tokens.

    The first token of a segment is never a target, so its mask stays 0.
    """
    width, sizes = tokens.shape[1], np.diff(row_ptr)
    begins = np.cumsum(lengths, dtype=np.int64) - lengths
    rows_begin = np.repeat(begins[row_ptr[:-1]], sizes) if len(begins) else begins
    place = np.repeat(np.arange(len(sizes)), sizes) * width + begins - rows_begin
    number = np.arange(len(lengths)) - np.repeat(row_ptr[:-1], sizes) + 1
    for array, padding in ((tokens, pad_id), (segment_ids, 0), (positions, 0), (loss_mask, 0), (labels, IGNORED)):
        array.fill(padding)
    source_tokens, source_learned, begin = spans
    to_tokens, to_segment_ids, to_positions, to_mask = (
        array.reshape(-1) for array in (tokens, segment_ids, positions, loss_mask)
    )
    ramp = np.arange(int(lengths.max(initial=0)), dtype=positions.dtype)
    for start, segment, source, size in zip(
        place.tolist(), number.tolist(), begin.tolist(), lengths.tolist(), strict=True
    ):
        end = start + size
        to_tokens[start:end] = source_tokens[source : source + size]
        to_mask[start + 1 : end] = source_learned[source + 1 : source + size]
        to_segment_ids[start:end] = segment
        to_positions[start:end] = ramp[:size]
    np.copyto(labels, tokens, where=loss_mask.view(np.bool_))
    cu_seqlens[0] = 0
    np.cumsum(lengths, out=cu_seqlens[1:])
    return int(cu_seqlens[-1]), len(ramp), int(np.count_nonzero(loss_mask))
