"""ARC environments with the interface of Gymnasium: one, and many at once in every auto-reset mode.

`SyncVectorEnv` over as many `ArcEnv`s is the oracle of `ArcVectorEnv`; `batch_reset` and `batch_step` are that of both.
"""

import json
import pickle
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from support.arc import FORMATS, assert_same, config, random_task

import brim.envs.arc
from brim.core.errors import DataError, OptionError
from brim.envs.arc import (
    ArcEnv,
    ArcOperation,
    ArcVectorEnv,
    BboxAction,
    EnvironmentConfig,
    JaxArcConfig,
    MaskAction,
    PointAction,
    UnifiedActionConfig,
    batch_reset,
    batch_step,
    build_bank,
)
from brim.envs.arc.adapters.lanes import key_of
from brim.envs.arc.look.ansi import draw_state
from brim.envs.arc.look.raster import rgb_state

SHAPE = (5, 6)
ENVS = 5
KINDS = {"point": PointAction, "bbox": BboxAction, "mask": MaskAction}
AUTO_RESETS = {AutoresetMode.NEXT_STEP: "next_step", AutoresetMode.SAME_STEP: "same_step"}
ALLOWED = (*range(6), *range(20, 32), ArcOperation.RESIZE, ArcOperation.SUBMIT, *range(35, 42))


def setting(form="point", steps=7, **environment):
    """Some operations are not allowed, and episodes are short."""
    made = config(form, shape=SHAPE, max_episode_steps=steps, **environment)
    return replace(made, action=UnifiedActionConfig(selection_format=form, allowed_operations=ALLOWED))


@cache
def bank():
    random = np.random.default_rng(0)
    return build_bank([random_task(random, number, SHAPE) for number in range(6)], setting())


def as_actions(form, given):
    """Elements of a vector's action space as actions of `batch_step`."""
    if form == "mask":
        return MaskAction(given["operation"].astype(np.int32), given["selection"] != 0)
    return KINDS[form](*np.moveaxis(given.astype(np.int32), -1, 0))


def one_of_many(form, given, lane):
    return {name: part[lane] for name, part in given.items()} if form == "mask" else given[lane]


def assert_equal(one, other, what=()):
    """Compare what Gymnasium returns, to the bit: arrays, numbers, dictionaries and arrays of objects."""
    assert type(one) is type(other), what
    if isinstance(one, dict):
        assert set(one) == set(other), what
        for name in one:
            assert_equal(one[name], other[name], (*what, name))
    elif isinstance(one, tuple | list):
        assert len(one) == len(other), what
        for place, parts in enumerate(zip(one, other, strict=True)):
            assert_equal(*parts, (*what, place))
    elif isinstance(one, np.ndarray) and one.dtype == object:
        assert_equal(list(one), list(other), what)
    elif one is None or isinstance(one, str):
        assert one == other, what
    else:
        assert_same(one, other, what)


# One environment


@pytest.mark.parametrize("mode", ["train", "test"])
@pytest.mark.parametrize("form", FORMATS)
def test_gymnasiums_checker_finds_nothing(form, mode):
    made = setting(form, episode_mode=mode)
    for render_mode in (None, "ansi", "rgb_array"):
        env = gymnasium.make("brim/ARC-v0", tasks=bank(), config=made, render_mode=render_mode)
        check_env(env.unwrapped)


@pytest.mark.parametrize("form", FORMATS)
def test_a_random_rollout_of_one_environment_is_that_of_the_functions(form):
    seed, functional = 2**40 + 3, setting(form, auto_reset="next_step")
    env = ArcEnv(bank(), setting(form))
    env.action_space.seed(1)
    obs, info = env.reset(seed=seed)
    states, wanted = batch_reset(key_of(seed)[None], functional, bank())
    assert_same(obs, wanted[0])
    assert (info["pair_index"], info["similarity"]) == (states.pair_index[0], states.similarity_score[0])
    episodes = 0
    for _ in range(60):
        action = env.action_space.sample()
        batch = as_actions(form, _with_axis(action))
        obs, reward, terminated, truncated, info = env.step(action)
        states, wanted, rewards, _, infos = batch_step(states, batch, functional)
        assert env.observation_space.contains(obs)
        assert_same(obs, wanted[0])
        outcome = (float(rewards[0]), bool(infos["terminated"][0]), bool(infos["truncated"][0]))
        assert_equal((reward, terminated, truncated), outcome)
        assert {name: info[name] for name in infos if name in info} == {
            name: infos[name][0] for name in ("similarity", "solved", "invalid", "pair_index")
        }
        assert info["task_index"] == states.task_index[0]
        if terminated or truncated:
            episodes += 1
            obs, info = env.reset()
            states, wanted, *_ = batch_step(states, batch, functional)
            assert_same(obs, wanted[0])
            assert info["invalid"] is False
    assert episodes > 3


