"""Options of playing: where the server is, which puzzles are played, how long anything may take, and the rewards."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, cast

from brim.core.errors import OptionError
from brim.core.options import check_counts, one_of
from brim.envs.episode import DIFFICULTIES, LEVELS
from brim.envs.puzzle.games import QUICK, EpisodeSpec, game
from brim.envs.puzzle.wire.names import TRANSPORTS, TransportName


@dataclass(frozen=True, kw_only=True)
class RewardConfig:
    """The rewards of an episode. Only its end can earn one: whatever can be repeated costs, so that no reward can be
    farmed."""

    success: float = 1.0
    """Reward of the action that solves the puzzle."""
    failure: float = 0.0
    """Reward of the action that loses it."""
    step: float = -0.01
    """Reward of every action."""
    invalid: float = -0.1
    """Reward of an action that the server refuses, and of one that is not a move of the game."""
    hint: float = -0.05
    """Reward of every hint before the action."""

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if not is_number(value) or not math.isfinite(value):
                raise OptionError(f"the reward {option.name} must be a finite number, got {value!r}")
            if option.name != "success" and value > 0:
                raise OptionError(
                    f"the reward {option.name} must not be above 0, got {value}: it could be earned without solving "
                    "anything"
                )


@dataclass(frozen=True, kw_only=True)
class GymConfig:
    """Which server, which puzzles, how many at once, and how long anything may take.

    Example:
        >>> config = GymConfig(games=("lights",), difficulty_range=(0.0, 0.4))
        >>> config.episode(7).game, config.episode(7).difficulty
        ('lights', 'easy')
    """

    host: str = "localhost"
    port: int = 8023
    transport: TransportName = "auto"
    games: tuple[str, ...] | None = None
    """The games that are played: one name or several; a game that is named twice is played twice as often. None means
    all games that a server generates quickly and shows completely."""
    difficulty_range: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest difficulty that is played: easy is 0.3, medium 0.5, hard 0.7."""
    lanes: int = 8
    """Episodes that are played at the same time, each over a connection of its own."""
    max_steps: int = 200
    """Upper limit of the actions of an episode; one that is not solved by then is truncated and counts as a failure."""
    connect_timeout: float = 10.0
    """Upper limit of the time to connect, in seconds, as all times here."""
    read_timeout: float = 30.0
    """Upper limit of the time until a reply is complete."""
    episode_timeout: float = 300.0
    """Upper limit of the time for an episode. Reconnecting and the policy's own time count; the time in which the
    server is unreachable, or in which the lanes wait for the consumer, does not."""
    max_retries: int = 3
    """Number of times that an episode is resumed on a new connection after its connection failed."""
    retry_delay: float = 1.0
    """Delay before the first retry; it doubles with every further one."""
    max_retry_delay: float = 30.0
    """Upper limit of the retry delay. A server that stays unreachable for longer ends the run with ConnectionFailed."""
    seed: int = 42
    """Decides which puzzles are played."""
    rewards: RewardConfig = field(default_factory=RewardConfig)

    def __post_init__(self) -> None:
        """
        Raises:
            OptionError: An option has a value that cannot work.
            UnknownGame: There is no such game, or it cannot be played to its end.
        """
        one_of("transport", self.transport, TRANSPORTS)
        check_counts(lanes=self.lanes, max_steps=self.max_steps, port=self.port)
        if self.port > 65535:
            raise OptionError(f"port must be at most 65535, got {self.port}")
        if not isinstance(self.host, str) or not self.host.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionError(f"host must name a machine, such as localhost, got {self.host!r}")
        if type(self.max_retries) is not int or self.max_retries < 0:
            raise OptionError(f"max_retries must be an integer that is not negative, got {self.max_retries!r}")
        if type(self.seed) is not int:
            raise OptionError(f"seed must be an integer, got {self.seed!r}")
        for name in ("connect_timeout", "read_timeout", "episode_timeout"):
            if not is_number(getattr(self, name)) or not 0 < getattr(self, name) < math.inf:
                raise OptionError(f"{name} must be a number above 0 and finite, got {getattr(self, name)!r}")
        delays = (self.retry_delay, self.max_retry_delay)
        if not all(map(is_number, delays)) or not 0 <= delays[0] <= delays[1] < math.inf:
            raise OptionError(f"retry_delay must lie between 0 and max_retry_delay ({delays[1]!r}), got {delays[0]!r}")
        if not isinstance(self.rewards, RewardConfig):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionError(f"rewards must be a RewardConfig, got {self.rewards!r}")
        self._check_what_is_played()

    def _check_what_is_played(self) -> None:
        if self.games is not None:
            games = (self.games,) if isinstance(self.games, str) else tuple(self.games)  # pyright: ignore[reportUnnecessaryIsInstance]
            object.__setattr__(self, "games", games)
            if not games:
                raise OptionError("games is empty; name some, or leave it out for all that are quick")
            for name in games:
                game(name)
        ends: Any = self.difficulty_range
        good = (
            isinstance(ends, tuple | list)
            and len(cast(Sequence[Any], ends)) == 2
            and all(map(is_number, cast(Sequence[Any], ends)))
        )
        if not good or not 0 <= ends[0] <= ends[1] <= 1:
            raise OptionError(f"difficulty_range must be two numbers that rise between 0 and 1, got {ends!r}")
        if not self.levels:
            known = ", ".join(f"{level} {DIFFICULTIES[level]}" for level in LEVELS)
            raise OptionError(f"no difficulty lies in {ends[0]}..{ends[1]}; there are: {known}")

    @property
    def levels(self) -> tuple[str, ...]:
        """The difficulties that are played."""
        low, high = self.difficulty_range
        return tuple(level for level in LEVELS if low <= DIFFICULTIES[level] <= high)

    def episode(self, number: int) -> EpisodeSpec:
        """Episode `number` of a run: a function of the seed, the games and the difficulties alone."""
        from brim.core.rng import raw_bits  # NumPy: the options themselves are read without it

        games = self.games or QUICK
        which, how, seed = (int(word) for word in raw_bits(3, seed=self.seed, purpose="gym/episode", epoch=number))
        return EpisodeSpec(
            number=number,
            game=games[which % len(games)],
            difficulty=self.levels[how % len(self.levels)],
            seed=seed >> 33,
        )


def is_number(value: object) -> bool:
    """True for an integer or a float; a boolean is neither."""
    return isinstance(value, int | float) and not isinstance(value, bool)
