"""Rollouts over all ranks: tasks are dealt, groups stay whole, and every rank gets all of them.

Groups whose rewards do not differ teach nothing; they are replaced by the next tasks, a limited number of times.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from brim.core.errors import DataError
from brim.core.fill import Fill
from brim.train.grpo.attempt import Group, RolloutSource
from brim.train.grpo.config import GrpoConfig
from brim.train.ranks import Ranks


@dataclass(frozen=True, kw_only=True, eq=False)
class Rollout:
    """The groups of one rollout, in the order of their draws."""

    groups: tuple[Group, ...]
    live: tuple[Group, ...]
    """Groups of these whose rewards differ: those that are trained on."""
    replaced: int
    """Groups that were played in the place of others."""
    next_draw: int
    fill: Fill | None
    seconds: float
    reward_seconds: float


class Roller:
    """Plays rollouts and evaluations on all ranks together."""

    def __init__(self, source: RolloutSource, config: GrpoConfig, ranks: Ranks, stop: Callable[[], bool]) -> None:
        self._source = source
        self._config = config
        self._ranks = ranks
        self._stop = stop

    def roll(self, first: int) -> Rollout | None:
        """Play the tasks from number `first` on, until enough groups are live or they were replaced often enough.

        Returns None, on all ranks, if any of them was asked to stop.

        Raises:
            BrimError: On all ranks, if one of them cannot play.
        """
        began = time.monotonic()
        wanted = self._config.groups_per_rollout
        played: list[Group] = []
        live: list[Group] = []
        fill, waited = Fill(), 0.0
        for _ in range(1 + self._config.resample):
            begin = first + len(played)
            groups = self._play(
                range(begin, begin + wanted - len(live)),
                size=self._config.group_size,
                temperature=self._config.temperature,
                held_out=False,
            )
            if groups is None:
                return None
            played += groups
            live += [group for group in groups if group.is_live]
            waited += self._source.reward_seconds
            fill += self._source.fill or Fill()
            if len(live) >= wanted:
                break
        return Rollout(
            groups=tuple(played),
            live=tuple(live),
            replaced=max(0, len(played) - wanted),
            next_draw=first + len(played),
            fill=fill if fill.slots else None,
            seconds=time.monotonic() - began,
            reward_seconds=waited,
        )

    def evaluate(self, tasks: int) -> list[Group] | None:
        """Attempt the first held-out tasks. Returns None, on all ranks, if any of them was asked to stop."""
        return self._play(
            range(tasks), size=self._config.eval_samples, temperature=self._config.eval_temperature, held_out=True
        )

    def _play(self, draws: Sequence[int], *, size: int, temperature: float, held_out: bool) -> list[Group] | None:
        ranks = self._ranks
        mine = draws[ranks.rank :: ranks.world_size]

        def play() -> list[Group] | None:
            if not mine:
                return []
            found = self._source.play(mine, size=size, temperature=temperature, held_out=held_out, stop=self._stop)
            if found is not None and [group.draw for group in found] != list(mine):
                raise DataError(f"the tasks {list(mine)} were asked for, those of {[g.draw for g in found]} came back")
            for group in found or ():
                group.check(size)
            return found

        groups = ranks.together(play)
        if ranks.total([groups is None])[0]:
            return None
        hands = ranks.gather(groups or [])
        return [hands[at % ranks.world_size][at // ranks.world_size] for at in range(len(draws))]
