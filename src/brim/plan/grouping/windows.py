"""Sorted windows: rows of one kind are dealt to windows at random, and sorted by width inside each, widest first.

The size of the windows decides between two things that cannot both be had. In a window of N microbatches, about
ln(widest / narrowest) / (2 N) of the slots are padding, so large windows waste less; two samples can only meet in every
epoch if they are in the same window in every epoch, so small windows mix better. `count_windows` makes the windows as
small as a given share of padding allows. It looks at the histogram of the widths, so all epochs have the same number.

How the default, one per cent of padding, was chosen: benchmarks/padding.py shows that from 3,000 microbatches on an
epoch can have 18 windows (`ENOUGH`), so that 2 to 5% of the pairs of a microbatch meet again in the next epoch, and
still at most 1.2% of padding, for lognormal, Pareto, bimodal and real lengths. Half of that padding would take windows
twice as large, in which pairs meet twice as often; with twice that padding, few fewer pairs meet again.

A row's window, its width and random bits that order equal widths are packed into one 64-bit word with its number, and
one sort of these words puts all rows in their places: no row is looked up anywhere.
"""

from bisect import bisect_right
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import ceil_div, count_values, offsets, order_by
from brim.core.rng import below, permutation, raw_blocks
from brim.plan.config import WINDOW_PADDING

SMALLEST, FEWEST = 128, 4
"""Fewest microbatches of a window whose size is chosen here: the last microbatch of each window is not full. `SMALLEST`
is for the default padding or less; where more is allowed, windows can be smaller, down to `FEWEST`.
"""
LEEWAY = 1.2
"""Windows may have this factor more padding than asked for where the budget cuts them: cutting them at a price
(`brim.plan.grouping.cutting`) takes that away again.
"""
RECUT = 2.6
"""The same factor for windows of `LARGEST` microbatches or more, and for the `ENOUGH` windows of a long epoch. Only
lengths with long tails have so much padding where the budget cuts them, and cutting at a price helps them most.
"""
LARGEST = 200
"""Microbatches of a window that may have `RECUT` times the padding before it is cut at a price."""
MANY, ENOUGH = 2780, 18
"""An epoch with `MANY` microbatches has `ENOUGH` windows if `RECUT` allows it: then at most 5% of the pairs meet again
in the next epoch. Cutting at a price adds up to 8% of microbatches, so all epochs that end up with 3,000 are included.
"""
COUNTED = 4096
"""Microbatches of an epoch are counted one by one up to about this number."""
BLOCK = 1 << 16


class Windows(NamedTuple):
    """Rows in windows: window i is `order[bounds[i]:bounds[i + 1]]`, and no window is empty."""

    order: NDArray[np.int32]
    width: NDArray[np.int32]  # of the rows, in this order
    bounds: NDArray[np.int64]


class Limits(NamedTuple):
    """The limits of a microbatch: its slots, and its rows."""

    budget: int
    rows: int


def sort_windows(
    width: NDArray[np.int32],
    kind: NDArray[np.int32] | None,
    counts: NDArray[np.int64],
    *,
    equal: bool = False,
    seed: int,
    epoch: int,
) -> Windows:
    """Deal rows to windows, uniformly at random, and sort each by width, widest first; equal widths in random order.

    `counts` has the number of windows of each kind. Windows are in the order of the kinds. Their sizes are random,
    which does not matter where they are large; with `equal` they differ by one row at most, for another sort.
    """
    n, first = len(width), offsets(counts)
    widest = int(width.max(initial=0))
    bits = Bits.of(n, widest, int(first[-1]))
    words = np.empty(n, np.uint64)
    high = np.empty(n if bits.tie < 0 else 0, np.uint64)
    dealt = _deal_equally(n, kind, counts, seed=seed, epoch=epoch) if equal else None
    for start, random in raw_blocks(n, BLOCK, seed=seed, purpose="group", epoch=epoch):
        here = slice(start, start + len(random))
        mine = 0 if kind is None else kind[here]
        inside = below(random, counts[mine].astype(np.uint64)) if dealt is None else dealt[here]
        window = inside + first[mine].astype(np.uint64)
        narrowness = (widest - width[here]).astype(np.uint64)
        row = np.arange(start, start + len(random), dtype=np.uint64)
        if bits.tie < 0:
            high[here] = window << np.uint64(32) | narrowness
            words[here] = (random & np.uint64(0xFFFFFFFF)) << np.uint64(32) | row
            continue
        tie = (random & np.uint64(0xFFFFFFFF)) >> np.uint64(32 - bits.tie)
        words[here] = ((window << bits.width | narrowness) << np.uint64(bits.tie) | tie) << bits.row | row
    if bits.tie < 0:
        return _sorted_wide(words, high, widest)
    words.sort()
    return _unpacked(words, bits, widest, int(first[-1]))


