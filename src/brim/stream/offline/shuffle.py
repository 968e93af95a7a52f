"""The shuffled order of the rows of an epoch, as a pure function of numbers. No row is held.

The data set is cut into short runs of consecutive rows, the runs are put into a random order, and the rows of every
window of that order are permuted. So rows that lie far apart are mixed, and yet a window is read in about `RUNS`
stretches. A window as large as the data set gives a uniform permutation, and so does a window of one row, which reads
every row by itself.

Every window can be computed without those before it, so resuming in the middle of an epoch needs only its number.
"""

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import ceil_div
from brim.core.rng import permutation

RUNS = 16
"""Runs per window."""


class ShuffledRows:
    """The row numbers of an epoch in shuffled order, one window at a time.

    Example:
        >>> rows = ShuffledRows(10, window=4, seed=42, epoch=0)
        >>> sorted(row for number in range(rows.windows) for row in rows.in_window(number).tolist())
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    def __init__(self, rows: int, *, window: int, seed: int, epoch: int) -> None:
        self.rows = rows
        self.window = window
        self.seed = seed
        self.epoch = epoch
        self._run = max(1, window // RUNS)
        self._order = permutation(ceil_div(rows, self._run), seed=seed, purpose="stream/runs", epoch=epoch)
        # The last run of the data set may be short. After its place in the shuffled order, every position is smaller by
        # the missing rows than it would be if all runs had the same size.
        self._missing = len(self._order) * self._run - rows
        short = int(np.flatnonzero(self._order == len(self._order) - 1)[0])
        self._after_short = (short + 1) * self._run - self._missing

    @property
    def windows(self) -> int:
        return ceil_div(self.rows, self.window)

    def in_window(self, number: int) -> NDArray[np.int64]:
        """The rows of a window, in shuffled order."""
        places = np.arange(number * self.window, min((number + 1) * self.window, self.rows))
        mixed = places[permutation(len(places), seed=self.seed, purpose=f"stream/window/{number}", epoch=self.epoch)]
        shifted = mixed + self._missing * (mixed >= self._after_short)
        return self._order[shifted // self._run] * self._run + shifted % self._run
