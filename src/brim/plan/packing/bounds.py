"""Lower bounds of the number of rows: no packing needs fewer.

The greatest of several is taken. All but the last are sums over the sequences, so they follow from the histogram.

- The bound L2 of Martello and Toth (1990): sequences longer than half the capacity have a row each, and, for a length
  a, those from a to half the capacity have to fit beside the ones that are not longer than the capacity less a.
- The functions u(k) of Fekete and Schepers (2001): where k + 1 sequences of a length would fill more than a row, k of
  them are counted as one.
- The number of sequences divided by the most that a row may hold.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import ceil_div, count_values
from brim.plan.packing.checks import check_fit, checked_limits, int32, integers

MOST_COUNTED = 32
"""The largest k of the functions u(k) that are tried."""


def lower_bound(
    lengths: NDArray[np.integer[Any]] | Sequence[int], capacity: int, *, max_sequences: int | None = None
) -> int:
    """Return a number of rows such that no packing needs fewer. An empty sequence takes up one token, as in `pack`.

    Raises:
        LengthError: A sequence is longer than `capacity`.
        OptionError: A limit is not from 1 to 2^31 - 1, or a length is negative or no integer.

    Example:
        >>> lower_bound(np.array([5, 5, 5]), 8), lower_bound(np.array([3, 3, 3, 3]), 8)
        (3, 2)
    """
    capacity, max_sequences = checked_limits(capacity, max_sequences)
    lengths = integers("lengths", lengths)
    check_fit(lengths, capacity)
    return bound_of_counts(*count_values(np.maximum(int32(lengths, capacity), 1)), capacity, max_sequences)


def bound_of_counts(
    values: NDArray[np.int64], counts: NDArray[np.int64], capacity: int, max_sequences: int | None = None
) -> int:
    """Return the lower bound for distinct lengths, ascending, and the number of times that each occurs."""
    if len(values) == 0:
        return 0
    by_number = 0 if max_sequences is None else ceil_div(int(counts.sum()), max_sequences)
    return max(_martello_toth(values, counts, capacity), _fekete_schepers(values, counts, capacity), by_number)


def _martello_toth(values: NDArray[np.int64], counts: NDArray[np.int64], capacity: int) -> int:
    # The number of sequences, and their sum, before each of the distinct lengths and behind the last.
    before, sums = np.append(0, np.cumsum(counts)), np.append(0, np.cumsum(counts * values))
    half = int(np.searchsorted(values, capacity // 2, side="right"))  # those from here on are longer than half
    first = np.arange(half + 1)  # the first length of at least a
    with_room = np.searchsorted(values, capacity - values[:half], side="right")
    with_room = np.append(with_room, half)
    room = (before[with_room] - before[half]) * capacity - (sums[with_room] - sums[half])
    beside = ceil_div(sums[half] - sums[first] - room, capacity)
    return int(before[-1] - before[half] + max(int(beside.max()), 0))


def _fekete_schepers(values: NDArray[np.int64], counts: NDArray[np.int64], capacity: int) -> int:
    bounds: list[int] = []
    for k in range(1, MOST_COUNTED + 1):
        times, rest = np.divmod((k + 1) * values, capacity)
        whole = int((counts * values)[rest == 0].sum())
        counted = int((counts * times)[rest != 0].sum())
        bounds.append(ceil_div(counted * capacity + whole * k, k * capacity))
    return max(bounds)
