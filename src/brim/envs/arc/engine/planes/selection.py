"""Selections of cells, for the engine in JAX. Words of bits are [height, batch].

This module imports jax.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

from brim.core.extras import need
from brim.envs.arc.actions import MaskAction, StructuredAction
from brim.envs.arc.config import JaxArcConfig
from brim.envs.arc.engine.call import parts
from brim.envs.arc.engine.on_xla import narrow
from brim.envs.arc.engine.planes.bits import highest, kept_apart, lowest, rectangle
from brim.envs.arc.operations import OPERATIONS, ArcOperation
from brim.envs.arc.state import ArcEnvState

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
else:
    jax = need("jax", extra="arc", user="brim.envs.arc")
    jnp = jax.numpy

Array = Any


class Chosen(NamedTuple):
    """The cells that the actions select. All but `rows` are [batch]."""

    rows: Array
    """[height, batch], uint32: the selected cells that the operation may use."""
    any: Array
    out_of_range: Array
    top: Array
    left: Array
    bottom: Array
    """The last selected row."""
    right: Array


def choose(actions: StructuredAction, op: Array, old_rows: Array, states: ArcEnvState, config: JaxArcConfig) -> Chosen:
    """Find the selected cells that the operations may use: inside of the grid, or anywhere if they resize it."""
    height, width = config.shape
    anywhere = op == ArcOperation.RESIZE
    if isinstance(actions, MaskAction):
        return _choose_by_mask(actions.selection, old_rows, anywhere, states)
    _, *corners = parts(actions)
    r1, c1, r2, c2 = (narrow(corner) for corner in (corners if corners[2] is not None else corners[:2] * 2))
    top, left, bottom, right = jnp.minimum(r1, r2), jnp.minimum(c1, c2), jnp.maximum(r1, r2), jnp.maximum(c1, c2)
    last_row = jnp.where(anywhere, height, states.height) - 1
    last_column = jnp.where(anywhere, width, states.width) - 1
    fits = (top >= 0) & (left >= 0) & (bottom < height) & (right < width) & (top <= last_row) & (left <= last_column)
    top, left = jnp.where(fits, top, 0), jnp.where(fits, left, 0)
    bottom, right = (
        jnp.where(fits, jnp.minimum(bottom, last_row), 0),
        jnp.where(fits, jnp.minimum(right, last_column), 0),
    )
    rows = jnp.arange(height, dtype=jnp.int32)[:, None]
    chosen_rows = jnp.where(fits, rectangle(rows, top, left, bottom, right), 0)
    return Chosen(chosen_rows, fits, ~fits, top, left, bottom, right)


def _choose_by_mask(mask: Array, old_rows: Array, anywhere: Array, states: ArcEnvState) -> Chosen:
    # Row by row in the order of the memory, and transposed afterwards.
    columns = jax.lax.broadcasted_iota(jnp.uint32, mask.shape, 2)
    words = jnp.sum(mask.astype(jnp.uint32) << columns, axis=2, dtype=jnp.uint32)  # [batch, height]
    everything = kept_apart(words, states).T
    inside = jnp.where(anywhere, everything, everything & old_rows)

    def add(row: Array, found: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        columns, filled, anything = found
        here = jax.lax.dynamic_index_in_dim(inside, row, keepdims=False)
        all_here = jax.lax.dynamic_index_in_dim(everything, row, keepdims=False)
        return columns | here, filled | ((here != 0).astype(jnp.uint32) << row.astype(jnp.uint32)), anything | all_here

    none = jnp.zeros_like(inside[0])
    columns, filled, anything = jax.lax.fori_loop(0, inside.shape[0], add, (none, none, none))
    some = columns != 0
    corners = lowest(filled), lowest(columns), highest(filled), highest(columns)
    return Chosen(inside, some, ~some & (anything != 0), *corners)


def uses_selection(op: Array) -> Array:
    return (op < ArcOperation.COPY_INPUT) | (op == ArcOperation.RESIZE)


def is_allowed(op: Array, config: JaxArcConfig) -> Array:
    known = (op >= 0) & (op < OPERATIONS)
    if config.action.allowed_operations is None:
        return known
    allowed = config.action.allowed
    words = jnp.where(op < 32, jnp.uint32(allowed & 0xFFFFFFFF), jnp.uint32(allowed >> 32))
    return known & (words >> (op & 31).astype(jnp.uint32) & 1 == 1)
