"""From groups of attempts to the numbers of a report. Nothing here imports torch."""

import math
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from brim.train.grpo.attempt import Attempt, Group
from brim.train.grpo.report import Evaluation, RolloutReport, ShownAttempt, ShownGroup

if TYPE_CHECKING:
    from brim.train.grpo.learning import Learning

SHOWN_ATTEMPTS = 4
"""Attempts of a group that are kept to look at."""
LONGEST_SHOWN = 4000
"""Characters of a text that is kept to look at."""


def rollout_report(
    learning: "Learning",
    *,
    rollout: int,
    step: int,
    steps: int,
    learning_rate: float,
    train_seconds: float,
    evaluation: Evaluation | None,
    shown: int,
) -> RolloutReport:
    """Return the report on a rollout and the steps on it."""
    played = learning.rollout
    took = learning.planned > 0
    return RolloutReport(
        **rollout_figures(played.groups),
        rollout=rollout,
        step=step,
        steps=steps,
        version=learning.version,
        replaced=played.replaced,
        trained=learning.trained if took else 0,
        masked=learning.masked,
        loss=learning.mean("loss"),
        grad_norm=learning.mean("grad_norm"),
        learning_rate=learning_rate if took else None,
        entropy=learning.mean("entropy"),
        kl=learning.mean("kl") if learning.kl is None else learning.kl,
        policy_kl=learning.mean("policy_kl"),
        clipped_low=learning.mean("clipped_low"),
        clipped_high=learning.mean("clipped_high"),
        mismatch=learning.mismatch,
        correction=learning.mean("correction"),
        rollout_fill=None if played.fill is None else played.fill.ratio,
        fill=learning.fill.ratio if took else None,
        train_tokens=learning.tokens,
        rollout_seconds=played.seconds - played.reward_seconds,
        reward_seconds=played.reward_seconds,
        train_seconds=train_seconds,
        seconds=played.seconds + time.monotonic() - learning.began,
        evaluation=evaluation,
        shown=tuple(show(group) for group in played.groups[:shown]),
    )


def log_of(report: RolloutReport) -> dict[str, float]:
    """Return the figures of a rollout that go into the curves."""
    names = ("reward", "reward_std", "pass_rate", "length", "turns", "rollout_fill", "kl")
    values = {name: getattr(report, name) for name in names}
    values |= {f"reward/{name}": value for name, value in report.parts.items()}
    values |= {f"failed/{name}": count / report.attempts for name, count in report.failures.items()}
    values |= {
        "dead_groups": report.dead / report.groups,
        "truncated": report.truncated / report.attempts,
        "rollout_tokens_per_second": report.rollout_tokens / max(report.rollout_seconds, 1e-9),
        "rollout_seconds": report.rollout_seconds,
        "reward_seconds": report.reward_seconds,
        "train_seconds": report.train_seconds,
    }
    if report.evaluation is not None:
        values |= {"eval/reward": report.evaluation.reward, "eval/pass_rate": report.evaluation.pass_rate}
    return {name: value for name, value in values.items() if value is not None}


def rollout_figures(groups: Sequence[Group]) -> dict[str, Any]:
    """Return what the report on a rollout says about its groups, under the names of `RolloutReport`."""
    attempts = [attempt for group in groups for attempt in group.attempts]
    lengths = [int(attempt.drawn.sum()) for attempt in attempts if len(attempt.token_ids)]
    quartiles = np.quantile(lengths or [0], [0, 0.25, 0.5, 0.75, 1], method="nearest")
    dead = [group for group in groups if not group.is_live]
    spreads = [float(np.nanstd(group.rewards)) for group in groups if not np.isnan(group.rewards).all()]
    return {
        "groups": len(groups),
        "dead": len(dead),
        "dead_low": sum(not any(attempt.passed for attempt in group.attempts) for group in dead),
        "attempts": len(attempts),
        "truncated": sum(attempt.truncated for attempt in attempts),
        "failures": failures(attempts),
        "reward": mean([attempt.reward for attempt in attempts]),
        "reward_std": mean(spreads),
        "pass_rate": mean([attempt.passed for attempt in attempts]),
        "parts": _parts(attempts),
        "finish_reasons": dict(Counter(attempt.finish_reason for attempt in attempts if len(attempt.token_ids))),
        "length": float(np.mean(lengths)) if lengths else 0.0,
        "lengths": tuple(int(length) for length in quartiles),
        "turns": float(np.mean([attempt.turns for attempt in attempts])),
        "rollout_tokens": sum(lengths),
    }


def evaluation_of(groups: Sequence[Group], *, shown: int) -> Evaluation:
    """Summarise attempts at held-out tasks."""
    attempts = [attempt for group in groups for attempt in group.attempts]
    known = [float(np.nanmean(group.rewards)) for group in groups if not np.isnan(group.rewards).all()]
    error = float(np.std(known, ddof=1)) / math.sqrt(len(known)) if len(known) > 1 else None
    lengths = [int(attempt.drawn.sum()) for attempt in attempts]
    return Evaluation(
        tasks=len(groups),
        attempts=len(attempts),
        reward=mean(known),
        reward_error=error,
        pass_rate=mean([attempt.passed for attempt in attempts]),
        length=float(np.mean(lengths)),
        failures=failures(attempts),
        shown=tuple(show(group) for group in groups[:shown]),
    )


def show(group: Group) -> ShownGroup:
    """Return the part of a group that people look at."""
    return ShownGroup(
        task=group.task,
        prompt=_clipped(group.prompt),
        answer=None if group.answer is None else _clipped(group.answer),
        attempts=tuple(_shown(attempt) for attempt in group.attempts[:SHOWN_ATTEMPTS]),
    )


def failures(attempts: Sequence[Attempt]) -> dict[str, int]:
    """Count attempts without a reward by what went wrong."""
    return dict(Counter(attempt.failure for attempt in attempts if attempt.failure is not None))


def mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that are known, or None."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _parts(attempts: Sequence[Attempt]) -> dict[str, float]:
    """Return the mean of each part of the reward over the attempts that have it."""
    names = dict.fromkeys(name for attempt in attempts for name in attempt.parts)
    found = {
        name: mean([attempt.parts.get(name) for attempt in attempts if attempt.reward is not None]) for name in names
    }
    return {name: value for name, value in found.items() if value is not None}


def _shown(attempt: Attempt) -> ShownAttempt:
    return ShownAttempt(
        text=_clipped(attempt.text),
        reward=attempt.reward,
        parts=dict(attempt.parts),
        finish_reason=attempt.finish_reason,
        tokens=int(attempt.drawn.sum()),
        turns=attempt.turns,
        passed=attempt.passed,
        failure=attempt.failure,
    )


def _clipped(text: str) -> str:
    if len(text) <= LONGEST_SHOWN:
        return text
    return f"{text[:LONGEST_SHOWN]}… ({len(text) - LONGEST_SHOWN:,} more characters)"
