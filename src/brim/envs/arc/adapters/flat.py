"""Actions as numbers from 0 to n - 1, as agents with one discrete choice want them.

Only allowed operations are numbered, and no two numbers mean the same action. Operations that use the selection come
first, in the order of their numbers: each has one number for every cell ("point") or every box ("bbox"). Then come the
operations that ignore the selection, with one number each. All functions take arrays of NumPy and of JAX.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import OptionError
from brim.envs.arc.actions import OUT_OF_RANGE, BboxAction, PointAction, StructuredAction
from brim.envs.arc.arrays import numpy_of
from brim.envs.arc.config import JaxArcConfig
from brim.envs.arc.operations import OPERATIONS, ArcOperation


class FlatTable(NamedTuple):
    """The numbers of all actions of a configuration; `flat_table` makes it."""

    operations: NDArray[np.int32]
    """Numbers of the operations: first those that use the selection."""
    selecting: int
    """How many of them use the selection."""
    rows: NDArray[np.int32]
    """[row spans, 2]: first and last row of a selection. Spans are ordered by their first row, then by their last."""
    columns: NDArray[np.int32]
    """[column spans, 2]"""
    is_box: bool

    @property
    def places(self) -> int:
        """Number of possible selections: place p has row span p // len(columns) and column span p % len(columns)."""
        return len(self.rows) * len(self.columns)

    @property
    def size(self) -> int:
        """Number of actions."""
        return self.selecting * self.places + len(self.operations) - self.selecting

    def decode(self, numbers: Any) -> StructuredAction:
        """Return the actions with these numbers. A number that does not exist gives an invalid action.

        An operation that ignores the selection gets that of place 0.
        """
        numpy, first = numpy_of(numbers), self.selecting * self.places
        exists = (numbers >= 0) & (numbers < self.size)
        number = numpy.where(exists, numbers, 0)
        selects = number < first
        which = numpy.where(selects, number // self.places, self.selecting + number - first)
        operation = numpy.where(exists, numpy.asarray(self.operations)[which], OUT_OF_RANGE)
        place = numpy.where(selects, number % self.places, 0)
        rows = numpy.asarray(self.rows)[place // len(self.columns)]
        columns = numpy.asarray(self.columns)[place % len(self.columns)]
        if not self.is_box:
            return PointAction(operation, rows[..., 0], columns[..., 0])
        return BboxAction(operation, rows[..., 0], columns[..., 0], rows[..., 1], columns[..., 1])

    def encode(self, actions: StructuredAction) -> Any:
        """Return the numbers of actions whose operations are allowed and whose cells exist. The inverse of `decode`."""
        numpy = numpy_of(actions.operation)
        if isinstance(actions, BboxAction):
            row = self._span(numpy, actions.r1, actions.r2, self.rows)
            column = self._span(numpy, actions.c1, actions.c2, self.columns)
        else:
            assert isinstance(actions, PointAction)
            row, column = actions.row, actions.col
        order = np.zeros(OPERATIONS, np.int32)
        order[self.operations] = np.arange(len(self.operations))
        which = numpy.asarray(order)[actions.operation]
        selected = which * self.places + row * len(self.columns) + column
        return numpy.where(which < self.selecting, selected, self.selecting * (self.places - 1) + which)

    @staticmethod
    def _span(numpy: Any, one: Any, other: Any, spans: NDArray[np.int32]) -> Any:
        """Return the number of the span between two rows or columns, in any order."""
        first, last = numpy.minimum(one, other), numpy.maximum(one, other)
        size = int(spans[-1, 1]) + 1
        return first * size - first * (first - 1) // 2 + last - first


@lru_cache(maxsize=16)
def flat_table(config: JaxArcConfig) -> FlatTable:
    """Return the numbers of all actions.

    Raises:
        OptionError: Selections are masks, of which there are too many to number.
    """
    form = config.action.selection_format
    if form == "mask":
        raise OptionError(
            f'flat actions need selection_format "point" or "bbox", got "mask": {config.shape[0]}x{config.shape[1]}'
            f" cells can be selected in 2**{config.shape[0] * config.shape[1]} ways"
        )
    allowed = [ArcOperation(number) for number in range(OPERATIONS) if config.action.allowed >> number & 1]
    selecting = [operation for operation in allowed if operation.uses_selection]
    others = [operation for operation in allowed if not operation.uses_selection]
    rows, columns = (_spans(size, boxes=form == "bbox") for size in config.shape)
    return FlatTable(np.array([*selecting, *others], np.int32), len(selecting), rows, columns, form == "bbox")


def _spans(size: int, *, boxes: bool) -> NDArray[np.int32]:
    spans = [(first, last) for first in range(size) for last in range(first, size if boxes else first + 1)]
    return np.array(spans, np.int32)
