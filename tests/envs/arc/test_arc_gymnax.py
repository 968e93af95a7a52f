"""ARC environments with the interface of gymnax: `vmap`, `scan` and single calls give what `batch_step` gives."""

import sys
from functools import cache
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.arc import assert_same, assert_same_states, config, random_actions, random_task, with_engine

from brim.core.errors import OptionError
from brim.envs.arc import (
    ArcGymnaxEnv,
    ArcOperation,
    ArcParams,
    PointAction,
    batch_reset,
    batch_step,
    build_bank,
    demonstrations,
    take_states,
)
from brim.envs.arc.adapters.flat import flat_table
from brim.envs.arc.adapters.masks import flat_mask, parts_mask
from brim.envs.arc.channels import one_hot, stack_channels

SHAPE = (5, 6)
ENVS = 6
STEPS = 12
SETTING = config("point", shape=SHAPE, max_episode_steps=5)
QUICK = {"xla_backend_optimization_level": 0}
"""Programs run for a moment here, so XLA spends little on them."""


@cache
def bank(seed=0):
    random = np.random.default_rng(seed)
    return build_bank([random_task(random, number, SHAPE) for number in range(5)], SETTING)


def keys(number=ENVS, seed=0):
    return jax.random.split(jax.random.PRNGKey(seed), number)


def numbers(env, steps=STEPS, envs=ENVS, seed=0):
    """Random actions, some of which do not exist."""
    return np.random.default_rng(seed).integers(-2, env.num_actions + 2, (steps, envs)).astype(np.int32)


def functional(actions, tasks=None, setting=SETTING):
    """The same rollout with `batch_reset` and `batch_step` on NumPy arrays: states and results of all steps."""
    resets = config(setting.action.selection_format, shape=SHAPE, max_episode_steps=5, auto_reset="same_step")
    states, obs = batch_reset(np.asarray(keys()), resets, bank() if tasks is None else tasks)
    results = []
    for row in actions:
        results.append(batch_step(states, flat_table(setting).decode(row), resets))
        states = results[-1].states
    return obs, results


def scanned(env):
    """A program in the manner of PureJaxRL: `vmap` over environments inside of `scan` inside of `jit`."""

    def play(keys, actions, params):
        obs, state = jax.vmap(env.reset, in_axes=(0, None))(keys, params)

        def step(state, action):
            obs, state, reward, done, info = jax.vmap(env.step, in_axes=(0, 0, 0, None))(keys, state, action, params)
            return state, (obs, reward, done, info)

        return obs, *jax.lax.scan(step, state, actions)

    return play


@cache
def compiled(engine):
    """An environment and its rollout, compiled once for all tests."""
    env = ArcGymnaxEnv(bank(), with_engine(SETTING, engine))
    return env, jax.jit(scanned(env), compiler_options=QUICK)


@pytest.mark.parametrize("engine", ["auto", "jax"])
def test_a_random_rollout_is_that_of_the_functions(engine):
    env, play = compiled(engine)
    actions = numbers(env)
    first, state, (obs, rewards, dones, infos) = play(keys(), actions, env.default_params)
    wanted, results = functional(actions)
    assert_same(first, wanted)
    assert_same_states(env.states(state), results[-1].states)
    for step, result in enumerate(results):
        assert_same(obs[step], result.obs)
        assert_same(rewards[step], result.rewards)
        assert_same(dones[step], result.dones)
        assert set(infos) == {*result.infos, "discount", "final_grid"} - {"final_obs"}
        for name, values in result.infos.items():
            assert_same(infos["final_grid" if name == "final_obs" else name][step], values)
        assert_same(infos["discount"][step], np.where(result.infos["terminated"], 0, 1).astype(np.float32))
    assert np.asarray(dones).sum() > ENVS
    assert np.asarray(infos["truncated"]).any()
    assert np.asarray(infos["discount"])[np.asarray(infos["truncated"])].all()