def _with_axis(action):
    if isinstance(action, dict):
        return {name: np.asarray(part)[None] for name, part in action.items()}
    return action[None]


def test_a_seed_repeats_its_episodes_and_a_reset_without_one_begins_the_next_of_them():
    env, other = ArcEnv(bank(), setting()), ArcEnv(bank(), setting())
    first = [env.reset(seed=3), env.reset(), env.reset()]
    again = [other.reset(seed=3), other.reset(), other.reset()]
    assert_equal(first, again)
    assert len({info["pair_index"] for _, info in first}) > 1
    assert_equal(env.reset(seed=3), first[0])
    unseeded = {ArcEnv(bank(), setting()).reset()[1]["pair_index"].item() for _ in range(30)}
    assert len(unseeded) > 1


def test_an_environment_that_has_ended_or_not_begun_asks_for_a_reset():
    env = ArcEnv(bank(), setting(), render_mode="ansi")
    with pytest.raises(gymnasium.error.ResetNeeded, match="none has begun"):
        env.step(np.array([0, 0, 0]))
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"no episode to show; call reset\(\) first"):
        env.render()
    env.reset(seed=0)
    assert env.step(np.array([ArcOperation.SUBMIT, 0, 0]))[2]
    with pytest.raises(gymnasium.error.ResetNeeded, match="the episode has ended"):
        env.step(np.array([0, 0, 0]))


def test_what_was_returned_does_not_change_later():
    env = ArcEnv(bank(), setting())
    obs, info = env.reset(seed=0)
    kept = (obs.copy(), dict(info))
    later = env.step(np.array([ArcOperation.CLEAR, 0, 0]))
    kept_later = pickle.dumps(later)
    for operation in (1, 2, ArcOperation.ROTATE_CLOCKWISE, ArcOperation.NEXT_DEMO):
        env.step(np.array([operation, 0, 0]))
    assert_equal((obs, info), kept)
    assert_equal(later, pickle.loads(kept_later))


@pytest.mark.parametrize(("mode", "hidden"), [("train", False), ("test", True)])
def test_pictures_are_those_of_the_state_and_hide_the_answer_of_a_test_pair(mode, hidden):
    env = ArcEnv(bank(), setting(episode_mode=mode), render_mode="ansi")
    env.reset(seed=1)
    env.step(np.array([3, 0, 0]))
    states = env.states
    parts = {
        "selected": states.selected[0],
        "input": states.input_grid[0],
        "target": None if hidden else states.target_grid[0],
    }
    assert env.render() == draw_state(states.cells[0], **parts)
    env.render_mode = "rgb_array"
    picture = env.render()
    assert_same(picture, rgb_state(states.cells[0], **parts))
    assert (picture.dtype, picture.shape[2]) == (np.uint8, 3)
    env.render_mode = None
    assert env.render() is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"render_mode": "rgb-array"}, "ansi, rgb_array, got 'rgb-array'. Did you mean \"rgb_array\""),
        ({"tasks": "arcagl"}, "arcagl"),
        ({"config": config(auto_reset="next_step")}, "auto_reset must be 'off' in the configuration of an adapter"),
    ],
)
@pytest.mark.parametrize("kind", [ArcEnv, ArcVectorEnv])
def test_unknown_modes_and_data_are_refused_in_one_line(kind, options, message):
    with pytest.raises((OptionError, DataError)) as caught:
        kind(**{"tasks": None, "config": None} | options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_kind_of_action_is_refused_with_the_nearest_one():
    with pytest.raises(OptionError, match="selection_format must be one of point, bbox, mask, got 'points'"):
        UnifiedActionConfig(selection_format="points")


@pytest.mark.parametrize(
    ("form", "action", "message"),
    [
        ("point", np.zeros(2, int), r"integers of shape \(3,\): operation, row, col; got int64 of shape \(2,\)"),
        ("point", np.zeros(3), r"got float64 of shape \(3,\)"),
        ("bbox", np.zeros(3, int), r"shape \(5,\): operation, r1, c1, r2, c2; got int64 of shape \(3,\)"),
        ("mask", np.zeros(3, int), 'a dictionary with "operation" and "selection", got ndarray'),
        ("mask", {"operation": 0}, "got the keys operation"),
        (
            "mask",
            {"operation": 0, "selection": np.zeros((2, 2), int)},
            r'"selection" must be integers of shape \(5, 6\)',
        ),
        ("mask", {"operation": 0.5, "selection": np.zeros(SHAPE, int)}, '"operation" must be integers of shape'),
    ],
)
def test_an_action_of_another_form_is_refused(form, action, message):
    env = ArcEnv(bank(), setting(form))
    env.reset(seed=0)
    with pytest.raises(DataError, match=message):
        env.step(action)


def test_numbers_out_of_range_are_invalid_actions_and_not_errors():
    env = ArcEnv(bank(), setting())
    before, _ = env.reset(seed=0)
    for action in ([99, 0, 0], [-1, 0, 0], [0, 2**40, 0], [0, 0, -1], [10, 0, 0]):
        obs, *_, info = env.step(np.array(action))
        assert info["invalid"] is True
        assert_same(obs, before)


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, True])
def test_seeds_that_are_no_keys_are_refused(seed):
    with pytest.raises(OptionError, match=r"a seed must be an integer from 0 to 2\*\*64 - 1, got "):
        key_of(seed)


