"""Rollouts and episodes, against loops of a few lines over `batch_step`, in both engines and on NumPy arrays."""

import gc
import inspect
import math
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.arc import config as shared_config
from support.arc import on_host, shared_bank
from support.arc import random_actions as random_actions_of_a_batch

from brim.core.errors import DataError, OptionError
from brim.envs.arc import (
    ArcEnvState,
    ArcOperation,
    BboxAction,
    EnvironmentConfig,
    JaxArcConfig,
    JaxArcTask,
    MaskAction,
    PointAction,
    UnifiedActionConfig,
    UnifiedDatasetConfig,
    batch_policy_rollout,
    batch_reset,
    batch_step,
    compute_batch_values,
    conditional_batch_processing,
    create_mock_task,
    example_policy,
    example_value_fn,
    extract_state_features,
    hierarchical_batch_processing,
    run_batch_episode,
    split_key,
    take_states,
)
from brim.envs.arc.arrays import numpy_of
from brim.envs.arc.traced import _compiled

BATCH = 4
TASKS = [create_mock_task(10, 10), create_mock_task(12, 7), JaxArcTask("one", [([[1, 2]], [[2, 1]])])]
ENGINES = ["numpy", pytest.param("cpu", marks=pytest.mark.jax), pytest.param("jax", marks=pytest.mark.jax)]
FORMATS = ["point", "bbox", "mask"]


def config_of(engine="numpy", selection_format="point", auto_reset="off", max_episode_steps=4):
    """Tests of the kernel under JAX have one configuration and one batch size in common, so that each function is
    compiled once. Those of the engine in JAX have `shared_setting`."""
    environment = EnvironmentConfig(
        engine="auto" if engine == "numpy" else engine, auto_reset=auto_reset, max_episode_steps=max_episode_steps
    )
    return JaxArcConfig(environment=environment, action=UnifiedActionConfig(selection_format=selection_format))


def keys_of(engine, seed=7, batch=BATCH):
    return split_key(seed, batch, arrays="numpy" if engine == "numpy" else "jax")


def begin(engine="numpy", config=None, seed=7, batch=BATCH):
    return batch_reset(keys_of(engine, seed, batch), config or config_of(engine), TASKS)[0]


def stepped_one_by_one(policy, states, config, num_steps):
    """The definition of a rollout."""
    seen = []
    for _ in range(num_steps):
        chosen = policy(states)
        after, _, rewards, dones, _ = batch_step(states, chosen["actions"], config)
        seen.append((states, chosen["actions"], rewards, dones, chosen["log_probs"]))
        states = after
    return seen, states


def played_one_by_one(keys, config, task, max_steps, act):
    """The definition of an episode, as the guide writes it."""
    states, _ = batch_reset(keys, config, task)
    rewards_sum, lengths = np.zeros(len(keys), np.float32), np.zeros(len(keys), np.int32)
    active = np.ones(len(keys), np.bool_)
    for step in range(max_steps):
        states, _, rewards, dones, _ = batch_step(states, act(states, step), config)
        rewards_sum = rewards_sum + rewards * active
        lengths = np.where(active, lengths + 1, lengths)
        active = active & ~dones
        if not active.any():
            break
    return states, rewards_sum, lengths, np.mean(~active)


def same(one, other):
    """Compare arrays to the bit; those of states in the form that is the same for all engines."""
    if isinstance(one, ArcEnvState):
        return isinstance(other, ArcEnvState) and same(tuple(on_host(one)[1:-1]), tuple(on_host(other)[1:-1]))
    if isinstance(one, tuple):
        return len(one) == len(other) and all(same(*pair) for pair in zip(one, other, strict=True))
    one, other = np.asarray(one), np.asarray(other)
    return one.dtype == other.dtype and np.array_equal(one, other)


def refusal(call, *given, **options):
    """The message of the DataError that a call raises. JAX may add notes to errors, which are left out."""
    with pytest.raises(DataError) as caught:
        call(*given, **options)
    return str(caught.value)


# Rollouts.


