"""The rewards that come with brim.

    answer          the score of the response as in `brim.generate.prompts.check`: numbers by value, other answers as
                    text without regard to case, reasoning-gym by its scorers
    exact           1 if the answer is the reference, character by character, without the white space around it
    numeric         1 if the answer is a number of the same value as the reference
    closeness       1 minus the relative difference of the answer to the reference: something to learn from where the
                    right answer is never found; 0 for what is no number
    math-verify     1 if the answer is mathematically equal to the reference, by the package math-verify
    reasoning-gym   the score of the task's own scorer, from 0 to 1
    arc-similarity  equal cells of the grid and the answer, divided by the cells that one of them has: 1 is right; 0 for
                    what is no grid
    arc-format      1 if the answer is a grid, written as the prompt asks
    format          1 if the response is reasoning, </think> and one <answer> block, and ends there
    length:N        1 up to N characters, falling linearly to 0 at 2 N

The answer is the part of a response that `extract_answer` takes: the content of the one <answer> block where the prompt
asks for tags, otherwise the first line. A response without an answer scores 0; an example without a reference is a
failure, `NoAnswer`. Nothing that a model wrote is run as code.
"""

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

from brim.core.errors import DataError, OptionError
from brim.core.extras import need
from brim.generate.prompts import reasoning
from brim.generate.prompts.arc import score as arc
from brim.generate.prompts.check import extract_answer, parse_number, score_response
from brim.generate.prompts.example import Example
from brim.generate.prompts.template import CLOSE_ANSWER, OPEN_ANSWER

Reward = Callable[[str, str, Example], float]

OPEN_THINK, CLOSE_THINK = "<think>", "</think>"
DELIMITERS = ("$", "\\boxed", "\\(", "\\[")
"""Delimiters of mathematics. A text that contains one is parsed as it is; any other is taken to be a formula."""


class NoAnswer(DataError):  # noqa: N818
    """The example has no reference to compare a response with."""


def open_builtin(name: str, argument: str | None) -> tuple[Reward, bool]:
    """Return a reward of this module, and whether its 1 says that a response is right.

    Raises:
        OptionError: The argument is missing, wrong, or one too many.
        MissingExtraError: Its package is not installed.
    """
    if name == "length":
        return _length(argument), False
    if argument is not None:
        raise OptionError(f"the reward {name} takes no argument, got {f'{name}:{argument}'!r}")
    if name == "math-verify":
        return _math_verify(), True
    if name == "reasoning-gym":
        need("reasoning_gym", extra="reasoning", user="the reward reasoning-gym")
    return _PLAIN[name], name not in FORMATS


def answer(prompt: str, response: str, example: Example) -> float:
    score = score_response(example, response)
    if score is None:
        raise _no_answer(example)
    return score


def exact(prompt: str, response: str, example: Example) -> float:
    reference = _reference(example).strip()
    return 1.0 if extract_answer(example, response) == reference else 0.0


def numeric(prompt: str, response: str, example: Example) -> float:
    reference, given = _numbers(response, example)
    return 1.0 if given == reference else 0.0


def closeness(prompt: str, response: str, example: Example) -> float:
    reference, given = _numbers(response, example)
    if given is None:
        return 0.0
    largest = max(abs(given), abs(reference))
    return 1.0 if not largest else max(0.0, 1.0 - float(abs(given - reference) / largest))


def _numbers(response: str, example: Example) -> tuple[Fraction, Fraction | None]:
    """Return the reference, and the answer or None if it is no number."""
    reference = parse_number(_reference(example))
    if reference is None:
        raise DataError(f"the reference {example.answer!r:.80} is not a number")
    given = extract_answer(example, response)
    return reference, None if given is None else parse_number(given)


def reasoning_gym(prompt: str, response: str, example: Example) -> float:
    if reasoning.META not in example.meta:
        raise NoAnswer(f"the example {example.id} is not of a reasoning-gym task")
    given = extract_answer(example, response)
    return 0.0 if given is None else reasoning.score(example, given)


def arc_similarity(prompt: str, response: str, example: Example) -> float:
    _check_arc(example)
    return arc.judge(example, response).similarity


