"""The shapes of the rows of a data set, and which part of each row is trained on.

The shapes with their fields, and what is trained on:

    tokens       input_ids, with loss_mask, or labels (-100: not trained on), or neither (all tokens)
    messages     messages: a list of {role, content}; every assistant turn, with its end marker
    prompt       prompt and response (or completion); the response and the end token
    instruction  instruction, input (may be absent) and output; the output and the end token
    text         text; all of it

A data set has one shape: the first in the order above whose fields the first row has, or the one that the options name.
Every other row must have it too: a row without its response is an error, not a text. The layout is determined once,
before anything is measured.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from brim.core.errors import DataError, OptionError, did_you_mean
from brim.core.fingerprint import fingerprint

Row = Mapping[str, Any]
Kind = Literal["tokens", "messages", "prompt", "instruction", "text"]
Shape = Literal["auto", "tokens", "messages", "prompt", "instruction", "text"]

# Version of the encoding. Increment it if the tokens of any row change, so that old lengths are measured again.
RULES = 1

# The fields that a row must have for a shape. If a field has several names, the first one found is used.
FIELDS: dict[Kind, tuple[tuple[str, ...], ...]] = {
    "tokens": (("input_ids",),),
    "messages": (("messages",),),
    "prompt": (("prompt",), ("response", "completion")),
    "instruction": (("instruction",), ("output",)),
    "text": (("text",),),
}
ID_FIELDS = ("id", "sample_id")

# Other common names of these fields, used only to suggest an option.
SYNONYMS = {
    "prompt": ("question", "query", "problem", "instruction", "input", "user", "context"),
    "response": ("answer", "output", "completion", "target", "reply", "solution", "chosen", "assistant", "label"),
    "text": ("content", "body", "document", "story", "code", "sentence"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class RowFormat:
    """Options that name the fields of a row. The defaults detect the shapes that the module lists.

    `prompt_field` and `response_field` name the two fields of the prompt shape, `text_field` that of the text shape;
    `shape` picks a shape when a row has the fields of several. Ids come from `id_field`, or else from `id` or
    `sample_id` where the rows have one, or else are row numbers. Rows with different values in `group_field` never
    share a microbatch.
    """

    shape: Shape = "auto"
    text_field: str | None = None
    prompt_field: str | None = None
    response_field: str | None = None
    id_field: str | None = None
    group_field: str | None = None

    def __post_init__(self) -> None:
        if self.shape not in get_args(Shape):
            raise OptionError(
                f"shape is {self.shape!r}; it must be one of "
                f"{', '.join(get_args(Shape))}.{did_you_mean(self.shape, get_args(Shape))}"
            )
        for name, value in asdict(self).items():
            if value == "":
                raise OptionError(f"{name} is empty; name a field or leave it out")
        pair = self.prompt_field or self.response_field
        if pair and self.text_field:
            raise OptionError(
                f"text_field is {self.text_field!r} and {pair!r} was named too; a row is either a text, or a prompt "
                "and a response"
            )
        named = "text" if self.text_field else "prompt" if pair else self.shape
        if self.shape not in ("auto", named):
            raise OptionError(f"shape is {self.shape!r}, but the named fields make it {named!r}")

    def layout(self, first: Row) -> "Layout":
        """Determine the layout from the first row. Fields that it lacks are reported when the row is encoded.

        Raises:
            DataError: The row has no field of any shape, and no shape or field is named.
        """
        kind = self._kind(first)
        fields = {name: self._field(name, first) for names in FIELDS[kind] for name in names[:1]}
        id_field = self.id_field or next((name for name in ID_FIELDS if name in first), None)
        return Layout(kind=kind, fields=tuple(fields.items()), id_field=id_field, group_field=self.group_field)

    def _kind(self, row: Row) -> Kind:
        if self.text_field:
            return "text"
        if self.prompt_field or self.response_field:
            return "prompt"
        if self.shape != "auto":
            return self.shape
        present = {name for name, value in row.items() if value is not None}
        for kind, fields in FIELDS.items():
            if all(present.intersection(names) for names in fields):
                return kind
        for kind, fields in FIELDS.items():
            if any(not present.isdisjoint(names) or not row.keys().isdisjoint(names) for names in fields):
                return kind
        raise DataError(_unknown(row))

    def _field(self, name: str, row: Row) -> str:
        given = {"text": self.text_field, "prompt": self.prompt_field, "response": self.response_field}.get(name)
        if given is None and name == "response" and row.get(name) is None and row.get("completion") is not None:
            return "completion"
        return given or name


@dataclass(frozen=True, slots=True)
class Layout:
    """A row format that is fully determined: one shape, and the field of the rows for each of its names."""

    kind: Kind
    fields: tuple[tuple[str, str], ...]
    id_field: str | None
    group_field: str | None

    @property
    def fingerprint(self) -> str:
        """Fingerprint of everything here that changes tokens, ids or groups."""
        return fingerprint(rules=RULES, **asdict(self))

    def field(self, name: str) -> str:
        """Return the field of the rows for `name`, such as "question" for "prompt"."""
        for known, field in self.fields:
            if known == name:
                return field
        return name

    def value(self, row: Row, name: str) -> Any:
        """Return the value of the field for `name`, which is never None.

        Raises:
            DataError: It is missing or null. The message does not name the row: the caller adds that.
        """
        field = self.field(name)
        value = row.get(field)
        if value is None:
            raise DataError(missing(row, field, name))
        return value

    def text(self, row: Row, name: str) -> str:
        value = self.value(row, name)
        if not isinstance(value, str):
            raise DataError(f'"{self.field(name)}" is {kind_of(value)}; it must be a string')
        return value

    def group(self, row: Row) -> str:
        assert self.group_field is not None
        value = row.get(self.group_field)
        if value is None:
            raise DataError(missing(row, self.group_field, "group"))
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise DataError(f'the group "{self.group_field}" is {kind_of(value)}; it must be a string or an integer')
        return str(value)


def missing(row: Row, field: str, name: str) -> str:
    if field in row:
        return f'"{field}" is null; give it a value or remove the row'
    return f'"{field}" is missing (keys: {_keys(row)}).{_suggestion(row, field, name)}'


def kind_of(value: Any) -> str:
    """Return the type of a value in the terms of JSON, such as "a string"."""
    if value is None:
        return "null"
    names = {
        bool: "a boolean",
        int: "an integer",
        float: "a number",
        str: "a string",
        list: "a list",
        dict: "an object",
    }
    return names.get(type(value), f"a {type(value).__name__}")


def _keys(row: Row) -> str:
    return ", ".join(list(row)[:20]) + (", ..." if len(row) > 20 else "") or "none"


def _suggestion(row: Row, field: str, name: str) -> str:
    if name not in ("prompt", "response", "text", "id", "group"):
        return did_you_mean(field, row)
    from difflib import get_close_matches

    found = next((known for known in SYNONYMS.get(name, ()) if known in row), None) or next(
        iter(get_close_matches(field, row, n=1)), None
    )
    if found:
        return f" Did you mean --{name}-field {found}?"
    if name == "id":
        return " Give every row an id or none, or name the field with --id-field."
    return f" Name the field with --{name}-field, or remove the row."


def _unknown(row: Row) -> str:
    prompt, response = (next((name for name in SYNONYMS[kind] if name in row), None) for kind in ("prompt", "response"))
    text = next((name for name in SYNONYMS["text"] if name in row), None)
    if prompt and response:
        hint = f" Did you mean --prompt-field {prompt} --response-field {response}?"
    elif text:
        hint = f" Did you mean --text-field {text}?"
    else:
        hint = " Name the fields with --text-field, or with --prompt-field and --response-field."
    return f"no text, prompt and response, instruction and output, messages or input_ids (keys: {_keys(row)}).{hint}"