def test_one_environment_has_no_options_for_a_reset():
    with pytest.raises(OptionError, match="ArcEnv has no options for a reset, got 'task'"):
        ArcEnv(bank(), setting()).reset(options={"task": 3})


# Many environments


def beside_each_other(form, mode, **environment):
    made = setting(form, **environment)
    many = ArcVectorEnv(bank(), made, num_envs=ENVS, autoreset_mode=mode)
    oracle = SyncVectorEnv([lambda: ArcEnv(bank(), made)] * ENVS, autoreset_mode=mode)
    many.action_space.seed(5)
    return many, oracle


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("form", FORMATS)
def test_many_environments_are_as_many_single_ones_to_the_bit(form, mode):
    """Spaces, observations, rewards, ends and infos, with resets by the mode, by hand, and with seeds of all kinds."""
    many, oracle = beside_each_other(form, mode)
    for name in ("single_observation_space", "single_action_space", "observation_space", "action_space"):
        assert getattr(many, name) == getattr(oracle, name)
    assert many.metadata["autoreset_mode"] == oracle.metadata["autoreset_mode"] == mode
    assert_equal(many.reset(seed=3), oracle.reset(seed=3))
    ends = 0
    for number in range(60):
        actions = many.action_space.sample()
        found = many.step(actions)
        assert_equal(found, oracle.step(actions), (number,))
        assert many.observation_space.contains(found[0])
        ended = found[2] | found[3]
        ends += ended.sum()
        if mode == AutoresetMode.DISABLED and ended.any():
            options = [{"reset_mask": ended.copy()}, {"reset_mask": ended.copy()}]
            assert_equal(many.reset(options=options[0]), oracle.reset(options=options[1]), (number,))
        if number == 30:
            seeds = [7, None, 2**40, 7, None]
            assert_equal(many.reset(seed=seeds), oracle.reset(seed=list(seeds)), (number,))
        if number == 45:
            mask = np.array([True, False, True, False, False])
            reset = [env.reset(seed=11, options={"reset_mask": mask.copy()}) for env in (many, oracle)]
            assert_equal(*reset, (number,))
        if number == 50:
            assert_equal(many.reset(), oracle.reset(), (number,))
    assert ends > ENVS


