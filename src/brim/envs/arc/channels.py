"""Observations of several channels: the grids of a state and the demonstrations of its task, stacked.

All functions read states of NumPy and of JAX, and can be used under `jax.jit`. The answer of a test pair is never
shown, and neither is the answer of the present pair among the demonstrations.
"""

from typing import Any

import numpy as np

from brim.core.errors import OptionError, did_you_mean
from brim.core.options import check_counts
from brim.envs.arc.arrays import numpy_of
from brim.envs.arc.batch import observe
from brim.envs.arc.operations import PADDING
from brim.envs.arc.state import ArcEnvState

GRIDS = ("working", "input", "target", "clipboard", "selected")
"""Channels of one grid each; see `observe`."""
CHANNELS = (*GRIDS, "demonstrations")
VALUES = PADDING + 1
"""Number of values of a cell: the colours, and the value outside of a grid."""


def demonstrations(states: ArcEnvState, count: int) -> Any:
    """Return the first `count` demonstration pairs of the task that are not the present pair.

    [batch, 2 * count, height, width], uint8: input and output of the first pair, then of the second, and so on. The
    present pair is left out, because it would show the answer. Where the task has fewer pairs, all is `PADDING`.

    Raises:
        OptionError: `count` is below 1.
    """
    check_counts(count=count)
    bank, numpy = states.bank, numpy_of(states.task_index)
    first = bank.first[states.task_index, 0][..., None]
    present = states.pair_index[..., None] - first  # at least the number of demonstrations if it is a test pair
    slots = np.arange(count, dtype=np.int32)
    number = slots + (slots >= present)  # skips the present pair
    exists = number < bank.count[states.task_index, 0][..., None]
    pair = numpy.where(exists, first + number, 0)
    grids = numpy.stack([bank.inputs[pair], bank.targets[pair]], axis=-3)  # [batch, count, 2, height, width]
    shown = numpy.where(exists[..., None, None, None], grids, np.uint8(PADDING))
    return shown.reshape((*states.task_index.shape, 2 * count, *bank.shape))


def stack_channels(states: ArcEnvState, channels: tuple[str, ...], pairs: int) -> Any:
    """Return channels in the given order. [batch, count_channels(channels, pairs), height, width], uint8

    Names are those of `observe`, and "demonstrations" for the 2 * `pairs` channels of `demonstrations`.
    """
    parts = [
        demonstrations(states, pairs) if name == "demonstrations" else observe(states, (name,)) for name in channels
    ]
    return numpy_of(states.task_index).concatenate(parts, axis=-3)


def count_channels(channels: tuple[str, ...], pairs: int) -> int:
    """Return the number of grids that `stack_channels` stacks."""
    return sum(2 * pairs if name == "demonstrations" else 1 for name in channels)


def one_hot(grids: Any, axes: int = 0) -> Any:
    """Return each value of cells as a channel of 0 and 1: [..., height, width] becomes [channels, height, width].

    Colours come first, padding last. Of several grids, the 11 channels of the first one come first. The first `axes`
    axes count environments and are kept.
    """
    hot = grids[..., None, :, :] == np.arange(VALUES, dtype=np.uint8)[:, None, None]
    return hot.astype(np.uint8).reshape((*grids.shape[:axes], -1, *grids.shape[-2:]))


def check_channels(channels: object) -> tuple[str, ...]:
    """Return the names of channels as a tuple.

    Raises:
        OptionError: There is none, or one is unknown or there twice.
    """
    if isinstance(channels, str) or not isinstance(channels, tuple | list) or not channels:
        raise OptionError(f"channels must be some of {', '.join(CHANNELS)}, as a tuple, got {channels!r}")
    for place, name in enumerate(channels):
        if name not in CHANNELS:
            hint = did_you_mean(str(name), CHANNELS)
            raise OptionError(f"channels must be some of {', '.join(CHANNELS)}, got {name!r}.{hint}")
        if name in channels[:place]:
            raise OptionError(f"channels contains {name!r} twice")
    return tuple(channels)
