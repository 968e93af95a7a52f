"""Step environments in pure JAX: wherever JAX runs, and no operation is computed as a branch of its own.

`vmap` over a branch for each operation would compute all of them for every environment. Here operations share their
work. All that move cells (moves, flips, rotations, copy, paste) are one row map followed by one shift of columns; all
that colour cells (fill, flood fill, clear, cut) are one mask; taking the input and changing the pair are one lookup.

Arrays are [height, batch] words, or [4, height, batch] for planes; see `brim.envs.arc.engine.bits`. A batch larger than `TILE` is stepped tile by tile, so that what a step works on stays in the cache.

This module imports jax.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from brim.core.extras import need
from brim.envs.arc.actions import MaskAction, StructuredAction
from brim.envs.arc.config import JaxArcConfig
from brim.envs.arc.engine.bits import PLANES, below, pack, threefry, unpack
from brim.envs.arc.engine.call import CHANGED, Report, parts
from brim.envs.arc.engine.on_xla import narrow
from brim.envs.arc.operations import COLOURS, OPERATIONS, PADDING, ArcOperation
from brim.envs.arc.state import RUNNING, TERMINATED, TRUNCATED, ArcEnvState, axis_of
from brim.envs.arc.tasks.bank import TaskBank

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
else:
    jax = need("jax", extra="arc", user="brim.envs.arc")
    jnp = jax.numpy

Array = Any
TILE = 1024
"""Environments that are stepped at once."""
NOTHING = OPERATIONS
"""Stands for an operation that changes nothing."""


class Chosen(NamedTuple):
    """What the actions select. All but `rows` are [batch]."""

    rows: Array
    """[height, batch], uint32: the selected cells that the operation may use."""
    any: Array
    out_of_range: Array
    top: Array
    left: Array
    bottom: Array
    """The last selected row."""
    right: Array


def step(states: ArcEnvState, actions: StructuredAction, config: JaxArcConfig) -> tuple[ArcEnvState, Array, Report]:
    """Step every environment, and return states, observations and the report. The arrays may be traced.

    A large batch is stepped in tiles of one size. They are changed in place, unless the last tile overlaps the one
    before it; then all are read from the given states, so that no environment is stepped twice.
    """
    batch = states.status.shape[0]
    tiles = -(-batch // TILE)
    if tiles <= 1:
        return _step_and_observe(states, actions, config)
    size = -(-batch // tiles)
    in_place = batch % size == 0
    kept = config.environment.auto_reset == "same_step"
    obs = jnp.zeros((batch, *config.shape), jnp.uint8)
    flags, numbers, indices = (jnp.zeros(batch, kind) for kind in (jnp.bool_, jnp.float32, jnp.int32))
    report = Report(
        reward=numbers,
        terminated=flags,
        truncated=flags,
        similarity=numbers,
        solved=flags,
        invalid=flags,
        pair=indices,
        final=obs if kept else obs[:0],
    )

    def turn(number: Array, held: tuple[ArcEnvState, Array, Report]) -> tuple[ArcEnvState, Array, Report]:
        start = jnp.minimum(number * size, batch - size)
        source = held[0] if in_place else states
        tile = _cut(source, start, size)
        after, seen, said = _step_and_observe(tile, _cut_actions(actions, start, size), config)
        return _pasted(held[0], after, start), _put(held[1], seen, start), _put_all(held[2], said, start, kept)

    return jax.lax.fori_loop(0, tiles, turn, (states, obs, report))


def reset(states: ArcEnvState, config: JaxArcConfig) -> tuple[ArcEnvState, Array]:
    """Begin the next episode of every environment, and return states and observations."""
    after = _begin_next(states, jnp.ones_like(states.status, jnp.bool_), config)
    return after, unpack(after.cells, config.shape[1])


def as_bits(states: ArcEnvState) -> ArcEnvState:
    """Return states of the kernel, as JAX arrays, as states of this engine. Their bank must have planes."""
    return states._replace(
        cells=pack(states.cells),
        held=pack(states.held),
        selection=states.selection.swapaxes(0, 1),
        pair_planes=_look_up(states.bank, states.pair_index),
    )


def _step_and_observe(
    states: ArcEnvState, actions: StructuredAction, config: JaxArcConfig
) -> tuple[ArcEnvState, Array, Report]:
    after, report = _step(states, actions, config)
    return after, unpack(after.cells, config.shape[1]), report


def _cut(states: ArcEnvState, start: Any, size: int) -> ArcEnvState:
    """The states of some environments of a batch, next to each other."""
    cut = {
        name: jax.lax.dynamic_slice_in_dim(leaf, start, size, axis=axis_of(states, name) % leaf.ndim)
        for name, leaf in zip(states._fields[1:], states[1:], strict=True)
    }
    return ArcEnvState(bank=states.bank, **cut)


def _cut_actions(actions: StructuredAction, start: Any, size: int) -> StructuredAction:
    return type(actions)(*(jax.lax.dynamic_slice_in_dim(part, start, size) for part in actions))


def _pasted(states: ArcEnvState, tile: ArcEnvState, start: Array) -> ArcEnvState:
    changed = {
        name: jax.lax.dynamic_update_slice_in_dim(
            getattr(states, name), getattr(tile, name), start, axis=axis_of(states, name) % getattr(tile, name).ndim
        )
        for name in (*CHANGED, "pair_planes")
    }
    return states._replace(**changed)


def _put(array: Array, part: Array, start: Array) -> Array:
    return jax.lax.dynamic_update_slice_in_dim(array, part, start, axis=0)


def _put_all(report: Report, part: Report, start: Array, kept: bool) -> Report:
    """Put the report of a tile into that of the batch; its last field only if it is `kept`."""
    names = Report._fields if kept else Report._fields[:-1]
    return report._replace(**{name: _put(getattr(report, name), getattr(part, name), start) for name in names})


class Act(NamedTuple):
    """What the actions mean. All but `chosen` and `selection` are [batch]."""

    op: Array
    """int32: the operation, or `NOTHING` if it is invalid or the environment has finished."""
    invalid: Array
    chosen: Chosen
    selection: Array
    """[height, batch], uint32: the selection after the step."""


class Course(NamedTuple):
    """Where the episodes are after the step. All are [batch]."""

    episode: Array
    task: Array
    pair: Array
    demos: Array
    tests: Array
    begins: Array
    """bool: a pair begins with this step."""
    restarts: Array
    """bool: an episode begins with this step, instead of an action."""


def _step(states: ArcEnvState, actions: StructuredAction, config: JaxArcConfig) -> tuple[ArcEnvState, Report]:
    height, width = config.shape
    rows = jnp.arange(height, dtype=jnp.int32)[:, None]
    old_rows = _rectangle(rows, 0, 0, states.height - 1, states.width - 1)
    act = _read(states, actions, old_rows, config)
    course = _follow(states, act.op, config)
    edit = _plan(act.op, act.chosen, states, course.begins | (act.op == ArcOperation.COPY_INPUT))
    sizes = states.bank.sizes[course.pair]
    tall = jnp.where(edit.resizes, edit.bottom + 1, states.height)
    wide = jnp.where(edit.resizes, edit.right + 1, states.width)
    tall, wide = jnp.where(edit.takes_input, sizes[:, 0], tall), jnp.where(edit.takes_input, sizes[:, 1], wide)
    edit, pair, tall, wide = _kept_apart((edit, course.pair, tall, wide), states)

    known = _known(states, pair)
    placed = _move(states, edit)
    masks = _masks(placed, edit, act.chosen, act.selection, old_rows, states)
    grid, held = _combine(states, placed, edit, masks, known[0])
    if config.environment.auto_reset == "next_step":
        held = jnp.where(course.restarts, _padding(), held)
    score = _similarity(grid, known[1], sizes, tall, wide)
    edited = states._replace(
        episode=course.episode,
        task_index=course.task,
        pair_index=pair,
        cells=grid,
        pair_planes=known,
        held=held,
        selection=act.selection,
        height=tall,
        width=wide,
        similarity_score=score,
        demos_solved=course.demos,
        tests_solved=course.tests,
    )
    after, reward = _settle(states, edited, act, course, config)
    keeps_final = config.environment.auto_reset == "same_step"
    report = Report(
        reward=reward,
        terminated=after.status == TERMINATED,
        truncated=after.status == TRUNCATED,
        similarity=score,
        solved=score == 1,
        invalid=act.invalid,
        pair=pair,
        final=unpack(grid, width) if keeps_final else jnp.zeros((0, height, width), jnp.uint8),
    )
    if keeps_final:
        after = _begin_next(after, (states.status == RUNNING) & (after.status != RUNNING), config)
    return after, report


def _read(states: ArcEnvState, actions: StructuredAction, old_rows: Array, config: JaxArcConfig) -> Act:
    """Find out what the actions mean."""
    running = states.status == RUNNING
    given = narrow(actions.operation)
    chosen = _choose(actions, given, old_rows, states, config)
    allowed = _is_allowed(given, config) & ~(_uses_selection(given) & chosen.out_of_range)
    op = jnp.where(running & allowed, given, NOTHING)
    selection = jnp.where((op != NOTHING) & _uses_selection(op), chosen.rows, 0)
    if config.environment.auto_reset != "next_step":  # a finished environment keeps its last selection
        selection = jnp.where(running, selection, states.selection)
    return Act(op, running & ~allowed, chosen, selection)


def _follow(states: ArcEnvState, op: Array, config: JaxArcConfig) -> Course:
    """Change the pair, or begin an episode, where that is what the step does."""
    pair, begins = _pair(states, op)
    task, episode, demos, tests = states.task_index, states.episode, states.demos_solved, states.tests_solved
    if config.environment.auto_reset != "next_step":
        return Course(episode, task, pair, demos, tests, begins, jnp.zeros_like(begins))
    restarts = states.status != RUNNING
    drawn_task, drawn_pair = _draw(states.bank, states.key, states.fixed_task, episode + 1, config)
    return Course(
        episode=jnp.where(restarts, episode + 1, episode),
        task=jnp.where(restarts, drawn_task, task),
        pair=jnp.where(restarts, drawn_pair, pair),
        demos=jnp.where(restarts, 0, demos),
        tests=jnp.where(restarts, 0, tests),
        begins=begins | restarts,
        restarts=restarts,
    )


def _settle(
    before: ArcEnvState, edited: ArcEnvState, act: Act, course: Course, config: JaxArcConfig
) -> tuple[ArcEnvState, Array]:
    """Note solved pairs, count the step, end episodes, and return the states and the rewards."""
    running = before.status == RUNNING
    score, pair, tests_from = edited.similarity_score, edited.pair_index, edited.bank.first[course.task, 1]
    solved, on_test = score == 1, pair >= tests_from
    place = jnp.where(on_test, pair - tests_from, pair - edited.bank.first[course.task, 0])
    bit = jnp.where(running & solved, jnp.uint32(1) << (place & 31).astype(jnp.uint32), 0)

    steps = jnp.where(course.restarts, 0, before.step_count + running)
    ends = act.op == ArcOperation.SUBMIT
    if config.environment.end_when_solved:
        ends = ends | (running & solved)
    status = jnp.where(steps >= config.environment.max_episode_steps, TRUNCATED, RUNNING)
    status = jnp.where(ends, TERMINATED, status)
    status = jnp.where(running, status, jnp.where(course.restarts, RUNNING, before.status))

    was_shown = jnp.where(before.on_test_pair, 0, before.similarity_score)
    is_shown = jnp.where(on_test, 0, score)
    reward = _reward(was_shown, is_shown, before.status, ends, solved, act.invalid, config)
    after = edited._replace(
        step_count=steps,
        status=status.astype(jnp.int32),
        demos_solved=edited.demos_solved | jnp.where(on_test, 0, bit),
        tests_solved=edited.tests_solved | jnp.where(on_test, bit, 0),
    )
    return after, reward


def _begin_next(states: ArcEnvState, ended: Array, config: JaxArcConfig) -> ArcEnvState:
    """Begin the next episode of the environments whose episode ended with this step."""
    task, pair = _draw(states.bank, states.key, states.fixed_task, states.episode + 1, config)
    sizes = states.bank.sizes[pair]
    known = _look_up(states.bank, pair)
    score = _similarity(known[0], known[1], sizes, sizes[:, 0], sizes[:, 1])
    begun = {
        "episode": states.episode + 1,
        "task_index": task,
        "pair_index": pair,
        "cells": known[0],
        "pair_planes": known,
        "held": jnp.broadcast_to(_padding(), states.held.shape),
        "selection": jnp.zeros_like(states.selection),
        "height": sizes[:, 0],
        "width": sizes[:, 1],
        "step_count": jnp.zeros_like(states.step_count),
        "similarity_score": score,
        "status": jnp.zeros_like(states.status),
        "demos_solved": jnp.zeros_like(states.demos_solved),
        "tests_solved": jnp.zeros_like(states.tests_solved),
    }
    return states._replace(**{name: jnp.where(ended, new, getattr(states, name)) for name, new in begun.items()})


def _kept_apart(values: Any, states: ArcEnvState) -> Any:
    """Return the values, computed once and stored.

    XLA would compute them again for every element of what they are used for, such as for every word of a plane. The
    results of a condition are stored; this one is always true, which XLA cannot know.
    """
    zeros = jax.tree.map(jnp.zeros_like, values)
    return jax.lax.cond(states.status[0] >= RUNNING, lambda: values, lambda: zeros)


# The selection.


def _choose(actions: StructuredAction, op: Array, old_rows: Array, states: ArcEnvState, config: JaxArcConfig) -> Chosen:
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
    chosen_rows = jnp.where(fits, _rectangle(rows, top, left, bottom, right), 0)
    return Chosen(chosen_rows, fits, ~fits, top, left, bottom, right)


def _choose_by_mask(mask: Array, old_rows: Array, anywhere: Array, states: ArcEnvState) -> Chosen:
    # Row by row in the order of the memory, and transposed afterwards.
    powers = jnp.uint32(1) << jnp.arange(mask.shape[2], dtype=jnp.uint32)
    words = jnp.sum(jnp.where(mask, powers, 0), axis=2, dtype=jnp.uint32)  # [batch, height]
    everything = _kept_apart(words, states).T
    inside = jnp.where(anywhere, everything, everything & old_rows)

    def add(row: Array, found: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        columns, filled, anything = found
        here = jax.lax.dynamic_index_in_dim(inside, row, keepdims=False)
        all_here = jax.lax.dynamic_index_in_dim(everything, row, keepdims=False)
        return columns | here, filled | ((here != 0).astype(jnp.uint32) << row.astype(jnp.uint32)), anything | all_here

    none = jnp.zeros_like(inside[0])
    columns, filled, anything = jax.lax.fori_loop(0, inside.shape[0], add, (none, none, none))
    some = columns != 0
    corners = _lowest(filled), _lowest(columns), _highest(filled), _highest(columns)
    return Chosen(inside, some, ~some & (anything != 0), *corners)


def _lowest(words: Array) -> Array:
    """Number of the lowest bit that is set; 0 for 0."""
    trailing = jax.lax.population_count(~words & (words - 1)).astype(jnp.int32)
    return jnp.where(words == 0, 0, trailing)


def _highest(words: Array) -> Array:
    """Number of the highest bit that is set; 0 for 0."""
    return jnp.where(words == 0, 0, 31 - jax.lax.clz(words).astype(jnp.int32))


def _rectangle(rows: Array, top: Any, left: Any, bottom: Any, right: Any) -> Array:
    """The cells of a rectangle, last row and column included. [height, batch]"""
    return jnp.where((rows >= top) & (rows <= bottom), _ones(right + 1) & ~_ones(left), 0)


def _ones(count: Any) -> Array:
    """Words whose lowest `count` bits are set; `count` is below 32."""
    return (jnp.uint32(1) << jnp.asarray(count).astype(jnp.uint32)) - 1


def _uses_selection(op: Array) -> Array:
    return (op < ArcOperation.COPY_INPUT) | (op == ArcOperation.RESIZE)


def _is_allowed(op: Array, config: JaxArcConfig) -> Array:
    known = (op >= 0) & (op < OPERATIONS)
    if config.action.allowed_operations is None:
        return known
    allowed = config.action.allowed
    words = jnp.where(op < 32, jnp.uint32(allowed & 0xFFFFFFFF), jnp.uint32(allowed >> 32))
    return known & (words >> (op & 31).astype(jnp.uint32) & 1 == 1)


# Operations on cells.


class Edit(NamedTuple):
    """What each environment does with its cells: numbers and flags, all [batch]."""

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


def _plan(op: Array, chosen: Chosen, states: ArcEnvState, takes_input: Array) -> Edit:
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


def _move(states: ArcEnvState, edit: Edit) -> Array:
    """Move cells: rows first, then columns, then across the diagonal where a rectangle is rotated. [4, height, batch]

    The loop over the planes is there for speed: what it uses is computed once before it, and not again for every word.
    """
    height, width = states.bank.shape
    lines = jnp.arange(max(height, width), dtype=jnp.int32)[:, None]
    from_column = jnp.where(edit.pastes, 0, edit.left).astype(jnp.uint32)
    to_column = jnp.where(edit.copies, 0, jnp.where(edit.rotates, edit.top, edit.left)).astype(jnp.uint32)
    last = (edit.right - edit.left).astype(jnp.uint32)
    span = jnp.where(edit.pastes, jnp.uint32(0xFFFFFFFF), _ones(last + 1))

    def move(_: None, planes: tuple[Array, Array]) -> tuple[None, Array]:
        source = edit.offset + edit.sign * lines
        source = jnp.where(edit.goes_up & (lines == edit.bottom), edit.top, source)
        source = jnp.where(edit.goes_down & (lines == edit.top), edit.bottom, source)
        taken = _take_rows(jnp.concatenate(planes), jnp.clip(source, 0, 2 * height - 1))
        taken = (taken >> from_column) & span
        turned = jnp.where(edit.goes_left, (taken >> 1) | ((taken & 1) << last), taken)
        turned = jnp.where(edit.goes_right, ((taken << 1) | (taken >> last)) & span, turned)
        turned = jnp.where(edit.mirrors, _reverse(taken) >> (31 - last), turned)
        placed = turned << to_column
        return None, jnp.where(edit.rotates, _transpose(placed), placed)[:height]

    _, placed = jax.lax.scan(move, None, (states.cells, states.held))
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


def _masks(placed: Array, edit: Edit, chosen: Chosen, selection: Array, old_rows: Array, states: ArcEnvState) -> Masks:
    """Say which cells get what."""
    rows = jnp.arange(placed.shape[1], dtype=jnp.int32)[:, None]
    moved = jnp.where(edit.moves, _rectangle(rows, edit.top, edit.left, edit.bottom, edit.right), 0)
    held_there = jnp.where(rows >= edit.top, ~_equals(placed, PADDING) & ~_ones(edit.left), 0)
    filled = jnp.where(edit.fills, jnp.where(edit.all_cells, old_rows, selection), 0)
    copied = _take_rows(selection, jnp.clip(rows + edit.top, 0, placed.shape[1] - 1)) >> edit.left.astype(jnp.uint32)
    return Masks(
        moved=jnp.where(edit.pastes, held_there, moved),
        filled=filled | _flood(states.cells, jnp.where(edit.floods, selection, 0), chosen, old_rows),
        before=old_rows,
        after=jnp.where(edit.resizes, _rectangle(rows, 0, 0, edit.bottom, edit.right), old_rows),
        copied=jnp.where(edit.copies & (rows + edit.top <= edit.bottom), copied, 0),
    )


def _combine(states: ArcEnvState, placed: Array, edit: Edit, masks: Masks, inputs: Array) -> tuple[Array, Array]:
    """Put the new grid and the new clipboard together, plane by plane."""

    def combine(number: Any, kept: tuple[Array, Array]) -> tuple[Array, Array]:
        grid, held, moved, asked, colour, pad = (
            jax.lax.dynamic_index_in_dim(planes, number, keepdims=False)
            for planes in (*kept, placed, inputs, colours, padding)
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

    colours, padding = _spread(edit.colour), jnp.asarray(_padding())
    return jax.lax.fori_loop(0, PLANES, combine, (states.cells, states.held))


def _take_rows(words: Array, source: Array) -> Array:
    """Take rows: result[r, b] is words[source[r, b], b]."""
    return jnp.take_along_axis(words, source, axis=0, mode="promise_in_bounds")


def _reverse(words: Array) -> Array:
    """Reverse the bits of every word."""
    for by, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF)):
        words = ((words >> by) & mask) | ((words & mask) << by)
    return (words >> 16) | (words << 16)


def _transpose(words: Array) -> Array:
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
    Sweeps are repeated until nothing is added in any environment; ordinary grids take two or three.
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
        return up, jnp.any(up != reached)

    height = grid.shape[1]
    start = start & region
    reached, _ = jax.lax.while_loop(lambda carry: carry[1], sweep, (start, jnp.any(start != 0)))
    return reached


def _spread(colour: Array) -> Array:
    """A colour as planes: words of ones or zeros. [batch] -> [4, 1, batch]"""
    planes = jnp.arange(PLANES, dtype=jnp.int32)[:, None, None]
    return jnp.uint32(0) - (colour >> planes & 1).astype(jnp.uint32)


def _padding() -> Array:
    """`PADDING` as planes. [4, 1, 1]"""
    return np.array([0xFFFFFFFF * (PADDING >> plane & 1) for plane in range(PLANES)], np.uint32)[:, None, None]


def _equals(planes: Array, value: int) -> Array:
    """The cells that have a value. [4, height, batch] -> [height, batch]"""
    same = [planes[plane] if value >> plane & 1 else ~planes[plane] for plane in range(PLANES)]
    return same[0] & same[1] & same[2] & same[3]


# Pairs and the end of a step.


def _pair(states: ArcEnvState, op: Array) -> tuple[Array, Array]:
    """The pair after the step, and whether a pair begins with it. [batch], [batch]"""
    bank, here = states.bank, states.pair_index
    is_test = (
        (op == ArcOperation.NEXT_TEST) | (op == ArcOperation.PREVIOUS_TEST) | (op == ArcOperation.FIRST_UNSOLVED_TEST)
    )
    first, count = bank.first[states.task_index], bank.count[states.task_index]
    first, count = jnp.where(is_test, first[:, 1], first[:, 0]), jnp.where(is_test, count[:, 1], count[:, 0])
    forward = (op == ArcOperation.NEXT_DEMO) | (op == ArcOperation.NEXT_TEST)
    backward = (op == ArcOperation.PREVIOUS_DEMO) | (op == ArcOperation.PREVIOUS_TEST)
    place = here - first
    inside = (place >= 0) & (place < count)
    ahead = jnp.where(inside & (place + 1 < count), place + 1, 0)
    behind = jnp.where(inside & (place > 0), place - 1, count - 1)
    unsolved = ~jnp.where(is_test, states.tests_solved, states.demos_solved)
    next_unsolved = _lowest(unsolved)
    searches = (op == ArcOperation.FIRST_UNSOLVED_DEMO) | (op == ArcOperation.FIRST_UNSOLVED_TEST)
    found = searches & (unsolved != 0) & (next_unsolved < count)
    moved = ((forward | backward) & (count > 0)) | found
    target = first + jnp.where(forward, ahead, jnp.where(backward, behind, next_unsolved))
    return jnp.where(moved, target, here), moved | (op == ArcOperation.RESET_PAIR)


def _draw(bank: TaskBank, key: Array, fixed: Array, episode: Array, config: JaxArcConfig) -> tuple[Array, Array]:
    """The task and the pair that an episode begins with. [batch], [batch]"""
    words, more = threefry(key, episode)
    kind = int(config.environment.episode_mode == "test")
    task = jnp.where(fixed >= 0, fixed, below(words, bank.num_tasks))
    return task, bank.first[task, kind] + below(more, bank.count[task, kind])


def _known(states: ArcEnvState, pair: Array) -> Array:
    """The inputs and targets of pairs: what the states know, looked up where a pair is another one than before."""
    moved = pair != states.pair_index

    def look_up(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        return jnp.where(moved, _look_up(states.bank, pair), carry[0]), jnp.bool_(False)

    # A loop of at most one round: unlike a condition, it leaves the planes where they are if there is nothing to do.
    return jax.lax.while_loop(lambda carry: carry[1], look_up, (states.pair_planes, jnp.any(moved)))[0]


def _look_up(bank: TaskBank, pair: Array) -> Array:
    """The inputs and targets of pairs. [batch] -> [2, 4, height, batch]"""
    return jnp.moveaxis(bank.planes[pair], 0, -1)


def _similarity(grid: Array, target: Array, sizes: Array, tall: Array, wide: Array) -> Array:
    """Equal cells divided by the cells that the grid or the target has. [batch], float32

    Cells differ also where only one of the two has them. So the equal cells are all that one of them has, less those
    that differ. Bits beyond the last column mean nothing, and are the same in both.
    """
    unlike = grid ^ target
    unlike = unlike[0] | unlike[1] | unlike[2] | unlike[3]

    def add(row: Array, count: Array) -> Array:
        return count + jax.lax.population_count(jax.lax.dynamic_index_in_dim(unlike, row, keepdims=False))

    # XLA's own sum over rows would read across them, one word at a time.
    differing = jax.lax.fori_loop(0, unlike.shape[0], add, jnp.zeros_like(unlike[0])).astype(jnp.int32)
    common = jnp.minimum(tall, sizes[:, 2]) * jnp.minimum(wide, sizes[:, 3])
    union = tall * wide + sizes[:, 2] * sizes[:, 3] - common
    return (union - differing).astype(jnp.float32) / union.astype(jnp.float32)


def _reward(
    before: Array, after: Array, status: Array, ends: Array, solved: Array, invalid: Array, config: JaxArcConfig
) -> Array:
    """Add the terms of the reward, in the order of the definition. `status` is that before the step.

    XLA would contract a product and a sum into one operation with one rounding, and the last bit would differ from the
    other engine's. So the bits of the product are changed by a number that is always 0, which XLA cannot know.
    """
    terms = config.reward
    zero = (status >> 2).astype(jnp.uint32)
    product = jnp.float32(terms.similarity_weight) * (after - before)
    shaped = jax.lax.bitcast_convert_type(jax.lax.bitcast_convert_type(product, jnp.uint32) ^ zero, jnp.float32)
    reward = shaped + jnp.float32(terms.step_penalty)
    ending = jnp.where(solved, jnp.float32(terms.success_bonus), jnp.float32(terms.unsolved_submission_penalty))
    reward = reward + jnp.where(ends, ending, 0)
    reward = reward + jnp.where(invalid, jnp.float32(terms.invalid_penalty), 0)
    return jnp.where(status == RUNNING, reward, 0)