def _deal_equally(
    n: int, kind: NDArray[np.int32] | None, counts: NDArray[np.int64], *, seed: int, epoch: int
) -> NDArray[np.uint64]:
    """Return the window of each row among those of its kind, which get equally many rows."""
    order = permutation(n, seed=seed, purpose="windows", epoch=epoch)
    if kind is not None:
        order = order[order_by(kind[order])]
    rows = np.array([n]) if kind is None else np.bincount(kind, minlength=len(counts))
    place = np.arange(n) - np.repeat(offsets(rows)[:-1], rows)
    windows = np.empty(n, np.uint64)
    windows[order] = place * np.repeat(counts, rows) // np.repeat(rows, rows)
    return windows


class Bits(NamedTuple):
    """Number of bits of a word that each part has; `tie` is negative if one word has no room for all of them."""

    width: np.uint64
    tie: int
    row: np.uint64

    @classmethod
    def of(cls, rows: int, widest: int, windows: int) -> "Bits":
        width, row = widest.bit_length(), max(rows - 1, 0).bit_length()
        left = 64 - width - row - max(windows - 1, 0).bit_length()
        return cls(np.uint64(width), left if left < 0 else min(left, 32), np.uint64(row))


def _unpacked(words: NDArray[np.uint64], bits: Bits, widest: int, windows: int) -> Windows:
    n = len(words)
    order, width = np.empty(n, np.int32), np.empty(n, np.int32)
    below_width = np.uint64(bits.tie) + bits.row
    row_mask, width_mask = (np.uint64((1 << int(many)) - 1) for many in (bits.row, bits.width))
    for start in range(0, n, BLOCK):
        block = words[start : start + BLOCK]
        order[start : start + BLOCK] = block & row_mask
        narrowness = block >> below_width
        narrowness &= width_mask
        np.subtract(widest, narrowness, out=width[start : start + BLOCK], casting="unsafe")
    return Windows(order, width, _bounds(words, below_width + bits.width, windows))


def _bounds(words: NDArray[np.uint64], shift: np.uint64, windows: int) -> NDArray[np.int64]:
    """Return where windows begin, whose numbers are the bits above `shift`, and where the last one ends."""
    if windows > len(words):  # most are empty
        inner = np.flatnonzero(np.diff(words >> shift)) + 1
    else:
        inner = np.searchsorted(words, np.arange(1, windows, dtype=np.uint64) << shift)
    return np.unique(np.concatenate([[0], inner, [len(words)]]))


def _sorted_wide(low: NDArray[np.uint64], high: NDArray[np.uint64], widest: int) -> Windows:
    """Sort words of 128 bits, and return the windows."""
    places = np.lexsort((low, high))
    high = high[places]
    mask = np.uint64(0xFFFFFFFF)
    width = np.int32(widest) - (high & mask).astype(np.int32)
    bounds = np.flatnonzero(np.diff(high >> np.uint64(32), prepend=np.uint64(1 << 32), append=np.uint64(1 << 32)))
    return Windows((low[places] & mask).astype(np.int32), width, bounds)


