"""The configuration of ARC environments: frozen, hashable, and therefore static under `jax.jit`."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Literal, get_args

from brim.core.errors import OptionError
from brim.core.options import check_counts, one_of
from brim.envs.arc.operations import OPERATIONS, ArcOperation

LARGEST = 30
Split = Literal["train", "eval", "all"]
"""Part of a published data set."""
"""Rows and columns of the largest grid of ARC."""

EpisodeMode = Literal["train", "test"]
AutoReset = Literal["off", "next_step", "same_step"]
Engine = Literal["auto", "cpu", "jax"]
SelectionFormat = Literal["point", "bbox", "mask"]


@dataclass(frozen=True, kw_only=True)
class EnvironmentConfig:
    """How episodes begin and end, and what computes them."""

    max_episode_steps: int = 100
    """Steps after which an episode is truncated."""
    episode_mode: EpisodeMode = "train"
    """Which pairs episodes begin with: demonstration pairs ("train") or test pairs ("test")."""
    end_when_solved: bool = False
    """Whether an episode also ends, with the success bonus, when the grid is right but not yet submitted."""
    auto_reset: AutoReset = "off"
    """When a finished environment begins its next episode: never ("off"), with the next step, whose action is ignored
    ("next_step"), or within the step that ended it, with the last observation in `infos["final_obs"]` ("same_step")."""
    engine: Engine = "auto"
    """The engine that computes the steps: the compiled kernel ("cpu"), pure JAX ("jax"), or the kernel where it can be
    used and JAX elsewhere ("auto"). The results are the same to the bit."""

    def __post_init__(self) -> None:
        check_counts(max_episode_steps=self.max_episode_steps)
        one_of("episode_mode", self.episode_mode, get_args(EpisodeMode))
        one_of("auto_reset", self.auto_reset, get_args(AutoReset))
        one_of("engine", self.engine, get_args(Engine))
        if type(self.end_when_solved) is not bool:
            raise OptionError(f"end_when_solved must be true or false, got {self.end_when_solved!r}")


@dataclass(frozen=True, kw_only=True)
class UnifiedDatasetConfig:
    """The size of the arrays that hold grids. Smaller grids are padded with `PADDING`; larger ones are refused."""

    max_grid_height: int = LARGEST
    max_grid_width: int = LARGEST

    def __post_init__(self) -> None:
        check_counts(max_grid_height=self.max_grid_height, max_grid_width=self.max_grid_width)
        for name in ("max_grid_height", "max_grid_width"):
            if getattr(self, name) > LARGEST:
                raise OptionError(f"{name} must be at most {LARGEST}, got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class UnifiedActionConfig:
    """The form of actions, and which operations are allowed."""

    selection_format: SelectionFormat = "point"
    """How an action selects cells: `PointAction`, `BboxAction` or `MaskAction`."""
    allowed_operations: tuple[int, ...] | None = None
    """Numbers of the allowed operations; None allows all. Any other operation changes nothing and is invalid."""

    def __post_init__(self) -> None:
        one_of("selection_format", self.selection_format, get_args(SelectionFormat))
        if self.allowed_operations is not None:
            object.__setattr__(self, "allowed_operations", _operations(self.allowed_operations))

    @property
    def allowed(self) -> int:
        """The allowed operations as bits: bit n for operation n."""
        numbers = range(OPERATIONS) if self.allowed_operations is None else self.allowed_operations
        return sum(1 << number for number in numbers)


def _operations(given: Iterable[object]) -> tuple[int, ...]:
    if not isinstance(given, Iterable) or isinstance(given, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionError(f"allowed_operations must be a list of numbers, got {given!r}")
    numbers: set[int] = set()
    for number in given:
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < OPERATIONS:
            raise OptionError(f"allowed_operations must be numbers from 0 to {OPERATIONS - 1}, got {number!r}")
        numbers.add(int(number))
    if not numbers:
        raise OptionError("allowed_operations is empty: an environment without operations cannot be played")
    return tuple(sorted(numbers))


@dataclass(frozen=True, kw_only=True)
class ArcRewardConfig:
    """The terms of the reward, which are added; penalties are negative. A finished environment gets 0."""

    similarity_weight: float = 1.0
    """Times the change of the similarity, on demonstration pairs. A test pair counts as similarity 0, so that rewards
    do not tell its answer; going there and back earns nothing."""
    step_penalty: float = -0.01
    success_bonus: float = 10.0
    """For an episode that ends solved."""
    unsolved_submission_penalty: float = 0.0
    invalid_penalty: float = 0.0
    """For an action that is not allowed, or whose selection is out of range."""

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
                raise OptionError(f"{option.name} must be a finite number, got {value!r}")
            object.__setattr__(self, option.name, float(value))


@dataclass(frozen=True, kw_only=True)
class JaxArcConfig:
    """Everything that is the same for all environments of a batch."""

    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    dataset: UnifiedDatasetConfig = field(default_factory=UnifiedDatasetConfig)
    action: UnifiedActionConfig = field(default_factory=UnifiedActionConfig)
    reward: ArcRewardConfig = field(default_factory=ArcRewardConfig)

    def __post_init__(self) -> None:
        kinds = {
            "environment": EnvironmentConfig,
            "dataset": UnifiedDatasetConfig,
            "action": UnifiedActionConfig,
            "reward": ArcRewardConfig,
        }
        for name, kind in kinds.items():
            if not isinstance(getattr(self, name), kind):
                raise OptionError(f"{name} must be {kind.__name__}(...), got {getattr(self, name)!r}")

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the arrays that hold grids."""
        return self.dataset.max_grid_height, self.dataset.max_grid_width


RAW = tuple(ArcOperation(number) for number in [*range(10), ArcOperation.RESIZE, ArcOperation.SUBMIT])
"""The operations of a small action space: fill, resize and submit."""
EDITING = tuple(range(ArcOperation.SUBMIT + 1))
"""The operations 0 to 34: everything but changing the pair."""
