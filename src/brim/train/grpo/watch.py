"""Evaluations on held-out tasks, reports on rollouts, and the page of a run."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from brim.core.atomic import atomic_file
from brim.core.errors import BrimError
from brim.core.options import from_dict
from brim.train.grpo.config import GrpoConfig
from brim.train.grpo.page import RunShown, render_grpo_page
from brim.train.grpo.page.read import BEFORE, EVALUATION_FILE, ROLLOUTS
from brim.train.grpo.report import Evaluation, RolloutReport
from brim.train.grpo.rolling import Roller
from brim.train.grpo.summary import evaluation_of
from brim.train.log import History
from brim.train.ranks import Ranks

REPORT = "report.html"


class Watch:
    """The reports of a run. Evaluations are made on all ranks, files are written on the main one."""

    def __init__(
        self, config: GrpoConfig, ranks: Ranks, roller: Roller, *, tasks: int, rollouts: int, step: int
    ) -> None:
        """
        Args:
            tasks: Held-out tasks of an evaluation; 0 makes none.
            rollouts: Rollouts before the checkpoint that the run resumes from, or 0.
            step: Optimizer steps before it, or 0.
        """
        self._config = config
        self._ranks = ranks
        self._roller = roller
        self._tasks = tasks
        self._output = Path(config.output)
        self._last = step
        """Optimizer steps at the last evaluation."""
        self.before: Evaluation | None = None
        self.history: History[RolloutReport] | None = None
        if ranks.is_main:
            self.history = History(self._output / ROLLOUTS, rollouts, read=RolloutReport.from_dict)
            self.before = read_before(self._output) if rollouts else None

    def evaluate_before(self, announce: Callable[[int], None]) -> bool:
        """Evaluate before the first step. Returns False, on all ranks, if one of them was asked to stop."""
        (self._output / BEFORE).unlink(missing_ok=True)
        if not self._tasks:
            return True
        found = self.evaluate(announce)
        if found is None:
            return False
        self.before = found
        if self._ranks.is_main:
            EVALUATION_FILE.write(self._output / BEFORE, asdict(found))
        return True

    def evaluate(self, announce: Callable[[int], None]) -> Evaluation | None:
        """Attempt the held-out tasks. Returns None if a rank was asked to stop."""
        announce(self._tasks)
        groups = self._roller.evaluate(self._tasks)
        if groups is None:
            return None
        if all(attempt.reward is None for group in groups for attempt in group.attempts):
            first = groups[0].attempts[0]
            raise BrimError(f"every attempt of an evaluation failed; the first: {first.failure}: {first.message}")
        return evaluation_of(groups, shown=self._config.show_groups)

    def is_due(self, step: int, *, over: bool) -> bool:
        """Whether an evaluation is due after a rollout; `over` says that it was the last one."""
        every = self._config.eval_every
        due = bool(self._tasks) and (over or (every is not None and step // every > self._last // every))
        if due:
            self._last = step
        return due

    def add(self, report: RolloutReport) -> None:
        """Write a report."""
        if self.history is not None:
            self.history.add(report)

    @property
    def reports(self) -> tuple[RolloutReport, ...]:
        """Reports on all rollouts; empty on other ranks than the main one."""
        return () if self.history is None else tuple(self.history.reports)

    def write_page(self, *, is_over: bool) -> Path:
        """Write the page of the run as it is now, on the main rank."""
        path = self._output / REPORT
        if self._ranks.is_main:
            shown = RunShown(self._output.name, self.reports, self.before, self._config.to_dict(), is_over)
            with atomic_file(path) as file:
                file.write(render_grpo_page([shown]).encode())
        return path


def read_before(output: Path) -> Evaluation | None:
    """Return the evaluation that was made before the first step, if there was one."""
    path = output / BEFORE
    return from_dict(Evaluation, EVALUATION_FILE.read(path)) if path.exists() else None
