"""Controls that both pages have, as HTML."""

from collections.abc import Sequence
from html import escape

from brim.envs.arc.look.palette import PALETTES

PALETTE_TITLES = {"arc": "ARC", "colour-blind": "colour-blind"}
LOOK_KEYS = (("k", "other palette"), ("d", "digits in cells"), ("?", "this list"))
REPLAY_KEYS = (
    ("Space", "play or pause"),
    ("Left, Right", "one step back or forward"),
    ("Home, End", "first or last step"),
    ("+, -", "faster or slower"),
    ("n, p", "next or previous episode of the list"),
    ("c", "compare with another episode, or stop comparing"),
    *LOOK_KEYS,
)
BROWSE_KEYS = (
    ("Arrows", "from task to task"),
    ("Home, End", "first or last task"),
    ("Enter", "open the task"),
    ("Left, Right", "in an open task: the previous or next one"),
    ("a", "in an open task: show or hide the answers"),
    ("Escape", "close the task"),
    ("/", "search"),
    *LOOK_KEYS,
)


def look_html() -> str:
    """Return the choice of the palette, the button for digits in cells, and the one for the list of keys."""
    options = "".join(
        f'<label><input type="radio" name="palette" value="{name}"{"" if number else " checked"}>'
        f"<span>{PALETTE_TITLES.get(name, name)}</span></label>"
        for number, name in enumerate(PALETTES)
    )
    return (
        f'<fieldset class="switch palette"><legend>Palette</legend>{options}</fieldset>'
        '<button type="button" id="digits" aria-pressed="false">Digits</button>'
        '<button type="button" id="keys">Keys</button>'
    )


def help_html(keys: Sequence[tuple[str, str]]) -> str:
    """Return the dialog with the keys and what they do."""
    rows = "".join(f"<dt>{_keys(names)}</dt><dd>{escape(does)}</dd>" for names, does in keys)
    return (
        '<dialog id="help" aria-labelledby="help-title"><div class="head"><h2 id="help-title">Keys</h2>'
        f'<button type="button" class="close">Close</button></div><dl class="keys">{rows}</dl></dialog>'
    )


def _keys(names: str) -> str:
    return " ".join(f"<kbd>{escape(name)}</kbd>" for name in names.split(", "))


def select_options(options: Sequence[tuple[str, str]]) -> str:
    return "".join(f'<option value="{escape(value)}">{escape(name)}</option>' for value, name in options)
