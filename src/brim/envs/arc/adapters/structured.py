"""Actions as arrays or dictionaries, which agents give, and the structured actions that engines take.

| selection_format | action |
|---|---|
| "point" | integers: operation, row, column |
| "bbox" | integers: operation, row, column, row, column |
| "mask" | a dictionary of "operation" and "selection" |
"""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from brim.core.errors import DataError
from brim.envs.arc.actions import BboxAction, MaskAction, PointAction, StructuredAction
from brim.envs.arc.config import JaxArcConfig


def structured(action: Any, config: JaxArcConfig, batch: tuple[int, ...]) -> StructuredAction:
    """Return actions in the form of `check_actions`; `batch` is () for a single one, (number,) for several.

    Shapes and kinds are checked. Numbers are not: what is out of range is an invalid action.

    Raises:
        DataError: This has another form than the table says.
    """
    if config.action.selection_format == "mask":
        return _mask(action, config, batch)
    kind = PointAction if config.action.selection_format == "point" else BboxAction
    values = np.asarray(action)
    if values.shape != (*batch, len(kind._fields)) or values.dtype.kind not in "iu":
        raise DataError(
            f"actions must be integers of shape {(*batch, len(kind._fields))}: {', '.join(kind._fields)}; got"
            f" {values.dtype} of shape {values.shape}"
        )
    return kind(*np.moveaxis(values, -1, 0))


def _mask(action: Any, config: JaxArcConfig, batch: tuple[int, ...]) -> MaskAction:
    if not isinstance(action, Mapping) or set(cast(Mapping[str, Any], action)) != {"operation", "selection"}:
        found = f"the keys {', '.join(map(str, action))}" if isinstance(action, Mapping) else type(action).__name__
        raise DataError(f'actions must be a dictionary with "operation" and "selection", got {found}')
    operation, selection = np.asarray(action["operation"]), np.asarray(action["selection"])
    for name, part, shape in (("operation", operation, batch), ("selection", selection, (*batch, *config.shape))):
        kinds = "iu" if name == "operation" else "iub"
        if part.shape != shape or part.dtype.kind not in kinds:
            raise DataError(f'"{name}" must be integers of shape {shape}, got {part.dtype} of shape {part.shape}')
    return MaskAction(operation, selection != 0)
