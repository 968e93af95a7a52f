"""`PackingMetrics`: how densely sequences were packed, and how close that is to the fewest rows possible."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.core.fill import Fill
from brim.plan.packing.bounds import lower_bound
from brim.plan.packing.rows import Rows


@dataclass(frozen=True, kw_only=True)
class PackingMetrics:
    """Measures of how densely sequences were packed."""

    num_sequences: int
    num_rows: int
    fill: Fill
    lower_bound: int | None = None
    """A number of rows such that no packing with the same limits needs fewer. None: the capacity is not known."""

    @classmethod
    def of(
        cls, rows: Rows, lengths: NDArray[np.integer[Any]], capacity: int, *, max_sequences: int | None = None
    ) -> "PackingMetrics":
        """Measure rows that were packed from sequences of these lengths, with these limits of a row."""
        used = int(np.sum(lengths, dtype=np.int64))
        return cls(
            num_sequences=len(rows.order),
            num_rows=len(rows),
            fill=Fill(used, len(rows) * capacity),
            lower_bound=max(lower_bound(lengths, capacity, max_sequences=max_sequences), rows.bound or 0),
        )

    @property
    def efficiency(self) -> float:
        """Tokens per slot."""
        return self.fill.ratio

    @property
    def packing_ratio(self) -> float:
        """Sequences per row."""
        return self.num_sequences / self.num_rows if self.num_rows else 0.0

    @property
    def gap(self) -> float | None:
        """The share of rows above the lower bound: no packing needs fewer rows by more than this."""
        return None if not self.lower_bound else self.num_rows / self.lower_bound - 1
