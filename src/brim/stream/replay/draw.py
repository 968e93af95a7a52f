"""Which slots of a replay buffer are drawn, and what a draw holds.

All bits come from `Words`, whose state is one number. Slots are drawn in proportion to the weights of a `SumTree`; without
replacement that means: one after the other, each in proportion to the weights of those that are left. Nothing here changes a buffer.
"""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import order_by
from brim.core.rng import Words
from brim.data.token_store import Spans
from brim.stream.replay.columns import Entries, gather, read_only
from brim.stream.replay.sum_tree import SumTree
from brim.stream.sample import StreamSample

try:
    from brim.stream.replay import _kernel as kernel
except ImportError:  # not compiled here: a dict does the same work
    kernel = None

Slots = NDArray[np.int64]

ROUNDS = 6
"""After so many rounds of drawing again what was drawn twice, a few slots must have nearly all the weight."""
NOTHING = np.empty(0, np.int64)


class ReplayDraw:
    """What was drawn, in the order of drawing. Stays as it is whatever happens to the buffer.

    `keys` are for `update_priorities`; `weights` are importance weights, of which the largest is 1. Everything else is looked up when it
    is asked for: the samples as objects, or their tokens as flat columns, in which sample i is `lengths[i]` long from `begin[i]` on.
    """

    def __init__(
        self, keys: NDArray[np.int64], weights: NDArray[np.float32], entries: Entries, rows: Slots, replays: NDArray[np.int64], at: float
    ) -> None:
        """`replays`: how often each had been drawn, this time included. `at`: when that was."""
        self.keys, self.weights = keys, weights
        self._entries, self._rows, self._replays, self._at = entries, rows, replays, at

    def __len__(self) -> int:
        return len(self.keys)

    @cached_property
    def samples(self) -> list[StreamSample]:
        """Marked as replayed, as by `StreamSample.with_replay`."""
        return self._entries.samples(self._rows, self._entries.columns["replay_count"][self._rows] + self._replays, self._at)

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        return self._entries.columns["length"][self._rows]

    @cached_property
    def begin(self) -> NDArray[np.int64]:
        return np.cumsum(self.lengths, dtype=np.int64) - self.lengths

    @cached_property
    def tokens(self) -> NDArray[np.int32]:
        spans = self.spans
        return gather(spans.tokens, spans.begin, self.lengths, np.empty(int(self.lengths.sum(dtype=np.int64)), np.int32))

    @cached_property
    def learned(self) -> NDArray[np.uint8]:
        spans = self.spans
        return gather(spans.learned, spans.begin, self.lengths)

    @cached_property
    def spans(self) -> Spans:
        """The same tokens where they lie in the buffer, without a copy, to read only."""
        return Spans(read_only(self._entries.tokens), read_only(self._entries.learned), self._entries.columns["start"][self._rows])

    @cached_property
    def sample_ids(self) -> list[str | int]:
        return self._entries.columns["sample_id"][self._rows].tolist()


def importance(weights: NDArray[np.float64], beta: float) -> NDArray[np.float32]:
    """(N P)^-beta over the largest of them, with P = weight / total: (weight / smallest weight)^-beta, for N and total cancel out.

    Reckoned in logarithms: the quotient of two weights, and its power, may be larger than any number. An entry of weight 0 is drawn only
    when nothing else is left; its importance is that of the rarest other, 1.
    """
    if beta == 0:
        return np.ones(len(weights), np.float32)
    with np.errstate(divide="ignore", over="ignore", under="ignore"):
        logs = np.log(weights)
        if (least := logs.min()) > -np.inf:
            return np.exp(-beta * (logs - least)).astype(np.float32)
    drawn, some = weights > 0, np.ones(len(weights), np.float32)
    if drawn.any():
        some[drawn] = importance(weights[drawn], beta)
    return some


