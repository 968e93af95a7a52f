"""How much goes into a page, and how the page says what is left out."""

import json
from collections.abc import Sequence
from html import escape
from typing import Any

from brim.analyze.page.forms import counted

MOST_NAMES = 1_000
"""Names of things that are left out which a page lists; it counts the others."""


class Room:
    """The room that is left in a page, in things and in characters."""

    def __init__(self, *, things: int, characters: int) -> None:
        self._things = things
        self._characters = characters
        self._is_empty = True

    def take(self, value: Any) -> bool:
        """Take room for a thing, given as values of JSON; False if it does not fit. The first one always fits."""
        size = len(json.dumps(value, separators=(",", ":")))
        if not self._is_empty and (self._things < 1 or self._characters < size):
            return False
        self._is_empty = False
        self._things -= 1
        self._characters -= size
        return True


def left_out_html(thing: str, names: Sequence[str], total: int) -> str:
    """Return a note on the things that are not in the page, with their names; nothing if all of them are."""
    if not names:
        return ""
    listed = escape(", ".join(names[:MOST_NAMES]))
    more = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
    verb = "is" if len(names) == 1 else "are"
    return (
        f'<div class="note" id="left-out">The last {len(names):,} of {counted(total, thing)} {verb} left out, because '
        "this page would become too large. The numbers in the page include them."
        f'<details><summary>Show their names</summary><p class="names">{listed}{more}</p></details></div>'
    )
