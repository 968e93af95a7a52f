"""One training step of any size, to be measured: what `brim train sft` does with a microbatch, on random tokens.

Forward, backward, clipping and AdamW are those of a run (`Stepper`, `SftLoss`), and so are the choice of attention,
LoRA and bf16. The learning rate is 0: the work is the same, and the weights stay. Every token is learned but the first
of a segment, so the model's head is computed wherever it ever could be, and the memory that is measured is an upper
bound for data with prompts that are only read.

Importing this loads no torch: the options are pickled by a process that needs none, and called in a child that does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from brim.analyze.capacity.costs import SAME
from brim.batch.collate import collate
from brim.core.arrays import begins
from brim.core.errors import LengthError, OptionError
from brim.core.extras import need
from brim.core.options import one_of
from brim.core.rng import raw_bits
from brim.data.token_store import TokenStore
from brim.plan.distributed import DistributedConfig
from brim.plan.epoch import MicrobatchSpec
from brim.train.config import SftConfig

Layout = Literal["packed", "padded"]
DRAWN = 16384
"""Number of lengths that are drawn from a table; larger microbatches repeat them."""


def draw_lengths(lengths: NDArray[np.integer[Any]], seed: int) -> tuple[int, ...]:
    """Draw lengths from a table, with replacement; the longest of the table is the last one, so that it is measured
    too.

    Empty samples are left out: they are no segment.

    Raises:
        OptionError: There is no other.
    """
    real = lengths[lengths > 0]
    if len(real) == 0:
        raise OptionError("the lengths are of no sample that has a token")
    picked = raw_bits(DRAWN, seed=seed, purpose="trial lengths") % np.uint64(len(real))
    return (*real[picked.astype(np.int64)][:-1].tolist(), int(real.max()))


@dataclass(frozen=True, kw_only=True)
class TrainingTrial:
    """The training step to measure. Calling it, in the process that measures, builds the model, once for all sizes."""

    config: SftConfig
    layout: Layout = "packed"
    """One flat row of segments, as packed plans are trained, or rows that are all full: no microbatch of so many slots
    costs more.
    """
    length: int = 512
    """Length of a row, or of every segment but the last."""
    drawn: tuple[int, ...] | None = None
    """Lengths of the segments, one after the other, instead of `length`; for the packed layout only."""
    memory: int | None = None
    """Upper limit of a GPU's memory in bytes; that of the CPU is watched from outside."""

    def __post_init__(self) -> None:
        one_of("layout", self.layout, get_args(Layout))
        if self.length < 2:
            raise OptionError(f"length must be at least 2, or nothing is learned, got {self.length}")
        if self.drawn is not None and self.layout != "packed":
            raise OptionError("drawn lengths are for the packed layout; rows of the padded one are all as long")

    def __call__(self) -> "TrainingWork":
        return TrainingWork(self)

    @property
    def longest(self) -> int:
        return self.length if self.drawn is None else max(self.drawn)

    def segments(self, size: int) -> NDArray[np.int32]:
        """Return the lengths in a microbatch of `size` tokens.

        Packed ones add up to it, padded ones to the whole rows in it.
        """
        if self.layout == "padded":
            return np.full(size // self.length, self.length, np.int32)
        one_round = np.array([self.length] if self.drawn is None else self.drawn, np.int64)
        lengths = np.tile(one_round, size // int(one_round.sum()) + 1)
        kept = int(np.searchsorted(np.cumsum(lengths), size)) + 1
        lengths = lengths[:kept]
        lengths[-1] -= int(lengths.sum()) - size
        return lengths.astype(np.int32)


class TrainingWork:
    """The model and its optimizer in a child, and steps of any size. A `brim.analyze.capacity.attempts.Work`."""

    def __init__(self, trial: TrainingTrial) -> None:
        """Load the model and make its optimizer.

        Raises:
            OptionError: There is no such model, or it cannot be trained with these options.
            LengthError: It has fewer positions than a segment has tokens.
        """
        from brim.train import loss, model
        from brim.train.process_group import wrap
        from brim.train.ranks import Ranks
        from brim.train.step import Stepper

        self._torch = need("torch", extra="train", user="brim.train.measured_step")
        self._trial, config = trial, trial.config
        model.check_model(config.model)
        self._tokenizer = model.find_tokenizer(config, None)
        self._model: Any = model.load_model(config, self._tokenizer)
        check_positions(trial, getattr(self._model.config, "max_position_embeddings", None))
        self._device = self._find_device()
        ranks = Ranks(DistributedConfig(), self._device)
        self._model.to(self._device)
        segments = loss.choose_attention(
            self._model, config.attention, packed=trial.layout == "packed", longest=trial.longest
        )
        self._stepper = Stepper(wrap(loss.SftLoss(self._model, segments), ranks, fsdp=False), config, ranks)
        self._stepper.module.train()

    def _find_device(self) -> Any:
        cuda = self._torch.cuda
        if not cuda.is_available():
            return self._torch.device("cpu")
        if self._trial.memory is not None:
            cuda.set_per_process_memory_fraction(
                min(1.0, self._trial.memory / cuda.get_device_properties(0).total_memory)
            )
        return self._torch.device("cuda", 0)

    def prepare(self, size: int) -> Callable[[], object]:
        """Return a function that takes a step of `size` tokens, or of the whole rows that fit into them."""
        if self._device.type == "cuda":
            self._torch.cuda.reset_peak_memory_stats()
        batch = self._batch(self._trial.segments(size))

        def step() -> None:
            self._stepper.take([batch], batch.num_loss_tokens, rate=0.0)
            if self._device.type == "cuda":
                self._torch.cuda.synchronize()

        return step

    def _batch(self, lengths: NDArray[np.int32]) -> Any:
        """Make a microbatch of random tokens through the same code as the batches of a run."""
        from brim.batch.torch import TensorBatch

        packed = self._trial.layout == "packed"
        total = int(lengths.sum())
        drawn = raw_bits(total, seed=self._trial.config.seed, purpose="trial tokens") % np.uint64(
            self._tokenizer.vocab_size
        )
        store = TokenStore(
            drawn.astype(np.uint32), np.ones(total, np.uint8), begins(lengths), lengths, pad_id=self._tokenizer.pad_id
        )
        width = total if packed else self._trial.length
        microbatch = MicrobatchSpec.unplanned(range(len(lengths)), lengths, width, packed=packed)
        return TensorBatch.of(collate(microbatch, store, dtype=np.int64, flat=packed))

    def peak(self) -> int | None:
        """Return the peak of the GPU's memory in bytes; None on a CPU."""
        return self._torch.cuda.max_memory_allocated() if self._device.type == "cuda" else None

    def facts(self) -> dict[str, Any]:
        """Describe what is trained, and on which device."""
        torch, trial = self._torch, self._trial
        weights = list(self._model.parameters())
        facts: dict[str, Any] = {
            "model": trial.config.model,
            "weights": sum(weight.numel() for weight in weights),
            "trained_weights": sum(weight.numel() for weight in weights if weight.requires_grad),
            "lora_rank": trial.config.lora_rank,
            "dtype": "bfloat16" if trial.config.bf16 else "float32",
            "tokenizer": self._tokenizer.name,
            "layout": trial.layout,
            "length": trial.longest,
            "lengths": SAME if trial.drawn is None else "drawn from the data",
            "attention": str(getattr(self._model.config, "_attn_implementation", "unknown")),
            "seed": trial.config.seed,
            "device": self._device.type,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        }
        if self._device.type == "cuda":
            device = torch.cuda.get_device_properties(0)
            facts |= {
                "device": device.name,
                "memory_limit": min(trial.memory or device.total_memory, device.total_memory),
            }
        return facts


def check_positions(trial: TrainingTrial, positions: int | None) -> None:
    """Check that the model has a position for every token of a segment.

    Raises:
        LengthError: A segment is longer than the model has positions.
    """
    if positions is None or trial.longest <= positions:
        return
    name = trial.config.model
    if trial.drawn is None:
        raise LengthError(
            f"a length of {trial.length} is more than the model {name} has positions: {positions}; lower it"
        )
    raise LengthError(
        f"a sample has {trial.longest} tokens, the model {name} has {positions} positions; measure with --length "
        f"{positions}"
    )
