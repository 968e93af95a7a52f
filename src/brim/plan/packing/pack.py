"""Pack sequences into rows of fixed capacity.

Packing sees lengths and nothing else: an array of lengths goes in, and for every row the indices of the sequences laid
end to end in it come out. Tokens move later, in `brim.batch`, so a corpus can be packed without reading it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import count_values
from brim.core.errors import OptionError
from brim.core.options import LONGEST, one_of
from brim.plan.config import PackingMode
from brim.plan.packing.best_fit import best_fit
from brim.plan.packing.bounds import bound_of_counts
from brim.plan.packing.checks import check_fit, checked_limits, int32, integers, misfit
from brim.plan.packing.first_fit import first_fit
from brim.plan.packing.optimal import PatternSearch
from brim.plan.packing.rows import Rows, longest_first

try:
    from brim.plan.packing import _kernel as kernel
except ImportError:  # not compiled
    kernel = None

TOLERATED, ROWS_TOLERATED = 0.005, 1
"""With AUTO, patterns are searched where best fit is further above the lower bound than this share, and than this many
rows: a single row can hardly ever be saved.
"""


def pack(
    lengths: NDArray[np.integer[Any]] | Sequence[int],
    capacity: int,
    *,
    mode: PackingMode | str = PackingMode.BEST_FIT,
    max_sequences: int | None = None,
    order: NDArray[np.integer[Any]] | Sequence[int] | None = None,
    search: PatternSearch | None = None,
) -> Rows:
    """Assign every sequence to a row so that no row exceeds `capacity`.

    The default mode here is BEST_FIT, which never searches. `PackingConfig`, and so a packed plan, defaults to AUTO,
    which searches for fewer rows, up to a time limit, where best fit needs more than a lower bound.

    `order` is the order in which sequences arrive. Except with FIRST_FIT, it only decides which of several sequences of
    one length (with patterns: of similar length) goes where, so another order gives other rows of the same quality. An
    empty sequence takes up one token. `search` has the time limit of OPTIMAL and AUTO.

    Raises:
        LengthError: A sequence is longer than `capacity`. Nothing is ever dropped here.
        OptionError: A limit is not from 1 to 2^31 - 1, a length is negative, or `order` is no permutation.

    Example:
        >>> pack(np.array([5, 3, 4, 2]), capacity=8)
        [[0, 1], [2, 3]]
    """
    capacity, max_sequences = checked_limits(capacity, max_sequences)
    lengths = integers("lengths", lengths)
    mode = mode if type(mode) is PackingMode else PackingMode(one_of("mode", mode, PackingMode))
    arrivals = None if order is None else _checked_order(integers("order", order), len(lengths))
    sizes = int32(lengths, capacity)
    most = max_sequences or LONGEST
    if mode is PackingMode.BEST_FIT:
        rows = best_fit(sizes, arrivals, capacity, most)
        if rows is None:
            raise misfit(lengths, capacity)
        return rows
    check_fit(sizes, capacity)
    sizes = np.maximum(sizes, 1)
    if mode is PackingMode.FIRST_FIT:
        return first_fit(sizes, arrivals, capacity, most)
    if mode is PackingMode.GREEDY:
        return first_fit(sizes, longest_first(sizes, arrivals), capacity, most)
    return _pack_by_patterns(sizes, arrivals, capacity, max_sequences, mode, search or PatternSearch())


def _pack_by_patterns(
    sizes: NDArray[np.int32],
    arrivals: NDArray[np.int32] | None,
    capacity: int,
    most: int | None,
    mode: PackingMode,
    search: PatternSearch,
) -> Rows:
    rows = best_fit(sizes, arrivals, capacity, most or LONGEST)
    assert rows is not None
    if mode is PackingMode.AUTO:
        bound = bound_of_counts(*count_values(sizes), capacity, most)
        if len(rows) - bound <= max(TOLERATED * bound, ROWS_TOLERATED):
            return replace(rows, bound=bound)
    by_rank = longest_first(sizes, arrivals)
    found = search.find(sizes[by_rank], capacity, most)
    if found.places is not None:
        arrival = None
        if arrivals is not None:
            arrival = np.empty(len(arrivals), np.int64)
            arrival[arrivals] = np.arange(len(arrivals))
        rows = found.places.rows(by_rank, arrival)
    return replace(rows, bound=found.bound)


def _checked_order(order: NDArray[np.integer[Any]], n: int) -> NDArray[np.int32]:
    """Check that `order` is a permutation, because the kernel does not check indices, and return it as int32."""
    right = len(order) == n and (n == 0 or (order.min() >= 0 and order.max() < n))
    places = np.ascontiguousarray(order, np.int32) if right else np.empty(0, np.int32)
    if right and kernel is not None:
        right = kernel.is_order(places)
    elif right:
        right = n == 0 or np.bincount(places, minlength=n).max() == 1
    if not right:
        raise OptionError(f"the order of {n} sequences must hold each of 0 to {n - 1} once")
    return places