def count_windows(
    width: NDArray[np.int32],
    kind: NDArray[np.int32] | None,
    limits: Limits,
    *,
    window: int | None,
    padding: float,
    smallest: int = SMALLEST,
    recut: bool = True,
) -> NDArray[np.int64]:
    """Return the number of windows of each kind, from kind 0 to the last one; at least 1.

    With `window`, windows have about that many rows. Otherwise they are as small as `padding`, a share of the slots,
    allows, and have about `smallest` microbatches or more; with `recut`, `cutting.cut_padded` will cut them.
    """
    kinds = 1 if kind is None else int(kind.max(initial=-1)) + 1
    counts = np.ones(kinds, np.int64)
    if window is not None:
        rows = np.array([len(width)]) if kind is None else np.bincount(kind, minlength=kinds)
        return np.maximum(ceil_div(rows, window), 1)
    if padding == 0 or len(width) == 0:
        return counts
    stride = int(width.max()) + 1
    values, many = count_values(width if kind is None else kind.astype(np.int64) * stride + width)
    edges = np.searchsorted(values, np.arange(kinds + 1) * stride)
    for number in range(kinds):
        mine = slice(int(edges[number]), int(edges[number + 1]))
        widths = (values[mine] - number * stride)[::-1]
        counts[number] = Histogram.of(widths, many[mine][::-1], limits).windows(padding, smallest, recut=recut)
    return counts


def smallest_window(padding: float) -> int:
    """Return the fewest microbatches that a window should have if this share of padding is allowed."""
    return SMALLEST if padding <= WINDOW_PADDING else max(round(SMALLEST * WINDOW_PADDING / padding), FEWEST)


class Histogram(NamedTuple):
    """Distinct widths, widest first, and the number of rows that are at least as wide."""

    width: list[int]
    rows: list[int]
    tokens: int
    limits: Limits

    @classmethod
    def of(cls, width: NDArray[np.int64], many: NDArray[np.int64], limits: Limits) -> "Histogram":
        return cls(width.tolist(), list(accumulate(many.tolist())), int((width * many).sum()), limits)

    def windows(self, padding: float, smallest: int, *, recut: bool) -> int:
        """Return the largest number of windows with at most this share of padding and this many microbatches each."""
        if not self.rows:
            return 1
        microbatches = self._microbatches()
        number = self._most(microbatches // smallest, padding * LEEWAY)
        if not recut:
            return number
        mixed = ENOUGH if microbatches >= MANY else microbatches // LARGEST
        return max(number, self._most(mixed, padding * RECUT))

    def _microbatches(self) -> int:
        """Return the number of microbatches of one window with all rows; about, if they are many."""
        windows = 1 + max(self.tokens // self.limits.budget, self.rows[-1] // self.limits.rows) // COUNTED
        return self.cut(windows)[1] * windows

    def _most(self, most: int, padding: float) -> int:
        """Return the largest number of windows up to `most` with at most this share of padding; at least 1."""
        if most <= 1 or self.padding(most) <= padding:
            return max(most, 1)
        too_many, number = most, most // 2
        while number > 1 and self.padding(number) > padding:
            too_many, number = number, number // 2
        while too_many - number > 1:
            middle = (number + too_many) // 2
            number, too_many = (middle, too_many) if self.padding(middle) <= padding else (number, middle)
        return number

    def padding(self, windows: int) -> float:
        """Return the share of the slots that is padding if rows are in this many windows."""
        return 1 - self.tokens / self.cut(windows)[0]

    def cut(self, windows: int) -> tuple[int, int]:
        """Return the slots of all windows together, and the number of microbatches of one of them.

        A window is taken to have the same distribution of widths as all rows: where it has one row, there are
        `windows` rows here, so it is cut in steps of that many.
        """
        at, end, slots, count = 0, self.rows[-1], 0, 0
        while at < end:
            width = self.width[bisect_right(self.rows, at)]
            step = min(self.limits.budget // width, self.limits.rows) * windows
            slots += min(step, end - at) * width
            at += step
            count += 1
        return slots, count
