"""The options of `brim train distill`, checked before anything heavy is loaded.

`brim.train.distill.yaml_files` reads them from YAML.
"""

from dataclasses import asdict, dataclass, field, replace
from typing import Any, get_args

from brim.core.errors import OptionError
from brim.core.options import check_counts, check_unchanged, one_of
from brim.envs.darkroom.histories import HistoryConfig
from brim.envs.darkroom.ppo import Ppo
from brim.envs.darkroom.q_learning import QLearning
from brim.train.config import Schedule
from brim.train.distill.samples import CutConfig

ALGORITHMS: dict[str, type[QLearning] | type[Ppo]] = {"q_learning": QLearning, "ppo": Ppo}
RECORDING = ("episodes", "keep_every", "repeats", "seed")
"""Options of the histories that files have in the section of the algorithm."""
MAY_CHANGE = ("evaluation", "training.seeds", "training.save_every", "training.log_every")
"""Options that may change when a run is resumed: none of them reaches the weights."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Size of the model."""

    width: int = 64
    heads: int = 4
    encoder_layers: int = 2
    decoder_layers: int = 3
    latents: int = 8
    """Number of tokens that a stage is compressed to."""

    def __post_init__(self) -> None:
        check_counts(**asdict(self))
        if self.width % self.heads:
            raise OptionError(f"width must be a multiple of heads, got {self.width} and {self.heads}")


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Options of the training of the models."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """A model is trained for each of these seeds."""
    steps: int = 1000
    token_budget: int = 3072
    """Steps of histories in a batch, padding included."""
    learning_rate: float = 0.003
    schedule: Schedule = "cosine"
    warmup: float = 0.05
    """Share of the steps in which the learning rate rises."""
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    """Upper limit of the norm of the gradient; 0 is no limit."""
    save_every: int = 250
    """Steps between checkpoints; one is always taken at the end."""
    log_every: int = 20
    threads: int = 1
    """Threads of torch, whatever the machine has: the last bits of the weights depend on it.

    Small models gain nothing from more.
    """

    def __post_init__(self) -> None:
        one_of("schedule", self.schedule, get_args(Schedule))
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            raise OptionError(f"seeds must be different numbers from 0 on, and at least one, got {list(self.seeds)}")
        check_counts(
            steps=self.steps,
            token_budget=self.token_budget,
            save_every=self.save_every,
            log_every=self.log_every,
            threads=self.threads,
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
    """Options of the evaluation of a model on held-out goals."""

    episodes: int = 20
    """Episodes that the model plays in context, one after the other."""
    lanes: int = 8
    """Lanes that play each goal in parallel."""
    temperature: float = 0.5
    """Sampling temperature of the actions: 1 has all the randomness of the source; 0 takes the likeliest action, which
    may loop.
    """

    def __post_init__(self) -> None:
        check_counts(episodes=self.episodes, lanes=self.lanes)
        if self.episodes < 3:
            raise OptionError(
                f"episodes must be at least 3, so that there are first and last ones, got {self.episodes}"
            )
        if not 0 <= self.temperature < float("inf"):
            raise OptionError(f"temperature must not be negative or infinite, got {self.temperature}")


@dataclass(frozen=True, kw_only=True)
class DistillConfig:
    """Options of a distillation: what is distilled, into which model, and how."""

    histories: HistoryConfig = field(default_factory=HistoryConfig)
    data: CutConfig = field(default_factory=CutConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    def __post_init__(self) -> None:
        needed = self.data.depth * self.data.window + 1
        if self.histories.steps < needed:
            raise OptionError(
                f"a history has {self.histories.steps} steps ({self.histories.episodes} episodes of "
                f"{self.histories.room.horizon}), and {self.data.depth} stages of {self.data.window} steps with a "
                f"context need {needed}; raise algorithm.episodes or env.horizon, or lower data.window or data.depth"
            )
        longest = min((self.data.depth + 1) * self.data.window, self.histories.steps)
        if self.training.token_budget < longest:
            raise OptionError(
                f"training.token_budget must be at least {longest}, the steps of the longest sample "
                f"({self.data.depth} stages of {self.data.window} and a context), got {self.training.token_budget}; "
                "raise it, or lower data.window or data.depth"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the options as the YAML files have them; `brim.train.distill.yaml_files.config_from` is the
        inverse.
        """
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
        """Check the options of a resumed run. Only what does not reach the weights may change: seeds, how often it
        writes, evaluation.

        Raises:
            MismatchError: Something else differs.
        """
        check_unchanged(before.to_dict(), self.to_dict(), may_change=MAY_CHANGE)
