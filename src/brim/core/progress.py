"""The callbacks by which long work reports how far it is."""

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called with the number of parts done (epochs, rows, batches, ...) and the number of all parts."""

Say = Callable[[str], None]
"""Called with a sentence for the person who waits."""


def silent(*_: object) -> None:
    """Do nothing: the callback that is used when none was given. It takes any arguments."""
