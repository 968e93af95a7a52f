"""Wrappers of ARC environments: channels, one-hot, flat actions, masks and metrics, of one environment and of many."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from support.arc import assert_same, config, keys, random_actions, random_task

from brim.core.errors import OptionError
from brim.envs.arc import (
    PADDING,
    ActionMasks,
    ArcEnv,
    ArcOperation,
    ArcVectorEnv,
    BboxAction,
    Channels,
    EpisodeMetrics,
    FlatActions,
    JaxArcTask,
    OneHot,
    UnifiedActionConfig,
    VectorActionMasks,
    VectorChannels,
    VectorEpisodeMetrics,
    VectorFlatActions,
    VectorOneHot,
    batch_reset,
    batch_step,
    build_bank,
    demonstrations,
    observe,
    take_states,
)
from brim.envs.arc.adapters.flat import flat_table
from brim.envs.arc.adapters.masks import flat_mask, operation_mask, parts_mask
from brim.envs.arc.channels import check_channels, stack_channels
from brim.envs.arc.engine.call import CHANGED

SHAPE = (6, 7)
SMALL = (3, 4)
ENVS = 5


def small_tasks(seed=0, count=12):
    random = np.random.default_rng(seed)
    return [random_task(random, number, SHAPE) for number in range(count)]


def played(mode, seed=0, batch=40, steps=3):
    """States of all kinds of pairs, in which something was copied and changed."""
    tasks, setting = small_tasks(seed), config("bbox", shape=SHAPE, episode_mode=mode)
    states, _ = batch_reset(keys(batch, seed), setting, build_bank(tasks, setting))
    random = np.random.default_rng(seed)
    for _ in range(steps):
        states = batch_step(states, random_actions(random, "bbox", batch, SHAPE), setting).states
    return tasks, states


def padded(grid):
    held = np.full(SHAPE, PADDING, np.uint8)
    held[: grid.shape[0], : grid.shape[1]] = grid
    return held


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**16), st.integers(1, 5), st.sampled_from(["train", "test"]))
def test_demonstrations_are_the_first_train_pairs_of_the_task_without_the_present_one(seed, count, mode):
    tasks, states = played(mode, seed)
    shown = demonstrations(states, count)
    assert (shown.shape, shown.dtype) == ((40, 2 * count, *SHAPE), np.uint8)
    for lane in range(40):
        task = tasks[states.task_index[lane]]
        present = states.pair_index[lane] - states.bank.first[states.task_index[lane], 0]
        others = [pair for number, pair in enumerate(task.train) if number != present][:count]
        wanted = [padded(grid) for pair in others for grid in pair]
        wanted += [padded(np.zeros((0, 0)))] * (2 * count - len(wanted))
        assert_same(shown[lane], np.stack(wanted))


def test_demonstrations_of_a_single_state_and_of_a_trajectory_have_their_axes():
    _, states = played("train")
    shown = demonstrations(states, 2)
    assert_same(demonstrations(take_states(states, 5), 2), shown[5])
    trajectory = type(states)(states.bank, *(None if leaf is None else np.stack([leaf, leaf]) for leaf in states[1:]))
    assert_same(demonstrations(trajectory, 2), np.stack([shown, shown]))


def test_channels_come_in_the_order_of_their_names():
    _, states = played("test")
    stacked = stack_channels(states, ("clipboard", "demonstrations", "target", "working"), 2)
    assert_same(stacked[:, [0, 5, 6]], observe(states, ("clipboard", "target", "working")))
    assert_same(stacked[:, 1:5], demonstrations(states, 2))


@pytest.mark.parametrize(
    ("channels", "message"),
    [
        (("working", "selection"), "got 'selection'. Did you mean \"selected\"?"),
        ("working", "as a tuple, got 'working'"),
        ((), r"as a tuple, got \(\)"),
        (("input", "input"), "channels contains 'input' twice"),
    ],
)
def test_unknown_and_repeated_channels_are_refused(channels, message):
    with pytest.raises(OptionError, match=message):
        check_channels(channels)


def test_no_demonstrations_cannot_be_asked_for():
    with pytest.raises(OptionError, match="count must be at least 1, got 0"):
        demonstrations(played("train")[1], 0)


# Flat actions


def allowing(form, operations=None, shape=SMALL, steps=8):
    made = config(form, shape=shape, max_episode_steps=steps)
    return replace(made, action=UnifiedActionConfig(selection_format=form, allowed_operations=operations))


operation_sets = st.sets(st.integers(0, 41), min_size=1).map(lambda numbers: tuple(sorted(numbers)))


@settings(deadline=None, max_examples=25)
@given(st.sampled_from(["point", "bbox"]), operation_sets, st.integers(1, 5), st.integers(1, 5))
def test_every_action_has_exactly_one_number(form, operations, rows, columns):
    table = flat_table(allowing(form, operations, (rows, columns)))
    places = [rows * columns, rows * (rows + 1) // 2 * columns * (columns + 1) // 2][form == "bbox"]
    selecting = sum(ArcOperation(number).uses_selection for number in operations)
    assert table.size == selecting * places + len(operations) - selecting
    numbers = np.arange(table.size)
    actions = table.decode(numbers)
    assert len(set(zip(*(part.tolist() for part in actions), strict=True))) == table.size
    assert set(actions.operation.tolist()) == set(operations)
    assert table.encode(actions).tolist() == numbers.tolist()
    for part, size in zip(actions[1:], (rows, columns, rows, columns), strict=False):
        assert ((part >= 0) & (part < size)).all()


def test_corners_in_any_order_have_the_number_of_the_same_box():
    table = flat_table(allowing("bbox"))
    box = [np.array([value]) for value in (5, 2, 0, 1, 3)]
    swapped = [box[0], box[3], box[4], box[1], box[2]]
    assert_same(table.encode(BboxAction(*box)), table.encode(BboxAction(*swapped)))


def test_a_number_that_does_not_exist_is_an_invalid_action():
    env = FlatActions(ArcEnv(small_tasks(1, 3), config("point", shape=SHAPE)))
    before, _ = env.reset(seed=0)
    for number in (-1, env.action_space.n, 10**6):
        obs, *_, info = env.step(number)
        assert info["invalid"]
        assert_same(obs, before)


def test_masks_are_too_many_to_be_numbered():
    with pytest.raises(OptionError, match=r'got "mask": 3x4 cells can be selected in 2\*\*12 ways'):
        flat_table(allowing("mask"))


# Masks of actions

WITHOUT_TESTS = JaxArcTask("demos only", [(np.ones((2, 3), int), np.zeros((3, 2), int))] * 2, [])


def small_states(form, seed, batch=30, operations=None):
    """States at various points of episodes, among them tasks without tests, all solved pairs, empty clipboards."""
    random = np.random.default_rng(seed)
    tasks = [random_task(random, number, SMALL) for number in range(4)] + [WITHOUT_TESTS]
    setting = allowing(form, steps=100)
    states, _ = batch_reset(keys(batch, seed), setting, tasks)
    for _ in range(seed % 7):
        states = batch_step(states, random_actions(random, form, batch, SMALL), setting).states
    return states, allowing(form, operations, steps=100)


def counted(states):
    """What an action can change. Any step counts, and notes that a pair is solved, also one that was from the start."""
    left_out = ("step_count", "selection", "demos_solved", "tests_solved")
    return {name: getattr(states, name) for name in CHANGED if name not in left_out}


@settings(deadline=None, max_examples=15)
@given(st.sampled_from(["point", "bbox"]), operation_sets, st.integers(0, 2**16))
def test_masked_actions_change_nothing_and_the_others_are_valid(form, operations, seed):
    """Every flat action is tried in every state."""
    states, setting = small_states(form, seed, batch=10, operations=operations)
    states = take_states(states, np.flatnonzero(states.status == 0))
    if not len(states.status):
        return
    table, mask = flat_table(setting), flat_mask(states, setting)
    assert mask.shape == (len(states.status), table.size)
    assert mask.any(axis=1).all()
    lanes, numbers = np.indices(mask.shape).reshape(2, -1)
    before = take_states(states, lanes)
    result = batch_step(before, table.decode(numbers), setting)
    useful = operation_mask(states, setting)
    assert not (result.infos["invalid"] & mask.ravel()).any()
    same = np.ones(mask.size, np.bool_)
    after = counted(result.states)
    for name, values in counted(before).items():
        same &= (values == after[name]).reshape(mask.size, -1).all(axis=1)
    # Where no operation makes sense all are shown, so that there is something to choose.
    nothing_left = (useful == [number in operations for number in range(42)]).all(axis=1)
    hidden = ~mask.ravel() & ~nothing_left[lanes]
    assert same[hidden].all()


def test_operations_without_effect_are_masked_until_they_have_one():
    states, setting = small_states("bbox", 0)
    mask = operation_mask(states, setting)
    assert not mask[:, ArcOperation.PASTE].any()
    no_tests = states.task_index == 4
    assert no_tests.any()
    assert not no_tests.all()
    for operation in (ArcOperation.NEXT_TEST, ArcOperation.PREVIOUS_TEST, ArcOperation.FIRST_UNSOLVED_TEST):
        assert_same(mask[:, operation], ~no_tests)
    copy = np.zeros(30, np.int32)
    copied = batch_step(states, BboxAction(copy + ArcOperation.COPY, copy, copy, copy, copy), setting).states
    assert operation_mask(copied, setting)[:, ArcOperation.PASTE].all()
    all_solved = states._replace(
        demos_solved=np.full(30, 2**32 - 1, np.uint32)
        >> (32 - states.bank.count[states.task_index, 0]).astype(np.uint32)
    )
    assert not operation_mask(all_solved, setting)[:, ArcOperation.FIRST_UNSOLVED_DEMO].any()
    assert operation_mask(states, setting)[:, ArcOperation.FIRST_UNSOLVED_DEMO].any()


def test_if_no_allowed_operation_makes_sense_all_allowed_ones_are_shown():
    states, setting = small_states("point", 0, operations=(ArcOperation.PASTE,))
    wanted = np.zeros((30, 42), np.bool_)
    wanted[:, ArcOperation.PASTE] = True
    assert_same(operation_mask(states, setting), wanted)


@pytest.mark.parametrize(("form", "corners"), [("point", 1), ("bbox", 2), ("mask", 0)])
def test_masks_of_parts_have_operations_and_then_coordinates(form, corners):
    states, setting = small_states(form, 3, operations=(0, 1, ArcOperation.SUBMIT))
    mask = parts_mask(states, setting)
    assert mask.shape == (30, 42 + corners * sum(SMALL))
    for corner in range(corners):
        begin = 42 + corner * sum(SMALL)
        assert_same(mask[:, begin : begin + SMALL[0]].sum(axis=1), states.height.astype(np.int64))
        assert_same(mask[:, begin + SMALL[0] : begin + sum(SMALL)].sum(axis=1), states.width.astype(np.int64))
    _, resizable = small_states(form, 3, operations=(0, ArcOperation.RESIZE))
    assert parts_mask(states, resizable)[:, 42:].all()


def test_masked_samples_are_never_invalid():
    env = ActionMasks(FlatActions(ArcEnv(small_tasks(2), config("bbox", shape=SHAPE))))
    _, info = env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(100):
        assert_same(info["action_mask"], env.action_masks().astype(np.int8))
        *_, terminated, truncated, info = env.step(env.action_space.sample(mask=info["action_mask"]))
        assert not info["invalid"]
        if terminated or truncated:
            _, info = env.reset()


# One-hot


def test_one_hot_channels_have_a_single_one_where_the_value_is():
    plain, hot = (Channels(ArcEnv(small_tasks(), config(shape=SHAPE)), ("input", "working")) for _ in range(2))
    hot = OneHot(hot)
    grids, channels = plain.reset(seed=2)[0], hot.reset(seed=2)[0]
    assert channels.shape == hot.observation_space.shape == (2 * 11, *SHAPE)
    for number, grid in enumerate(grids):
        part = channels[11 * number : 11 * (number + 1)]
        assert (part.sum(axis=0) == 1).all()
        assert_same(part.argmax(axis=0).astype(np.uint8), grid)


def test_one_hot_of_one_hot_is_refused():
    env = OneHot(ArcEnv(small_tasks(), config(shape=SHAPE)))
    with pytest.raises(OptionError, match="OneHot needs observations of uint8 from 0 to 10"):
        OneHot(env)


# Metrics of episodes


def test_metrics_are_those_counted_by_hand():
    env = EpisodeMetrics(ArcEnv(small_tasks(3), config("point", shape=SHAPE, max_episode_steps=9)))
    env.action_space.seed(3)
    _, info = env.reset(seed=3)
    rewards, similarities, ends = [], [info["similarity"]], 0
    for _ in range(120):
        *_, reward, terminated, truncated, info = env.step(env.action_space.sample())
        rewards.append(reward)
        similarities.append(info["similarity"])
        assert ("episode_metrics" in info) == (terminated or truncated)
        if terminated or truncated:
            solved = [place for place, similarity in enumerate(similarities) if similarity == 1]
            assert info["episode_metrics"] == {
                "return": sum(rewards),
                "length": len(rewards),
                "best_similarity": max(similarities),
                "final_similarity": similarities[-1],
                "solved": similarities[-1] == 1,
                "steps_to_solve": solved[0] if solved else -1,
                "was_truncated": truncated,
            }
            ends += 1
            _, info = env.reset()
            rewards, similarities = [], [info["similarity"]]
    assert ends > 5


def test_the_best_similarity_may_be_that_of_the_beginning():
    ones = np.ones((3, 3), int)
    env = EpisodeMetrics(ArcEnv(JaxArcTask("solved", [(ones, ones)]), config("mask", shape=SHAPE)))
    env.reset(seed=0)
    nothing = np.zeros(SHAPE, np.int8)
    env.step({"operation": ArcOperation.CLEAR, "selection": nothing})
    *_, info = env.step({"operation": ArcOperation.SUBMIT, "selection": nothing})
    found = info["episode_metrics"]
    assert (found["best_similarity"], found["final_similarity"], found["steps_to_solve"]) == (1, 0, 0)


# One beside many


def wrapped_one(setting, tasks):
    env = FlatActions(ArcEnv(tasks, setting))
    return EpisodeMetrics(ActionMasks(OneHot(Channels(env, ("working", "clipboard", "demonstrations"), pairs=2))))


def wrapped_many(setting, tasks, mode):
    envs = VectorFlatActions(ArcVectorEnv(tasks, setting, num_envs=ENVS, autoreset_mode=mode))
    channels = VectorChannels(envs, ("working", "clipboard", "demonstrations"), pairs=2)
    return VectorEpisodeMetrics(VectorActionMasks(VectorOneHot(channels)))


@pytest.mark.parametrize("mode", AutoresetMode)
def test_wrappers_of_many_environments_do_what_those_of_one_do(mode):
    setting, tasks = config("bbox", shape=SHAPE, max_episode_steps=6), small_tasks(4)
    many = wrapped_many(setting, tasks, mode)
    oracle = SyncVectorEnv([lambda: wrapped_one(setting, tasks)] * ENVS, autoreset_mode=mode)
    assert (many.observation_space, many.action_space) == (oracle.observation_space, oracle.action_space)
    many.action_space.seed(0)
    (left, infos), (right, wanted) = many.reset(seed=0), oracle.reset(seed=0)
    assert_same(left, right)
    assert_same(infos["action_mask"], wanted["action_mask"])
    ended = 0
    for _ in range(40):
        actions = many.action_space.sample()
        *left, infos = many.step(actions)
        *right, wanted = oracle.step(actions)
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
        assert many.observation_space.contains(left[0])
        assert_same(infos["action_mask"], wanted["action_mask"])
        done = left[2] | left[3]
        assert ("episode_metrics" in infos) == done.any()
        for lane in np.flatnonzero(done):
            ended += 1
            last = wanted["final_info"] if mode == AutoresetMode.SAME_STEP else wanted
            assert infos["_episode_metrics"][lane]
            for name, values in infos["episode_metrics"].items():
                assert values[lane] == last["episode_metrics"][name][lane], name
            if mode == AutoresetMode.SAME_STEP:
                assert_same(infos["final_obs"][lane], wanted["final_obs"][lane])
        if mode == AutoresetMode.DISABLED and done.any():
            (one, _), (other, _) = (envs.reset(options={"reset_mask": done.copy()}) for envs in (many, oracle))
            assert_same(one, other)
    assert ended > ENVS


@pytest.mark.filterwarnings("ignore:.*is different from the unwrapped version")
@pytest.mark.parametrize("form", ["point", "bbox", "mask"])
def test_gymnasiums_checker_finds_nothing_in_wrapped_environments(form):
    made = gymnasium.make("brim/ARC-v0", tasks=small_tasks(), config=config(form, shape=SHAPE, max_episode_steps=5))
    env = EpisodeMetrics(ActionMasks(OneHot(Channels(made))))
    if form != "mask":
        env = FlatActions(env)
    check_env(env)
    again = gymnasium.make(env.spec)
    assert (again.observation_space, again.action_space) == (env.observation_space, env.action_space)
    assert_same(again.reset(seed=1)[0], env.reset(seed=1)[0])


@pytest.mark.parametrize(
    ("wrap", "message"),
    [
        (FlatActions, "this wrapper is for ArcEnv, got CartPoleEnv"),
        (Channels, "this wrapper is for ArcEnv, got CartPoleEnv"),
        (ActionMasks, "this wrapper is for ArcEnv, got CartPoleEnv"),
        (EpisodeMetrics, "this wrapper is for ArcEnv, got CartPoleEnv"),
        (OneHot, "OneHot needs observations of uint8"),
    ],
)
def test_wrappers_refuse_other_environments(wrap, message):
    with pytest.raises(OptionError, match=message):
        wrap(gymnasium.make("CartPole-v1"))


@pytest.mark.parametrize(
    "wrap", [VectorFlatActions, VectorChannels, VectorActionMasks, VectorEpisodeMetrics, VectorOneHot]
)
def test_wrappers_of_many_refuse_a_vector_of_single_environments(wrap):
    envs = SyncVectorEnv([lambda: ArcEnv(small_tasks(), config(shape=SHAPE))])
    with pytest.raises(OptionError, match="for ArcVectorEnv, got SyncVectorEnv; wrap each ArcEnv of a SyncVectorEnv"):
        wrap(envs)
