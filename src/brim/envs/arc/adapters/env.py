"""`ArcEnv`: one ARC environment with the interface of Gymnasium, on NumPy arrays.

`reset(seed=s)` begins the first episode of seed s, and `reset()` the next one of the same seed: which task and which
pair an episode has depends on the seed and on the number of the episode, and on nothing else. The environment has the
key `jax.random.PRNGKey(s)`, so `batch_reset` with this key plays the same episodes.

JAX is not imported.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import OptionError
from brim.core.extras import need
from brim.core.options import one_of
from brim.envs.arc.adapters.lanes import AnyTasks, Lanes, bank_of
from brim.envs.arc.adapters.spaces import action_space, observation_space
from brim.envs.arc.adapters.structured import structured
from brim.envs.arc.config import JaxArcConfig
from brim.envs.arc.engine.call import Report
from brim.envs.arc.state import ArcEnvState

if TYPE_CHECKING:
    import gymnasium
else:
    gymnasium = need("gymnasium", extra="arc", user="brim.envs.arc")

RENDER_MODES = ("ansi", "rgb_array")
DRAWN_SEEDS = 2**63
"""Without a seed, one below this number is drawn from `np_random`."""
FIRST = np.zeros(1, np.int64)
"""The number of the only lane."""


class ArcEnv(gymnasium.Env[NDArray[np.uint8], Any]):
    """Change a grid until it is the answer, and submit it.

    Observations are working grids, uint8, `PADDING` outside of the grid. Rewards are floats. `info` has "similarity"
    (np.float32), "solved" and "invalid" (bool), "task_index" and "pair_index" (np.int32, numbers in the bank), in steps
    and in resets. On test pairs similarity and solved tell about the answer: keep them from the agent.

    Example:
        env = ArcEnv("arcagi")
        observation, info = env.reset(seed=0)
        observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
    """

    metadata = {"render_modes": list(RENDER_MODES), "render_fps": 4}  # noqa: RUF012

    def __init__(
        self,
        tasks: AnyTasks | None = None,
        config: JaxArcConfig | None = None,
        *,
        render_mode: str | None = None,
    ) -> None:
        """
        Args:
            tasks: A task, a list of tasks or a bank, or the name or path of a data set (see `load_tasks`). From several
                tasks each episode draws one. By default the task of `create_mock_task`.
            render_mode: "ansi" (text with colours) or "rgb_array" (uint8 of [height, width, 3]).

        Raises:
            OptionError: The render mode is unknown, or the configuration asks for automatic resets.
            DataError: The tasks cannot be read, or do not fit into the configured size.
        """
        if render_mode is not None:
            one_of("render_mode", render_mode, RENDER_MODES)
        self.render_mode = render_mode
        self.config = JaxArcConfig() if config is None else config
        self.bank = bank_of(tasks, self.config)
        self.observation_space = observation_space(self.config)
        self.action_space = action_space(self.config)
        self._lanes = Lanes(self.bank, self.config, 1)

    @property
    def states(self) -> ArcEnvState:
        """The state, as a batch of one. The next step changes its arrays in place."""
        return self._lanes.states

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Begin the next episode; with a seed, the first one of that seed.

        Raises:
            OptionError: The seed is above 2**64 - 1, or there are options: this environment has none.
        """
        super().reset(seed=seed, options=options)
        if options:
            raise OptionError(f"ArcEnv has no options for a reset, got {', '.join(map(repr, options))}")
        if seed is None and not self._lanes.seeded[0]:
            seed = int(self.np_random.integers(DRAWN_SEEDS))
        if seed is not None:
            self._lanes.seed(FIRST, [seed])
        self._lanes.begin(FIRST)
        return self.states.cells[0].copy(), _info(self.states, invalid=False)

    def step(self, action: Any) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Apply an action.

        An operation that is not allowed and a selection out of range change nothing; `info["invalid"]` is True then.

        Raises:
            DataError: The action has another form than the elements of the action space.
            gymnasium.error.ResetNeeded: The episode has ended, or none has begun.
        """
        one = structured(action, self.config, ())
        if self.states.episode_done[0]:
            raise gymnasium.error.ResetNeeded("the episode has ended, or none has begun; call reset() first")
        obs, report = self._lanes.step(type(one)(*(np.asarray(part)[None] for part in one)))
        return (*_outcome(obs, report), _info(self.states, invalid=bool(report.invalid[0])))

    def render(self) -> str | NDArray[np.uint8] | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return input, working grid and target as text or as a picture. The target of a test pair is not shown.

        Raises:
            gymnasium.error.ResetNeeded: There is no episode to show yet.
        """
        if self.render_mode is None:
            return None
        return draw(self.states, 0, self.render_mode)


def draw(states: ArcEnvState, lane: int, render_mode: str) -> str | NDArray[np.uint8]:
    """Draw the state of one lane."""
    if states.episode[lane] < 0:
        raise gymnasium.error.ResetNeeded("there is no episode to show; call reset() first")
    shown: dict[str, Any] = {
        "selected": states.selected[lane],
        "input": states.input_grid[lane],
        "target": None if states.on_test_pair[lane] else states.target_grid[lane],
    }
    if render_mode == "ansi":
        from brim.envs.arc.look.ansi import draw_state

        return draw_state(states.cells[lane], **shown)
    from brim.envs.arc.look.raster import rgb_state

    return rgb_state(states.cells[lane], **shown)


def _outcome(obs: NDArray[np.uint8], report: Report) -> tuple[NDArray[np.uint8], float, bool, bool]:
    return obs[0], float(report.reward[0]), bool(report.terminated[0]), bool(report.truncated[0])


def _info(states: ArcEnvState, *, invalid: bool) -> dict[str, Any]:
    return {
        "similarity": states.similarity_score[0],
        "solved": bool(states.solved[0]),
        "invalid": invalid,
        "task_index": states.task_index[0],
        "pair_index": states.pair_index[0],
    }
