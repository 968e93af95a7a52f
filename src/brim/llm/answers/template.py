"""Prompts from rows: a template with fields, or the field of a row that holds its prompt.

A template is plain text with fields such as {question}; {{ and }} stand for braces. It is parsed once, before any row
is seen, and what it is filled with is never parsed: braces in the text of a row stay as they are.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import orjson

from brim.core.errors import DataError, OptionError, did_you_mean
from brim.data.rows.format import kind_of
from brim.llm.call import Message, chat

PROMPT_FIELDS = ("messages", "prompt", "text")
"""Fields that hold the prompt of a row if neither a template nor a field is given: the first one found is used."""
TEXT_FIELDS = ("text", "prompt")
"""The same for texts that are embedded."""
PIECES = re.compile(r"(\{\{|\}\}|\{[^{}]*\}|[{}])")
LONGEST_SHOWN = 40

Row = Mapping[str, Any]


class Template:
    """A text with fields.

    Example:
        >>> Template("Is {word} in {{braces}}?").fill({"word": "{word}"})
        'Is {word} in {braces}?'
    """

    def __init__(self, text: str) -> None:
        """
        Raises:
            OptionError: A brace has no partner, a field has no name, or there is no field at all.
        """
        self.text = text
        self._pieces = [_parsed(piece, text) for piece in PIECES.split(text) if piece]
        self.fields = tuple(dict.fromkeys(piece for is_field, piece in self._pieces if is_field))
        if not self.fields:
            raise OptionError(
                f"the template {_shown(text)} has no field, so all rows would get the same prompt; name a field of the "
                "rows in braces, such as {question}"
            )

    def fill(self, row: Row) -> str:
        """Return the text with the values of a row. Strings are inserted as they are, other values as JSON.

        Raises:
            DataError: The row does not have a field, or it is null.
        """
        return "".join(_value(row, piece) if is_field else piece for is_field, piece in self._pieces)


def _parsed(piece: str, text: str) -> tuple[bool, str]:
    """Return whether a piece is a field, and its name or its literal text."""
    if piece in ("{{", "}}"):
        return False, piece[0]
    if piece in ("{", "}"):
        raise OptionError(f"the template {_shown(text)} has a single {piece}; write {piece * 2} for a literal brace")
    if not piece.startswith("{"):
        return False, piece
    name = piece[1:-1]
    if not name:
        raise OptionError(f"the template {_shown(text)} has a field without a name; write {{{{}}}} for literal braces")
    return True, name


def _value(row: Row, field: str) -> str:
    value = row.get(field)
    if isinstance(value, str):
        return value
    if value is None:
        found = "is null" if field in row else f"is missing (fields: {_listed(row)})"
        literal = "" if re.fullmatch(r"[\w.-]+", field) else " Literal braces are doubled in a template: {{ and }}."
        raise DataError(f'"{field}" of the template {found}.{did_you_mean(field, row)}{literal}')
    return orjson.dumps(value, default=str).decode()


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """How the prompt of a row is made."""

    template: Template | None = None
    field: str | None = None
    """The field that holds the prompt. None takes the first one of `usual` that a row has."""
    usual: tuple[str, ...] = PROMPT_FIELDS
    option: str = "--prompt-field"
    """The option that names the field, for messages."""
    system: str | None = None
    """System message before every prompt."""

    def __post_init__(self) -> None:
        if self.template is not None and self.field is not None:
            raise OptionError(f"a template and the field {self.field!r} were given; a prompt comes from one of them")

    def check(self, row: Row) -> None:
        """Refuse a row of which no prompt can be made. An empty prompt is not refused here.

        Raises:
            DataError: A field is missing, or is of the wrong type.
        """
        self._made(row)

    def check_text(self, row: Row) -> None:
        """Refuse a row that has no text to embed. An empty text is not refused here.

        Raises:
            DataError: A field is missing, or is no string.
        """
        self._text(row)

    def messages(self, row: Row) -> tuple[Message, ...]:
        """Return the conversation that asks for the answer to a row.

        Raises:
            DataError: A field is missing, or is of the wrong type.
            OptionError: The prompt is empty, or is not a list of messages.
        """
        return chat(self._made(row), system=self.system)

    def text(self, row: Row) -> str:
        """Return the text of a row, to be embedded.

        Raises:
            DataError: A field is missing, or is no string.
            OptionError: The text is empty.
        """
        text = self._text(row)
        if not text.strip():
            raise OptionError("the text is empty")
        return text

    def _text(self, row: Row) -> str:
        made = self._made(row)
        if not isinstance(made, str):
            raise DataError(f"a conversation cannot be embedded; name the field of the text with {self.option}")
        return made

    def _made(self, row: Row) -> str | list[Message]:
        if self.template is not None:
            return self.template.fill(row)
        field = self.field or next((name for name in self.usual if row.get(name) is not None), None)
        if field is None:
            raise DataError(
                f"there is no prompt in this row (fields: {_listed(row)}); name the field with {self.option}, or "
                "pass a --template"
            )
        value = row.get(field)
        if isinstance(value, str):
            return value
        if isinstance(value, list) and all(isinstance(message, dict) for message in cast(list[Any], value)):
            return cast(list[Message], value)
        if field not in row:
            raise DataError(f'"{field}" is missing (fields: {_listed(row)}).{did_you_mean(field, row)}')
        raise DataError(f'"{field}" is {kind_of(value)}; a prompt is a string or a list of messages')


def _listed(row: Row) -> str:
    return ", ".join(row) or "none"


def _shown(text: str) -> str:
    return repr(text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "...")
