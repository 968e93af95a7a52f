"""Train an agent that solves generated ARC tasks, with PPO: `train_arc`.

    run.json          the options
    log.jsonl         a report on every update: the curves
    checkpoint-*      weights, moments, environments, key
    evaluation.json   held-out tasks by kind: the agent beside random actions
    episodes.json     some of these episodes, solved and not
    episodes.html     a page that replays them
    report.html       all of it as a page

Everything that goes on from update to update is in one tree of arrays, and an update is one compiled function of it. A
run that was killed makes the updates after its last checkpoint again, and ends with the same weights to the bit, on one
machine and one version of JAX.
"""

import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from brim.core.atomic import atomic_file
from brim.core.document import Document
from brim.core.errors import BrimError, OptionError
from brim.core.options import check_unchanged
from brim.core.progress import Say, silent
from brim.envs.arc.episodes.episode import ArcEpisode
from brim.envs.arc.episodes.files import write_episodes
from brim.envs.arc.look.page import render_replay_page
from brim.train.arc.checkpoint import as_loaded, load_tree, read_saved, save_learning
from brim.train.arc.config import MAY_CHANGE, ArcPpoConfig, generate_tasks
from brim.train.arc.evaluate import evaluate, solved_share
from brim.train.arc.page import render_arc_page
from brim.train.arc.ppo import Learner
from brim.train.arc.report import GREEDY, SAMPLED, Evaluation, UpdateReport
from brim.train.checkpoint import checkpoint_path, forget_old, set_aside_later
from brim.train.log import LOG, History
from brim.train.output import RUN, begin_output, hold_output, unbegin_output
from brim.train.signals import StopRequest

EVALUATION, EPISODES, REPLAYS, REPORT = "evaluation.json", "episodes.json", "episodes.html", "report.html"
DOCUMENT = Document(format="brim.arc-evaluation/1", what="an evaluation of an ARC run")


@dataclass(frozen=True)
class ArcHooks:
    """Functions that are called during the run."""

    on_message: Say = silent
    on_update: Callable[[UpdateReport], None] | None = None


@dataclass(frozen=True)
class ArcResult:
    """The outcome of a run."""

    output: Path
    updates: tuple[UpdateReport, ...]
    """Reports on all updates, those before a resume included."""
    taken: int
    """Updates of these that were made now."""
    evaluation: Evaluation | None
    """None if the run was stopped."""
    seconds: float
    stopped: bool
    """Whether a signal ended the run before its last update."""

    @property
    def page(self) -> Path:
        return self.output / REPORT


def train_arc(
    config: ArcPpoConfig,
    *,
    output: str | Path,
    resume: str | Path | None = None,
    hooks: ArcHooks | None = None,
) -> ArcResult:
    """Train, evaluate on held-out tasks, and write pages about the run and about its episodes.

    SIGTERM and Ctrl-C end the run after the present update, with a checkpoint.

    Args:
        output: Directory of the run. A resumed run stays where it is.
        resume: A checkpoint to continue from (`find_checkpoint`).

    Raises:
        OptionError: The output holds a run, and `resume` is not given; or other files, which would be overwritten.
        MismatchError: The checkpoint belongs to a run with other options.
        DamagedError: The checkpoint is damaged.
        BrimError: The loss is not finite, or a checkpoint cannot be written.
    """
    run = ArcRun(config, Path(output), None if resume is None else Path(resume), hooks or ArcHooks())
    with closing(run):
        return run.train()


