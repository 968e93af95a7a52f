"""`Price`: the cost of rows in whole numbers, which add up to the same sum on every machine."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import OptionError
from brim.plan.cost import CostModel
from brim.plan.grouping.windows import Limits

LARGEST_SCALE = 1 << 58
"""Attention of a larger scale costs nothing, and its price would not be computed in 64 bits."""
DEAREST = 1 << 42
"""Upper limit of a microbatch's price, so that shares of it in millionths are computed in 64 bits."""


class Price(NamedTuple):
    """The cost of a row in sixteenths of a slot: of its width, of its squared width divided by `scale`, and `extra`."""

    scale: int | None
    extra: int = 0

    @classmethod
    def of(cls, model: CostModel, attention: int | None = None) -> "Price":
        """Return the price of rows; of packed rows, for which `attention` is the mean sum of squared lengths."""
        scale = model.attention_scale
        if scale is None or scale > LARGEST_SCALE:
            return cls(None)
        return cls(scale) if attention is None else cls(None, 16 * attention // scale)

    def each(self, width: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the price of each row."""
        wide = width.astype(np.int64)
        linear = 16 * wide + self.extra
        if self.scale is None:
            return linear
        square = wide * wide
        return linear + square // self.scale * 16 + square % self.scale * 16 // self.scale

    def highest(self, width: NDArray[np.int32], limits: Limits) -> int:
        """Return the price of the microbatch that costs most if all are as full as the budget allows.

        Raises:
            OptionError: It is too large to compute with.
        """
        rows = np.minimum(np.maximum(limits.budget // width, 1), min(limits.rows, len(width)))
        each = self.each(width)
        if float(each.max()) * float(rows.max()) >= DEAREST and (rows * each.astype(np.float64)).max() >= DEAREST:
            raise OptionError(
                f"steps cannot be balanced by cost where a row has {int(width.max())} tokens: its attention costs too "
                "much; give a cost model with a smaller per_square, or leave microbatches_per_step out"
            )
        return int((rows * each).max())


FREE = Price(None)
"""The price of rows where cost does not matter."""