@pytest.mark.parametrize("mode", AUTO_RESETS)
@pytest.mark.parametrize("form", FORMATS)
def test_a_random_rollout_of_many_environments_is_that_of_the_functions(form, mode):
    many, _ = beside_each_other(form, mode)
    functional = setting(form, auto_reset=AUTO_RESETS[mode])
    states, wanted = batch_reset(np.stack([key_of(9 + lane) for lane in range(ENVS)]), functional, bank())
    assert_same(many.reset(seed=9)[0], wanted)
    for _ in range(40):
        actions = many.action_space.sample()
        obs, rewards, terminated, truncated, infos = many.step(actions)
        states, wanted, reward, _, info = batch_step(states, as_actions(form, actions), functional)
        assert_same(obs, wanted)
        assert_same(rewards, reward.astype(np.float64))
        assert_same(terminated, info["terminated"])
        assert_same(truncated, info["truncated"])
        assert_same(infos["task_index"], states.task_index)
        for lane in np.flatnonzero(terminated | truncated):
            if mode == AutoresetMode.SAME_STEP:
                assert_same(infos["final_obs"][lane], info["final_obs"][lane])
                assert infos["final_info"]["similarity"][lane] == info["similarity"][lane]


@pytest.mark.parametrize("mode", AutoresetMode)
def test_environments_do_not_depend_on_their_neighbours(mode):
    wide, narrow = (ArcVectorEnv(bank(), setting(), num_envs=size, autoreset_mode=mode) for size in (ENVS, 2))
    wide.action_space.seed(0)
    first, _ = wide.reset(seed=[1, 2, 3, 4, 5])
    second, _ = narrow.reset(seed=[4, 2])
    assert_same(first[[3, 1]], second)
    for _ in range(20):
        actions = wide.action_space.sample()
        *left, _ = wide.step(actions)
        *right, _ = narrow.step(actions[[3, 1]])
        assert_equal([part[[3, 1]] for part in left], right)
        if mode == AutoresetMode.DISABLED:
            wide.reset(options={"reset_mask": np.ones(ENVS, np.bool_)})
            narrow.reset(options={"reset_mask": np.ones(2, np.bool_)})


@pytest.mark.parametrize("mode", AutoresetMode)
def test_what_many_environments_returned_does_not_change_later(mode):
    many, _ = beside_each_other("point", mode)
    returned = [many.reset(seed=0)]
    kept = [pickle.dumps(returned[0])]
    for _ in range(12):
        found = many.step(many.action_space.sample())
        returned.append(found)
        kept.append(pickle.dumps(found))
        if mode == AutoresetMode.DISABLED:
            many.reset()
    for one, other in zip(returned, kept, strict=True):
        assert_equal(one, pickle.loads(other))


def test_each_environment_has_its_picture():
    many = ArcVectorEnv(bank(), setting(), num_envs=3, render_mode="rgb_array")
    many.reset(seed=4)
    for lane, picture in enumerate(many.render()):
        alone = ArcEnv(bank(), setting(), render_mode="rgb_array")
        alone.reset(seed=4 + lane)
        assert_same(picture, alone.render())
    assert ArcVectorEnv(bank(), setting()).render() is None


def test_many_environments_ask_for_a_reset_where_one_is_due():
    many = ArcVectorEnv(bank(), setting(), num_envs=2, autoreset_mode="Disabled")
    submit_second = np.array([[0, 0, 0], [ArcOperation.SUBMIT, 0, 0]])
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"environment 0 has no episode yet; call reset\(\) first"):
        many.step(submit_second)
    many.reset(seed=0)
    many.step(submit_second)
    with pytest.raises(gymnasium.error.ResetNeeded, match="the episode of environment 1 has ended; reset it first"):
        many.step(submit_second)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seed": [1, 2]}, "seed must be an integer or a list of 3, one for each environment, got 2"),
        ({"seed": 2**64 - 1}, r"from 0 to 2\*\*64 - 1, got 18446744073709551616"),
        ({"options": {"mask": 1}}, "the only option of a reset is reset_mask, got 'mask'"),
        ({"options": {"reset_mask": [True, False, True]}}, r"a bool array of shape \(3,\), got list"),
        ({"options": {"reset_mask": np.ones(3)}}, r"a bool array of shape \(3,\), got float64 of shape \(3,\)"),
        ({"options": {"reset_mask": np.zeros(3, np.bool_)}}, "reset_mask is false everywhere"),
    ],
)
def test_a_reset_with_other_seeds_or_options_is_refused_and_changes_nothing(given, message):
    many = ArcVectorEnv(bank(), setting(), num_envs=3)
    many.reset(seed=0)
    before = pickle.dumps(many.states)
    with pytest.raises(OptionError, match=message):
        many.reset(**given)
    assert pickle.dumps(many.states) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_envs": 0}, "num_envs must be at least 1, got 0"),
        ({"max_episode_steps": 0}, "max_episode_steps must be at least 1, got 0"),
        ({"autoreset_mode": "SameSteps"}, "got 'SameSteps'. Did you mean \"SameStep\""),
    ],
)
def test_many_environments_refuse_options_that_cannot_be(options, message):
    with pytest.raises(OptionError, match=message):
        ArcVectorEnv(bank(), setting(), **options)


