"""The thirty games of the server: how moves are written, which games can be finished, what a position looks like in
words.

The verbs are those that the server accepts over the wire, which for some games are not those in its own help text.
Rows, columns and everything else that is numbered count from 1. `solve`, `reset` and the commands of the session are no
moves and never reach a server.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from brim.core.errors import OptionError, did_you_mean
from brim.core.options import one_of
from brim.envs.episode import LEVELS
from brim.envs.puzzle.wire.errors import UnknownGame

Observation = Mapping[str, Any]
Board = Literal["grid", "display", "lines"]

_INT = r"-?\d{1,4}"
_WORDS = {
    "r": _INT,
    "c": _INT,
    "v": _INT,
    "n": _INT,
    "digit": _INT,
    "h|v": "[hv]",
    "state": "[012]",
    "way": "up|down|left|right",
    "vehicle": "[a-zA-Z]",
    "letter": "[a-zA-Z]",
    "colour": "white|black|clear",
    "place|remove": "place|remove",
    "unshade": "unshade",
}


@dataclass(frozen=True, kw_only=True)
class Game:
    """One of the thirty games."""

    name: str
    """The name by which the server is asked for the game."""
    title: str
    """The title that the server shows."""
    moves: tuple[str, ...]
    """The forms of a move, each a verb and its arguments: "place r c v"."""
    board: Board = "display"
    """The part of an observation that a prompt shows: the bare grid, where it holds everything there is to see;
    otherwise the drawing, without its borders unless lines are moves."""
    blank: int = 0
    """The value of an empty cell of a grid."""
    unplayable: str | None = None
    """The reason why the game cannot be played to its end, if there is one."""
    cells: type[int] | type[str] = int
    """The type of the cells of a grid, if there is one."""
    slow: bool = False
    """True if a server can take many seconds to generate a puzzle, during which it answers no request."""
    hidden: bool = False
    """True if the server shows only a part of the position, so that the puzzle cannot be solved by reasoning."""

    def check(self, action: str) -> str | None:
        """Describe what is wrong with an action, without asking a server; None for a well-formed move, and for
        `check`."""
        if not action.isprintable():
            return "an action is one line of printable characters"
        if any(_pattern(move).fullmatch(action) for move in (*self.moves, "check")):
            return None
        return f"no move of {self.name}; moves are: {', '.join(self.moves)}"

    def prompt(self, observation: Observation) -> str:
        """Return the position in words: the name of the game and the board, without counts of moves or the length of a
        solution."""
        grid = observation.get("grid")
        if self.board == "grid" and grid:
            wide = any(len(self._cell(value)) > 1 for row in grid for value in row)
            return "\n".join(
                [self.name, *((" " if wide else "").join(self._cell(value) for value in row) for row in grid)]
            )
        lines = (line.rstrip() for line in str(observation.get("grid_display", "")).splitlines())
        hidden = _TALK if self.board == "lines" else _NO_BOARD
        return "\n".join([self.name, *(line for line in lines if line and not hidden.match(line))])

    def _cell(self, value: Any) -> str:
        return "." if value == self.blank else str(value)


@cache
def _pattern(move: str) -> re.Pattern[str]:
    verb, *arguments = move.removesuffix(" ...").split()
    pattern = " +".join([verb, *(f"(?:{_WORDS[word]})" for word in arguments)])
    return re.compile(pattern + (f"(?: +{_INT}){{0,15}}" if move.endswith(" ...") else ""), re.ASCII)


_TALK = re.compile(r"\s*(Legend:|☒ =|Minimum solution:|Optimal |Moves)")
"""Lines of a drawing that never change, or give the solution away."""
_NO_BOARD = re.compile(rf"[\s+|\-]*$|{_TALK.pattern}")


def game(name: str) -> Game:
    """Return the game of that name.

    Raises:
        UnknownGame: There is none of that name, or it cannot be played to its end.
    """
    found = GAMES.get(name)
    if found is None:
        raise UnknownGame(f"there is no game {name!r}.{did_you_mean(name, GAMES)} `brim gym info` lists them")
    if found.unplayable:
        raise UnknownGame(f"{name} cannot be played to its end: {found.unplayable}")
    return found


@dataclass(frozen=True, kw_only=True)
class EpisodeSpec:
    """Which puzzle is played: the same game, difficulty and seed give the same puzzle on every server."""

    number: int
    """The number of the episode in its run, from 0."""
    game: str
    difficulty: str
    seed: int

    def __post_init__(self) -> None:
        """
        Raises:
            UnknownGame: There is no such game, or it cannot be played to its end.
            OptionError: There is no such difficulty, or a number is negative or not an integer.
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


