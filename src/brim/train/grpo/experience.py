"""A rollout as columns, and the microbatches of the optimizer steps on it.

Groups that are trained on become one ragged record. A step takes some of the groups; the planner puts their attempts
into forward passes, in which a prompt counts once for all attempts behind it, and the passes are dealt to the ranks.
Every rank has the whole record and makes the same plan.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import ceil_div
from brim.core.extras import need
from brim.generate.rollouts import Column, Response, Rollouts
from brim.generate.score.plan import Part
from brim.generate.score.scorer import Planned, ScoreLimits, Scorer
from brim.train.grpo.advantages import advantages
from brim.train.grpo.attempt import Group
from brim.train.grpo.config import GrpoConfig

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = need("torch", extra="train", user="brim.train.grpo")


@dataclass(frozen=True, kw_only=True, eq=False)
class Experience:
    """The groups of a rollout that are trained on. Attempt g of group b is number b * G + g."""

    groups: tuple[Group, ...]
    rollouts: Rollouts
    drawn: NDArray[np.bool_]
    """For each token of `rollouts.response_ids`, whether the model drew it."""
    behaviour: Column
    """Log-probability of each token under the distribution that it was drawn from."""
    rewards: NDArray[np.float64]
    """[groups, G]; NaN where an attempt failed."""
    trained: NDArray[np.bool_]
    """[groups * G]: attempts that have a reward, tokens of the model, and were not cut off if that masks them."""

    @classmethod
    def of(cls, groups: Sequence[Group], *, mask_truncated: bool) -> "Experience":
        """Put groups of equal size into columns."""
        every = [attempt for group in groups for attempt in group.attempts]
        size = len(groups[0].attempts)
        responses = [
            Response(
                prompt=at // size,
                sample=at % size,
                text=one.text,
                finish_reason=one.finish_reason,
                token_ids=one.token_ids,
            )
            for at, one in enumerate(every)
        ]
        masked = [one.reward is None or not one.drawn.any() or (mask_truncated and one.truncated) for one in every]
        return cls(
            groups=tuple(groups),
            rollouts=Rollouts.collect([group.prompt_ids for group in groups], responses, G=size, seed=0),
            drawn=np.concatenate([one.drawn for one in every]),
            behaviour=np.concatenate([one.logprobs for one in every]),
            rewards=np.stack([group.rewards for group in groups]),
            trained=~np.array(masked, np.bool_),
        )

    def column(self, values: NDArray[Any], responses: Sequence[int]) -> NDArray[Any]:
        """Return the entries of a column for the drawn tokens of some attempts, one attempt after the other."""
        bounds = self.rollouts.response_offsets
        pieces = [values[bounds[n] : bounds[n + 1]][self.drawn[bounds[n] : bounds[n + 1]]] for n in responses]
        return np.concatenate(pieces) if pieces else values[:0]

    def drawn_lengths(self, responses: Sequence[int]) -> NDArray[np.int64]:
        """Return the number of drawn tokens of some attempts."""
        bounds = self.rollouts.response_offsets
        return np.array([int(self.drawn[bounds[n] : bounds[n + 1]].sum()) for n in responses], np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class GrpoBatch:
    """One forward pass of a step: a `StepBatch`. Columns have one entry for each drawn token of its attempts."""

    experience: Experience
    part: Part | None
    """None for a batch that is there so that all ranks take equally many forward passes."""
    own: bool
    ids: tuple[str, ...]
    epoch: int
    """Number of the rollout."""
    index: int
    num_loss_tokens: float
    fresh: bool
    """Whether the weights are still those that drew the tokens."""
    lengths: "Tensor"
    """[attempts], number of drawn tokens."""
    advantages: "Tensor"
    """[attempts]"""
    behaviour: "Tensor"
    old: "Tensor | None" = None
    """Old log-probabilities; None if the present weights are the old ones."""
    reference: "Tensor | None" = None

    @property
    def is_null(self) -> bool:
        return self.part is None

    @property
    def num_tokens(self) -> int:
        return 0 if self.part is None else self.part.fill.used

    @property
    def slots(self) -> int:
        return 0 if self.part is None else self.part.fill.slots

    def to(self, device: Any, *, non_blocking: bool = False) -> "GrpoBatch":
        def moved(column: "Tensor | None") -> Any:
            return None if column is None else column.to(device, non_blocking=non_blocking)

        return replace(
            self,
            lengths=moved(self.lengths),
            advantages=moved(self.advantages),
            behaviour=moved(self.behaviour),
            old=moved(self.old),
            reference=moved(self.reference),
        )


def step_batches(
    experience: Experience,
    groups: range,
    scorer: Scorer,
    config: GrpoConfig,
    *,
    rewards: NDArray[np.float64],
    rank: int,
    world_size: int,
    epoch: int,
) -> list[GrpoBatch]:
    """Return the microbatches of one rank for the step that is taken on some groups.

    Every attempt that is trained on is in one microbatch of one rank; all ranks get equally many, at least one.

    Args:
        rewards: [groups of the experience, G], from which advantages are computed.
    """
    size = experience.rollouts.G
    numbers = np.arange(groups.start * size, groups.stop * size, dtype=np.int64)
    worth = np.zeros(len(experience.rollouts))
    worth[numbers] = advantages(rewards[groups.start : groups.stop], config.scale).reshape(-1)
    planned = plan_for_ranks(
        experience.rollouts,
        numbers[experience.trained[numbers]],
        scorer,
        ScoreLimits(responses=config.tf_batch_size, tokens=config.token_budget),
        world_size,
    )
    mine = deal(planned.parts, world_size)[rank]
    return [
        _batch(experience, part, planned.own, worth, config, epoch=epoch, index=index * world_size + rank)
        for index, part in enumerate(mine)
    ]


def plan_for_ranks(
    rollouts: Rollouts, responses: NDArray[np.int64], scorer: Scorer, limits: ScoreLimits, world_size: int
) -> Planned:
    """Plan forward passes so that every rank can have one, as far as there are responses.

    A response that exceeds the token budget with its prompt has a forward pass of its own.
    """
    ends = np.diff(rollouts.response_offsets)[responses] + rollouts.prompt_lengths[responses // rollouts.G]
    longest = int(ends.max(initial=1))
    limits = replace(limits, tokens=max(limits.tokens, longest))
    planned = scorer.plan(rollouts, responses, limits)
    if len(planned.parts) >= world_size or len(planned.parts) == len(responses):
        return planned
    slots = sum(part.fill.slots for part in planned.parts)
    narrower = ScoreLimits(
        responses=min(limits.responses, ceil_div(len(responses), world_size)),
        tokens=max(longest, ceil_div(slots, world_size)),
    )
    return scorer.plan(rollouts, responses, narrower)


def deal(parts: Sequence[Part], world_size: int) -> list[list[Part | None]]:
    """Deal forward passes to ranks, the largest first and each to the rank with the least to compute so far.

    All ranks get equally many, at least one: None stands for an empty one.
    """
    hands: list[list[Part | None]] = [[] for _ in range(world_size)]
    loads = [0] * world_size
    for part in sorted(parts, key=lambda part: -part.fill.slots):
        rank = loads.index(min(loads))
        hands[rank].append(part)
        loads[rank] += part.fill.slots
    most = max(1, *(len(hand) for hand in hands))
    return [[*hand, *[None] * (most - len(hand))] for hand in hands]


def _batch(
    experience: Experience,
    part: Part | None,
    own: bool,
    worth: NDArray[np.float64],
    config: GrpoConfig,
    *,
    epoch: int,
    index: int,
) -> GrpoBatch:
    responses = () if part is None else part.responses
    size = experience.rollouts.G
    lengths = experience.drawn_lengths(responses)
    behaviour = torch.from_numpy(experience.column(experience.behaviour, responses))
    return GrpoBatch(
        experience=experience,
        part=part,
        own=own,
        ids=tuple(f"{experience.groups[n // size].task}/{n % size}" for n in responses),
        epoch=epoch,
        index=index,
        num_loss_tokens=divisor(config, len(responses), int(lengths.sum())),
        fresh=False,
        lengths=torch.from_numpy(lengths),
        advantages=torch.from_numpy(worth[list(responses)].astype(np.float32)),
        behaviour=behaviour,
        old=None if config.scores_old else behaviour,
    )


def divisor(config: GrpoConfig, responses: int, tokens: int) -> float:
    """Return what the summed loss of so many responses with so many drawn tokens is divided by."""
    if config.loss == "dapo":
        return tokens
    return responses if config.loss == "grpo" else responses * config.max_new_tokens
