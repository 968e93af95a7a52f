"""What every run of fine-tuning is, wherever its batches come from: one output, a model, an optimizer, steps, checkpoints, signals.

A step takes the microbatches it is given, over all ranks. Its loss is the sum over what is learned in them, divided by how many tokens
that is: how the step was cut into microbatches, rows and ranks does not change the mathematics.
"""

import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, NoReturn

from brim.batch.torch import TensorBatch
from brim.core.errors import BrimError, MismatchError, OptionError
from brim.core.extras import need
from brim.core.fill import Fill
from brim.data.tokenizer.base import Tokenizer
from brim.plan.position import CheckpointPosition
from brim.train import checkpoint as files
from brim.train.checkpoint import Saved
from brim.train.config import SftConfig
from brim.train.failed_step import SCRIPT, save_repro
from brim.train.log import begin_output, hold_output, unbegin_output
from brim.train.loss import SftLoss, choose_attention
from brim.train.model import base_fingerprint, check_model, load_adapter, load_model
from brim.train.optimizer import moments, restore_moments, whole
from brim.train.ranks import Ranks, wrap
from brim.train.report import StepReport
from brim.train.schedule import learning_rate
from brim.train.step import NotFiniteError, Stepper

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = need("torch", extra="train", user="brim.train")

NAMED = 8
"""How many samples an error names."""


