"""The options of a supervised fine-tuning run, checked before anything heavy is loaded."""

import math
import os
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, get_args

from brim.core.errors import MismatchError, OptionError, did_you_mean
from brim.core.options import one_of
from brim.data.rows.format import RowFormat
from brim.plan.config import BatchingConfig

Schedule = Literal["cosine", "linear", "constant"]
Attention = Literal["auto", "brim", "sdpa", "eager", "flex_attention", "flash_attention_2"]

PATHS = ("data", "model", "batchplan", "eval_data", "tokenizer")
"""Where two ways to write one place are the same."""

MAY_CHANGE = ("output", "save_every", "keep", "log_every", "eval_every", "num_workers", "tensorboard", "record_samples", "fsdp")
"""What a resumed run may have otherwise: nothing of it reaches the weights."""


@dataclass(frozen=True, kw_only=True)
class SftConfig:
    """What to train, on what, and how. Paths are kept as they were given."""

    model: str
    """`tiny`, a directory, or a name in the local Hugging Face cache."""
    data: str
    output: str
    tokenizer: str | None = None
    """By default the model's own; of a model that has none, the plan's; else `byte`."""
    batchplan: str | None = None
    """A plan directory. Without one, a plan is made from `batching`."""
    batching: BatchingConfig = field(default_factory=BatchingConfig)
    format: RowFormat = field(default_factory=RowFormat)
    epochs: int | None = None
    """Those of the plan, or 1."""
    max_steps: int | None = None
    learning_rate: float | None = None
    """2e-5; 2e-4 with LoRA, 1e-3 for the built-in model."""
    schedule: Schedule = "cosine"
    warmup_steps: int | None = None
    """3% of all steps."""
    weight_decay: float = 0.0
    clip_norm: float = 1.0
    """The largest norm of the gradient; 0 for no limit."""
    tokens_per_step: int | None = None
    """Accumulate so many tokens (padding included) over microbatches and ranks before the optimizer steps."""
    bf16: bool = False
    lora_rank: int = 0
    """0 trains all weights."""
    lora_alpha: float | None = None
    """Twice the rank."""
    lora_dropout: float = 0.0
    lora_targets: tuple[str, ...] | None = None
    """Names of layers; all linear layers but the head if not given."""
    eval_data: str | None = None
    eval_split: float = 0.0
    """The share of the data that is held out for evaluation."""
    eval_every: int | None = None
    """In steps; at the end of every epoch if not given."""
    seed: int = 42
    save_every: int | None = 500
    keep: int = 2
    """How many checkpoints stay."""
    log_every: int = 10
    num_workers: int = 0
    attention: Attention = "auto"
    tensorboard: bool = True
    record_samples: bool = False
    """Write which samples each step was trained on."""
    fsdp: bool = False

    def __post_init__(self) -> None:
        one_of("schedule", self.schedule, get_args(Schedule))
        one_of("attention", self.attention, get_args(Attention))
        for name in ("epochs", "max_steps", "tokens_per_step", "eval_every", "save_every", "keep", "log_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise OptionError(f"{name} must be at least 1, got {value}")
        for name in ("learning_rate", "lora_alpha"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise OptionError(f"{name} must be above 0 and finite, got {value}")
        for name in ("warmup_steps", "weight_decay", "clip_norm", "lora_rank", "lora_dropout", "eval_split", "num_workers"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise OptionError(f"{name} must not be negative or infinite, got {value}")
        for name in ("eval_split", "lora_dropout"):
            if getattr(self, name) >= 1:
                raise OptionError(f"{name} must be below 1, got {getattr(self, name)}")
        self._check_together()

    def _check_together(self) -> None:
        if self.eval_data is not None and self.eval_split:
            raise OptionError("give eval_data or eval_split, not both")
        if self.batchplan is not None and self.eval_split:
            raise OptionError("the plan in batchplan covers all samples, so none can be held out: give eval_data, or no batchplan")
        if self.eval_every is not None and self.eval_data is None and not self.eval_split:
            raise OptionError("eval_every needs something to evaluate on: give eval_data or eval_split")
        if not self.lora_rank and (self.lora_alpha is not None or self.lora_dropout or self.lora_targets is not None):
            raise OptionError("lora_alpha, lora_dropout and lora_targets need lora_rank")
        if self.lora_rank and self.model == "tiny":
            raise OptionError("adapters need a model that stays: train tiny first, then give its directory (OUTPUT/model) as the model")
        if self.fsdp and self.lora_rank:
            raise OptionError("fsdp shards full fine-tuning only; leave out fsdp or lora_rank")
        if self.batchplan is None and self.tokens_per_step is not None and self.batching.microbatches_per_step is not None:
            raise OptionError("give tokens_per_step or microbatches_per_step, not both")

    @property
    def base_learning_rate(self) -> float:
        if self.learning_rate is not None:
            return self.learning_rate
        return 2e-4 if self.lora_rank else 1e-3 if self.model == "tiny" else 2e-5

    def to_dict(self) -> dict[str, Any]:
        """As JSON-like values; `from_dict` is the inverse."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "SftConfig":
        known = {field.name for field in fields(cls)}
        for name in values:
            if name not in known:
                raise OptionError(f"unknown option {name!r}.{did_you_mean(name, known)}")
        targets = values.get("lora_targets")
        options: dict[str, Any] = {
            **values,
            "batching": BatchingConfig.from_dict(values["batching"]),
            "format": RowFormat(**values["format"]),
            "lora_targets": None if targets is None else tuple(targets),
        }
        return cls(**options)

    def resumed(self, **given: Any) -> "SftConfig":
        """The options of a run that goes on, with those of `given` that may change.

        Raises:
            MismatchError: One was given that would change the run.
        """
        changed = [difference for name, value in given.items() if name not in MAY_CHANGE for difference in self._differences(name, value)]
        if changed:
            listed = ", ".join(changed)
            raise MismatchError(f"a resumed run must go on as it began, but these differ: {listed}; leave them out, or start a new run")
        return replace(self, **{name: value for name, value in given.items() if name in MAY_CHANGE})

    def _differences(self, name: str, value: Any) -> list[str]:
        mine = getattr(self, name)
        if mine == value or (name in PATHS and mine and value and os.path.realpath(mine) == os.path.realpath(value)):
            return []
        if isinstance(mine, BatchingConfig | RowFormat):
            old, new = asdict(mine), asdict(value)
            return [f"{field} ({old[field]} -> {new[field]})" for field in old if old[field] != new[field]]
        return [f"{name} ({mine} -> {value})"]
