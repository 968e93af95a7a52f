"""Supervised fine-tuning that follows a plan.

A step is the microbatches that the plan puts into it, over all ranks. Its loss is the sum over what is learned in them, divided by how
many tokens that is: how the step was cut into microbatches, rows and ranks does not change the mathematics. A checkpoint is taken between
steps and says which steps of the plan are done; a run that goes on from it, on any number of ranks, takes exactly the others.
"""

import signal
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, NoReturn

from brim.batch.torch import PlanLoader, TensorBatch, loader
from brim.core.errors import BrimError, DataError, MismatchError, OptionError
from brim.core.extras import need
from brim.core.fill import Fill
from brim.data.token_store import TokenStore
from brim.data.tokenizer import Tokenizer
from brim.plan.plan import BatchPlan
from brim.train import checkpoint as files
from brim.train.checkpoint import Saved
from brim.train.config import SftConfig
from brim.train.loss import SftLoss, choose_attention
from brim.train.model import base_fingerprint, check_lengths, check_model, check_vocabulary, find_tokenizer, load_adapter, load_model
from brim.train.optimizer import moments, restore_moments, whole
from brim.train.prepare import Bar, Prepared, left_out, no_bar, prepare, step_size
from brim.train.ranks import Ranks, join_ranks, wrap
from brim.train.record import Records, begin_output, hold_output, unbegin_output
from brim.train.report import Ends, SftResult, StepReport
from brim.train.repro import SCRIPT, save_repro
from brim.train.schedule import learning_rate
from brim.train.step import NotFiniteError, Stepper

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = need("torch", extra="train", user="brim.train")

NAMED = 8
"""How many samples an error names."""


def train_sft(
    config: SftConfig,
    *,
    resume: Path | None = None,
    on_step: Callable[[StepReport], None] | None = None,
    on_message: Callable[[str], None] | None = None,
    bar: Bar = no_bar,
) -> SftResult:
    """Train, and leave the model in `output`/model. `resume` is a checkpoint to go on from (`find_checkpoint`).

    Under torchrun all ranks call this; callbacks are called on rank 0.

    Raises:
        MismatchError: The plan does not belong to the data, the tokenizer, or the checkpoint.
        OptionError: The model and the tokenizer do not fit, or the output holds another run.
        BrimError: The loss is not finite, a checkpoint cannot be written, or another rank is gone.
    """
    saved = files.load_saved(resume) if resume is not None else None
    with join_ranks() as ranks:
        if not ranks.is_main:
            bar, on_step, on_message = no_bar, None, None
        return SftRun(config, ranks, saved, bar).train(on_step, on_message)


def find_checkpoint(path: str | Path) -> Path:
    """The checkpoint at a path, or the last one of the run there.

    Raises:
        DataError: There is none.
    """
    path = Path(path)
    if (path / files.STATE).exists():
        return path
    found = files.checkpoints(path)
    if not found:
        what = "holds no checkpoint" if path.is_dir() else "does not exist"
        raise DataError(f"{path} {what}, so there is nothing to resume; start the run without --resume")
    return found[-1]


