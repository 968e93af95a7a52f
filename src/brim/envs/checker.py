"""Check that an environment keeps the rules that everything built on environments relies on: `check_env`.

An environment of brim is given as a `LaneEnv`; an environment of Gymnasium is given to Gymnasium's own checker.

The first rule that is broken ends the check with an error of its own type:

    EnvError
    ├── StepFormError       a step lacks reward, terminated or truncated for every lane, or they have the wrong type
    ├── StateFormError      a state has other parts than the one before, so it cannot be compiled or stored in columns
    ├── RewardError         a reward is not finite
    ├── SpaceError          an observation or an action lies outside of its space
    ├── InfoError           the keys of `info` are not those that were declared
    ├── MutationError       a step changed the state or the actions that it was given
    ├── HiddenStateError    the same state and the same actions led to two different steps
    ├── DeterminismError    the same seed led to two different episodes
    ├── LaneError           an action in one lane changed another lane
    └── DoneError           a lane that had ended went on, or one that had not was refused
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import BrimError, OptionError
from brim.core.extras import need
from brim.core.options import check_counts
from brim.envs.lanes import LaneEnv, StepResult
from brim.envs.parts import difference, form, of_lanes, parts, short


class EnvError(BrimError):
    """An environment breaks a rule. The base of the errors below."""


class StepFormError(EnvError):
    """A step does not have the form that it must have."""


class StateFormError(EnvError):
    """The parts of a state changed from one step to the next."""


class RewardError(EnvError):
    """A reward is not finite."""


class SpaceError(EnvError):
    """An observation or an action lies outside of its space."""


class InfoError(EnvError):
    """The keys of `info` are not those that were declared."""


class MutationError(EnvError):
    """A step changed what it was given."""


class HiddenStateError(EnvError):
    """A step depends on more than the state and the actions."""


class DeterminismError(EnvError):
    """An episode depends on more than its seed and its actions."""


class LaneError(EnvError):
    """Lanes depend on each other."""


class DoneError(EnvError):
    """A lane that had ended went on, or one that had not was refused."""


@dataclass(frozen=True)
class EnvCheck:
    """The counts of a check. If no lane ended, the rules about ends were not checked."""

    steps: int
    terminated: int
    """Lanes that were terminated."""
    truncated: int
    """Lanes that were truncated."""


def check_env(env: Any, *, seeds: int = 2, max_steps: int = 200) -> EnvCheck | None:
    """Play an environment with random actions, and check every step of it.

    Args:
        env: A `LaneEnv`, or an environment of Gymnasium, for which `gymnasium.utils.env_checker.check_env` is run, with
            nothing returned.
        seeds: Episodes that are played, with the seeds 0, 1, ...; each is played twice.
        max_steps: Upper limit of the steps of an episode.

    Raises:
        EnvError: A rule is broken; see the list above for the types.
        OptionError: This is neither kind of environment.
        MissingExtraError: This is no `LaneEnv`, and Gymnasium is not installed.

    Example:
        >>> from brim.envs.darkroom.room import Darkroom, lane_env
        >>> check_env(lane_env(Darkroom(horizon=5), lanes=3), seeds=1)
        EnvCheck(steps=5, terminated=0, truncated=3)
    """
    if not isinstance(env, LaneEnv):
        _check_with_gymnasium(env)
        return None
    check_counts(seeds=seeds, max_steps=max_steps)
    seen = [_check_episode(env, seed, max_steps) for seed in range(seeds)]
    for seed in range(seeds):
        _same_again(env, seed, seen[seed])
    return EnvCheck(
        steps=sum(len(episode.rewards) for episode in seen),
        terminated=sum(episode.terminated for episode in seen),
        truncated=sum(episode.truncated for episode in seen),
    )


@dataclass
class _Episode:
    """One episode in all lanes, as it was played."""

    first: dict[str, Any]
    """The parts of the first state."""
    actions: list[Any]
    rewards: list[NDArray[Any]]
    terminated: int = 0
    truncated: int = 0


def _check_episode(env: LaneEnv, seed: int, max_steps: int) -> _Episode:
    state = env.reset(seed)
    _check_equal(
        parts(state),
        parts(env.reset(seed)),
        DeterminismError,
        f"reset({seed}) gave two different states",
        "draw everything that is random from the seed",
    )
    episode = _Episode(deepcopy(parts(state)), [], [])
    done = np.zeros(env.lanes, np.bool_)
    for number in range(max_steps):
        where = f"step {number} of seed {seed}"
        actions = env.sample(state, 1000 * seed + number)
        _check_spaces(env, state, actions, where)
        led = _check_step(env, state, actions, done, where)
        if led is None:
            return episode
        episode.actions.append(deepcopy(actions))
        episode.rewards.append(np.array(led.reward))
        ended = ~done & (np.asarray(led.terminated) | np.asarray(led.truncated))
        episode.terminated += int((ended & np.asarray(led.terminated)).sum())
        episode.truncated += int((ended & ~np.asarray(led.terminated)).sum())
        # A lane that ended is stepped on, once all have ended for one more step, to see that it stays where it is.
        if done.all():
            return episode
        done |= ended
        state = led.state
    return episode


def _check_step(env: LaneEnv, state: Any, actions: Any, done: NDArray[np.bool_], where: str) -> StepResult | None:
    """One step with everything that can be seen of it; None if the environment refuses to step lanes that have all
    ended."""
    before = deepcopy((parts(state), parts(actions)))
    try:
        led = env.step(state, actions)
    except BrimError as error:
        if done.all():
            return None
        lane = int(np.flatnonzero(~done)[0])
        raise DoneError(
            f"{where}: lane {lane} has not ended, and the step was refused: {error}; step all lanes until the last "
            "one has ended"
        ) from error
    for name, old, new in (("state", before[0], parts(state)), ("actions", before[1], parts(actions))):
        _check_equal(old, new, MutationError, f"{where} changed the {name} that it was given", "copy before you write")
    _check_form(env, led, where)
    _check_equal_form(before[0], parts(led.state), where)
    again = env.step(state, actions)
    _check_equal(
        _result(led),
        _result(again),
        HiddenStateError,
        f"{where} led somewhere else when it was taken again",
        "keep everything that decides about a step in the state, random keys too",
    )
    _check_done(env, state, led, done, where)
    _check_lanes(env, state, actions, led, where)
    return led


def _check_form(env: LaneEnv, led: StepResult, where: str) -> None:
    """Reward and ends have an entry for each lane and the right type; `info` has the keys that were declared."""
    for name in ("state", "reward", "terminated", "truncated"):
        if not hasattr(led, name):
            raise StepFormError(
                f'{where}: the step has no "{name}"; return an object with state, reward, terminated and truncated'
            )
    for name, kinds in (("reward", "f"), ("terminated", "b"), ("truncated", "b")):
        values = np.asarray(getattr(led, name))
        if values.shape != (env.lanes,) or values.dtype.kind not in kinds:
            wanted = "floats" if kinds == "f" else "booleans"
            raise StepFormError(
                f'{where}: "{name}" is {values.dtype} of shape {values.shape}; it must be an array of {env.lanes} '
                f"{wanted}, one for each lane"
            )
    wrong = np.flatnonzero(~np.isfinite(np.asarray(led.reward)))
    if len(wrong):
        lane = int(wrong[0])
        raise RewardError(
            f"{where}: the reward of lane {lane} is {np.asarray(led.reward)[lane]}; rewards must be finite"
        )
    info = cast(Mapping[str, Any], getattr(led, "info", None) or {})
    if frozenset(info) != env.info_keys:
        raise InfoError(
            f"{where}: info has the keys {sorted(info)}, declared are {sorted(env.info_keys)}; have the same ones in "
            "every step"
        )


def _check_spaces(env: LaneEnv, state: Any, actions: Any, where: str) -> None:
    observation = _observed(env, state)
    for name, space, value in (
        ("observation", env.observation_space, observation),
        ("actions", env.action_space, actions),
    ):
        if space is not None and not space.contains(value):
            raise SpaceError(
                f"{where}: the {name} {short(value)} is not in its space, {short(space)}; widen the space, or clip "
                "the value"
            )


def _check_done(env: LaneEnv, state: Any, led: StepResult, done: NDArray[np.bool_], where: str) -> None:
    """A lane that had ended says so again, earns nothing, and shows the same observation."""
    for lane in np.flatnonzero(done).tolist():
        if not (np.asarray(led.terminated)[lane] or np.asarray(led.truncated)[lane]):
            raise DoneError(
                f"{where}: lane {lane} had ended, and now it has not; keep terminated or truncated true until the "
                "next reset"
            )
        if np.asarray(led.reward)[lane] != 0:
            raise DoneError(
                f"{where}: lane {lane} had ended, and earned {np.asarray(led.reward)[lane]}; the reward after the "
                "end must be 0"
            )
    if done.any():
        before, after = parts(_observed(env, state)), parts(_observed(env, led.state))
        _check_equal(
            of_lanes(before, done),
            of_lanes(after, done),
            DoneError,
            f"{where}: a lane that had ended moved on",
            "leave the observation of lanes that have ended as it is",
        )


def _check_lanes(env: LaneEnv, state: Any, actions: Any, led: StepResult, where: str) -> None:
    """Another action in lane 0 leaves all other lanes alone."""
    if env.lanes == 1:
        return
    others = np.arange(env.lanes) > 0
    changed = deepcopy(actions)
    for seed in range(1, 9):
        changed = _with_lane(actions, env.sample(state, seed), 0)
        if difference(parts(changed), parts(actions)) is not None:
            break
    other = env.step(state, changed)
    seen = [{**parts(_observed(env, one.state)), **_ends(one)} for one in (led, other)]
    _check_equal(
        of_lanes(seen[0], others),
        of_lanes(seen[1], others),
        LaneError,
        f"{where}: another action in lane 0 changed another lane",
        "let every lane depend on its own state and action alone",
    )


def _same_again(env: LaneEnv, seed: int, episode: _Episode) -> None:
    """Play an episode again, after others were played: a generator that they share would show."""
    way_out = "draw everything that is random from the seed, not from a generator that is shared"
    state = env.reset(seed)
    _check_equal(episode.first, parts(state), DeterminismError, f"reset({seed}) gave another state later", way_out)
    for number, (actions, reward) in enumerate(zip(episode.actions, episode.rewards, strict=True)):
        led = env.step(state, actions)
        what = f"step {number} of seed {seed} gave another reward when the episode was played again"
        _check_equal({"reward": reward}, {"reward": np.asarray(led.reward)}, DeterminismError, what, way_out)
        state = led.state


def _check_with_gymnasium(env: Any) -> None:
    gymnasium = need("gymnasium", extra="gym", user="brim.envs.checker")
    if not isinstance(env, gymnasium.Env):
        raise OptionError(
            f"check_env takes a LaneEnv or an environment of Gymnasium, got {type(env).__name__}; wrap it in a LaneEnv"
        )
    checker = need("gymnasium.utils.env_checker", extra="gym", user="brim.envs.checker")
    try:
        checker.check_env(env, skip_render_check=True)
    except (AssertionError, gymnasium.error.Error) as error:
        raise EnvError(f"Gymnasium's checker refuses {type(env).__name__}: {error}") from error


def _observed(env: LaneEnv, state: Any) -> Any:
    return state if env.observe is None else env.observe(state)


def _ends(led: StepResult) -> dict[str, Any]:
    return {name: np.asarray(getattr(led, name)) for name in ("reward", "terminated", "truncated")}


def _result(led: StepResult) -> dict[str, Any]:
    """All parts of a step, by name."""
    return {**parts(led.state, "state"), **parts(getattr(led, "info", None), "info"), **_ends(led)}


def _with_lane(actions: Any, others: Any, lane: int) -> Any:
    """Actions with that of one lane taken from others."""
    if isinstance(actions, list | tuple):
        rows = [*cast(list[Any], actions)]
        rows[lane] = others[lane]
        return type(actions)(rows)  # pyright: ignore[reportCallIssue]
    changed = np.array(actions)
    changed[lane] = np.asarray(others)[lane]
    return changed


def _check_equal(one: dict[str, Any], other: dict[str, Any], error: type[EnvError], what: str, way_out: str) -> None:
    name = difference(one, other)
    if name is not None:
        raise error(f'{what}: "{name}" was {short(one.get(name))} and is {short(other.get(name))}; {way_out}')


def _check_equal_form(before: dict[str, Any], after: dict[str, Any], where: str) -> None:
    """The next state has the same parts, of the same shapes and types."""
    forms = [{name: form(part) for name, part in state.items()} for state in (before, after)]
    _check_equal(
        forms[0],
        forms[1],
        StateFormError,
        f"{where} led to a state of another form",
        "keep the parts, shapes and types of a state",
    )
