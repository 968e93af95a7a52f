"""`Run`, the base of every trainer: one output, a module, an optimizer, steps, checkpoints, records, signals.

A step takes the microbatches it is given, over all ranks. Its loss is the sum over what is trained on in them, divided
by how much that is: how the step was cut into microbatches and ranks does not change the mathematics.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, ClassVar, Generic, NoReturn, TypeVar

from brim.core.errors import BrimError
from brim.core.fill import Fill
from brim.train import checkpoint as files
from brim.train.callbacks import Callback
from brim.train.config import RunConfig
from brim.train.log import Records, need_wandb
from brim.train.objective import Objective, StepBatch
from brim.train.output import begin_output, hold_output, unbegin_output
from brim.train.process_group import wrap
from brim.train.ranks import Ranks
from brim.train.report import Ends, StepReport
from brim.train.schedule import learning_rate
from brim.train.signals import StopRequest
from brim.train.step import NotFiniteError, Stepper

Config = TypeVar("Config", bound=RunConfig)

NAMED = 8
"""Number of samples that an error names."""


class Run(ABC, Generic[Config]):
    """One run on one rank.

    A trainer is three things: options that extend `RunConfig`, an `Objective`, and a subclass of this class. The
    subclass

    1. makes its model and calls `self.attach(objective)` and `self.schedule(steps)` in its constructor, inside
       `with self.claimed(...)` if it owns an output directory; when it resumes, it restores weights and moments and
       calls `self.resumed_at(step)`;
    2. says where batches come from: `batches()` yields the microbatches of one optimizer step after the other, from
       `self.step` on, and may do other work between them (play a round, generate completions);
    3. says what a checkpoint holds: `facts()` for state.json, and `checkpoint_files()` for everything else.

    `take_steps` does the rest: steps, evaluation (`evaluated`), records, callbacks, checkpoints, and SIGTERM or Ctrl-C.
    A trainer whose steps come in groups, with checkpoints only between groups, overrides `after_step` and `can_pause`.
    A run for a causal language model starts from `brim.train.causal.CausalRun`, which has the second half of 1 and most
    of 3 already.

    Example: fit a line, in `tests/train/test_run.py`.
    """

    format: ClassVar[str] = files.FORMAT
    """The format of the run's checkpoints."""
    model: Any
    objective: Objective
    stepper: Stepper

    def __init__(self, config: Config, ranks: Ranks, callbacks: Sequence[Callback] = ()) -> None:
        if config.wandb is not None:  # what is missing is said before anything is computed
            need_wandb()
        self.config = config
        self.ranks = ranks
        self.output = Path(config.output)
        self.callbacks = tuple(callbacks) if ranks.is_main else ()
        self.step = 0
        """Optimizer steps that were taken, those before a resume included."""
        self.steps = 0
        """Optimizer steps of the whole run, as far as they are known."""
        self.tokens = 0
        self._stop = StopRequest()
        self._stopping = False
        self._saved_at: object = None
        self._held: IO[bytes] | None = None

    @abstractmethod
    def batches(self) -> Iterator[Sequence[StepBatch]]:
        """Yield the microbatches of one optimizer step after the other, until there are no more."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return what state.json of a checkpoint says, as JSON-like values. Called on every rank."""

    @abstractmethod
    def checkpoint_files(self) -> Callable[[Path], None]:
        """Collect what a checkpoint holds, on every rank, and return a function that writes it into a directory, called
        on one.
        """

    def evaluated(self, batches: Sequence[StepBatch]) -> float | None:
        """Return the evaluation loss after the step of these microbatches, or None if it is not evaluated."""
        return None

    def after_step(self, report: StepReport) -> None:
        """Called right after a step, before it is logged and before a checkpoint may be taken."""

    def logged(self, report: StepReport) -> Mapping[str, float]:
        """Return the values of a step that go into the curves."""
        return report.to_log(self.tokens)

    def not_finite(self, error: NotFiniteError) -> NoReturn:
        """Raise the error of a step whose loss or gradient is not finite. Called on all ranks together."""
        raise BrimError(
            f"the {error.what} is not finite in step {self.step + 1}; {self.named(error.batches)}; lower the "
            f"learning rate, which is {self.config.base_learning_rate}"
        ) from None

    @property
    def progress(self) -> object:
        """Changes whenever there is something new for a checkpoint to hold."""
        return self.step

    @property
    def is_over(self) -> bool:
        """Whether no other step may be taken. Running out of batches is another way to end."""
        return self._stopping or self.step >= self.steps

    @property
    def can_pause(self) -> bool:
        """Whether a checkpoint can be taken now. A run that is asked to stop takes steps until it can."""
        return True

    def is_due(self, every: int) -> bool:
        """Whether something that is done after every so many steps is done now: `save_every`, `log_every`."""
        return self.step % every == 0

    @property
    def is_save_due(self) -> bool:
        """Whether `save_every` asks for a checkpoint now."""
        every = self.config.save_every
        return every is not None and self.can_pause and self.is_due(every)

    @property
    def is_stopping(self) -> bool:
        """Whether a signal or a callback ends the run early, on whichever rank it came."""
        return self._stopping

    def stop(self) -> None:
        """End the run after its next step at which it can pause, with a checkpoint."""
        self._stop.set()

    @contextmanager
    def claimed(self, recorded: dict[str, Any], *, new: bool) -> Generator[None, None, None]:
        """Own the output directory while the run is made, and keep it. All ranks begin, or none.

        `recorded` are the options for run.json. A new run that is refused inside leaves the directory free.
        """

        def claim() -> None:
            self._held = hold_output(self.output)
            if new:
                begin_output(self.output, recorded)

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

    def attach(self, objective: Objective) -> None:
        """Wrap the objective for the ranks, and make its optimizer."""
        self.objective = objective
        self.stepper = Stepper(wrap(objective, self.ranks, fsdp=self.config.fsdp), self.config, self.ranks)

    def schedule(self, steps: int) -> None:
        """Fix the learning rates of a run of so many steps."""
        config, self.steps = self.config, steps
        warmup = config.warmup_steps if config.warmup_steps is not None else max(1, round(0.03 * steps))
        self.rate = learning_rate(config.base_learning_rate, config.schedule, total=steps, warmup=warmup)

    @property
    def current_rate(self) -> float:
        """The learning rate of the next step."""
        return self.rate(self.step)

    def resumed_at(self, step: int, tokens: int = 0) -> None:
        """Continue the counts of the checkpoint that was restored."""
        self.step = step
        self.tokens = tokens
        self._saved_at = self.progress

    def take_steps(self, say: Callable[[str], None]) -> Ends:
        """Take the steps that are left, or those before the run is asked to stop.

        The last one is in a checkpoint.
        """
        ends = Ends()
        self.stepper.module.train()
        with self._stop.on_signals(say), Records(self.config, self.ranks, after=self.step) as records:
            for callback in self.callbacks:
                callback.on_begin(self)
            for batches in self.batches():
                report = self._take_step(batches)
                records.samples(report.step, batches)
                report = replace(report, eval_loss=self.evaluated(batches), metrics=self.metrics())
                self.after_step(report)
                over = self.is_over and self.can_pause
                ends.add(report)
                due = over or report.eval_loss is not None or self.is_due(self.config.log_every)
                records.curves(report.step, self.logged(report), due=due)
                for callback in self.callbacks:
                    callback.on_step(self, report)
                if over or self.is_save_due:
                    self.save()
                if over:
                    break
            self.save_if_new()
        for callback in self.callbacks:
            callback.on_end(self, stopped=self._stopping)
        return ends

    def _take_step(self, batches: Sequence[StepBatch]) -> StepReport:
        began = time.monotonic()
        sums = [
            sum(values) for values in zip(*((b.num_loss_tokens, b.num_tokens, b.slots) for b in batches), strict=True)
        ]
        # One sum over the ranks for both: how large the step is, and whether any of them was asked to stop.
        learned, tokens, slots, stopping = self.ranks.total([*sums, float(self._stop.is_set)])
        self._stopping = stopping > 0
        rate = self.current_rate
        try:
            moved = self.stepper.take(batches, learned, rate)
        except NotFiniteError as error:
            self.not_finite(error)
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

    def metrics(self) -> dict[str, float]:
        """Return the further numbers of the objective about the step, as means over the ranks."""
        mine = self.objective.metrics()
        if not mine:
            return {}
        return {
            name: total / self.ranks.world_size
            for name, total in zip(mine, self.ranks.total(list(mine.values())), strict=True)
        }

    @property
    def stop_requested(self) -> bool:
        """Whether this rank was asked to stop. The others may not know yet."""
        return self._stop.is_set

    def agree_to_stop(self) -> None:
        """Between steps: if any rank was asked to stop, all of them are stopping. Every rank calls this together."""
        self._stopping = self.ranks.total([self._stop.is_set])[0] > 0

    def save_if_new(self) -> None:
        """Write a checkpoint unless the last one holds everything."""
        if self._saved_at != self.progress:
            self.save()

    def save(self) -> None:
        """Write a checkpoint of now. Either all ranks continue, or all raise."""
        path = files.checkpoint_path(self.output, self.step)
        facts, write_files = self.facts(), self.checkpoint_files()

        def write() -> None:
            files.write_checkpoint(path, facts, write_files, format=self.format)
            files.forget_old(self.output, self.config.keep)

        self.ranks.together(lambda: write() if self.ranks.is_main else None)
        self._saved_at = self.progress
        for callback in self.callbacks:
            callback.on_checkpoint(self, path)

    def named(self, batches: Sequence[StepBatch]) -> str:
        """The samples of some microbatches, for an error."""
        ids = [str(id) for batch in batches for id in batch.ids]
        more = f" and {len(ids) - NAMED} more" if len(ids) > NAMED else ""
        return f"the samples are {', '.join(ids[:NAMED])}{more}"

    def close(self) -> None:
        """Release the output directory."""
        if self._held is not None:
            self._held.close()
