"""The cost of a microbatch, by which steps are balanced over ranks."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

ATTENTION_SCALE = 12_288
"""Length at which attention costs as much as the rest of the model: about 12 times the model's width, here 1024."""


def cost(slots: NDArray[np.int64], attention: NDArray[Any]) -> NDArray[np.int64]:
    """Return the costs of microbatches, in slots.

    A cost is linear in the slots (rows times width) and in `attention`, the sum of the squared lengths that attention
    sees.
    """
    return slots + attention // ATTENTION_SCALE
