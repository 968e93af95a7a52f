"""Prompts by which a model rewrites a query, so that it is answered better or more consistently.

Each is a text file: a first line `# description`, then the prompt, in which `{query}` stands for the query. A prompt
may also contain `{other}`, the place of a second query that serves as an example. A file of your own works like those
that come with brim. The text of a query is inserted once and never expanded again: braces in it, even the words
`{query}` and `{other}`, stay as they are.
"""

import os
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from brim.core.errors import DataError, OptionError, did_you_mean

FIELD = "{query}"
OTHER = "{other}"
LARGEST = 1 << 20
"""Bytes above which a file is not taken for a template."""
_FIELDS = re.compile(f"{re.escape(FIELD)}|{re.escape(OTHER)}")


@dataclass(frozen=True)
class Mutation:
    """One way to rewrite a query.

    Example:
        >>> Mutation("louder", "Ask with emphasis.", "Add emphasis to: {query}").apply("Is {x} even?")
        'Add emphasis to: Is {x} even?'
    """

    name: str
    description: str
    template: str
    """The prompt, with `{query}` in place of the query, and perhaps `{other}` in place of a second one."""

    def __post_init__(self) -> None:
        if FIELD not in self.template:
            raise OptionError(f"the template of the mutation {self.name!r} does not contain {FIELD}")

    @property
    def needs_other(self) -> bool:
        """True if the prompt contains a second query."""
        return OTHER in self.template

    def apply(self, query: str, other: str | None = None) -> str:
        """Return the prompt that asks a model to rewrite `query`.

        Args:
            other: The second query, which a prompt without `{other}` ignores.

        Raises:
            OptionError: The prompt contains `{other}`, and there is no second query.
        """
        if other is None and self.needs_other:
            raise OptionError(f"the mutation {self.name!r} needs a second query in the place of {OTHER}, got none")
        # One pass over the template: what was inserted is not searched for fields.
        return _FIELDS.sub(lambda field: query if field[0] == FIELD else other or "", self.template)


def _names() -> tuple[str, ...]:
    names = [entry.name for entry in files(__name__).iterdir()]
    return tuple(sorted(name.removesuffix(".txt") for name in names if name.endswith(".txt")))


MUTATIONS = _names()
"""Names of the mutations that come with brim."""


def load_mutation(name: str | os.PathLike[str]) -> Mutation:
    """Return a mutation: one of `MUTATIONS` by its name, or one from a file.

    A string is taken for the path of a file if it ends with .txt or contains a slash.

    Raises:
        OptionError: There is no such mutation or file.
        DataError: The file is not a template.

    Example:
        >>> load_mutation("shorten").description
        'Make the query shorter and keep its meaning.'
    """
    if not isinstance(name, str) or name.endswith(".txt") or "/" in name:
        return _from_file(Path(name))
    if name not in MUTATIONS:
        known = ", ".join(MUTATIONS)
        hint = did_you_mean(name, MUTATIONS)
        raise OptionError(f"there is no mutation {name!r}; there are {known}, and template files.{hint}")
    return _bundled(name)


@cache
def _bundled(name: str) -> Mutation:
    file = f"{name}.txt"
    return _parsed(name, files(__name__).joinpath(file).read_text(encoding="utf-8"), file)


def _from_file(path: Path) -> Mutation:
    try:
        if path.stat().st_size > LARGEST:
            raise DataError(f"{path} is too large for a template ({path.stat().st_size} bytes, at most {LARGEST})")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise OptionError(f"cannot read the template {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise DataError(f"the template {path} is not text in UTF-8") from None
    return _parsed(path.stem, text, str(path))


def _parsed(name: str, text: str, where: str) -> Mutation:
    first, _, template = text.partition("\n")
    description = first.removeprefix("#").strip()
    if not first.startswith("#") or not description:
        raise DataError(f'{where}:1: a template begins with a line "# description", got {first[:80]!r}')
    if FIELD not in template:
        raise DataError(f"{where}: the template does not contain {FIELD}, the place of the query")
    return Mutation(name, description, template.strip())