def test_single_calls_and_nested_vmaps_give_the_same():
    """Without `vmap`, and as 3 seeds of 2 environments, as PureJaxRL trains several seeds at once."""
    env, play = compiled("auto")
    actions, params = numbers(env), env.default_params
    _, state, (obs, rewards, _, _) = play(keys(), actions, params)
    nested = jax.jit(jax.vmap(scanned(env), in_axes=(0, 1, None)), compiler_options=QUICK)
    _, inner, (nested_obs, nested_rewards, _, _) = nested(keys().reshape(3, 2, 2), actions.reshape(STEPS, 3, 2), params)
    assert_same(np.swapaxes(nested_obs, 0, 1).reshape(obs.shape), obs)
    assert_same(np.swapaxes(nested_rewards, 0, 1).reshape(rewards.shape), rewards)
    merged = jax.tree.map(lambda leaf: leaf.reshape((ENVS, *leaf.shape[2:])), inner)
    assert_same_states(env.states(merged), env.states(state))
    reset, step = jax.jit(env.reset), jax.jit(env.step, compiler_options=QUICK)
    for lane in (0, 4):
        _, alone = reset(keys()[lane])
        for number in range(STEPS):
            seen, alone, reward, _, _ = step(keys()[lane], alone, actions[number, lane])
            assert_same(seen, obs[number, lane])
            assert_same(reward, rewards[number, lane])
        assert_same_states(env.states(alone), take_states(env.states(state), lane))


def test_new_style_keys_are_the_same_keys():
    env, _ = compiled("auto")
    one, other = env.reset(jax.random.key(3)), env.reset(jax.random.PRNGKey(3))
    assert_same_states(env.states(one[1]), env.states(other[1]))
    assert_same(one[0], other[0])


@pytest.mark.parametrize("hot", [False, True])
def test_channels_are_those_of_the_states_and_lie_in_the_space(hot):
    channels = ("working", "clipboard", "demonstrations")
    env = ArcGymnaxEnv(bank(), SETTING, channels=channels, pairs=2, one_hot=hot)
    actions = numbers(env)
    first, _, (obs, *_) = jax.jit(scanned(env), compiler_options=QUICK)(keys(), actions, env.default_params)
    assert first.shape == (ENVS, *env.observation_space(env.default_params).shape)
    for step, result in enumerate(functional(actions)[1]):
        wanted = stack_channels(result.states, channels, 2)
        assert_same(obs[step], one_hot(wanted, axes=1) if hot else wanted)
        assert env.observation_space().contains(np.asarray(obs[step])[0])


@pytest.mark.parametrize("channels", [None, ("working", "clipboard", "demonstrations")])
def test_done_in_two_parts_comes_with_the_observation_before_a_reset(channels):
    """As in gymnax 1.0. What is wanted is a step of the same states that resets nothing."""
    env = ArcGymnaxEnv(bank(), SETTING, channels=channels, pairs=2, split_done=True)
    actions = numbers(env)
    actions[2, 1] = env.table.encode(PointAction(np.int32(ArcOperation.SUBMIT), np.int32(0), np.int32(0)))
    step = jax.jit(jax.vmap(env.step), compiler_options=QUICK)
    _, state = jax.vmap(env.reset)(keys())
    ends = np.zeros(2, np.int64)
    for row in actions:
        without = batch_step(env.states(state), env.table.decode(jnp.asarray(row)), SETTING)
        wanted = without.obs if channels is None else stack_channels(without.states, channels, 2)
        _, state, reward, terminated, truncated, info = step(keys(), state, row)
        assert_same(info["final_observation"], wanted)
        assert_same(reward, without.rewards)
        assert_same(terminated, without.infos["terminated"])
        assert_same(truncated, without.infos["truncated"])
        ends += [terminated.sum(), truncated.sum()]
    assert ends.all()


def test_one_hot_of_the_working_grid_has_eleven_channels():
    env = ArcGymnaxEnv(bank(), SETTING, one_hot=True)
    obs, state = env.reset(keys()[0])
    assert obs.shape == env.observation_space().shape == (11, *SHAPE)
    assert_same(obs.argmax(axis=0).astype(np.uint8), env.states(state).working_grid)


