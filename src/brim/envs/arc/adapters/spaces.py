"""Spaces of Gymnasium for ARC environments.

| selection_format | action space of one environment |
|---|---|
| "point" | MultiDiscrete([operations, rows, columns]) |
| "bbox" | MultiDiscrete([operations, rows, columns, rows, columns]) |
| "mask" | Dict(operation=Discrete(operations), selection=MultiBinary((rows, columns))) |

The first number is always that of the operation (`ArcOperation`), whatever `allowed_operations` says: an operation that
is not allowed can be chosen, and is an invalid action.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from brim.core.extras import need
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
