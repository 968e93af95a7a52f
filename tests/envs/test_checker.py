"""The checker: the Darkroom passes, and every way of being broken has a name."""

import sys
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.core.errors import BrimError, DataError, MissingExtraError, OptionError
from brim.envs import checker
from brim.envs.checker import check_env
from brim.envs.darkroom.room import ACTIONS, Darkroom, lane_env, reset, step
from brim.envs.lanes import Bounds, LaneEnv

LANES = 3


@given(st.integers(2, 6), st.integers(1, 8), st.integers(1, 5))
@settings(max_examples=15)
def test_every_darkroom_passes(size, horizon, lanes):
    seen = check_env(lane_env(Darkroom(size=size, horizon=horizon), lanes=lanes), seeds=2)
    assert (seen.steps, seen.terminated, seen.truncated) == (2 * horizon, 0, 2 * lanes)


class State(NamedTuple):
    at: np.ndarray
    goal: np.ndarray
    time: np.ndarray


@dataclass
class Step:
    state: State
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    info: dict = field(default_factory=dict)


class Walk:
    """A line of cells: +1 or -1 each step; terminated on the goal, truncated after 12 steps. Lanes end one by one and
    stay."""

    def reset(self, seed):
        rng = np.random.default_rng(seed)
        return State(np.zeros(LANES, np.int64), rng.integers(1, 4, LANES), np.zeros(LANES, np.int64))

    def step(self, state, actions):
        over = self.over(state)
        at = np.where(over, state.at, np.clip(state.at + actions, -3, 9))
        after = State(at, state.goal, np.where(over, state.time, state.time + 1))
        reward = np.where(~over & (at == state.goal), 1.0, 0.0)
        return Step(
            after, reward, at == state.goal, (after.time >= 12) & (at != state.goal), {"distance": state.goal - at}
        )

    def over(self, state):
        return (state.at == state.goal) | (state.time >= 12)

    def sample(self, state, seed):
        return np.random.default_rng(seed).choice([-1, 1], LANES, p=[0.2, 0.8])

    def env(self):
        return LaneEnv(
            lanes=LANES,
            reset=self.reset,
            step=self.step,
            sample=self.sample,
            observe=lambda state: state.at,
            observation_space=Bounds(-3, 9, (LANES,)),
            action_space=Bounds(-1, 1, (LANES,)),
            info_keys=frozenset({"distance"}),
        )


def test_an_environment_whose_lanes_end_one_by_one_passes_and_both_ends_are_counted():
    seen = check_env(Walk().env(), seeds=30)
    assert seen.terminated + seen.truncated == 30 * LANES
    assert seen.terminated > 0
    assert seen.truncated > 0
    assert check_env(Walk().env(), seeds=1, max_steps=1).terminated == 0


def changed(**parts):
    """A walk whose step is changed by functions of the walk, the state, the actions and the honest step."""

    class Changed(Walk):
        def step(self, state, actions):
            led = super().step(state, actions)
            return replace(led, **{name: change(self, state, actions, led) for name, change in parts.items()})

    return Changed


def counting(self):
    self.calls = getattr(self, "calls", 0) + 1
    return self.calls


class Mutating(Walk):
    def step(self, state, actions):
        led = super().step(state, actions)
        state.time[:] += 1
        return led


class MutatingActions(Walk):
    def step(self, state, actions):
        led = super().step(state, actions)
        actions[:] = 0
        return led


class Unseeded(Walk):
    def reset(self, seed):
        return super().reset(counting(self))


