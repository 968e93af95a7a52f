"""A JSONL file of prompts, one object on each line.

The prompt is the first of `prompt`, `question` and `messages` that a row has. `messages` is a conversation, a list of
{role, content}: it is kept in `meta`, and the question is the content of its last user message. `answer` (a string or
a number), `id` and `stop` (a string or a list of strings) are optional. Other fields are ignored.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any, cast

from brim.core.errors import DataError, OptionError
from brim.data.rows.format import kind_of
from brim.data.rows.open import open_source
from brim.generate.prompts.example import Example

PROMPT_FIELDS = ("prompt", "question", "messages")
SHOWN_KEYS = 20

Row = Mapping[str, Any]


def build(path: str | os.PathLike[str], split: str = "train") -> list[Example]:
    """Read the prompts of a file.

    Raises:
        OptionError: A split other than "train" is asked for: a file has no splits.
        DataError: The file cannot be read, has no rows, or a row has no prompt or a field of the wrong type.
    """
    if split != "train":
        raise OptionError(
            f"{os.fspath(path)} is one file and has no split {split!r}; leave out the split, and name the file that "
            "has the prompts you want"
        )
    examples: list[Example] = []
    for row, where in located_rows(path):
        try:
            examples.append(_example(row, str(os.fspath(path)), len(examples)))
        except DataError as error:
            raise DataError(f"{where()}: {error}") from None
    if not examples:
        raise DataError(f"{os.fspath(path)} has no rows")
    return examples


def located_rows(path: str | os.PathLike[str]) -> Iterator[tuple[Row, Callable[[], str]]]:
    """Yield each row of a data set with a function that returns its location for an error message."""
    source = open_source(path)
    for block in source.blocks():
        for number, row in enumerate(source.read(block).rows):
            # Finding a location means counting lines, so it happens for an error only.
            yield row, lambda block=block, number=number: source.where_in(block, number)


def keys_of(row: Row) -> str:
    """Return the keys of a row for an error message."""
    return ", ".join(list(row)[:SHOWN_KEYS]) + (", ..." if len(row) > SHOWN_KEYS else "") or "none"


def _example(row: Row, dataset: str, index: int) -> Example:
    meta: dict[str, Any] = {"dataset": dataset, "index": index}
    field = _prompt_field(row)
    if field == "messages":
        meta["messages"] = _messages(row[field])
        question = _last_user(meta["messages"])
    else:
        question = row[field]
        if not isinstance(question, str):
            hint = ' (a conversation goes under "messages")' if isinstance(question, list) else ""
            raise DataError(f'"{field}" is {kind_of(cast(Any, question))}; it must be a string{hint}')
        if not question.strip():
            raise DataError(f'"{field}" is empty (keys: {keys_of(row)}); give it a prompt or remove the row')
    if row.get("id") is not None:
        meta["id"] = _id(row["id"])
    return Example(question, question, _answer(row.get("answer")), meta, _stops(row.get("stop")))


def _prompt_field(row: Row) -> str:
    for field in PROMPT_FIELDS:
        if row.get(field) is not None:
            return field
    empty = next((field for field in PROMPT_FIELDS if field in row), None)
    if empty:
        raise DataError(f'"{empty}" is null (keys: {keys_of(row)}); give it a prompt or remove the row')
    raise DataError(f'"prompt", "question" or "messages" is missing (keys: {keys_of(row)})')


def _messages(value: object) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        found = "empty" if value == [] else kind_of(value)
        raise DataError(f'"messages" is {found}; it must be a list of {{role, content}}')
    messages = cast(list[Any], value)
    for number, message in enumerate(messages):
        if not isinstance(message, dict):
            raise DataError(f"messages[{number}] is {kind_of(message)}; it must be an object with role and content")
        fields = cast(dict[str, Any], message)
        for name in ("role", "content"):
            if not isinstance(fields.get(name), str):
                raise DataError(f'messages[{number}]: "{name}" is {kind_of(fields.get(name))}; it must be a string')
    return messages


def _last_user(messages: list[dict[str, Any]]) -> str:
    roles = [message["role"] for message in messages]
    if roles[-1] == "assistant":
        raise DataError(
            f'the last of {len(messages)} messages has the role "assistant", so the model would read the reply; '
            "remove that message"
        )
    if "user" not in roles:
        raise DataError(f'no message has the role "user" (roles: {", ".join(sorted(set(roles)))})')
    at = len(roles) - 1 - roles[::-1].index("user")
    content: str = messages[at]["content"]
    if not content.strip():
        raise DataError(f'messages[{at}]: "content" is empty; give it a prompt or remove the row')
    return content


def _answer(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f'"answer" is {kind_of(value)}; it must be a string or a number')
    return format(Decimal(repr(value)), "f")  # 1e22 without its exponent


def _id(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise DataError(f'"id" is {kind_of(value)}; it must be a string or an integer')
    return str(value)


def _stops(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    stops = cast(list[object], value) if isinstance(value, list) else [value]
    for stop in stops:
        if not isinstance(stop, str):
            raise DataError(f'"stop" has {kind_of(stop)}; it must be a string or a list of strings')
        if not stop:
            raise DataError('"stop" has an empty string: every response would end at once')
    return tuple(dict.fromkeys(cast(list[str], stops)))