def arc_format(prompt: str, response: str, example: Example) -> float:
    _check_arc(example)
    return 0.0 if arc.response_grid(example, response) is None else 1.0


def _check_arc(example: Example) -> None:
    if arc.META not in example.meta:
        raise NoAnswer(f"the example {example.id} is not of ARC")


def format_(prompt: str, response: str, example: Example) -> float:
    """1 for: perhaps <think>, reasoning, </think>, white space, <answer>, an answer, </answer>, white space."""
    text = response.strip().removeprefix(OPEN_THINK)
    if any(text.count(tag) != 1 for tag in (CLOSE_THINK, OPEN_ANSWER, CLOSE_ANSWER)) or OPEN_THINK in text:
        return 0.0
    thoughts, _, rest = text.partition(CLOSE_THINK)
    between, _, block = rest.partition(OPEN_ANSWER)
    content, _, after = block.partition(CLOSE_ANSWER)
    # A tag that stands too early leaves the parts behind it empty.
    well_formed = bool(thoughts.strip()) and not between.strip() and bool(content.strip()) and not after.strip()
    return 1.0 if well_formed and CLOSE_ANSWER in block else 0.0


_PLAIN: dict[str, Reward] = {
    "answer": answer,
    "exact": exact,
    "numeric": numeric,
    "closeness": closeness,
    "format": format_,
    "reasoning-gym": reasoning_gym,
    "arc-similarity": arc_similarity,
    "arc-format": arc_format,
}
FORMATS = ("format", "arc-format")
"""The rewards whose 1 does not say that a response is right."""
NAMES = (
    "answer",
    "exact",
    "numeric",
    "closeness",
    "format",
    "length",
    "math-verify",
    "reasoning-gym",
    "arc-similarity",
    "arc-format",
)


def _length(argument: str | None) -> Reward:
    if argument is None or not argument.isascii() or not argument.isdigit() or int(argument) == 0:
        got = "length" if argument is None else f"length:{argument}"
        raise OptionError(f"the reward length needs a number of characters, as in length:200, got {got!r}")
    limit = int(argument)

    def length(prompt: str, response: str, example: Example) -> float:
        return min(1.0, max(0.0, 2.0 - len(response) / limit))

    return length


def _math_verify() -> Reward:
    """Return the reward math-verify.

    Its own time limits are switched off: they use the timer of the process, as ours do, and one would cancel the other.
    It compares what it finds by SymPy, and of a response it evaluates nothing but numbers and arithmetic signs.
    """
    package = need("math_verify", extra="math", user="the reward math-verify")
    for module in (package.parser, package.grader):
        # It warns once that its limits are off, and that the caller needs one. The caller has one.
        module.TIMEOUT_WARNING_SHOWN = True

    def parse(text: str, *, raise_on_error: bool) -> list[Any]:
        return package.parse(text, parsing_timeout=None, raise_on_error=raise_on_error)

    @lru_cache(maxsize=1024)
    def parsed_reference(text: str) -> list[Any]:
        return parse(_delimited(text), raise_on_error=True)

    def math_verify(prompt: str, response: str, example: Example) -> float:
        reference = parsed_reference(_reference(example))
        if not reference:
            raise DataError(f"math-verify finds no mathematics in the reference {example.answer!r:.80}")
        if CLOSE_ANSWER in example.stop:
            given = extract_answer(example, response)
            if given is None:
                return 0.0
            response = _delimited(given)
        # A text that it cannot read is no answer; an error while comparing is not the model's fault.
        found = parse(response, raise_on_error=False)
        return float(package.verify(reference, found, timeout_seconds=None, raise_on_error=True))

    return math_verify


def _delimited(text: str) -> str:
    """Return an answer as mathematics, which math-verify looks for between delimiters."""
    return text if any(mark in text for mark in DELIMITERS) else f"\\boxed{{{text}}}"


def _reference(example: Example) -> str:
    if example.answer is None:
        raise _no_answer(example)
    return example.answer


def _no_answer(example: Example) -> NoAnswer:
    return NoAnswer(f"the example {example.id} has no reference answer")
