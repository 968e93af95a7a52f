"""What a run tells whoever watches it: of every step, and at the end."""

import math
from dataclasses import dataclass, field
from pathlib import Path

from brim.core.fill import Fill


@dataclass(frozen=True)
class StepReport:
    """What one optimizer step was like, over all ranks."""

    step: int
    steps: int
    epoch: int
    loss: float
    learning_rate: float
    grad_norm: float
    tokens: int
    """Without padding, in this step."""
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
    """What one round of play was like, and what the memory was after it."""

    round: int
    step: int
    """Optimizer steps before it."""
    episodes: int
    played: int
    """By the model, to their end."""
    solved: int
    """Of these."""
    solved_by_level: dict[str, tuple[int, int]]
    guided: int
    """Played by hints."""
    guided_solved: int
    errors: dict[str, int]
    """Episodes that could not be played to their end, by type."""
    filtered: dict[str, int]
    """Actions that were not kept, by reason."""
    samples: int
    """Actions that were kept."""
    buffer: int
    """Actions in the memory."""
    evicted: int
    """From the memory, since the run began."""
    target: float
    """The difficulty that the next round is played at."""
    window: int | None
    """Actions that are trained on before the next round; None if there were too few."""
    window_fingerprint: str | None
    seconds: float

    @property
    def success_rate(self) -> float | None:
        """Of the model."""
        return self.solved / self.played if self.played else None


@dataclass(frozen=True)
class SftResult:
    """How a run ended."""

    steps: int
    taken: int
    """Of them, now: the others were taken before the run was resumed."""
    first_loss: float | None
    last_loss: float | None
    eval_loss: float | None
    tokens: int
    """Trained on now, without padding."""
    seconds: float
    fill: Fill
    model: Path
    stopped: bool
    """Whether a signal ended it before its last step."""
    left_out: dict[str, int]
    """What of the data was skipped, cut or dropped, by the options of the plan."""

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
