"""A synthetic data set to try things on: short tasks with worked solutions and answers that can be checked.

It is deterministic: the same bytes for the same seed on every machine and version of Python. Row i does not depend on
the number of rows, so a longer data set starts with the shorter one. Lengths have a long tail and an upper limit: in
bytes, half of the rows are below about 300, a few exceed 1,500, and none reaches 2,048.
"""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from brim.core.atomic import atomic_file
from brim.core.errors import OptionError
from brim.core.rng import below, raw_bits
from brim.data.synthetic_tasks import TASKS

CHUNK = 1000  # rows that share a stream of random numbers
WORDS = 1 << 14


def write_sample_data(path: str | os.PathLike[str], n: int, *, seed: int = 0) -> None:
    """Write `n` rows of {id, prompt, response, answer, task} as JSONL, whole or not at all.

    Raises:
        OptionError: `n` is not positive, or the file cannot be written.
    """
    if isinstance(n, bool) or n < 1:
        raise OptionError(f"n is {n}; a data set has at least 1 row")
    with atomic_file(path) as file:
        for chunk in _chunks(n, seed):
            file.write(b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in chunk))


def sample_rows(n: int, *, seed: int = 0) -> Iterator[dict[str, str]]:
    """Yield the rows that `write_sample_data` writes, without a file."""
    return (row for chunk in _chunks(n, seed) for row in chunk)


def check_answer(row: Mapping[str, Any]) -> bool:
    """Return whether solving the prompt gives `answer`, and the response ends with it."""
    solved = TASKS[row["task"]].solve(row["prompt"])
    return solved == row["answer"] and row["response"].endswith(f"Answer: {solved}")


def _chunks(n: int, seed: int) -> Iterator[list[dict[str, str]]]:
    for number in range(0, n, CHUNK):
        draw = Draw(seed, number // CHUNK)
        yield [_row(draw, row) for row in range(number, min(number + CHUNK, n))]


def _row(draw: "Draw", number: int) -> dict[str, str]:
    task = draw.pick(NAMES)
    prompt, steps, answer = TASKS[task].make(draw)
    return {
        "id": f"{task}-{number:07d}",
        "prompt": prompt,
        "response": f"{steps}\nAnswer: {answer}",
        "answer": answer,
        "task": task,
    }


NAMES = tuple(TASKS)


class Draw:
    """A stream of small random numbers, which depends only on the seed and the number of the chunk."""

    def __init__(self, seed: int, chunk: int) -> None:
        self._key = (seed, f"sample-data/{chunk}")
        self._refills = 0
        self._words: Iterator[int] = iter(())

    def below(self, limit: int) -> int:
        """Return a random integer from 0 to limit - 1."""
        word = next(self._words, None)
        if word is None:
            seed, purpose = self._key
            self._words = iter(raw_bits(WORDS, seed=seed, purpose=purpose, epoch=self._refills).tolist())
            self._refills += 1
            word = next(self._words)
        return below(word, limit)

    def between(self, low: int, high: int) -> int:
        return low + self.below(high - low + 1)

    def pick(self, choices: tuple[str, ...]) -> str:
        return choices[self.below(len(choices))]

    def size(self, low: int, high: int) -> int:
        """Return a random size from `low` to `high`, mostly near `low`.

        It is drawn uniformly from the `low` sizes that start at `low`. Their number is doubled with probability 0.46,
        repeatedly, until it reaches `high`.
        """
        reach = low
        while reach < high and self.below(100) < 46:
            reach *= 2
        return min(low + self.below(reach), high)
