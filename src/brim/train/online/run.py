"""Fine-tuning that plays: rounds of puzzles, a replay buffer of what worked, windows over it, steps.

Playing and training take turns. A round is played with the weights of its moment; what was solved goes into a
`ReplayBuffer`; a rolling plan draws a window from it, and the steps of the window are taken as in any run. So neither
side runs ahead of the other: no action of the model is trained on that is older than `max_staleness` steps, and nothing
is played that would have to wait.

A checkpoint holds the replay buffer, the window and the position in it: a run that resumes from it takes the same next
step. With several ranks, the main one plays and tells the others; every rank has the same replay buffer and draws the
same window.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from brim.batch.token_source import check_belongs
from brim.batch.torch import PlanLoader, TensorBatch
from brim.core.arrays import ceil_div
from brim.core.errors import BrimError, DataError, LengthError, OptionError
from brim.core.options import LONGEST
from brim.core.progress import silent
from brim.data.ids import comes_twice
from brim.data.rows.encode import identity
from brim.data.rows.format import RowFormat
from brim.data.rows.open import open_source
from brim.envs.puzzle.episode import GymEpisode
from brim.envs.puzzle.run import find_server
from brim.plan.position import CheckpointPosition
from brim.stream.curriculum import Curriculum
from brim.stream.offline.stream import OfflineDatasetStream
from brim.stream.replay.buffer import ReplayBuffer
from brim.stream.window import RollingBatchPlanWindow
from brim.train import checkpoint as files
from brim.train.callbacks import Callback, OnStep
from brim.train.checkpoint import Saved
from brim.train.log import History
from brim.train.model import check_lengths, check_vocabulary
from brim.train.online.config import OnlineConfig
from brim.train.online.policy import ModelPolicy
from brim.train.online.rounds import Round, play_round
from brim.train.planned import PlannedRun
from brim.train.prepare import Bar, left_out, no_bar, step_size
from brim.train.process_group import join_ranks
from brim.train.ranks import Ranks
from brim.train.report import Ends, RoundReport, SftResult, StepReport

BUFFER, WINDOW = "buffer.brim", "window.brim"
ROUNDS = "rounds.jsonl"
"""The file of the reports on rounds, a JSON line for each."""


@dataclass(frozen=True)
class OnlineHooks:
    """Functions that are called on the main rank during the run."""

    on_step: Callable[[StepReport], None] | None = None
    on_round: Callable[[RoundReport], None] | None = None
    on_episode: Callable[[GymEpisode], None] | None = None
    on_message: Callable[[str], None] | None = None


@dataclass(frozen=True)
class OnlineResult:
    """The outcome of a run."""

    sft: SftResult
    rounds: tuple[RoundReport, ...]
    """Reports of all rounds, those before a resume included."""


def train_online(
    config: OnlineConfig,
    *,
    resume: Path | None = None,
    hooks: OnlineHooks | None = None,
    callbacks: Sequence[Callback] = (),
    bar: Bar = no_bar,
) -> OnlineResult:
    """Play and train, and leave the model in `output`/model. `resume` is a checkpoint (`find_checkpoint`).

    Raises:
        PuzzleError: No puzzle server answers.
        MismatchError: The checkpoint belongs to another run.
        BrimError: No episode could be played, the loss is not finite, or contact with another rank was lost.
    """
    if not config.model:
        raise OptionError("model is missing: name it in the options")
    saved = files.load_saved(resume) if resume is not None else None
    with join_ranks() as ranks:
        bar, hooks = (bar, hooks or OnlineHooks()) if ranks.is_main else (no_bar, OnlineHooks())
        return OnlineRun(config, ranks, saved, bar, hooks=hooks, callbacks=callbacks).train()


class OnlineRun(PlannedRun[OnlineConfig]):
    """One run on one rank."""

    section = "online"

    def __init__(
        self,
        config: OnlineConfig,
        ranks: Ranks,
        saved: Saved | None = None,
        bar: Bar = no_bar,
        *,
        hooks: OnlineHooks | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.hooks = hooks or OnlineHooks()
        watching = [] if self.hooks.on_step is None else [OnStep(self.hooks.on_step)]
        super().__init__(config, ranks, [*callbacks, *watching])
        self.round = 0
        """Rounds that were played."""
        self.loader: PlanLoader | None = None
        self.history: History[RoundReport] | None = None
        self.left_out: dict[str, int] = {}
        """Samples of the data and of all windows of this process that were left out by the options."""
        state = {} if saved is None else self.check_kind(saved)
        with self.claimed(config.to_dict(), new=saved is None):
            self._check(state.get("round", 0))
            source = self.find_source(saved)
            self.tokenizer = self.find_tokenizer(source, None)
            self.load(source, saved)
            self.step_size: int = state["microbatches_per_step"] if saved is not None else self._step_size()
            self._check_staleness()
            self.curriculum = Curriculum(config.curriculum)
            self.buffer = ReplayBuffer(config.replay) if saved is None else ReplayBuffer.load(saved.path / BUFFER)
            self.rolling = RollingBatchPlanWindow(
                self.buffer,
                config.window(self.step_size),
                pad_id=self.tokenizer.pad_id,
                tokenizer_hash=identity(
                    self.tokenizer, RowFormat(shape="prompt").layout({"prompt": "", "response": ""})
                ),
                curriculum=self.curriculum if config.priority == "difficulty" else None,
            )
            self.longest = min(
                config.batching.limit, getattr(self.model.config, "max_position_embeddings", None) or LONGEST
            )
            self.policy = ModelPolicy(
                self.model, self.tokenizer, temperature=config.temperature, seed=config.seed, longest=self.longest
            )
            if saved is None:
                self._remember_data(bar)
            else:
                self._restore(saved, state)
            self.wrap(saved, packed=config.batching.packing is not None, longest=self.longest)
            self.schedule(
                saved.schedule_steps if saved is not None else config.max_steps or config.rounds * self.window_steps
            )

    def _check(self, played: int) -> None:
        """Check that there is something to play, and a server, before anything heavy is loaded."""
        rounds = self.config.rounds
        if rounds < played:
            raise OptionError(
                f"{played} rounds were played already, and {rounds} were asked for; ask for more, or leave --rounds out"
            )
        self.ranks.together(lambda: find_server(self.config.gym) if self.ranks.is_main and played < rounds else None)

    @property
    def window_steps(self) -> int:
        """Upper limit of the steps of a window."""
        return self.config.passes * ceil_div(self.config.window_microbatches, self.step_size)

    def _check_staleness(self) -> None:
        most = self.config.max_staleness
        if most is not None and most < self.window_steps:
            raise OptionError(
                f"a window takes up to {self.window_steps} steps ({self.config.passes} passes of "
                f"{self.config.window_microbatches} microbatches), so actions would become older than max_staleness "
                f"{most}; raise it, or make windows smaller"
            )

    def _step_size(self) -> int:
        """Number of microbatches in a step, over all ranks; a resumed run keeps it when the number of ranks changes."""
        batching, tokens = self.config.batching, self.config.tokens_per_step
        if tokens is not None:
            return step_size(tokens, batching.token_budget)
        return batching.microbatches_per_step or self.ranks.world_size

    def _remember_data(self, bar: Bar) -> None:
        """Add all samples of `data` to the replay buffer before the first round."""
        if not self.config.data:
            return
        most = self.longest if self.config.batching.overflow == "skip" else None
        stream = OfflineDatasetStream(self.config.data, self.tokenizer, format=self.config.format, max_length=most)
        total = len(open_source(self.config.data))
        with bar("reading") as progress:
            for done, sample in enumerate(stream, 1):
                if sample.sample_id in self.buffer:
                    raise comes_twice(sample.sample_id, f" in {self.config.data}")
                if self.buffer.is_full:
                    raise OptionError(
                        f"{self.config.data} has {total} samples, the replay buffer holds {self.config.buffer_size}; "
                        "raise --buffer-size, or give less data"
                    )
                check_vocabulary(sample.input_ids, self.model, self.config.model)
                if self.config.batching.overflow == "error" and sample.length > self.longest:
                    raise LengthError(
                        f"sample {sample.sample_id!r} of {self.config.data} has {sample.length} tokens, "
                        f"{self.longest} fit the budget and the model; say what to do with long samples: --overflow "
                        "truncate, split or skip"
                    )
                self.buffer.add(sample)
                progress(done, total)
        self.left_out |= {f"samples of the data {reason}": many for reason, many in stream.metrics.filtered.items()}

    def _restore(self, saved: Saved, state: dict[str, Any]) -> None:
        self.round = state["round"]
        self.curriculum.load_state_dict(state["curriculum"])
        self.rolling.load(saved.path / WINDOW)
        window = self.rolling.current
        if window is not None:
            self._open()
            assert self.loader is not None
            self.loader.load_state_dict(asdict(saved.position))

    @property
    def position(self) -> CheckpointPosition:
        """The position in the plan of the window; before the first window, in no plan."""
        if self.loader is not None:
            return self.loader.position
        return CheckpointPosition(epoch=0, microbatch_idx=0, microbatches_per_step=self.step_size)

    @property
    def progress(self) -> object:
        return self.step, self.round

    def stored_config(self) -> dict[str, Any]:
        return self.config.to_dict()["sft"]

    def section_state(self) -> dict[str, Any]:
        state = {"config": self.config.to_dict(), "round": self.round, "microbatches_per_step": self.step_size}
        return {**state, "curriculum": self.curriculum.state_dict()}

    def write_more(self, directory: Path) -> None:
        """Write the replay buffer, and the window of it that is being trained on."""
        self.buffer.save(directory / BUFFER)
        self.rolling.save(directory / WINDOW)

    def train(self) -> OnlineResult:
        """Play the rounds and take the steps that are left."""
        began = time.monotonic()
        say = self.hooks.on_message or silent
        try:
            if self.ranks.is_main:
                self.history = History(self.output / ROUNDS, self.round, read=lambda line: RoundReport(**line))
            self.set_aside_later(say)
            ends = self.take_steps(say)
            return self._result(time.monotonic() - began, ends)
        finally:
            self.close()

    @property
    def is_over(self) -> bool:
        """Whether no other step may be taken. Playing every round is another way to end."""
        return self.is_stopping or (self.config.max_steps is not None and self.step >= self.config.max_steps)

    def batches(self) -> Iterator[list[TensorBatch]]:
        """Yield the steps of one window after the other, and play a round between them."""
        while not self.is_over:
            yield from self._window_batches()
            if self.is_over or self.round >= self.config.rounds:
                return
            try:
                self._play()
            except BrimError:  # raised on all ranks: keep the steps and rounds so far
                if self.round:
                    self.save_if_new()
                raise

    def _window_batches(self) -> Iterator[list[TensorBatch]]:
        """Yield what is left of the window.

        The epoch of a batch counts all passes, so that each has randomness of its own.
        """
        passes, window = self.config.passes, self.rolling.window_id
        while self.loader is not None and self.loader.epoch < passes:
            for batches in self.loader.steps():
                yield [
                    replace(batch, spec=replace(batch.spec, epoch=window * passes + batch.epoch)) for batch in batches
                ]

    def _play(self) -> None:
        """Play a round, and draw a window. If a signal comes on the way, nothing of the round is kept."""
        began = time.monotonic()

        def play() -> Round:
            return play_round(
                self.config,
                self.policy,
                self.curriculum,
                number=self.round,
                version=self.step,
                on_episode=self.hooks.on_episode or silent,
                longest=self.longest,
                stop=lambda: self.stop_requested,
            )

        played = self.ranks.share(self.ranks.together(lambda: play() if self.ranks.is_main else None))
        self.agree_to_stop()  # a signal may have come to another rank than the one that plays
        if played.stopped:
            return
        self.round += 1
        self._learn(played)
        drawn = self.rolling.can_build
        if drawn:
            self.rolling.build_next_window()
            self._open()
        if self.history is not None:
            report = self._report(played, drawn, time.monotonic() - began)
            self.history.add(report)
            if self.hooks.on_round is not None:
                self.hooks.on_round(report)

    def _learn(self, played: Round) -> None:
        """Add the samples of the round to the replay buffer, and evict actions that would become older than
        `max_staleness`.
        """
        self.curriculum.record_batch(played.own_results)
        if self.config.max_staleness is not None:  # what is drawn now is trained on until the window ends
            self.buffer.evict_older_than(self.step + self.window_steps - self.config.max_staleness)
        self.buffer.add_batch(played.samples)
        if self.config.priority == "reward":
            self.buffer.update_priorities_by_reward(alpha=1.0)

    def _open(self) -> None:
        window = self.rolling.current
        assert window is not None
        check_belongs(window.plan, window.store)
        check_lengths(window.plan, self.model, self.config.model)
        self.left_out = dict(Counter(self.left_out) + Counter(left_out(window.plan)))
        self.loader = self.make_loader(window.plan, window.store)

    def _report(self, played: Round, drawn: bool, seconds: float) -> RoundReport:
        window = self.rolling.current if drawn else None
        return RoundReport(
            round=played.number,
            step=self.step,
            episodes=played.episodes,
            played=played.own.of,
            solved=played.own.hits,
            solved_by_level={level: (rate.hits, rate.of) for level, rate in sorted(played.own_by_level.items())},
            guided=played.guided.of,
            guided_solved=played.guided.hits,
            errors=played.errors,
            filtered=played.filtered,
            samples=len(played.samples),
            buffer=len(self.buffer),
            evicted=self.buffer.total_evicted,
            target=self.curriculum.target,
            window=None if window is None else window.num_samples,
            window_fingerprint=None if window is None else window.fingerprint,
            seconds=seconds,
        )

    def _result(self, seconds: float, ends: Ends) -> OnlineResult:
        stopped = self.is_stopping
        if not stopped and self.step == 0:
            raise DataError(
                f"{self.round} rounds were played and nothing was learned: the replay buffer holds "
                f"{len(self.buffer)} actions, a window needs {self.config.min_samples}; play more episodes in a "
                "round, easier games, or more of them by hints (--guided)"
            )
        sft = SftResult(
            steps=self.steps if stopped else self.step,
            taken=ends.count,
            first_loss=ends.first,
            last_loss=ends.last,
            eval_loss=None,
            tokens=ends.tokens,
            seconds=seconds,
            fill=ends.fill,
            model=self.finish(stopped=stopped),
            stopped=stopped,
            left_out=self.left_out,
        )
        return OnlineResult(sft, () if self.history is None else tuple(self.history.reports))