# Registration

ADAPTERS = "brim.envs.arc.adapters"


def run(code):
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


MAKE = """
env = gymnasium.make("brim/ARC-v0")
assert type(env.unwrapped).__name__ == "ArcEnv" and env.spec.id == "brim/ARC-v0"
envs = gymnasium.make_vec("brim/ARC-v0", num_envs=3)
assert type(envs).__name__ == "ArcVectorEnv" and envs.num_envs == 3
assert "jax" not in sys.modules
"""


@pytest.mark.parametrize(
    "imports",
    [
        "import brim.envs.arc; assert 'gymnasium' not in sys.modules; import gymnasium",
        "import gymnasium, brim.envs.arc",
        "import brim.envs.arc; import gymnasium.envs.registration; import gymnasium",
    ],
)
def test_the_environment_is_registered_in_every_order_of_imports_and_needs_no_jax(imports):
    run(f"import sys; {imports}\n{MAKE}")


def test_a_star_import_works_without_gymnasium_and_jax_and_leaves_out_what_needs_them():
    code = (
        "import sys; sys.modules |= dict.fromkeys(['gymnasium', 'jax'])\n"
        "from brim.envs.arc import *\n"
        "import brim.envs.arc, json\n"
        "try:\n    brim.envs.arc.ArcEnv\nexcept brim.MissingExtraError as error:\n    message = str(error)\n"
        "print(json.dumps([brim.envs.arc.__all__, message]))"
    )
    names, message = json.loads(run(code))
    stub = Path(brim.envs.arc.__file__).with_suffix(".pyi").read_text().splitlines()
    needy = ("env", "vector", "wrappers", "vector_wrappers", "gymnax")
    left = [
        line.split()[3] for line in stub if not line.startswith(tuple(f"from {ADAPTERS}.{name} " for name in needy))
    ]
    assert names == left
    assert len(left) < len(stub)
    assert message == "brim.envs.arc needs gymnasium, which is not installed; run: pip install 'brim[arc]'"


def test_an_unknown_id_names_the_nearest_one():
    with pytest.raises(gymnasium.error.NameNotFound, match="Did you mean: `ARC`"):
        gymnasium.make("brim/ARCC-v0")


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("entry", ["vector_entry_point", "sync"])
def test_make_vec_makes_every_mode_and_passes_options_on(mode, entry):
    given = {"tasks": bank(), "config": setting("bbox")}
    modes = {"autoreset_mode": mode} if entry == "vector_entry_point" else {"vector_kwargs": {"autoreset_mode": mode}}
    envs = gymnasium.make_vec("brim/ARC-v0", num_envs=2, vectorization_mode=entry, **given, **modes)
    assert isinstance(envs, ArcVectorEnv if entry == "vector_entry_point" else SyncVectorEnv)
    assert envs.metadata["autoreset_mode"] == mode
    obs, _ = envs.reset(seed=0)
    assert_same(obs, ArcVectorEnv(**given, num_envs=2).reset(seed=0)[0])


def test_max_episode_steps_of_gymnasium_truncates_one_and_many():
    long = JaxArcConfig(environment=EnvironmentConfig(max_episode_steps=50))
    one = gymnasium.make("brim/ARC-v0", config=long, max_episode_steps=3)
    many = gymnasium.make_vec("brim/ARC-v0", num_envs=2, config=long, max_episode_steps=3)
    one.reset(seed=0)
    many.reset(seed=0)
    nothing = np.array([ArcOperation.FILL_0, 29, 29])
    alone = [one.step(nothing)[3] for _ in range(3)]
    together = [many.step(np.stack([nothing, nothing]))[3].tolist() for _ in range(3)]
    assert alone == [False, False, True]
    assert together == [[False] * 2, [False] * 2, [True] * 2]
