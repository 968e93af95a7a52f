"""GSM8K (Cobbe et al. 2021) from local files, in the prompt that asks for reasoning and for the answer in tags.

Two forms of rows are read: those of the Hugging Face data set (`question`, and `answer` ending in "#### 42"), and rows
of {"index", "text"} whose text is the question, then <think>...</think>, then <answer>...</answer>. Of the latter, rows
in which a tag is missing are left out, with a warning that counts them: published files have some, and what stands
before the first tag is then not the question. Nothing is downloaded: the environment variable BRIM_GSM8K names a
directory or a file, and without it the files are expected in data/gsm8k/.
"""

import os
import re
import warnings
from pathlib import Path

from brim.core.errors import DataError, OptionError
from brim.data.rows.format import kind_of
from brim.generate.prompts.example import Example, check_split
from brim.generate.prompts.files import Row, keys_of, located_rows
from brim.generate.prompts.template import ANSWER_STOP, CLOSE_ANSWER, OPEN_ANSWER, think_prompt, with_solution

NAME = "gsm8k_r1_template"
VARIABLE = "BRIM_GSM8K"
DIRECTORY = Path("data") / "gsm8k"
FILES = ("gsm8k_latex_{split}.jsonl", "{split}.jsonl", "{split}.parquet", "{split}-*.parquet", "main/{split}-*.parquet")
"""The names of the files of a split; the last two are those of a copy of the Hugging Face repository."""

# Notes for a calculator in the reasoning of the Hugging Face form, such as <<48/2=24>>.
CALCULATION = re.compile(r"<<[^<>]*>>")


class IncompleteRowError(DataError):
    """A tag is missing in a row."""


def build(split: str = "train") -> list[Example]:
    """Return the problems of a split.

    Raises:
        OptionError: There is no such split, or its file is not found.
        DataError: A row is of neither form, or a tag is missing in every row.
    """
    check_split(NAME, split)
    examples: list[Example] = []
    incomplete: list[str] = []
    for path in _files(split):
        for row, where in located_rows(path):
            try:
                problem, reasoning, answer = _parts(row)
            except IncompleteRowError as error:
                incomplete.append(f"{where()}: {error}")
                continue
            except DataError as error:
                raise DataError(f"{where()}: {error}") from None
            question = think_prompt(problem)
            text = with_solution(question, reasoning, answer)
            meta = {"dataset": NAME, "split": split, "index": row.get("index", len(examples))}
            examples.append(Example(text, question, answer, meta, ANSWER_STOP))
    if incomplete and not examples:
        raise DataError(incomplete[0])
    if incomplete:
        rows = len(examples) + len(incomplete)
        warnings.warn(f"{len(incomplete)} of {rows} rows are left out, the first is {incomplete[0]}", stacklevel=2)
    return examples


def _files(split: str) -> list[Path]:
    """Return the files of a split: one, or the parts of a data set in several Parquet files."""
    given = os.environ.get(VARIABLE)
    place = Path(given) if given else DIRECTORY
    if place.is_file():
        if split not in re.split(r"[^a-z]+", place.name.lower()):
            raise OptionError(
                f"{VARIABLE} is the file {place}, whose name does not say that it has the split {split!r}; name a "
                "directory with a file for each split, or put the split in the name of the file"
            )
        return [place]
    names = [name.format(split=split) for name in FILES]
    for name in names:
        if found := sorted(place.glob(name)):
            return found
    raise OptionError(
        f"GSM8K is not found: {place}{os.sep} has no {', '.join(names[:-1])} or {names[-1]}; put one there, or set "
        f"{VARIABLE} to the directory or file that has it"
    )


def _parts(row: Row) -> tuple[str, str, str]:
    """Return problem, reasoning and answer of a row of either form."""
    if "text" in row:
        return _of_tagged(_text(row, "text"))
    if "question" in row and "answer" in row:
        return _of_hugging_face(_text(row, "question"), _text(row, "answer"))
    raise DataError(f'"text", or "question" and "answer", are missing (keys: {keys_of(row)})')


def _of_tagged(text: str) -> tuple[str, str, str]:
    problem, _, solution = text.partition("<think>")
    reasoning, _, rest = solution.partition("</think>")
    _, _, rest = rest.partition(OPEN_ANSWER)
    answer, closed, _ = rest.partition(CLOSE_ANSWER)
    if not closed:
        raise IncompleteRowError('"text" is not a question, then <think>...</think>, then <answer>...</answer>')
    return _filled("text", problem, reasoning, answer)


def _of_hugging_face(question: str, solution: str) -> tuple[str, str, str]:
    reasoning, marked, answer = solution.rpartition("####")
    if not marked:
        raise DataError('"answer" has no "####" before its final number')
    return _filled("answer", question, CALCULATION.sub("", reasoning), answer)


def _filled(field: str, problem: str, reasoning: str, answer: str) -> tuple[str, str, str]:
    if not problem.strip():
        raise DataError("the question is empty; remove the row")
    if not answer.strip():
        raise DataError(f'"{field}" has an empty final answer; remove the row')
    return problem.strip(), reasoning.strip(), answer.strip()


def _text(row: Row, field: str) -> str:
    value = row[field]
    if not isinstance(value, str):
        raise DataError(f'"{field}" is {kind_of(value)}; it must be a string')
    return value
