"""Options of training runs, checked before anything heavy is loaded.

    RunConfig       every run: output, optimizer, ranks, checkpoints, records, seed
    ModelConfig     every run of a causal language model: model, tokenizer, LoRA
    CausalConfig    those that train on rows of a data set: data, batching, attention
    SftConfig       supervised fine-tuning that follows a plan

Another trainer adds its own: `brim.train.online.config` extends `CausalConfig`, `brim.train.grpo.config` extends
`ModelConfig`, `brim.train.distill` uses `RunConfig`.
"""

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self, get_args

from brim.core.errors import OptionError
from brim.core.options import from_dict, one_of, resumed
from brim.data.rows.format import RowFormat
from brim.plan.config import BatchingConfig

Schedule = Literal["cosine", "linear", "constant"]
Attention = Literal["auto", "brim", "sdpa", "eager", "flex_attention", "flash_attention_2"]

PATHS = ("data", "model", "batchplan", "eval_data", "tokenizer")
"""Options for which two spellings of one place are equal."""

MAY_CHANGE = (
    "output",
    "save_every",
    "keep",
    "log_every",
    "eval_every",
    "num_workers",
    "tensorboard",
    "wandb",
    "record_samples",
    "fsdp",
)
"""Options that may change when a run is resumed: none of them reaches the weights."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Options of every training run, whatever it trains. Paths are kept as they were given."""

    output: str
    """Directory of checkpoints, records and the trained model."""
    max_steps: int | None = None
    """Upper limit of the optimizer steps."""
    learning_rate: float | None = None
    """Peak learning rate. The default depends on what is trained; see `base_learning_rate`."""
    schedule: Schedule = "cosine"
    warmup_steps: int | None = None
    """Steps of rising learning rate; 3% of all steps by default."""
    weight_decay: float = 0.0
    """Weight decay of matrices; vectors such as biases and norms do not decay."""
    clip_norm: float = 1.0
    """Upper limit of the norm of the gradient; 0 is no limit."""
    bf16: bool = False
    """Compute in bfloat16. Weights stay in float32."""
    fsdp: bool = False
    """Shard the model over the ranks."""
    seed: int = 42
    save_every: int | None = 500
    """Steps between checkpoints; None takes one at the end only."""
    keep: int = 2
    """Number of checkpoints that are kept."""
    log_every: int = 10
    """Steps between points of the curves."""
    tensorboard: bool = True
    wandb: str | None = None
    """Project of Weights & Biases that the curves are sent to, too."""
    record_samples: bool = False
    """Write which samples each step was trained on."""

    def __post_init__(self) -> None:
        one_of("schedule", self.schedule, get_args(Schedule))
        self._check_at_least_1("max_steps", "save_every", "keep", "log_every")
        self._check_positive("learning_rate")
        self._check_not_negative("warmup_steps", "weight_decay", "clip_norm")

    def _check_at_least_1(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise OptionError(f"{name} must be at least 1, got {value}")

    def _check_positive(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise OptionError(f"{name} must be above 0 and finite, got {value}")

    def _check_not_negative(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise OptionError(f"{name} must not be negative or infinite, got {value}")

    @property
    def base_learning_rate(self) -> float:
        """The learning rate behind the warmup."""
        return 2e-5 if self.learning_rate is None else self.learning_rate

    def to_dict(self) -> dict[str, Any]:
        """Return the options as JSON-like values; `from_dict` is the inverse."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Make options from JSON-like values.

        Raises:
            OptionError: A name is unknown or missing, or a value is of another type or out of range.
        """
        return from_dict(cls, values)

    def resumed(self, **given: Any) -> Self:
        """Return the options of a resumed run: these, with those of `given` that may change.

        Raises:
            MismatchError: An option was given that would change the run.
        """
        return resumed(self, given, may_change=MAY_CHANGE, paths=PATHS)


@dataclass(frozen=True, kw_only=True)
class ModelConfig(RunConfig):
    """Options of every run that trains a causal language model."""

    model: str = ""
    """`tiny`, a directory, or a name in the local Hugging Face cache."""
    tokenizer: str | None = None
    """The model's own by default; for a model that has none, the plan's; else `byte`."""
    lora_rank: int = 0
    """Rank of the LoRA adapters; 0 trains all weights."""
    lora_alpha: float | None = None
    """Scale of the LoRA adapters; twice the rank by default."""
    lora_dropout: float = 0.0
    lora_targets: tuple[str, ...] | None = None
    """Names of the layers with adapters; all linear layers but the head by default."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_positive("lora_alpha")
        self._check_not_negative("lora_rank", "lora_dropout")
        if self.lora_dropout >= 1:
            raise OptionError(f"lora_dropout must be below 1, got {self.lora_dropout}")
        if not self.lora_rank and (self.lora_alpha is not None or self.lora_dropout or self.lora_targets is not None):
            raise OptionError("lora_alpha, lora_dropout and lora_targets need lora_rank")
        if self.lora_rank and self.model == "tiny":
            raise OptionError(
                "LoRA needs a trained model below it: train tiny first, then give its directory (OUTPUT/model) as "
                "the model"
            )
        if self.fsdp and self.lora_rank:
            raise OptionError("fsdp shards full fine-tuning only; leave out fsdp or lora_rank")

    @property
    def base_learning_rate(self) -> float:
        """The learning rate behind the warmup: 2e-5 unless given, 2e-4 with LoRA, 1e-3 for the built-in model."""
        if self.learning_rate is not None:
            return self.learning_rate
        if self.lora_rank:
            return 2e-4
        return 1e-3 if self.model == "tiny" else 2e-5


@dataclass(frozen=True, kw_only=True)
class CausalConfig(ModelConfig):
    """Options of every run that trains a causal language model on rows of a data set, or on samples like them."""

    data: str = ""
    """Path of the data: JSONL, Parquet, or a Hugging Face data set on disk."""
    batching: BatchingConfig = field(default_factory=BatchingConfig)
    format: RowFormat = field(default_factory=RowFormat)
    tokens_per_step: int | None = None
    """Tokens (padding included) to accumulate over microbatches and ranks before the optimizer steps."""
    attention: Attention = "auto"
    num_workers: int = 0
    """Worker processes that make batches; 0 makes them in a thread."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("attention", self.attention, get_args(Attention))
        self._check_at_least_1("tokens_per_step")
        self._check_not_negative("num_workers")

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        batching = values.get("batching")
        read = {} if batching is None else {"batching": BatchingConfig.from_dict(batching)}
        return from_dict(cls, {**values, **read})


@dataclass(frozen=True, kw_only=True)
class SftConfig(CausalConfig):
    """Options of supervised fine-tuning. `model` and `data` are needed unless `train_sft` is given objects instead."""

    batchplan: str | None = None
    """A plan directory. Without one, a plan is made from `batching`."""
    epochs: int | None = None
    """Times through the data; those of the plan, or 1, by default."""
    eval_data: str | None = None
    """Path of the data to evaluate on."""
    eval_split: float = 0.0
    """Share of the data that is held out for evaluation."""
    eval_every: int | None = None
    """Steps between evaluations; at the end of every epoch by default."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_at_least_1("epochs", "eval_every")
        self._check_not_negative("eval_split")
        if self.eval_split >= 1:
            raise OptionError(f"eval_split must be below 1, got {self.eval_split}")
        if self.eval_data is not None and self.eval_split:
            raise OptionError("give eval_data or eval_split, not both")
        if self.batchplan is not None and self.eval_split:
            raise OptionError(
                "the plan in batchplan covers all samples, so none can be held out: give eval_data, or no batchplan"
            )
        if self.eval_every is not None and self.eval_data is None and not self.eval_split:
            raise OptionError("eval_every needs something to evaluate on: give eval_data or eval_split")
        if (
            self.batchplan is None
            and self.tokens_per_step is not None
            and self.batching.microbatches_per_step is not None
        ):
            raise OptionError("give tokens_per_step or microbatches_per_step, not both")
