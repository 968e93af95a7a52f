"""The keys of `brim arc play`: what each of them does, and the keys in what a terminal, a pipe or --keys sends.

Keys are names: "up", "enter", or a single character. Nothing is read and nothing is played here.
"""

import re
from typing import NamedTuple

from brim.core.display import visible
from brim.core.errors import OptionError, did_you_mean
from brim.envs.arc.operations import ArcOperation

MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
"""Rows and columns that the cursor moves by."""
SAME = {
    **{"k": "up", "j": "down", "h": "left", "l": "right"},
    **{"shift-up": "K", "shift-down": "J", "shift-left": "H", "shift-right": "L", "backspace": "u"},
}
"""Keys that do the same as another."""
OPERATIONS = {
    **{str(colour): ArcOperation(colour) for colour in range(10)},
    "K": ArcOperation.MOVE_UP,
    "J": ArcOperation.MOVE_DOWN,
    "H": ArcOperation.MOVE_LEFT,
    "L": ArcOperation.MOVE_RIGHT,
    "r": ArcOperation.ROTATE_CLOCKWISE,
    "R": ArcOperation.ROTATE_COUNTERCLOCKWISE,
    "m": ArcOperation.FLIP_HORIZONTAL,
    "M": ArcOperation.FLIP_VERTICAL,
    "c": ArcOperation.COPY,
    "x": ArcOperation.CUT,
    "p": ArcOperation.PASTE,
    "z": ArcOperation.CLEAR,
    "i": ArcOperation.COPY_INPUT,
    "g": ArcOperation.RESIZE,
    "e": ArcOperation.RESET_PAIR,
    "enter": ArcOperation.SUBMIT,
}
"""Keys that are one operation each. "f" and a digit fill a region; "n", "b" and "t" depend on the present pair."""
OTHERS = ("space", "v", "a", "escape", "f", "u", "n", "b", "t", "d", "?", "q")
KEYS = (*MOVES, *SAME, *OPERATIONS, *OTHERS)

HELP = (
    ("arrows, hjkl", "move the cursor"),
    ("space", "select a cell, or not"),
    ("v", "begin or end a rectangle"),
    ("a", "select all cells"),
    ("escape", "select nothing"),
    ("0 to 9", "fill with a colour"),
    ("f, 0 to 9", "fill the cursor's region"),
    ("HJKL", "move the content"),
    ("r, R", "rotate right, left"),
    ("m, M", "mirror across, down"),
    ("c, x", "copy, cut"),
    ("p", "paste at the cursor"),
    ("z", "make black"),
    ("g", "end grid at the cursor"),
    ("i", "start from the input"),
    ("u", "undo the last step"),
    ("enter", "submit the grid"),
    ("d", "look at demonstrations"),
    ("n, b", "next pair, pair before"),
    ("t", "go to tests or to train"),
    ("e", "begin this pair again"),
    ("q", "quit"),
)
"""Keys, and what they do."""

_SEQUENCES = {
    **{f"\x1b[{code}": name for code, name in zip("ABCD", ("up", "down", "right", "left"), strict=True)},
    **{f"\x1bO{code}": name for code, name in zip("ABCD", ("up", "down", "right", "left"), strict=True)},
    **{f"\x1b[1;2{code}": f"shift-{name}" for code, name in zip("ABCD", ("up", "down", "right", "left"), strict=True)},
    **{"\r": "enter", "\n": "enter", " ": "space", "\x1b": "escape", "\x7f": "backspace", "\b": "backspace"},
    "\x04": "q",
}
_SEQUENCE = re.compile(r"\x1b\[[0-9;?<]*[A-Za-z~]|\x1bO[A-Za-z]|.", re.DOTALL)
_UNFINISHED = re.compile(r"\x1b(\[[0-9;?<]*|O)?\Z")
_NAMED = re.compile(r"<([a-z-]+)>|.", re.DOTALL)


class Typed(NamedTuple):
    """The keys in some text, and what is left: the beginning of a sequence whose end has not been read."""

    keys: list[str]
    rest: str


def typed(text: str, *, complete: bool = True) -> Typed:
    r"""Return the keys that a terminal sends as this text. Unless it is complete, an escape at its end is kept.

    Example:
        >>> typed("a5\x1b[A\r").keys
        ['a', '5', 'up', 'enter']
    """
    unfinished = None if complete else _UNFINISHED.search(text)
    end = len(text) if unfinished is None else unfinished.start()
    found = [one.group() for one in _SEQUENCE.finditer(text[:end])]
    return Typed([_SEQUENCES.get(one, one) for one in found], text[end:])


def written(text: str) -> list[str]:
    """Return the keys in the text of an option: characters as they are typed, others by name, such as <enter>.

    Raises:
        OptionError: A key is unknown.

    Example:
        >>> written("a5<enter>")
        ['a', '5', 'enter']
    """
    keys = [one.group(1) or _SEQUENCES.get(one.group(), one.group()) for one in _NAMED.finditer(text)]
    return known(keys, "--keys")


def known(keys: list[str], source: str) -> list[str]:
    """Return the keys if each of them does something.

    Raises:
        OptionError: One does not.
    """
    for number, key in enumerate(keys, 1):
        if key not in KEYS:
            names = [one for one in KEYS if len(one) > 1]
            raise OptionError(
                f"key {number} of {source}, {visible(key)!r}, does nothing; brim arc play --help lists the"
                f" keys.{did_you_mean(key, names) if len(key) > 1 else ''}"
            )
    return keys
