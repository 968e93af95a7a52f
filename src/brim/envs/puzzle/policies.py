"""Policies: what they are asked, what they answer, and those that need no model.

A policy is asked once for every step of every lane, and may take its time: lanes do not wait for each other unless it
makes them, as `Together` does.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import orjson

from brim.core.errors import DataError
from brim.core.rng import raw_bits
from brim.core.wait import together
from brim.envs.puzzle.games import EpisodeSpec


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A lane that waits for an action."""

    episode: EpisodeSpec
    step: int
    """Actions taken in this episode so far."""
    prompt: str
    """The position in words: what a language model reads, and what samples are made of."""
    observation: dict[str, Any]
    """The position as the server sent it."""
    actions: tuple[str, ...]
    """Well-formed actions in this position, not all of them good; empty for games where they cannot be listed."""
    hint: str | None = None
    """The action that the server advises; only for policies that want it, because hints cost."""
    history: tuple[str, ...] = field(default=())
    """The actions of this episode so far."""
    refused: bool = False
    """True if the last of them was refused."""


class Policy(Protocol):
    """Chooses actions. `act` is all that it must have; these may be there too:

    - `name: str`, for messages; otherwise the name of its class.
    - `wants_hints: bool`: whether a turn must carry the server's hint.
    - `begin(episode)`: a lane begins an episode. `end(episode)`: it has ended, however it ended, also because the run
      was stopped.

    `begin` and `end` are called without waiting between the end of one episode and the beginning of the next.
    """

    async def act(self, turn: Turn) -> str | None:
        """The action, or None to give up."""
        ...


class SimplePolicy(ABC):
    """A policy that does not care when episodes begin and end."""

    name = "simple"
    wants_hints = False

    def begin(self, episode: EpisodeSpec) -> None:  # noqa: B027  most policies have nothing to begin
        pass

    @abstractmethod
    async def act(self, turn: Turn) -> str | None:
        """Return the action for a turn, or None to give up."""

    def end(self, episode: EpisodeSpec) -> None:  # noqa: B027
        pass


class HintPolicy(SimplePolicy):
    """Follows the server's hints. Gives up where there is none, or where the hint is what the server has just
    refused."""

    name = "hint"
    wants_hints = True

    async def act(self, turn: Turn) -> str | None:
        return None if turn.refused and turn.history[-1] == turn.hint else turn.hint


class RandomPolicy(SimplePolicy):
    """Chooses among the actions of a turn uniformly at random; gives up where they cannot be listed.

    The choice is a function of the seed, the number of the episode and the step: lanes and timing do not matter.
    """

    name = "random"

    def __init__(self, seed: int = 42) -> None:
        self.seed = seed

    async def act(self, turn: Turn) -> str | None:
        if not turn.actions:
            return None
        bits = raw_bits(turn.step + 1, seed=self.seed, purpose="gym/policy", epoch=turn.episode.number)
        return turn.actions[int(bits[turn.step]) % len(turn.actions)]


Script = Mapping[tuple[str, str, int], Sequence[str]] | Callable[[Turn], str | None]


class ScriptedPolicy(SimplePolicy):
    """Plays a script: a list of actions for each (game, difficulty, seed), or a function of the turn.

    An episode that the script does not contain, or whose actions are used up, is given up.
    """

    name = "scripted"

    def __init__(self, script: Script) -> None:
        self._script = script

    @classmethod
    def load(cls, path: str | Path) -> "ScriptedPolicy":
        """Read a script from JSONL, a line for each episode: {"game", "difficulty", "seed", "actions": [...]}.

        Raises:
            DataError: A line does not have this form.
        """
        script: dict[tuple[str, str, int], tuple[str, ...]] = {}
        for number, line in enumerate(Path(path).read_bytes().splitlines(), 1):
            if not line.strip():
                continue
            try:
                row = orjson.loads(line)
                key = (str(row["game"]), str(row["difficulty"]), int(row["seed"]))
                actions = tuple(row["actions"])
            except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
                raise DataError(f'{path}:{number}: not {{"game", "difficulty", "seed", "actions"}}: {error}') from None
            if not all(isinstance(action, str) for action in actions):
                raise DataError(f'{path}:{number}: "actions" must be a list of strings')
            script[key] = actions
        return cls(script)

    async def act(self, turn: Turn) -> str | None:
        if callable(self._script):
            return self._script(turn)
        actions = self._script.get((turn.episode.game, turn.episode.difficulty, turn.episode.seed), ())
        return actions[turn.step] if turn.step < len(actions) else None


class Together(together.Together[EpisodeSpec, Turn, str | None]):
    """Waits until every episode that has begun and not ended is waiting for an action, and then chooses for all of them
    at once.

    `choose` gets the turns sorted by the number of their episode, and answers in that order. Which turns meet depends
    on the course of the episodes alone, never on which server answered first. An episode that is reconnecting keeps the
    others waiting, as long as its own deadlines let it; one that ended, however it ended, does not.
    """

    name = "together"

    def __init__(
        self,
        choose: Callable[[Sequence[Turn]], Sequence[str | None]],
        *,
        in_thread: bool = True,
        wants_hints: bool = False,
    ) -> None:
        """With `in_thread`, the lanes keep running while `choose` computes in a thread, always in the same one while
        there are episodes."""
        super().__init__(choose, in_thread=in_thread, order=lambda episode: episode.number)
        self.wants_hints = wants_hints

    @property
    def turns(self) -> int:
        """Number of actions that were chosen."""
        return self.items

    async def act(self, turn: Turn) -> str | None:
        return await self.ask(turn.episode, turn)
