"""`EpochColumns`: all microbatches of one epoch, as flat columns.

They are arrays where the epoch was built, and columns of a file, of which only what is read is verified, where it is
stored.
"""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import gather, take_segments
from brim.core.column import Column
from brim.core.fingerprint import fingerprint
from brim.plan.cost import DEFAULT, CostModel


@dataclass(frozen=True, eq=False)
class EpochColumns:
    """The microbatches of an epoch as columns.

    Microbatch i has the rows `row_ptr[i]` to `row_ptr[i + 1]`. Packed row r has the units
    `unit[seq_ptr[r]:seq_ptr[r + 1]]`.

    The columns of a stored epoch are `Column`s, for reading single microbatches; `whole` has them as arrays.
    """

    unit: NDArray[np.int32]
    row_ptr: NDArray[np.int64]  # [microbatches + 1]
    width: NDArray[np.int32]  # [microbatches], padded length
    bucket: NDArray[np.int32]  # [microbatches]
    tokens: NDArray[np.int64]  # [microbatches], without padding
    attention: NDArray[np.int64]  # [microbatches], sum of the squared lengths that attend to themselves
    seq_ptr: NDArray[np.int64] | None = None  # [rows + 1]; None: every row is one unit
    group: NDArray[np.int32] | None = None  # [microbatches]

    def __len__(self) -> int:
        return len(self.width)

    @property
    def slots(self) -> NDArray[np.int64]:
        return np.diff(_array(self.row_ptr)) * _array(self.width).astype(np.int64)

    def cost(self, model: CostModel = DEFAULT) -> NDArray[np.int64]:
        """Return the cost of each microbatch, in slots. Of a stored epoch, that reads three columns."""
        return model.cost(self.slots, _array(self.attention))

    @cached_property
    def columns(self) -> dict[str, Column]:
        """The columns by name, with their checksums."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: Column.of(column) for name, column in found.items() if column is not None}

    @cached_property
    def whole(self) -> "EpochColumns":
        """The same with arrays, which is all of a stored epoch.

        Raises:
            DamagedError: A column is not as it was written.
        """
        if not any(isinstance(column, Column) for column in vars(self).values()):
            return self
        return EpochColumns(**{name: column.whole for name, column in self.columns.items()})

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of every number of the epoch: order, boundaries, widths, packs. It covers their checksums."""
        return fingerprint(columns={name: column.identity for name, column in self.columns.items()})

    def take(self, microbatches: NDArray[np.int64]) -> "EpochColumns":
        """Return the given microbatches, in the given order; NULL gives an empty one."""
        real = microbatches >= 0
        if self.seq_ptr is None:
            unit, row_ptr = take_segments(self.unit, self.row_ptr, microbatches)
            seq_ptr = None
        else:
            rows, row_ptr = gather(self.row_ptr, microbatches)
            unit, seq_ptr = take_segments(self.unit, self.seq_ptr, rows)

        def picked(column: NDArray[Any]) -> NDArray[Any]:
            return (
                np.where(real, column[microbatches], 0).astype(column.dtype)
                if len(column)
                else np.zeros(len(real), column.dtype)
            )

        return EpochColumns(
            unit=unit,
            row_ptr=row_ptr,
            width=picked(self.width),
            bucket=picked(self.bucket),
            tokens=picked(self.tokens),
            attention=picked(self.attention),
            seq_ptr=seq_ptr,
            group=None if self.group is None else picked(self.group),
        )


def _array(column: Any) -> NDArray[Any]:
    return column.whole if isinstance(column, Column) else column
