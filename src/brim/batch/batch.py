"""`Batch`: what one rank puts through one forward pass, as arrays.

A batch carries the `MicrobatchSpec` it was made from, and reads from it which samples it holds and where it stands in
the run. Its shape is that of its arrays: a batch laid out flat has other rows than its spec.

Rows of equal width. Segment ids number the sequences of a row from 1, and 0 is padding and nothing else: whether a
token counts is never read off its value, so pad = eos is harmless. Positions restart with every segment. The first
token of a segment is never a target: a model that learns to predict label t + 1 from token t learns nothing across a
boundary.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.core.fill import Fill
from brim.data.ids import SampleId
from brim.plan.epoch import MicrobatchSpec
from brim.plan.position import CheckpointPosition

IGNORED = -100
"""The label of a token that is not learned."""


@dataclass(frozen=True, eq=False, kw_only=True)
class CarriesSpec:
    """The part that batches of all frameworks share: their microbatch, and what is often asked about it."""

    spec: MicrobatchSpec

    @property
    def ids(self) -> tuple[SampleId, ...]:
        """The sample ids, one for each segment."""
        return self.spec.samples

    @property
    def epoch(self) -> int:
        return self.spec.epoch

    @property
    def index(self) -> int:
        """The place of the microbatch in the global order of its epoch."""
        return self.spec.index

    @property
    def bucket_id(self) -> int:
        return self.spec.bucket_id

    @property
    def packed(self) -> bool:
        return self.spec.packed

    @property
    def after(self) -> CheckpointPosition | None:
        """The position from which a run resumes once every rank has done this round."""
        return self.spec.after

    @property
    def ends_step(self) -> bool:
        """True if the optimizer takes its step after this batch: on all ranks, or on none."""
        return self.spec.ends_step

    @property
    def is_null(self) -> bool:
        """True for an empty batch, one token of padding, which is there only so that no rank waits for another."""
        return self.spec.is_null


@dataclass(frozen=True, eq=False)
class Batch(CarriesSpec):
    """Arrays of [rows, width]; `cu_seqlens` of [segments + 1] are the boundaries of the segments when padding is left
    out.
    """

    tokens: NDArray[np.integer[Any]]
    segment_ids: NDArray[np.int32]  # 0 = padding
    positions: NDArray[np.integer[Any]]
    loss_mask: NDArray[np.uint8]
    labels: NDArray[np.integer[Any]]  # IGNORED where loss_mask is 0
    cu_seqlens: NDArray[np.int32]

    @property
    def shape(self) -> tuple[int, int]:
        return (self.tokens.shape[0], self.tokens.shape[1])

    @property
    def batch_size(self) -> int:
        return self.tokens.shape[0]

    @property
    def max_len(self) -> int:
        return self.tokens.shape[1]

    @property
    def lengths(self) -> NDArray[np.int32]:
        """The length of each segment."""
        return np.diff(self.cu_seqlens)

    @property
    def longest(self) -> int:
        """The length of the longest segment."""
        return int(self.lengths.max(initial=0))

    @property
    def num_loss_tokens(self) -> int:
        """How many labels count."""
        return int(np.count_nonzero(self.loss_mask))

    @property
    def fill(self) -> Fill:
        return Fill(0, 0) if self.is_null else Fill(int(self.cu_seqlens[-1]), self.tokens.size)

    def flat(self) -> "Batch":
        """The same segments end to end in one row without padding: what variable-length attention kernels take."""
        if self.batch_size == 1 and self.max_len == int(self.cu_seqlens[-1]):
            return self
        kept = self.segment_ids != 0
        if not kept.any():
            kept = np.zeros_like(kept)
            kept[:1, :1] = True  # an empty batch is one token of padding in any layout
        arrays = {name: getattr(self, name)[kept][None] for name in ("tokens", "positions", "loss_mask", "labels")}
        numbers = np.repeat(np.arange(1, len(self.ids) + 1, dtype=np.int32), self.lengths)[None]
        return replace(self, segment_ids=numbers if numbers.size else np.zeros((1, 1), np.int32), **arrays)

    # Second names, under which the files of batches and the first users of brim know these arrays.

    @property
    def input_ids(self) -> NDArray[np.integer[Any]]:
        return self.tokens

    @property
    def sample_ids(self) -> tuple[SampleId, ...]:
        return self.ids


CollatedBatch = Batch  # a second name, too
