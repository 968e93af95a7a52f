"""Spaces of Gymnasium for ARC environments, and the way from an element of the action space to an action.

| selection_format | action space of one environment |
|---|---|
| "point" | MultiDiscrete([operations, rows, columns]) |
| "bbox" | MultiDiscrete([operations, rows, columns, rows, columns]) |
| "mask" | Dict(operation=Discrete(operations), selection=MultiBinary((rows, columns))) |

The first number is always that of the operation (`ArcOperation`), whatever `allowed_operations` says: an operation that
is not allowed can be chosen, and is an invalid action.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from brim.core.errors import DataError
from brim.core.extras import need
from brim.envs.arc.actions import BboxAction, MaskAction, PointAction, StructuredAction
from brim.envs.arc.config import JaxArcConfig
from brim.envs.arc.operations import OPERATIONS, PADDING

if TYPE_CHECKING:
    from gymnasium import spaces
else:
    spaces = need("gymnasium", extra="arc", user="brim.envs.arc").spaces


def observation_space(config: JaxArcConfig) -> "spaces.Box[Any]":
    """Return the space of working grids: uint8 from 0 to 10 (`PADDING`), of the configured size."""
    return spaces.Box(0, PADDING, config.shape, np.uint8)


def action_space(config: JaxArcConfig) -> "spaces.Space[Any]":
    """Return the action space of one environment; see the table above."""
    if config.action.selection_format == "mask":
        return spaces.Dict(operation=spaces.Discrete(OPERATIONS), selection=spaces.MultiBinary(config.shape))
    corners = 1 if config.action.selection_format == "point" else 2
    return spaces.MultiDiscrete([OPERATIONS, *config.shape * corners])


def structured(action: Any, config: JaxArcConfig, batch: tuple[int, ...]) -> StructuredAction:
    """Return an element of the action space as an action; `batch` is () for one, (number,) for those of a vector.

    Shapes and kinds are checked. Numbers are not: what is out of range is an invalid action.

    Raises:
        DataError: This has another form than elements of the space.
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
