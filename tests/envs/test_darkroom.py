"""The room, stepped in many lanes, against a loop over one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.core.errors import DataError, OptionError
from brim.envs.darkroom.room import ACTIONS, DOWN, LEFT, RIGHT, STAY, UP, Darkroom, play, reset, step


def scalar_episode(size, horizon, goal, actions):
    """The definition: one agent, one goal, no arrays."""
    x = y = size // 2
    seen = []
    for action in actions[:horizon]:
        dx, dy = {STAY: (0, 0), UP: (0, -1), DOWN: (0, 1), LEFT: (-1, 0), RIGHT: (1, 0)}[action]
        if 0 <= x + dx < size and 0 <= y + dy < size:
            x, y = x + dx, y + dy
        seen.append(((x, y), 1.0 if (x, y) == goal else 0.0))
    return seen


@st.composite
def lanes(draw):
    size, horizon = draw(st.integers(2, 9)), draw(st.integers(1, 25))
    count = draw(st.integers(1, 6))
    cells = st.tuples(st.integers(0, size - 1), st.integers(0, size - 1))
    goals = draw(st.lists(cells, min_size=count, max_size=count))
    row = st.lists(st.integers(0, ACTIONS - 1), min_size=horizon, max_size=horizon)
    return Darkroom(size=size, horizon=horizon), goals, draw(st.lists(row, min_size=count, max_size=count))


@given(lanes())
def test_many_lanes_do_what_one_lane_does(drawn):
    room, goals, actions = drawn
    state = reset(room, np.array(goals))
    for time in range(room.horizon):
        led = step(room, state, np.array(actions)[:, time])
        state = led.state
        for lane, goal in enumerate(goals):
            place, reward = scalar_episode(room.size, room.horizon, goal, actions[lane])[time]
            assert (tuple(state.position[lane]), led.reward[lane]) == (place, reward)
        assert not led.terminated.any()
        assert led.truncated.all() == led.truncated.any() == (time == room.horizon - 1)


def test_a_step_leaves_the_state_it_came_from_alone():
    room = Darkroom()
    state = reset(room, np.array([[0, 0]]))
    kept = state.position.copy()
    step(room, state, np.array([RIGHT]))
    assert (state.position == kept).all()
    assert state.elapsed == 0


def test_after_the_horizon_there_is_no_next_step():
    room = Darkroom(size=3, horizon=1)
    state = step(room, reset(room, np.array([[0, 0]])), np.array([STAY])).state
    with pytest.raises(DataError, match="truncated after 1 steps"):
        step(room, state, np.array([STAY]))


@pytest.mark.parametrize("action", [-1, ACTIONS])
def test_an_action_that_does_not_exist_is_refused(action):
    room = Darkroom()
    with pytest.raises(DataError, match=f"got {action}"):
        step(room, reset(room, np.array([[0, 0]])), np.array([action]))


def test_a_goal_outside_is_refused():
    with pytest.raises(DataError, match=r"goal \(9, 0\) is outside"):
        reset(Darkroom(), np.array([[0, 0], [9, 0]]))


@pytest.mark.parametrize(
    ("options", "message"), [({"size": 1}, "got 1"), ({"size": 128}, "got 128"), ({"horizon": 0}, "got 0")]
)
def test_a_room_that_cannot_be_is_refused(options, message):
    with pytest.raises(OptionError, match=message):
        Darkroom(**options)


@given(st.integers(2, 7), st.integers(1, 20))
def test_going_straight_to_the_goal_gives_the_best_return(size, horizon):
    room = Darkroom(size=size, horizon=horizon)
    goals = room.goals

    def straight(state):
        away = state.goal - state.position
        horizontal = np.where(away[:, 0] > 0, RIGHT, LEFT)
        vertical = np.where(away[:, 1] > 0, DOWN, UP)
        return np.where(away[:, 0] != 0, horizontal, np.where(away[:, 1] != 0, vertical, STAY))

    assert (play(room, goals, straight).rewards.sum(axis=1) == room.best_return(goals)).all()


def test_the_return_of_acting_at_random_is_the_mean_over_every_course_of_actions():
    room = Darkroom(size=3, horizon=4)
    courses = np.stack(np.meshgrid(*[np.arange(ACTIONS)] * room.horizon), axis=-1).reshape(-1, room.horizon)
    for goal in room.goals:
        played = play(room, np.tile(goal, (len(courses), 1)), lambda state: courses[:, state.elapsed])
        assert room.random_return(goal[None])[0] == pytest.approx(played.rewards.sum(axis=1).mean(dtype=np.float64))


@given(lanes())
def test_an_episode_is_written_down_as_it_was_played(drawn):
    room, goals, actions = drawn
    episode = play(room, np.array(goals), lambda state: np.array(actions)[:, state.elapsed])
    for lane, goal in enumerate(goals):
        seen = scalar_episode(room.size, room.horizon, goal, actions[lane])
        places = [(room.size // 2, room.size // 2), *(place for place, _ in seen[:-1])]
        assert [tuple(place) for place in episode.states[lane]] == places
        assert episode.rewards[lane].tolist() == [reward for _, reward in seen]
        assert episode.actions[lane].tolist() == actions[lane]
