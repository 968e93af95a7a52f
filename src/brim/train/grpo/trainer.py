"""One GRPO run: rollouts and the optimizer steps on them take turns, with evaluations and checkpoints between them."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NoReturn

from brim.core.errors import BrimError, MismatchError, OptionError
from brim.core.progress import Say
from brim.generate.model import CausalModel
from brim.generate.score.scorer import Scorer
from brim.plan.position import CheckpointPosition
from brim.train import checkpoint as files
from brim.train.callbacks import Callback, OnStep
from brim.train.causal import CausalRun
from brim.train.checkpoint import Saved
from brim.train.given import Given
from brim.train.grpo.config import GrpoConfig
from brim.train.grpo.experience import GrpoBatch
from brim.train.grpo.hooks import GrpoGiven, GrpoHooks
from brim.train.grpo.learning import MEANS, Learning, Scorers
from brim.train.grpo.objective import GrpoLoss
from brim.train.grpo.reference import Reference
from brim.train.grpo.report import GrpoResult, RolloutReport
from brim.train.grpo.rolling import Roller
from brim.train.grpo.setup import Opened, open_reload, open_source
from brim.train.grpo.summary import log_of, rollout_report
from brim.train.grpo.watch import Watch
from brim.train.grpo.weights import Weights
from brim.train.ranks import Ranks
from brim.train.report import StepReport
from brim.train.step import NotFiniteError

EMPTY = 3
"""Rollouts in a row without anything to learn after which a run ends."""


class GrpoRun(CausalRun[GrpoConfig]):
    """One run on one rank."""

    section = "grpo"

    def __init__(
        self,
        config: GrpoConfig,
        ranks: Ranks,
        opened: ExitStack,
        saved: Saved | None = None,
        *,
        given: GrpoGiven,
        objects: Given,
        hooks: GrpoHooks | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.hooks = hooks or GrpoHooks()
        watching = [] if self.hooks.on_step is None else [OnStep(self.hooks.on_step)]
        super().__init__(config, ranks, [*callbacks, *watching], objects)
        self.rollout = 0
        """Rollouts that are finished."""
        self.drawn = 0
        """Number of the next task."""
        self.empty = 0
        """Rollouts in a row, up to now, in which there was nothing to learn."""
        self.ended_early: str | None = None
        self._learning: Learning | None = None
        self._last: RolloutReport | None = None
        """The report on the rollout that was just finished."""
        self._checked = False
        """Whether this process has compared the log-probabilities of drawing and of training."""
        self._saved_step = 0
        opened.callback(self.close)
        state = {} if saved is None else self.check_kind(saved)
        with self.claimed(config.to_dict(), new=saved is None):
            self._load(saved, state)
            self.weights = Weights(
                self.model, self.config, ranks, self.tokenizer, given.reload or open_reload(config.reload),
                self.whole_weights,
            )  # fmt: skip
            self.opened: Opened = ranks.together(lambda: self._open(given))
            opened.callback(self.opened.source.close)
            self._attach(saved)
            self.schedule(self._count_steps(saved))
            self._restore(state)
            self.roller = Roller(self.opened.source, self.config, ranks, lambda: self.stop_requested)
            self.watch = Watch(
                self.config, ranks, self.roller, tasks=self.opened.held_out, rollouts=self.rollout, step=self.step
            )
        self._began_at = self.step

    def _load(self, saved: Saved | None, state: dict[str, Any]) -> None:
        """Load the model, and the reference if there is one."""
        source = self.find_source(saved)
        self.tokenizer = self.find_tokenizer(source, None)
        self.load(source, saved)
        # The default of the learning rate depends on the size of the model.
        weights = sum(weight.numel() for weight in self.model.parameters())
        self.config = replace(self.config, learning_rate=self.config.learning_rate_for(weights))
        self.model.to(self.ranks.device)
        self.reference: Reference | None = None
        if not self.config.kl_coef:
            return
        self.reference = Reference.of(
            self.model,
            self.config,
            self.tokenizer,
            given=self.given.model is not None and saved is None,
            device=self.ranks.device,
        )
        before = state.get("reference")
        if before is not None and before != self.reference.fingerprint:
            raise MismatchError(
                f"the reference is not the one that the run began with: {self.config.reference or self.config.model} "
                "has changed; restore it, or start a new run"
            )

    def _open(self, given: GrpoGiven) -> Opened:
        on_attempt = self.hooks.on_attempt or _ignore
        return open_source(self.config, self.weights.player, self.tokenizer, given, on_attempt=on_attempt)

    def _attach(self, saved: Saved | None) -> None:
        objective = GrpoLoss(self.model, self.config)
        old = objective.scorer
        if self.weights.player is not self.model:
            old = Scorer(CausalModel(self.weights.player))
        self.scorers = Scorers(objective.scorer, old, self.reference)
        # Before the model is wrapped: ranks that shard it can only compute in step.
        objective.scorer.prepare()
        self.attach_restored(objective, saved)

    def _count_steps(self, saved: Saved | None) -> int:
        """Return the steps of the run: as asked for, or one pass through the prompts."""
        if self.config.max_steps is not None:
            return self.config.max_steps
        if saved is not None:
            return saved.schedule_steps
        if self.opened.tasks is None:
            raise OptionError("max_steps is missing: an environment has no end of its own (--max-steps)")
        return max(1, self.opened.tasks // self.config.prompts_per_step)

    def _restore(self, state: dict[str, Any]) -> None:
        if state:
            self.rollout, self.drawn, self.empty = state["rollout"], state["drawn"], state["empty"]
            self.weights.version = state["version"]
            self._saved_step = self.step
            self.resumed_at(self.step, self.tokens)

    # What a checkpoint holds

    @property
    def position(self) -> CheckpointPosition:
        return CheckpointPosition(epoch=self.rollout, microbatch_idx=self.drawn, global_step=self.step)

    def section_state(self) -> dict[str, Any]:
        return {
            "rollout": self.rollout,
            "drawn": self.drawn,
            "empty": self.empty,
            "version": self.weights.version,
            "reference": None if self.reference is None else self.reference.fingerprint,
        }

    @property
    def progress(self) -> object:
        return self.step, self.rollout

    @property
    def can_pause(self) -> bool:
        """Whether no rollout is half-way."""
        return self._learning is None

    @property
    def is_save_due(self) -> bool:
        """Whether a rollout has just ended, and a multiple of `save_every` was passed since the last checkpoint."""
        every = self.config.save_every
        return every is not None and self.can_pause and self.step // every > self._saved_step // every

    def save(self) -> None:
        super().save()
        self._saved_step = self.step
        self.watch.write_page(is_over=False)

    # The run

    def train(self) -> GrpoResult:
        """Play the rollouts and take the steps that are left, and write the page."""
        began = time.monotonic()
        say = self.hooks.on_message
        self._announce(say)
        if not self.rollout and self.opened.held_out:
            with self._stop.on_signals(say):
                self.weights.refresh_for_evaluation(self.step)
                self.watch.evaluate_before(self._announce_evaluation)
        self.take_steps(say)
        stopped = self.is_stopping and self.step < self.steps
        model = self.finish(stopped=stopped)
        return GrpoResult(
            rollouts=self.watch.reports,
            before=self.watch.before,
            steps=self.step,
            taken=self.step - self._began_at,
            model=model,
            page=self.watch.write_page(is_over=not stopped),
            seconds=time.monotonic() - began,
            stopped=stopped,
            ended_early=self.ended_early,
        )

    def _announce(self, say: Say) -> None:
        if not self.ranks.is_main:
            return
        self.set_aside_later(say)
        if self.opened.left_out:
            say(f"{self.opened.left_out:,} prompts are left out: they leave no room for a response")
        if self.config.eval_prompts and not self.opened.held_out:
            say("there are no held-out prompts, so nothing is evaluated; name some (--eval-dataset)")

    def _announce_evaluation(self, tasks: int) -> None:
        if self.hooks.on_evaluation is not None:
            self.hooks.on_evaluation(tasks)

    @property
    def is_over(self) -> bool:
        return self.is_stopping or self.ended_early is not None or self.step >= self.steps

    def batches(self) -> Iterator[list[GrpoBatch]]:
        """Play one rollout after the other, and yield the microbatches of the steps on it."""
        while True:
            self.agree_to_stop()
            if self.is_over:
                return
            try:
                learning = self._begin()
            except BrimError:  # raised on all ranks: keep the steps so far
                if self.step:
                    self.save_if_new()
                raise
            if learning is None:
                self.stop()
                self.agree_to_stop()
                return
            if learning.planned:
                yield from learning.steps()
            else:
                self._finish(learning)
                self._check_empty()

    def _begin(self) -> Learning | None:
        """Play a rollout. Returns None if a rank was asked to stop; nothing of the rollout is kept then."""
        self.weights.refresh(self.step)
        rollout = self.roller.roll(self.drawn)
        if rollout is None:
            return None
        if all(attempt.reward is None for group in rollout.groups for attempt in group.attempts):
            first = rollout.groups[0].attempts[0]
            raise BrimError(
                f"every attempt of rollout {self.rollout + 1} failed, so there is nothing to learn; the first: "
                f"{first.failure}: {first.message}"
            )
        learning = Learning(
            rollout,
            self.config,
            self.scorers,
            self.ranks,
            number=self.rollout,
            version=self.weights.version,
            step=self.step,
            most=self.steps - self.step,
        )
        if not self._checked:
            self._check_mismatch(learning.first_mismatch())
        self._learning = learning
        return learning

    def _check_mismatch(self, mismatch: float | None) -> None:
        """
        Raises:
            BrimError: The log-probabilities of drawing and of training are too different.
        """
        if mismatch is None:
            return
        self._checked = True
        if mismatch <= self.config.max_mismatch:
            return
        whom = "the servers have other weights, or read other tokens" if self.config.servers else "something is broken"
        raise BrimError(
            f"the log-probabilities with which tokens were drawn differ from those of the training code by "
            f"{mismatch:.3g} nats on average, more than max_mismatch {self.config.max_mismatch}: {whom}; the step on "
            "them was not kept"
        )

    def after_step(self, report: StepReport) -> None:
        learning = self._learning
        assert learning is not None
        learning.add(report)
        self._check_mismatch(report.metrics.get("mismatch"))
        if learning.taken == learning.planned:
            self._finish(learning)

    def _finish(self, learning: Learning) -> None:
        """Report on a rollout after the last step on it."""
        self._learning = None
        self.rollout += 1
        self.drawn = learning.rollout.next_draw
        self.empty = 0 if learning.planned else self.empty + 1
        trained = time.monotonic() - learning.began if learning.planned else 0.0
        evaluation = None
        if not self.is_stopping and self.watch.is_due(self.step, over=self.step >= self.steps):
            self.weights.refresh_for_evaluation(self.step)
            evaluation = self.watch.evaluate(self._announce_evaluation)
        if not self.ranks.is_main:
            return
        self._last = rollout_report(
            learning,
            rollout=self.rollout,
            step=self.step,
            steps=self.steps,
            learning_rate=self.rate(max(self.step - 1, 0)),
            train_seconds=trained,
            evaluation=evaluation,
            shown=self.config.show_groups,
        )
        self.watch.add(self._last)
        if self.hooks.on_rollout is not None:
            self.hooks.on_rollout(self._last)

    def _check_empty(self) -> None:
        """End the run if there has been nothing to learn for a while.

        Raises:
            BrimError: There never was.
        """
        if self.empty < EMPTY:
            return
        reward = None if self._last is None else self._last.reward
        reward = self.ranks.share(reward)
        found = (
            f"in each of the last {EMPTY} rollouts, all attempts at a task got the same reward (mean {reward:.3g}), so "
            "there is nothing to learn"
        )
        if not self.step:
            raise BrimError(
                f"{found}; give easier tasks, a reward with more values, a better model to begin with, or larger groups"
            )
        self.ended_early = f"{found}: the run ends after {self.step} of {self.steps} steps"
        if self.ranks.is_main:
            self.hooks.on_message(self.ended_early)

    # Numbers

    def metrics(self) -> dict[str, float]:
        """Return the figures of the objective as means over the drawn tokens of all ranks."""
        sums = super().metrics()
        tokens = max(sums["tokens"], 1e-9)
        found = {name: sums[name] / tokens for name in MEANS}
        if self.reference is None or self.config.kl_in == "reward":
            del found["kl"]
        if not self.config.correction_limit:
            del found["correction"]
        if sums["fresh_tokens"]:
            found["mismatch"] = sums["mismatch"] / sums["fresh_tokens"]
        return {**found, "trained_tokens": sums["tokens"] * self.ranks.world_size}

    def logged(self, report: StepReport) -> Mapping[str, float]:
        """Return the figures of the step and, after the last one on a rollout, those of the rollout."""
        values = dict(super().logged(report))
        if self.can_pause and self._last is not None:
            values |= log_of(self._last)
        return values

    def not_finite(self, error: NotFiniteError) -> NoReturn:
        found = files.checkpoints(self.output)
        raise BrimError(
            f"the {error.what} is not finite in step {self.step + 1}; {self.named(error.batches)}. The step was not "
            f"taken; lower the learning rate, which is {self.config.learning_rate}. The last checkpoint is "
            f"{found[-1] if found else 'none yet'}"
        ) from None


def _ignore(done: int, total: int) -> None:
    """Ignore progress."""
