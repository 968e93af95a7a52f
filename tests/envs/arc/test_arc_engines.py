"""Both engines under JAX against the kernel on NumPy arrays, which test_arc_kernel.py compares with the definition.

The engine in JAX takes seconds to compile, so tests share what is compiled; see support/arc.py.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.arc import (
    FORMATS,
    READABLE,
    as_bits,
    assert_same,
    assert_same_results,
    assert_same_states,
    config,
    keys,
    lanes,
    on_host,
    random_actions,
    random_states,
    random_task,
    shared_bank,
    with_engine,
)

from brim.core.errors import DataError, MismatchError, OptionError
from brim.envs.arc import (
    ArcEnvState,
    ArcOperation,
    BboxAction,
    JaxArcTask,
    MaskAction,
    PointAction,
    arc_reset,
    arc_step,
    batch_reset,
    batch_step,
    build_bank,
    compiled_batch_reset,
    compiled_batch_step,
    create_mock_task,
    observe,
    stack_states,
    take_states,
)
from brim.envs.arc.engine import compiled, on_numpy, on_xla, reference
from brim.envs.arc.engine.call import CHANGED
from brim.envs.arc.engine.planes import cells
from brim.envs.arc.engine.planes import step as on_planes
from brim.envs.arc.engine.planes.bits import below, pack, threefry, unpack
from brim.envs.arc.engine.random import below as plain_below
from brim.envs.arc.engine.random import threefry as plain_threefry
from brim.envs.arc.tasks.datasets import load_tasks

ENGINES = ("cpu", "jax")
Op = ArcOperation


def on_device(states, engine):
    """States of NumPy as those of an engine under JAX."""
    bank = compiled.on_device(states.bank, planes=engine == "jax")
    held = as_bits(states) if engine == "jax" else states
    return jax.tree.map(jnp.asarray, held._replace(bank=None))._replace(bank=bank)


CASES = {"point": 53 * 65, "bbox": 6 * 1024, "mask": 3 * 1792}
"""How many random cases there are of each format, for each engine. Those of points have at most 21 columns."""
AT_ONCE = {"point": 65, "bbox": 1024, "mask": 1792}
"""How many of them are stepped at once."""
EPISODES = {
    "point": ((30, 21), 65, {"auto_reset": "same_step", "max_episode_steps": 17}),
    "mask": ((9, 21), 24, {"auto_reset": "next_step", "end_when_solved": True, "episode_mode": "test"}),
    "bbox": ((30, 30), 64, {"auto_reset": "off"}),
}
"""The largest grid, the number of environments and the options of random episodes."""

donating_step = jax.jit(batch_step, static_argnames="config", donate_argnums=0)
"""A step that a user compiles. It donates the bank together with the rest of the states."""


@cache
def world(form):
    """The configuration and the tasks of random episodes."""
    shape, _, options = EPISODES[form]
    setting = config(form, shape=shape, **options)
    if shape == (30, 30):
        return setting, shared_bank()
    random = np.random.default_rng(3)
    return setting, build_bank([random_task(random, number, shape) for number in range(8)], setting)


@cache
def cases(form):
    """Random cases of all sizes: states, actions and what the kernel makes of them on NumPy arrays."""
    random = np.random.default_rng(10 + FORMATS.index(form))
    batch, fixed = CASES[form], None
    if form == "mask":
        setting, bank = config(form), bank_with_arc()
        fixed = np.arange(batch) % shared_bank().num_tasks
    else:
        setting, bank = world(form)
    states = random_states(random, batch_reset(keys(batch), setting, bank, task_indices=fixed)[0])
    actions = random_actions(random, form, batch, setting.shape)
    return setting, states, actions, batch_step(states, actions, setting)


def of_actions(actions, chosen):
    """The actions of some environments, on JAX arrays."""
    return type(actions)(*(jnp.asarray(part[chosen]) for part in actions))


def stepped(form, engine, chosen):
    """The step of some of the cases in an engine. A batch of 1,024 is stepped in place, others are not."""
    setting, states, actions, _ = cases(form)
    held = on_device(take_states(states, chosen), engine)
    donate = len(chosen) == 1024
    result = compiled_batch_step(held, of_actions(actions, chosen), with_engine(setting, engine), donate=donate)
    assert result.states.has_bits == (engine == "jax")
    assert held.cells.is_deleted() == donate
    assert not held.bank.inputs.is_deleted()
    return result


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("engine", ENGINES)
def test_every_operation_equals_its_definition_batched_and_jitted(form, engine, monkeypatch):
    set_tiles(monkeypatch, form)
    _, _, actions, expected = cases(form)
    assert set(actions.operation.tolist()) >= {int(operation) for operation in ArcOperation}
    size = AT_ONCE[form]
    for start in range(0, CASES[form], size):
        chosen = np.arange(start, start + size)
        result = stepped(form, engine, chosen)
        for one, two in zip(lanes(expected, chosen), lanes(result, range(size)), strict=True):
            assert_same(one, two, (form, start))


def set_tiles(monkeypatch, form):
    """Let the engine in JAX step points in small tiles."""
    if form == "point":
        monkeypatch.setattr(on_planes, "WHOLE", 20)
        monkeypatch.setattr(on_planes, "TILE", 20)


def test_there_are_more_than_10_000_cases_of_all_sizes_with_one_tile_tiles_that_fit_and_tiles_that_overlap(monkeypatch):
    """The engine in JAX steps a large batch in tiles of one size. If they do not fit, the last begins before the one
    before it ends."""
    assert sum(count for form, count in CASES.items() if cases(form)[0].shape == (30, 30)) > 10_000
    assert [on_planes.tiles_of(AT_ONCE[form]) for form in ("bbox", "mask")] == [(1, 1024), (7, 256)]
    set_tiles(monkeypatch, "point")
    assert on_planes.tiles_of(AT_ONCE["point"]) == (4, 17)


@pytest.mark.parametrize("engine", ENGINES)
def test_environments_alone_equal_the_definition(engine):
    """200 of the cases, one at a time, each beside the reference."""
    setting, states, actions, _ = cases("bbox")
    setting = with_engine(setting, engine)
    held = on_device(take_states(states, np.arange(1024)), engine)
    for lane in range(200):
        found = arc_step(take_states(held, lane), of_actions(actions, lane), setting)
        chosen = on_numpy.chosen_cells(actions, lane, (30, 30))
        before = on_numpy.read_env(states, lane)
        after, outcome = reference.step(before, states.bank, setting, int(actions.operation[lane]), chosen)
        seen = on_host(found.states)
        assert_same(seen.working_grid[: after.grid.shape[0], : after.grid.shape[1]], after.grid)
        assert seen.working_grid_mask.sum() == after.grid.size
        assert_same(seen.clipboard, after.clipboard)
        assert_same(seen.selected, after.selected)
        assert_same(found.rewards, outcome.reward)
        assert bool(found.infos["invalid"]) == outcome.invalid


@pytest.mark.parametrize(("engine", "forms"), [("cpu", FORMATS), ("jax", ("bbox",))])
def test_results_do_not_depend_on_the_size_of_the_batch_or_the_place_in_it(engine, forms):
    for form in forms:
        expected = cases(form)[-1]
        random = np.random.default_rng(1)
        for size in (1, 7, 64, 1024):
            chosen = random.permutation(CASES[form])[:size]
            result = stepped(form, engine, chosen)
            for one, two in zip(lanes(expected, chosen), lanes(result, range(size)), strict=True):
                assert_same(one, two, (form, size))


@pytest.mark.parametrize("form", EPISODES)
def test_random_episodes_of_200_steps_agree_to_the_bit(form, monkeypatch):
    """Points are stepped in tiles that overlap; masks by a step that a user compiles.

    With auto-reset "off", every second environment never submits, so that it plays to the end.
    """
    set_tiles(monkeypatch, form)
    shape, batch, options = EPISODES[form]
    setting, bank = world(form)
    step = donating_step if form == "mask" else batch_step
    random = np.random.default_rng(3)
    fixed = random.integers(-1, 8, batch)
    states, obs = batch_reset(keys(batch), setting, bank, task_indices=fixed)
    held = {}
    for engine in ENGINES:
        own = with_engine(setting, engine)
        held[engine], seen = batch_reset(jnp.asarray(keys(batch)), own, bank, task_indices=fixed)
        assert_same(obs, seen, engine)
        assert_same_states(states, held[engine], engine)
    ended = np.zeros(batch, np.int32)
    for number in range(200):
        actions = random_actions(random, form, batch, shape)
        if options["auto_reset"] == "off":
            never = (actions.operation == Op.SUBMIT) & (np.arange(batch) % 2 == 0)
            actions = actions._replace(operation=np.where(never, np.int32(Op.COPY_INPUT), actions.operation))
        expected = batch_step(states, actions, setting)
        for engine in ENGINES:
            own = with_engine(setting, engine)
            found = step(held[engine], jax.tree.map(jnp.asarray, actions), config=own)
            assert_same_results(expected, found, (engine, number))
            held[engine] = found.states
        ended += expected.dones & ~states.episode_done
        states = expected.states
    if options["auto_reset"] == "off":
        assert ended.tolist() == states.episode_done.tolist()
        assert not ended[::2].any()
        assert ended[1::2].sum() > 24
        assert not states.episode.any()
    else:
        assert (ended > 1).all()
        begun_later = expected.dones if options["auto_reset"] == "next_step" else 0
        assert_same(states.episode, ended - begun_later)


# Every task of ARC.


@cache
def arc_tasks():
    return {
        (name, task.id): task
        for name in ("arcagi", "arcagi2")
        for split in ("train", "eval")
        for task in load_tasks(name, split=split)
    }


@cache
def bank_with_arc():
    """The tasks of `shared_bank`, and after them `SOME` tasks of ARC, each with one demonstration and one test."""
    chosen = list(arc_tasks().items())[:: len(arc_tasks()) // SOME][:SOME]
    random = np.random.default_rng(10)
    tasks = [random_task(random, number) for number in range(shared_bank().num_tasks)]
    tasks += [JaxArcTask(f"{name}/{id}", task.train[:1], task.test[:1]) for (name, id), task in chosen]
    return build_bank(tasks, config())


SOME = 300


def draw(states, ruin=None):
    """Actions that draw every answer, colour by colour, and submit it. `ruin` changes one thing before."""
    targets = states.target_grid
    sizes = states.bank.sizes[states.pair_index][:, 2:]
    batch = len(targets)
    corner = np.zeros(targets.shape, np.bool_)
    corner[np.arange(batch), sizes[:, 0] - 1, sizes[:, 1] - 1] = True

    def act(operation, mask):
        return MaskAction(np.full(batch, int(operation), np.int32), mask)

    script = [act(Op.RESIZE, corner), *(act(colour, targets == colour) for colour in range(10))]
    if ruin is not None:
        script += ruin(act, targets, sizes)
    script.append(act(Op.SUBMIT, np.zeros_like(corner)))
    return script


def one_cell_more(act, targets, sizes):
    """Change the last cell to the next colour, in two operations for each colour it may have."""
    last = np.zeros(targets.shape, np.bool_)
    last[np.arange(len(targets)), sizes[:, 0] - 1, sizes[:, 1] - 1] = True
    is_nine = last & (targets == 9)
    return [act(Op.FILL_9, last & ~is_nine), act(Op.FILL_0, is_nine)]


def one_row(change):
    def ruin(act, targets, sizes):
        rows = np.clip(sizes[:, 0] + change, 1, 30)
        corner = np.zeros(targets.shape, np.bool_)
        corner[np.arange(len(targets)), rows - 1, sizes[:, 1] - 1] = True
        return [act(Op.RESIZE, corner)]

    return ruin


@pytest.mark.parametrize("mode", ["train", "test"])
def test_the_answer_of_every_arc_task_solves_it_and_anything_else_does_not(mode):
    pairs = [
        (f"{name}/{id}/{number}", task.train[0], pair)
        for (name, id), task in arc_tasks().items()
        for number, pair in enumerate(task.train if mode == "train" else task.test)
    ]
    tasks = [
        JaxArcTask(id, [pair]) if mode == "train" else JaxArcTask(id, [first], [pair]) for id, first, pair in pairs
    ]
    assert len(tasks) > (6000 if mode == "train" else 1900)
    setting = config("mask", episode_mode=mode)

    def submitted(ruin=None):
        states, _ = batch_reset(keys(len(tasks)), setting, tasks, task_indices=np.arange(len(tasks)))
        for actions in draw(states, ruin):
            result = compiled_batch_step(states, actions, setting, donate=True)
            states = result.states
        assert result.infos["terminated"].all()
        return result.infos["solved"], result.infos["similarity"], states

    solved, similarity, states = submitted()
    assert solved.all()
    assert (similarity == 1).all()
    sizes = states.bank.sizes[states.pair_index][:, 2:]
    assert not submitted(one_cell_more)[0].any()
    assert not submitted(one_row(1))[0][sizes[:, 0] < 30].any()
    assert not submitted(one_row(-1))[0][sizes[:, 0] > 1].any()


@pytest.mark.parametrize("engine", ENGINES)
def test_the_answers_of_arc_tasks_solve_them_under_jax_too(engine):
    """The test pairs of 300 tasks, in both engines; the answers in the rows after them differ in one cell."""
    setting, batch = config("mask"), AT_ONCE["mask"]
    fixed = shared_bank().num_tasks + np.arange(batch) % SOME
    to_test = MaskAction(np.full(batch, int(Op.NEXT_TEST), np.int32), np.zeros((batch, 30, 30), np.bool_))
    on_demo, _ = batch_reset(keys(batch), setting, bank_with_arc(), task_indices=fixed)
    start = batch_step(on_demo, to_test, setting).states
    assert start.on_test_pair.all()

    def ruin(act, targets, sizes):
        wrong = (np.arange(batch) >= SOME)[:, None, None]
        return [one._replace(selection=one.selection & wrong) for one in one_cell_more(act, targets, sizes)]

    own, states = with_engine(setting, engine), on_device(on_demo, engine)
    for number, actions in enumerate([to_test, *draw(start, ruin)]):
        result = batch_step(states, jax.tree.map(jnp.asarray, actions), own)
        states = result.states
        if number == 0:
            assert_same_states(start, states)
    assert bool(result.infos["terminated"].all())
    assert np.asarray(result.infos["solved"]).tolist() == [lane < SOME for lane in range(batch)]


# JAX's transformations.


def begin(engine, batch=64):
    """States of the shared configuration and bank."""
    return batch_reset(jnp.asarray(keys(batch)), config("bbox", engine), shared_bank())[0]


def test_steps_of_the_kernel_run_inside_jit_and_scan():
    """For the engine in JAX, which takes seconds to compile, a rollout of test_arc_rollout.py is this program."""
    setting, states = config("bbox", "cpu"), begin("cpu")
    random = np.random.default_rng(0)
    script = [random_actions(random, "bbox", 64) for _ in range(12)]
    stacked = jax.tree.map(lambda *parts: np.stack(parts), *script)

    @jax.jit
    def play(states, script):
        def body(states, actions):
            result = batch_step(states, actions, setting)
            return result.states, (result.rewards, result.obs)

        return jax.lax.scan(body, states, script)

    last, (rewards, obs) = play(states, stacked)
    looped = states
    for number, actions in enumerate(script):
        result = batch_step(looped, actions, setting)
        assert_same(result.rewards, rewards[number])
        assert_same(result.obs, obs[number])
        looped = result.states
    assert_same_states(looped, last)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_task_can_be_reset_again_after_its_bank_was_donated_with_the_states(engine):
    """The library keeps the bank of a task for the next reset. A step that a user compiles donates it with the rest."""
    (setting, bank), batch = world("mask"), EPISODES["mask"][1]
    own = with_engine(setting, engine)
    start, obs = batch_reset(keys(batch), setting, bank)
    actions = random_actions(np.random.default_rng(0), "mask", batch, setting.shape)
    for _ in range(2):
        states, seen = batch_reset(jnp.asarray(keys(batch)), own, bank)
        assert_same_states(start, states)
        assert_same(obs, seen)
        result = donating_step(states, jax.tree.map(jnp.asarray, actions), config=own)
        assert states.bank.inputs.is_deleted()
        assert_same_results(batch_step(start, actions, setting), result)


def test_a_task_may_be_given_to_a_jitted_function():
    setting = config()
    expected, obs = batch_reset(keys(4), setting, create_mock_task())
    for reset in (jax.jit(batch_reset, static_argnames="config"), compiled_batch_reset):
        states, seen = reset(jnp.asarray(keys(4)), config=setting, task_data=create_mock_task())
        assert_same_states(expected, states)
        assert_same(obs, seen)


@pytest.mark.parametrize("engine", ENGINES)
def test_single_states_are_stacked_into_a_batch_and_show_the_same(engine):
    setting = config("bbox", engine)
    states = begin(engine)
    shown = batch_reset(keys(64), setting, shared_bank())[0]
    singles = [take_states(states, lane) for lane in range(7)]
    assert_same_states(take_states(shown, np.arange(7)), stack_states(singles))
    alone, obs = arc_reset(jnp.asarray(keys(64)[3]), setting, shared_bank())
    assert_same_states(alone, singles[3])
    assert_same(obs, shown.cells[3])
    of_batch, of_single = read(states), read(singles[3])
    for name, expected in {name: getattr(shown, name) for name in READABLE}.items():
        assert_same(of_batch[name], expected, name)
        assert_same(of_single[name], expected[3], name)
    channels = ("working", "input", "target", "clipboard", "selected")
    assert_same(jax.jit(observe, static_argnums=1)(states, channels), observe(shown, channels))


@jax.jit
def read(states):
    """All properties at once: eagerly, each of them would be compiled for itself."""
    return {name: getattr(states, name) for name in READABLE}


def test_states_of_different_banks_or_engines_are_not_stacked():
    one, two = (begin(engine, batch=1) for engine in ENGINES)
    with pytest.raises(MismatchError, match="state 1 was made by another engine than state 0"):
        stack_states([take_states(one, 0), take_states(two._replace(bank=one.bank), 0)])
    other = batch_reset(jnp.asarray(keys(1)), config("bbox", "cpu"), create_mock_task(3, 3))[0]
    with pytest.raises(MismatchError, match="state 1 has another bank"):
        stack_states([take_states(one, 0), take_states(other, 0)])
    with pytest.raises(DataError, match="entry 0 is not a single state"):
        stack_states([one])
    with pytest.raises(DataError, match="the list is empty"):
        stack_states([])


def test_a_state_is_stepped_by_the_engine_that_made_it():
    states = begin("jax")
    actions = BboxAction(*[jnp.zeros(64, jnp.int32)] * 5)
    kind = jax.eval_shape(lambda: batch_step(states, actions, config("bbox", "auto")))
    assert kind.states.has_bits
    with pytest.raises(MismatchError, match='the states were made by engine "jax", but the configuration says "cpu"'):
        batch_step(states, actions, config("bbox", "cpu"))


@pytest.fixture
def without_ffi(monkeypatch):
    monkeypatch.setattr(on_xla, "unavailable", lambda: "the kernel is not compiled here")
    compiled._say_once.cache_clear()
    yield
    compiled._say_once.cache_clear()


def test_without_the_kernel_the_engine_in_jax_does_the_work_and_it_is_said_once(without_ffi, recwarn):
    for _ in range(3):
        states, _ = jax.eval_shape(lambda: batch_reset(jnp.asarray(keys(64)), config("bbox"), shared_bank()))
    assert states.has_bits
    said = [str(warning.message) for warning in recwarn]
    assert said == ["ARC environments run in pure JAX: the kernel is not compiled here"]
    with pytest.raises(OptionError, match='engine "cpu" cannot be used: the kernel is not compiled here'):
        batch_reset(jnp.asarray(keys(64)), config("bbox", "cpu"), shared_bank())


@pytest.mark.parametrize("engine", ENGINES)
def test_numbers_beyond_32_bits_do_not_come_back_in_range(engine):
    setting, states = config("bbox", engine), begin(engine)
    zeros = np.zeros(64, np.int64)
    inside = BboxAction(*[zeros] * 5)
    assert not batch_step(states, inside, setting).infos["invalid"].any()
    for name in BboxAction._fields:
        beyond = inside._replace(**{name: zeros + 2**32})
        assert batch_step(states, beyond, setting).infos["invalid"].all(), name


def test_the_kernel_can_be_called_from_xla_here():
    assert on_xla.unavailable() is None


def test_a_damaged_state_is_an_error_of_xla_and_not_a_crash():
    setting = config(engine="cpu")
    states, _ = batch_reset(jnp.asarray(keys(2)), setting, create_mock_task())
    zeros = jnp.zeros(2, jnp.int32)
    broken = states._replace(pair_index=jnp.array([0, 99], jnp.int32))
    with pytest.raises(
        jax.errors.JaxRuntimeError, match="a state refers to a task, a pair or a size that does not exist"
    ):
        jax.block_until_ready(batch_step(broken, PointAction(zeros, zeros, zeros), setting))


def test_a_state_has_at_most_4_kb_an_environment():
    for engine in ENGINES:
        assert sum(leaf.nbytes for leaf in jax.tree.leaves(begin(engine)[1:])) / 64 <= 4096


# Bits.


def test_packing_and_unpacking_are_inverse():
    grids = np.random.default_rng(0).integers(0, 11, (6, 9, 13), dtype=np.uint8)
    planes = np.asarray(jax.jit(pack)(grids))
    cells_of = jax.jit(unpack, static_argnums=1, static_argnames="single")
    for width in (1, 7, 8, 9, 13):  # eight columns at a time
        assert_same(cells_of(planes, width), grids[..., :width])
    full = np.random.default_rng(1).integers(0, 11, (2, 30, 30), dtype=np.uint8)
    assert_same(cells_of(jax.jit(pack)(full), 30), full)
    assert_same(cells_of(planes[..., 2], 13, single=True), grids[2])
    stacked = np.stack([planes, planes[..., ::-1]])
    assert_same(cells_of(stacked, 13), np.stack([grids, grids[::-1]]))


def test_randomness_is_the_same_on_a_device():
    key, counter = keys(1000), np.arange(1000, dtype=np.int32)
    limited = jax.jit(below)
    for one, two in zip(jax.jit(threefry)(key, counter), plain_threefry(key, (counter, 0)), strict=True):
        assert_same(one, two)
        for limit in (1, 2, 3, 400, 65535, 65536):
            assert_same(limited(one, limit), plain_below(two, limit))


def test_words_are_transposed_as_bits():
    random = np.random.default_rng(0)
    bits = random.integers(0, 2, (4, 32, 32, 5), dtype=np.uint64)
    words = (bits << np.arange(32, dtype=np.uint64)[:, None]).sum(axis=2).astype(np.uint32)
    expected = (bits.swapaxes(1, 2) << np.arange(32, dtype=np.uint64)[:, None]).sum(axis=2).astype(np.uint32)
    transpose = jax.jit(cells.transpose)
    for plane in range(4):
        assert_same(transpose(words[plane]), expected[plane])


def test_every_changed_field_is_a_field_of_the_state():
    assert {*CHANGED, "bank", "key", "fixed_task", "pair_planes"} == set(ArcEnvState._fields)