@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.sampled_from(["off", "next_step", "same_step"]))
@settings(max_examples=30)
def test_a_rollout_is_the_policy_and_a_step_in_turn(seed, num_steps, auto_reset):
    config = config_of(auto_reset=auto_reset)
    states = begin(config=config, seed=seed)
    trajectory = batch_policy_rollout(example_policy, states, config, num_steps)
    seen, final = stepped_one_by_one(example_policy, states, config, num_steps)
    for number, (before, actions, rewards, dones, log_probs) in enumerate(seen):
        assert same(
            ArcEnvState(states.bank, *(None if leaf is None else leaf[number] for leaf in trajectory["states"][1:])),
            before,
        )
        assert same(tuple(part[number] for part in trajectory["actions"]), tuple(actions))
        assert same(trajectory["rewards"][number], rewards)
        assert same(trajectory["dones"][number], dones)
        assert same(trajectory["log_probs"][number], log_probs)
    assert same(trajectory["final_states"], final)


def shared_setting(engine):
    """The configuration, keys and tasks that tests of the engine in JAX have in common; see support/arc.py."""
    config = shared_config("bbox", "auto" if engine == "numpy" else engine)
    return config, keys_of(engine, batch=64), shared_bank()


def scripted(script):
    """A policy that plays a list of actions, one for each step."""
    stacked = [np.stack(parts) for parts in zip(*script, strict=True)]

    def policy(states):
        number = states.step_count.max()
        actions = BboxAction(*(numpy_of(states.status).asarray(part)[number] for part in stacked))
        return {"actions": actions, "log_probs": states.similarity_score}

    return policy


@pytest.mark.parametrize("engine", ENGINES)
def test_a_rollout_is_the_same_in_every_engine_with_the_steps_in_front_and_one_bank(engine):
    """All operations at random. Under JAX the steps are a `scan` in a compiled program."""
    random = np.random.default_rng(0)
    policy = scripted([random_actions_of_a_batch(random, "bbox", 64) for _ in range(12)])
    config, keys, bank = shared_setting(engine)
    states, _ = batch_reset(keys, config, bank)
    found = batch_policy_rollout(policy, states, config, num_steps=12)
    config, keys, bank = shared_setting("numpy")
    expected = batch_policy_rollout(policy, batch_reset(keys, config, bank)[0], config, num_steps=12)
    assert list(found) == ["states", "actions", "rewards", "dones", "log_probs", "final_states"]
    for name, value in expected.items():
        assert same(found[name], value), name
    assert 0 < expected["dones"][-1].sum() < 64
    assert found["states"].bank is found["final_states"].bank is states.bank
    assert found["states"].batch_size == 64
    assert on_host(found["states"]).working_grid.shape == found["states"].target_grid.shape == (12, 64, 30, 30)
    assert on_host(found["final_states"]).working_grid.shape == (64, 30, 30)
    assert {found[name].shape for name in ("rewards", "dones", "log_probs")} == {(12, 64)}
    assert type(found["actions"]) is BboxAction
    assert isinstance(found["rewards"], np.ndarray) == (engine == "numpy")
    values = compute_batch_values(example_value_fn, found["states"])
    assert same(values, np.asarray(found["states"].similarity_score) * np.float32(10))


def linear(weights):
    """A policy that closes over weights, for arrays of NumPy and JAX."""

    def policy(states):
        scores = states.working_grid[:, 0].astype(np.float32) @ weights
        colour = scores.argmax(-1).astype(np.int32)
        return {"actions": PointAction(colour, colour, colour), "log_probs": scores.max(-1)}

    return policy


@pytest.fixture(scope="module")
def weights():
    drawn = np.random.default_rng(0)
    return [drawn.normal(size=(30, 10)).astype(np.float32) for _ in range(3)]


@pytest.fixture(scope="module")
def expected_colours(weights):
    """The colours that a linear policy chooses in three steps, for each of the weights."""
    seen = [stepped_one_by_one(linear(some), begin(), config_of(), 3)[0] for some in weights]
    return [np.stack([actions.operation for _, actions, *_ in steps]) for steps in seen]


@pytest.mark.jax
def test_new_weights_are_used_and_do_not_compile_again(weights, expected_colours):
    states, box = begin("cpu"), {}

    def policy(states):
        return linear(box["weights"])(states)

    batch_policy_rollout(linear(weights[0]), states, config_of("cpu"), num_steps=3)
    before = _compiled.cache_info().misses
    for box["weights"], colours in zip(weights, expected_colours, strict=True):
        for one in (policy, linear(box["weights"])):  # a function whose closure changed, and a new function
            found = batch_policy_rollout(one, states, config_of("cpu"), num_steps=3)
            assert same(found["actions"].operation, colours)
    assert _compiled.cache_info().misses == before


