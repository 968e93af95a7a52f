"""Lists of any length stepped in padded batches, against every environment stepped alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.arc import config as shared_config
from support.arc import on_host, shared_bank
from support.arc import random_actions as actions_of_a_batch

from brim.core.errors import DataError, MismatchError, OptionError
from brim.envs.arc import (
    ArcEnvState,
    BboxAction,
    EnvironmentConfig,
    JaxArcConfig,
    JaxArcTask,
    MaskAction,
    PointAction,
    UnifiedActionConfig,
    UnifiedDatasetConfig,
    batch_reset,
    batch_step,
    build_bank,
    combine_batch_results,
    create_mock_task,
    dynamic,
    pad_actions,
    pad_states,
    process_dynamic_batch,
    split_key,
    stack_actions,
    take_states,
    unpad_results,
)

SHAPE = (6, 7)
MOST = 9
JAX_ENGINES = [pytest.param("cpu", marks=pytest.mark.jax), pytest.param("jax", marks=pytest.mark.jax)]
FORMATS = ["point", "bbox", "mask"]
TASKS = [create_mock_task(6, 7), create_mock_task(3, 3), JaxArcTask("one", [([[1, 2]], [[2, 1]])])]


def config_of(engine="numpy", selection_format="point", auto_reset="off"):
    return JaxArcConfig(
        environment=EnvironmentConfig(
            engine="auto" if engine == "numpy" else engine, auto_reset=auto_reset, max_episode_steps=3
        ),
        dataset=UnifiedDatasetConfig(max_grid_height=SHAPE[0], max_grid_width=SHAPE[1]),
        action=UnifiedActionConfig(selection_format=selection_format),
    )


BANK = build_bank(TASKS, config_of())


def begin(engine="numpy", config=None, seed=0, batch=MOST):
    keys = split_key(seed, batch, arrays="numpy" if engine == "numpy" else "jax")
    return batch_reset(keys, config or config_of(engine), BANK)[0]


def singles(states):
    return [take_states(states, number) for number in range(states.batch_size)]


def random_actions(selection_format="point", count=MOST, seed=0):
    """Single actions, some of them with numbers that are out of range."""
    drawn = np.random.default_rng(seed)
    operations = drawn.integers(-1, 44, count)
    if selection_format == "mask":
        return [MaskAction(operation, drawn.random(SHAPE) < 0.3) for operation in operations]
    kind = {"point": PointAction, "bbox": BboxAction}[selection_format]
    return [kind(operation, *drawn.integers(-1, 8, len(kind._fields) - 1)) for operation in operations]


def lanes(result):
    """The results of each environment, as arrays of NumPy."""
    states, *arrays, infos = result
    kept = on_host(states)._asdict()
    del kept["bank"], kept["pair_planes"]
    named = {**kept, **dict(zip(("obs", "rewards", "dones"), arrays, strict=True)), **infos}
    plain = {name: np.asarray(array) for name, array in named.items()}
    return [{name: array[place] for name, array in plain.items()} for place in range(len(arrays[1]))]


def same(one, other):
    """Compare the results of environments to the bit."""
    return len(one) == len(other) and all(
        left.keys() == right.keys()
        and all(left[name].dtype == right[name].dtype and np.array_equal(left[name], right[name]) for name in left)
        for left, right in zip(one, other, strict=True)
    )


@given(
    st.integers(1, MOST),
    st.integers(1, 12),
    st.lists(st.integers(1, 12), max_size=3),
    st.sampled_from(FORMATS),
    st.sampled_from(["off", "next_step", "same_step"]),
    st.integers(0, 1000),
)
@settings(max_examples=40)
def test_the_results_are_those_of_stepping_each_environment_alone(count, most, sizes, selection_format, reset, seed):
    config = config_of(selection_format=selection_format, auto_reset=reset)
    states = begin(config=config, seed=seed, batch=count)
    sizes = [min(size, most) for size in sizes] or None
    for step in range(5):  # to the end of the episode, and beyond it
        actions = random_actions(selection_format, count, seed + step)
        found = process_dynamic_batch(singles(states), actions, config, most, sizes=sizes)
        alone = [
            batch_step(take_states(states, slice(place, place + 1)), stack_actions([action]), config)
            for place, action in enumerate(actions)
        ]
        assert same(lanes(found), [lane for one in alone for lane in lanes(one)])
        assert found.states.bank is states.bank
        states = found.states


@pytest.mark.parametrize("engine", JAX_ENGINES)
def test_the_results_under_jax_are_those_on_numpy(engine):
    """Ten environments in batches of seven, the last of them padded."""
    stacked = actions_of_a_batch(np.random.default_rng(0), "bbox", 10)
    actions = [BboxAction(*parts) for parts in zip(*stacked, strict=True)]
    results = []
    for arrays, config in (("jax", shared_config("bbox", engine)), ("numpy", shared_config("bbox"))):
        states, _ = batch_reset(split_key(0, 64, arrays=arrays), config, shared_bank())
        ten = [take_states(states, number) for number in range(10)]
        results.append(process_dynamic_batch(ten, actions, config, max_batch_size=7))
        assert results[-1].states.bank is states.bank
    found, expected = results
    assert same(lanes(found), lanes(expected))
    assert not isinstance(found.states.status, np.ndarray)
    assert not isinstance(found.infos["solved"], np.ndarray)


@pytest.mark.jax
def test_lists_can_be_stepped_inside_of_a_compiled_function():
    import jax

    actions = random_actions(count=4)
    inside = jax.jit(lambda states, actions: process_dynamic_batch(singles(states)[:3], actions, config_of("cpu"), 2))
    expected = process_dynamic_batch(singles(begin(batch=4))[:3], actions[:3], config_of())
    assert same(lanes(inside(begin("cpu", batch=4), actions[:3])), lanes(expected))


@given(st.integers(1, 40), st.integers(1, 12), st.lists(st.integers(1, 12), max_size=3))
@settings(max_examples=40)
def test_every_chunk_is_padded_to_the_smallest_size_that_holds_it(count, most, sizes):
    states = begin(batch=1)
    sizes = [min(size, most) for size in sizes]
    seen = []

    def recorded(states, actions, config):
        seen.append(states.batch_size)
        return batch_step(states, actions, config)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dynamic, "batch_step", recorded)
        process_dynamic_batch(
            singles(states) * count, random_actions(count=count), config_of(), most, sizes=sizes or None
        )
    longest = max(sizes, default=most)
    chunks = [longest] * (count // longest) + [count % longest] * (count % longest > 0)
    assert seen == [min(size for size in sizes or [most] if size >= chunk) for chunk in chunks]


@given(st.integers(1, MOST), st.integers(0, 5), st.sampled_from(FORMATS))
@settings(max_examples=20)
def test_padding_is_finished_environments_on_which_a_step_does_nothing(count, more, selection_format):
    config = config_of(selection_format=selection_format)
    states = begin(config=config, batch=count)
    padded = pad_states(singles(states), count + more)
    actions = pad_actions(random_actions(selection_format, count), count + more)
    assert {part.shape[0] for part in actions} == {padded.batch_size} == {count + more}
    for name, before, after in zip(ArcEnvState._fields[1:], states[1:], padded[1:], strict=True):
        if before is None:
            assert after is None
            continue
        assert before.dtype == after.dtype, name
        assert np.array_equal(before, after[:count]), name
    result = batch_step(padded, actions, config)
    assert padded.episode_done[count:].all()
    assert not result.rewards[count:].any()
    assert np.array_equal(result.states.cells[count:], padded.cells[count:])


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
@settings(max_examples=20)
def test_combined_results_are_those_of_the_whole_batch(counts):
    states = begin(batch=sum(counts))
    whole = batch_step(states, stack_actions(random_actions(count=sum(counts))), config_of())
    ends = np.cumsum(counts)
    parts = [
        batch_step(take_states(states, slice(end - count, end)), stack_actions(chosen), config_of())
        for count, end in zip(counts, ends, strict=True)
        for chosen in [random_actions(count=sum(counts))[end - count : end]]
    ]
    assert same(lanes(combine_batch_results(parts)), lanes(whole))
    for count in range(1, sum(counts) + 1):
        assert same(lanes(unpad_results(whole, count)), lanes(whole)[:count])


@given(st.lists(st.tuples(*[st.integers(-5, 50)] * 3), min_size=1, max_size=6))
def test_stacked_actions_are_in_their_order(rows):
    stacked = stack_actions([PointAction(*row) for row in rows])
    assert list(zip(*(part.tolist() for part in stacked), strict=True)) == rows


@pytest.mark.jax
def test_stacked_actions_of_jax_are_arrays_of_jax():
    import jax.numpy as jnp

    stacked = stack_actions([PointAction(jnp.int32(number), 1, 2) for number in range(3)])
    assert stacked.operation.tolist() == [0, 1, 2]
    assert not isinstance(stacked.operation, np.ndarray)
    assert isinstance(stacked.row, np.ndarray)
    assert stacked.operation.dtype == jnp.int32


def message(call, *given, error=DataError, **options):
    with pytest.raises(error) as caught:
        call(*given, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_lists_that_do_not_belong_together_are_refused():
    states, actions, config = singles(begin()), random_actions(), config_of()
    assert message(process_dynamic_batch, states, actions[:3], config) == (
        "every state needs an action: got 9 states and 3 actions"
    )
    for call in (process_dynamic_batch, lambda one, other, _: (pad_actions(other, 4), stack_actions(other))):
        assert "the list is empty" in message(call, [], [], config)
    assert "the list is empty" in message(pad_states, [], 4)
    assert "the list is empty" in message(combine_batch_results, [])
    mixed = [*actions[:2], BboxAction(0, 0, 0, 0, 0)]
    for call in (stack_actions, lambda some: process_dynamic_batch(states[:3], some, config)):
        assert message(call, mixed) == ("action 2 is a BboxAction, but action 0 is a PointAction; a batch has one kind")
    assert message(stack_actions, [actions[0], (0, 1, 2)]) == (
        "action 1 must be one of PointAction, BboxAction, MaskAction, got tuple"
    )
    assert message(process_dynamic_batch, states[:1], [BboxAction(0, 0, 0, 0, 0)], config) == (
        "selection_format is 'point', so actions must be PointAction, got BboxAction"
    )
    other = batch_reset(split_key(0, 1, arrays="numpy"), config, create_mock_task(2, 2))[0]
    assert "another bank" in message(
        process_dynamic_batch, [states[0], take_states(other, 0)], actions[:2], config, error=MismatchError
    )


def test_entries_that_are_not_single_are_refused():
    states, config = begin(), config_of()
    assert "entry 1 is not a single state" in message(pad_states, [*singles(states)[:1], states], 4)
    assert "entry 0 is not a single state" in message(process_dynamic_batch, [states], random_actions(count=1), config)
    assert message(stack_actions, [PointAction(0, 1, 2), PointAction(0, np.arange(3), 2)]) == (
        "action 1: PointAction.row must be a single number, got shape (3,)"
    )
    assert message(stack_actions, [MaskAction(0, np.zeros(4, np.bool_))]) == (
        "action 0: MaskAction.selection must be a mask of rows and columns, got shape (4,)"
    )
    masks = [MaskAction(0, np.zeros(shape, np.bool_)) for shape in ((2, 2), (2, 3))]
    assert message(stack_actions, masks) == (
        "action 1: MaskAction.selection has shape (2, 3), but that of action 0 has (2, 2)"
    )


def test_sizes_that_cannot_work_are_refused():
    states, actions, config = begin(), random_actions(), config_of()
    assert message(pad_states, singles(states), 4) == "9 states do not fit into a batch of 4"
    assert message(pad_actions, actions, 4) == "9 actions do not fit into a batch of 4"
    result = batch_step(states, stack_actions(actions), config)
    for n in (0, 10):
        assert message(unpad_results, result, n) == f"n must be between 1 and 9, the number of environments, got {n}"
    refused = {"max_batch_size": 0, "sizes": [4, 65]}, {"sizes": [0]}, {"sizes": []}
    said = [
        message(process_dynamic_batch, singles(states), actions, config, error=OptionError, **one) for one in refused
    ]
    assert said == [
        "max_batch_size must be at least 1, got 0",
        "sizes must be integers from 1 to max_batch_size (64), got 0",
        "sizes is empty; leave it out to pad to max_batch_size",
    ]
