"""Flags that choose tasks, and the tasks that they choose."""

from typing import TYPE_CHECKING, Any, get_args

import click

from brim.cli.options import flags, names_callback
from brim.core.errors import DataError, OptionError
from brim.envs.arc.config import LARGEST, Split

if TYPE_CHECKING:
    from brim.envs.arc.tasks.task import JaxArcTask

MOCK = "mock"
"""The name of the task that is built in. A file of that name is given as ./mock."""

split_option = click.option(
    "--split",
    type=click.Choice(get_args(Split)),
    help="Part of a data set that is known by name.  [default: train]",
)
ids_option = click.option("--ids", callback=names_callback, metavar="ID,...", help="Only these tasks, in this order.")
max_size_option = click.option(
    "--max-size",
    type=click.IntRange(1, LARGEST),
    help="Leave out tasks that have a grid with more rows or columns than this.",
)
data_flags = flags(
    click.option(
        "--data",
        default="arcagi",
        show_default=True,
        metavar="DATASET",
        help="arcagi, arcagi2, mock (one task, built in), or the path of a JSON file or of a directory of them.",
    ),
    split_option,
    ids_option,
    max_size_option,
)


def chosen_tasks(
    data: str, *, split: Any = None, ids: tuple[str, ...] | None = None, max_size: int | None = None
) -> "list[JaxArcTask]":
    """Return the tasks of a data set, of a path, or the one that is built in.

    Raises:
        click.UsageError: An option has no effect on the task that is built in.
        BrimError: The data set is unknown, missing or wrong, or no task is left.
    """
    if data == MOCK:
        for flag, value in {"--split": split, "--ids": ids, "--max-size": max_size}.items():
            if value is not None:
                raise click.UsageError(f"{flag} has no effect on the task that is built in ({MOCK})")
        from brim.envs.arc.tasks.task import create_mock_task

        return [create_mock_task()]
    from brim.envs.arc.tasks.datasets import load_tasks

    return load_tasks(data, split=split, ids=ids, max_height=max_size, max_width=max_size)


def one_task(data: str, id: str, *, split: Any = None) -> "JaxArcTask":
    """Return the task with this id.

    Raises:
        BrimError: There is none, or the data set is unknown, missing or wrong.
    """
    if data != MOCK:
        return chosen_tasks(data, split=split, ids=(id,))[0]
    task = chosen_tasks(data, split=split)[0]
    if id != task.id:
        raise DataError(f"there is no task {id!r} in {MOCK}; its only task is {task.id!r}")
    return task


def only_task(data: str, id: str | None, *, split: Any = None) -> "JaxArcTask":
    """Return the task with this id, or the only one if no id is given.

    Raises:
        OptionError: No id is given, and there are several tasks.
        BrimError: There is no such task, or the data set is unknown, missing or wrong.
    """
    if id is not None:
        return one_task(data, id, split=split)
    tasks = chosen_tasks(data, split=split)
    if len(tasks) > 1:
        from brim.core.display import visible

        raise OptionError(
            f"{data} holds {len(tasks):,} tasks; choose one with --task, such as --task {visible(tasks[0].id)!r}"
        )
    return tasks[0]


def smallest_shape(tasks: "list[JaxArcTask]") -> tuple[int, int]:
    """Return rows and columns of the smallest arrays that hold every grid of the tasks."""
    return max(task.largest[0] for task in tasks), max(task.largest[1] for task in tasks)


def described(data: str, split: str | None, tasks: "list[JaxArcTask]") -> dict[str, Any]:
    """Return where tasks come from and how many there are, as the reports of all commands begin."""
    from brim.envs.arc.tasks.datasets import DATASETS

    has_splits = any(data in (name, dataset.alias) for name, dataset in DATASETS.items())
    return {
        "data": data,
        "split": "train" if has_splits and split is None else split,
        "tasks": len(tasks),
        "demonstration_pairs": sum(len(task.train) for task in tasks),
        "test_pairs": sum(len(task.test) for task in tasks),
    }


def data_text(facts: dict[str, Any]) -> str:
    """Return the data set and its split in words."""
    return facts["data"] if facts["split"] is None else f"{facts['data']}, split {facts['split']}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: 1 task, 1,000 tasks."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
