"""Options that take one of a few names, and suggest the nearest one for a name that is misspelt."""

from collections.abc import Callable, Iterable
from typing import Any

import click

from brim.core.errors import did_you_mean


class NameChoice(click.Choice[str]):
    """One of some names."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        names = ", ".join(self.choices)
        return f"{value!r} is not one of {names}.{did_you_mean(str(value), self.choices)}"


def name_option(flag: str, names: Iterable[str], *, default: str, help: str) -> Callable[[Any], Any]:
    """Return an option that takes one of these names."""
    return click.option(flag, type=NameChoice(list(names)), default=default, show_default=True, help=help)