class SftRun:
    """One run on one rank."""

    def __init__(self, config: SftConfig, ranks: Ranks, saved: Saved | None = None, bar: Bar = no_bar) -> None:
        """Everything that can be refused is refused here, before the first step."""
        self.config, self.ranks, self.output = config, ranks, Path(config.output)
        self._stop = self._stopping = False
        self._held: IO[bytes] | None = None
        with self._claimed(new=saved is None):
            loaded = _source(config, saved)
            planned = BatchPlan.load(config.batchplan) if config.batchplan is not None else None
            self.tokenizer: Tokenizer = find_tokenizer(loaded, planned)
            self.prepared = self._prepare(bar)
            self.plan = self._stepped(self.prepared.plan, saved)
            _check_same_plan(self.plan, saved)
            self.model: Any = self._load_model(loaded, saved)
            self._wrap(saved)

    @contextmanager
    def _claimed(self, *, new: bool) -> Generator[None, None, None]:
        """One run to a directory; a run that never began leaves it free. All ranks begin, or none."""

        def claim() -> None:
            self._held = hold_output(self.output)
            if new:
                begin_output(self.output, self.config)

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

    def _prepare(self, bar: Bar) -> Prepared:
        """The main rank first: the others find what it wrote."""
        prepared = self.ranks.together(lambda: prepare(self.config, self.tokenizer, bar) if self.ranks.is_main else None)
        return prepared or prepare(self.config, self.tokenizer)

    def _stepped(self, plan: BatchPlan, saved: Saved | None) -> BatchPlan:
        """The plan with its steps fixed: by itself, by the options, by the run that is resumed, or by the number of ranks."""
        if saved is not None:
            return plan.with_step_size(saved.position.microbatches_per_step)
        if self.config.batchplan is not None and self.config.tokens_per_step is not None:
            return plan.with_step_size(step_size(self.config.tokens_per_step, plan.config.token_budget))
        return plan if plan.config.microbatches_per_step else plan.with_step_size(self.ranks.world_size)

    def _load_model(self, source: SftConfig, saved: Saved | None) -> Any:
        """`source` says where the weights are: in the model that was given, or in the checkpoint."""
        if saved is not None and not self.config.lora_rank:
            source = replace(source, model=str(saved.path / files.MODEL))
        model = load_model(source, self.tokenizer)
        self.base = base_fingerprint(model) if self.config.lora_rank else None
        if saved is not None and self.config.lora_rank:
            if self.base != saved.base:
                raise MismatchError(f"{saved.path} has adapters for another model than what is in {self.config.model} now")
            load_adapter(model, saved.path)
        prepared = self.prepared
        for plan, store in ((self.plan, prepared.store), (prepared.eval_plan, prepared.eval_store)):
            if plan is not None and store is not None:
                check_lengths(plan, model, self.config.model)
                check_vocabulary(store.tokens, model, self.config.model)
        return model

    def _wrap(self, saved: Saved | None) -> None:
        config, packed = self.config, self.plan.config.packing is not None
        self.model.to(self.ranks.device)
        segments = choose_attention(self.model, config.attention, packed=packed, longest=int(self.plan.epochs.units.length.max()))
        self.stepper = Stepper(wrap(SftLoss(self.model, segments), self.ranks, fsdp=config.fsdp), config, self.ranks)
        self.loader = self._loader(self.plan, self.prepared.store)
        self.step, self.tokens, self.steps = 0, 0, self._count_steps()
        if saved is not None:
            state = files.load_optimizer(saved.path)
            torch.set_rng_state(state.pop(files.RNG))
            restore_moments(self.stepper.optimizer, self.stepper.weights, state)
            self.loader.load_state_dict(asdict(saved.position))
            self.step, self.tokens, self.steps = saved.step, saved.tokens, saved.schedule_steps
        warmup = config.warmup_steps if config.warmup_steps is not None else max(1, round(0.03 * self.steps))
        self.rate = learning_rate(config.base_learning_rate, config.schedule, total=self.steps, warmup=warmup)

    def _loader(self, plan: BatchPlan, store: TokenStore) -> PlanLoader:
        return loader(
            plan,
            store,
            rank=self.ranks.rank,
            world_size=self.ranks.world_size,
            num_workers=self.config.num_workers,
            pin_memory=self.ranks.device.type == "cuda",
            pad_id=self.tokenizer.pad_id,
        )

    @property
    def epochs(self) -> int:
        return self.config.epochs or self.plan.num_epochs

    def _count_steps(self) -> int:
        steps = sum(self.plan.deal(epoch).steps for epoch in range(self.epochs))
        if steps == 0:
            raise DataError("the plan has no step to take: --drop-last or --remainder drop leaves nothing of so little data")
        return min(steps, self.config.max_steps or steps)

    def train(self, on_step: Callable[[StepReport], None] | None = None, on_message: Callable[[str], None] | None = None) -> SftResult:
        """Take the steps that are left."""
        say = on_message or _silent
        try:
            return self._train(on_step, say)
        finally:
            self.close()

    def close(self) -> None:
        """Let others into the output."""
        if self._held is not None:
            self._held.close()

    def _announce(self, say: Callable[[str], None]) -> None:
        """What a user would want to have been told."""
        if not self.ranks.is_main:
            return
        for path in files.set_aside_later(self.output, self.step):
            say(f"a later checkpoint is out of the way, as {path}")
        if found := left_out(self.plan):
            say("by the options of the plan: " + ", ".join(f"{many:,} {what}" for what, many in found.items()))
        if self.plan.step_size < self.ranks.world_size:
            say(f"a step has {self.plan.step_size} microbatches for {self.ranks.world_size} ranks, so some have nothing to do in it")

    def _train(self, on_step: Callable[[StepReport], None] | None, say: Callable[[str], None]) -> SftResult:
        began, reports, fill, tokens = time.monotonic(), Ends(), Fill(), 0
        self._announce(say)
        self.stepper.module.train()
        with self._signals(say), Records(self.config, self.ranks, after=self.step) as records:
            for batches in self._batches():
                report = self._take_step(batches)
                records.samples(report.step, batches)
                fill, tokens = fill + report.fill, tokens + report.tokens
                over = self.step == self.steps or self._stopping
                if self._evaluates(batches[-1]):
                    report = replace(report, eval_loss=self.evaluate())
                reports.add(report)
                records.curves(report, self.tokens, last=over)
                if on_step is not None:
                    on_step(report)
                if over or (self.config.save_every and self.step % self.config.save_every == 0):
                    self.save()
                if over:
                    break
        stopped = self.step < self.steps
        return SftResult(
            steps=self.steps,
            taken=reports.count,
            first_loss=reports.first,
            last_loss=reports.last,
            eval_loss=reports.evaluated,
            tokens=tokens,
            seconds=time.monotonic() - began,
            fill=fill,
            model=self._finish(stopped),
            stopped=stopped,
            left_out=left_out(self.plan),
        )

    def _batches(self) -> Iterator[list[TensorBatch]]:
        while self.step < self.steps and self.loader.epoch < self.epochs:
            yield from self.loader.steps()

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

    def _evaluates(self, batch: TensorBatch) -> bool:
        if self.prepared.eval_plan is None:
            return False
        every, after = self.config.eval_every, batch.after
        ends_epoch = after is not None and after.epoch > batch.epoch
        return self.step == self.steps or (ends_epoch if every is None else self.step % every == 0)

    @torch.no_grad()
    def evaluate(self) -> float:
        """The mean loss over what is learned in the evaluation data."""
        assert self.prepared.eval_plan is not None
        assert self.prepared.eval_store is not None
        self.stepper.module.eval()
        loss = learned = 0.0
        for batch in self._loader(self.prepared.eval_plan, self.prepared.eval_store):
            loss += float(self.stepper.loss(batch.to(self.ranks.device)))
            learned += batch.num_loss_tokens
        self.stepper.module.train()
        loss, learned = self.ranks.total([loss, learned])
        return loss / max(learned, 1)

    def save(self) -> None:
        """A checkpoint of now. Either all ranks go on, or all raise."""
        weights, optimizer = self._whole_weights(), moments(self.stepper.optimizer, self.stepper.weights)
        facts = files.facts(
            self.config.to_dict(),
            self.loader.position,
            step=self.step,
            tokens=self.tokens,
            schedule_steps=self.steps,
            world_size=self.ranks.world_size,
            learning_rate=self.rate(self.step),
            tokenizer=self.tokenizer.fingerprint,
            base=self.base,
        )

        def write() -> None:
            path = files.checkpoint_path(self.output, self.step)
            files.save_checkpoint(path, self.model, weights, optimizer, self.tokenizer, facts)
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


def _source(config: SftConfig, saved: Saved | None) -> SftConfig:
    """Where model and tokenizer come from: as given, or from the checkpoint if the model has gone since; it holds all that is needed."""
    try:
        check_model(config.model)
    except OptionError:
        if saved is None or config.lora_rank:
            raise
        return replace(config, model=str(saved.path / files.MODEL))
    return config


def _check_same_plan(plan: BatchPlan, saved: Saved | None) -> None:
    if saved is not None and saved.position.fingerprint != plan.fingerprint:
        raise MismatchError(
            f"{saved.path} belongs to another plan: it was made with {saved.position.fingerprint[:8]}.., this one is "
            f"{plan.fingerprint[:8]}..; resume with the plan and data of that run"
        )


def _silent(_: str) -> None:
    """Nobody listens."""
