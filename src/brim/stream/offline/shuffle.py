"""The order in which the rows of an epoch come when they are shuffled: a pure function of numbers, which holds no row.

The data set is cut into short runs of consecutive rows, the runs are put into a random order, and the rows of every `window` places in that
order are mixed. So rows meet that lie far apart, and yet a window is read in `RUNS` stretches. A window as large as the data set
gives a uniform permutation, and so does one of a single row, at the price of reading every row by itself.

Every place can be asked for without those before it, so that resuming in the middle of an epoch needs its number and nothing else.
"""

import numpy as np
from numpy.typing import NDArray

from brim.core.rng import permutation

RUNS = 16
"""Runs in a window."""


class ShuffledRows:
    """The row number at every place of an epoch, a window at a time.

    Example:
        >>> rows = ShuffledRows(10, window=4, seed=42, epoch=0)
        >>> sorted(row for number in range(rows.windows) for row in rows.in_window(number).tolist())
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    def __init__(self, rows: int, *, window: int, seed: int, epoch: int) -> None:
        self.rows, self.window, self.seed, self.epoch = rows, window, seed, epoch
        self._run = max(1, window // RUNS)
        self._order = permutation(-(-rows // self._run), seed=seed, purpose="stream/runs", epoch=epoch)
        # The last run may be short. Behind it, places lie closer to the beginning than they would with runs of equal size.
        self._missing = len(self._order) * self._run - rows
        short = int(np.flatnonzero(self._order == len(self._order) - 1)[0])
        self._after_short = (short + 1) * self._run - self._missing

    @property
    def windows(self) -> int:
        return -(-self.rows // self.window)

    def in_window(self, number: int) -> NDArray[np.int64]:
        """The rows of the `number`-th window, in the order in which they come."""
        places = np.arange(number * self.window, min((number + 1) * self.window, self.rows))
        mixed = places[permutation(len(places), seed=self.seed, purpose=f"stream/window/{number}", epoch=self.epoch)]
        shifted = mixed + self._missing * (mixed >= self._after_short)
        return self._order[shifted // self._run] * self._run + shifted % self._run