def pick(tree: SumTree, keys: NDArray[np.int64], size: int, words: Words, n: int, *, replace: bool) -> Slots:
    """Slots in proportion to their weights; without replacement all different.

    Slots of weight 0 come, uniformly, only when no other is left. A slot may be drawn if its key is positive; `size` is how many are.
    """
    if tree.total == 0:
        return pick_uniform(keys, size, words, n, replace=replace)
    if not replace and n * 4 > size:
        return _race(tree.weights, np.flatnonzero(keys > 0), words, n)
    slots = tree.find(words.uniform(n) * tree.total)
    if replace:
        return slots
    slots = distinct(slots)
    for _ in range(ROUNDS):
        if len(slots) == n:
            return slots
        slots = distinct(np.concatenate([slots, tree.find(words.uniform(n - len(slots)) * tree.total)]))
    return _pick_from_the_rest(tree, keys, size, words, n, slots)


def _pick_from_the_rest(tree: SumTree, keys: NDArray[np.int64], size: int, words: Words, n: int, taken: Slots) -> Slots:
    """Where a few slots have nearly all the weight: with those that were drawn set aside, as long as a race of all would take longer."""
    weights = tree.weights[taken]
    try:
        tree.set(taken, 0.0)
        for _ in range(max(ROUNDS, size // (n + 100))):  # a round takes as long as a race of about so many, and gives one slot or more
            if tree.total == 0 or len(taken) == n:
                break
            more = distinct(tree.find(words.uniform(n - len(taken)) * tree.total))
            taken, weights = np.concatenate([taken, more]), np.concatenate([weights, tree.weights[more]])
            tree.set(more, 0.0)
        if tree.total == 0 or len(taken) == n:
            return pick_uniform(keys, size, words, n, replace=False, first=taken)
        left = keys > 0
        left[taken] = False
        return np.concatenate([taken, _race(tree.weights, np.flatnonzero(left), words, n - len(taken))])
    finally:
        tree.set(taken, weights)


def pick_uniform(keys: NDArray[np.int64], size: int, words: Words, n: int, *, replace: bool, first: Slots = NOTHING) -> Slots:
    """Slots, each as likely as any other; without replacement all different.

    `first` are some that have been picked already, not more than n and none twice; if there are any, n is at most a quarter of `size`.
    """
    if n * 4 > size or (replace and size == len(keys)):
        slots = np.flatnonzero(keys > 0) if size < len(keys) else None
        drawn = (words.uniform(n) * size).astype(np.int64) if replace else _shuffled(size, words)[:n]
        return drawn if slots is None else slots[drawn]
    taken = first
    while len(taken) < n:
        drawn = (words.uniform((n - len(taken)) * (len(keys) // size)) * len(keys)).astype(np.int64)
        if size < len(keys):
            drawn = drawn[keys[drawn] > 0]
        taken = np.concatenate([taken, drawn])
        if not replace:
            taken = distinct(taken)
    return taken[:n]


def _shuffled(size: int, words: Words) -> Slots:
    return order_by(words.take(size) >> np.uint64(max(size - 1, 0).bit_length()))


def _race(weights: NDArray[np.float64], slots: Slots, words: Words, n: int) -> Slots:
    """Everyone draws a time from the exponential distribution of its weight; the first n are those that drawing one by one would give."""
    units = ((words.take(len(slots)) >> np.uint64(12)) + 0.5) * 2.0**-52  # neither 0 nor 1
    times = np.log(-np.log(units))
    with np.errstate(divide="ignore"):
        arrivals = times - np.log(weights[slots])  # as a logarithm: no weight is too small
    return slots[np.lexsort((times, arrivals))[:n]]  # those of weight 0 all arrive at infinity: uniformly


def distinct(slots: Slots) -> Slots:
    """The first of each, in their order."""
    if kernel is None:
        return np.fromiter(dict.fromkeys(slots.tolist()), np.int64)
    found = np.empty(len(slots), np.int64)
    return found[: kernel.distinct(slots, found)]
