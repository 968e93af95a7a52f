"""Grids as bits, for the engine in JAX: packing, unpacking, words of bits, and randomness.

A cell has four bits (colours 0 to 9, and `PADDING`). Bit p of all cells of a row is a word of 32 bits, column c at bit
c, so a grid is four planes of words. Environments are on the last axis: JAX computes on many at once.

This module imports jax.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from brim.core.extras import need
from brim.envs.arc.engine.random import PARITY, ROTATIONS
from brim.envs.arc.operations import PADDING
from brim.envs.arc.state import RUNNING, ArcEnvState

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
else:
    jax = need("jax", extra="arc", user="brim.envs.arc")
    jnp = jax.numpy

PLANES = 4


def pack(grids: Any) -> "jax.Array":
    """Turn cells into planes. [batch, height, width] of uint8 -> [4, height, batch] of uint32

    Columns beyond the width are filled with `PADDING`.
    """
    cells = jnp.moveaxis(jnp.asarray(grids), 0, -1)  # [height, width, batch]
    cells = jnp.pad(cells, ((0, 0), (0, 32 - cells.shape[1]), (0, 0)), constant_values=PADDING)
    return jnp.stack([pack_flags(cells >> plane & 1) for plane in range(PLANES)])


def pack_flags(flags: Any) -> "jax.Array":
    """Turn flags into words. [height, width, batch] -> [height, batch] of uint32"""
    columns = jnp.arange(flags.shape[1], dtype=jnp.uint32)[:, None]
    return jnp.sum(flags.astype(jnp.uint32) << columns, axis=1, dtype=jnp.uint32)


def pack_bank(inputs: Any, targets: Any) -> "jax.Array":
    """Turn the grids of a bank into planes. Two of [pairs, height, width] -> [pairs, 2, 4, height] of uint32"""
    return jnp.stack([jnp.moveaxis(pack(grids), -1, 0) for grids in (inputs, targets)], axis=1)


def unpack(planes: Any, width: int, *, single: bool = False) -> "jax.Array":
    """Turn planes into cells. [..., 4, height, batch] of uint32 -> [..., batch, height, width] of uint8

    `single` planes have no axis for a batch, and neither has the result.
    """
    if single:
        planes = planes[..., None]
    first, second, third, fourth = (planes[..., plane, :, :] for plane in range(PLANES))
    # Words that hold a bit of 32 cells each become words that hold the four bits of 8 cells each, cell after cell.
    first, second = _exchange(first, second, 16, 0x0000FFFF)
    third, fourth = _exchange(third, fourth, 16, 0x0000FFFF)
    first, third = _exchange(first, third, 8, 0x00FF00FF)
    second, fourth = _exchange(second, fourth, 8, 0x00FF00FF)
    words = jax.lax.map(_gather, jnp.stack([first, third, second, fourth]))  # a loop, so that XLA stores its results
    words = words.swapaxes(-1, -2)[..., None]  # [4, ..., batch, height, 1]
    parts = [
        (words[part] >> jnp.arange(min(8, width - 8 * part), dtype=jnp.uint32) * PLANES & 15).astype(jnp.uint8)
        for part in range(-(-width // 8))
    ]
    cells = jnp.concatenate(parts, axis=-1)
    return cells[..., 0, :, :] if single else cells


def _exchange(one: Any, other: Any, by: int, mask: int) -> tuple[Any, Any]:
    """Exchange the bits of `other` under the mask with those of `one` that are `by` places higher."""
    unlike = (one >> by ^ other) & jnp.uint32(mask)
    return one ^ unlike << by, other ^ unlike


def _gather(words: Any) -> Any:
    """Turn words of four bytes, byte b of them the bits of eight cells, into words of eight cells of four bits."""
    for by, mask in ((12, 0x0000F0F0), (6, 0x00CC00CC), (3, 0x0A0A0A0A)):
        unlike = (words >> by ^ words) & jnp.uint32(mask)
        words = words ^ unlike ^ unlike << by
    return words


def threefry(key: Any, counter: Any) -> tuple["jax.Array", "jax.Array"]:
    """Return two random words for each key and counter, as `brim.envs.arc.engine.random.threefry` does with a second
    counter of 0. [batch, 2], [batch] -> [batch], [batch]"""
    keys = (key[:, 0], key[:, 1], key[:, 0] ^ key[:, 1] ^ np.uint32(PARITY))
    x = counter.astype(jnp.uint32) + keys[0]
    y = keys[1]
    for group in range(5):
        for rotation in ROTATIONS[:4] if group % 2 == 0 else ROTATIONS[4:]:
            x = x + y
            y = (y << rotation) | (y >> (32 - rotation))
            y = y ^ x
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


def below(words: Any, limit: Any) -> "jax.Array":
    """Turn random words into integers from 0 to limit - 1: the upper half of a product of 64 bits, made from two of 32.

    The limit is at most 2**16.
    """
    factor = jnp.asarray(limit).astype(jnp.uint32)
    low, high = (words & 0xFFFF) * factor, (words >> 16) * factor
    return ((high + (low >> 16)) >> 16).astype(jnp.int32)


def rectangle(rows: Any, top: Any, left: Any, bottom: Any, right: Any) -> "jax.Array":
    """The cells of a rectangle, last row and column included. [height, batch]"""
    return jnp.where((rows >= top) & (rows <= bottom), ones(right + 1) & ~ones(left), 0)


def ones(count: Any) -> "jax.Array":
    """Words whose lowest `count` bits are set; `count` is below 32."""
    return (jnp.uint32(1) << jnp.asarray(count).astype(jnp.uint32)) - 1


def lowest(words: Any) -> "jax.Array":
    """Number of the lowest bit that is set; 0 for 0."""
    trailing = jax.lax.population_count(~words & (words - 1)).astype(jnp.int32)
    return jnp.where(words == 0, 0, trailing)


def highest(words: Any) -> "jax.Array":
    """Number of the highest bit that is set; 0 for 0."""
    return jnp.where(words == 0, 0, 31 - jax.lax.clz(words).astype(jnp.int32))


def kept_apart(values: Any, states: ArcEnvState) -> Any:
    """Return the values, computed once and stored.

    XLA would compute them again for every element of what they are used for, such as for every word of a plane. The
    results of a condition are stored; this one is always true, which XLA cannot know.
    """
    zeros = jax.tree.map(jnp.zeros_like, values)
    return jax.lax.cond(states.status[0] >= RUNNING, lambda: values, lambda: zeros)
