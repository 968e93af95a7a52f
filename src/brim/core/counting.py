"""How often each number occurs."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

DENSE = 1 << 22
"""Up to here a table with a place for every number is small."""


def count_values(values: NDArray[np.integer[Any]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct values, ascending, and how often each occurs. One huge value among small ones costs no memory.

    Example:
        >>> count_values(np.array([5, 3, 5]))
        (array([3, 5]), array([1, 2]))
    """
    if len(values) and int(values.min()) >= 0 and int(values.max()) < max(DENSE, 4 * len(values)):
        table = np.bincount(values)
        distinct = np.flatnonzero(table)
        return distinct, table[distinct]
    distinct, counts = np.unique(values, return_counts=True)
    return distinct.astype(np.int64), counts.astype(np.int64)


def merge_counts(values: NDArray[np.int64], counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The same for values that ascend but may repeat, each with a count of its own."""
    first = np.flatnonzero(np.diff(values, prepend=values[0] - 1)) if len(values) else np.empty(0, np.int64)
    return values[first], np.add.reduceat(counts, first) if len(first) else counts
