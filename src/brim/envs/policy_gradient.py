"""Pieces that policy gradient methods share: softmax, keyed sampling of actions, generalised advantage estimates.

NumPy only, and no randomness of its own: uniform numbers are given to `choose`. Arrays of a rollout have the time first
and the environments second, [T, n].
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from brim.core.errors import DataError


def softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Softmax along the last axis, with logits clipped so that no probability is exactly 0."""
    powers = np.exp(np.maximum(logits - logits.max(axis=-1, keepdims=True), -60.0))
    return powers / powers.sum(axis=-1, keepdims=True)


def choose(chances: NDArray[np.floating], noise: NDArray[np.floating]) -> NDArray[np.int64]:
    """Sample an action for each row by inverting its cumulative chances. [rows, actions], [rows] -> [rows]"""
    edges = np.cumsum(chances, axis=-1, dtype=np.float64)
    return (edges[:, :-1] <= noise[:, None] * edges[:, -1:]).sum(axis=1)


def advantages(
    rewards: ArrayLike,
    values: ArrayLike,
    next_values: ArrayLike,
    terminated: ArrayLike,
    truncated: ArrayLike,
    valid: ArrayLike | None = None,
    *,
    discount: float,
    trace: float,
) -> NDArray[np.float64]:
    """Return generalised advantage estimates (Schulman et al. 2016). All arrays are [T, n], and so is the result.

    `values` are those of the observations before the steps, `next_values` those of the observations that the steps led
    to. For a step that ended its episode this is the final observation, not the first one of the next episode.

    - A terminated step has no next value.
    - A truncated step is bootstrapped with its next value, and so is the last step of the rollout. No trace crosses it.
    - A step that is not `valid` ends its episode and has advantage 0. Nothing about it is read: its reward and its
      next value may be NaN. The step before it is bootstrapped with its own next value, which is the value of the
      observation before the invalid step.

    Args:
        valid: False for steps whose outcome is not known; None if all are valid.
        discount: Discount factor gamma.
        trace: Lambda; 0 is the one-step temporal difference, 1 the discounted return minus the value.

    Raises:
        DataError: The arrays have different shapes, or are not [T, n].
    """
    shape = np.shape(rewards)
    valid = np.ones(shape, np.bool_) if valid is None else np.asarray(valid, np.bool_)
    _check_shapes(
        rewards=shape,
        values=np.shape(values),
        next_values=np.shape(next_values),
        terminated=np.shape(terminated),
        truncated=np.shape(truncated),
        valid=valid.shape,
    )
    terminated = np.asarray(terminated, np.bool_)
    # Chosen before any arithmetic, so that NaN and infinity in unused places reach nothing and warn of nothing.
    rewards = np.where(valid, np.asarray(rewards, np.float64), 0.0)
    values = np.where(valid, np.asarray(values, np.float64), 0.0)
    next_values = np.where(valid & ~terminated, np.asarray(next_values, np.float64), 0.0)
    surprise = rewards + discount * next_values - values
    ended = terminated | np.asarray(truncated, np.bool_) | ~valid
    decay = discount * trace
    result = np.empty(shape)
    carried = np.zeros(shape[1:])
    for time in reversed(range(shape[0])):
        carried = surprise[time] + decay * np.where(ended[time], 0.0, carried)
        result[time] = carried
    return result


def _check_shapes(**shapes: tuple[int, ...]) -> None:
    if len(shapes["rewards"]) != 2 or len(set(shapes.values())) > 1:
        listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise DataError(f"the arrays of a rollout must have one shape, (steps, environments), got {listed}")
