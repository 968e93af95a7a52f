"""The knapsack behind the search for patterns: what fills a row with the greatest value.

Values are integers, so the result is exact, and the same on every machine.
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

try:
    from brim.plan.packing import _kernel as kernel
except ImportError:  # not compiled: `_greatest_numpy` does the same
    kernel = None


class Knapsack:
    """The greatest value of items with a total width of at most c, for every c up to the capacity.

    An item can be taken any number of times. `most` is the upper limit of the items, or None.
    """

    def __init__(
        self, width: NDArray[np.int32], value: NDArray[np.int64], capacity: int, most: int | None = None
    ) -> None:
        self._width, self._value, self._most = width, value, most
        if most is not None:
            self._best = _greatest_of_few(width, value, capacity, most)
            return
        self._best = np.empty((1, capacity + 1), np.int64)
        if kernel is None:
            _greatest_numpy(width, value, self._best[0])
        else:
            kernel.knapsack(width, value, self._best[0])

    @property
    def greatest(self) -> int:
        return int(self._best[-1, -1])

    def with_each(self) -> NDArray[np.int64]:
        """Return, for each item, the greatest value of items of which it is one."""
        layer = self._best[-1 if self._most is None else -2]
        return self._value + layer[len(layer) - 1 - self._width]

    def items(self, first: int) -> list[int]:
        """Return items of the greatest value of which `first` is one, in the order in which they are found."""
        found, layer = [first], len(self._best) - 1 if self._most is None else self._most - 1
        room = self._best.shape[1] - 1 - int(self._width[first])
        while layer > 0 or self._most is None:
            best = self._best[layer]
            room = int(np.searchsorted(best[: room + 1], best[room]))  # the least that the value needs
            if best[room] == 0:
                break
            below = best if self._most is None else self._best[layer - 1]
            fitting = self._width <= room
            with_item = np.where(fitting, below[np.where(fitting, room - self._width, 0)] + self._value, -1)
            item = int(with_item.argmax())
            layer -= self._most is not None
            if with_item[item] < best[room]:
                continue  # one item less has the same value
            found.append(item)
            room -= int(self._width[item])
        return found


def _greatest_numpy(width: NDArray[np.int32], value: NDArray[np.int64], best: NDArray[np.int64]) -> None:
    """Do what `kernel.knapsack` does."""
    best[:] = 0
    for room in range(int(width.min(initial=len(best))), len(best)):
        fitting = width <= room
        with_item = best[room - width[fitting]] + value[fitting]
        best[room] = max(best[room - 1], with_item.max(initial=0))


def _greatest_of_few(width: NDArray[np.int32], value: NDArray[np.int64], capacity: int, most: int) -> NDArray[np.int64]:
    """Return the greatest values of at most 0, 1, ... `most` items, [most + 1, capacity + 1]."""
    best = np.zeros((most + 1, capacity + 1), np.int64)
    for before, here in pairwise(best):
        here[:] = before
        for wide, worth in zip(width.tolist(), value.tolist(), strict=True):
            if worth:
                np.maximum(here[wide:], before[: capacity + 1 - wide] + worth, out=here[wide:])
    return best
