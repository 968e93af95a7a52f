"""The words that all environments share for an episode: how it stands, how it ended, how hard it was.

The vocabulary is Gymnasium's. An episode is *terminated* when it reached an end of its own, such as a solved or a lost
puzzle, and *truncated* when it was cut off from outside: no steps or no time left, a player who gave up, a server that
failed. The two are kept apart up to the episode that comes out, because a learner must bootstrap from the last state of
a truncated episode and must not from that of a terminated one.
"""

from collections.abc import Mapping
from enum import StrEnum

DIFFICULTIES: Mapping[str, float] = {"trivial": 0.1, "easy": 0.3, "medium": 0.5, "hard": 0.7, "expert": 0.9}
"""The numbers that difficulties in words stand for, from 0 to 1."""

LEVELS = ("easy", "medium", "hard")
"""The difficulties that every puzzle has."""


class EpisodeStatus(StrEnum):
    """The status of an episode. The last four are final."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCESS = "success"
    FAILURE = "failure"
    TIMEOUT = "timeout"
    ERROR = "error"


class Ending(StrEnum):
    """Why an episode ended that did not end in an error."""

    SOLVED = "solved"
    LOST = "lost"
    GAVE_UP = "gave up"
    OUT_OF_STEPS = "out of steps"
    OUT_OF_TIME = "out of time"

    @property
    def terminated(self) -> bool:
        """True if the episode reached an end of its own; otherwise it was truncated."""
        return self in (Ending.SOLVED, Ending.LOST)

    @property
    def status(self) -> EpisodeStatus:
        if self is Ending.SOLVED:
            return EpisodeStatus.SUCCESS
        return EpisodeStatus.TIMEOUT if self is Ending.OUT_OF_TIME else EpisodeStatus.FAILURE
