"""The report on an update, made from its rollout."""

from typing import Any

import numpy as np

from brim.core.fill import Fill
from brim.envs.query.rollout import Rollout
from brim.train.query.report import Example, UpdateReport

EXAMPLES = 12
"""Steps of a rollout that are kept for people to look at."""
LONGEST = 2000
"""Characters of a text that an example keeps."""


def update_report(
    rollout: Rollout,
    metrics: dict[str, float],
    *,
    update: int,
    updates: int,
    fill: Fill | None,
    seconds: float,
) -> UpdateReport:
    """Return the report on the update that learned from a rollout."""
    returns = episode_returns(rollout)
    valid = rollout.rewards[rollout.valid]
    rows = [(info, float(rollout.rewards[at])) for at, info in _valid(rollout)]
    return UpdateReport(
        update=update,
        updates=updates,
        env_steps=update * rollout.valid.size,
        steps=rollout.valid.size,
        invalid=rollout.invalid,
        fallbacks=sum(bool(info["fallbacks"]) for info, _ in rows),
        reward=float(valid.mean()) if len(valid) else None,
        episodes=len(returns),
        solved=int((rollout.terminated & rollout.valid).sum()),
        episode_return=float(np.mean(returns)) if returns else None,
        calls=rollout.tally.calls,
        cached=rollout.tally.cached,
        seconds=seconds,
        rollout_seconds=rollout.seconds,
        policy_seconds=rollout.policy_seconds,
        update_seconds=max(0.0, seconds - rollout.seconds),
        server_seconds=rollout.tally.server_seconds,
        queue_seconds=rollout.tally.queue_seconds,
        fill=fill.ratio if fill is not None and fill.slots else None,
        metrics=metrics,
        chosen=_chosen(rows),
        examples=_examples(rows),
    )


def episode_returns(rollout: Rollout) -> list[float]:
    """Return the sums of rewards of the episodes that began and ended in a rollout, without those with an invalid step.

    An episode that began before the rollout counts from the rollout's first step on.
    """
    returns: list[float] = []
    for lane in range(rollout.valid.shape[1]):
        total = 0.0
        for step in range(rollout.valid.shape[0]):
            if not rollout.valid[step, lane]:
                total = 0.0
                continue
            total += float(rollout.rewards[step, lane])
            if rollout.dones[step, lane]:
                returns.append(total)
                total = 0.0
    return returns


def _valid(rollout: Rollout) -> list[tuple[tuple[int, int], dict[str, Any]]]:
    return [
        ((step, lane), info)
        for step, row in enumerate(rollout.infos)
        for lane, info in enumerate(row)
        if rollout.valid[step, lane]
    ]


def _chosen(rows: list[tuple[dict[str, Any], float]]) -> dict[str, dict[str, tuple[int, float]]]:
    found: dict[str, dict[str, tuple[int, float]]] = {}
    for info, reward in rows:
        kind = found.setdefault(info["kind"], {})
        count, total = kind.get(info["mutator"], (0, 0.0))
        kind[info["mutator"]] = (count + 1, total + reward)
    return {kind: dict(sorted(each.items())) for kind, each in sorted(found.items())}


def _examples(rows: list[tuple[dict[str, Any], float]]) -> tuple[Example, ...]:
    """Steps of all kinds of questions in turn, so that none is missing among the few that are kept."""
    kinds: dict[str, list[tuple[dict[str, Any], float]]] = {}
    for info, reward in rows:
        kinds.setdefault(info["kind"], []).append((info, reward))
    kept: list[tuple[dict[str, Any], float]] = []
    for turn in range(EXAMPLES):
        kept += [each[turn] for each in kinds.values() if turn < len(each)]
    return tuple(
        Example(
            kind=info["kind"],
            question=info["question_id"],
            before=info["before"][:LONGEST],
            mutator=info["mutator"],
            query=info["query"][:LONGEST],
            answer=info["answer"][:LONGEST],
            reward=reward,
        )
        for info, reward in kept[:EXAMPLES]
    )
