"""`Batch`: the arrays of one forward pass on one rank.

A batch carries the `MicrobatchSpec` it was made from, which says what samples it holds and where it is in the run. Its
shape is that of its arrays: a batch laid out flat has other rows than its spec.

All rows have the same width. Segment ids number the sequences of a row from 1, and 0 always means padding: whether a
token is trained on is never inferred from its value, so a pad id equal to eos is harmless. Positions restart with every
segment. The first token of a segment is never a target, so a model that predicts label t + 1 from token t learns
nothing across a boundary.
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
"""The label of a token that is not trained on."""


@dataclass(frozen=True, eq=False, kw_only=True)
class CarriesSpec:
    """Base class of the batches of all frameworks: their microbatch, and shortcuts to its properties."""

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
        """True if the optimizer takes its step after this batch; the same on all ranks."""
        return self.spec.ends_step

    @property
    def is_null(self) -> bool:
        """True for an empty batch, one token of padding, which is there only so that no rank waits for another."""
        return self.spec.is_null


@dataclass(frozen=True, eq=False)
class Batch(CarriesSpec):
    """A batch as NumPy arrays of [rows, width].

    `cu_seqlens`, of [segments + 1], holds the boundaries of the segments when padding is left out.
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
        """Number of trained-on tokens: labels that are not IGNORED."""
        return int(np.count_nonzero(self.loss_mask))

    @property
    def fill(self) -> Fill:
        return Fill(0, 0) if self.is_null else Fill(int(self.cu_seqlens[-1]), self.tokens.size)

    def flat(self) -> "Batch":
        """Return the same segments end to end in one row without padding, as variable-length kernels expect."""
        if self.batch_size == 1 and self.max_len == int(self.cu_seqlens[-1]):
            return self
        kept = self.segment_ids != 0
        if not kept.any():
            kept = np.zeros_like(kept)
            kept[:1, :1] = True  # an empty batch is one token of padding in any layout
        arrays = {name: getattr(self, name)[kept][None] for name in ("tokens", "positions", "loss_mask", "labels")}
        numbers = np.repeat(np.arange(1, len(self.ids) + 1, dtype=np.int32), self.lengths)[None]
        return replace(self, segment_ids=numbers if numbers.size else np.zeros((1, 1), np.int32), **arrays)

    # Aliases: the names of these arrays in files of batches and in older code.

    @property
    def input_ids(self) -> NDArray[np.integer[Any]]:
        return self.tokens

    @property
    def sample_ids(self) -> tuple[SampleId, ...]:
        return self.ids


CollatedBatch = Batch  # an alias, too
