"""The options of `brim train distill`, checked before anything heavy is loaded. `brim.train.distill.yaml_files` reads them from YAML."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any, get_args

from brim.core.errors import MismatchError, OptionError
from brim.core.options import check_counts, one_of
from brim.envs.darkroom.histories import HistoryConfig
from brim.envs.darkroom.ppo import Ppo
from brim.envs.darkroom.q_learning import QLearning
from brim.train.config import Schedule
from brim.train.distill.samples import CutConfig

ALGORITHMS: dict[str, type[QLearning] | type[Ppo]] = {"q_learning": QLearning, "ppo": Ppo}
RECORDING = ("episodes", "keep_every", "repeats", "seed")
"""Options of the histories that stand with the algorithm."""
MAY_CHANGE = {("training", "seeds"), ("training", "save_every"), ("training", "log_every")}
"""What a resumed run may have otherwise, beside its evaluation: nothing of it reaches the weights."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """How large a model is."""

    width: int = 64
    heads: int = 4
    encoder_layers: int = 2
    decoder_layers: int = 3
    latents: int = 8
    """Tokens that a stage is compressed to."""

    def __post_init__(self) -> None:
        check_counts(**asdict(self))
        if self.width % self.heads:
            raise OptionError(f"width must be a multiple of heads, got {self.width} and {self.heads}")


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How a model is trained."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """One model for each."""
    steps: int = 1000
    token_budget: int = 3072
    """Steps of histories in a batch, padding included."""
    learning_rate: float = 0.003
    schedule: Schedule = "cosine"
    warmup: float = 0.05
    """The share of the steps in which the learning rate rises."""
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    """The largest norm of the gradient; 0 for no limit."""
    save_every: int = 250
    """Steps between checkpoints; one is always taken at the end."""
    log_every: int = 20
    threads: int = 1
    """That sums are split over, whatever the machine has: weights depend on it in their last bits. Small models gain nothing from more."""

    def __post_init__(self) -> None:
        one_of("schedule", self.schedule, get_args(Schedule))
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            raise OptionError(f"seeds must be different numbers from 0 on, and at least one, got {list(self.seeds)}")
        check_counts(
            steps=self.steps, token_budget=self.token_budget, save_every=self.save_every, log_every=self.log_every, threads=self.threads
        )
        if not 0 < self.learning_rate < float("inf"):
            raise OptionError(f"learning_rate must be above 0 and finite, got {self.learning_rate}")
        if not 0 <= self.warmup <= 1:
            raise OptionError(f"warmup must be between 0 and 1, got {self.warmup}")
        for name in ("weight_decay", "clip_norm"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise OptionError(f"{name} must not be negative or infinite, got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """How a model is evaluated on goals that were held out."""

    episodes: int = 20
    """That it plays in context, one after the other."""
    lanes: int = 8
    """For each goal."""
    temperature: float = 0.5
    """Of the actions: 1 acts with all the randomness of the source, and 0 takes the likeliest action, which may search in circles."""

    def __post_init__(self) -> None:
        check_counts(episodes=self.episodes, lanes=self.lanes)
        if self.episodes < 3:
            raise OptionError(f"episodes must be at least 3, so that there are first and last ones, got {self.episodes}")
        if not 0 <= self.temperature < float("inf"):
            raise OptionError(f"temperature must not be negative or infinite, got {self.temperature}")


@dataclass(frozen=True, kw_only=True)
class DistillConfig:
    """What is distilled, into what, and how."""

    histories: HistoryConfig = field(default_factory=HistoryConfig)
    data: CutConfig = field(default_factory=CutConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    def __post_init__(self) -> None:
        needed = self.data.depth * self.data.window + 1
        if self.histories.steps < needed:
            raise OptionError(
                f"a history has {self.histories.steps} steps ({self.histories.episodes} episodes of {self.histories.room.horizon}), and "
                f"{self.data.depth} stages of {self.data.window} steps with a context need {needed}; "
                "raise algorithm.episodes or env.horizon, or lower data.window or data.depth"
            )
        longest = min((self.data.depth + 1) * self.data.window, self.histories.steps)
        if self.training.token_budget < longest:
            raise OptionError(
                f"training.token_budget must be at least {longest}, the steps of the longest sample ({self.data.depth} stages of "
                f"{self.data.window} and a context), got {self.training.token_budget}; raise it, or lower data.window or data.depth"
            )

    def to_dict(self) -> dict[str, Any]:
        """As the YAML files have it; `brim.train.distill.yaml_files.config_from` is the inverse."""
        histories, algorithm = self.histories, self.histories.algorithm
        name = next(name for name, kind in ALGORITHMS.items() if isinstance(algorithm, kind))
        recorded = {key: getattr(histories, key) for key in RECORDING}
        return {
            "algorithm": {"name": name, **asdict(algorithm), **recorded},
            "env": {"name": "darkroom", **asdict(histories.room), "held_out": histories.held_out},
            "data": asdict(self.data),
            "model": asdict(self.model),
            "training": {**asdict(self.training), "seeds": list(self.training.seeds)},
            "evaluation": asdict(self.evaluation),
        }

    def with_training(self, **changes: Any) -> "DistillConfig":
        return replace(self, training=replace(self.training, **changes))

    def check_resumed(self, before: "DistillConfig") -> None:
        """Only what does not reach the weights may change in a run that goes on: which seeds, how often it writes, and the evaluation.

        Raises:
            MismatchError: Something else differs.
        """
        old, new = before.to_dict(), self.to_dict()
        differing = [
            f"{section}.{key} ({old[section].get(key)} -> {new[section].get(key)})"
            for section in old
            if section != "evaluation"
            for key in sorted(old[section].keys() | new[section].keys())
            if old[section].get(key) != new[section].get(key) and (section, key) not in MAY_CHANGE
        ]
        if differing:
            raise MismatchError(
                f"a resumed run must go on as it began, but these differ: {', '.join(differing)}; leave them out, or start a new run"
            )
