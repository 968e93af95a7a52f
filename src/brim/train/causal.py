"""Runs that train a causal language model: where the model comes from, how it is wrapped, and what its checkpoints
hold.

A run whose batches follow plans starts from `brim.train.planned.PlannedRun`.

    model/                  as transformers saves it: config, weights, tokenizer (with LoRA: the adapter)
    optimizer.safetensors   the moments of every weight, by name, and the state of torch's generator
    state.json              position, step, options, fingerprints, and a checksum of every file

The learning rate is a function of the step, and randomness of the seed and the microbatch, so the step and the seed are
all there is to know of them.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from brim.core.errors import MismatchError, OptionError
from brim.data.tokenizer.base import Tokenizer
from brim.data.tokenizer.given import as_tokenizer
from brim.plan.plan import BatchPlan
from brim.plan.position import CheckpointPosition
from brim.train import checkpoint as files
from brim.train.callbacks import Callback
from brim.train.checkpoint import Saved
from brim.train.config import ModelConfig
from brim.train.given import Given
from brim.train.model import (
    base_fingerprint,
    check_model,
    find_tokenizer,
    load_adapter,
    load_model,
    save_model,
    take_model,
)
from brim.train.objective import Objective
from brim.train.optimizer import OPTIMIZER, load_moments, moments, restore_moments, save_moments, whole
from brim.train.ranks import Ranks
from brim.train.run import Run

if TYPE_CHECKING:
    from torch import Tensor

Config = TypeVar("Config", bound=ModelConfig)


class CausalRun(Run[Config]):
    """One run of a causal language model on one rank.

    A kind of run says where its batches come from, and where it is in them.
    """

    tokenizer: Tokenizer
    section: str | None = None
    """The name under which state.json has further state of this kind of run."""

    def __init__(
        self, config: Config, ranks: Ranks, callbacks: Sequence[Callback] = (), given: Given | None = None
    ) -> None:
        super().__init__(config, ranks, callbacks)
        self.given = given or Given()
        self.base: str | None = None

    @property
    @abstractmethod
    def position(self) -> CheckpointPosition:
        """Position of the next batch in its plan."""

    def stored_config(self) -> dict[str, Any]:
        """Return the options as a checkpoint has them."""
        return self.config.to_dict()

    def section_state(self) -> dict[str, Any]:
        """Return the further state that goes into state.json under the name of `section`."""
        return {}

    def write_more(self, directory: Path) -> None:
        """Write further files into a checkpoint."""

    def check_kind(self, saved: Saved) -> dict[str, Any]:
        """Return the further state of a checkpoint.

        Raises:
            MismatchError: It belongs to another kind of run.
        """
        mine = {} if self.section is None else {self.section: saved.sections.get(self.section)}
        if saved.sections.keys() != mine.keys():
            kind = next(iter(saved.sections), "sft")
            raise MismatchError(
                f"{saved.path} belongs to another kind of run; resume it with `brim train {kind} --resume {saved.path}`"
            )
        return next(iter(saved.sections.values()), {})

    def find_source(self, saved: Saved | None) -> ModelConfig:
        """Return where model and tokenizer come from: as given, or the checkpoint if the model is no longer there."""
        if self.given.model is not None:
            return self.config
        try:
            check_model(self.config.model)
        except OptionError:
            if saved is None or self.config.lora_rank:
                raise
            return replace(self.config, model=str(saved.path / files.MODEL))
        return self.config

    def find_tokenizer(self, source: ModelConfig, plan: BatchPlan | None) -> Tokenizer:
        if self.given.tokenizer is not None:
            return as_tokenizer(self.given.tokenizer)
        if self.given.model is not None and self.config.tokenizer is None:
            raise OptionError("a model that is given as an object comes without its tokenizer: give tokenizer=... too")
        return find_tokenizer(source, plan)

    def load(self, source: ModelConfig, saved: Saved | None) -> None:
        """Load the model. Its weights are those of `source`, or of the checkpoint."""
        lora = bool(self.config.lora_rank)
        if saved is not None and not lora:
            source = replace(source, model=str(saved.path / files.MODEL))
        if self.given.model is None:
            self.model = load_model(source, self.tokenizer)
        else:
            self.model = take_model(self.given.model, self.config, self.tokenizer)
            if saved is not None and not lora:
                self.model.load_state_dict(load_model(source, self.tokenizer).state_dict())
        self.base = base_fingerprint(self.model) if lora else None
        if saved is not None and lora:
            if self.base != saved.base:
                raise MismatchError(f"{saved.path} has adapters for another model than {self.config.model} is now")
            load_adapter(self.model, saved.path)

    def attach_restored(self, objective: Objective, saved: Saved | None) -> None:
        """Wrap the objective for the ranks and make its optimizer, in the state of the checkpoint."""
        self.attach(objective)
        if saved is not None:
            restore_moments(self.stepper.optimizer, self.stepper.weights, load_moments(saved.path / OPTIMIZER))
            self.resumed_at(saved.step, saved.tokens)

    def facts(self) -> dict[str, Any]:
        more = {} if self.section is None else {self.section: self.section_state()}
        return files.facts(
            self.stored_config(),
            self.position,
            step=self.step,
            tokens=self.tokens,
            schedule_steps=self.steps,
            world_size=self.ranks.world_size,
            learning_rate=self.rate(self.step),
            tokenizer=self.tokenizer.fingerprint,
            base=self.base,
            **more,
        )

    def checkpoint_files(self) -> Callable[[Path], None]:
        # Where weights are sharded, every rank takes part in putting them together.
        weights = self.whole_weights()
        optimizer = moments(self.stepper.optimizer, self.stepper.weights)

        def write(directory: Path) -> None:
            save_model(directory / files.MODEL, self.model, weights, self.tokenizer)
            save_moments(directory / OPTIMIZER, optimizer)
            self.write_more(directory)

        return write

    def finish(self, *, stopped: bool) -> Path:
        """Put the trained model at the top of the output, and return where it is.

        A stopped run has it in its checkpoint.
        """
        last = files.checkpoint_path(self.output, self.step) / files.MODEL
        if stopped:
            return last
        if not self.ranks.share(last.exists()):  # resumed at its end, from a checkpoint of another name
            self.save()
        self.ranks.together(lambda: files.publish(last, self.output / files.MODEL) if self.ranks.is_main else None)
        return self.output / files.MODEL

    def set_aside_later(self, say: Callable[[str], None]) -> None:
        """Rename checkpoints that are newer than the one the run resumes from."""
        if self.ranks.is_main:
            for path in files.set_aside_later(self.output, self.step):
                say(f"renamed a newer checkpoint to {path} (resuming from an earlier step)")

    def whole_weights(self) -> "dict[str, Tensor]":
        """Return the weights by name. Where they are sharded, every rank must call this."""
        state = self.model.state_dict()
        return {name: whole(value) for name, value in state.items()} if self.config.fsdp else state
