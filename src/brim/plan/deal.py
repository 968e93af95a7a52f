"""Deal microbatches to optimizer steps and ranks.

An epoch is a sequence of microbatches, the *global order*, cut into optimizer steps of M. The same order is dealt to
any number of ranks: in a step, rank r of W takes the microbatches r, r + W, r + 2W, ..., and an empty microbatch where
there is none left, so all ranks take equally many and stay in sync. After each round, the microbatches that were
taken are a prefix of the global order, so one number is the position of a run, for any W.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import ceil_div, order_by
from brim.core.rng import permutation, raw_bits
from brim.plan.config import Remainder

NULL = -1


def deal_order(cost: NDArray[np.int64], step_size: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the global order for steps of `step_size`: random, and the microbatches of one step cost nearly the same.

    Sorted by cost, neighbours share a step; steps are shuffled, and so are the microbatches inside a step. The
    microbatches of a short last step are drawn at random, not from one end of the costs.
    """
    shuffled = permutation(len(cost), seed=seed, purpose="order", epoch=epoch)
    if step_size == 1 or len(cost) < step_size:
        return shuffled
    short = len(cost) % step_size
    last, rest = shuffled[:short], shuffled[short:]
    by_cost = rest[order_by(cost[rest])]
    steps = permutation(len(rest) // step_size, seed=seed, purpose="steps", epoch=epoch)
    inside = _shuffled_steps(len(rest) // step_size, step_size, seed=seed, epoch=epoch)
    return np.concatenate([by_cost[inside[steps]].reshape(-1), last])


def _shuffled_steps(steps: int, size: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the numbers from 0 on, [steps, size], with each row in random order."""
    places = raw_bits(steps * size, seed=seed, purpose="places", epoch=epoch) >> np.uint64(40)
    words = places.reshape(steps, size) << np.uint64(40) | np.arange(size, dtype=np.uint64)
    words.sort(axis=1)
    words &= np.uint64((1 << 40) - 1)
    return words.astype(np.int64) + np.arange(0, steps * size, size)[:, None]


class Round(NamedTuple):
    """One microbatch for every rank: the global indices from `start` up to but not including `end`, at most one for
    each rank.
    """

    start: int
    end: int


@dataclass(frozen=True)
class Deal:
    """The assignment of one epoch's `total` microbatches, in steps of `step_size`, to `world_size` ranks.

    It is arithmetic on these numbers, without loops over data.
    """

    total: int
    step_size: int
    world_size: int = 1
    remainder: Remainder = "null"

    @property
    def length(self) -> int:
        """Number of microbatches in the epoch: `total`, minus those dropped, or plus those repeated."""
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
        """Number of microbatches that every rank takes, empty ones included."""
        full, short = divmod(self.length, self.step_size)
        return full * self.rounds_per_step + ceil_div(short, self.world_size)

    @property
    def nulls(self) -> int:
        """Number of empty microbatches, over all ranks."""
        return self.rounds * self.world_size - self.length

    def round(self, number: int) -> Round:
        step, inside = divmod(number, self.rounds_per_step)
        start = step * self.step_size + inside * self.world_size
        return Round(start, min(start + self.world_size, (step + 1) * self.step_size, self.length))

    def rounds_from(self, position: int) -> Iterator[Round]:
        """Iterate over the rounds that are left when the microbatches before `position` are done.

        A position may lie anywhere in a step, as after a change of the number of ranks.
        """
        size, world_size, length = self.step_size, self.world_size, self.length
        while position < length:
            end_of_step = min((position // size + 1) * size, length)
            end = min(position + world_size, end_of_step)
            yield Round(position, end)
            position = end

    def rounds_left(self, position: int) -> int:
        """Return the number of rounds that are left when the microbatches before `position` are done."""
        if position >= self.length:
            return 0
        step, inside = divmod(position, self.step_size)
        if inside == 0:
            return self.rounds - step * self.rounds_per_step
        end_of_step = min((step + 1) * self.step_size, self.length)
        return ceil_div(end_of_step - position, self.world_size) + self.rounds_left(end_of_step)

    def index(self, round: Round, rank: int) -> int:
        """Return the global index that a rank takes in a round, or NULL for an empty microbatch."""
        index = round.start + rank
        return index % self.total if index < round.end else NULL

    def indices(self, rank: int) -> NDArray[np.int64]:
        """Return the global index that a rank takes in every round, or NULL for an empty microbatch."""
        step, inside = np.divmod(np.arange(self.rounds), self.rounds_per_step)
        index = step * self.step_size + inside * self.world_size + rank
        end = np.minimum((step + 1) * self.step_size, self.length)
        return np.where(index < end, index % max(self.total, 1), NULL)

    def round_number(self, position: int) -> int | None:
        """Return the number of the round that starts at a position, or None if no round does."""
        step, inside = divmod(position, self.step_size)
        if inside % self.world_size and position != self.length:
            return None
        return step * self.rounds_per_step + ceil_div(inside, self.world_size)