@pytest.mark.jax
def test_a_number_that_the_policy_closes_over_is_read_in_every_call():
    states, box = begin("cpu"), {}

    def policy(states):
        colour = states.step_count * 0 + box["colour"]
        return {"actions": PointAction(colour, colour, colour), "log_probs": states.similarity_score}

    for box["colour"] in (3, 4):
        actions = batch_policy_rollout(policy, states, config_of("cpu"), num_steps=2)["actions"]
        assert (np.asarray(actions.operation) == box["colour"]).all()


@pytest.mark.jax
def test_neither_the_policy_nor_its_weights_are_kept_alive(weights):
    import jax.numpy as jnp

    own = jnp.asarray(weights[0]) + 1
    policy = linear(own)
    batch_policy_rollout(policy, begin("cpu"), config_of("cpu"), num_steps=3)
    dead = [weakref.ref(policy), weakref.ref(own)]
    del policy, own
    gc.collect()
    assert [one() for one in dead] == [None, None]


@pytest.mark.jax
def test_a_policy_that_needs_values_is_called_step_by_step(weights, expected_colours):
    calls = []

    def on_host(states):
        calls.append(1)
        grid = np.asarray(states.working_grid)[:, 0]
        colour = (grid.astype(np.float32) @ weights[0]).argmax(-1).astype(np.int32)
        return {"actions": PointAction(colour, colour, colour), "log_probs": np.zeros(BATCH, np.float32)}

    found = batch_policy_rollout(on_host, begin("cpu"), config_of("cpu"), num_steps=3)
    assert same(found["actions"].operation, expected_colours[0])
    assert len(calls) == 1 + 3, "once to find out"
    episode = run_batch_episode(keys_of("cpu"), config_of("cpu"), TASKS, max_steps=3, policy_fn=on_host)
    assert same(episode["final_states"].cells, found["final_states"].cells)


@pytest.mark.jax
def test_policies_that_call_back_different_functions_are_told_apart():
    import jax

    shape = jax.ShapeDtypeStruct((BATCH,), np.int32)

    def calling(colour):
        def policy(states):
            chosen = jax.pure_callback(lambda steps: np.full_like(steps, colour), shape, states.step_count)
            return {"actions": PointAction(chosen, chosen, chosen), "log_probs": states.similarity_score}

        return policy

    for colour in (1, 2):
        actions = batch_policy_rollout(calling(colour), begin("cpu"), config_of("cpu"), num_steps=2)["actions"]
        assert (np.asarray(actions.operation) == colour).all()


@pytest.mark.jax
def test_rollouts_and_episodes_can_be_part_of_a_compiled_function(weights, expected_colours):
    import jax

    @jax.jit
    def both(weights, states, keys):
        rollout = batch_policy_rollout(linear(weights), states, config_of("cpu"), num_steps=3)
        return rollout["actions"].operation, run_batch_episode(keys, config_of("cpu"), TASKS)["episode_rewards"]

    expected = run_batch_episode(keys_of("numpy"), config_of(), TASKS)["episode_rewards"]
    for some, colours in zip(weights, expected_colours, strict=True):
        assert same(both(some, begin("cpu"), keys_of("cpu")), (colours, expected))


@pytest.mark.jax
def test_log_probabilities_can_be_differentiated_by_what_the_policy_closes_over(weights):
    """As a policy gradient needs it. The gradient of the largest score is the row of the grid that it was made of."""
    import jax

    states = begin("cpu")

    def total(weights):
        return batch_policy_rollout(linear(weights), states, config_of("cpu"), num_steps=3)["log_probs"].sum()

    found = np.asarray(jax.grad(total)(weights[0]))
    expected = np.zeros_like(found)
    seen, _ = stepped_one_by_one(linear(weights[0]), begin(), config_of(), 3)
    for before, actions, *_ in seen:
        np.add.at(expected.T, actions.operation, before.working_grid[:, 0].astype(np.float32))
    assert np.allclose(found, expected)


