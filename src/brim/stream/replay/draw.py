"""Which slots of a replay buffer are drawn, and the result of a draw.

All random bits come from `Words`, whose state is one number. Slots are drawn in proportion to the weights of a
`SumTree`. Without replacement they are drawn one after the other, each in proportion to the weights of those that are
left. Nothing here changes a buffer.
"""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import begins, order_by
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
"""If there are still duplicates after this many rounds of drawing again, a few slots have nearly all the weight."""
NO_SLOTS = np.empty(0, np.int64)


class ReplayDraw:
    """The drawn entries, in the order of drawing. A draw does not change when the buffer does.

    `keys` are for `update_priorities`; `weights` are importance weights, of which the largest is 1. Everything else is
    looked up on demand: the samples as objects, or their tokens as flat columns in which sample i has the tokens
    `begin[i]` to `begin[i] + lengths[i]`.
    """

    def __init__(
        self,
        keys: NDArray[np.int64],
        weights: NDArray[np.float32],
        entries: Entries,
        rows: NDArray[np.int64],
        replays: NDArray[np.int64],
        at: float,
    ) -> None:
        """Use `ReplayBuffer.sample` instead.

        `replays` is how often each entry was drawn, including this draw; `at` is the time of the draw.
        """
        self.keys = keys
        self.weights = weights
        self._entries = entries
        self._rows = rows
        self._replays = replays
        self._at = at

    def __len__(self) -> int:
        return len(self.keys)

    @cached_property
    def samples(self) -> list[StreamSample]:
        """The samples, marked as replayed as by `StreamSample.with_replay`."""
        counts = self._entries.columns["replay_count"][self._rows] + self._replays
        return self._entries.samples(self._rows, counts, self._at)

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        return self._entries.columns["length"][self._rows]

    @cached_property
    def begin(self) -> NDArray[np.int64]:
        return begins(self.lengths)

    @cached_property
    def tokens(self) -> NDArray[np.int32]:
        spans = self.spans
        tokens = np.empty(int(self.lengths.sum(dtype=np.int64)), np.int32)
        return gather(spans.tokens, spans.begin, self.lengths, tokens)

    @cached_property
    def learned(self) -> NDArray[np.uint8]:
        spans = self.spans
        return gather(spans.learned, spans.begin, self.lengths)

    @cached_property
    def spans(self) -> Spans:
        """The same tokens where they lie in the buffer: no copy, read-only."""
        entries = self._entries
        return Spans(read_only(entries.tokens), read_only(entries.learned), entries.columns["start"][self._rows])

    @cached_property
    def sample_ids(self) -> list[str | int]:
        return self._entries.columns["sample_id"][self._rows].tolist()


def importance(weights: NDArray[np.float64], beta: float) -> NDArray[np.float32]:
    """Importance weights (N P)^-beta over their largest, with P = weight / total.

    N and the total cancel out, which leaves (weight / smallest weight)^-beta. It is computed in logarithms, because the
    quotient of two weights and its power may overflow. An entry of weight 0 is drawn only when no other is left; its
    importance weight is 1, that of the rarest other entry.
    """
    if beta == 0:
        return np.ones(len(weights), np.float32)
    with np.errstate(divide="ignore", over="ignore", under="ignore"):
        logs = np.log(weights)
        if (least := logs.min()) > -np.inf:
            return np.exp(-beta * (logs - least)).astype(np.float32)
    positive = weights > 0
    found = np.ones(len(weights), np.float32)
    if positive.any():
        found[positive] = importance(weights[positive], beta)
    return found


def pick(tree: SumTree, keys: NDArray[np.int64], size: int, words: Words, n: int, *, replace: bool) -> Slots:
    """Draw slots in proportion to their weights; without replacement all are different.

    Slots of weight 0 are drawn, uniformly, only when no other is left. A slot is in use if its key is positive; `size`
    is how many are.
    """
    if tree.total == 0:
        return pick_uniform(keys, size, words, n, replace=replace)
    if not replace and n * 4 > size:
        return _race(tree.weights, np.flatnonzero(keys > 0), words, n)
    slots = tree.find(words.uniform(n) * tree.total)
    if replace:
        return slots
    # Duplicates are dropped and drawn again. That is the same as drawing one after the other: given that a draw is not
    # among the slots taken before, it is in proportion to the weights of the rest.
    slots = distinct(slots)
    for _ in range(ROUNDS):
        if len(slots) == n:
            return slots
        slots = distinct(np.concatenate([slots, tree.find(words.uniform(n - len(slots)) * tree.total)]))
    return _pick_from_the_rest(tree, keys, size, words, n, slots)


def _pick_from_the_rest(tree: SumTree, keys: NDArray[np.int64], size: int, words: Words, n: int, taken: Slots) -> Slots:
    """Continue where a few slots have nearly all the weight, with the weights of the slots drawn so far set to 0.

    `_race` over all slots ends the search where further rounds would take longer. The weights are restored at the end.
    """
    weights = tree.weights[taken]
    try:
        tree.set(taken, 0.0)
        # A round costs about as much as a race of n + 100 slots, and finds at least one slot.
        for _ in range(max(ROUNDS, size // (n + 100))):
            if tree.total == 0 or len(taken) == n:
                break
            more = distinct(tree.find(words.uniform(n - len(taken)) * tree.total))
            taken = np.concatenate([taken, more])
            weights = np.concatenate([weights, tree.weights[more]])
            tree.set(more, 0.0)
        if tree.total == 0 or len(taken) == n:
            return pick_uniform(keys, size, words, n, replace=False, first=taken)
        left = keys > 0
        left[taken] = False
        return np.concatenate([taken, _race(tree.weights, np.flatnonzero(left), words, n - len(taken))])
    finally:
        tree.set(taken, weights)


def pick_uniform(
    keys: NDArray[np.int64], size: int, words: Words, n: int, *, replace: bool, first: Slots = NO_SLOTS
) -> Slots:
    """Draw slots uniformly; without replacement all are different.

    `first` are slots that have been drawn already, at most n and all different; n is at most a quarter of `size` then.
    """
    # A large part of the slots, or all slots in use: draw among the slots in use, listed if some are free.
    if n * 4 > size or (replace and size == len(keys)):
        slots = np.flatnonzero(keys > 0) if size < len(keys) else None
        drawn = (words.uniform(n) * size).astype(np.int64) if replace else _shuffled(size, words)[:n]
        return drawn if slots is None else slots[drawn]
    # Otherwise draw among all slots, and reject free ones and duplicates.
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
    """Draw n slots without replacement, in proportion to their weights, by looking at all of them.

    Every slot draws an arrival time from the exponential distribution whose rate is its weight. The first n arrivals
    are distributed as slots drawn one after the other.
    """
    units = ((words.take(len(slots)) >> np.uint64(12)) + 0.5) * 2.0**-52  # neither 0 nor 1
    times = np.log(-np.log(units))
    with np.errstate(divide="ignore"):
        arrivals = times - np.log(weights[slots])  # as logarithms, in which no weight is too small
    # Slots of weight 0 all arrive at infinity; their own times order them uniformly.
    return slots[np.lexsort((times, arrivals))[:n]]


def distinct(slots: Slots) -> Slots:
    """Drop duplicates, keeping the first of each in order."""
    if kernel is None:
        return np.fromiter(dict.fromkeys(slots.tolist()), np.int64)
    found = np.empty(len(slots), np.int64)
    return found[: kernel.distinct(slots, found)]
