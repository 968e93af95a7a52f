"""Read ARC tasks from JSON files: one task per file, many tasks in one file, or a directory of such files.

Nothing is skipped because it is wrong: the first grid, pair, task or file that cannot be used is a `DataError` of one
line that names it. Files are read whole, so a file above `LARGEST_FILE` is refused by its size, before it is opened.

The answers of an ARC Prize file `NAME_challenges.json` are in `NAME_solutions.json` next to it, and are read from
there. Without that file the tasks cannot be read: an environment needs an answer to compare with.
"""

import os
import stat
from pathlib import Path
from typing import Any, cast

import orjson

from brim.core.errors import DataError, unreadable
from brim.envs.arc.tasks.task import Grid, JaxArcTask, read_grid

LARGEST_FILE = 64 * 2**20
"""Upper limit of the size of a file, in bytes. The 1,120 tasks of ARC-AGI-2 take 4 MB."""

CHALLENGES = "_challenges.json"
SOLUTIONS = "_solutions.json"

ONE_OR_MANY = 'a file holds one task, {"train": [...], "test": [...]}, or many, {"ID": task, ...}'


def read_tasks(path: str | os.PathLike[str]) -> list[JaxArcTask]:
    """Read the tasks of a file, or of all `*.json` files in a directory and the directories below it.

    The id of a task that has a file of its own is the file's name without `.json`; other ids are the keys of their
    file. Files are read in the order of their paths, tasks in the order of their file. Hidden files and directories
    are left out. Symbolic links are followed, but no directory is read twice.

    Raises:
        DataError: The path does not exist, there are no tasks, two tasks have the same id, or a file is not what it
            should be.
    """
    root = Path(path)
    tasks: list[JaxArcTask] = []
    origin: dict[str, Path] = {}
    for file in _task_files(root):
        for task in _tasks_of(file):
            if task.id in origin:
                raise _error(file, f"task {task.id} is also in {_shown(origin[task.id])}; ids must be unique")
            origin[task.id] = file
            tasks.append(task)
    return tasks


def _task_files(root: Path) -> list[Path]:
    if not stat.S_ISDIR(_status(root).st_mode):
        if root.name.endswith(SOLUTIONS):
            challenges = root.name.removesuffix(SOLUTIONS) + CHALLENGES
            raise _error(root, f"this file holds answers without their tasks; read {challenges} instead")
        return [root]
    files = _files_below(root)
    if not files:
        raise _error(root, "the directory contains no *.json files with tasks")
    return files


def _files_below(root: Path) -> list[Path]:
    files: list[Path] = []
    seen: set[tuple[int, int]] = set()
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        # A link to a directory above would lead here again, without end.
        status = _status(folder)
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        for entry in _entries(folder):
            if entry.name.startswith("."):
                continue
            if _is_directory(entry):
                waiting.append(Path(entry.path))
            elif entry.name.endswith(".json") and not entry.name.endswith(SOLUTIONS):
                files.append(Path(entry.path))
    return sorted(files, key=lambda file: file.relative_to(root).parts)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """List a directory backwards: what is appended last to the directories that wait is read first."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name, reverse=True)
    except OSError as error:
        raise _error(folder, f"cannot be read: {error.strerror or error}") from None


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link in a circle; if it is named *.json, reading it says so
        return False


def _tasks_of(file: Path) -> list[JaxArcTask]:
    content = read_json(file)
    if not isinstance(content, dict):
        raise _error(file, f"{ONE_OR_MANY}; this one holds {_described(content)}")
    if not content:
        raise _error(file, f"the file contains no tasks; {ONE_OR_MANY}")
    tasks = cast(dict[str, Any], content)
    if _is_one_task(tasks):
        tasks = {_stem(file): tasks}
    answers = _answers(file)
    return [make_task(id, task, file=file, answers=answers) for id, task in tasks.items()]


def read_json(file: Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        DataError: It is not a regular file, is above `LARGEST_FILE`, cannot be read or is not JSON.
    """
    status = _status(file)
    # Reading a pipe would wait for a writer, and a device may have no end.
    if not stat.S_ISREG(status.st_mode):
        raise _error(file, "this is not a regular file; save the tasks to a file first")
    if status.st_size > LARGEST_FILE:
        size, limit = status.st_size / 2**20, LARGEST_FILE // 2**20
        raise _error(file, f"the file has {size:.1f} MiB; the limit is {limit} MiB. Split it into several files")
    try:
        data = file.read_bytes()
    except OSError as error:
        raise _error(file, f"cannot be read: {error.strerror or error}") from None
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise unreadable(_shown(file), "JSON", error) from None