@pytest.mark.parametrize("engine", ENGINES[:2])
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, 'policy_fn must return a dictionary with "actions" and "log_probs", got NoneType'),
        (
            {"actions": 1, "values": 2},
            'policy_fn must return a dictionary with "actions" and "log_probs", got the keys actions, values',
        ),
        (
            {"actions": BboxAction(*[0] * 5), "log_probs": 0},
            "selection_format is 'point', so actions must be PointAction, got BboxAction",
        ),
        (
            {"actions": PointAction(0, 0, 0), "log_probs": 0},
            "PointAction.operation must have shape (4,), got ()",
        ),
    ],
)
def test_a_policy_that_returns_something_else_is_refused(engine, answer, message):
    assert refusal(batch_policy_rollout, lambda _: answer, begin(engine), config_of(engine)) == message


def test_numbers_and_states_are_checked():
    states = begin()
    with pytest.raises(OptionError, match=r"^num_steps must be at least 1, got 0$"):
        batch_policy_rollout(example_policy, states, config_of(), num_steps=0)
    with pytest.raises(OptionError, match=r"^max_steps must be at least 1, got 0$"):
        run_batch_episode(keys_of("numpy"), config_of(), TASKS, max_steps=0)
    with pytest.raises(OptionError, match=r"^envs_per_episode must be at least 1, got 0$"):
        hierarchical_batch_processing(envs_per_episode=0)
    with pytest.raises(OptionError, match=r"^arrays must be one of auto, numpy, jax, got 'torch'"):
        hierarchical_batch_processing(arrays="torch")
    with pytest.raises(DataError, match=r"^batch_states must be an ArcEnvState, as batch_reset returns it, got tuple$"):
        batch_policy_rollout(example_policy, (states, None), config_of())
    with pytest.raises(DataError, match=r"^batch_step takes a batch, got states of shape \(\)"):
        batch_policy_rollout(lambda _: {"actions": 0, "log_probs": 0}, take_states(states, 0), config_of())


# Episodes.


def fill_in_turn(states, step):
    """The guide's actions."""
    count = states.batch_size
    return PointAction(np.zeros(count, np.int32), np.full(count, step % 10 + 5, np.int32), np.full(count, 5, np.int32))


def submit_at_some_time(states):
    """Choose at random, and submit at a time that differs from environment to environment."""
    chosen = example_policy(states)
    submits = chosen["actions"].row % 4 == 0
    operation = np.where(submits, np.int32(ArcOperation.SUBMIT), chosen["actions"].operation)
    return {**chosen, "actions": chosen["actions"]._replace(operation=operation)}


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 14),
    st.integers(1, 8),
    st.sampled_from(["off", "next_step", "same_step"]),
    st.sampled_from([None, example_policy, submit_at_some_time]),
)
@settings(max_examples=60)
def test_an_episode_is_the_guides_loop(seed, max_steps, max_episode_steps, auto_reset, policy):
    config = config_of(auto_reset=auto_reset, max_episode_steps=max_episode_steps)
    keys = keys_of("numpy", seed)
    found = run_batch_episode(keys, config, TASKS, max_steps, policy_fn=policy)
    act = (lambda states, _: policy(states)["actions"]) if policy else fill_in_turn
    states, rewards, lengths, completed = played_one_by_one(keys, config, TASKS, max_steps, act)
    assert same(found["final_states"], states)
    assert same(found["episode_rewards"], rewards)
    assert same(found["episode_lengths"], lengths)
    assert found["completion_rate"] == completed


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_an_episode_under_jax_is_that_on_numpy(engine):
    """To the step limit of 300; by the kernel, which is compiled sooner, also to `max_steps`."""
    config, keys, bank = shared_setting(engine)
    for max_steps in (50, 400) if engine == "cpu" else (400,):
        found = run_batch_episode(keys, config, bank, max_steps)
        expected = run_batch_episode(keys_of("numpy", batch=64), shared_setting("numpy")[0], bank, max_steps)
        assert list(found) == list(expected)
        for name, value in expected.items():
            assert same(found[name], value), name
        assert expected["episode_lengths"].tolist() == [min(max_steps, 300)] * 64
        assert found["completion_rate"] == (max_steps == 400)


