"""Supervised fine-tuning that follows a plan.

A step is the microbatches that the plan puts into it, over all ranks. A checkpoint is taken between steps and says
which steps of the plan are done; a run that resumes from it, on any number of ranks, takes exactly the others.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from brim.batch.torch import TensorBatch
from brim.core.errors import DataError, MismatchError
from brim.core.extras import need
from brim.core.progress import silent
from brim.plan.plan import BatchPlan
from brim.plan.position import CheckpointPosition
from brim.train import checkpoint as files
from brim.train.callbacks import Callback, OnStep
from brim.train.checkpoint import Saved
from brim.train.checkpoint import find_checkpoint as find_checkpoint
from brim.train.config import SftConfig
from brim.train.given import Given, keep_rows, with_objects
from brim.train.model import check_lengths, check_vocabulary, import_ahead
from brim.train.planned import PlannedRun
from brim.train.prepare import Bar, Prepared, left_out, no_bar, prepare, step_size
from brim.train.process_group import join_ranks
from brim.train.ranks import Ranks
from brim.train.report import SftResult, StepReport

if TYPE_CHECKING:
    import torch
else:
    torch = need("torch", extra="train", user="brim.train")


def train_sft(
    config: SftConfig,
    *,
    model: Any = None,
    tokenizer: Any = None,
    data: Any = None,
    resume: Path | None = None,
    callbacks: Sequence[Callback] = (),
    on_step: Callable[[StepReport], None] | None = None,
    on_message: Callable[[str], None] | None = None,
    bar: Bar = no_bar,
) -> SftResult:
    """Fine-tune a causal language model, and leave it in `output`/model. `resume` is a checkpoint (`find_checkpoint`).

    Model, tokenizer and data are named in the options, or given as objects: a model of transformers (trained in place),
    a tokenizer of brim, transformers or tokenizers, and data as a path, a `Source`, a `datasets.Dataset`, or an
    iterable of rows or `Sample`s. Rows in memory are kept in the output, so such a run can be resumed by `brim train
    sft --resume` like any other; a run with LoRA on a model object cannot, and must be given the same object again.

    Under torchrun all ranks call this; callbacks are called on the main rank. See `brim.train.callbacks`.

    Raises:
        MismatchError: The plan does not belong to the data, the tokenizer, or the checkpoint.
        OptionError: The model and the tokenizer do not fit, or the output holds another run.
        BrimError: The loss is not finite, a checkpoint cannot be written, or contact with another rank was lost.

    Example:
        >>> rows = [{"prompt": "2+2=", "response": "4"}]
        >>> train_sft(SftConfig(output="run/"), model="tiny", data=rows, callbacks=[StopAtLoss()])  # doctest: +SKIP
    """
    config, given = with_objects(config, model, tokenizer, data)
    saved = files.load_saved(resume) if resume is not None else None
    with join_ranks() as ranks:
        if not ranks.is_main:
            bar, on_message = no_bar, None
        watching = [*callbacks, *([] if on_step is None else [OnStep(on_step)])]
        return SftRun(config, ranks, saved, bar, callbacks=watching, given=given).train(on_message)


class SftRun(PlannedRun[SftConfig]):
    """One run of a plan on one rank."""

    def __init__(
        self,
        config: SftConfig,
        ranks: Ranks,
        saved: Saved | None = None,
        bar: Bar = no_bar,
        *,
        callbacks: Sequence[Callback] = (),
        given: Given | None = None,
    ) -> None:
        """Refuse everything that can be refused before the first step."""
        super().__init__(config, ranks, callbacks, given)
        if saved is not None:
            self.check_kind(saved)
        with self.claimed(config.to_dict(), new=saved is None):
            self._keep_rows(resumed=saved is not None)
            source = self.find_source(saved)
            planned = BatchPlan.load(config.batchplan) if config.batchplan is not None else None
            self.tokenizer = self.find_tokenizer(source, planned)
            self.prepared = self._prepare(planned, saved, bar)
            self.plan = self._stepped(self.prepared.plan, saved)
            _check_same_plan(self.plan, saved)
            self.load(source, saved)
            self._check_fit()
            self.wrap(saved, packed=self.plan.config.packing is not None, longest=self.plan.longest)
            self.loader = self.make_loader(self.plan, self.prepared.store)
            if saved is not None:
                self.loader.load_state_dict(asdict(saved.position))
            self.schedule(self._count_steps() if saved is None else saved.schedule_steps)

    @property
    def position(self) -> CheckpointPosition:
        return self.loader.position

    def _keep_rows(self, *, resumed: bool) -> None:
        rows = self.given.rows
        if rows is not None:
            self.ranks.together(
                lambda: keep_rows(rows, Path(self.config.data), resumed=resumed) if self.ranks.is_main else None
            )

    def _prepare(self, planned: BatchPlan | None, saved: Saved | None, bar: Bar) -> Prepared:
        """Prepare on the main rank first: the others find what it wrote. The model's classes are imported meanwhile."""
        importing: list[Thread] = []

        def work() -> Prepared:
            return prepare(
                self.config,
                self.tokenizer,
                planned,
                bar,
                resumed=None if saved is None else saved.position.fingerprint,
                on_read=lambda: importing.append(import_ahead(self.config.model)),
            )

        try:
            prepared = self.ranks.together(lambda: work() if self.ranks.is_main else None)
            return prepared or work()
        finally:
            for thread in importing:
                thread.join()

    def _stepped(self, plan: BatchPlan, saved: Saved | None) -> BatchPlan:
        """Fix the steps of the plan: by itself, by the options, by the run that is resumed, or by the number of
        ranks.
        """
        if saved is not None:
            return plan.with_step_size(saved.position.microbatches_per_step)
        if self.config.batchplan is not None and self.config.tokens_per_step is not None:
            return plan.with_step_size(step_size(self.config.tokens_per_step, plan.config.token_budget))
        return plan if plan.config.microbatches_per_step else plan.with_step_size(self.ranks.world_size)

    def _check_fit(self) -> None:
        """Check that the model knows every token, and has a position for the longest row."""
        prepared = self.prepared
        for plan, store in ((self.plan, prepared.store), (prepared.eval_plan, prepared.eval_store)):
            if plan is not None and store is not None:
                check_lengths(plan, self.model, self.config.model)
                check_vocabulary(store.tokens, self.model, self.config.model)

    @property
    def epochs(self) -> int:
        return self.config.epochs or self.plan.num_epochs

    def _count_steps(self) -> int:
        steps = sum(self.plan.deal(epoch).steps for epoch in range(self.epochs))
        if steps == 0:
            raise DataError(
                "the plan contains no optimizer steps: with so few samples, --drop-last or --remainder drop "
                "discards everything"
            )
        return min(steps, self.config.max_steps or steps)

    def train(self, on_message: Callable[[str], None] | None = None) -> SftResult:
        """Take the steps that are left."""
        began = time.monotonic()
        say = on_message or silent
        try:
            self._announce(say)
            ends = self.take_steps(say)
            stopped = self.step < self.steps
            return SftResult(
                steps=self.steps,
                taken=ends.count,
                first_loss=ends.first,
                last_loss=ends.last,
                eval_loss=ends.evaluated,
                tokens=ends.tokens,
                seconds=time.monotonic() - began,
                fill=ends.fill,
                model=self.finish(stopped=stopped),
                stopped=stopped,
                left_out=left_out(self.plan),
            )
        finally:
            self.close()

    def _announce(self, say: Callable[[str], None]) -> None:
        """Say what a user would want to know before the first step."""
        if not self.ranks.is_main:
            return
        self.set_aside_later(say)
        if found := left_out(self.plan):
            say("by the options of the plan: " + ", ".join(f"{many:,} {what}" for what, many in found.items()))
        if self.plan.step_size < self.ranks.world_size:
            say(
                f"a step has {self.plan.step_size} microbatches for {self.ranks.world_size} ranks, so some ranks are "
                "idle in it"
            )

    def batches(self) -> Iterator[list[TensorBatch]]:
        while self.step < self.steps and self.loader.epoch < self.epochs:
            yield from self.loader.steps()

    def evaluated(self, batches: Sequence[Any]) -> float | None:
        """Evaluate every `eval_every` steps, or at the end of every epoch, and after the last step."""
        if self.prepared.eval_plan is None:
            return None
        every, batch = self.config.eval_every, batches[-1]
        ends_epoch = batch.after is not None and batch.after.epoch > batch.epoch
        due = ends_epoch if every is None else self.step % every == 0
        return self.evaluate() if due or self.step == self.steps else None

    @torch.no_grad()
    def evaluate(self) -> float:
        """Return the mean loss over the trained-on tokens of the evaluation data."""
        assert self.prepared.eval_plan is not None
        assert self.prepared.eval_store is not None
        self.stepper.module.eval()
        loss = learned = 0.0
        for batch in self.make_loader(self.prepared.eval_plan, self.prepared.eval_store):
            loss += float(self.stepper.loss(batch.to(self.ranks.device)))
            learned += batch.num_loss_tokens
        self.stepper.module.train()
        loss, learned = self.ranks.total([loss, learned])
        return loss / max(learned, 1)


def _check_same_plan(plan: BatchPlan, saved: Saved | None) -> None:
    if saved is not None and saved.position.fingerprint != plan.fingerprint:
        raise MismatchError(
            f"{saved.path} belongs to another plan: it was made with {saved.position.fingerprint[:8]}.., this one is "
            f"{plan.fingerprint[:8]}..; resume with the plan and data of that run"
        )