class Run(ABC):
    """One run on one rank. A kind of run says where its batches come from, and where it is in them (`position`)."""

    tokenizer: Tokenizer
    model: Any
    stepper: Stepper

    def __init__(self, config: SftConfig, ranks: Ranks) -> None:
        self.config, self.ranks, self.output = config, ranks, Path(config.output)
        self.step = self.tokens = self.steps = 0
        self.base: str | None = None
        self._stop = self._stopping = False
        self._held: IO[bytes] | None = None

    @property
    @abstractmethod
    def position(self) -> CheckpointPosition:
        """Where the next batch comes from."""

    def _recorded(self) -> dict[str, Any]:
        """The options of the run, for its output."""
        return self.config.to_dict()

    def _more(self) -> dict[str, Any]:
        """What else a checkpoint should say."""
        return {}

    def _write_more(self, directory: Path) -> None:  # noqa: B027  most kinds hold nothing else
        """What else a checkpoint should hold."""

    @contextmanager
    def _claimed(self, *, new: bool) -> Generator[None, None, None]:
        """One run to a directory; a run that never began leaves it free. All ranks begin, or none."""

        def claim() -> None:
            self._held = hold_output(self.output)
            if new:
                begin_output(self.output, self._recorded())

        try:
            self.ranks.together(lambda: claim() if self.ranks.is_main else None)
        except BaseException:
            self.close()
            raise
        try:
            yield
        except BaseException:
            if new and self.ranks.is_main:
                unbegin_output(self.output)
            self.close()
            raise

    def _load(self, source: SftConfig, saved: Saved | None) -> None:
        """The model. `source` says where its weights are: in the model that was given, or in the checkpoint."""
        if saved is not None and not self.config.lora_rank:
            source = replace(source, model=str(saved.path / files.MODEL))
        self.model = load_model(source, self.tokenizer)
        self.base = base_fingerprint(self.model) if self.config.lora_rank else None
        if saved is not None and self.config.lora_rank:
            if self.base != saved.base:
                raise MismatchError(f"{saved.path} has adapters for another model than what is in {self.config.model} now")
            load_adapter(self.model, saved.path)

    def _wrap(self, saved: Saved | None, *, packed: bool, longest: int) -> None:
        """The module that takes steps, as it was when it was saved."""
        config = self.config
        self.model.to(self.ranks.device)
        segments = choose_attention(self.model, config.attention, packed=packed, longest=longest)
        self.stepper = Stepper(wrap(SftLoss(self.model, segments), self.ranks, fsdp=config.fsdp), config, self.ranks)
        if saved is not None:
            state = files.load_optimizer(saved.path)
            torch.set_rng_state(state.pop(files.RNG))
            restore_moments(self.stepper.optimizer, self.stepper.weights, state)
            self.step, self.tokens = saved.step, saved.tokens

    def _schedule(self, steps: int) -> None:
        """The learning rates of a run of so many steps."""
        config, self.steps = self.config, steps
        warmup = config.warmup_steps if config.warmup_steps is not None else max(1, round(0.03 * steps))
        self.rate = learning_rate(config.base_learning_rate, config.schedule, total=steps, warmup=warmup)

    def _take_step(self, batches: list[TensorBatch]) -> StepReport:
        began = time.monotonic()
        sums = [sum(values) for values in zip(*((b.num_loss_tokens, b.num_tokens, b.slots) for b in batches), strict=True)]
        learned, tokens, slots, stopping = self.ranks.total([*sums, float(self._stop)])
        self._stopping = stopping > 0
        rate = self.rate(self.step)
        try:
            moved = self.stepper.take(batches, learned, rate)
        except NotFiniteError as error:
            self._refuse(error)
        self.step += 1
        self.tokens += int(tokens)
        return StepReport(
            step=self.step,
            steps=self.steps,
            epoch=batches[0].epoch,
            loss=moved.loss,
            learning_rate=rate,
            grad_norm=moved.grad_norm,
            tokens=int(tokens),
            seconds=time.monotonic() - began,
            fill=Fill(int(tokens), int(slots)),
        )

    def _refuse(self, error: NotFiniteError) -> NoReturn:
        """A step that would ruin the weights was not taken: keep what did it. All ranks come here together."""
        step, weights = self.step + 1, self._whole_weights()
        what = f"the {error.what} of step {step} is not finite"
        if not error.batches:
            raise BrimError(f"{what}, on another rank; its error names the samples") from None
        directory = self.output / f"not-finite-{step:08d}-rank{self.ranks.rank}"
        save_repro(directory, self.config, self.model, weights, self.tokenizer, error.batches)
        ids = [repr(id) for batch in error.batches for id in batch.ids]
        named = ", ".join(ids[:NAMED]) + (f" and {len(ids) - NAMED} more" if len(ids) > NAMED else "")
        numbers = ", ".join(str(batch.index) for batch in error.batches)
        found = files.checkpoints(self.output)
        raise BrimError(
            f"{what}: microbatch {numbers} of epoch {error.batches[0].epoch}, samples {named}. The step was not taken; run `python "
            f"{directory / SCRIPT}` to see it again. The last checkpoint is {found[-1] if found else 'none yet'}"
        ) from None

    def save(self) -> None:
        """A checkpoint of now. Either all ranks go on, or all raise."""
        weights, optimizer = self._whole_weights(), moments(self.stepper.optimizer, self.stepper.weights)
        facts = files.facts(
            self.config.to_dict(),
            self.position,
            step=self.step,
            tokens=self.tokens,
            schedule_steps=self.steps,
            world_size=self.ranks.world_size,
            learning_rate=self.rate(self.step),
            tokenizer=self.tokenizer.fingerprint,
            base=self.base,
            **self._more(),
        )

        def write() -> None:
            path = files.checkpoint_path(self.output, self.step)
            files.save_checkpoint(path, self.model, weights, optimizer, self.tokenizer, facts, self._write_more)
            files.forget_old(self.output, self.config.keep)

        self.ranks.together(lambda: write() if self.ranks.is_main else None)

    def _whole_weights(self) -> "dict[str, Tensor]":
        state = self.model.state_dict()
        return {name: whole(value) for name, value in state.items()} if self.config.fsdp else state

    def _finish(self, stopped: bool) -> Path:
        """The trained model at the top of the output."""
        last = files.checkpoint_path(self.output, self.step) / files.MODEL
        if stopped:
            return last
        if not self.ranks.share(last.exists()):  # resumed at its end, from a checkpoint of another name
            self.save()
        self.ranks.together(lambda: files.publish(last, self.output / files.MODEL) if self.ranks.is_main else None)
        return self.output / files.MODEL

    @contextmanager
    def _signals(self, say: Callable[[str], None]) -> Generator[None, None, None]:
        """SIGTERM and the first Ctrl-C end the run after the next step, with a checkpoint."""

        def stop(number: int, frame: FrameType | None) -> None:
            if self._stop:
                signal.default_int_handler(number, frame)
            self._stop = True
            say(f"{signal.Signals(number).name}: stopping soon, with a checkpoint")

        try:
            before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
        except ValueError:  # not the main thread: signals are somebody else's
            before = {}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def close(self) -> None:
        """Let others into the output."""
        if self._held is not None:
            self._held.close()


def find_source(config: SftConfig, saved: Saved | None) -> SftConfig:
    """Where model and tokenizer come from: as given, or from the checkpoint if the model has gone since; it holds all that is needed."""
    try:
        check_model(config.model)
    except OptionError:
        if saved is None or config.lora_rank:
            raise
        return replace(config, model=str(saved.path / files.MODEL))
    return config