_PLACE = ("place r c v", "clear r c")

GAMES: dict[str, Game] = {
    game.name: game
    for game in (
        Game(name="sudoku", title="Sudoku", moves=_PLACE, board="grid"),
        Game(name="kenken", title="KenKen", moves=_PLACE),
        Game(name="kakuro", title="Kakuro", moves=_PLACE),
        Game(name="binary", title="Binary Puzzle", moves=("place r c v",), board="grid", blank=-1),
        Game(name="futoshiki", title="Futoshiki", moves=_PLACE),
        Game(name="nonogram", title="Nonogram", moves=("place r c v",), blank=-1),
        Game(
            name="logic",
            title="Logic Grid",
            moves=(),
            unplayable="the server lower-cases what it is sent, and the names of this game have capitals",
        ),
        Game(name="killer", title="Killer Sudoku", moves=_PLACE, hidden=True),
        Game(name="lights", title="Lights Out", moves=("press r c",), board="grid", blank=0),
        Game(name="mastermind", title="Mastermind", moves=("guess n ...",)),
        Game(name="slither", title="Slitherlink", moves=("set h|v r c state",), board="lines"),
        Game(name="bridges", title="Bridges", moves=("bridge r c r c n",)),
        Game(name="hitori", title="Hitori", moves=("shade r c", "mark r c unshade")),
        Game(name="shikaku", title="Shikaku", moves=("bridge r c r c n",)),
        Game(name="hidato", title="Hidato", moves=_PLACE, board="grid"),
        Game(name="tents", title="Tents and Trees", moves=("mark r c place|remove",)),
        Game(name="fillomino", title="Fillomino", moves=_PLACE, board="grid"),
        Game(name="star_battle", title="Star Battle", moves=("mark r c place|remove",)),
        Game(name="sokoban", title="Sokoban", moves=("move way",)),
        Game(name="knapsack", title="Knapsack", moves=("select n", "deselect n")),
        Game(name="scheduler", title="Task Scheduler", moves=("assign n n n", "unassign n")),
        Game(name="nurikabe", title="Nurikabe", moves=("mark r c colour",)),
        Game(
            name="einstein",
            title="Einstein's Puzzle",
            moves=(),
            unplayable="the server takes the names of its attributes for numbers and refuses them",
        ),
        Game(name="minesweeper", title="Minesweeper", moves=("reveal r c", "flag r c")),
        Game(name="skyscrapers", title="Skyscrapers", moves=_PLACE),
        Game(name="nqueens", title="N-Queens", moves=_PLACE, board="grid"),
        Game(name="numberlink", title="Numberlink", moves=_PLACE, board="grid"),
        Game(name="graph_coloring", title="Graph Coloring", moves=("place n n", "clear n")),
        Game(
            name="cryptarithmetic", title="Cryptarithmetic", moves=("assign letter digit", "unassign letter"), slow=True
        ),
        Game(name="rush_hour", title="Rush Hour", moves=("move vehicle way",), cells=str, slow=True),
    )
}

PLAYABLE: tuple[str, ...] = tuple(name for name, game in GAMES.items() if not game.unplayable)
"""Games that can be played to their end."""
QUICK: tuple[str, ...] = tuple(name for name in PLAYABLE if not GAMES[name].slow and not GAMES[name].hidden)
"""Playable games that a server generates in less than a second at every difficulty, and shows completely."""
