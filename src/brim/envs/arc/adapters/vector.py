"""`ArcVectorEnv`: many ARC environments with the vector interface of Gymnasium, on NumPy arrays.

It returns what `gymnasium.vector.SyncVectorEnv` returns for as many `ArcEnv`s, in every auto-reset mode, with one call
of the kernel for a step. `reset(seed=s)` gives environment i the seed s + i, as Gymnasium does, and a seed plays the
same episodes here and in `ArcEnv`.

JAX is not imported.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import OptionError
from brim.core.extras import need
from brim.core.options import check_counts, one_of
from brim.envs.arc.adapters.env import DRAWN_SEEDS, RENDER_MODES, draw
from brim.envs.arc.adapters.lanes import AnyTasks, Lanes, bank_of
from brim.envs.arc.adapters.spaces import action_space, observation_space
from brim.envs.arc.adapters.structured import structured
from brim.envs.arc.config import JaxArcConfig
from brim.envs.arc.state import ArcEnvState, take_states

if TYPE_CHECKING:
    import gymnasium
    from gymnasium.vector import AutoresetMode
else:
    gymnasium = need("gymnasium", extra="arc", user="brim.envs.arc")
    AutoresetMode = gymnasium.vector.AutoresetMode

Step = tuple[NDArray[np.uint8], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


class ArcVectorEnv(gymnasium.vector.VectorEnv[NDArray[np.uint8], Any, NDArray[Any]]):
    """As many environments as wanted, stepped together.

    Observations are uint8 of [num_envs, height, width], rewards float64. `infos` has the entries of `ArcEnv` as arrays,
    with a mask for each ("_similarity" ...), as Gymnasium's vector environments have them.

    Example:
        envs = ArcVectorEnv("arcagi", num_envs=64)
        observations, infos = envs.reset(seed=0)
        observations, rewards, terminated, truncated, infos = envs.step(envs.action_space.sample())
    """

    metadata = {"render_modes": list(RENDER_MODES), "render_fps": 4}  # noqa: RUF012

    def __init__(
        self,
        tasks: AnyTasks | None = None,
        config: JaxArcConfig | None = None,
        *,
        num_envs: int = 1,
        autoreset_mode: "str | AutoresetMode" = AutoresetMode.NEXT_STEP,
        render_mode: str | None = None,
        max_episode_steps: int | None = None,
    ) -> None:
        """
        Args:
            tasks: A task, a list of tasks or a bank, or the name or path of a data set, as for `ArcEnv`.
            autoreset_mode: When a finished environment begins its next episode: with the next step, whose action is
                ignored (NEXT_STEP), within the step that ended it (SAME_STEP), or when `reset` is called with
                `options={"reset_mask": ...}` (DISABLED).
            render_mode: "ansi" or "rgb_array".
            max_episode_steps: In place of that of the configuration; `gymnasium.make_vec` passes it on.

        Raises:
            OptionError: A mode is unknown, or the configuration asks for automatic resets.
            DataError: The tasks cannot be read, or do not fit into the configured size.
        """
        check_counts(num_envs=num_envs, max_episode_steps=max_episode_steps)
        if render_mode is not None:
            one_of("render_mode", render_mode, RENDER_MODES)
        self.render_mode = render_mode
        self.num_envs = num_envs
        self.autoreset_mode = _autoreset_mode(autoreset_mode)
        self.metadata = {**self.metadata, "autoreset_mode": self.autoreset_mode}
        self.config = JaxArcConfig() if config is None else config
        if max_episode_steps is not None:
            environment = replace(self.config.environment, max_episode_steps=max_episode_steps)
            self.config = replace(self.config, environment=environment)
        self.bank = bank_of(tasks, self.config)
        self.single_observation_space = observation_space(self.config)
        self.single_action_space = action_space(self.config)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)
        self._lanes = Lanes(self.bank, self.config, num_envs)
        self.final_lanes: NDArray[np.intp] = np.zeros(0, np.intp)
        """Numbers of the environments whose episodes ended in the last step, in mode SAME_STEP."""
        self.final_states = take_states(self.states, self.final_lanes)
        """Their states at the end of the episodes, before the reset."""

    @property
    def states(self) -> ArcEnvState:
        """The states. The next step changes their arrays in place."""
        return self._lanes.states

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Begin the next episode of every environment; with seeds, the first one of its seed.

        Args:
            seed: Environment i gets the seed `seed + i`; a list has a seed, or None, for each environment.
            options: "reset_mask", a bool array of [num_envs], says which environments are reset. The others stay as
                they are, and `infos` has nothing about them.

        Raises:
            OptionError: The seeds or the mask are not as described, or an option is unknown.
        """
        lanes, seeds = _masked(options, self.num_envs), _seeds(seed, self.num_envs)
        super().reset(seed=seed if isinstance(seed, int) else None)
        self._seed(lanes, seeds)
        self._lanes.begin(lanes)
        self._forget_finals()
        return self.states.cells.copy(), self._infos(np.zeros(self.num_envs, np.bool_), lanes)

    def step(self, actions: Any) -> Step:
        """Apply an action in every environment.

        Raises:
            DataError: The actions have another form than the elements of the action space.
            gymnasium.error.ResetNeeded: An episode has not begun or, in mode DISABLED, has ended.
        """
        acts = structured(actions, self.config, (self.num_envs,))
        ended = self.states.episode_done
        self._check_running(ended)
        obs, report = self._lanes.step(acts)
        rewards = report.reward.astype(np.float64)
        # Where an episode had ended before, the step is the reset; its reward is 0.
        terminated, truncated = report.terminated & ~ended, report.truncated & ~ended
        begun = np.flatnonzero(ended)
        self._forget_finals()
        infos: dict[str, Any] = {}
        if self.autoreset_mode == AutoresetMode.SAME_STEP:
            begun = np.flatnonzero(terminated | truncated)
            infos = self._finals(begun, obs, report.invalid)
        if len(begun):
            self._lanes.begin(begun)
            obs[begun] = self.states.cells[begun]
            report.invalid[begun] = False
        return obs, rewards, terminated, truncated, {**infos, **self._infos(report.invalid, slice(None))}

    def render(self) -> tuple[Any, ...] | None:
        """Return a picture of each environment; see `ArcEnv.render`."""
        if self.render_mode is None:
            return None
        return tuple(draw(self.states, lane, self.render_mode) for lane in range(self.num_envs))

    def _seed(self, lanes: NDArray[np.intp], seeds: list[int | None]) -> None:
        chosen: dict[int, int] = {}
        for lane in lanes.tolist():
            seed = seeds[lane]
            if seed is None and not self._lanes.seeded[lane]:
                seed = int(self.np_random.integers(DRAWN_SEEDS))
            if seed is not None:
                chosen[lane] = seed
        if chosen:
            self._lanes.seed(list(chosen), list(chosen.values()))

    def _check_running(self, ended: NDArray[np.bool_]) -> None:
        never = np.flatnonzero(self.states.episode < 0)
        if len(never):
            raise gymnasium.error.ResetNeeded(f"environment {never[0]} has no episode yet; call reset() first")
        if self.autoreset_mode == AutoresetMode.DISABLED and ended.any():
            raise gymnasium.error.ResetNeeded(
                f"the episode of environment {np.flatnonzero(ended)[0]} has ended; reset it first, with"
                ' reset(options={"reset_mask": terminated | truncated})'
            )

    def _infos(self, invalid: NDArray[np.bool_], lanes: Any) -> dict[str, Any]:
        """Return the entries of `info` of some environments, as arrays with masks."""
        there = np.zeros(self.num_envs, np.bool_)
        there[lanes] = True
        return _with_masks(_entries(self.states, invalid), there)

    def _finals(self, lanes: NDArray[np.intp], obs: NDArray[np.uint8], invalid: NDArray[np.bool_]) -> dict[str, Any]:
        """Return last observations and infos of episodes that ended, before their environments are reset."""
        if not len(lanes):
            return {}
        self.final_lanes = lanes
        self.final_states = take_states(self.states, lanes)
        there = np.zeros(self.num_envs, np.bool_)
        there[lanes] = True
        last = np.full(self.num_envs, None, dtype=object)
        for lane in lanes.tolist():
            last[lane] = obs[lane].copy()
        info = _with_masks(_entries(self.states, invalid), there)
        return {"final_obs": last, "_final_obs": there, "final_info": info, "_final_info": there.copy()}

    def _forget_finals(self) -> None:
        if len(self.final_lanes):
            self.final_lanes = np.zeros(0, np.intp)
            self.final_states = take_states(self.states, self.final_lanes)


