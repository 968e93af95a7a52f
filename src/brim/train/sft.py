"""Supervised fine-tuning that follows a plan.

A step is the microbatches that the plan puts into it, over all ranks. A checkpoint is taken between steps and says which steps of the plan
are done; a run that goes on from it, on any number of ranks, takes exactly the others.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from brim.batch.torch import PlanLoader, TensorBatch, loader
from brim.core.errors import DataError, MismatchError
from brim.core.extras import need
from brim.core.fill import Fill
from brim.core.progress import silent
from brim.data.token_store import TokenStore
from brim.plan.plan import BatchPlan
from brim.plan.position import CheckpointPosition
from brim.train import checkpoint as files
from brim.train.checkpoint import Saved
from brim.train.config import SftConfig
from brim.train.log import Records
from brim.train.model import check_lengths, check_vocabulary, find_tokenizer
from brim.train.prepare import Bar, Prepared, left_out, no_bar, prepare, step_size
from brim.train.ranks import Ranks, join_ranks
from brim.train.report import Ends, SftResult, StepReport
from brim.train.run import Run, find_source

if TYPE_CHECKING:
    import torch
else:
    torch = need("torch", extra="train", user="brim.train")


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


class SftRun(Run):
    """One run of a plan on one rank."""

    def __init__(self, config: SftConfig, ranks: Ranks, saved: Saved | None = None, bar: Bar = no_bar) -> None:
        """Everything that can be refused is refused here, before the first step."""
        super().__init__(config, ranks)
        with self._claimed(new=saved is None):
            loaded = find_source(config, saved)
            planned = BatchPlan.load(config.batchplan) if config.batchplan is not None else None
            self.tokenizer = find_tokenizer(loaded, planned)
            self.prepared = self._prepare(bar)
            self.plan = self._stepped(self.prepared.plan, saved)
            _check_same_plan(self.plan, saved)
            self._load(loaded, saved)
            self._check_fit()
            self._wrap(saved, packed=self.plan.config.packing is not None, longest=self.plan.longest)
            self.loader = self._loader(self.plan, self.prepared.store)
            if saved is not None:
                self.loader.load_state_dict(asdict(saved.position))
            self._schedule(self._count_steps() if saved is None else saved.schedule_steps)

    @property
    def position(self) -> CheckpointPosition:
        return self.loader.position

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

    def _check_fit(self) -> None:
        """The model knows every token, and has a position for the longest row."""
        prepared = self.prepared
        for plan, store in ((self.plan, prepared.store), (prepared.eval_plan, prepared.eval_store)):
            if plan is not None and store is not None:
                check_lengths(plan, self.model, self.config.model)
                check_vocabulary(store.tokens, self.model, self.config.model)

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
        say = on_message or silent
        try:
            return self._train(on_step, say)
        finally:
            self.close()

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


def _check_same_plan(plan: BatchPlan, saved: Saved | None) -> None:
    if saved is not None and saved.online is not None:
        raise MismatchError(f"{saved.path} is of a run that plays; resume it with train_online, or `brim train sft --resume`")
    if saved is not None and saved.position.fingerprint != plan.fingerprint:
        raise MismatchError(
            f"{saved.path} belongs to another plan: it was made with {saved.position.fingerprint[:8]}.., this one is "
            f"{plan.fingerprint[:8]}..; resume with the plan and data of that run"
        )
