"""Both engines under JAX against the kernel on NumPy arrays, which test_arc_kernel.py compares with the definition."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.arc import (
    FORMATS,
    assert_same,
    assert_same_results,
    assert_same_states,
    lanes,
    random_actions,
    random_states,
    random_task,
)

from brim.core.errors import DataError, MismatchError, OptionError
from brim.envs.arc import (
    ArcEnvState,
    ArcOperation,
    ArcRewardConfig,
    BboxAction,
    EnvironmentConfig,
    JaxArcConfig,
    JaxArcTask,
    MaskAction,
    PointAction,
    UnifiedActionConfig,
    UnifiedDatasetConfig,
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
from brim.envs.arc.engine import cells, compiled, on_jax, on_numpy, on_xla, reference
from brim.envs.arc.engine.bits import below, pack, threefry, unpack
from brim.envs.arc.engine.call import CHANGED
from brim.envs.arc.engine.random import below as plain_below
from brim.envs.arc.engine.random import threefry as plain_threefry
from brim.envs.arc.tasks.datasets import load_tasks

ENGINES = ("cpu", "jax")
Op = ArcOperation


def config(form="point", engine="auto", shape=(30, 30), **environment):
    return JaxArcConfig(
        environment=EnvironmentConfig(engine=engine, **environment),
        dataset=UnifiedDatasetConfig(max_grid_height=shape[0], max_grid_width=shape[1]),
        action=UnifiedActionConfig(selection_format=form),
        reward=ArcRewardConfig(similarity_weight=1.3, unsolved_submission_penalty=-1.7, invalid_penalty=-0.3),
    )


def with_engine(setting, engine):
    return replace(setting, environment=replace(setting.environment, engine=engine))


def keys(batch, seed=0):
    return np.random.default_rng(seed).integers(0, 2**32, (batch, 2), dtype=np.uint32)


def on_device(states, engine):
    """States of NumPy as those of an engine under JAX."""
    bank = compiled.on_device(states.bank, planes=engine == "jax")
    moved = jax.tree.map(jnp.asarray, states._replace(bank=None))._replace(bank=bank)
    return moved if engine == "cpu" else on_jax.as_bits(moved)


@cache
def cases(form):
    """1,700 random cases of all sizes: states, actions and what the kernel makes of them on NumPy arrays."""
    random = np.random.default_rng(10 + FORMATS.index(form))
    setting = config(form)
    bank = build_bank([random_task(random, number) for number in range(40)], setting)
    states = random_states(random, batch_reset(keys(1700), setting, bank)[0])
    actions = random_actions(random, form, 1700)
    return setting, states, actions, batch_step(states, actions, setting)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("engine", ENGINES)
def test_every_operation_equals_its_definition_batched_and_jitted(form, engine):
    """2 engines x 3 formats x 1,700 cases, all at once: more than 10,000."""
    setting, states, actions, expected = cases(form)
    assert set(actions.operation.tolist()) >= {int(operation) for operation in ArcOperation}
    setting = with_engine(setting, engine)
    result = batch_step(on_device(states, engine), jax.tree.map(jnp.asarray, actions), setting)
    assert result.states.has_bits == (engine == "jax")
    assert_same_results(expected, result)


@pytest.mark.parametrize("engine", ENGINES)
def test_environments_alone_equal_the_definition(engine):
    """200 of the cases, one at a time, each beside the reference."""
    setting, states, actions, _ = cases("bbox")
    setting = with_engine(setting, engine)
    held = on_device(states, engine)
    for lane in range(200):
        alone = take_states(held, lane)
        action = BboxAction(*(jnp.asarray(part[lane]) for part in actions))
        found = arc_step(alone, action, setting)
        chosen = on_numpy.chosen_cells(actions, lane, (30, 30))
        before = on_numpy.read_env(states, lane)
        after, outcome = reference.step(before, states.bank, setting, int(actions.operation[lane]), chosen)
        grid = np.asarray(found.states.working_grid)
        assert_same(grid[: after.grid.shape[0], : after.grid.shape[1]], after.grid)
        assert (grid != 10).sum() == after.grid.size
        assert_same(found.states.clipboard, after.clipboard)
        assert_same(found.states.selected, after.selected)
        assert_same(found.rewards, outcome.reward)
        assert bool(found.infos["invalid"]) == outcome.invalid


@pytest.mark.parametrize(("engine", "forms"), [("cpu", FORMATS), ("jax", ("bbox",))])
def test_results_do_not_depend_on_the_size_of_the_batch_or_the_place_in_it(engine, forms):
    for form in forms:
        setting, states, actions, expected = cases(form)
        setting = with_engine(setting, engine)
        random = np.random.default_rng(1)
        for size in (1, 7, 64, 1024):
            chosen = random.permutation(1700)[:size]
            part = take_states(states, chosen)
            own = type(actions)(*(jnp.asarray(array[chosen]) for array in actions))
            result = batch_step(on_device(part, engine), own, setting)
            for one, two in zip(lanes(expected, chosen), lanes(result, range(size)), strict=True):
                assert_same(one, two, (form, size))


@pytest.mark.parametrize(
    ("form", "shape", "options"),
    [
        ("point", (30, 30), {"auto_reset": "same_step", "max_episode_steps": 17}),
        ("mask", (9, 21), {"auto_reset": "next_step", "end_when_solved": True, "episode_mode": "test"}),
        ("bbox", (21, 9), {"auto_reset": "off", "max_episode_steps": 300}),
    ],
)
def test_random_episodes_of_200_steps_agree_to_the_bit(form, shape, options):
    random = np.random.default_rng(3)
    setting = config(form, shape=shape, **options)
    bank = build_bank([random_task(random, number, shape) for number in range(8)], setting)
    fixed = random.integers(-1, 8, 24)
    states, obs = batch_reset(keys(24), setting, bank, task_indices=fixed)
    held = {}
    for engine in ENGINES:
        own = with_engine(setting, engine)
        held[engine], seen = batch_reset(jnp.asarray(keys(24)), own, bank, task_indices=fixed)
        assert_same(obs, seen, engine)
        assert_same_states(states, held[engine], engine)
    finished = 0
    for number in range(200):
        actions = random_actions(random, form, 24, shape)
        if options["auto_reset"] == "off":  # otherwise soon all of them would have submitted
            actions = actions._replace(operation=np.where(actions.operation == Op.SUBMIT, 33, actions.operation))
        expected = batch_step(states, actions, setting)
        for engine in ENGINES:
            own = with_engine(setting, engine)
            found = batch_step(held[engine], jax.tree.map(jnp.asarray, actions), own)
            assert_same_results(expected, found, (engine, number))
            held[engine] = found.states
        states = expected.states
        finished += int(expected.dones.sum())
    assert finished > (0 if options["auto_reset"] == "off" else 24) or options["auto_reset"] == "off"


def test_tiles_may_overlap(monkeypatch):
    """The last of three tiles begins before the one before it ends. Tiles that fit are in the tests above."""
    setting, states, actions, expected = cases("point")
    own = with_engine(setting, "jax")
    monkeypatch.setattr(on_jax, "TILE", 40)
    part = on_device(take_states(states, np.arange(101)), "jax")
    given = PointAction(*(jnp.asarray(array[:101]) for array in actions))
    after, obs, report = jax.jit(lambda states, actions: on_jax.step(states, actions, own))(part, given)
    assert_same(obs, expected.obs[:101])
    assert_same(report.reward, expected.rewards[:101])
    assert_same(report.invalid, expected.infos["invalid"][:101])
    assert_same_states(take_states(expected.states, np.arange(101)), after)


# Every task of ARC.


@cache
def arc_tasks():
    return {
        (name, task.id): task
        for name in ("arcagi", "arcagi2")
        for split in ("train", "eval")
        for task in load_tasks(name, split=split)
    }


def draw(setting, tasks, ruin=None):
    """Draw every answer, cell by cell colour, and submit it. `ruin` changes one thing before."""
    states, _ = batch_reset(keys(len(tasks)), setting, tasks, task_indices=np.arange(len(tasks)))
    targets = states.target_grid
    sizes = states.bank.sizes[states.pair_index][:, 2:]
    batch = len(tasks)
    corner = np.zeros(targets.shape, np.bool_)
    corner[np.arange(batch), sizes[:, 0] - 1, sizes[:, 1] - 1] = True

    def act(operation, mask):
        return MaskAction(np.full(batch, int(operation), np.int32), mask)

    script = [act(Op.RESIZE, corner), *(act(colour, targets == colour) for colour in range(10))]
    if ruin is not None:
        script += ruin(act, targets, sizes)
    script.append(act(Op.SUBMIT, np.zeros_like(corner)))
    return states, script


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
        states, script = draw(setting, tasks, ruin)
        for actions in script:
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
    """300 of them, for both engines."""
    chosen = list(arc_tasks().items())[:: len(arc_tasks()) // 300]
    tasks = [JaxArcTask(id, task.train[:1], task.test[:1]) for (_, id), task in chosen]
    setting = config("mask", engine, episode_mode="test")
    start, script = draw(config("mask", episode_mode="test"), tasks)
    fixed = np.arange(len(tasks))
    states, _ = batch_reset(jnp.asarray(keys(len(tasks))), setting, tasks, task_indices=fixed)
    assert_same_states(start, states)
    for actions in script:
        result = batch_step(states, jax.tree.map(jnp.asarray, actions), setting)
        states = result.states
    assert bool(result.infos["solved"].all())


# JAX's transformations.


@pytest.mark.parametrize("engine", ENGINES)
def test_steps_run_inside_jit_and_scan_and_may_be_given_the_memory_of_their_states(engine):
    setting = config(engine=engine)
    tasks = [create_mock_task(), create_mock_task(5, 7)]
    states, _ = batch_reset(jax.random.split(jax.random.key(1), 16), setting, tasks)
    random = np.random.default_rng(0)
    script = [random_actions(random, "point", 16) for _ in range(12)]
    stacked = jax.tree.map(lambda *parts: jnp.stack(parts), *script)

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
    assert last.bank.inputs.shape == states.bank.inputs.shape
    expected = batch_step(states, script[0], setting)
    if engine == "cpu":  # the other engine takes seconds to compile once more
        jitted = jax.jit(batch_step, static_argnames="config")(states, script[0], config=setting)
        assert_same_results(expected, jitted)
    donated = compiled_batch_step(states, script[0], setting, donate=True)
    assert_same_results(expected, donated)
    assert states.cells.is_deleted()
    assert not donated.states.bank.inputs.is_deleted()


def test_a_task_may_be_given_to_a_jitted_function():
    setting = config()
    reset = jax.jit(batch_reset, static_argnames="config")
    states, _ = reset(jnp.asarray(keys(4)), config=setting, task_data=create_mock_task())
    assert_same_states(batch_reset(jnp.asarray(keys(4)), setting, create_mock_task())[0], states)
    assert_same_states(compiled_batch_reset(jnp.asarray(keys(4)), setting, create_mock_task())[0], states)


@pytest.mark.parametrize("engine", ENGINES)
def test_single_states_are_stacked_into_a_batch(engine):
    setting = config(engine=engine)
    states, _ = batch_reset(jnp.asarray(keys(16)), setting, create_mock_task())
    singles = [take_states(states, lane) for lane in range(16)]
    assert singles[3].working_grid.shape == (30, 30)
    assert singles[3].selected.shape == (30, 30)
    assert_same_states(states, stack_states(singles))
    alone, obs = arc_reset(jnp.asarray(keys(16)[3]), setting, create_mock_task())
    assert_same_states(alone, singles[3])
    assert_same(obs, singles[3].working_grid)
    assert observe(states, ("working", "clipboard")).shape == (16, 2, 30, 30)


def test_states_of_different_banks_or_engines_are_not_stacked():
    one, two = (batch_reset(jnp.asarray(keys(1)), config(engine=engine), create_mock_task())[0] for engine in ENGINES)
    with pytest.raises(MismatchError, match="state 1 was made by another engine than state 0"):
        stack_states([take_states(one, 0), take_states(two._replace(bank=one.bank), 0)])
    other = batch_reset(jnp.asarray(keys(1)), config(engine="cpu"), create_mock_task(3, 3))[0]
    with pytest.raises(MismatchError, match="state 1 has another bank"):
        stack_states([take_states(one, 0), take_states(other, 0)])
    with pytest.raises(DataError, match="entry 0 is not a single state"):
        stack_states([one])
    with pytest.raises(DataError, match="the list is empty"):
        stack_states([])


def test_a_state_is_stepped_by_the_engine_that_made_it():
    states, _ = batch_reset(jnp.asarray(keys(2)), config(engine="jax"), create_mock_task())
    zeros = jnp.zeros(2, jnp.int32)
    kind = jax.eval_shape(lambda: batch_step(states, PointAction(zeros, zeros, zeros), config(engine="auto")))
    assert kind.states.has_bits
    with pytest.raises(MismatchError, match='the states were made by engine "jax", but the configuration says "cpu"'):
        batch_step(states, PointAction(zeros, zeros, zeros), config(engine="cpu"))


@pytest.fixture
def without_ffi(monkeypatch):
    monkeypatch.setattr(on_xla, "unavailable", lambda: "the kernel is not compiled here")
    compiled._say_once.cache_clear()
    yield
    compiled._say_once.cache_clear()


def test_without_the_kernel_the_engine_in_jax_does_the_work_and_it_is_said_once(without_ffi, recwarn):
    for _ in range(3):
        states, _ = batch_reset(jnp.asarray(keys(2)), config(), create_mock_task())
    assert states.has_bits
    said = [str(warning.message) for warning in recwarn]
    assert said == ["ARC environments run in pure JAX: the kernel is not compiled here"]
    with pytest.raises(OptionError, match='engine "cpu" cannot be used: the kernel is not compiled here'):
        batch_reset(jnp.asarray(keys(2)), config(engine="cpu"), create_mock_task())


@pytest.mark.parametrize("engine", ENGINES)
def test_numbers_beyond_32_bits_do_not_come_back_in_range(engine):
    setting = config(engine=engine)
    states, _ = batch_reset(jnp.asarray(keys(16)), setting, [create_mock_task(), create_mock_task(5, 7)])
    zeros = np.zeros(16, np.int64)
    for action in (PointAction(zeros, zeros + 2**32, zeros), PointAction(zeros + 2**32, zeros, zeros)):
        assert batch_step(states, action, setting).infos["invalid"].all()


def test_the_kernel_can_be_called_from_xla_here():
    assert on_xla.unavailable() is None


def test_a_damaged_state_is_an_error_of_xla_and_not_a_crash():
    setting = config(engine="cpu")
    states, _ = batch_reset(jnp.asarray(keys(2)), setting, create_mock_task())
    zeros = jnp.zeros(2, jnp.int32)
    broken = states._replace(pair_index=jnp.array([0, 99], jnp.int32))
    with pytest.raises(Exception, match="a state refers to a task, a pair or a size that does not exist"):
        jax.block_until_ready(batch_step(broken, PointAction(zeros, zeros, zeros), setting))


def test_a_state_has_at_most_4_kb_an_environment():
    for engine in ENGINES:
        states, _ = batch_reset(jnp.asarray(keys(16)), config(engine=engine), create_mock_task())
        assert sum(leaf.nbytes for leaf in jax.tree.leaves(states[1:])) / 16 <= 4096


# Bits.


def test_packing_and_unpacking_are_inverse():
    grids = np.random.default_rng(0).integers(0, 11, (6, 9, 13), dtype=np.uint8)
    assert_same(unpack(pack(grids), 13), grids)
    assert_same(unpack(pack(grids)[..., 2], 13, single=True), grids[2])
    stacked = jnp.stack([pack(grids), pack(grids[::-1])])
    assert_same(unpack(stacked, 13), np.stack([grids, grids[::-1]]))


def test_randomness_is_the_same_on_a_device():
    key, counter = keys(1000), np.arange(1000, dtype=np.int32)
    for one, two in zip(
        threefry(jnp.asarray(key), jnp.asarray(counter)), plain_threefry(key, (counter, 0)), strict=True
    ):
        assert_same(one, two)
        for limit in (1, 2, 3, 400, 65535, 65536):
            assert_same(below(one, limit), plain_below(two, limit))


def test_words_are_transposed_as_bits():
    random = np.random.default_rng(0)
    bits = random.integers(0, 2, (4, 32, 32, 5), dtype=np.uint64)
    words = (bits << np.arange(32, dtype=np.uint64)[:, None]).sum(axis=2).astype(np.uint32)
    expected = (bits.swapaxes(1, 2) << np.arange(32, dtype=np.uint64)[:, None]).sum(axis=2).astype(np.uint32)
    for plane in range(4):
        assert_same(cells.transpose(jnp.asarray(words[plane])), expected[plane])


def test_every_changed_field_is_a_field_of_the_state():
    assert {*CHANGED, "bank", "key", "fixed_task", "pair_planes"} == set(ArcEnvState._fields)