def _entries(states: ArcEnvState, invalid: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
    return {
        "similarity": states.similarity_score,
        "solved": states.solved,
        "invalid": invalid,
        "task_index": states.task_index,
        "pair_index": states.pair_index,
    }


def _with_masks(entries: dict[str, NDArray[Any]], there: NDArray[np.bool_]) -> dict[str, Any]:
    """Return copies with zeros where nothing is said about an environment, and beside each a mask of the others."""
    infos: dict[str, Any] = {}
    for name, values in entries.items():
        infos[name] = np.where(there, values, np.zeros((), values.dtype))
        infos[f"_{name}"] = there.copy()
    return infos


def _autoreset_mode(given: "str | AutoresetMode") -> "AutoresetMode":
    if isinstance(given, AutoresetMode):
        return given
    return AutoresetMode(one_of("autoreset_mode", given, [mode.value for mode in AutoresetMode]))


def _seeds(given: Any, number: int) -> list[int | None]:
    if given is None:
        return [None] * number
    if isinstance(given, int | np.integer):
        return [int(given) + lane for lane in range(number)]
    seeds = list(given)
    if len(seeds) != number:
        raise OptionError(f"seed must be an integer or a list of {number}, one for each environment, got {len(seeds)}")
    return seeds


def _masked(options: dict[str, Any] | None, number: int) -> NDArray[np.intp]:
    """Return the numbers of the environments to reset."""
    for name in options or {}:
        if name != "reset_mask":
            raise OptionError(f"the only option of a reset is reset_mask, got {name!r}")
    if not options:
        return np.arange(number)
    mask = options["reset_mask"]
    if not isinstance(mask, np.ndarray) or mask.shape != (number,) or mask.dtype != np.bool_:
        found = f"{mask.dtype} of shape {mask.shape}" if isinstance(mask, np.ndarray) else type(mask).__name__
        raise OptionError(f"reset_mask must be a bool array of shape ({number},), got {found}")
    if not mask.any():
        raise OptionError("reset_mask is false everywhere; name at least one environment to reset")
    return np.flatnonzero(mask)