class ArcRun:
    """One run. It owns its output directory until it is closed."""

    def __init__(self, config: ArcPpoConfig, output: Path, resume: Path | None, hooks: ArcHooks) -> None:
        self.config = config
        self.output = output
        self.update = 0
        """Number of updates that were made, those before a resume included."""
        self._hooks = hooks
        self._stop = StopRequest()
        self._saved_at = -1
        self._began = time.monotonic()
        if resume is None:
            _check_output(output)
        self._held = hold_output(output)
        try:
            if resume is None:
                begin_output(output, config.to_dict())
        except BaseException:
            self.close()
            raise
        try:
            self._prepare(resume)
        except BaseException:
            if resume is None:  # a new run that is refused leaves the directory free
                unbegin_output(output)
            self.close()
            raise

    def _prepare(self, resume: Path | None) -> None:
        """Make the tasks and the learner, and begin or continue."""
        config = self.config
        if resume is not None:
            saved = read_saved(resume)
            check_unchanged(saved.config.to_dict(), config.to_dict(), may_change=MAY_CHANGE)
            self.update = self._saved_at = saved.update
        self.held_out = generate_tasks(config, held_out=True)
        self.learner = Learner(config, generate_tasks(config), config.environment())
        fresh = self.learner.begin(config.seed)
        self.learning: Any = as_loaded(fresh) if resume is None else load_tree(resume, fresh)
        self.history = History(self.output / LOG, self.update, read=UpdateReport.from_dict)
        for path in set_aside_later(self.output, self.update):
            self._hooks.on_message(f"renamed a newer checkpoint to {path} (resuming from an earlier update)")
        if resume is None:  # from now on, the run can be resumed
            self._save()

    def train(self) -> ArcResult:
        """Make the updates that are left, evaluate, and write the pages."""
        first, say = self.update, self._hooks.on_message
        with self._stop.on_signals(say):
            while self.update < self.config.updates and not self._stop.is_set:
                self._make_update()
            if self._saved_at != self.update:
                self._save()
            stopped = self.update < self.config.updates
            evaluation = None if stopped else self._evaluate()
            self._write_report(evaluation)
        return ArcResult(
            output=self.output,
            updates=tuple(self.history.reports),
            taken=self.update - first,
            evaluation=evaluation,
            seconds=time.monotonic() - self._began,
            stopped=stopped,
        )

    def _make_update(self) -> None:
        config, began = self.config, time.monotonic()
        rate = config.rate(self.update)
        learning, found = self.learner.update(self.learning, rate)
        metrics = {name: float(value) for name, value in found.items()}
        seconds = time.monotonic() - began
        if not math.isfinite(metrics["loss"]):
            raise BrimError(
                f"the loss is not finite in update {self.update + 1}; lower the learning rate, which is "
                f"{config.learning_rate}; the checkpoints before it are kept in {self.output}"
            )
        self.learning = learning
        self.update += 1
        due = self.update % config.eval_every == 0 or self.update in (1, config.updates)
        report = UpdateReport(
            step=self.update,
            steps=config.updates,
            env_steps=self.update * config.envs * config.steps,
            learning_rate=rate,
            metrics=metrics,
            held_out=self._held_out_share() if due else None,
            seconds=seconds,
        )
        self.history.add(report)
        if self.update % config.save_every == 0 or self.update == config.updates:
            self._save()
        if self._hooks.on_update is not None:
            self._hooks.on_update(report)

    def _held_out_share(self) -> float:
        play = partial(self.learner.play, self.learning.params)
        return solved_share(play, self.held_out, self.config.environment("test"), seed=self.config.seed)

    def _save(self) -> None:
        save_learning(checkpoint_path(self.output, self.update), self.learning, self.config, self.update)
        forget_old(self.output, self.config.keep)
        self._saved_at = self.update

    def _evaluate(self) -> Evaluation:
        """Evaluate the trained agent, and keep the outcome and some episodes."""
        config, params = self.config, self.learning.params
        play = partial(self.learner.play, params)
        agents = {SAMPLED: play, GREEDY: partial(play, greedy=True)}
        evaluation, episodes = evaluate(agents, self.held_out, config.environment("test"), seed=config.seed)
        DOCUMENT.write(self.output / EVALUATION, {"update": self.update, **asdict(evaluation)})
        self._write_episodes(episodes)
        return evaluation

    def _write_episodes(self, episodes: list[ArcEpisode]) -> None:
        write_episodes(self.output / EPISODES, episodes)
        page = render_replay_page(episodes, title=f"Held-out tasks: {self.output.name}")
        with atomic_file(self.output / REPLAYS) as file:
            file.write(page.encode())

    def _write_report(self, evaluation: Evaluation | None) -> None:
        page = render_arc_page(
            title=f"ARC agent: {self.output.name}",
            updates=self.history.reports,
            evaluation=evaluation,
            options=self.config.to_dict(),
            replays=None if evaluation is None else REPLAYS,
        )
        with atomic_file(self.output / REPORT) as file:
            file.write(page.encode())

    def close(self) -> None:
        """Release the output directory."""
        self._held.close()


def read_evaluation(path: str | Path) -> Evaluation:
    """Read evaluation.json of a run.

    Raises:
        DataError: There is no such file, or it is another kind of file.
        DamagedError: It is truncated, altered or of another version.
    """
    return Evaluation.from_dict(DOCUMENT.read(path))


def _check_output(output: Path) -> None:
    """Refuse an output whose files are not those of a run, because they would be overwritten.

    Raises:
        OptionError: There is such a file.
    """
    if (output / RUN).exists():
        return
    for name in (LOG, EVALUATION, EPISODES, REPLAYS, REPORT):
        path = output / name
        # An empty one is what a run leaves that failed before its first update; nothing is lost with it.
        if path.exists() and (path.is_dir() or path.stat().st_size):
            raise OptionError(f"{path} is not a file of an ARC run, and would be overwritten; choose another --output")
