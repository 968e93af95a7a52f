"""Questions before and after rewriting: each is asked as it stands in the data, and again as the policy rewrites it.

The policy takes its most probable action, and rewrites a question once, so that both sides are asked exactly once.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from brim.core.rng import permutation
from brim.envs.query.lane import Lane, Outcome
from brim.envs.query.lanes import Lanes, Work
from brim.envs.query.task import QueryTask, Rewritten
from brim.llm.failures import Failure
from brim.train.ppo.policy import RolloutPolicy
from brim.train.query.report import Evaluation, Pair

LOOK = 0.2
"""Seconds between two looks at whether to stop."""


def evaluate(
    task: QueryTask, policy: RolloutPolicy, *, most: int, seed: int, held_out: bool, stop: Callable[[], bool]
) -> Evaluation | None:
    """Compare at most `most` questions before and after rewriting. Returns None if `stop` asked for an end.

    `held_out` says whether the policy was trained on other questions.

    A failed call leaves its question without a reward, and is counted.
    """
    began = time.monotonic()
    order = permutation(len(task.questions), seed=seed, purpose="query/evaluation")
    numbers = sorted(int(number) for number in order[:most])
    before: list[Rewritten | Failure] = task.pool.run(_as_they_are(task, numbers, seed))
    lanes = Lanes([Lane(task, seed) for _ in numbers], task.pool.post)
    begun = _work(lanes, {at: _beginning(number) for at, number in enumerate(numbers)}, stop)
    if begun is None:
        return None
    ready = [at for at in range(len(numbers)) if begun[at].valid]
    after = dict(begun)
    if ready:
        actions = policy.greedy(np.stack([begun[at].observation for at in ready]))
        stepped = _work(lanes, {at: _stepping(int(action)) for at, action in zip(ready, actions, strict=True)}, stop)
        if stepped is None:
            return None
        after |= stepped
    pairs = [_pair(task, number, before[at], after[at]) for at, number in enumerate(numbers)]
    failures = [type(result).__name__ for result in before if isinstance(result, Failure)]
    failures += [type(outcome.failure).__name__ for outcome in after.values() if outcome.failure is not None]
    return Evaluation(
        pairs=tuple(pairs),
        held_out=held_out,
        seconds=time.monotonic() - began,
        invalid=dict(sorted(Counter(failures).items())),
    )


async def _as_they_are(task: QueryTask, numbers: Sequence[int], seed: int) -> list[Rewritten | Failure]:
    return await asyncio.gather(*(Lane(task, seed).as_it_is(number) for number in numbers))


def _beginning(number: int) -> Work:
    return lambda lane: lane.begin(0, number)


def _stepping(action: int) -> Work:
    return lambda lane: lane.step(action)


def _work(lanes: Lanes, work: Mapping[int, Work], stop: Callable[[], bool]) -> dict[int, Outcome] | None:
    """Do something with environments and wait for all; None if `stop` asked for an end."""
    lanes.begin(work)
    done: dict[int, Outcome] = {}
    while len(done) < len(work):
        if stop():
            lanes.cancel()
            return None
        done |= dict(lanes.take(1, seconds=LOOK))
    return done


def _pair(task: QueryTask, number: int, before: Rewritten | Failure, after: Outcome) -> Pair:
    question = task.questions[number]
    return Pair(
        id=question.id,
        kind=question.kind,
        question=question.text,
        reference=question.reference,
        answer="" if isinstance(before, Failure) else before.answer,
        reward=None if isinstance(before, Failure) else before.reward,
        query=after.info["query"],
        mutators=(after.info["mutator"],) if "mutator" in after.info else (),
        new_answer=after.info.get("answer", ""),
        new_reward=after.reward if after.valid and not after.is_reset else None,
    )
