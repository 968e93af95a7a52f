"""Options of ARC prompts, and the names of data sets that carry them: `arc:DATA,OPTION=VALUE,...`.

The form needs no quotes in a shell. A path with a comma in it cannot be named this way.
"""

from dataclasses import dataclass, fields
from typing import Literal, get_args

from brim.core.errors import OptionError, did_you_mean
from brim.core.options import check_counts, one_of
from brim.envs.arc.config import LARGEST
from brim.generate.prompts.arc.encodings import find_encoding

PREFIX = "arc"
MOCK = "mock"
Template = Literal["tags", "plain"]


@dataclass(frozen=True, kw_only=True)
class ArcText:
    """The tasks, and how they are written.

    Raises:
        OptionError: An option is out of range, unknown, or has no effect.
    """

    data: str = "arcagi"
    """`arcagi`, `arcagi2`, `mock` (a task to try things on, in sizes from 2x2 to 10x10), or the path of a JSON file or
    directory of tasks."""
    encoding: str = "spaced"
    """How grids are written: spaced, digits, json, letters, words or numbered."""
    template: Template = "tags"
    """"tags" asks for reasoning and for the answer in <answer> tags; "plain" is a list of inputs and outputs to
    continue, for models that follow no instructions."""
    demonstrations: int | None = None
    """Most demonstration pairs in a prompt, the first ones of the task; None is all."""
    max_size: int | None = None
    """Leave out tasks that have a grid with more rows or columns."""
    max_length: int | None = None
    """Leave out prompts that are longer: in characters, or in tokens of `tokenizer`."""
    tokenizer: str | None = None
    """Tokenizer that `max_length` counts with, such as gpt2; None counts characters."""
    copies: int = 0
    """Turned, mirrored and recoloured copies of each task that the split "train" has as well."""
    seed: int = 0
    """Decides the copies."""

    def __post_init__(self) -> None:
        if not self.data:
            raise OptionError("the name of the ARC data is empty; use arcagi, arcagi2, mock or a path")
        find_encoding(self.encoding)
        one_of("template", self.template, get_args(Template))
        check_counts(demonstrations=self.demonstrations, max_size=self.max_size, max_length=self.max_length)
        if self.max_size is not None and self.max_size > LARGEST:
            raise OptionError(f"max_size must be at most {LARGEST}, got {self.max_size}")
        if self.tokenizer is not None and self.max_length is None:
            raise OptionError(f"tokenizer={self.tokenizer} has no effect without max_length")
        if type(self.copies) is not int or self.copies < 0:
            raise OptionError(f"copies must be an integer that is not negative, got {self.copies!r}")
        if type(self.seed) is not int or self.seed < 0:
            raise OptionError(f"seed must be an integer that is not negative, got {self.seed!r}")
        if self.seed and not self.copies:
            raise OptionError(f"seed={self.seed} has no effect without copies")

    @property
    def name(self) -> str:
        """The name of the data set with these options; `parse_name` is the inverse."""
        given = [f"{field.name}={getattr(self, field.name)}" for field in _OPTIONS if not _is_default(self, field.name)]
        return ",".join([f"{PREFIX}:{self.data}", *given])


def parse_name(name: str) -> ArcText:
    """Return the options that a name carries: "arc", "arc:DATA", or "arc:DATA,OPTION=VALUE,...".

    Raises:
        OptionError: An option is unknown, is given twice, or has a value that cannot be used.

    Example:
        >>> parse_name("arc:arcagi2,encoding=letters,max_size=10").max_size
        10
    """
    _, colon, rest = name.partition(":")
    data, *parts = rest.split(",")
    values: dict[str, str | int] = {"data": data} if colon else {}
    kinds = {field.name: field.type for field in _OPTIONS}
    for part in parts:
        option, equals, value = part.partition("=")
        if not equals:
            raise OptionError(f"an option of {PREFIX} is written OPTION=VALUE, got {part!r} in {name!r}")
        if option not in kinds:
            raise OptionError(
                f"unknown option {option!r} of {PREFIX}; there are {', '.join(kinds)}.{did_you_mean(option, kinds)}"
            )
        if option in values:
            raise OptionError(f"the option {option} is given twice in {name!r}")
        values[option] = _number(option, value) if "int" in str(kinds[option]) else value
    return ArcText(**values)  # pyright: ignore[reportArgumentType]


def _number(option: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) < 10):
        raise OptionError(f"{option} must be an integer, got {value!r}")
    return int(value)


def _is_default(options: ArcText, name: str) -> bool:
    return getattr(options, name) == getattr(_DEFAULT, name)


_OPTIONS = tuple(field for field in fields(ArcText) if field.name != "data")
_DEFAULT = ArcText()
