"""Packed rows with their tokens.

A row holds whole sequences end to end. `segment_ids` number them from 1; 0 always means padding. Positions restart with
every segment, and the first token of a segment is never a target, so that after the usual shift of the labels no
sequence is trained to predict the next one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from brim.batch.collate import lay_out
from brim.core.errors import DataError, LengthError
from brim.core.fill import Fill
from brim.data.ids import SampleId
from brim.data.sample import Sample
from brim.data.token_store import TokenStore
from brim.plan.config import PackingConfig
from brim.plan.packing.bounds import lower_bound
from brim.plan.packing.metrics import PackingMetrics
from brim.plan.packing.optimal import PatternSearch
from brim.plan.packing.pack import pack


@dataclass(frozen=True, eq=False)
class PackedSequence:
    """One packed row. All arrays have the row's length."""

    input_ids: NDArray[np.int32]
    loss_mask: NDArray[np.uint8]
    segment_ids: NDArray[np.int32]  # 0 = padding
    positions: NDArray[np.int32]
    sample_ids: tuple[SampleId, ...]
    sample_lengths: tuple[int, ...]
    capacity: int | None = None
    """The most tokens that a row may have, if it is known."""

    @property
    def length(self) -> int:
        return len(self.input_ids)

    @property
    def num_segments(self) -> int:
        return len(self.sample_ids)

    @property
    def cu_seqlens(self) -> NDArray[np.int32]:
        """Starts of the segments, and the end of the last one, as variable-length attention kernels expect."""
        return np.cumsum([0, *self.sample_lengths], dtype=np.int32)

    @property
    def fill(self) -> Fill:
        return Fill(sum(self.sample_lengths), self.length)

    @property
    def efficiency(self) -> float:
        return self.fill.ratio


def pack_sequences(
    samples: Iterable[Sample], config: PackingConfig | None = None, *, pad_id: int = 0
) -> list[PackedSequence]:
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
            f"sample {longest.id!r} has {longest.length} tokens and does not fit in a row of {config.max_length}; "
            f"raise max_length, or cut "
            'long samples in a plan: BatchingConfig(packing=..., overflow="truncate")'
        )
    for sample in samples:
        if sample.segment_ids is not None:
            raise DataError(f"sample {sample.id!r} has segments of its own; pack the samples it was made of instead")
    rows = pack(
        lengths,
        config.max_length,
        mode=config.mode,
        max_sequences=config.max_sequences,
        search=PatternSearch(config.time_limit),
    )
    store = TokenStore.from_samples(samples)
    return [_packed(samples, store, row, config, pad_id) for row in rows]


def _packed(
    samples: Sequence[Sample], store: TokenStore, row: NDArray[np.int32], config: PackingConfig, pad_id: int
) -> PackedSequence:
    """Return one packed row, laid out like a batch of one row."""
    lengths = store.lengths[row]
    spans = store.spans(row, np.zeros(len(row), np.int32), lengths)
    shape = (1, config.max_length if config.pad_to_max else int(lengths.sum()))
    made = lay_out(spans, lengths, np.array([0, len(row)]), shape, pad_id)
    return PackedSequence(
        input_ids=made.tokens[0],
        loss_mask=made.loss_mask[0],
        segment_ids=made.segment_ids[0],
        positions=made.positions[0],
        sample_ids=tuple(samples[number].id for number in row.tolist()),
        sample_lengths=tuple(lengths.tolist()),
        capacity=config.max_length,
    )


def compute_packing_metrics(packed: Sequence[PackedSequence]) -> PackingMetrics:
    """Compute the metrics of packed rows, such as how full they are."""
    fill = sum((row.fill for row in packed), Fill())
    lengths = np.array([length for row in packed for length in row.sample_lengths], np.int64)
    capacities = {row.capacity for row in packed}
    capacity = capacities.pop() if len(capacities) == 1 else None
    return PackingMetrics(
        num_sequences=len(lengths),
        num_rows=len(packed),
        fill=fill,
        lower_bound=None if capacity is None else lower_bound(lengths, capacity),
    )