def test_other_tasks_can_be_given_as_params():
    (env, play), other = compiled("auto"), ArcGymnaxEnv(bank(1), SETTING)
    actions = numbers(env)
    assert isinstance(other.default_params, ArcParams)
    _, _, (obs, *_) = play(keys(), actions, other.default_params)
    assert_same(obs[-1], functional(actions, bank(1))[1][-1].obs)
    _, _, (obs, *_) = play(keys(), actions, env.default_params)
    assert_same(obs[-1], functional(actions)[1][-1].obs)


def test_tasks_cannot_differ_between_the_environments_of_a_vmap():
    env, _ = compiled("auto")
    many = jax.tree.map(lambda leaf: jnp.stack([leaf] * ENVS), env.default_params)
    with pytest.raises(OptionError, match=r"environments share their tasks: .* in_axes=None for params"):
        jax.vmap(env.reset)(keys(), many)


def test_spaces_contain_their_samples_and_nothing_else():
    env, _ = compiled("auto")
    actions, observations = env.action_space(env.default_params), env.observation_space()
    assert actions.n == env.num_actions == flat_table(SETTING).size
    drawn = set(jax.jit(jax.vmap(actions.sample))(keys(50)).tolist())
    assert all(actions.contains(number) for number in drawn)
    assert len(drawn) > 40
    assert not actions.contains(actions.n)
    assert not actions.contains(-1)
    sample = np.asarray(jax.jit(observations.sample)(keys()[0]))
    assert observations.contains(sample)
    assert set(np.unique(sample)) == set(range(11))
    assert not observations.contains(sample.astype(np.int32))
    assert not observations.contains(sample[1:])
    assert not observations.contains(sample + np.uint8(11))


def test_spaces_are_of_the_classes_of_gymnax_where_it_was_imported(monkeypatch):
    """Its wrappers assert that. The module here stands in for gymnax, which needs flax, pandas and seaborn."""
    spaces = ModuleType("gymnax.environments.spaces")
    spaces.Box = type("Box", (), {"__init__": lambda self, low, high, shape, dtype: vars(self).update(shape=shape)})
    spaces.Discrete = type("Discrete", (), {"__init__": lambda self, n: vars(self).update(n=n)})
    monkeypatch.setitem(sys.modules, "gymnax.environments.spaces", spaces)
    env, _ = compiled("auto")
    assert isinstance(env.observation_space(), spaces.Box)
    assert env.observation_space().shape == SHAPE
    assert isinstance(env.action_space(), spaces.Discrete)
    assert env.action_space().n == env.num_actions


@pytest.mark.parametrize(
    ("setting", "options", "message"),
    [
        (config("mask", shape=SHAPE), {}, 'flat actions need selection_format "point" or "bbox", got "mask"'),
        (config(shape=SHAPE, auto_reset="same_step"), {}, "auto_reset must be 'off'"),
        (SETTING, {"channels": ("work",)}, "got 'work'. Did you mean \"working\""),
        (SETTING, {"pairs": 0}, "pairs must be at least 1, got 0"),
    ],
)
def test_options_that_cannot_be_are_refused(setting, options, message):
    with pytest.raises(OptionError, match=message):
        ArcGymnaxEnv(bank(), setting, **options)


@pytest.mark.parametrize("form", ["point", "bbox"])
def test_masks_flat_actions_and_demonstrations_are_the_same_under_jax(form):
    setting = config(form, shape=SHAPE)
    states, _ = batch_reset(np.asarray(keys()), setting, bank())
    random = np.random.default_rng(0)
    for _ in range(4):
        states = batch_step(states, random_actions(random, form, ENVS, SHAPE), setting).states
    table = flat_table(setting)
    given = random.integers(-3, table.size + 3, 50).astype(np.int32)

    def everything(states, given):
        actions = table.decode(given)
        known = table.decode(np.arange(table.size, dtype=np.int32)[:50])
        masks = flat_mask(states, setting), parts_mask(states, setting)
        return *actions, table.encode(known), *masks, demonstrations(states, 3), one_hot(states.working_grid, 1)

    on_jax = jax.jit(everything, compiler_options=QUICK)(jax.tree.map(jnp.asarray, states), given)
    for one, other in zip(on_jax, everything(states, given), strict=True):
        assert np.asarray(one).tolist() == np.asarray(other).tolist()