@pytest.mark.parametrize("engine", ENGINES[:2])
def test_play_stops_when_all_episodes_have_ended(engine):
    """Played on, the environments would be in a later episode."""
    config = config_of(engine, auto_reset="next_step")

    def submit_at_once(states):
        zeros = states.step_count * 0
        actions = PointAction(zeros + np.int32(ArcOperation.SUBMIT), zeros, zeros)
        return {"actions": actions, "log_probs": states.similarity_score}

    found = run_batch_episode(keys_of(engine), config, TASKS, policy_fn=submit_at_once)
    assert np.asarray(found["episode_lengths"]).tolist() == [1] * BATCH
    assert np.asarray(found["final_states"].episode).tolist() == [0] * BATCH
    assert found["completion_rate"] == 1


@pytest.mark.parametrize("selection_format", FORMATS)
def test_the_fixed_actions_select_the_same_cells_in_every_format(selection_format):
    keys = keys_of("numpy")
    config = config_of(selection_format=selection_format, max_episode_steps=100)
    found = run_batch_episode(keys, config, TASKS, max_steps=12)
    expected = run_batch_episode(keys, config_of(max_episode_steps=100), TASKS, max_steps=12)
    assert same(found["final_states"], expected["final_states"])
    assert same(found["episode_rewards"], expected["episode_rewards"])


@pytest.mark.parametrize("engine", ENGINES[:2])
def test_many_episodes_are_episodes_with_keys_of_their_own(engine):
    arrays = "numpy" if engine == "numpy" else "jax"
    results = hierarchical_batch_processing(3, BATCH, 50, config_of(engine), TASKS, arrays=arrays)
    assert [result["episode"] for result in results] == [0, 1, 2]
    for number, result in enumerate(results):
        keys = keys_of("numpy", seed=number)
        rewards = run_batch_episode(keys, config_of(), TASKS, 50)["episode_rewards"]
        assert same(result["rewards"], rewards)
        assert type(result["mean_reward"]) is type(result["std_reward"]) is float
        assert math.isclose(result["mean_reward"], rewards.mean(), rel_tol=1e-6)
        assert math.isclose(result["std_reward"], rewards.std(), rel_tol=1e-4, abs_tol=1e-7)


def test_many_episodes_have_a_default_configuration_and_task():
    found = hierarchical_batch_processing(1, 2, 3, arrays="numpy")
    expected = hierarchical_batch_processing(1, 2, 3, JaxArcConfig(), create_mock_task(), arrays="numpy")
    assert same(found[0]["rewards"], expected[0]["rewards"])


# Policies, values and keys.


def played(seed, steps, batch=16):
    """States in the middle of episodes."""
    config = config_of(auto_reset="next_step", max_episode_steps=3)
    states = begin(config=config, seed=seed, batch=batch)
    return batch_policy_rollout(example_policy, states, config, num_steps=steps)["final_states"]


@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.lists(st.integers(0, 15), min_size=1, max_size=20))
@settings(max_examples=30)
def test_the_random_policy_acts_the_same_in_any_batch_and_at_any_place(seed, steps, places):
    states = played(seed, steps)
    actions = example_policy(states)["actions"]
    fewer = example_policy(take_states(states, np.array(places)))["actions"]
    assert same(tuple(fewer), tuple(part[places] for part in actions))


def test_the_random_policy_acts_differently_in_every_environment_step_and_episode():
    states = played(0, 1, batch=400)
    chosen = [
        np.stack(
            example_policy(states._replace(step_count=states.step_count + step, episode=states.episode + episode))[
                "actions"
            ]
        )
        for step in range(3)
        for episode in range(3)
    ]
    for number, one in enumerate(chosen):
        for other in chosen[:number]:
            equal = (one == other).mean(axis=1)
            assert (equal < [0.2, 0.1, 0.1]).all()  # 1/10, 1/30 and 1/30 if they are independent
    for part in chosen[0]:
        assert len(set(part.tolist())) > 9


