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


class BrimError(Exception):
    """The base of all of them."""


class OptionError(BrimError, ValueError):
    """An option has a value that cannot work."""


class DataError(BrimError, ValueError):
    """A row, file or data set is not what it should be."""


class LengthError(DataError):
    """A sample does not fit, and the options do not say what to do with it."""


class DamagedError(BrimError):
    """A file of ours is truncated, altered or of another version."""


class MismatchError(BrimError):
    """Two things that must belong together do not."""


class MissingExtraError(BrimError, ImportError):
    """An optional dependency is not installed."""


def unreadable(path: object, what: str, error: Exception) -> DataError:
    """The error for a file that another library cannot read as `what`, with that library's reason in one line."""
    return DataError(f"{path} cannot be read as {what} ({' '.join(str(error).split())[:200]}); write it again")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a sentence to append to an error message, such as ' Did you mean "response"?', or an empty string."""
    from difflib import get_close_matches  # only an error needs it

    close = get_close_matches(word, list(known), n=1)
    return f' Did you mean "{close[0]}"?' if close else ""
