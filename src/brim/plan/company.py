"""The share of pairs of samples in a microbatch that meet again in the next epoch: how random their company is.

Sorted windows put samples of similar length together, so some pairs share a microbatch in epoch after epoch. The fewer
microbatches a window has, the fewer pairs do; see `BatchingConfig.window_padding`.
"""

import numpy as np
from numpy.typing import NDArray

from brim.plan.epoch_columns import EpochColumns

LOOKED_AT = 1 << 22
"""Sequences whose company is looked at: those of the first microbatches, which are a random sample of all."""


def meet_again(epoch: EpochColumns, following: EpochColumns, num_units: int) -> float:
    """Return the share of the pairs of sequences in a microbatch that also share one in the following epoch.

    0 if no microbatch has two sequences. Sequences that the following epoch leaves out count as pairs that do not.
    """
    microbatch, later = microbatch_of(epoch, LOOKED_AT), np.full(num_units, -1, np.int64)
    later[following.unit] = microbatch_of(following, len(following.unit))
    units = epoch.unit[: len(microbatch)]
    kept = later[units] >= 0
    both = np.sort(microbatch[kept] * len(following) + later[units][kept])
    runs = np.diff(np.flatnonzero(np.diff(both, prepend=-1, append=-1)))
    pairs = _pairs(np.bincount(microbatch))
    return _pairs(runs) / pairs if pairs else 0.0


def microbatch_of(epoch: EpochColumns, most: int) -> NDArray[np.int64]:
    """Return the number of the microbatch of each sequence, in their order; of whole microbatches with about `most`
    sequences.
    """
    ptr = epoch.row_ptr if epoch.seq_ptr is None else epoch.seq_ptr[epoch.row_ptr]
    count = max(int(np.searchsorted(ptr, most, side="right")) - 1, min(1, len(epoch)))
    return np.repeat(np.arange(count), np.diff(ptr[: count + 1]))


def _pairs(sizes: NDArray[np.int64]) -> int:
    """Return the number of pairs in groups of these sizes."""
    return int((sizes * (sizes - 1) // 2).sum())
