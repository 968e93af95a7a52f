"""Steps and ranks: who takes which microbatch, when.

An epoch is a sequence of microbatches, the *global order*, cut into optimizer steps of M. Every rank count deals from
the same order: in a step, rank r of W takes the microbatches r, r + W, r + 2W, ..., and an empty microbatch where there
is none left, so all ranks take equally many and stay in step. After each round what was taken is a prefix of the global
order, so one number says where a run is, for any W.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import ceil_div, order_by
from brim.core.rng import permutation, raw_bits
from brim.plan.config import Remainder

NULL = -1


def deal_order(cost: NDArray[np.int64], step_size: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """The global order for steps of `step_size`: random, and the microbatches of one step cost nearly the same.

    Neighbours in cost share a step; steps are shuffled, and so are the microbatches inside a step. The ones left over
    for a short last step are drawn at random, not from one end.
    """
    shuffled = permutation(len(cost), seed=seed, purpose="order", epoch=epoch)
    if step_size == 1:
        return shuffled
    short = len(cost) % step_size
    last, rest = shuffled[:short], shuffled[short:]
    by_cost = rest[order_by(cost[rest])]
    steps = permutation(len(rest) // step_size, seed=seed, purpose="steps", epoch=epoch)
    places = raw_bits(len(rest), seed=seed, purpose="places", epoch=epoch) >> np.uint64(40)
    inside = order_by(np.arange(len(rest)) // step_size, places)
    return np.concatenate([by_cost[inside].reshape(-1, step_size)[steps].reshape(-1), last])


@dataclass(frozen=True)
class Round:
    """One microbatch for every rank: the global indices from `start` up to `end`, of which there are at most as many as
    ranks.
    """

    start: int
    end: int


@dataclass(frozen=True)
class Deal:
    """The arithmetic of one epoch: `total` microbatches in steps of `step_size` for `world_size` ranks.

    No loops over data.
    """

    total: int
    step_size: int
    world_size: int = 1
    remainder: Remainder = "null"

    @property
    def length(self) -> int:
        """Where the epoch ends in the global order: `total`, less what is dropped, or with what is repeated."""
        short = self.total % self.step_size
        if short == 0 or self.remainder == "null":
            return self.total
        return self.total - short if self.remainder == "drop" else self.total + self.step_size - short

    @property
    def dropped(self) -> int:
        return max(self.total - self.length, 0)

    @property
    def repeated(self) -> int:
        return max(self.length - self.total, 0)

    @property
    def steps(self) -> int:
        return ceil_div(self.length, self.step_size)

    @property
    def rounds_per_step(self) -> int:
        return ceil_div(self.step_size, self.world_size)

    @property
    def rounds(self) -> int:
        """How many microbatches every rank takes, empty ones included."""
        full, short = divmod(self.length, self.step_size)
        return full * self.rounds_per_step + ceil_div(short, self.world_size)

    @property
    def nulls(self) -> int:
        """Empty microbatches, over all ranks."""
        return self.rounds * self.world_size - self.length

    def round(self, number: int) -> Round:
        step, inside = divmod(number, self.rounds_per_step)
        return self._round_at(step * self.step_size + inside * self.world_size)

    def rounds_from(self, position: int) -> Iterator[Round]:
        """The rounds that are left when the microbatches before `position` are done, wherever that is."""
        while position < self.length:
            round = self._round_at(position)
            yield round
            position = round.end

    def rounds_left(self, position: int) -> int:
        """How many those are."""
        if position >= self.length:
            return 0
        step, inside = divmod(position, self.step_size)
        if inside == 0:
            return self.rounds - step * self.rounds_per_step
        end_of_step = min((step + 1) * self.step_size, self.length)
        return ceil_div(end_of_step - position, self.world_size) + self.rounds_left(end_of_step)

    def _round_at(self, start: int) -> Round:
        end_of_step = min((start // self.step_size + 1) * self.step_size, self.length)
        return Round(start, min(start + self.world_size, end_of_step))

    def index(self, round: Round, rank: int) -> int:
        """The global index that a rank takes in a round, or NULL."""
        index = round.start + rank
        return index % self.total if index < round.end else NULL

    def indices(self, rank: int) -> NDArray[np.int64]:
        """The global index that a rank takes in every round, or NULL."""
        step, inside = np.divmod(np.arange(self.rounds), self.rounds_per_step)
        index = step * self.step_size + inside * self.world_size + rank
        end = np.minimum((step + 1) * self.step_size, self.length)
        return np.where(index < end, index % max(self.total, 1), NULL)

    def round_number(self, position: int) -> int | None:
        """Which round starts at a position, or None if no round does."""
        step, inside = divmod(position, self.step_size)
        if inside % self.world_size and position != self.length:
            return None
        return step * self.rounds_per_step + ceil_div(inside, self.world_size)
