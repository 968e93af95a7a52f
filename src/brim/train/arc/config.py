"""Options of an ARC training run, and the environments that they describe. Nothing here imports JAX."""

import math
from dataclasses import dataclass
from typing import Any, Self

from brim.core.errors import OptionError
from brim.core.options import check_counts, from_dict, one_of, resumed, to_dict
from brim.envs.arc.config import (
    LARGEST,
    ArcRewardConfig,
    EnvironmentConfig,
    EpisodeMode,
    JaxArcConfig,
    UnifiedActionConfig,
    UnifiedDatasetConfig,
)
from brim.envs.arc.operations import ArcOperation
from brim.envs.arc.tasks.bank import MOST_TASKS
from brim.envs.arc.tasks.family import FAMILY, SMALLEST, Kind, family_tasks
from brim.envs.arc.tasks.task import JaxArcTask

MAY_CHANGE = ("save_every", "keep", "eval_every")
"""Options that may change when a run is resumed: none of them reaches the weights."""
LARGEST_SEED = 2**32 - 1
"""Keys of JAX are made from 32 bits."""
REWARD = ArcRewardConfig(similarity_weight=0.0, step_penalty=0.0, success_bonus=1.0)
"""The reward of the environments: 1 for a solved task. Training adds a reward for similarity; see `ppo`."""
FLOOD_FILLS = tuple(range(ArcOperation.FLOOD_FILL_0, ArcOperation.FLOOD_FILL_9 + 1))
OPERATIONS: dict[Kind, tuple[int, ...]] = {
    "recolour": FLOOD_FILLS,
    "fill": FLOOD_FILLS,
    "move": tuple(range(ArcOperation.MOVE_UP, ArcOperation.MOVE_RIGHT + 1)),
    "flip": (ArcOperation.FLIP_HORIZONTAL, ArcOperation.FLIP_VERTICAL),
}
"""The operations that the tasks of each kind need. An agent may use those of all of its kinds on any task."""


