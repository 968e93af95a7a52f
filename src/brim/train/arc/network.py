"""The network of the ARC agent: from grids to an operation, two corners of a selection, and a value.

It sees the working grid, the input of the pair, two demonstrations and how many steps are left, and never the answer.
Three habits make it small, and good at rules that it was not trained on:

- A pair of grids is described by how alike each row of the one is to each row of the other, and each column. A flip, a
  move and an unchanged grid look different then, whatever the colours.
- All colours share their weights. A colour is described by what the demonstrations do to it: more of it, or less.
- An action is chosen in parts: the operation (`look`), one corner of the selection (`first_corner`), then the other
  (`second_corner`).
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from brim.core.extras import need
from brim.envs.arc.channels import demonstrations
from brim.envs.arc.operations import COLOURS
from brim.envs.arc.state import ArcEnvState

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
else:
    jax = need("jax", extra="arc", user="brim.train.arc")
    jnp = jax.numpy

Array = Any
Tree = Any
DEMONSTRATIONS = 2
"""Demonstrations that the network sees: in training one of the three pairs is the question."""
TRAITS = 5
"""Numbers that describe a colour; see `_colours`."""
DEPTH = 3 * 3 * (TRAITS + 2)
"""Numbers that describe a cell and its neighbours; see `_cells`."""
KEY = 16
"""Numbers by which the second corner is found from the first."""


class View(NamedTuple):
    """The input of the network. Grids are uint8."""

    working: Array
    """[batch, size, size]"""
    input: Array
    """[batch, size, size]"""
    shown: Array
    """[batch, 2 * DEMONSTRATIONS, size, size]: inputs and outputs in turn."""
    left: Array
    """[batch]: share of the steps of the episode that are left. The value depends on it, actions do not."""


class Seen(NamedTuple):
    """What the network makes of a view."""

    cells: Array
    """[batch, cells, width]: features of the cells of the working grid."""
    colours: Array
    """[batch, cells]: their colours."""
    operations: Array
    """[batch, operations]: logits."""
    value: Array
    """[batch]: expected return."""


def init_params(key: Array, *, size: int, width: int, others: int) -> Tree:
    """Return weights for grids of `size` rows and columns, and `others` operations beside the flood fills."""
    pair, hidden = 2 * width, 4 * width
    whole = 2 * pair + width
    shapes = {
        "pair": (2 * size * size, pair),
        "pair_2": (pair, pair),
        "cell": (DEPTH, width),
        "cell_pairs": (2 * pair, width),
        "cell_2": (width, width),
        "paint_colour": (TRAITS, pair),
        "paint_whole": (whole, pair),
        "paint": (pair, 1),
        "other_1": (whole, hidden),
        "other": (hidden, others),
        "value_1": (whole + TRAITS + 1, hidden),
        "value": (hidden, 1),
        "corner_1": (width + 1, width),
        "corner": (width, 1),
        "from": (width, KEY),
        "to": (width, KEY),
    }
    tables = {
        "place": (size * size, width),
        "corner_operation": (1 + others, width),
        "from_operation": (1 + others, KEY),
    }
    sizes = [math.prod(shape) for shape in (*shapes.values(), *tables.values())]
    # One long draw: JAX would compile one for every shape.
    drawn = iter(jnp.split(jax.random.normal(key, (sum(sizes),)), np.cumsum(sizes)[:-1]))
    # All actions are about equally probable in the beginning, and all values about 0.
    outputs = {"paint": 0.01, "other": 0.01, "corner": 0.01, "value": 0.1}
    params: dict[str, Any] = {}
    for name, shape in shapes.items():
        scale = outputs.get(name, math.sqrt(2 / shape[0]))
        params[name] = {"weight": scale * next(drawn).reshape(shape), "bias": jnp.zeros(shape[1])}
    return params | {name: 0.3 * next(drawn).reshape(shape) for name, shape in tables.items()}


def view_of(states: ArcEnvState, limit: int) -> View:
    """Return what the network sees of states. `limit` is the number of steps after which an episode is truncated."""
    left = 1 - states.step_count / limit
    return View(states.working_grid, states.input_grid, demonstrations(states, DEMONSTRATIONS), left)


def look(params: Tree, view: View, painting: int) -> Seen:
    """Run the network up to the operation and the value. `painting` operations, 10 or none, are flood fills."""
    before, after = view.shown[:, 0::2], view.shown[:, 1::2]
    shown, done = _pair(params, before, after).mean(axis=1), _pair(params, view.input, view.working)
    pairs = jnp.concatenate([shown, done], axis=-1)
    colours = _colours(view)
    cells = jax.nn.relu(
        _dense(params["cell"], _cells(view, colours)) + _dense(params["cell_pairs"], pairs)[:, None] + params["place"]
    )
    cells = jax.nn.relu(_dense(params["cell_2"], cells))
    whole = jnp.concatenate([cells.mean(axis=1), pairs], axis=-1)
    paint = jax.nn.relu(_dense(params["paint_colour"], colours) + _dense(params["paint_whole"], whole)[:, None])
    other = _dense(params["other"], jax.nn.relu(_dense(params["other_1"], whole)))
    operations = jnp.concatenate([_dense(params["paint"], paint)[:, :painting, 0], other], axis=-1)
    valued = jnp.concatenate([whole, jnp.abs(colours).sum(axis=1), view.left[:, None]], axis=-1)
    value = _dense(params["value"], jax.nn.relu(_dense(params["value_1"], valued)))[:, 0]
    return Seen(cells + params["place"], view.working.reshape(len(cells), -1), operations, value)


def first_corner(params: Tree, seen: Seen, operation: Array, painting: int) -> Array:
    """Return the logits of the first corner, given the operation. [batch, cells]"""
    same = seen.colours == operation[:, None]  # cells that have the colour of a flood fill already
    features = jnp.concatenate([seen.cells, (same & (operation[:, None] < painting))[..., None]], axis=-1)
    added = params["corner_operation"][_kind(operation, painting)][:, None]
    return _dense(params["corner"], jax.nn.relu(_dense(params["corner_1"], features) + added))[..., 0]


def second_corner(params: Tree, seen: Seen, operation: Array, corner: Array, painting: int) -> Array:
    """Return the logits of the other corner, given the operation and the first corner. [batch, cells]"""
    begin = jnp.take_along_axis(seen.cells, corner[:, None, None], axis=1)[:, 0]
    query = _dense(params["from"], begin) + params["from_operation"][_kind(operation, painting)]
    return jnp.einsum("bk,bck->bc", query, _dense(params["to"], seen.cells))


def _pair(params: Tree, before: Array, after: Array) -> Array:
    """Describe a pair of grids by how alike their rows and their columns are. [..., 2 * width]"""
    turned = (jnp.swapaxes(grid, -1, -2) for grid in (before, after))
    alike = jnp.concatenate([_alike(before, after), _alike(*turned)], axis=-1)
    return jax.nn.relu(_dense(params["pair_2"], jax.nn.relu(_dense(params["pair"], 2 * alike - 1))))


def _alike(before: Array, after: Array) -> Array:
    """Return the share of equal cells of each row before and each row after. [..., size * size]"""
    equal = before[..., :, None, :] == after[..., None, :, :]
    return equal.mean(axis=-1, dtype=jnp.float32).reshape(*before.shape[:-2], -1)


def _colours(view: View) -> Array:
    """Describe each colour, without saying which one it is. [batch, COLOURS, TRAITS]"""

    def count(grids: Array) -> Array:
        return (grids[..., None] == jnp.arange(COLOURS)).sum(axis=(-2, -3)).astype(jnp.float32)

    before, after = count(view.shown[:, 0::2]).mean(axis=1), count(view.shown[:, 1::2]).mean(axis=1)
    begun, now = count(view.input), count(view.working)
    background = jnp.broadcast_to(jnp.arange(COLOURS) == 0, now.shape).astype(jnp.float32)
    traits = (after - before) / 4, (now - begun) / 4, jnp.minimum(before, 1), jnp.minimum(now, 4) / 4, background
    return jnp.stack(traits, axis=-1)


def _cells(view: View, colours: Array) -> Array:
    """Describe each cell of the working grid and its eight neighbours: the traits of the colour, whether it was
    changed, and whether the cell exists. [batch, cells, DEPTH]
    """
    batch, height, width = view.working.shape
    colour = jnp.minimum(view.working, COLOURS - 1).reshape(batch, -1, 1).astype(jnp.int32)
    traits = jnp.take_along_axis(colours, colour, axis=1).reshape(batch, height, width, TRAITS)
    changed = (view.working != view.input)[..., None].astype(jnp.float32)
    each = jnp.concatenate([traits, changed, jnp.ones_like(changed)], axis=-1)
    padded = jnp.pad(each, ((0, 0), (1, 1), (1, 1), (0, 0)))
    around = [padded[:, row : row + height, column : column + width] for row in range(3) for column in range(3)]
    return jnp.concatenate(around, axis=-1).reshape(batch, height * width, DEPTH)


def _kind(operation: Array, painting: int) -> Array:
    """Return 0 for all flood fills, and a number of its own for every other operation."""
    return jnp.where(operation < painting, 0, operation - painting + 1)


def _dense(layer: Mapping[str, Array], features: Array) -> Array:
    return features @ layer["weight"] + layer["bias"]
