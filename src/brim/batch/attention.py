"""Attention that keeps segments apart without a mask of length x length.

Three forms of the same rule (a token attends to its own segment, and to nothing after it):

    cu_seqlens    for variable-length kernels, such as flash-attention's; `segment_attention` is one in plain PyTorch
    BlockMask     for flex_attention, made from the boundaries alone
    dense mask    `brim.batch.masks`, for models that support nothing else

This module imports torch.
"""

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from brim.batch.batch import Batch
from brim.core.arrays import ceil_div
from brim.core.errors import OptionError
from brim.core.extras import need

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = need("torch", extra="torch", user="brim.batch.attention")

NAME = "brim_segments"
"""Name of `segment_attention` in transformers: `model.set_attn_implementation(NAME)`."""

BLOCK = 128

CHANGES = {
    "softcap": "caps its attention scores",
    "s_aux": "has attention sinks",
    "position_bias": "adds a bias to its attention scores",
}
"""Arguments by which models of transformers change what attention computes, and their description in messages."""


def register() -> str:
    """Register `segment_attention` with transformers, and return its name. Registering again changes nothing."""
    transformers = need("transformers", extra="hf", user="brim.batch.attention")
    transformers.AttentionInterface.register(NAME, segment_attention)
    return NAME


def segment_attention(
    module: Any,
    query: "Tensor",  # [rows, heads, length, size]
    key: "Tensor",
    value: "Tensor",
    attention_mask: "Tensor | None" = None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    cu_seq_lens_q: "Tensor | None" = None,
    sliding_window: int | None = None,
    **others: Any,
) -> "tuple[Tensor, None]":
    """Compute causal attention inside each segment of one flat row; without `cu_seq_lens_q`, inside each row.

    PyTorch's fused kernel is called once for each segment: memory grows with the longest segment, time with the sum of
    the squared segment lengths and not with the square of the row. The signature is the one that transformers requires
    of an attention function.

    Raises:
        OptionError: The model needs something else (a mask, modified scores, attention that is not causal, cached
            keys), or the segments do not match the batch.
    """
    for name, what in CHANGES.items():
        if others.get(name) is not None:
            raise OptionError(f"this model {what}, which brim's attention does not; choose --attention eager")
    if attention_mask is not None:
        raise OptionError(
            "brim's attention takes no mask: segments are told by cu_seq_lens_q, padding belongs at the end of a row"
        )
    if not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        raise OptionError("brim's attention is causal, this model's is not; choose --attention eager")
    if key.shape[2] != query.shape[2]:
        raise OptionError(
            f"brim's attention is for training: {query.shape[2]} new tokens cannot attend to {key.shape[2]} cached "
            f"ones; before "
            'generating, call model.set_attn_implementation("sdpa")'
        )
    bounds = [0, query.shape[2]] if cu_seq_lens_q is None else cu_seq_lens_q.tolist()
    if bounds[-1] != query.shape[2] or (len(bounds) > 2 and query.shape[0] != 1):
        raise OptionError(
            f"segments end at {bounds[-1]}, but the batch is {query.shape[0]} rows of {query.shape[2]} tokens; it "
            "must be one row"
        )
    sizes = [end - start for start, end in pairwise(bounds) if end > start]
    # Split, not sliced: the gradient of a split is one concatenation, that of each slice a tensor of the whole row.
    segments = zip(query.split(sizes, dim=2), key.split(sizes, dim=2), value.split(sizes, dim=2), strict=True)
    attended = [_attend(q, k, v, sliding_window, dropout, scaling) for q, k, v in segments]
    return torch.cat(attended, dim=2).transpose(1, 2), None  # [rows, length, heads, size]


def _attend(
    query: "Tensor", key: "Tensor", value: "Tensor", window: int | None, dropout: float, scaling: float | None
) -> "Tensor":
    size = query.shape[2]
    band = None if window is None or size <= window else _band(size, window, query.device)
    return torch.nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=band,
        dropout_p=dropout,
        scale=scaling,
        is_causal=band is None,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def _band(size: int, window: int, device: Any) -> "Tensor":
    at = torch.arange(size, device=device)
    back = at[:, None] - at[None, :]
    return (back >= 0) & (back < window)


def block_mask(batch: Batch, device: Any = "cpu", *, block: int = BLOCK) -> Any:
    """Return a `BlockMask` for flex_attention over the batch as it is laid out, padded or packed, in rows or flat.

    The blocks of keys that a block of queries attends to follow from the first and last segment of each block, so no
    array of length x length is made: only [rows, length] and [rows, blocks, blocks]. Padding attends to nothing.
    """
    flex = need("torch.nn.attention.flex_attention", extra="torch", user="brim.batch.attention.block_mask")
    rows, width = batch.shape
    blocks = ceil_div(width, block)
    segments = np.zeros((rows, blocks * block), np.int32)
    segments[:, :width] = batch.segment_ids
    first, last = segments.reshape(rows, blocks, block)[:, :, 0], segments.reshape(rows, blocks, block).max(axis=2)
    at = np.arange(blocks)
    # Segment ids ascend along a row and padding comes last: a block holds segments first..last, or nothing if its first
    # token is padding.
    needed = (
        (last[:, None, :] >= first[:, :, None])
        & (first[:, :, None] > 0)
        & (first[:, None, :] > 0)
        & (at[:, None] >= at[None, :])
    )
    # Full blocks need no mask: queries and keys are in one segment from end to end, and all keys before the queries.
    same = segments.reshape(rows, blocks, block)
    whole = (same.min(axis=2) == last) & (last > 0)
    full = (
        needed
        & whole[:, :, None]
        & whole[:, None, :]
        & (first[:, :, None] == first[:, None, :])
        & (at[:, None] > at[None, :])
    )
    partial = needed & ~full
    ids = torch.from_numpy(segments).to(device)

    def allowed(b: Any, _head: Any, q: Any, k: Any) -> Any:
        return (ids[b, q] == ids[b, k]) & (ids[b, q] != 0) & (q >= k)

    def columns(of: Any) -> "tuple[Tensor, Tensor]":
        counts = of.sum(axis=2, dtype=np.int32)
        order = np.argsort(~of, axis=2, kind="stable").astype(np.int32)
        return torch.from_numpy(counts[:, None]).to(device), torch.from_numpy(order[:, None]).to(device)

    return flex.BlockMask.from_kv_blocks(
        *columns(partial), *columns(full), BLOCK_SIZE=block, mask_mod=allowed, seq_lengths=(width, width)
    )
