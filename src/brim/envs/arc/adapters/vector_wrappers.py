"""Wrappers of `ArcVectorEnv`: other observations, other actions, masks, and metrics of episodes.

They mean the same as those of `brim.envs.arc.adapters.wrappers`, and work in every auto-reset mode. In mode SAME_STEP
they change `infos["final_obs"]` as well.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import OptionError
from brim.core.extras import need
from brim.core.options import check_counts
from brim.envs.arc.adapters.flat import flat_table
from brim.envs.arc.adapters.masks import flat_mask, parts_mask
from brim.envs.arc.adapters.metrics import Metrics
from brim.envs.arc.adapters.vector import ArcVectorEnv
from brim.envs.arc.adapters.wrappers import channels_space, one_hot_space
from brim.envs.arc.channels import check_channels, one_hot, stack_channels

if TYPE_CHECKING:
    import gymnasium
    from gymnasium import spaces
    from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

    AnyVectorEnv = VectorEnv[Any, Any, NDArray[Any]]
    AnyVectorWrapper = VectorWrapper[Any, Any, Any, Any, NDArray[Any]]
else:
    gymnasium = need("gymnasium", extra="arc", user="brim.envs.arc")
    spaces, AutoresetMode = gymnasium.spaces, gymnasium.vector.AutoresetMode
    # Without parameters, which vector wrappers of Gymnasium 1.1 do not take.
    AnyVectorEnv, AnyVectorWrapper = gymnasium.vector.VectorEnv, gymnasium.vector.VectorWrapper

Step = tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]


class VectorFlatActions(AnyVectorWrapper):
    """Number all actions, as `FlatActions` does."""

    def __init__(self, env: AnyVectorEnv) -> None:
        super().__init__(env)
        self.table = flat_table(arc_vector_env(env).config)
        self.single_action_space = spaces.Discrete(self.table.size)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, env.num_envs)

    def step(self, actions: Any) -> Step:
        return self.env.step(np.stack(self.table.decode(np.asarray(actions)), axis=-1))


class _Observations(AnyVectorWrapper, ABC):
    """Changes observations, and those at the end of episodes."""

    def set_space(self, single: "spaces.Space[Any]") -> None:
        self.single_observation_space = single
        self.observation_space = gymnasium.vector.utils.batch_space(single, self.num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observations, infos = self.env.reset(seed=seed, options=options)
        return self.change(observations), infos

    def step(self, actions: Any) -> Step:
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        if "final_obs" in infos:
            lanes = arc_vector_env(self.env).final_lanes
            changed = infos["final_obs"].copy()
            for lane, last in zip(lanes.tolist(), self.change_last(infos["final_obs"][lanes]), strict=True):
                changed[lane] = last
            infos = {**infos, "final_obs": changed}
        return self.change(observations), rewards, terminated, truncated, infos

    @abstractmethod
    def change(self, observations: Any) -> Any:
        """Return the new observations of all environments."""

    @abstractmethod
    def change_last(self, observations: Any) -> Any:
        """Return the new last observations of those that ended, given the old ones."""


class VectorChannels(_Observations):
    """Observe several grids, as `Channels` does: uint8 of [num_envs, channels, height, width]."""

    def __init__(
        self,
        env: AnyVectorEnv,
        channels: tuple[str, ...] = ("working", "input", "demonstrations"),
        *,
        pairs: int = 3,
    ) -> None:
        super().__init__(env)
        check_counts(pairs=pairs)
        self.channels, self.pairs = check_channels(channels), pairs
        self.set_space(channels_space(arc_vector_env(env).config.shape, self.channels, pairs))

    def change(self, observations: Any) -> NDArray[np.uint8]:
        return stack_channels(arc_vector_env(self.env).states, self.channels, self.pairs)

    def change_last(self, observations: Any) -> NDArray[np.uint8]:
        return stack_channels(arc_vector_env(self.env).final_states, self.channels, self.pairs)


class VectorOneHot(_Observations):
    """Observe the 11 values of a cell as channels, as `OneHot` does."""

    def __init__(self, env: AnyVectorEnv) -> None:
        super().__init__(env)
        arc_vector_env(env)
        self.set_space(one_hot_space(env.single_observation_space))

    def change(self, observations: Any) -> NDArray[np.uint8]:
        return one_hot(observations, axes=1)

    def change_last(self, observations: Any) -> NDArray[np.uint8]:
        return one_hot(np.stack(observations), axes=1)


class VectorActionMasks(AnyVectorWrapper):
    """Say which actions make sense, as `ActionMasks` does: [num_envs, actions]."""

    def __init__(self, env: AnyVectorEnv) -> None:
        super().__init__(env)
        self._mask = flat_mask if isinstance(env.single_action_space, spaces.Discrete) else parts_mask
        arc_vector_env(env)

    def action_masks(self) -> NDArray[np.bool_]:
        """Return a bool for each environment and action: False if it makes no sense now."""
        base = arc_vector_env(self.env)
        return self._mask(base.states, base.config)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observations, infos = self.env.reset(seed=seed, options=options)
        return observations, self._with_mask(infos)

    def step(self, actions: Any) -> Step:
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        return observations, rewards, terminated, truncated, self._with_mask(infos)

    def _with_mask(self, infos: dict[str, Any]) -> dict[str, Any]:
        every = np.ones(self.num_envs, np.bool_)
        return {**infos, "action_mask": self.action_masks().astype(np.int8), "_action_mask": every}


class VectorEpisodeMetrics(AnyVectorWrapper):
    """Add `infos["episode_metrics"]` to steps that end episodes: the metrics of `EpisodeMetrics`, as arrays.

    `infos["_episode_metrics"]` says in which environments an episode ended; the others have zeros. In mode SAME_STEP it
    has the same place as in the others, as in Gymnasium's `RecordEpisodeStatistics`.
    """

    def __init__(self, env: AnyVectorEnv) -> None:
        super().__init__(env)
        self._metrics = Metrics(env.num_envs)
        self._ended = np.zeros(env.num_envs, np.bool_)
        self._resets_at_once = arc_vector_env(env).autoreset_mode == AutoresetMode.SAME_STEP

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observations, infos = self.env.reset(seed=seed, options=options)
        self._begin(np.flatnonzero(infos["_similarity"]), infos)
        return observations, infos

    def step(self, actions: Any) -> Step:
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        ended = terminated | truncated
        similarity = infos["similarity"]
        if "final_info" in infos:
            similarity = np.where(ended, infos["final_info"]["similarity"], similarity)
        # In mode NEXT_STEP, the step after the end of an episode is a reset.
        self._metrics.add(rewards, similarity, ~self._ended)
        self._begin(np.flatnonzero(self._ended), infos)
        if ended.any():
            found = self._metrics.result(truncated)
            kept = {name: np.where(ended, values, np.zeros((), values.dtype)) for name, values in found.items()}
            infos = {**infos, "episode_metrics": kept, "_episode_metrics": ended.copy()}
        self._ended = ended
        if self._resets_at_once:
            self._begin(np.flatnonzero(ended), infos)
        return observations, rewards, terminated, truncated, infos

    def _begin(self, lanes: NDArray[np.intp], infos: dict[str, Any]) -> None:
        self._ended[lanes] = False
        self._metrics.begin(lanes, infos["similarity"][lanes])


def arc_vector_env(env: AnyVectorEnv) -> ArcVectorEnv:
    """Return the `ArcVectorEnv` inside of wrappers.

    Raises:
        OptionError: There is another environment inside.
    """
    base = env.unwrapped
    if not isinstance(base, ArcVectorEnv):
        raise OptionError(
            f"this wrapper is for ArcVectorEnv, got {type(base).__name__}; wrap each ArcEnv of a SyncVectorEnv instead"
        )
    return base
