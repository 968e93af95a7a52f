"""The learning rate as a pure function of the step, so that a checkpoint need not hold it."""

import math
from collections.abc import Callable

from brim.train.config import Schedule

FLOOR = 0.1
"""Final learning rate of the cosine and linear schedules, as a share of the base rate."""


def learning_rate(base: float, schedule: Schedule, *, total: int, warmup: int) -> Callable[[int], float]:
    """Return the learning rate of step 0, 1, ... `total` - 1: linear warmup over `warmup` steps, then decay as the
    schedule says.

    Example:
        >>> rate = learning_rate(1.0, "linear", total=12, warmup=2)
        >>> [round(rate(step), 2) for step in (0, 1, 2, 11)]
        [0.5, 1.0, 1.0, 0.1]
    """

    def rate(step: int) -> float:
        if step < warmup:
            return base * (step + 1) / warmup
        if schedule == "constant":
            return base
        done = min((step - warmup) / max(total - warmup - 1, 1), 1.0)
        left = 0.5 * (1 + math.cos(math.pi * done)) if schedule == "cosine" else 1 - done
        return base * (FLOOR + (1 - FLOOR) * left)

    return rate
