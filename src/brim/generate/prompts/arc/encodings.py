r"""Grids as text, and exactly back.

A decoder accepts what its encoder writes, up to blanks and tabs at the ends of lines and between cells, and white space
around the whole text. Anything else is `NotAGrid`: a text in another encoding, a ragged grid, a colour above 9. It
never repairs, so it never returns a grid that the text does not spell out.

    spaced    digits with blanks between them        "0 1 2\n3 4 5"
    digits    digits alone                           "012\n345"
    json      lists in JSON, on one line             "[[0, 1, 2], [3, 4, 5]]"
    letters   the letters A to J for 0 to 9          "A B C\nD E F"
    words     names of colours                       "black blue red\ngreen yellow grey"
    numbered  spaced, with the number of each row    "0: 0 1 2\n1: 3 4 5"
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import orjson

from brim.core.errors import DataError
from brim.core.options import one_of
from brim.envs.arc.look.palette import COLOUR_NAMES
from brim.envs.arc.tasks.task import Grid, read_grid

LONGEST = 20_000
"""Characters of a text above which it is refused unread. The largest grid has about 6,000 in its longest encoding."""

DIGITS = tuple("0123456789")
LETTERS = tuple("ABCDEFGHIJ")
BLANK = " \t\r"


class NotAGrid(DataError):  # noqa: N818
    """A text is not a grid in the encoding that was asked for."""


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """A way to write a grid."""

    name: str
    about: str
    """A sentence for prompts: how grids are written."""
    encode: Callable[[Grid], str]
    read: Callable[[str], list[list[int]]]
    """Return rows of colours; they are checked afterwards.

    Raises:
        NotAGrid: A row or a cell is not written as the encoding says.
    """

    def decode(self, text: str) -> Grid:
        """Return the grid that a text spells out, as a read-only array.

        Raises:
            NotAGrid: It is not a grid in this encoding, or is larger than 30x30.
        """
        if len(text) > LONGEST:
            raise NotAGrid(f"a text of {len(text)} characters is not a grid; the largest has fewer than {LONGEST}")
        try:
            return read_grid(self.read(text.strip(BLANK + "\n")), "grid")
        except NotAGrid:
            raise
        except DataError as error:
            raise NotAGrid(str(error)) from None


def find_encoding(name: str) -> Encoding:
    """Return an encoding by its name.

    Raises:
        OptionError: There is none of that name.
    """
    return ENCODINGS[one_of("encoding", name, ENCODINGS)]


def _separated(symbols: tuple[str, ...]) -> tuple[Callable[[Grid], str], Callable[[str], list[list[int]]]]:
    """Return encoder and decoder of cells that have blanks between them."""
    colours = {symbol: colour for colour, symbol in enumerate(symbols)}

    def encode(grid: Grid) -> str:
        return "\n".join(" ".join(symbols[colour] for colour in row) for row in grid)

    def read(text: str) -> list[list[int]]:
        return [_cells(_split(line), colours, number) for number, line in enumerate(text.split("\n"))]

    return encode, read


def _encode_digits(grid: Grid) -> str:
    return "\n".join("".join(DIGITS[colour] for colour in row) for row in grid)


def _read_digits(text: str) -> list[list[int]]:
    colours = {digit: colour for colour, digit in enumerate(DIGITS)}
    return [_cells(list(line.strip(BLANK)), colours, number) for number, line in enumerate(text.split("\n"))]


def _encode_json(grid: Grid) -> str:
    return str(grid.tolist())


def _read_json(text: str) -> list[list[int]]:
    try:
        return orjson.loads(text)
    except (orjson.JSONDecodeError, UnicodeEncodeError):
        raise NotAGrid("the text is not a list of rows in JSON") from None


def _encode_numbered(grid: Grid) -> str:
    return "\n".join(f"{number}: {line}" for number, line in enumerate(_SPACED[0](grid).split("\n")))


def _read_numbered(text: str) -> list[list[int]]:
    rows: list[str] = []
    for number, line in enumerate(text.split("\n")):
        label, _, row = line.partition(":")
        if label.strip(BLANK) != str(number):
            raise NotAGrid(f'row {number} does not begin with "{number}:"')
        rows.append(row)
    return _SPACED[1]("\n".join(rows))


def _split(line: str) -> list[str]:
    """Split at blanks and tabs alone: `str.split` would take other white space of Unicode for blanks as well."""
    return re.split(f"[{BLANK}]+", line.strip(BLANK))


def _cells(symbols: list[str], colours: dict[str, int], row: int) -> list[int]:
    found = [colours.get(symbol) for symbol in symbols]
    if None in found:
        raise NotAGrid(f"row {row} has a cell that is not a colour: {symbols[found.index(None)]!r:.40}")
    return [colour for colour in found if colour is not None]


_SPACED, _LETTERED, _WORDED = _separated(DIGITS), _separated(LETTERS), _separated(COLOUR_NAMES)

ENCODINGS: dict[str, Encoding] = {
    encoding.name: encoding
    for encoding in (
        Encoding(
            name="spaced",
            about="A grid is written row by row, each cell as a digit from 0 to 9, with blanks between the cells.",
            encode=_SPACED[0],
            read=_SPACED[1],
        ),
        Encoding(
            name="digits",
            about="A grid is written row by row, each cell as a digit from 0 to 9, without blanks.",
            encode=_encode_digits,
            read=_read_digits,
        ),
        Encoding(
            name="json",
            about="A grid is written as a JSON list of its rows on one line, each cell as a number from 0 to 9.",
            encode=_encode_json,
            read=_read_json,
        ),
        Encoding(
            name="letters",
            about="A grid is written row by row, each cell as a letter from A to J, with blanks between the cells.",
            encode=_LETTERED[0],
            read=_LETTERED[1],
        ),
        Encoding(
            name="words",
            about="A grid is written row by row, each cell as one of the colours "
            f"{', '.join(COLOUR_NAMES)}, with blanks between the cells.",
            encode=_WORDED[0],
            read=_WORDED[1],
        ),
        Encoding(
            name="numbered",
            about="A grid is written row by row: the number of the row from 0, a colon, and each cell as a digit from "
            "0 to 9, with blanks between the cells.",
            encode=_encode_numbered,
            read=_read_numbered,
        ),
    )
}
"""The encodings by name."""