class SharedGenerator(Walk):
    """Two resets in a row are equal; later ones are not."""

    def reset(self, seed):
        return super().reset((counting(self) + 1) // 2)


class Refusing(Walk):
    def step(self, state, actions):
        if self.over(state).any():
            raise DataError("a lane has ended")
        return super().step(state, actions)


class Bare(Walk):
    def step(self, state, actions):
        led = super().step(state, actions)
        return led.state, led.reward, led.terminated, led.truncated, led.info


class FarAway(Walk):
    def sample(self, state, seed):
        return np.full(LANES, 5)


class Teleporting(Walk):
    """Starts outside of its space."""

    def reset(self, seed):
        return super().reset(seed)._replace(at=np.full(LANES, 50))


def moved(self, state, actions, led):
    return led.state._replace(at=np.where(self.over(state), led.state.at - 1, led.state.at))


BROKEN = [
    (Bare, "StepFormError", 'has no "state"'),
    (changed(reward=lambda self, state, actions, led: led.reward[:2]), "StepFormError", r"shape \(2,\)"),
    (changed(reward=lambda self, state, actions, led: led.reward.astype(np.int64)), "StepFormError", "3 floats"),
    (
        changed(terminated=lambda self, state, actions, led: led.terminated.astype(np.int8)),
        "StepFormError",
        '"terminated" is int8',
    ),
    (changed(truncated=lambda self, state, actions, led: False), "StepFormError", '"truncated" is bool'),
    (
        changed(state=lambda self, state, actions, led: led.state._replace(time=led.state.time * 1.0)),
        "StateFormError",
        '"time"',
    ),
    (
        changed(state=lambda self, state, actions, led: led.state._replace(at=led.state.at[:, None])),
        "StateFormError",
        '"at"',
    ),
    (changed(reward=lambda self, state, actions, led: led.reward * np.nan), "RewardError", "lane 0 is nan"),
    (changed(reward=lambda self, state, actions, led: led.reward - np.inf), "RewardError", "finite"),
    (FarAway, "SpaceError", "the actions array"),
    (Teleporting, "SpaceError", "the observation array"),
    (changed(info=lambda self, state, actions, led: {}), "InfoError", r"\['distance'\]"),
    (changed(info=lambda self, state, actions, led: {**led.info, "late": 1}), "InfoError", "late"),
    (Mutating, "MutationError", 'changed the state that it was given: "time"'),
    (MutatingActions, "MutationError", "changed the actions"),
    (changed(reward=lambda self, state, actions, led: led.reward + counting(self)), "HiddenStateError", '"reward"'),
    (
        changed(info=lambda self, state, actions, led: {"distance": counting(self)}),
        "HiddenStateError",
        '"info.distance"',
    ),
    (Unseeded, "DeterminismError", r"reset\(0\) gave two different states"),
    (SharedGenerator, "DeterminismError", "later"),
    (
        changed(reward=lambda self, state, actions, led: led.reward + (actions[0] > 0) * ~self.over(state)),
        "LaneError",
        "lane 0",
    ),
    (Refusing, "DoneError", "has not ended, and the step was refused: a lane has ended"),
    (
        changed(terminated=lambda self, state, actions, led: led.terminated & ~self.over(state)),
        "DoneError",
        "had ended, and now it has not",
    ),
    (changed(reward=lambda self, state, actions, led: led.reward + self.over(state)), "DoneError", "earned 1.0"),
    (changed(state=moved), "DoneError", "moved on"),
]


@pytest.mark.parametrize(("broken", "error", "message"), BROKEN, ids=lambda value: getattr(value, "__name__", value))
def test_an_environment_that_breaks_a_rule_is_caught_by_the_name_of_the_rule(broken, error, message):
    with pytest.raises(getattr(checker, error), match=message) as raised:
        check_env(broken().env(), seeds=4)
    assert type(raised.value).__name__ == error
    assert isinstance(raised.value, BrimError)
    assert ";" in str(raised.value)  # a way out
    assert len(str(raised.value).splitlines()) == 1


def test_every_rule_has_an_environment_that_breaks_it():
    rules = {
        kind.__name__
        for kind in vars(checker).values()
        if isinstance(kind, type) and issubclass(kind, checker.EnvError)
    }
    assert rules - {"EnvError"} == {error for _, error, _ in BROKEN}


def test_states_may_be_dicts_lists_and_plain_values_and_actions_lists_of_text():
    def begin(seed):
        return {"texts": [f"{seed}"] * 2, "nested": [{"count": 0}], "key": (seed, None)}

    def move(state, actions):
        texts = [
            text if text.endswith(".") else text + action for text, action in zip(state["texts"], actions, strict=True)
        ]
        over = np.array([text.endswith(".") for text in texts])
        after = {**state, "texts": texts, "nested": [{"count": state["nested"][0]["count"] + 1}]}
        return Step(after, np.zeros(2), over, ~over & False)

    def choose(state, seed):
        return ["a.b"[(seed + lane) % 3] for lane in range(2)]

    assert check_env(LaneEnv(lanes=2, reset=begin, step=move, sample=choose), seeds=3).terminated == 6


def test_what_is_no_environment_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(MissingExtraError, match=r"brim.envs.checker needs gymnasium.*brim\[gym\]"):
        check_env(object())
    with pytest.raises(OptionError, match="lanes"):
        LaneEnv(lanes=0, reset=int, step=max, sample=max)
    with pytest.raises(OptionError, match="seeds"):
        check_env(Walk().env(), seeds=0)


def gymnasium_room(gymnasium, broken=False):
    """One lane of the Darkroom behind Gymnasium's own interface."""

    class Room(gymnasium.Env):
        room = Darkroom(size=5, horizon=6)
        observation_space = gymnasium.spaces.Box(0, 4, (2,), np.int64)
        action_space = gymnasium.spaces.Discrete(ACTIONS)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            goal = self.room.goals[self.np_random.integers(len(self.room.goals))]
            self.state = reset(self.room, goal[None])
            return self.state.position[0] + 9 * broken, {}

        def step(self, action):
            led = step(self.room, self.state, np.array([action]))
            self.state = led.state
            return self.state.position[0], float(led.reward[0]), bool(led.terminated[0]), bool(led.truncated[0]), {}

    return Room()


@pytest.mark.filterwarnings("ignore::UserWarning:gymnasium")
def test_an_environment_of_gymnasium_is_given_to_its_own_checker():
    gymnasium = pytest.importorskip("gymnasium", reason="an optional extra")
    assert check_env(gymnasium_room(gymnasium)) is None
    with pytest.raises(checker.EnvError, match="Gymnasium's checker refuses Room"):
        check_env(gymnasium_room(gymnasium, broken=True))
    with pytest.raises(OptionError, match="got int"):
        check_env(5)
