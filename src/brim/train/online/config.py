"""The options of a run that plays: which games, how many, what is learned from them, and how old it may be."""

import math
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, Self, get_args

from brim.core.errors import OptionError
from brim.core.options import check_counts, check_unchanged, from_dict, one_of
from brim.envs.episode import DIFFICULTIES
from brim.envs.puzzle.config import GymConfig
from brim.stream.curriculum import CurriculumConfig
from brim.stream.replay.config import ReplayBufferConfig
from brim.stream.window import WindowConfig
from brim.train.config import CausalConfig, SftConfig

LearnFrom = Literal["success", "all"]
Priority = Literal["none", "reward", "difficulty"]

MAY_CHANGE = (
    "host",
    "port",
    "transport",
    "lanes",
    "connect_timeout",
    "read_timeout",
    "episode_timeout",
    "max_retries",
    "retry_delay",
)
"""Options of the gym that may change when a run is resumed: where the server is, and how long to wait for it."""

UNUSED = {"batchplan": None, "epochs": None, "eval_data": None, "eval_split": 0.0, "eval_every": None}
"""Options of plain fine-tuning that files of a run that plays hold too, always with these values."""


@dataclass(frozen=True, kw_only=True)
class OnlineConfig(CausalConfig):
    """Options of a run that plays. The samples of `data`, if it is given, are in the replay buffer from the start."""

    gym: GymConfig = field(default_factory=GymConfig)
    rounds: int = 10
    """Number of rounds. A round plays episodes, then trains on a window of the replay buffer."""
    episodes_per_round: int = 64
    guided: float = 0.5
    """Share of the episodes that follow the server's hints, to be learned from. The model plays the others, and only
    they count as its success.
    """
    learn_from: LearnFrom = "success"
    """Which episodes go into the replay buffer: the solved ones, or all. Refused actions never do."""
    temperature: float = 1.0
    """Sampling temperature of the model's actions; 0 takes the likeliest."""
    buffer_size: int = 100_000
    """Capacity of the replay buffer, in actions; the oldest are evicted first."""
    window_microbatches: int = 32
    """Upper limit of the microbatches in a window."""
    passes: int = 4
    """Epochs over a window before the next round."""
    min_samples: int = 64
    """With fewer actions to draw from, a round is played and not trained on."""
    overlap_fraction: float = 0.75
    """Upper limit of the share of a window that was in the window before."""
    max_staleness: int | None = 1000
    """Upper limit of the age of the model's actions, in optimizer steps; None is no limit."""
    priority: Priority = "none"
    """The priority of actions when they are drawn: none, their reward (the priority is 1 + reward), or the closeness of
    their difficulty to the target.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("learn_from", self.learn_from, get_args(LearnFrom))
        one_of("priority", self.priority, get_args(Priority))
        counts = (
            "rounds",
            "episodes_per_round",
            "buffer_size",
            "window_microbatches",
            "passes",
            "min_samples",
            "max_staleness",
        )
        check_counts(**{name: getattr(self, name) for name in counts})
        if not 0 <= self.guided <= 1:
            raise OptionError(f"guided must lie between 0 and 1, got {self.guided}")
        if not 0 <= self.temperature < math.inf:
            raise OptionError(f"temperature must not be negative or infinite, got {self.temperature}")
        if self.fsdp:
            raise OptionError(
                "fsdp cannot be used in a run that plays: the main rank plays with the whole model; leave it out"
            )
        if self.format.group_field is not None:
            raise OptionError(
                "group_field has no effect in a run that plays: the replay buffer has no groups; leave it out"
            )
        if self.tokens_per_step is not None and self.batching.microbatches_per_step is not None:
            raise OptionError("give tokens_per_step or microbatches_per_step, not both")

    @property
    def replay(self) -> ReplayBufferConfig:
        return ReplayBufferConfig(max_size=self.buffer_size, seed=self.seed, duplicates="keep")

    @property
    def curriculum(self) -> CurriculumConfig:
        """The curriculum from the easiest level that is played to the hardest."""
        played = [DIFFICULTIES[level] for level in self.gym.levels]
        return CurriculumConfig(lowest=min(played), highest=max(played))

    def window(self, microbatches_per_step: int) -> WindowConfig:
        return WindowConfig(
            window_microbatches=self.window_microbatches,
            min_samples=self.min_samples,
            overlap_fraction=self.overlap_fraction,
            batching=replace(self.batching, microbatches_per_step=microbatches_per_step),
            seed=self.seed,
            passes=self.passes,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the options as files have them: those of training under "sft", beside those of playing.

        `from_dict` is the inverse.
        """
        values = asdict(self)
        sft = {name: values.pop(name) for name in _TRAINING}
        return {"sft": {**sft, **UNUSED}, **values}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Make options from values as `to_dict` returns them.

        Raises:
            OptionError: A name is unknown, a value is of another type or out of range, or an option has no meaning
                here.
        """
        sft = SftConfig.from_dict(values["sft"])
        for name, default in UNUSED.items():
            if getattr(sft, name) != default:
                raise OptionError(f"{name} has no effect in a run that plays; leave it out")
        training = {name: getattr(sft, name) for name in _TRAINING}
        playing = {name: value for name, value in values.items() if name != "sft"}
        return from_dict(cls, {**training, **playing})

    def resumed_online(self, training: dict[str, Any], gym: dict[str, Any], playing: dict[str, Any]) -> Self:
        """Return the options of a resumed run. The number of rounds, the server, and what `resumed` allows may change.

        Raises:
            MismatchError: An option was given that would change the run.
        """
        before = {**{name: getattr(self, name) for name in playing}, **{name: getattr(self.gym, name) for name in gym}}
        check_unchanged(before, {**playing, **gym}, may_change=(*MAY_CHANGE, "rounds"))
        return replace(self.resumed(**training), gym=replace(self.gym, **gym), **playing)


_TRAINING = tuple(option.name for option in fields(CausalConfig))
