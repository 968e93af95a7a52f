"""Examples of ARC tasks: each test pair is one prompt, with the demonstrations of its task before it.

Tasks belong to one split, all pairs and all copies of them, so splits never overlap:

    train        nine tenths of the training tasks of ARC-AGI, by a hash of the id; eight tenths of other tasks
    validation   a tenth of them
    test         the evaluation tasks of ARC-AGI; a tenth of other tasks

One training task of ARC-AGI-1 is an evaluation task as well, under another id; it is left out of the training tasks.

The pitfall: most tasks of ARC-AGI-1, also of its evaluation, are training tasks of ARC-AGI-2. A model that was trained
on `arc:arcagi2` is tested on `arc:arcagi2` alone.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from brim.core.display import visible
from brim.core.errors import DataError, OptionError, did_you_mean
from brim.core.fingerprint import fingerprint
from brim.data.tokenizer.base import load_tokenizer
from brim.envs.arc.tasks.augment import augment, read_task_id
from brim.envs.arc.tasks.datasets import DATASETS, load_tasks
from brim.envs.arc.tasks.task import JaxArcTask, Pair, create_mock_task
from brim.generate.prompts.arc.encodings import Encoding, find_encoding
from brim.generate.prompts.arc.options import MOCK, PREFIX, ArcText, parse_name
from brim.generate.prompts.arc.score import META
from brim.generate.prompts.example import Example, check_split
from brim.generate.prompts.template import ANSWER_STOP, CLOSE_ANSWER, OPEN_ANSWER, think_prompt

MOCK_SIZES = range(2, 11)
PLAIN_STOP = ("\n\n",)
ALSO_TESTED = {"40853293": "070dd51e"}
"""Training tasks of ARC-AGI-1 that have the grids of an evaluation task."""
ARC_AGI_1 = ("arcagi", DATASETS["arcagi"].alias)
RULE = (
    "One rule turns every input grid into its output grid. {about} Find the rule, and answer with the output grid of "
    "the test input, written in the same way."
)


class LeftOut(NamedTuple):
    """A task or a prompt that the options leave out."""

    task: str
    """Id of the task."""
    pair: int | None
    """Number of the test pair; None for the whole task."""
    reason: str
    expected: bool = False
    """Whether the choice of the tasks leaves it out, and a warning about it would say nothing new."""


class Prompts(NamedTuple):
    """The result of `arc_prompts`."""

    examples: list[Example]
    left_out: list[LeftOut]


def build(split: str = "train", name: str = PREFIX) -> Sequence[Example]:
    """Return the examples of a split of the data set `name`; see `parse_name`.

    Prompts that are too long and tasks that cannot be asked about are counted in a warning.

    Raises:
        OptionError: There is no such data set, option or split.
        DataError: A file is not what it should be, or nothing is left.
        MissingExtraError: It needs a package that is not installed.
    """
    found = arc_prompts(parse_name(name), split)
    unexpected = [one for one in found.left_out if not one.expected]
    if unexpected:
        counts = Counter(one.reason for one in unexpected)
        first = {reason: next(one for one in unexpected if one.reason == reason) for reason in counts}
        listed = "; ".join(
            f"{count} {reason}, the first is {_shown(first[reason])}" for reason, count in counts.items()
        )
        warnings.warn(
            f"{visible(name)}, split {split}: {len(found.examples)} prompts; left out: {listed}", stacklevel=2
        )
    return found.examples


def arc_prompts(options: ArcText, split: str = "train") -> Prompts:
    """Return the examples of a split, and everything that was left out.

    Raises:
        OptionError: There is no such data set or split.
        DataError: A file is not what it should be, or nothing is left.
        MissingExtraError: It needs a package that is not installed.
    """
    check_split(options.name, split)
    count = _counter(options)
    examples: list[Example] = []
    left_out: list[LeftOut] = []
    for task in _tasks(options, split):
        unusable = _unusable(task, options)
        if unusable is not None:
            left_out.append(unusable)
            continue
        for number, pair in enumerate(task.test):
            example = _example(task, number, pair, options, split, len(examples))
            if options.max_length is not None and count(example.question) > options.max_length:
                unit = "characters" if options.tokenizer is None else f"tokens of {options.tokenizer}"
                left_out.append(LeftOut(task.id, number, f"with more than {options.max_length} {unit}"))
            else:
                examples.append(example)
    if not examples:
        reasons = ", ".join(f"{many} {reason}" for reason, many in Counter(one.reason for one in left_out).items())
        raise DataError(f"split {split!r} of {options.name} has no prompts ({reasons or 'it has no tasks'})")
    return Prompts(examples, left_out)


def split_of(task_id: str, data: str) -> str:
    """Return "train", "validation" or "test" for a task that is not an evaluation task of ARC-AGI.

    Copies, which `augment` makes, are in the split of their original.
    """
    bucket = int(fingerprint(task=read_task_id(task_id)[0])[:8], 16) % 10
    if bucket == 0:
        return "validation"
    return "test" if bucket == 1 and not _is_published(data) else "train"


def _is_published(data: str) -> bool:
    return any(data in (name, known.alias) for name, known in DATASETS.items())


def _tasks(options: ArcText, split: str) -> list[JaxArcTask]:
    if _is_published(options.data) and split == "test":
        return load_tasks(options.data, split="eval")
    tasks = [task for task in _every(options.data) if split_of(task.id, options.data) == split]
    if options.copies and split == "train" and tasks:
        tasks += augment(tasks, copies=options.copies, seed=options.seed)
    return tasks


def _every(data: str) -> list[JaxArcTask]:
    """Return all tasks that the splits are made of."""
    if data != MOCK:
        try:
            return load_tasks(data)
        except OptionError as error:  # load_tasks does not know the mock tasks
            raise OptionError(f"{error}{did_you_mean(data, [MOCK])}") from None
    sizes = [(height, width) for height in MOCK_SIZES for width in MOCK_SIZES]
    mocks = [(size, create_mock_task(*size)) for size in sizes]
    return [JaxArcTask(f"{task.id}-{height}x{width}", task.train, task.test) for (height, width), task in mocks]


def _unusable(task: JaxArcTask, options: ArcText) -> LeftOut | None:
    """Return why a task is left out; None if it is not."""
    if not task.test:
        return LeftOut(task.id, None, "without a test pair")
    if options.data in ARC_AGI_1 and read_task_id(task.id)[0] in ALSO_TESTED:
        return LeftOut(task.id, None, "that is also an evaluation task", expected=True)
    if options.max_size is not None and max(task.largest) > options.max_size:
        return LeftOut(task.id, None, f"with more than {options.max_size} rows or columns", expected=True)
    return None


def _example(task: JaxArcTask, number: int, pair: Pair, options: ArcText, split: str, index: int) -> Example:
    encoding = find_encoding(options.encoding)
    shown = task.train[: options.demonstrations]
    answer = encoding.encode(pair.output)
    if options.template == "plain":
        question, stop = _plain(shown, pair, encoding), PLAIN_STOP
        text = question + answer
    else:
        question, stop = think_prompt(_problem(shown, pair, encoding)), ANSWER_STOP
        text = f"{question} </think>\n{OPEN_ANSWER}\n{answer}\n{CLOSE_ANSWER}"
    meta = {
        "dataset": options.name,
        "split": split,
        "index": index,
        META: {"task": task.id, "pair": number, "encoding": encoding.name},
    }
    return Example(text, question, answer, meta, stop)


def _problem(shown: Sequence[Pair], pair: Pair, encoding: Encoding) -> str:
    parts = [RULE.format(about=encoding.about)]
    for number, one in enumerate(shown, 1):
        parts.append(f"Input {number}:\n{encoding.encode(one.input)}\nOutput {number}:\n{encoding.encode(one.output)}")
    parts.append(f"Test input:\n{encoding.encode(pair.input)}")
    return "\n\n".join(parts)


def _plain(shown: Sequence[Pair], pair: Pair, encoding: Encoding) -> str:
    solved = [f"Input:\n{encoding.encode(one.input)}\nOutput:\n{encoding.encode(one.output)}" for one in shown]
    return "\n\n".join([*solved, f"Input:\n{encoding.encode(pair.input)}\nOutput:\n"])


def _counter(options: ArcText) -> Callable[[str], int]:
    if options.tokenizer is None:
        return len
    tokenizer = load_tokenizer(options.tokenizer)
    return lambda text: int(tokenizer.count_batch([text])[0])


def _shown(one: LeftOut) -> str:
    pair = "" if one.pair is None else f", test pair {one.pair}"
    return f"task {visible(one.task)[:80]}{pair}"
