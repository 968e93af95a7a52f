"""Metrics of episodes, counted step by step for each environment."""

import numpy as np
from numpy.typing import NDArray


class Metrics:
    """The counts of the present episodes of a number of environments."""

    def __init__(self, size: int) -> None:
        self._return = np.zeros(size, np.float64)
        self._length = np.zeros(size, np.int64)
        self._best = np.zeros(size, np.float64)
        self._last = np.zeros(size, np.float64)
        self._solved_after = np.full(size, -1, np.int64)

    def begin(self, lanes: NDArray[np.intp], similarity: NDArray[np.float32]) -> None:
        """Start over for the environments with these numbers, whose new episodes have these similarities."""
        self._return[lanes] = 0
        self._length[lanes] = 0
        self._best[lanes] = similarity
        self._last[lanes] = similarity
        self._solved_after[lanes] = np.where(similarity == 1, 0, -1)

    def add(self, rewards: NDArray[np.float64], similarity: NDArray[np.float32], counts: NDArray[np.bool_]) -> None:
        """Add a step of the environments for which it counts. All are [size]."""
        self._return += np.where(counts, rewards, 0)
        self._length += counts
        self._last = np.where(counts, similarity, self._last)
        self._best = np.maximum(self._best, self._last)
        first_solved = counts & (similarity == 1) & (self._solved_after < 0)
        self._solved_after = np.where(first_solved, self._length, self._solved_after)

    def result(self, truncated: NDArray[np.bool_]) -> dict[str, NDArray[np.generic]]:
        """Return the metrics of all environments, as new arrays. They mean something where an episode has ended."""
        return {
            "return": self._return.copy(),
            "length": self._length.copy(),
            "best_similarity": self._best.copy(),
            "final_similarity": self._last.copy(),
            "solved": self._last == 1,
            "steps_to_solve": self._solved_after.copy(),
            "was_truncated": truncated.copy(),
        }
