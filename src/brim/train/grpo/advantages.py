"""From rewards to advantages: how much better an attempt is than the others at the same task. Nothing here imports
torch.
"""

import numpy as np
from numpy.typing import NDArray

from brim.train.grpo.config import Scale

EPSILON = 1e-6
"""Added to a standard deviation before it divides."""

Rewards = NDArray[np.float64]


def advantages(rewards: Rewards, scale: Scale) -> Rewards:
    """Return the advantages of groups of attempts.

    An advantage is the reward minus the mean over the group; `scale` divides it by the standard deviation (with n - 1)
    of the rewards in the group, or of the rewards of all groups, or by nothing.

    Args:
        rewards: [groups, attempts]; NaN where an attempt has none. Those do not count, and their advantage is 0.

    Example:
        >>> advantages(np.array([[1.0, 0.0, np.nan]]), "none").tolist()
        [[0.5, -0.5, 0.0]]
    """
    known = ~np.isnan(rewards)
    counts = known.sum(axis=1, keepdims=True)
    filled = np.where(known, rewards, 0.0)
    centred = np.where(known, filled - filled.sum(axis=1, keepdims=True) / np.maximum(counts, 1), 0.0)
    if scale == "none":
        return centred
    if scale == "group":
        spread = np.sqrt((centred**2).sum(axis=1, keepdims=True) / np.maximum(counts - 1, 1))
        return centred / (spread + EPSILON)
    every = rewards[known]
    return centred / ((float(every.std(ddof=1)) if len(every) > 1 else 0.0) + EPSILON)
