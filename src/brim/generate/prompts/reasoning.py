"""The tasks of the package reasoning-gym, which generates problems and scores answers to them.

An item is generated when it is read, because some tasks need a second for each. Item i of a split is generated from the
seed of the split plus i, so no two splits share a seed; tasks with few distinct problems can still repeat one.

Three habits of the package are contained here. Some tasks draw from the global generators of Python and NumPy, which
are seeded for each item and restored after it. Some print while they generate, which goes to the standard error. Some
scorers run a response as Python code: these tasks are refused.
"""

import random
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import cache
from typing import Any, cast, overload

import numpy as np

from brim.core.errors import DataError, OptionError, did_you_mean
from brim.core.extras import need
from brim.generate.prompts.example import SPLITS, Example, check_split
from brim.generate.prompts.template import ANSWER_STOP, think_prompt

PREFIX = "reasoning-gym"
META = "reasoning_gym"
"""The key of `Example.meta` that holds the task and the entry that its scorer reads."""
SIZE = 500
SEEDS = {split: number * 1_000_000 for number, split in enumerate(SPLITS)}

# Tasks of version 0.1.25 whose scorer passes the response to `eval` or to SymPy's `parse_expr`, which calls `eval`.
RUN_RESPONSES = frozenset(
    {
        "binary_matrix",
        "countdown",
        "intermediate_integration",
        "n_queens",
        "polynomial_multiplication",
        "puzzle24",
        "simple_integration",
        "spiral_matrix",
        "string_insertion",
    }
)


def build(task: str, split: str = "train") -> Sequence[Example]:
    """Return the items of a task, generated when they are read.

    Raises:
        OptionError: There is no such task or split, the task needs options, or its scorer runs responses as code.
        MissingExtraError: reasoning-gym is not installed.
    """
    gym = _gym()
    _check_task(gym, task)
    check_split(f"{PREFIX}:{task}", split)
    try:
        problems = gym.create_dataset(task, seed=SEEDS[split], size=SIZE)
    except (AssertionError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise OptionError(f"the {PREFIX} task {task!r} cannot be built with its default options ({reason})") from None
    return TaskItems(problems, task, split)


def score(example: Example, given: str) -> float:
    """Score an answer with the scorer of the task. Most tasks give part of the score to answers that are nearly right.

    Raises:
        OptionError: There is no such task, or its scorer runs responses as code.
        DataError: The scorer fails on the reference answer too.
        MissingExtraError: reasoning-gym is not installed.
    """
    stored = example.meta[META]
    scorer = _scorer(stored["task"])
    entry = {"question": stored["question"], "answer": example.answer, "metadata": stored["metadata"]}
    try:
        return float(scorer(given, entry))
    except (ValueError, TypeError, LookupError, ArithmeticError):
        # Scorers of a few tasks fail on an answer of the wrong form, which is a wrong answer.
        _check_scorer(scorer, stored["task"], example.answer, entry)
        return 0.0


class TaskItems(Sequence[Example]):
    """The items of a split of a task."""

    def __init__(self, problems: Any, task: str, split: str) -> None:
        self._problems = problems
        self._task = task
        self._split = split

    def __len__(self) -> int:
        return len(self._problems)

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> list[Example]: ...
    def __getitem__(self, index: int | slice) -> Example | list[Example]:
        if isinstance(index, slice):
            return [self._item(at) for at in range(len(self))[index]]
        return self._item(range(len(self))[index])

    def _item(self, index: int) -> Example:
        with _global_generators_seeded(SEEDS[self._split] + index), redirect_stdout(sys.stderr):
            entry = self._problems[index]
        question = think_prompt(entry["question"])
        meta = {
            "dataset": f"{PREFIX}:{self._task}",
            "split": self._split,
            "index": index,
            META: {"task": self._task, "question": entry["question"], "metadata": _plain(entry["metadata"])},
        }
        return Example(question, question, entry["answer"], meta, ANSWER_STOP)


def _plain(value: Any) -> Any:
    """Return a value that JSON can hold: plain numbers for those of NumPy, texts for fractions and other objects.

    Tuples stay tuples, because scorers compare with them.
    """
    if isinstance(value, np.generic | np.ndarray):
        return cast(Any, value).tolist()
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in cast(dict[Any, Any], value).items()}
    if isinstance(value, list):
        return [_plain(item) for item in cast(list[Any], value)]
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in cast(tuple[Any, ...], value))
    if value is None or isinstance(value, str | int | float):
        return value
    return str(value)


def _gym() -> Any:
    return need("reasoning_gym", extra="reasoning", user="brim.generate.prompts.reasoning")


def _check_task(gym: Any, task: str) -> None:
    known: list[str] = sorted(gym.factory.DATASETS)
    if task not in known:
        raise OptionError(
            f"unknown {PREFIX} task {task!r}; there are {len(known)}, such as chain_sum and "
            f"gsm_symbolic.{did_you_mean(task, known)}"
        )
    if task in RUN_RESPONSES:
        raise OptionError(
            f"the {PREFIX} task {task!r} is refused: its scorer runs what a model wrote as Python code; choose another"
        )


@cache
def _scorer(task: str) -> Any:
    gym = _gym()
    _check_task(gym, task)
    return gym.factory.get_score_answer_fn(task)


def _check_scorer(scorer: Any, task: str, reference: str | None, entry: dict[str, Any]) -> None:
    """Refuse to blame a response if the scorer fails on the reference too."""
    if reference is None:
        return
    try:
        scorer(reference, entry)
    except (ValueError, TypeError, LookupError, ArithmeticError) as error:
        raise DataError(
            f"the scorer of the {PREFIX} task {task!r} fails on the reference answer too ({type(error).__name__}: "
            f"{' '.join(str(error).split())}); the entry is damaged"
        ) from None


@contextmanager
def _global_generators_seeded(seed: int) -> Generator[None]:
    """Seed the global generators of Python and NumPy, and restore their state afterwards.

    A thread that draws from them meanwhile is disturbed.
    """
    python, numpy = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