def test_the_random_policy_is_uniform_and_its_log_probabilities_are_those_of_its_choice():
    config = JaxArcConfig(dataset=UnifiedDatasetConfig(max_grid_height=4, max_grid_width=5))
    states, _ = batch_reset(split_key(0, 20_000, arrays="numpy"), config, JaxArcTask("one", [([[1]], [[1]])]))
    chosen = example_policy(states)
    actions, log_probs = chosen["actions"], chosen["log_probs"]
    assert log_probs.dtype == np.float32
    assert np.allclose(np.exp(log_probs), 1 / (10 * 4 * 5))
    cells = np.ravel_multi_index(tuple(actions), (10, 4, 5))
    counts = np.bincount(cells, minlength=200)
    expected = 20_000 / 200
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi_squared - 199) < 5 * math.sqrt(2 * 199)


@pytest.mark.jax
def test_the_random_policy_acts_the_same_under_jax():
    import jax

    states = played(3, 4)
    on_jax = jax.tree.map(jax.numpy.asarray, states)
    found, expected = example_policy(on_jax), example_policy(states)
    assert same(tuple(found["actions"]), tuple(expected["actions"]))
    assert same(found["log_probs"], expected["log_probs"])
    assert isinstance(found["log_probs"], jax.Array)


@pytest.mark.parametrize("selection_format", FORMATS)
@given(st.lists(st.sampled_from([0, 1, 24, 25, 26, 60]), min_size=BATCH, max_size=BATCH))
@settings(max_examples=15)
def test_conditional_actions_change_at_step_25(selection_format, counts):
    config = config_of(selection_format=selection_format)
    states = begin(config=config)._replace(step_count=np.array(counts, np.int32))
    actions = conditional_batch_processing(states, config)
    assert actions.operation.tolist() == [0 if count < 25 else 1 for count in counts]
    places = [5 if count < 25 else 10 for count in counts]
    if selection_format == "mask":
        assert [np.argwhere(mask).tolist() for mask in actions.selection] == [[[place, place]] for place in places]
    else:
        assert all(part.tolist() == places for part in actions[1:])
    batch_step(states, actions, config)


@pytest.mark.jax
@pytest.mark.parametrize("selection_format", FORMATS)
def test_conditional_actions_under_jax_are_those_on_numpy(selection_format):
    import jax

    config = config_of(selection_format=selection_format)
    states = begin(config=config)._replace(step_count=np.array([0, 24, 25, 99], np.int32))
    expected = conditional_batch_processing(states, config)
    found = conditional_batch_processing(jax.tree.map(jax.numpy.asarray, states), config)
    assert (
        type(found)
        is type(expected)
        is {"point": PointAction, "bbox": BboxAction, "mask": MaskAction}[selection_format]
    )
    assert same(tuple(found), tuple(expected))


@pytest.mark.parametrize("engine", ENGINES)
def test_values_are_computed_from_what_the_states_show(engine):
    config, keys, bank = shared_setting(engine)
    states, _ = batch_reset(keys, config, bank)
    features = extract_state_features(states)
    assert list(features) == ["working_grid", "target_grid", "similarity", "step_count"]
    shown = (states.working_grid, states.target_grid, states.similarity_score, states.step_count)
    assert same(tuple(features.values()), shown)
    assert same(compute_batch_values(example_value_fn, states), np.asarray(states.similarity_score) * np.float32(10))


@pytest.mark.jax
def test_keys_are_those_of_jax():
    import jax

    for seed in (0, 1, 42, 2**32 - 1):
        expected = jax.random.split(jax.random.PRNGKey(np.uint32(seed)), 9)
        assert same(split_key(seed, 9, arrays="numpy"), expected)
        assert same(split_key(seed, 9, arrays="jax"), expected)
    assert isinstance(split_key(0, 2), jax.Array)


def test_keys_are_made_without_jax():
    keys = split_key(5, 3, arrays="numpy")
    assert isinstance(keys, np.ndarray)
    assert (keys.shape, keys.dtype) == ((3, 2), np.uint32)
    assert np.array_equal(split_key(5, 2, arrays="numpy"), keys[:2])
    with pytest.raises(OptionError, match=r"^batch must be at least 1, got 0$"):
        split_key(5, 0)


def test_rollouts_print_nothing(capsys):
    hierarchical_batch_processing(1, 2, 2, arrays="numpy")
    assert capsys.readouterr().out == ""
    assert "print(" not in inspect.getsource(inspect.getmodule(batch_policy_rollout))