def make_task(id: str, value: object, *, file: Path, answers: "Answers | None" = None) -> JaxArcTask:
    """Make a task from its JSON value. `file` is named in messages; keys other than "train" and "test" are ignored.

    Raises:
        DataError: The value is not a task, or a test pair has no output and `answers` do not have it either.
    """
    if not isinstance(value, dict):
        raise _error(file, f'task {id}: a task is an object with "train" and "test", got {_described(value)}')
    task = cast(dict[str, Any], value)
    train = _pairs(id, task, "train", file)
    test = _pairs(id, task, "test", file)
    for number, (_, output) in enumerate(train):
        if output is None:
            raise _error(file, f"task {id}, train pair {number}: {_missing('output', task['train'][number])}")
    for number, (question, output) in enumerate(test):
        if output is None:
            text = f"task {id}, test pair {number}: {_missing('output', task['test'][number])}"
            test[number] = (question, _answer(id, number, len(test), text, file, answers))
    try:
        return JaxArcTask(id, train, test)
    except DataError as error:
        raise _error(file, str(error)) from None


class Answers:
    """The outputs of test pairs, from the solutions file that belongs to a challenges file."""

    def __init__(self, file: Path) -> None:
        content = read_json(file)
        if not isinstance(content, dict):
            raise _error(file, f'a solutions file holds {{"ID": [grid, ...], ...}}, got {_described(content)}')
        self.file = file
        self.of_task = cast(dict[str, Any], content)

    def grid(self, id: str, number: int, count: int) -> Grid:
        """Return the output of test pair `number` of the `count` test pairs of a task.

        Raises:
            DataError: There is none, the number of answers is another, or the grid is wrong.
        """
        if id not in self.of_task:
            raise _error(self.file, f"there is no answer for task {id}")
        grids = self.of_task[id]
        if not isinstance(grids, list):
            raise _error(self.file, f"task {id}: the answers must be a list of grids, got {_described(grids)}")
        grids = cast(list[Any], grids)
        if len(grids) != count:
            raise _error(self.file, f"task {id}: there are {len(grids)} answers, but the task has {count} test pairs")
        try:
            return read_grid(grids[number], f"task {id}, test pair {number}, output")
        except DataError as error:
            raise _error(self.file, str(error)) from None


def _answers(file: Path) -> Answers | None:
    """Return the answers that belong to a file of challenges; None for other files, and if there are none."""
    solutions = _solutions_file(file)
    return Answers(solutions) if solutions is not None and os.path.lexists(solutions) else None


def _answer(id: str, number: int, count: int, missing: str, file: Path, answers: Answers | None) -> Grid:
    if answers is not None:
        return answers.grid(id, number, count)
    solutions = _solutions_file(file)
    if solutions is not None:
        raise _error(file, f"{missing}, and there is no {solutions.name} next to this file")
    raise _error(file, missing)


def _solutions_file(file: Path) -> Path | None:
    if not file.name.endswith(CHALLENGES):
        return None
    return file.with_name(file.name.removesuffix(CHALLENGES) + SOLUTIONS)


def _is_one_task(content: dict[str, Any]) -> bool:
    """Tell a task from an object of tasks, in which "train" may be the id of a task."""
    return any(key in content and not isinstance(content[key], dict) for key in ("train", "test"))


def _pairs(id: str, task: dict[str, Any], kind: str, file: Path) -> list[tuple[Any, Any]]:
    """Return input and output of every pair. The output is None where there is none."""
    if kind not in task:
        raise _error(file, f"task {id}: {_missing(kind, task)}")
    if not isinstance(task[kind], list):
        raise _error(file, f'task {id}: "{kind}" must be a list of pairs, got {_described(task[kind])}')
    pairs: list[tuple[Any, Any]] = []
    for number, pair in enumerate(cast(list[Any], task[kind])):
        what = f"task {id}, {kind} pair {number}"
        if not isinstance(pair, dict):
            raise _error(file, f'{what}: a pair is an object with "input" and "output", got {_described(pair)}')
        pair = cast(dict[str, Any], pair)
        if "input" not in pair:
            raise _error(file, f"{what}: {_missing('input', pair)}")
        pairs.append((pair["input"], pair.get("output")))
    return pairs


def _missing(key: str, value: dict[str, Any]) -> str:
    keys = [other[:40] for other in value]
    listed = ", ".join(keys[:6]) + (", ..." if len(keys) > 6 else "")
    return f'"{key}" is {"null" if key in value else "missing"} (keys: {listed or "none"})'


def _described(value: object) -> str:
    """Describe a JSON value in a few words. A list or object is not shown: it may be nested too deep for that."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    return orjson.dumps(value).decode()[:60]


def _stem(file: Path) -> str:
    try:
        file.stem.encode()
    except UnicodeEncodeError:
        raise _error(file, "the name of the file is the id of its task, but it is not valid UTF-8") from None
    return file.stem


def _status(path: Path) -> os.stat_result:
    try:
        return os.stat(path)
    except FileNotFoundError:
        what = "is a broken symbolic link" if path.is_symlink() else "does not exist"
        raise DataError(f"{_shown(path)} {what}") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        raise _error(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _error(path: Path, text: str) -> DataError:
    """Name the file first. Ids and paths may contain line breaks, messages do not."""
    return DataError(" ".join(f"{_shown(path)}: {text}".split()))


def _shown(path: Path) -> str:
    """Return a path that can be printed, also if its name is not valid UTF-8 or contains line breaks."""
    return " ".join(os.fsencode(path).decode(errors="backslashreplace").split())
