"""The reports of a run: on every step, on every round of play, and at its end."""

import math
from dataclasses import dataclass, field
from pathlib import Path

from brim.core.fill import Fill


@dataclass(frozen=True)
class StepReport:
    """The outcome of one optimizer step, over all ranks."""

    step: int
    steps: int
    epoch: int
    loss: float
    learning_rate: float
    grad_norm: float
    tokens: int
    """Tokens of this step, without padding."""
    seconds: float
    fill: Fill
    eval_loss: float | None = None
    metrics: dict[str, float] = field(default_factory=lambda: {})
    """Further numbers of the objective, by name; they go into the curves."""

    def to_log(self, tokens: int) -> dict[str, float]:
        """Return the values that the curves hold. `tokens` counts those of all steps so far."""
        values: dict[str, float] = {} if math.isnan(self.loss) else {"loss": self.loss}
        values |= {
            "learning_rate": self.learning_rate,
            "grad_norm": self.grad_norm,
            "tokens": tokens,
            "tokens_per_second": self.tokens / max(self.seconds, 1e-9),
            "fill": self.fill.ratio,
            "epoch": self.epoch,
        }
        if self.eval_loss is not None:
            values["eval_loss"] = self.eval_loss
        return values | self.metrics


@dataclass(frozen=True)
class RoundReport:
    """The outcome of one round of play, and the state of the replay buffer after it."""

    round: int
    step: int
    """Optimizer steps before the round."""
    episodes: int
    played: int
    """Episodes that the model played to their end."""
    solved: int
    """Episodes of these that it solved."""
    solved_by_level: dict[str, tuple[int, int]]
    guided: int
    """Episodes that followed the server's hints."""
    guided_solved: int
    errors: dict[str, int]
    """Episodes that could not be played to their end, by type."""
    filtered: dict[str, int]
    """Actions that were left out, by reason."""
    samples: int
    """Actions that went into the replay buffer."""
    buffer: int
    """Actions in the replay buffer."""
    evicted: int
    """Actions evicted from the replay buffer since the run began."""
    target: float
    """Difficulty of the next round."""
    window: int | None
    """Actions that are trained on before the next round; None if there were too few."""
    window_fingerprint: str | None
    seconds: float

    @property
    def success_rate(self) -> float | None:
        """Share of its episodes that the model solved; None if it played none."""
        return self.solved / self.played if self.played else None


@dataclass(frozen=True)
class SftResult:
    """The outcome of a run."""

    steps: int
    taken: int
    """Steps that were taken now; the others were taken before the run was resumed."""
    first_loss: float | None
    last_loss: float | None
    eval_loss: float | None
    tokens: int
    """Tokens of the steps that were taken now, without padding."""
    seconds: float
    fill: Fill
    model: Path
    stopped: bool
    """Whether a signal or a callback ended the run before its last step."""
    left_out: dict[str, int]
    """Counts of what was skipped, cut or dropped by the options of the plan."""

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass
class Ends:
    """A summary of the steps that were taken now: the first and the last loss, and sums."""

    count: int = 0
    first: float | None = None
    last: float | None = None
    evaluated: float | None = None
    tokens: int = 0
    fill: Fill = field(default_factory=Fill)

    def add(self, report: StepReport) -> None:
        self.count += 1
        self.tokens += report.tokens
        self.fill += report.fill
        if not math.isnan(report.loss):  # a step with nothing to learn
            self.first = report.loss if self.first is None else self.first
            self.last = report.loss
        self.evaluated = self.evaluated if report.eval_loss is None else report.eval_loss
