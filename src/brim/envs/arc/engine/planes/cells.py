"""Operations that change cells or the clipboard, for the engine in JAX: all of them run as one.

Those that move cells (moves, flips, rotations, copy, paste) are one row map and one shift of columns (`move`); those
that colour cells (fill, flood fill, clear, cut) are one mask (`find_masks`). `plan` turns operations and selections
into the numbers that both read, and `combine` puts the results together. Words are [height, batch], planes are
[4, height, batch].

This module imports jax.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brim.core.extras import need
from brim.envs.arc.engine.planes.bits import PLANES, ones, rectangle
from brim.envs.arc.engine.planes.selection import Chosen
from brim.envs.arc.operations import COLOURS, PADDING, ArcOperation
from brim.envs.arc.state import ArcEnvState

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
else:
    jax = need("jax", extra="arc", user="brim.envs.arc")
    jnp = jax.numpy

Array = Any


class Edit(NamedTuple):
    """The change that each environment makes to its cells, as numbers and flags. All are [batch]."""

    top: Array
    left: Array
    bottom: Array
    """The last row of the rectangle."""
    right: Array
    offset: Array
    """With `sign`: row r is taken from row offset + sign * r."""
    sign: Array
    goes_up: Array
    goes_down: Array
    goes_left: Array
    goes_right: Array
    mirrors: Array
    rotates: Array
    moves: Array
    copies: Array
    pastes: Array
    resizes: Array
    fills: Array
    all_cells: Array
    floods: Array
    colour: Array
    takes_input: Array


def plan(op: Array, chosen: Chosen, states: ArcEnvState, takes_input: Array) -> Edit:
    """Turn operations and selections into numbers, so that all operations run as one."""
    height = states.bank.shape[0]
    is_clear = op == ArcOperation.CLEAR
    moves = (op >= ArcOperation.MOVE_UP) & (op <= ArcOperation.FLIP_VERTICAL)
    whole = (moves | is_clear) & ~chosen.any
    top, left = jnp.where(whole, 0, chosen.top), jnp.where(whole, 0, chosen.left)
    bottom = jnp.where(whole, states.height - 1, chosen.bottom)
    right = jnp.where(whole, states.width - 1, chosen.right)
    clockwise, counter = op == ArcOperation.ROTATE_CLOCKWISE, op == ArcOperation.ROTATE_COUNTERCLOCKWISE
    rotates = clockwise | counter
    flips = op == ArcOperation.FLIP_VERTICAL
    copies = (op == ArcOperation.COPY) | (op == ArcOperation.CUT)
    pastes = op == ArcOperation.PASTE
    goes_up, goes_down = op == ArcOperation.MOVE_UP, op == ArcOperation.MOVE_DOWN

    # Rows of the clipboard follow those of the grid. A rectangle that is rotated lies across until it is transposed.
    offset = jnp.where(flips, top + bottom, 0)
    offset = jnp.where(clockwise, bottom + left, offset)
    offset = jnp.where(counter, top - left, offset)
    offset = jnp.where(copies, top, offset)
    offset = jnp.where(pastes, height - top, offset)
    offset = jnp.where(goes_up, 1, jnp.where(goes_down, -1, offset))
    is_flood = (op >= ArcOperation.FLOOD_FILL_0) & (op <= ArcOperation.FLOOD_FILL_9)
    colour = jnp.where(op < COLOURS, op, 0)
    return Edit(
        top=top,
        left=left,
        bottom=bottom,
        right=right,
        offset=offset,
        sign=jnp.where(flips | clockwise, -1, 1),
        goes_up=goes_up,
        goes_down=goes_down,
        goes_left=op == ArcOperation.MOVE_LEFT,
        goes_right=op == ArcOperation.MOVE_RIGHT,
        mirrors=(op == ArcOperation.FLIP_HORIZONTAL) | counter,
        rotates=rotates,
        moves=moves & ~(rotates & (bottom - top != right - left)),
        copies=copies & chosen.any,
        pastes=pastes & chosen.any,
        resizes=(op == ArcOperation.RESIZE) & chosen.any,
        fills=(op < COLOURS) | is_clear | (op == ArcOperation.CUT),
        all_cells=whole,
        floods=is_flood & chosen.any & (chosen.top == chosen.bottom) & (chosen.left == chosen.right),
        colour=jnp.where(is_flood, op - ArcOperation.FLOOD_FILL_0, colour),
        takes_input=takes_input,
    )


def move(states: ArcEnvState, edit: Edit) -> Array:
    """Move cells: rows first, then columns, then across the diagonal where a rectangle is rotated. [4, height, batch]

    The loop over the planes is there for speed: what it uses is computed once before it, and not again for every word.
    """
    height, width = states.bank.shape
    lines = jnp.arange(max(height, width), dtype=jnp.int32)[:, None]
    from_column = jnp.where(edit.pastes, 0, edit.left).astype(jnp.uint32)
    to_column = jnp.where(edit.copies, 0, jnp.where(edit.rotates, edit.top, edit.left)).astype(jnp.uint32)
    last = (edit.right - edit.left).astype(jnp.uint32)
    span = jnp.where(edit.pastes, jnp.uint32(0xFFFFFFFF), ones(last + 1))

    def place(_: None, planes: tuple[Array, Array]) -> tuple[None, Array]:
        source = edit.offset + edit.sign * lines
        source = jnp.where(edit.goes_up & (lines == edit.bottom), edit.top, source)
        source = jnp.where(edit.goes_down & (lines == edit.top), edit.bottom, source)
        taken = _take_rows(jnp.concatenate(planes), jnp.clip(source, 0, 2 * height - 1))
        taken = (taken >> from_column) & span
        turned = jnp.where(edit.goes_left, (taken >> 1) | ((taken & 1) << last), taken)
        turned = jnp.where(edit.goes_right, ((taken << 1) | (taken >> last)) & span, turned)
        turned = jnp.where(edit.mirrors, _reverse(taken) >> (31 - last), turned)
        placed = turned << to_column
        return None, jnp.where(edit.rotates, transpose(placed), placed)[:height]

    _, placed = jax.lax.scan(place, None, (states.cells, states.held))
    return placed


class Masks(NamedTuple):
    """Which cells get what. All [height, batch]."""

    moved: Array
    """Cells that get what was moved or pasted."""
    filled: Array
    """Cells that get a colour."""
    before: Array
    """Cells of the working grid before the step."""
    after: Array
    """Cells of the working grid after it, unless it takes the input."""
    copied: Array
    """Cells that the clipboard gets."""


def find_masks(
    placed: Array, edit: Edit, chosen: Chosen, selection: Array, old_rows: Array, states: ArcEnvState
) -> Masks:
    """Say which cells get what."""
    rows = jnp.arange(placed.shape[1], dtype=jnp.int32)[:, None]
    moved = jnp.where(edit.moves, rectangle(rows, edit.top, edit.left, edit.bottom, edit.right), 0)
    held_there = jnp.where(rows >= edit.top, ~_equals(placed, PADDING) & ~ones(edit.left), 0)
    filled = jnp.where(edit.fills, jnp.where(edit.all_cells, old_rows, selection), 0)
    copied = _take_rows(selection, jnp.clip(rows + edit.top, 0, placed.shape[1] - 1)) >> edit.left.astype(jnp.uint32)
    return Masks(
        moved=jnp.where(edit.pastes, held_there, moved),
        filled=filled | _flood(states.cells, jnp.where(edit.floods, selection, 0), chosen, old_rows),
        before=old_rows,
        after=jnp.where(edit.resizes, rectangle(rows, 0, 0, edit.bottom, edit.right), old_rows),
        copied=jnp.where(edit.copies & (rows + edit.top <= edit.bottom), copied, 0),
    )


def combine(states: ArcEnvState, placed: Array, edit: Edit, masks: Masks, inputs: Array) -> tuple[Array, Array]:
    """Put the new grid and the new clipboard together, plane by plane."""

    def change(number: Any, kept: tuple[Array, Array]) -> tuple[Array, Array]:
        grid, held, moved, asked, colour, pad = (
            jax.lax.dynamic_index_in_dim(planes, number, keepdims=False)
            for planes in (*kept, placed, inputs, colours, outside)
        )
        edited = grid & ~(masks.moved | masks.filled)
        edited = edited | (moved & masks.moved) | (colour & masks.filled)
        edited = (edited & masks.before & masks.after) | (pad & ~masks.after)
        edited = jnp.where(edit.takes_input, asked, edited)
        copied = (moved & masks.copied) | (pad & ~masks.copied)
        copied = jnp.where(edit.copies, copied, held)
        return (
            jax.lax.dynamic_update_index_in_dim(kept[0], edited, number, 0),
            jax.lax.dynamic_update_index_in_dim(kept[1], copied, number, 0),
        )

    colours, outside = _spread(edit.colour), jnp.asarray(padding())
    return jax.lax.fori_loop(0, PLANES, change, (states.cells, states.held))


def _take_rows(words: Array, source: Array) -> Array:
    """Take rows: result[r, b] is words[source[r, b], b]."""
    return jnp.take_along_axis(words, source, axis=0, mode="promise_in_bounds")


def _reverse(words: Array) -> Array:
    """Reverse the bits of every word."""
    for by, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF)):
        words = ((words >> by) & mask) | ((words & mask) << by)
    return (words >> 16) | (words << 16)


def transpose(words: Array) -> Array:
    """Transpose 32 x 32 bits: column c of row r becomes column r of row c. [lines, batch]

    Each of five rounds swaps blocks of half the size of the round before, between rows that differ in one bit of their
    number (Warren, Hacker's Delight, 7-3). Rows are kept in an order in which those two are always half the rows apart,
    so that all rounds are the same code; after five rounds the order is the original one.
    """
    lines, batch = words.shape

    def swap(rows: Array, round: Array) -> tuple[Array, None]:
        by, mask = round[0], round[1]
        upper, lower = rows[:16], rows[16:]
        exchanged = ((upper >> by) ^ lower) & mask
        upper, lower = upper ^ (exchanged << by), lower ^ exchanged
        return jnp.stack([upper, lower], axis=1).reshape(32, batch), None

    rounds = jnp.array(
        [(16, 0x0000FFFF), (8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)], jnp.uint32
    )
    rows, _ = jax.lax.scan(swap, jnp.pad(words, ((0, 32 - lines), (0, 0))), rounds)
    return rows[:lines]


def _flood(grid: Array, start: Array, chosen: Chosen, old_rows: Array) -> Array:
    """Grow the start cells over all connected cells of the same colour. [height, batch]

    A sweep goes down and up through the rows: each row takes over what the row before reached, and spreads it sideways.
    Going down twice adds nothing, so the sweeps end when going up has added nothing in any environment.
    """
    corner = jnp.take_along_axis(grid, chosen.top[None, None], axis=1, mode="promise_in_bounds")  # [4, 1, batch]
    bits = (corner >> chosen.left.astype(jnp.uint32)) & 1
    same = ~(grid ^ (jnp.uint32(0) - bits))
    region = same[0] & same[1] & same[2] & same[3] & old_rows

    def spread(reached: Array, before: Array, free: Array) -> Array:
        reached = reached | (before & free)
        reached = (((reached + free) ^ free) | reached) & free  # to higher columns: a carry runs through free cells
        for by in (1, 2, 4, 8, 16):  # to lower columns, by doubling
            reached = reached | (free & (reached >> by))
            free = free & (free >> by)
        return reached

    def visit(row: Any, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        reached, before = carry
        here = jax.lax.dynamic_index_in_dim(reached, row, keepdims=False)
        free = jax.lax.dynamic_index_in_dim(region, row, keepdims=False)
        here = spread(here, before, free)
        return jax.lax.dynamic_update_index_in_dim(reached, here, row, 0), here

    def visit_from_below(step: Any, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        return visit(height - 1 - step, carry)

    def sweep(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        reached, _ = carry
        none = jnp.zeros_like(reached[0])
        down, _ = jax.lax.fori_loop(0, height, visit, (reached, none))
        up, _ = jax.lax.fori_loop(0, height, visit_from_below, (down, none))
        return up, jnp.any(up != down)

    height = grid.shape[1]
    start = start & region
    reached, _ = jax.lax.while_loop(lambda carry: carry[1], sweep, (start, jnp.any(start != 0)))
    return reached


def _spread(colour: Array) -> Array:
    """A colour as planes: words of ones or zeros. [batch] -> [4, 1, batch]"""
    planes = jnp.arange(PLANES, dtype=jnp.int32)[:, None, None]
    return jnp.uint32(0) - (colour >> planes & 1).astype(jnp.uint32)


def padding() -> NDArray[np.uint32]:
    """`PADDING` as planes. [4, 1, 1]"""
    return np.array([0xFFFFFFFF * (PADDING >> plane & 1) for plane in range(PLANES)], np.uint32)[:, None, None]


def _equals(planes: Array, value: int) -> Array:
    """The cells that have a value. [4, height, batch] -> [height, batch]"""
    same = [planes[plane] if value >> plane & 1 else ~planes[plane] for plane in range(PLANES)]
    return same[0] & same[1] & same[2] & same[3]