@dataclass(frozen=True, kw_only=True)
class ArcPpoConfig:
    """Options of training an agent on a family of generated ARC tasks.

    Raises:
        OptionError: A value is out of range, or two do not fit together.
    """

    kinds: tuple[Kind, ...] = FAMILY
    """Kinds of tasks: some of "recolour", "fill", "move" and "flip"."""
    size: int = SMALLEST
    """Rows and columns of all grids."""
    tasks: int = 4096
    """Number of tasks for training."""
    held_out: int = 400
    """Number of tasks for evaluation. Their rules are not among those of training."""
    max_episode_steps: int = 6
    """Steps after which an episode is truncated."""
    envs: int = 2048
    """Environments that play at the same time."""
    steps: int = 6
    """Steps of each environment in an update."""
    updates: int = 80
    """Updates of the whole run."""
    epochs: int = 2
    """Passes over the steps of an update."""
    minibatches: int = 8
    """Optimizer steps of a pass."""
    learning_rate: float = 1.5e-3
    """Learning rate of the first update. It decreases linearly, and would be 0 after the last."""
    discount: float = 0.95
    """Discount factor gamma of later rewards."""
    trace: float = 0.9
    """Lambda of generalized advantage estimation (Schulman et al. 2016)."""
    clip: float = 0.2
    """Clipping of the probability ratio (Schulman et al. 2017)."""
    entropy: float = 0.004
    """Weight of the entropy bonus."""
    value_weight: float = 0.5
    """Weight of the value loss."""
    max_norm: float = 0.5
    """Upper limit of the norm of the gradient."""
    width: int = 32
    """Channels of the network."""
    seed: int = 0
    save_every: int = 25
    """Updates between checkpoints. There is one at the end in any case."""
    keep: int = 2
    """Number of checkpoints that are kept."""
    eval_every: int = 10
    """Updates between evaluations on the held-out tasks. There is one at the end in any case."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "kinds", _kinds(self.kinds))
        check_counts(
            size=self.size,
            tasks=self.tasks,
            held_out=self.held_out,
            max_episode_steps=self.max_episode_steps,
            envs=self.envs,
            steps=self.steps,
            updates=self.updates,
            epochs=self.epochs,
            minibatches=self.minibatches,
            width=self.width,
            save_every=self.save_every,
            keep=self.keep,
            eval_every=self.eval_every,
        )
        _check_between("size", self.size, SMALLEST, LARGEST)
        for name in ("tasks", "held_out"):
            _check_between(name, getattr(self, name), 1, MOST_TASKS)
        for name in ("discount", "trace", "clip"):
            _check_between(name, getattr(self, name), 0, 1)
        for name in ("entropy", "value_weight"):
            _check_between(name, getattr(self, name), 0, math.inf)
        for name in ("learning_rate", "max_norm"):
            if not 0 < getattr(self, name) < math.inf:
                raise OptionError(f"{name} must be above 0 and finite, got {getattr(self, name)}")
        _check_between("seed", self.seed, 0, LARGEST_SEED)
        if self.envs * self.steps % self.minibatches:
            raise OptionError(
                f"minibatches must divide the {self.envs * self.steps} steps of an update (envs times steps), got "
                f"{self.minibatches}"
            )

    def environment(self, mode: EpisodeMode = "train") -> JaxArcConfig:
        """Return the configuration of the environments: of training, which begin again at once, or of evaluation on
        test pairs ("test"), which play one episode.
        """
        return JaxArcConfig(
            environment=EnvironmentConfig(
                max_episode_steps=self.max_episode_steps,
                episode_mode=mode,
                end_when_solved=True,
                auto_reset="same_step" if mode == "train" else "off",
            ),
            dataset=UnifiedDatasetConfig(max_grid_height=self.size, max_grid_width=self.size),
            action=UnifiedActionConfig(selection_format="bbox", allowed_operations=self.operations),
            reward=REWARD,
        )

    @property
    def operations(self) -> tuple[int, ...]:
        """The numbers of the allowed operations, in ascending order."""
        return tuple(sorted({int(number) for kind in self.kinds for number in OPERATIONS[kind]}))

    def rate(self, update: int) -> float:
        """Return the learning rate of update 0, 1, ... `updates` - 1."""
        return self.learning_rate * (1 - update / self.updates)

    def to_dict(self) -> dict[str, Any]:
        """Return the options as JSON-like values; `from_dict` is the inverse."""
        return to_dict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Make options from JSON-like values.

        Raises:
            OptionError: A name is unknown, or a value is of another type or out of range.
        """
        return from_dict(cls, values, what="an ARC run")

    def resumed(self, **given: Any) -> Self:
        """Return the options of a resumed run: these, with those of `given` that may change.

        Raises:
            MismatchError: An option was given that would change the run.
        """
        return resumed(self, given, may_change=MAY_CHANGE)


def generate_tasks(config: ArcPpoConfig, *, held_out: bool = False, count: int | None = None) -> list[JaxArcTask]:
    """Generate the tasks of training, or those of evaluation; `count` replaces their number."""
    many = (config.held_out if held_out else config.tasks) if count is None else count
    return family_tasks(many, kinds=config.kinds, size=config.size, held_out=held_out, seed=config.seed)


def _kinds(given: Any) -> tuple[Kind, ...]:
    if isinstance(given, str) or not given:
        raise OptionError(f"kinds must name at least one of {', '.join(FAMILY)}, got {given!r}")
    for kind in given:
        one_of("kinds", kind, FAMILY)
    if len(set(given)) < len(given):
        raise OptionError(f"kinds must name a kind only once, got {', '.join(given)}")
    return tuple(given)


def _check_between(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high or value == math.inf:
        upper = "" if high == math.inf else f" and at most {high}"
        raise OptionError(f"{name} must be at least {low}{upper}, got {value}")
