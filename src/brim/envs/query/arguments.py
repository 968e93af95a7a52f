"""Arguments of a vector environment, checked: modes, seeds, masks."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from brim.core.errors import OptionError
from brim.core.extras import need

if TYPE_CHECKING:
    from gymnasium.vector import AutoresetMode
else:
    AutoresetMode = need("gymnasium.vector", extra="query", user="brim.envs.query").AutoresetMode

Seeds = int | Sequence[int | None] | None


def checked_mode(mode: "AutoresetMode | str") -> "AutoresetMode":
    """Return an autoreset mode, given as itself or by a name such as "next_step".

    Raises:
        OptionError: There is no such mode.
    """
    if isinstance(mode, AutoresetMode):
        return mode
    known = {one.value: one for one in AutoresetMode} | {one.name.lower(): one for one in AutoresetMode}
    if mode not in known:
        raise OptionError(f"autoreset_mode must be one of {', '.join(known)}, got {mode!r}")
    return known[mode]


def seeds_of(seed: Any, count: int) -> dict[int, int | None]:
    """Return the seed of each environment: those of a list, or an integer and its successors. None is no seed.

    Raises:
        OptionError: There are too few or too many, or one is no integer from 0 on.
    """
    if seed is None:
        return dict.fromkeys(range(count))
    if isinstance(seed, int | np.integer):
        return {number: int(seed) + number for number in range(count)}
    if not isinstance(seed, list | tuple | np.ndarray):
        raise OptionError(f"seed must be an integer or a list of integers, got {seed!r}")
    if len(seed) != count:
        raise OptionError(f"there are {len(seed)} seeds for {count} environments; give one for each")
    for one in cast(list[Any], seed):
        if one is not None and (not isinstance(one, int | np.integer) or one < 0):
            raise OptionError(f"a seed must be an integer that is not negative, got {one!r}")
    return {number: None if one is None else int(one) for number, one in enumerate(cast(list[Any], seed))}


def masked(mask: Any, count: int) -> list[int]:
    """Return the environments of a mask, which stays as it is.

    Raises:
        OptionError: It is no mask, or names no environment.
    """
    if not isinstance(mask, np.ndarray) or mask.shape != (count,) or mask.dtype != np.bool_:
        raise OptionError(f"reset_mask must be an array of {count} booleans, got {mask!r:.80}")
    if not mask.any():
        raise OptionError("reset_mask names no environment; set at least one entry")
    return np.flatnonzero(mask).tolist()
