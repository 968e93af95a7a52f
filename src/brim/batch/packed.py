"""Packed rows with their tokens.

A row holds whole sequences end to end. `segment_ids` number them from 1; 0 is padding and nothing else. Positions restart with every
segment, and the first token of a segment is never a target, so that after the usual shift no sequence learns to predict the next one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import DataError, LengthError
from brim.core.fill import Fill
from brim.data.ids import SampleId
from brim.data.sample import Sample
from brim.plan.packing import PackingConfig, PackingMetrics, pack


@dataclass(frozen=True, eq=False)
class PackedSequence:
    """One packed row. All arrays have the row's length."""

    input_ids: NDArray[np.int32]
    loss_mask: NDArray[np.uint8]
    segment_ids: NDArray[np.int32]  # 0 = padding
    positions: NDArray[np.int32]
    sample_ids: tuple[SampleId, ...]
    sample_lengths: tuple[int, ...]

    @property
    def length(self) -> int:
        return len(self.input_ids)

    @property
    def num_segments(self) -> int:
        return len(self.sample_ids)

    @property
    def cu_seqlens(self) -> NDArray[np.int32]:
        """Where segments begin, and where the last one ends: what variable-length attention kernels take."""
        return np.cumsum([0, *self.sample_lengths], dtype=np.int32)

    @property
    def fill(self) -> Fill:
        return Fill(sum(self.sample_lengths), self.length)

    @property
    def efficiency(self) -> float:
        return self.fill.ratio


def pack_sequences(samples: Iterable[Sample], config: PackingConfig | None = None, *, pad_id: int = 0) -> list[PackedSequence]:
    """Pack samples into rows. Every sample is in exactly one row, whole.

    Raises:
        LengthError: A sample is longer than `config.max_length`.
        DataError: A sample is packed already.
    """
    config, samples = config or PackingConfig(), list(samples)
    lengths = np.array([sample.length for sample in samples], np.int32)
    if len(samples) and lengths.max() > config.max_length:
        longest = samples[int(lengths.argmax())]
        raise LengthError(
            f"sample {longest.id!r} has {longest.length} tokens and does not fit in a row of {config.max_length}; raise max_length, or cut "
            'long samples in a plan: BatchingConfig(packing=..., overflow="truncate")'
        )
    for sample in samples:
        if sample.segment_ids is not None:
            raise DataError(f"sample {sample.id!r} has segments of its own; pack the samples it was made of instead")
    rows = pack(lengths, config.max_length, mode=config.mode, max_sequences=config.max_sequences)
    return [_lay_out([samples[i] for i in row.tolist()], config.max_length if config.pad_to_max else 0, pad_id) for row in rows]


def _lay_out(samples: Sequence[Sample], width: int, pad_id: int) -> PackedSequence:
    lengths = tuple(sample.length for sample in samples)
    width = max(width, sum(lengths))
    input_ids = np.full(width, pad_id, np.int32)
    loss_mask, segment_ids, positions = np.zeros(width, np.uint8), np.zeros(width, np.int32), np.zeros(width, np.int32)
    end = 0
    for number, sample in enumerate(samples, 1):
        start, end = end, end + sample.length
        input_ids[start:end] = sample.input_ids
        loss_mask[start:end] = sample.loss_mask
        loss_mask[start : start + 1] = 0
        segment_ids[start:end] = number
        positions[start:end] = np.arange(sample.length)
    return PackedSequence(input_ids, loss_mask, segment_ids, positions, tuple(sample.id for sample in samples), lengths)


def compute_packing_metrics(packed: Sequence[PackedSequence]) -> PackingMetrics:
    """How full the rows are."""
    fill = sum((row.fill for row in packed), Fill())
    return PackingMetrics(num_sequences=sum(row.num_segments for row in packed), num_rows=len(packed), fill=fill)
