"""`SumTree`: find slots in proportion to weights that keep changing; finding and updating are O(log n).

A node has sixteen children. A parent is always recomputed as the sum of its children, first to last, so sums never
drift and depend on the current weights alone, not on their history. The compiled kernel adds in the same order and
finds the same slots. Nothing here is random.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from brim.core.arrays import round_up
from brim.core.errors import OptionError

try:
    from brim.stream.replay import _kernel as kernel
except ImportError:  # not compiled here: NumPy does the same work
    kernel = None

WIDTH = 16
LARGEST = 1e290
"""Weights beyond this could add up to infinity."""


class SumTree:
    """Weights of the slots 0 .. capacity - 1, initially 0.

    Example:
        >>> tree = SumTree(4)
        >>> tree.set([0, 2], [1.0, 3.0])
        >>> tree.total, tree.find([0.5, 1.0, 3.9]).tolist()
        (4.0, [0, 2, 2])
    """

    def __init__(self, capacity: int) -> None:
        # The sizes of the levels, leaves first, each padded to whole nodes.
        sizes = [_padded(max(capacity, 1))]
        while sizes[-1] > WIDTH:
            sizes.append(_padded(sizes[-1] // WIDTH))
        ends = np.cumsum(sizes, dtype=np.int64)
        self.capacity = capacity
        # All levels lie in one array, which the kernel takes with their offsets; `_levels` are views of it.
        self._offsets = np.concatenate([np.zeros(1, np.int64), ends])
        self._nodes = np.zeros(int(ends[-1]))
        spans = zip(ends.tolist(), sizes, strict=True)
        self._levels = [self._nodes[end - size : end].reshape(-1, WIDTH) for end, size in spans]
        self.total = 0.0
        """The sum of all weights."""

    @property
    def weights(self) -> NDArray[np.float64]:
        """The weights by slot, as a view; change them through `set`."""
        return self._nodes[: self.capacity]

    def set(self, slots: ArrayLike, weights: ArrayLike) -> None:
        """Give slots new weights. If a slot comes twice, its last weight is used.

        Raises:
            OptionError: A slot does not exist, or a weight is negative, NaN or beyond `LARGEST`. Nothing is changed
                then.
        """
        where = np.ascontiguousarray(slots, np.int64)
        values = np.ascontiguousarray(weights, np.float64)
        if values.shape != where.shape:
            values = np.ascontiguousarray(np.broadcast_to(values, where.shape))
        if where.ndim > 1:
            where, values = where.reshape(-1), values.reshape(-1)
        if kernel is not None:
            total = kernel.set(self._nodes, self._offsets, where, values, self.capacity, LARGEST)
            if total < 0:
                raise self._refused(where, values)
            self.total = total
        elif where.size:
            if where.min() < 0 or where.max() >= self.capacity or not (values.min() >= 0 and values.max() <= LARGEST):
                raise self._refused(where, values)
            self._nodes[where] = values
            self._add_up(where)

    def find(self, below: ArrayLike) -> NDArray[np.int64]:
        """For each number in [0, total), the first slot at which the running sum of the weights exceeds it.

        The result has the shape of `below`. A slot of weight 0 is never found.

        Raises:
            OptionError: All weights are 0.
        """
        if self.total <= 0:
            raise OptionError("all weights are 0, so no slot can be found; set a weight first")
        rest = np.asarray(below, np.float64, order="C")
        if kernel is None:
            return self._descend(rest.reshape(-1)).reshape(rest.shape)
        found = np.empty(rest.shape, np.int64)
        kernel.find(self._nodes, self._offsets, rest, found)
        return found

    def grown(self, capacity: int) -> "SumTree":
        """A tree with more slots and the same weights."""
        tree = SumTree(capacity)
        tree.set(np.arange(self.capacity), self.weights)
        return tree

    def _refused(self, slots: NDArray[np.int64], weights: NDArray[np.float64]) -> OptionError:
        bad = weights[~((weights >= 0) & (weights <= LARGEST))]
        if len(bad):
            return OptionError(f"a weight must lie between 0 and {LARGEST:g}, got {bad[0]}")
        return OptionError(
            f"slots must lie between 0 and {self.capacity - 1}, got slots from {slots.min()} to {slots.max()}"
        )

    def _add_up(self, slots: NDArray[np.int64]) -> None:
        """Recompute the parents of some slots, level by level, as the second half of `kernel.set` does."""
        everything = len(slots) * WIDTH > self.capacity
        parents: Any = slice(None)
        for below, level in zip(self._levels, self._levels[1:], strict=False):
            if not everything:
                parents = slots = slots // WIDTH
            # `sum` adds pairwise; a cumulative sum adds from first to last, as the kernel does.
            sums = below[parents].cumsum(axis=1)[:, -1]
            level.reshape(-1)[: len(below) if everything else None][parents] = sums
        self.total = float(self._levels[-1].cumsum()[-1])

    def _descend(self, rest: NDArray[np.float64]) -> NDArray[np.int64]:
        """Walk from the root to the leaves, as `kernel.find` does."""
        at = np.zeros(rest.shape, np.int64)
        for level in reversed(self._levels):
            children = level[at]
            sums = children.cumsum(axis=1)
            child = (sums <= rest[:, None]).sum(axis=1)
            # Rounding on the way down may lead beyond the last child: take the last one that has a weight.
            beyond = np.flatnonzero(child == WIDTH)
            child[beyond] = WIDTH - 1 - (children[beyond, ::-1] > 0).argmax(axis=1)
            rest = rest - np.where(child > 0, sums[np.arange(len(child)), child - 1], 0.0)
            at = at * WIDTH + child
        return at


def _padded(size: int) -> int:
    return round_up(size, WIDTH)
