"""Read an output of `brim generate`: JSON lines, one for each response, each of them checked.

Text is returned as the model wrote it, with control characters and lone surrogates. A number that a server did not tell
is None. What is wrong is said with the file and the line.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import orjson
from numpy.typing import NDArray

from brim.core.display import visible
from brim.core.errors import DataError
from brim.generate.config import FinishReason
from brim.generate.rollouts import REASONS

NEEDED = ("id", "sample", "prompt", "response", "finish_reason")
PER_TOKEN = ("entropies", "logprobs", "sampling_logprobs")
LARGEST = 1e9
"""Upper limit of the size of any number: sums of larger ones could overflow."""
MOST_SAMPLES = 1_000_000
LONGEST_VALUE = 60
"""Characters of a value that an error message repeats."""
MOST_KEYS = 10

Floats = NDArray[np.float64]


class Turn(NamedTuple):
    """A message of a prompt; the role is empty if the prompt is one text."""

    role: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Line:
    """A response with what is known about it."""

    id: str
    sample: int
    prompt: tuple[Turn, ...]
    response: str
    finish_reason: FinishReason
    tokens: int | None = None
    logprob: float | None = None
    """Sum over the tokens."""
    entropy: float | None = None
    """Mean over the tokens, in nats."""
    answer: str | None = None
    score: float | None = None
    per_token: Mapping[str, Floats]
    """The columns of `PER_TOKEN` that the line has, of one length."""


def read_lines(path: Path) -> Iterator[Line]:
    """Yield the responses of an output in the order of the file. Blank lines are skipped.

    Raises:
        DataError: A line is not a response, or there is none.
    """
    number = found = 0
    with open(path, "rb") as file:
        for number, raw in enumerate(file, 1):
            if raw.isspace():
                continue
            try:
                line = _line(_parse(raw))
            except DataError as error:
                raise DataError(f"{path}:{number}: {error}") from None
            found += 1
            yield line
    if not found:
        empty = "the file is empty" if number == 0 else "the file has only blank lines"
        raise DataError(f"{path}:{max(number, 1)}: {empty}; brim generate writes one line for each response")


def _parse(raw: bytes) -> Any:
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        pass  # it may be a lone surrogate, written as an escape: the json module reads those
    try:
        return json.loads(raw.decode(), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise DataError(f"invalid UTF-8 at byte {error.start + 1} of the line") from None
    except (ValueError, RecursionError) as error:
        if not raw.endswith(b"\n"):
            raise DataError(
                "the last line is torn: it has no newline and is not whole JSON. Wait if it is still being written, "
                "otherwise start the same brim generate again, which completes its output"
            ) from None
        reason = str(error).split(": line")[0] if isinstance(error, ValueError) else "nested too deeply"
        raise DataError(f"not JSON ({reason}); brim generate writes one JSON object on each line") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _line(row: Any) -> Line:
    if not isinstance(row, dict):
        raise DataError(f"the line is {_shown(row)}, not an object as brim generate writes it")
    missing = [name for name in NEEDED if name not in row]
    if missing:
        keys = ", ".join(_short(str(key)) for key in list(row)[:MOST_KEYS]) or "none"
        raise DataError(f'"{missing[0]}" is missing (keys: {keys}); is this an output of brim generate?')
    tokens = _number(row, "tokens", whole=True)
    return Line(
        id=_text(row, "id"),
        sample=_sample(row["sample"]),
        prompt=_turns(row["prompt"]),
        response=_text(row, "response"),
        finish_reason=_reason(row["finish_reason"]),
        tokens=None if tokens is None else int(tokens),
        logprob=_number(row, "logprob"),
        entropy=_number(row, "entropy"),
        answer=None if row.get("answer") is None else _text(row, "answer"),
        score=_score(row),
        per_token=_columns(row, tokens),
    )


def _text(row: Mapping[str, Any], name: str) -> str:
    if not isinstance(row[name], str):
        raise DataError(f'"{name}" must be a text, got {_shown(row[name])}')
    return row[name]


def _sample(value: Any) -> int:
    if type(value) is not int or not 0 <= value < MOST_SAMPLES:
        raise DataError(f'"sample" must be a whole number from 0 to {MOST_SAMPLES - 1:,}, got {_shown(value)}')
    return value


def _reason(value: Any) -> FinishReason:
    for reason in REASONS:
        if value == reason:
            return reason
    raise DataError(f'"finish_reason" must be one of {", ".join(REASONS)}, got {_shown(value)}')


def _number(row: Mapping[str, Any], name: str, *, whole: bool = False) -> float | None:
    value = row.get(name)
    if value is None:
        return None
    if type(value) not in (int, float) or not -LARGEST <= value <= LARGEST:
        raise DataError(f'"{name}" must be a number of at most {LARGEST:.0e} in size, or null, got {_shown(value)}')
    if whole and (value < 0 or value % 1):
        raise DataError(f'"{name}" must be a whole number that is not negative, got {_shown(value)}')
    return value


def _score(row: Mapping[str, Any]) -> float | None:
    score = _number(row, "score")
    if score is not None and not 0 <= score <= 1:
        raise DataError(f'"score" must lie between 0 and 1, got {_shown(score)}')
    return score


def _columns(row: Mapping[str, Any], tokens: float | None) -> dict[str, Floats]:
    """Return the columns with one number for each token, all of one length."""
    found: dict[str, Floats] = {}
    for name in PER_TOKEN:
        values = row.get(name)
        if values is None:
            continue
        if not isinstance(values, list) or not set(map(type, values)) <= {int, float}:
            raise DataError(f'"{name}" must be a list of numbers, got {_shown(values)}')
        column = np.array(values, np.float64)
        if not (np.abs(column) <= LARGEST).all():
            raise DataError(f'"{name}" must hold finite numbers of at most {LARGEST:.0e} in size')
        expected = len(next(iter(found.values()))) if found else tokens
        if expected is not None and len(column) != expected:
            what = f'"{next(iter(found))}" has' if found else '"tokens" is'
            raise DataError(f'"{name}" has {len(column):,} numbers, but {what} {expected:,}')
        found[name] = column
    return found


def _turns(prompt: Any) -> tuple[Turn, ...]:
    if isinstance(prompt, str):
        return (Turn("", prompt),)
    if not isinstance(prompt, list) or not all(isinstance(message, dict) for message in prompt):
        raise DataError(f'"prompt" must be a text or a list of messages, got {_shown(prompt)}')
    return tuple(map(_turn, prompt))


def _turn(message: Mapping[str, Any]) -> Turn:
    """Return a message as text: its content, or all of it as JSON if it is more than a text."""
    role, content = message.get("role", "message"), message.get("content")
    if isinstance(content, str) and len(message) <= 2:
        return Turn(str(role), content)
    rest = {key: value for key, value in message.items() if key != "role"}
    return Turn(str(role), json.dumps(rest, ensure_ascii=False, indent=1))


def _shown(value: Any) -> str:
    """Return a value for a message: short, and with every character visible."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"a list of {len(value):,}"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return _short(json.dumps(value, ensure_ascii=False))


def _short(text: str) -> str:
    return visible(text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…")
