"""The files of a run over rows: the answers, and the rows that have none.

Both are written from the journal, whole or not at all. A line of the answers holds the fields of the row and its
answer; nothing in it depends on time or on a server unless `details` asks for that, so a run that was killed and
resumed writes the same bytes as one that was not.
"""

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import orjson

from brim.core.atomic import atomic_file
from brim.core.errors import OptionError
from brim.core.temporary import unwritable
from brim.llm.answers.ask import Outcome
from brim.llm.answers.journal import AnswerJournal
from brim.llm.answers.record import failed_path
from brim.llm.answers.rows import Input
from brim.llm.call import Reply

Order = Literal["input", "ready"]
FAILED = "brim.llm-failed/1"
FAILED_MARK = b'{"format":"brim.llm-failed/1",'
"""How each line of the file of failed rows begins."""


@dataclass(frozen=True, kw_only=True)
class Lines:
    """How an answer becomes a line of the output."""

    response_field: str = "response"
    details: bool = False
    """Whether to add the field "details": model, tokens, latency, server, attempts."""
    samples: int = 1
    """Number of answers to each row. Each has a line of its own, with its number in "sample" if there are several."""

    def __post_init__(self) -> None:
        if not self.response_field or len(set(self.added)) < len(self.added):
            taken = ", ".join(self.added[1:])
            raise OptionError(
                f"response_field is {self.response_field!r}; it must be a name"
                + (f" other than those of the other fields that are added: {taken}" if taken else "")
            )

    @property
    def added(self) -> tuple[str, ...]:
        """Names of the fields that are added to a row."""
        sample = ("sample",) if self.samples > 1 else ()
        return (self.response_field, *sample, *(("details",) if self.details else ()))

    def line(self, row: Mapping[str, Any], sample: int, answer: Mapping[str, Any]) -> bytes:
        """Return the line of one answer, as `AnswerJournal.text` returns it."""
        line = {**row, self.response_field: answer["text"]}
        if self.samples > 1:
            line["sample"] = sample
        if self.details:
            line["details"] = answer["details"]
        return to_json(line)


@dataclass
class Totals:
    """Sums over all answers of an output."""

    answered: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def add(self, answer: Mapping[str, Any]) -> None:
        details = answer["details"]
        self.answered += 1
        self.prompt_tokens += details["prompt_tokens"] or 0
        self.completion_tokens += details["completion_tokens"] or 0


def write_answers(output: Path, rows: Input, journal: AnswerJournal, lines: Lines, *, order: Order) -> Totals:
    """Write all answers in the order of the input, or in the order in which they came."""
    totals = Totals()
    with atomic_file(output) as file:
        for row, sample, fields in _answered(rows, journal, order):
            answer = journal.text(row, sample)
            totals.add(answer)
            file.write(lines.line(fields, sample, answer))
    return totals


def _answered(rows: Input, journal: AnswerJournal, order: Order) -> Iterable[tuple[int, int, Mapping[str, Any]]]:
    if order == "ready":
        for row, sample in journal.in_order_of_arrival():
            yield row, sample, rows.source.row(row)
        return
    for row, fields in rows:
        for sample in range(journal.samples):
            if journal.has_answer(row, sample):
                yield row, sample, fields


def count_tokens(journal: AnswerJournal) -> Totals:
    """Return the sums over all answers of a journal."""
    totals = Totals()
    for row, sample in journal.in_order_of_arrival():
        totals.add(journal.text(row, sample))
    return totals


@contextmanager
def following(
    output: Path, rows: Input, journal: AnswerJournal, lines: Lines
) -> Generator[Callable[[Outcome], None], None, None]:
    """Write what is answered already, and yield a function that appends one further answer to the output.

    A line may be torn if the process is killed. The next run begins by writing the file anew from the journal.
    """
    write_answers(output, rows, journal, lines, order="ready")

    def append(outcome: Outcome) -> None:
        if isinstance(outcome.result, Reply):
            answer = journal.text(outcome.row, outcome.sample)
            try:
                file.write(lines.line(outcome.fields, outcome.sample, answer))
            except OSError as error:
                raise unwritable(output, error) from None

    with open(output, "ab", buffering=0) as file:
        yield append


class Located(Protocol):
    """Rows with their numbers, and where each of them comes from."""

    def __iter__(self) -> Iterator[tuple[int, Mapping[str, Any]]]: ...
    def where(self, number: int) -> str: ...


def write_failed(output: Path, rows: Located, journal: AnswerJournal) -> Path | None:
    """Write the rows that failed, with the reasons, and return the path. If there are none, remove an earlier file."""
    path = failed_path(output)
    if not journal.failed:
        if path.exists() and is_failed_file(path):
            path.unlink()
        return None
    with atomic_file(path) as file:
        for row, fields in rows:
            for sample in range(journal.samples):
                if journal.has_failed(row, sample):
                    line = {
                        "format": FAILED,
                        "where": rows.where(row),
                        "row": row,
                        "sample": sample,
                        "failure": journal.failure(row, sample),
                        "fields": fields,
                    }
                    file.write(to_json(line))
    return path


def is_failed_file(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is a list of failed rows that brim wrote."""
    with open(path, "rb") as file:
        return file.read(len(FAILED_MARK)) == FAILED_MARK


def to_json(line: Mapping[str, Any]) -> bytes:
    """Return a line of JSON. Values that JSON does not have are written as text, bytes as hexadecimal digits."""
    return orjson.dumps(line, default=_plain, option=orjson.OPT_APPEND_NEWLINE)


def _plain(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
