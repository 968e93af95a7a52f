"""The questions of a query environment: read from a data set, and checked before anything is asked.

All of them are kept in memory: an environment draws from the whole pool at every reset.
"""

import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

from brim.core.errors import DataError, OptionError, did_you_mean
from brim.core.fingerprint import fingerprint
from brim.data.rows.format import kind_of
from brim.data.rows.open import open_source
from brim.envs.query.attempt import Question

Row = dict[str, Any]
USUAL = ("question", "query", "prompt", "problem", "instruction", "input", "text")
"""Names of fields that often hold a question, for suggestions."""
NAMED = 3
"""Number of questions that a message names."""


def load_questions(
    path: str | os.PathLike[str],
    *,
    question_field: str = "question",
    reference_field: str = "reference",
    kind_field: str = "kind",
    id_field: str = "id",
) -> tuple[Question, ...]:
    """Read questions from JSONL, Parquet, or a Hugging Face data set on disk.

    Every row needs a question. A reference is a string or a number; null, a blank string or a missing field is none. A
    row without an id gets its number, from 0 on, and a row without a kind gets "".

    Raises:
        DataError: The data set cannot be read or has no rows, a field has the wrong type, or two rows have the same id.
    """
    questions: list[Question] = []
    places: dict[str, str] = {}
    for where, row in _rows(path):
        try:
            question = Question(
                text=_text(row, question_field),
                reference=_reference(row, reference_field),
                kind=_name(row, kind_field) or "",
                id=_name(row, id_field) or str(len(questions)),
            )
        except DataError as error:
            raise DataError(f"{where}: {error}") from None
        if question.id in places:
            raise DataError(
                f'{where}: the id "{question.id}" is also that of {places[question.id]}; ids must differ (--id-field '
                "names their field)"
            )
        places[question.id] = where
        questions.append(question)
    if not questions:
        raise DataError(f"{os.fspath(path)} has no rows")
    return tuple(questions)


def check_questions(questions: Sequence[Question], *, needs_reference: bool, crossover: bool) -> None:
    """Refuse questions that an environment cannot use.

    Args:
        needs_reference: Whether the reward compares answers with a reference.
        crossover: Whether a mutator needs a second question.

    Raises:
        DataError: There are no questions, one is empty, two have the same id, or references are missing.
        OptionError: There is one question, and a mutator needs another.
    """
    if not questions:
        raise DataError("there are no questions")
    seen: set[str] = set()
    for question in questions:
        if question.id in seen:
            raise DataError(f'two questions have the id "{question.id}"; ids must differ')
        seen.add(question.id)
    blank = [question.id for question in questions if not question.text.strip()]
    if blank:
        raise DataError(f"{len(blank)} of {len(questions)} questions have no text ({named(blank)})")
    without = [question.id for question in questions if question.reference is None]
    if needs_reference and without:
        raise DataError(
            f"{len(without)} of {len(questions)} questions have no reference ({named(without)}), and the reward needs "
            "one; add it, name its field with --reference-field, or choose a reward that needs none: agreement, judge"
        )
    if crossover and len(questions) == 1:
        raise OptionError(
            f'there is one question ("{questions[0].id}"), and a mutator needs a second one as an example; add '
            "questions, or leave out mutators with {other}, such as crossover"
        )


def questions_fingerprint(questions: Sequence[Question]) -> str:
    """Return the fingerprint of all fields of the questions, in their order."""
    return fingerprint(questions=[[one.id, one.text, one.reference, one.kind] for one in questions])


def named(ids: Sequence[str]) -> str:
    """Return the first few ids for a message, such as 'a, b, c, ...'."""
    return ", ".join(ids[:NAMED]) + (", ..." if len(ids) > NAMED else "")


def _rows(path: str | os.PathLike[str]) -> Iterator[tuple[str, Row]]:
    """Yield the place and the fields of each row."""
    source = open_source(path)
    for block in source.blocks():
        for number, row in enumerate(source.read(block).rows):
            yield source.where_in(block, number), row


def _text(row: Row, field: str) -> str:
    value = row.get(field)
    if isinstance(value, str) and value.strip():
        return value
    if field not in row:
        usual = next((name for name in USUAL if name in row), None)
        hint = f" Did you mean --question-field {usual}?" if usual else did_you_mean(field, row)
        keys = ", ".join(list(row)[:20]) + (", ..." if len(row) > 20 else "")
        raise DataError(f'"{field}" is missing (keys: {keys or "none"}); name it with --question-field.{hint}')
    found = "empty" if isinstance(value, str) else kind_of(value)
    raise DataError(
        f'"{field}" is {found}; a question is a string that is not empty (--question-field names its field)'
    )


def _reference(row: Row, field: str) -> str | None:
    value = row.get(field)
    if value is None:
        return None
    if isinstance(value, str):
        return value if value.strip() else None
    if type(value) is int:
        return str(value)
    if type(value) is float and math.isfinite(value):
        return repr(value)  # the shortest text that reads as the same number
    found = repr(value) if isinstance(value, float) else kind_of(value)
    raise DataError(f'"{field}" is {found}; a reference is a string or a number (--reference-field names its field)')


def _name(row: Row, field: str) -> str | None:
    """Return an id or a kind; None if there is none."""
    value = row.get(field)
    if value is None or isinstance(value, str):
        return value
    if type(value) is int:
        return str(value)
    raise DataError(f'"{field}" is {kind_of(value)}; it must be a string or an integer')
