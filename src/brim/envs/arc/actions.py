"""Actions: an operation and the cells it is applied to.

The arrays of a batch of actions have one entry for each environment; those of a single action have none. Actions are
named tuples, so JAX takes them as they are.
"""

from typing import Any, NamedTuple

import numpy as np

from brim.core.errors import DataError
from brim.envs.arc.config import JaxArcConfig


class PointAction(NamedTuple):
    """One selected cell."""

    operation: Any
    """[batch], integers; see `ArcOperation`."""
    row: Any
    col: Any


class BboxAction(NamedTuple):
    """A selected rectangle: two opposite corners, in any order, both included."""

    operation: Any
    """[batch], integers; see `ArcOperation`."""
    r1: Any
    c1: Any
    r2: Any
    c2: Any


class MaskAction(NamedTuple):
    """Any set of selected cells."""

    operation: Any
    """[batch], integers; see `ArcOperation`."""
    selection: Any
    """[batch, height, width], bool, of the configuration's size."""


OUT_OF_RANGE = 127
"""A row, column and operation that does not exist."""

StructuredAction = PointAction | BboxAction | MaskAction
KINDS: dict[str, type[StructuredAction]] = {"point": PointAction, "bbox": BboxAction, "mask": MaskAction}


def check_actions(actions: object, config: JaxArcConfig, batch: tuple[int, ...]) -> StructuredAction:
    """Return actions whose parts have the right kinds and shapes. `batch` is (size,), or () for a single action.

    Values are not read: they may be traced, and an operation or a selection out of range is for the step to report.

    Raises:
        DataError: The actions are of another kind than the configuration says, or of another shape or dtype.
    """
    wanted = KINDS[config.action.selection_format]
    if not isinstance(actions, wanted):
        found = type(actions).__name__
        raise DataError(
            f"selection_format is {config.action.selection_format!r}, so actions must be {wanted.__name__}, got {found}"
        )
    return wanted(*(_part(wanted, name, part, config, batch) for name, part in _named(actions)))


def _named(actions: Any) -> list[tuple[str, Any]]:
    return list(zip(actions._fields, actions, strict=True))


def _part(kind: type[StructuredAction], name: str, part: Any, config: JaxArcConfig, batch: tuple[int, ...]) -> Any:
    array = part if hasattr(part, "dtype") and hasattr(part, "shape") else np.asarray(part)
    is_mask = name == "selection"
    shape = (*batch, *config.shape) if is_mask else batch
    if array.shape != shape:
        raise DataError(f"{kind.__name__}.{name} must have shape {shape}, got {tuple(array.shape)}")
    kinds, dtype = ("b", "bool") if is_mask else ("iu", "integers")
    if np.dtype(array.dtype).kind not in kinds:
        raise DataError(f"{kind.__name__}.{name} must be {dtype}, got {array.dtype}")
    if isinstance(array, np.ndarray | np.generic) and not is_mask and array.dtype != np.int32:
        # JAX would cut numbers to 32 bits, and what is out of range could come back in range.
        return np.clip(array, -1, OUT_OF_RANGE).astype(np.int32)
    return array
