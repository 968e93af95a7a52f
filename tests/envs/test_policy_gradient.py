"""Pieces of policy gradient methods, against their definitions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from brim.core.errors import DataError
from brim.envs.policy_gradient import advantages, choose, softmax


@st.composite
def rollouts(draw):
    shape = draw(st.integers(1, 7)), draw(st.integers(1, 3))
    numbers = st.floats(-10, 10, width=32)
    flags = st.sampled_from([False, False, True])
    rollout = {name: draw(arrays(np.float64, shape, elements=numbers)) for name in ("rewards", "values", "next_values")}
    rollout |= {name: draw(arrays(np.bool_, shape, elements=flags)) for name in ("terminated", "truncated")}
    return rollout | {"valid": ~draw(arrays(np.bool_, shape, elements=flags))}


shares = st.floats(0, 1)


def naive(lane, time, discount, trace):
    """The definition, of one lane and one step."""
    rewards, values, next_values, terminated, truncated, valid = (lane[name] for name in COLUMNS)
    if time == len(rewards) or not valid[time]:
        return 0.0
    surprise = rewards[time] + (0.0 if terminated[time] else discount * next_values[time]) - values[time]
    ended = terminated[time] or truncated[time]
    return surprise + (0.0 if ended else discount * trace * naive(lane, time + 1, discount, trace))


COLUMNS = ("rewards", "values", "next_values", "terminated", "truncated", "valid")


@given(rollouts(), shares, shares)
def test_advantages_are_those_of_the_recursive_definition(rollout, discount, trace):
    found = advantages(**rollout, discount=discount, trace=trace)
    assert found.dtype == np.float64
    for env in range(found.shape[1]):
        lane = {name: column[:, env] for name, column in rollout.items()}
        expected = [naive(lane, time, discount, trace) for time in range(len(found))]
        np.testing.assert_allclose(found[:, env], expected, rtol=1e-12, atol=1e-12)


@settings(max_examples=50)
@given(rollouts(), shares)
def test_with_a_full_trace_an_advantage_is_the_discounted_return_minus_the_value(rollout, discount):
    """Another definition, for lanes that nothing interrupts."""
    none = np.zeros_like(rollout["valid"])
    rewards, values, after = rollout["rewards"], rollout["values"], rollout["next_values"]
    after[:-1] = values[1:]
    found = advantages(rewards, values, after, none, none, discount=discount, trace=1.0)
    steps = len(rewards)
    for time in range(steps):
        sums = sum(discount ** (k - time) * rewards[k] for k in range(time, steps))
        expected = sums + discount ** (steps - time) * after[-1] - values[time]
        np.testing.assert_allclose(found[time], expected, rtol=1e-9, atol=1e-9)


@settings(max_examples=50)
@given(rollouts(), rollouts(), shares, shares)
def test_no_trace_crosses_the_end_of_an_episode(first, second, discount, trace):
    """A rollout in which every episode ends with the first part is its two parts, one after the other."""
    n = min(first["valid"].shape[1], second["valid"].shape[1])
    first, second = ({name: column[:, :n] for name, column in part.items()} for part in (first, second))
    first["truncated"] = first["truncated"].copy()
    first["truncated"][-1] = True
    whole = advantages(
        *(np.concatenate([first[name], second[name]]) for name in COLUMNS), discount=discount, trace=trace
    )
    parts = [advantages(**part, discount=discount, trace=trace) for part in (first, second)]
    assert (whole == np.concatenate(parts)).all()


@settings(max_examples=50)
@given(rollouts(), rollouts(), st.sampled_from([np.nan, np.inf, -np.inf, 1e300]), shares, shares)
def test_nothing_about_an_invalid_step_reaches_the_others(rollout, other, odd, discount, trace):
    before = advantages(**rollout, discount=discount, trace=trace)
    invalid = ~rollout["valid"]
    assert (before[invalid] == 0).all()
    changed = {name: column.copy() for name, column in rollout.items()}
    for name in ("rewards", "values", "next_values"):
        changed[name][invalid] = odd
    for name in ("terminated", "truncated"):
        changed[name] ^= invalid
    assert (advantages(**changed, discount=discount, trace=trace) == before).all()


def test_the_step_before_an_invalid_one_is_bootstrapped_and_a_terminated_one_is_not():
    found = advantages(
        rewards=[[1.0, 1.0], [np.nan, 5.0]],
        values=[[0.5, 0.5], [3.0, 3.0]],
        next_values=[[3.0, np.nan], [np.nan, 7.0]],
        terminated=[[False, True], [False, False]],
        truncated=[[False, False], [True, False]],
        valid=[[True, True], [False, True]],
        discount=0.5,
        trace=1.0,
    )
    assert found.tolist() == [[1.0 + 0.5 * 3.0 - 0.5, 1.0 - 0.5], [0.0, 5.0 + 0.5 * 7.0 - 3.0]]


def test_arrays_of_other_shapes_are_refused_with_their_shapes():
    good = np.zeros((3, 2))
    with pytest.raises(DataError, match=r"rewards \(3, 2\), values \(2, 3\)"):
        advantages(good, good.T, good, good, good, discount=1, trace=1)
    with pytest.raises(DataError, match=r"must have one shape, \(steps, environments\), got rewards \(3,\)"):
        advantages(*[good[:, 0]] * 5, discount=1, trace=1)


@given(arrays(np.float64, (3, 4), elements=st.floats(-500, 500)))
def test_every_action_has_a_chance_and_they_add_up(logits):
    chances = softmax(logits)
    assert (chances > 0).all()
    np.testing.assert_allclose(chances.sum(axis=1), 1.0)


@given(arrays(np.float64, (3, 4), elements=st.floats(0.01, 1)), arrays(np.float64, 3, elements=st.floats(0, 0.999)))
def test_an_action_is_the_first_whose_cumulative_chance_exceeds_the_number(weights, noise):
    chances = weights / weights.sum(axis=1, keepdims=True)
    for row, number, chosen in zip(chances, noise, choose(chances, noise), strict=True):
        edges = np.cumsum(row) / np.cumsum(row)[-1]
        assert chosen == 0 or edges[chosen - 1] <= number + 1e-12
        assert number < edges[chosen] + 1e-12
