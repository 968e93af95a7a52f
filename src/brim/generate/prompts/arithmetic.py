"""Sums, differences and products of small integers: a data set that needs no files and whose answers are certain.

The problems are the same on every machine. A hash of a problem decides its split, so the splits never overlap; both
orders of a sum or a product belong to the same split. Differences are never negative.
"""

from functools import cache
from typing import NamedTuple

from brim.core.fingerprint import fingerprint
from brim.core.rng import Words, below
from brim.generate.prompts.example import SPLITS, Example, check_split
from brim.generate.prompts.template import ANSWER_STOP, think_prompt, with_solution

SIZES = {"train": 2000, "validation": 200, "test": 200}
PLAIN, TAGGED = "arithmetic", "arithmetic_r1_template"

# Operator and number of digits of both operands. Problems are drawn from all levels alike, without repetition.
LEVELS = (
    ("+", 1, 1),
    ("+", 2, 1),
    ("+", 2, 2),
    ("+", 3, 3),
    ("-", 2, 1),
    ("-", 2, 2),
    ("-", 3, 3),
    ("*", 1, 1),
    ("*", 2, 1),
)
DRAWN_AT_ONCE = 1024


class Problem(NamedTuple):
    left: int
    operator: str
    right: int

    @property
    def result(self) -> int:
        if self.operator == "+":
            return self.left + self.right
        if self.operator == "-":
            return self.left - self.right
        return self.left * self.right

    @property
    def split(self) -> str:
        """Return the split by a hash: a twelfth of all problems each for validation and test, the rest for training."""
        bucket = int(fingerprint(operator=self.operator, numbers=sorted((self.left, self.right)))[:8], 16) % 12
        return {0: "validation", 1: "test"}.get(bucket, "train")

    def __str__(self) -> str:
        return f"{self.left} {self.operator} {self.right}"


def build(split: str = "train") -> list[Example]:
    """Return problems such as "12 + 7 =", which a small model can continue. A newline ends the response.

    Raises:
        OptionError: There is no such split.
    """
    check_split(PLAIN, split)
    examples: list[Example] = []
    for index, problem in enumerate(_problems()[split]):
        question, answer = f"{problem} =", str(problem.result)
        meta = {"dataset": PLAIN, "split": split, "index": index}
        examples.append(Example(f"{question} {answer}", question, answer, meta, ("\n",)))
    return examples


def build_tagged(split: str = "train") -> list[Example]:
    """Return the same problems in the prompt that asks for reasoning and for the answer in tags.

    Raises:
        OptionError: There is no such split.
    """
    check_split(TAGGED, split)
    examples: list[Example] = []
    for index, problem in enumerate(_problems()[split]):
        question, answer = think_prompt(f"What is {problem}?"), str(problem.result)
        text = with_solution(question, f"{problem} = {answer}", answer)
        meta = {"dataset": TAGGED, "split": split, "index": index}
        examples.append(Example(text, question, answer, meta, ANSWER_STOP))
    return examples


@cache
def _problems() -> dict[str, list[Problem]]:
    """Draw problems until every split has its size."""
    words = Words(0, "generate/arithmetic")
    found: dict[str, list[Problem]] = {split: [] for split in SPLITS}
    seen: set[Problem] = set()
    while any(len(found[split]) < SIZES[split] for split in SPLITS):
        draws: list[list[int]] = words.take(3 * DRAWN_AT_ONCE).reshape(-1, 3).tolist()
        for draw in draws:
            problem = _problem(*draw)
            chosen = found[problem.split]
            if problem not in seen and len(chosen) < SIZES[problem.split]:
                seen.add(problem)
                chosen.append(problem)
    return found


def _problem(level: int, left: int, right: int) -> Problem:
    """Make a problem of three random words."""
    operator, left_digits, right_digits = LEVELS[below(level, len(LEVELS))]
    a, b = _operand(left, left_digits), _operand(right, right_digits)
    if operator == "-":
        a, b = max(a, b), min(a, b)
    return Problem(a, operator, b)


def _operand(word: int, digits: int) -> int:
    least = 10 ** (digits - 1)
    return least + below(word, 9 * least)
