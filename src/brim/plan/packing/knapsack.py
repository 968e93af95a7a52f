"""The knapsack problem of the search for patterns: find the items of the greatest value that fit into a row.

Values are integers, so the result is exact, and the same on every machine.
"""

from bisect import bisect_left
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
        layers = 1 if most is None else most + 1  # of at most 0, 1, ... `most` items
        self._best = np.empty((layers, capacity + 1), np.int64)
        if kernel is not None:
            kernel.knapsack(width, value, self._best, layers)
        elif most is None:
            _greatest_numpy(width, value, self._best[0])
        else:
            _greatest_of_few_numpy(width, value, self._best)

    @property
    def greatest(self) -> int:
        return int(self._best[-1, -1])

    def with_each(self) -> NDArray[np.int64]:
        """Return, for each item, the greatest value of items of which it is one."""
        layer = self._best[-1 if self._most is None else -2]
        return self._value + layer[len(layer) - 1 - self._width]

    def items(self, first: int) -> list[tuple[int, int]]:
        """Return items of the greatest value of which `first` is one, and how many of each, in ascending order.

        Of several sets, it is the narrowest beside `first`; of several of those, the one with most of item 0, then of
        item 1, and so on. Items are visited once, and the number of each is found by bisection, so the work does not
        depend on how many sequences a row holds.
        """
        copies = {first: 1}
        limit = None if self._most is None else self._most - 1  # items that may still be taken
        best = self._layer(limit)
        room = len(best) - 1 - int(self._width[first])
        room = int(np.searchsorted(best[: room + 1], best[room]))  # the narrowest room for this value
        start = 0
        while room > 0:  # the value of a room of 0 is 0, and that of a greater one is above 0, as it is the narrowest
            # The first item that belongs to some set of the greatest value. None before it does, and none will when
            # some of it have been taken, because that set with those would have been one here.
            left = room - self._width[start:]
            below = self._layer(None if limit is None else limit - 1)
            value = self._layer(limit)[room]
            belongs = (below[np.maximum(left, 0)] + self._value[start:] == value) & (left >= 0)
            item = start + int(belongs.argmax())
            number = self._number(item, room, limit)
            copies[item] = copies.get(item, 0) + number
            room -= number * int(self._width[item])
            limit = None if limit is None else limit - number
            start = item + 1
        return sorted(copies.items())

    def _layer(self, limit: int | None) -> NDArray[np.int64]:
        """Return the greatest values of at most `limit` items, by room."""
        return self._best[0 if limit is None else limit]

    def _number(self, item: int, room: int, limit: int | None) -> int:
        """Return the largest number of an item in a set of the greatest value, of which it is known to be one."""
        wide, worth, value = int(self._width[item]), int(self._value[item]), int(self._layer(limit)[room])
        most = room // wide if limit is None else min(room // wide, limit)

        def too_many(number: int) -> bool:
            layer = self._layer(None if limit is None else limit - number)
            return int(layer[room - number * wide]) + number * worth < value

        return 1 + bisect_left(range(2, most + 1), True, key=too_many)


def _greatest_numpy(width: NDArray[np.int32], value: NDArray[np.int64], best: NDArray[np.int64]) -> None:
    """Do what `kernel.knapsack` does with one layer."""
    best[:] = 0
    for room in range(int(width.min(initial=len(best))), len(best)):
        fitting = width <= room
        with_item = best[room - width[fitting]] + value[fitting]
        best[room] = max(best[room - 1], with_item.max(initial=0))


def _greatest_of_few_numpy(width: NDArray[np.int32], value: NDArray[np.int64], best: NDArray[np.int64]) -> None:
    """Do what `kernel.knapsack` does with more layers."""
    best[0] = 0
    for before, here in pairwise(best):
        here[:] = before
        for wide, worth in zip(width.tolist(), value.tolist(), strict=True):
            if worth and wide < len(here):
                np.maximum(here[wide:], before[: len(here) - wide] + worth, out=here[wide:])
