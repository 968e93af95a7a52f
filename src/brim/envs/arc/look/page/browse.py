"""Parts of the page that browses tasks: its data, its sentences and filters, and what is drawn without a script."""

from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

from brim.analyze.page.forms import counted, named, table_html
from brim.envs.arc.look.page.drawn import grid_svg
from brim.envs.arc.look.page.encode import task_json
from brim.envs.arc.look.page.limits import Room
from brim.envs.arc.look.page.parts import select_options
from brim.envs.arc.tasks.task import JaxArcTask

SIZES = (3, 5, 10, 15, 20, 25, 30)
"""Sizes to filter by: rows and columns of the largest grid."""
DRAWN = 12
"""Tasks that are drawn without a script."""


class Facts(NamedTuple):
    """The numbers of a task that filters use."""

    train: int
    test: int
    rows: int
    """Of the grid with the most rows."""
    columns: int
    colours: int
    is_same: bool
    """Whether every output has the size of its input."""


def facts_of(task: JaxArcTask) -> Facts:
    """Return the numbers of a task."""
    pairs = (*task.train, *task.test)
    used = np.unique(np.concatenate([grid.ravel() for pair in pairs for grid in pair]))
    is_same = all(pair.input.shape == pair.output.shape for pair in pairs)
    return Facts(len(task.train), len(task.test), *task.largest, len(used), is_same)


def browse_json(tasks: Sequence[JaxArcTask], facts: Sequence[Facts], room: Room) -> tuple[dict[str, Any], int]:
    """Return the data of the script, and the number of tasks in it."""
    listed: list[dict[str, Any]] = []
    for task, numbers in zip(tasks, facts, strict=True):
        values = {"id": named(task.id, "id"), "facts": [int(one) for one in numbers], **task_json(task)}
        if not room.take(values):
            break
        listed.append(values)
    return {"tasks": listed}, len(listed)


def verdict(tasks: Sequence[JaxArcTask], facts: Sequence[Facts]) -> str:
    """Say how many tasks and pairs there are, and how large their grids are."""
    train, test = sum(one.train for one in facts), sum(one.test for one in facts)
    shapes = np.array([grid.shape for one in tasks for pair in (*one.train, *one.test) for grid in pair])
    (low, left), (high, right) = shapes.min(axis=0).tolist(), shapes.max(axis=0).tolist()
    same = sum(one.is_same for one in facts)
    sized = f"{low} to {high} rows and {left} to {right} columns"
    return (
        f"{counted(len(tasks), 'task')} with {counted(train, 'demonstration')} and {counted(test, 'test pair')}. Grids "
        f"have {sized}; in {counted(same, 'task')} every output has the size of its input."
    )


def filters_html(facts: Sequence[Facts]) -> str:
    """Return the filters, with the values that occur in the tasks."""
    largest = [max(one.rows, one.columns) for one in facts]
    sizes = [size for size in SIZES if min(largest) <= size < max(largest)]
    pairs, colours = sorted({one.train for one in facts}), sorted({one.colours for one in facts})
    choices = {
        "size": ("Largest grid", [(f"{size}", f"up to {size}x{size}") for size in sizes]),
        "pairs": ("Demonstrations", [(f"{many}", f"{many}") for many in pairs]),
        "colours": ("Colours", [(f"{many}", f"{many}") for many in colours]),
        "shape": ("Output", [("same", "of the input's size"), ("other", "of another size")]),
    }
    return "".join(
        f'<label class="by">{label} <select id="{key}">{select_options([("all", "any"), *options])}</select></label>'
        for key, (label, options) in choices.items()
    )


def static_html(tasks: Sequence[JaxArcTask], facts: Sequence[Facts]) -> str:
    """Return a table of all tasks and pictures of the first ones, which only a reader without a script is shown."""
    head = ("Task", "Demonstrations", "Tests", "Largest grid", "Colours", "Output size")
    rows = [_row(task, numbers) for task, numbers in zip(tasks, facts, strict=True)]
    drawn = "".join(_task_html(task) for task in tasks[:DRAWN])
    some = "All" if len(tasks) <= DRAWN else f"The first {DRAWN} of {len(tasks):,}"
    return (
        f'<noscript><section id="drawn"><h2>Demonstrations</h2><p class="words">{some} tasks.</p>'
        f'<div class="ends">{drawn}</div></section><section id="table"><h2>All tasks</h2>{table_html(head, rows)}'
        "</section></noscript>"
    )


def _row(task: JaxArcTask, facts: Facts) -> list[str]:
    size = f"{facts.rows}x{facts.columns}"
    same = "same" if facts.is_same else "differs"
    return [named(task.id, "id"), f"{facts.train}", f"{facts.test}", size, f"{facts.colours}", same]


def _task_html(task: JaxArcTask) -> str:
    first = task.train[0]
    drawn = "".join(
        f'<div class="one"><p class="label">{name}</p>{grid_svg(grid, f"First demonstration, {name}")}</div>'
        for name, grid in {"input": first.input, "output": first.output}.items()
    )
    return f'<div><h3><bdi>{escape(named(task.id, "id"))}</bdi></h3><div class="beside">{drawn}</div></div>'
