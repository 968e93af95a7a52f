"""A target difficulty that follows the success rate: raised when episodes are mostly solved, lowered when few are.

Episodes are counted in blocks, and the target moves at most once per block. Nothing here is random but the choice of
the next episodes' levels, which depends on the seed and the number of the episode alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from brim.core.errors import DataError, MismatchError, OptionError
from brim.core.options import check_counts
from brim.core.rng import share
from brim.envs.episode import DIFFICULTIES, LEVELS

FORMAT = "brim.curriculum/1"


@dataclass(frozen=True, kw_only=True)
class CurriculumConfig:
    """The range of the target, and the success rates that move it."""

    lowest: float = 0.3
    highest: float = 0.7
    start: float | None = None
    """The first target; the lowest difficulty unless given."""
    raise_above: float = 0.75
    """A success rate above this raises the target."""
    lower_below: float = 0.25
    """A success rate below this lowers the target."""
    step: float = 0.05
    block: int = 32
    """Episodes after which the success rate is computed."""
    width: float = 0.15
    """Distance from the target at which the weight of a sample has fallen to one half."""
    floor: float = 0.05
    """Lower limit of the weights, relative to samples on the target."""

    def __post_init__(self) -> None:
        check_counts(block=self.block)
        if not 0 <= self.lowest <= self.highest <= 1:
            raise OptionError(
                f"difficulties must have 0 <= lowest <= highest <= 1, got {self.lowest} and {self.highest}"
            )
        if self.start is not None and not self.lowest <= self.start <= self.highest:
            raise OptionError(f"start must lie between {self.lowest} and {self.highest}, got {self.start}")
        if not 0 <= self.lower_below < self.raise_above <= 1:
            raise OptionError(
                f"lower_below must be less than raise_above, both in 0..1, got {self.lower_below} and "
                f"{self.raise_above}"
            )
        for name in ("step", "width", "floor"):
            if not 0 < getattr(self, name) <= 1:
                raise OptionError(f"{name} must lie above 0 and not above 1, got {getattr(self, name)}")


class Curriculum:
    """Moves the target difficulty by the results of episodes.

    Example:
        >>> curriculum = Curriculum(block=2)
        >>> curriculum.record_batch([True, True])
        >>> round(curriculum.target, 2)
        0.35
    """

    def __init__(self, config: CurriculumConfig | None = None, **options: Any) -> None:
        if config is not None and options:
            raise OptionError("give a CurriculumConfig or options, not both")
        self.config = config or CurriculumConfig(**options)
        self.target: float = self.config.lowest if self.config.start is None else self.config.start
        self.wins = self.played = 0
        """Successes and episodes in the present block."""

    def record(self, success: bool) -> None:
        """Record the result of an episode."""
        config = self.config
        self.wins, self.played = self.wins + bool(success), self.played + 1
        if self.played < config.block:
            return
        rate = self.wins / self.played
        self.wins = self.played = 0
        move = config.step if rate > config.raise_above else -config.step if rate < config.lower_below else 0.0
        self.target = min(max(round(self.target + move, 9), config.lowest), config.highest)

    def record_batch(self, successes: Sequence[bool]) -> None:
        for success in successes:
            self.record(success)

    def weights(self, difficulties: ArrayLike) -> NDArray[np.float64]:
        """Sampling weights by difficulty: 1 on the target, one half at a distance of `width`, 1 for an unknown
        difficulty (NaN)."""
        away = (np.asarray(difficulties, np.float64) - self.target) / self.config.width
        near = np.exp2(-np.square(away))
        return np.where(np.isnan(near), 1.0, np.maximum(near, self.config.floor))

    def levels(self, numbers: Sequence[int], *, seed: int, known: Mapping[str, float] | None = None) -> list[str]:
        """Draw a level for each numbered episode from the two levels around the target, the nearer one more often."""
        inside = {
            level: at for level, at in (known or PLAYED).items() if self.config.lowest <= at <= self.config.highest
        }
        if not inside:
            raise OptionError(f"no level lies between the difficulties {self.config.lowest} and {self.config.highest}")
        below = max((level for level in inside if inside[level] <= self.target), key=inside.__getitem__, default=None)
        above = min((level for level in inside if inside[level] > self.target), key=inside.__getitem__, default=None)
        if below is None or above is None:
            return [below or above or ""] * len(numbers)
        nearer = (self.target - inside[below]) / (inside[above] - inside[below])
        drawn = [share(seed=seed, purpose="level", epoch=number) for number in numbers]
        return [above if draw < nearer else below for draw in drawn]

    def state_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "config": asdict(self.config),
            "target": self.target,
            "wins": self.wins,
            "played": self.played,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state.

        Raises:
            MismatchError: The state belongs to a curriculum with other options.
        """
        if state.get("format") != FORMAT:
            raise DataError(f"this is no state of a curriculum: its format is {state.get('format')!r}, not {FORMAT!r}")
        if state["config"] != asdict(self.config):
            raise MismatchError(
                f"this state belongs to another curriculum: {state['config']}, this one has {asdict(self.config)}"
            )
        self.target, self.wins, self.played = state["target"], state["wins"], state["played"]


PLAYED = {level: DIFFICULTIES[level] for level in LEVELS}
"""The difficulties of the levels that games have."""
