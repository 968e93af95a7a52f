"""Wrappers of ARC environments: channels, one-hot, flat actions, masks and metrics, of one environment and of many."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.arc import assert_same, config, keys, random_actions, random_task

from brim.core.errors import OptionError
from brim.envs.arc import PADDING, batch_reset, batch_step, build_bank, demonstrations, observe, take_states
from brim.envs.arc.channels import check_channels, stack_channels

SHAPE = (6, 7)


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
