"""The options of a run that plays: which games, how many, what is learned from them, and how old it may be."""

import math
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, get_args

from brim.core.errors import MismatchError, OptionError, did_you_mean
from brim.core.options import check_counts, one_of
from brim.envs.episode import DIFFICULTIES
from brim.envs.puzzle.config import GymConfig, RewardConfig
from brim.stream.curriculum import CurriculumConfig
from brim.stream.replay.config import ReplayBufferConfig
from brim.stream.window import WindowConfig
from brim.train.config import SftConfig

LearnFrom = Literal["success", "all"]
Priority = Literal["none", "reward", "difficulty"]

MAY_CHANGE = ("host", "port", "transport", "lanes", "connect_timeout", "read_timeout", "episode_timeout", "max_retries", "retry_delay")
"""Of the gym, when a run is resumed: where the server is, and how patient we are with it."""


@dataclass(frozen=True, kw_only=True)
class OnlineConfig:
    """What to train is in `sft`; its `data`, if any, is in the memory from the start."""

    sft: SftConfig
    gym: GymConfig = field(default_factory=GymConfig)
    rounds: int = 10
    """Play, then train on a window: so many times."""
    episodes_per_round: int = 64
    guided: float = 0.5
    """The share of episodes that are played by the server's hints, to be learned from. The model plays the others; they alone count as
    its success."""
    learn_from: LearnFrom = "success"
    """Which episodes go into the memory: those that were solved, or all. Refused actions never do."""
    temperature: float = 1.0
    """Of the model's choices; 0 takes the likeliest."""
    buffer_size: int = 100_000
    """How many actions the memory holds; the oldest are forgotten first."""
    window_microbatches: int = 32
    """Microbatches of a window, at most."""
    passes: int = 4
    """Times through a window before the next round of play."""
    min_samples: int = 64
    """Without so many to draw from, a round is played and not trained on."""
    overlap_fraction: float = 0.75
    """How much of a window may have been in the one before."""
    max_staleness: int | None = 1000
    """No action of the model is trained on that is more than so many optimizer steps old; None sets no limit."""
    priority: Priority = "none"
    """What makes actions likelier to be trained on: nothing, their reward (their priority is 1 + it), or a difficulty near the target."""

    def __post_init__(self) -> None:
        one_of("learn_from", self.learn_from, get_args(LearnFrom))
        one_of("priority", self.priority, get_args(Priority))
        counts = ("rounds", "episodes_per_round", "buffer_size", "window_microbatches", "passes", "min_samples", "max_staleness")
        check_counts(**{name: getattr(self, name) for name in counts})
        if not 0 <= self.guided <= 1:
            raise OptionError(f"guided must lie between 0 and 1, got {self.guided}")
        if not 0 <= self.temperature < math.inf:
            raise OptionError(f"temperature must not be negative or infinite, got {self.temperature}")
        unused = {"batchplan": None, "epochs": None, "eval_data": None, "eval_split": 0.0, "eval_every": None, "fsdp": False}
        for name, default in unused.items():
            if getattr(self.sft, name) != default:
                raise OptionError(f"{name} has no meaning for a run that plays: leave it out, or leave out --online")
        if self.sft.format.group_field is not None:
            raise OptionError("group_field has no meaning for a run that plays: what is remembered has no groups")

    @property
    def replay(self) -> ReplayBufferConfig:
        return ReplayBufferConfig(max_size=self.buffer_size, seed=self.sft.seed, duplicates="keep")

    @property
    def curriculum(self) -> CurriculumConfig:
        """From the easiest level that is played to the hardest."""
        played = [DIFFICULTIES[level] for level in self.gym.levels]
        return CurriculumConfig(lowest=min(played), highest=max(played))

    def window(self, microbatches_per_step: int) -> WindowConfig:
        return WindowConfig(
            window_microbatches=self.window_microbatches,
            min_samples=self.min_samples,
            overlap_fraction=self.overlap_fraction,
            batching=replace(self.sft.batching, microbatches_per_step=microbatches_per_step),
            seed=self.sft.seed,
            passes=self.passes,
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON-like values; `from_dict` is the inverse."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "OnlineConfig":
        known = {field.name for field in fields(cls)}
        for name in values:
            if name not in known:
                raise OptionError(f"unknown option {name!r}.{did_you_mean(name, known)}")
        gym = dict(values["gym"])
        gym |= {"rewards": RewardConfig(**gym["rewards"]), "difficulty_range": tuple(gym["difficulty_range"])}
        parts: dict[str, Any] = {"sft": SftConfig.from_dict(values["sft"]), "gym": GymConfig(**gym)}
        return cls(**{**values, **parts})

    def resumed(self, sft: SftConfig, gym: dict[str, Any], given: dict[str, Any]) -> "OnlineConfig":
        """The options of a run that goes on: `sft` is resumed already, of the others only the rounds and the server may be others.

        Raises:
            MismatchError: One was given that would change the run.
        """
        before = {**{name: getattr(self, name) for name in given}, **{name: getattr(self.gym, name) for name in gym}}
        after, free = {**given, **gym}, (*MAY_CHANGE, "rounds")
        changed = [f"{name} ({before[name]} -> {after[name]})" for name in after if name not in free and before[name] != after[name]]
        if changed:
            listed = ", ".join(changed)
            raise MismatchError(f"a resumed run must go on as it began, but these differ: {listed}; leave them out, or start a new run")
        return replace(self, sft=sft, gym=replace(self.gym, **gym), **given)
