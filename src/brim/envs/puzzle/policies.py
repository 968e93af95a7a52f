"""Policies that need no model: by the server's hints, at random, and by a script."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import orjson

from brim.core.errors import DataError
from brim.core.rng import raw_bits
from brim.envs.puzzle.policy import EpisodeSpec, Turn


class SimplePolicy:
    """A policy that does not care when episodes begin and end."""

    name = "simple"
    wants_hints = False

    def begin(self, episode: EpisodeSpec) -> None:
        pass

    async def act(self, turn: Turn) -> str | None:
        raise NotImplementedError

    def end(self, episode: EpisodeSpec) -> None:
        pass


class HintPolicy(SimplePolicy):
    """Does what the server advises. Gives up where it advises nothing, or again what it just refused."""

    name = "hint"
    wants_hints = True

    async def act(self, turn: Turn) -> str | None:
        return None if turn.refused and turn.history[-1] == turn.hint else turn.hint


class RandomPolicy(SimplePolicy):
    """Any of the actions of a turn, each as likely; gives up where they cannot be listed.

    What it chooses is a function of the seed, the number of the episode and the step: lanes and timing do not matter.
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
    """Plays what was written down: for each (game, difficulty, seed) its actions, or whatever a function of the turn says.

    An episode that the script does not know, or whose actions are used up, is given up.
    """

    name = "scripted"

    def __init__(self, script: Script) -> None:
        self._script = script

    @classmethod
    def load(cls, path: str | Path) -> "ScriptedPolicy":
        """From JSONL, a line for each episode: {"game", "difficulty", "seed", "actions": [...]}.

        Raises:
            DataError: A line is none of these.
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
