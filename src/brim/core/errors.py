"""Every error that brim raises on purpose.

    BrimError
    ├── OptionError        an option has a value that cannot work (also a ValueError)
    ├── DataError          a row, file or data set is not what it should be (also a ValueError)
    │   └── LengthError    a sample does not fit and nobody said what to do about it
    ├── DamagedError       a file of ours is truncated, altered or of another version
    ├── MismatchError      two things that must belong together do not
    └── MissingExtraError  an optional dependency is not installed (also an ImportError)

A message says what is wrong, where, and what to do. The command prints it as one line and exits with 2.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import SupportsIndex


class BrimError(Exception):
    """The base of all of them."""


class OptionError(BrimError, ValueError):
    """An option has a value that cannot work."""


class DataError(BrimError, ValueError):
    """A row, file or data set is not what it should be."""


class LengthError(DataError):
    """A sample does not fit and nobody said what to do about it."""


class DamagedError(BrimError):
    """A file of ours is truncated, altered or of another version."""


class MismatchError(BrimError):
    """Two things that must belong together do not."""


class MissingExtraError(BrimError, ImportError):
    """An optional dependency is not installed."""


LONGEST = 2**31 - 1
"""Lengths are 32 bits wide."""


def one_of(name: str, value: object, choices: Iterable[str]) -> str:
    """`value` as a string, if it is one of the choices.

    Raises:
        OptionError: It is not.
    """
    choices = [str(choice) for choice in choices]
    if str(value) not in choices:
        raise OptionError(f"{name} must be one of {', '.join(choices)}, got {value!r}.{did_you_mean(str(value), choices)}")
    return str(value)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A sentence to append to an error, or nothing: ' Did you mean "response"?'"""
    close = get_close_matches(word, list(known), n=1)
    return f' Did you mean "{close[0]}"?' if close else ""


def check_counts(**options: int | None) -> None:
    """Refuse options below 1, and above what a length can be; None is an option that was not given."""
    for name, value in options.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, SupportsIndex)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionError(f"{name} must be an integer, got {value!r}")
        if value is not None and value < 1:
            raise OptionError(f"{name} must be at least 1, got {value}")
        if value is not None and value > LONGEST:
            raise OptionError(f"{name} must be at most {LONGEST}, got {value}")
