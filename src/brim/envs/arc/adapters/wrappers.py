"""Wrappers of `ArcEnv`: other observations, other actions, masks, and metrics of episodes.

They can be stacked in any order, except that `Channels` replaces the observations of what it wraps, so `OneHot` comes
after it. `brim.envs.arc.adapters.vector_wrappers` has the same for `ArcVectorEnv`.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import OptionError
from brim.core.extras import need
from brim.core.options import check_counts
from brim.envs.arc.adapters.env import ArcEnv
from brim.envs.arc.adapters.flat import flat_table
from brim.envs.arc.adapters.masks import flat_mask, parts_mask
from brim.envs.arc.adapters.metrics import Metrics
from brim.envs.arc.channels import VALUES, check_channels, count_channels, one_hot, stack_channels
from brim.envs.arc.operations import PADDING

if TYPE_CHECKING:
    import gymnasium
    from gymnasium import spaces
    from gymnasium.utils import RecordConstructorArgs
else:
    gymnasium = need("gymnasium", extra="arc", user="brim.envs.arc")
    spaces, RecordConstructorArgs = gymnasium.spaces, gymnasium.utils.RecordConstructorArgs


class FlatActions(gymnasium.ActionWrapper[Any, Any, Any], RecordConstructorArgs):
    """Number all actions: `Discrete(n)`. Only allowed operations have numbers; `table.decode` says what they mean."""

    def __init__(self, env: "gymnasium.Env[Any, Any]") -> None:
        """
        Raises:
            OptionError: This is no `ArcEnv`, or its selections are masks.
        """
        RecordConstructorArgs.__init__(self)
        super().__init__(env)
        self.table = flat_table(arc_env(env).config)
        self.action_space = spaces.Discrete(self.table.size)

    def action(self, action: Any) -> NDArray[np.int32]:
        """Return the action with this number, as the wrapped environment takes it."""
        return np.stack(self.table.decode(np.asarray(action)), axis=-1)


class Channels(gymnasium.ObservationWrapper[Any, Any, Any], RecordConstructorArgs):
    """Observe several grids: uint8 of [channels, height, width].

    Channels are "working", "input", "target", "clipboard", "selected" (0 and 1) and "demonstrations", in any order. The
    last one is `2 * pairs` grids: inputs and outputs of other demonstration pairs than the present one. "target" is
    hidden on test pairs; on demonstration pairs it is the answer.
    """

    def __init__(
        self,
        env: "gymnasium.Env[Any, Any]",
        channels: tuple[str, ...] = ("working", "input", "demonstrations"),
        *,
        pairs: int = 3,
    ) -> None:
        """
        Raises:
            OptionError: This is no `ArcEnv`, or a channel is unknown.
        """
        RecordConstructorArgs.__init__(self, channels=channels, pairs=pairs)
        super().__init__(env)
        check_counts(pairs=pairs)
        self.channels, self.pairs = check_channels(channels), pairs
        self.observation_space = channels_space(arc_env(env).config.shape, self.channels, pairs)

    def observation(self, observation: Any) -> NDArray[np.uint8]:
        """Return the channels of the present state."""
        return stack_channels(arc_env(self.env).states, self.channels, self.pairs)[0]


class OneHot(gymnasium.ObservationWrapper[Any, Any, Any], RecordConstructorArgs):
    """Observe each of the 11 values of a cell as a channel of 0 and 1: uint8 of [11 * channels, height, width].

    Colours come first, padding last. Of several channels, the 11 of the first one come first.
    """

    def __init__(self, env: "gymnasium.Env[Any, Any]") -> None:
        """
        Raises:
            OptionError: Observations are not grids of colours.
        """
        RecordConstructorArgs.__init__(self)
        super().__init__(env)
        self.observation_space = one_hot_space(env.observation_space)

    def observation(self, observation: Any) -> NDArray[np.uint8]:
        """Return the values of the wrapped environment's observation as channels."""
        return one_hot(observation)


class ActionMasks(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Say which actions make sense: `action_masks()` for MaskablePPO of sb3-contrib, and `info["action_mask"]`.

    `brim.envs.arc.adapters.masks` has the rules. The mask belongs to the action space: one entry for each flat action,
    or those of all parts of a MultiDiscrete space, one after the other; with masks as selections, one for each
    operation. `info["action_mask"]` is int8, which `sample(mask=...)` takes for flat actions.
    """

    def __init__(self, env: "gymnasium.Env[Any, Any]") -> None:
        """
        Raises:
            OptionError: This is no `ArcEnv`.
        """
        RecordConstructorArgs.__init__(self)
        super().__init__(env)
        self._mask = flat_mask if isinstance(env.action_space, spaces.Discrete) else parts_mask
        arc_env(env)

    def action_masks(self) -> NDArray[np.bool_]:
        """Return a bool for each action: False if it makes no sense now."""
        base = arc_env(self.env)
        return self._mask(base.states, base.config)[0]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, {**info, "action_mask": self.action_masks().astype(np.int8)}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        *outcome, info = self.env.step(action)
        return (*outcome, {**info, "action_mask": self.action_masks().astype(np.int8)})  # pyright: ignore[reportReturnType]


class EpisodeMetrics(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Add `info["episode_metrics"]` to the step that ends an episode.

    It has "return" (float), "length" (int), "best_similarity" and "final_similarity" (float), "solved" (bool: at the
    end), "steps_to_solve" (int: steps until the grid was right for the first time, -1 if it never was) and
    "was_truncated" (bool). The best similarity is over the beginning and all steps, of any pair.
    """

    def __init__(self, env: "gymnasium.Env[Any, Any]") -> None:
        """
        Raises:
            OptionError: This is no `ArcEnv`.
        """
        RecordConstructorArgs.__init__(self)
        super().__init__(env)
        arc_env(env)
        self._metrics = Metrics(1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        self._metrics.begin(np.zeros(1, np.intp), np.array([info["similarity"]]))
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._metrics.add(np.array([reward]), np.array([info["similarity"]]), np.ones(1, np.bool_))
        if terminated or truncated:
            found = self._metrics.result(np.array([truncated]))
            info = {**info, "episode_metrics": {name: values[0].item() for name, values in found.items()}}
        return observation, reward, terminated, truncated, info


def arc_env(env: "gymnasium.Env[Any, Any]") -> ArcEnv:
    """Return the `ArcEnv` inside of wrappers.

    Raises:
        OptionError: There is another environment inside.
    """
    base = env.unwrapped
    if not isinstance(base, ArcEnv):
        raise OptionError(f"this wrapper is for ArcEnv, got {type(base).__name__}; ArcVectorEnv has wrappers Vector...")
    return base


def channels_space(shape: tuple[int, int], channels: tuple[str, ...], pairs: int) -> "spaces.Box":
    """Return the space of what `stack_channels` returns for one environment."""
    return spaces.Box(0, PADDING, (count_channels(channels, pairs), *shape), np.uint8)


def one_hot_space(space: "spaces.Space[Any]") -> "spaces.Box":
    """Return the space of what `one_hot` makes of the elements of a space.

    Raises:
        OptionError: They are not grids of colours, or channels of them.
    """
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or space.high.max() != PADDING:
        raise OptionError(f"OneHot needs observations of uint8 from 0 to {PADDING}, got {space}")
    *stacked, rows, columns = space.shape
    return spaces.Box(0, 1, (VALUES * int(np.prod(stacked)), rows, columns), np.uint8)
