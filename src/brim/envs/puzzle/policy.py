"""What a policy is asked, and what it answers. A policy is asked once per step and lane, and may take its time: lanes do not wait for each
other unless it makes them.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

from brim.core.errors import OptionError
from brim.core.options import one_of
from brim.envs.puzzle.games import LEVELS, game


@dataclass(frozen=True, kw_only=True)
class EpisodeSpec:
    """Which puzzle is played: the same three words give the same puzzle on every server."""

    number: int
    """Of the episode in its run, from 0."""
    game: str
    difficulty: str
    seed: int

    def __post_init__(self) -> None:
        """
        Raises:
            UnknownGame: There is no such game, or it cannot be played to its end.
            OptionError: There is no such difficulty, or a number is none.
        """
        game(self.game)
        one_of("difficulty", self.difficulty, LEVELS)
        for name in ("number", "seed"):
            value = getattr(self, name)
            if type(value) is not int or value < 0:
                raise OptionError(f"the {name} of an episode must be an integer that is not negative, got {value!r}")

    @property
    def episode_id(self) -> str:
        return f"{self.game}-{self.difficulty}-{self.seed}"


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A lane that waits for an action."""

    episode: EpisodeSpec
    step: int
    """Actions taken in this episode so far."""
    prompt: str
    """The position in words: what a language model reads, and what samples are made of."""
    observation: dict[str, Any]
    """As the server sent it."""
    actions: tuple[str, ...]
    """Well-formed actions in this position, not all of them good; empty for games where they cannot be listed."""
    hint: str | None = None
    """The action that the server advises; only for policies that want it: hints cost."""
    history: tuple[str, ...] = field(default=())
    """The actions of this episode so far."""
    refused: bool = False
    """Whether the last of them was."""


class Policy(Protocol):
    """Chooses actions. `act` is all that it must have; these may be there too:

    - `name: str`, for messages; else that of its class.
    - `wants_hints: bool`: whether a turn must carry the server's hint.
    - `begin(episode)`: a lane takes up an episode. `end(episode)`: it is over, however it ended, also because the stream was left.

    The stream calls `begin` and `end` without waiting between the end of one episode and the beginning of the next.
    """

    async def act(self, turn: Turn) -> str | None:
        """The action, or None to give up."""
        ...
