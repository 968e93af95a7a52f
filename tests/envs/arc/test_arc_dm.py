"""ARC environments with the interface of dm_env."""

import subprocess
import sys
from functools import cache

import numpy as np
import pytest
from support.arc import FORMATS, assert_same, config, random_task

from brim.core.errors import DataError, OptionError
from brim.envs.arc import (
    ArcDmEnv,
    ArcOperation,
    BboxAction,
    MaskAction,
    PointAction,
    batch_reset,
    batch_step,
    build_bank,
)
from brim.envs.arc.adapters.dm import StepType
from brim.envs.arc.adapters.lanes import key_of
from brim.envs.arc.channels import stack_channels

SHAPE = (5, 6)
KINDS = {"point": PointAction, "bbox": BboxAction}


def setting(form, **environment):
    return config(form, shape=SHAPE, max_episode_steps=6, **environment)


@cache
def bank():
    random = np.random.default_rng(0)
    return build_bank([random_task(random, number, SHAPE) for number in range(5)], setting("point"))


def draw(random, spec):
    """A random action of a specification, and the same as a batch of one."""
    if isinstance(spec, dict):
        parts = {name: draw(random, part)[0] for name, part in spec.items()}
        return parts, MaskAction(parts["operation"][None], parts["selection"][None])
    high = np.broadcast_to(spec.maximum, spec.shape).astype(np.int64)
    action = random.integers(np.broadcast_to(spec.minimum, spec.shape).astype(np.int64), high + 1).astype(spec.dtype)
    action = np.asarray(action)
    kind = {3: PointAction, 5: BboxAction}.get(action.size) if action.ndim == 1 else None
    return spec.validate(action), kind and kind(*action[:, None])


@pytest.mark.parametrize("channels", [None, ("working", "input", "demonstrations")])
@pytest.mark.parametrize("form", FORMATS)
def test_a_random_rollout_is_that_of_the_functions(form, channels):
    env, functional = ArcDmEnv(bank(), setting(form), seed=8, channels=channels), setting(form, auto_reset="next_step")
    states, obs = batch_reset(key_of(8)[None], functional, bank())
    random, kinds = np.random.default_rng(0), []

    def seen(states, obs):
        return obs[0] if channels is None else stack_channels(states, channels, 3)[0]

    assert_same(env.reset().observation, seen(states, obs))
    for _ in range(60):
        action, batch = draw(random, env.action_spec())
        began = states.status[0] != 0
        step = env.step(action)
        states, obs, rewards, dones, infos = batch_step(states, batch, functional)
        assert_same(env.observation_spec().validate(step.observation), seen(states, obs))
        kinds.append(step.step_type)
        assert (step.first(), step.mid(), step.last()) == (began, not began and not dones[0], bool(dones[0]))
        if began:
            assert (step.reward, step.discount) == (None, None)
        else:
            assert_same(env.reward_spec().validate(step.reward), rewards[0])
            assert_same(env.discount_spec().validate(step.discount), np.float32(not infos["terminated"][0]))
    assert set(kinds) == set(StepType)


def test_a_truncated_episode_has_discount_1_and_a_submitted_one_0():
    env = ArcDmEnv(bank(), setting("point"))
    env.reset()
    steps = [env.step(np.array([0, 0, 0])) for _ in range(6)]
    assert [step.last() for step in steps] == [False] * 5 + [True]
    assert steps[-1].discount == 1
    assert env.step(np.array([0, 0, 0])).first()
    submitted = env.step(np.array([ArcOperation.SUBMIT, 0, 0]))
    assert (submitted.last(), submitted.discount) == (True, 0)


def test_a_step_before_the_first_reset_begins_the_first_episode():
    one, other = ArcDmEnv(bank(), setting("point"), seed=5), ArcDmEnv(bank(), setting("point"), seed=5)
    began = one.step(np.array([3, 1, 1]))
    assert began.first()
    assert_same(began.observation, other.reset().observation)
    one.close()


def test_time_steps_do_not_change_later():
    env = ArcDmEnv(bank(), setting("point"))
    first = env.reset().observation
    kept = first.copy()
    env.step(np.array([ArcOperation.CLEAR, 0, 0]))
    env.step(np.array([7, 0, 0]))
    assert_same(first, kept)


@pytest.mark.parametrize("form", FORMATS)
def test_generated_values_are_actions(form):
    env = ArcDmEnv(bank(), setting(form))
    env.reset()
    spec = env.action_spec()
    made = {name: part.generate_value() for name, part in spec.items()} if form == "mask" else spec.generate_value()
    assert env.step(made).mid()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros(2, np.int32), r"action must be int32 of shape \(3,\), got int32 of shape \(2,\)"),
        (np.zeros(3), r"got float64 of shape \(3,\)"),
        (np.array([42, 0, 0], np.int32), r"action must lie between 0 and \[41  4  5\], got \[42  0  0\]"),
        (np.array([0, -1, 0], np.int32), "must lie between"),
    ],
)
def test_a_specification_refuses_what_is_not_like_it(value, message):
    with pytest.raises(DataError, match=message):
        ArcDmEnv(bank(), setting("point")).action_spec().validate(value)


def test_actions_seeds_and_configurations_of_another_form_are_refused():
    env = ArcDmEnv(bank(), setting("point"))
    with pytest.raises(DataError, match=r"integers of shape \(3,\): operation, row, col"):
        env.step(np.zeros(5, int))
    with pytest.raises(OptionError, match=r"a seed must be an integer from 0 to 2\*\*64 - 1, got -1"):
        ArcDmEnv(bank(), setting("point"), seed=-1)
    with pytest.raises(OptionError, match="auto_reset must be 'off'"):
        ArcDmEnv(bank(), setting("point", auto_reset="next_step"))


def test_neither_jax_nor_gymnasium_nor_dm_env_is_needed():
    code = (
        "import sys; sys.modules |= dict.fromkeys(['jax', 'gymnasium', 'dm_env'])\n"
        "from brim.envs.arc import ArcDmEnv\n"
        "env = ArcDmEnv()\n"
        "print(env.reset().first(), env.step([34, 0, 0]).last())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]
