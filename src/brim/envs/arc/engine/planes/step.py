"""Step environments in pure JAX: wherever JAX runs, and no operation is computed as a branch of its own.

`vmap` over a branch for each operation would compute all of them for every environment. Here operations share their
work; see `cells.py`. Grids are bits, with the environments on the last axis; see `bits.py`. A large batch is stepped
tile by tile, so that what a step works on stays in the cache.

This module imports jax.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from brim.core.extras import need
from brim.envs.arc.actions import StructuredAction
from brim.envs.arc.config import JaxArcConfig
from brim.envs.arc.engine.call import CHANGED, Report, make_report
from brim.envs.arc.engine.on_xla import narrow
from brim.envs.arc.engine.planes.bits import below, kept_apart, lowest, pack, rectangle, threefry, unpack
from brim.envs.arc.engine.planes.cells import combine, find_masks, move, padding, plan
from brim.envs.arc.engine.planes.selection import Chosen, choose, is_allowed, uses_selection
from brim.envs.arc.operations import OPERATIONS, ArcOperation
from brim.envs.arc.state import RUNNING, TERMINATED, TRUNCATED, ArcEnvState, axis_of
from brim.envs.arc.tasks.bank import TaskBank

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
else:
    jax = need("jax", extra="arc", user="brim.envs.arc")
    jnp = jax.numpy

Array = Any
WHOLE = 1024
"""A batch of at most so many environments is stepped at once."""
TILE = 256
"""A larger one is stepped in tiles of at most so many."""
NOTHING = OPERATIONS
"""Stands for an operation that changes nothing."""


def step(states: ArcEnvState, actions: StructuredAction, config: JaxArcConfig) -> tuple[ArcEnvState, Array, Report]:
    """Step every environment, and return states, observations and the report. The arrays may be traced.

    A large batch is stepped in tiles of one size. They are changed in place, unless the last tile overlaps the one
    before it; then all are read from the given states, so that no environment is stepped twice.
    """
    batch, width = states.status.shape[0], config.shape[1]
    tiles, size = tiles_of(batch)
    if tiles == 1:
        after, report = _step(states, actions, config)
        return after, unpack(after.cells, width), report
    in_place = batch % size == 0
    report = make_report(jnp.zeros, batch, config)

    def turn(number: Array, held: tuple[ArcEnvState, Report]) -> tuple[ArcEnvState, Report]:
        start = jnp.minimum(number * size, batch - size)
        source = held[0] if in_place else states
        tile = _cut(source, start, size)
        after, said = _step(tile, _cut_actions(actions, start, size), config)
        said = said._replace(final=kept_apart(said.final, tile))
        return _pasted(held[0], tile, after, start), _put_all(held[1], said, start)

    after, report = jax.lax.fori_loop(0, tiles, turn, (states, report))
    return after, unpack(after.cells, width), report


def tiles_of(batch: int) -> tuple[int, int]:
    """Return how many tiles a batch is stepped in, and their size. The last may overlap the one before it."""
    tiles = 1 if batch <= WHOLE else -(-batch // TILE)
    return tiles, -(-batch // tiles)


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


def _cut(states: ArcEnvState, start: Any, size: int) -> ArcEnvState:
    """The states of some environments of a batch, next to each other.

    They are stored. XLA would copy the whole batch for every tile, to read the old states while it writes the new.
    """
    cut = {
        name: jax.lax.dynamic_slice_in_dim(leaf, start, size, axis=axis_of(states, name) % leaf.ndim)
        for name, leaf in zip(states._fields[1:], states[1:], strict=True)
    }
    return ArcEnvState(bank=states.bank, **kept_apart(cut, states))


def _cut_actions(actions: StructuredAction, start: Any, size: int) -> StructuredAction:
    return type(actions)(*(jax.lax.dynamic_slice_in_dim(part, start, size) for part in actions))


def _pasted(states: ArcEnvState, before: ArcEnvState, after: ArcEnvState, start: Array) -> ArcEnvState:
    """The states with a tile replaced by what it is after a step. Few steps change the pair."""
    changed = {
        name: _put(getattr(states, name), getattr(after, name), start, axis=axis_of(states, name)) for name in CHANGED
    }
    moved = jnp.any(after.pair_index != before.pair_index)
    planes = _once(moved, states.pair_planes, lambda planes: _put(planes, after.pair_planes, start, axis=-1))
    return states._replace(**changed, pair_planes=planes)


def _put(array: Array, part: Array, start: Array, axis: int = 0) -> Array:
    return jax.lax.dynamic_update_slice_in_dim(array, part, start, axis=axis % array.ndim)


def _once(wanted: Array, array: Array, change: Callable[[Array], Array]) -> Array:
    """The array, changed if that is wanted: a loop of at most one round. Unlike a condition, it leaves the array where
    it is if there is nothing to do."""
    changed, _ = jax.lax.while_loop(
        lambda held: held[1], lambda held: (change(held[0]), held[1] & False), (array, wanted)
    )
    return changed


def _put_all(report: Report, part: Report, start: Array) -> Report:
    """Put the report of a tile into that of the batch."""
    put = [_put(array, some, start) if array.size else array for array, some in zip(report, part, strict=True)]
    return Report(*put)


class Act(NamedTuple):
    """The meaning of the actions. All but `chosen` and `selection` are [batch]."""

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
    old_rows = rectangle(rows, 0, 0, states.height - 1, states.width - 1)
    act = _read(states, actions, old_rows, config)
    course = _follow(states, act.op, config)
    edit = plan(act.op, act.chosen, states, course.begins | (act.op == ArcOperation.COPY_INPUT))
    sizes = states.bank.sizes[course.pair]
    tall = jnp.where(edit.resizes, edit.bottom + 1, states.height)
    wide = jnp.where(edit.resizes, edit.right + 1, states.width)
    tall, wide = jnp.where(edit.takes_input, sizes[:, 0], tall), jnp.where(edit.takes_input, sizes[:, 1], wide)
    edit, pair, tall, wide = kept_apart((edit, course.pair, tall, wide), states)

    known = _known(states, pair)
    placed = move(states, edit)
    masks = find_masks(placed, edit, act.chosen, act.selection, old_rows, states)
    grid, held = combine(states, placed, edit, masks, known[0])
    if config.environment.auto_reset == "next_step":
        held = jnp.where(course.restarts, padding(), held)
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
    chosen = choose(actions, given, old_rows, states, config)
    allowed = is_allowed(given, config) & ~(uses_selection(given) & chosen.out_of_range)
    op = jnp.where(running & allowed, given, NOTHING)
    selection = jnp.where((op != NOTHING) & uses_selection(op), chosen.rows, 0)
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
        "held": jnp.broadcast_to(padding(), states.held.shape),
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
    next_unsolved = lowest(unsolved)
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
    return _once(jnp.any(moved), states.pair_planes, lambda known: jnp.where(moved, _look_up(states.bank, pair), known))


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
