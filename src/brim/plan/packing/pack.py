"""Pack sequences into rows of fixed capacity.

Packing sees lengths and nothing else: an array of lengths goes in, and for every row the indices of the sequences laid
end to end in it come out. Tokens move later, in `brim.batch`, so a corpus can be packed without reading it.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import LengthError, OptionError
from brim.core.options import one_of
from brim.plan.config import PackingMode
from brim.plan.packing.best_fit import best_fit
from brim.plan.packing.bounds import lower_bound
from brim.plan.packing.first_fit import first_fit
from brim.plan.packing.optimal import PatternSearch
from brim.plan.packing.rows import Rows, longest_first

try:
    from brim.plan.packing import _kernel as kernel
except ImportError:  # not compiled
    kernel = None

INT32 = np.dtype(np.int32)
UNLIMITED = 2**31 - 1
TOLERATED, ROWS_TOLERATED = 0.005, 1
"""With AUTO, patterns are searched where best fit is further above the lower bound than this share, and than this many
rows: a single row can hardly ever be saved.
"""


def pack(
    lengths: NDArray[np.integer[Any]],
    capacity: int,
    *,
    mode: PackingMode | str = PackingMode.BEST_FIT,
    max_sequences: int | None = None,
    order: NDArray[np.integer[Any]] | None = None,
    search: PatternSearch | None = None,
) -> Rows:
    """Assign every sequence to a row so that no row exceeds `capacity`.

    `order` is the order in which sequences arrive. Except with FIRST_FIT, it only decides which of several sequences of
    one length (with patterns: of similar length) goes where, so another order gives other rows of the same quality. An
    empty sequence takes up one token. `search` has the time limit of OPTIMAL and AUTO.

    Raises:
        LengthError: A sequence is longer than `capacity`. Nothing is ever dropped here.

    Example:
        >>> pack(np.array([5, 3, 4, 2]), capacity=8)
        [[0, 1], [2, 3]]
    """
    if not 1 <= capacity <= UNLIMITED:
        raise OptionError(f"the capacity of a row must be from 1 to {UNLIMITED}, got {capacity}")
    if len(lengths) > UNLIMITED:
        raise OptionError(f"{len(lengths)} sequences are more than one call can pack; pack them in parts")
    if max_sequences is not None and max_sequences < 1:
        raise OptionError(f"max_sequences must be at least 1, got {max_sequences}")
    mode = mode if type(mode) is PackingMode else PackingMode(one_of("mode", mode, PackingMode))
    arrivals = None if order is None else _checked_order(order, len(lengths))
    sizes = _int32(lengths, capacity)
    most = UNLIMITED if max_sequences is None else min(max_sequences, UNLIMITED)
    if mode is PackingMode.BEST_FIT:
        rows = best_fit(sizes, arrivals, capacity, most)
        if rows is None:
            raise _misfit(lengths, capacity)
        return rows
    if len(sizes) and (sizes.min() < 0 or sizes.max() > capacity):
        raise _misfit(lengths, capacity)
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
    rows = best_fit(sizes, arrivals, capacity, most or UNLIMITED)
    assert rows is not None
    if mode is PackingMode.AUTO:
        bound = lower_bound(sizes, capacity, max_sequences=most)
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


def _int32(lengths: NDArray[np.integer[Any]], capacity: int) -> NDArray[np.int32]:
    """Return the lengths as 32-bit integers. Wider ones are checked first, so that none is cut off."""
    if lengths.dtype == INT32:
        return np.ascontiguousarray(lengths, INT32)
    if lengths.dtype.kind not in "iu" and len(lengths):
        raise OptionError(f"lengths must be integers, got an array of {lengths.dtype}")
    if len(lengths) and (lengths.min() < 0 or lengths.max() > capacity):
        raise _misfit(lengths, capacity)
    return np.ascontiguousarray(lengths, INT32)


def _misfit(lengths: NDArray[np.integer[Any]], capacity: int) -> OptionError | LengthError:
    if lengths.min() < 0:
        return OptionError(f"lengths must not be negative, got {lengths.min()}")
    longest = int(lengths.argmax())
    return LengthError(f"sequence {longest} has {lengths[longest]} tokens and does not fit in a row of {capacity}")
