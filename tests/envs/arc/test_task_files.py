"""Tasks read from JSON files, against the same tasks made by hand, and every way in which a file can be wrong."""

import os
import shutil
import tempfile
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.core.errors import DataError
from brim.envs.arc.tasks.files import LARGEST_FILE, read_tasks
from brim.envs.arc.tasks.task import JaxArcTask, create_mock_task

GRID = [[1, 2, 3], [4, 5, 6]]
PAIR = {"input": GRID, "output": GRID}
TASK = {"train": [PAIR], "test": [PAIR]}


def as_json(task):
    """The JSON value of a task: the inverse of reading it."""
    kinds = {"train": task.train, "test": task.test}
    return {
        kind: [{"input": pair.input.tolist(), "output": pair.output.tolist()} for pair in pairs]
        for kind, pairs in kinds.items()
    }


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(value if isinstance(value, bytes) else orjson.dumps(value))
    return path


def message_of(path):
    """The message of the error that reading a path raises, which must be one line."""
    with pytest.raises(DataError) as caught:
        read_tasks(path)
    message = str(caught.value)
    assert message.splitlines() == [message]
    return message


grids = st.integers(1, 4).flatmap(
    lambda width: st.lists(st.lists(st.integers(0, 9), min_size=width, max_size=width), min_size=1, max_size=4)
)
pairs = st.tuples(grids, grids)
tasks_by_id = st.dictionaries(
    st.text("abcdef0123456789", min_size=1, max_size=8),
    st.tuples(st.lists(pairs, min_size=1, max_size=3), st.lists(pairs, max_size=2)),
    min_size=1,
    max_size=4,
).map(lambda drawn: [JaxArcTask(id, train, test) for id, (train, test) in sorted(drawn.items())])


@settings(max_examples=40)
@given(tasks_by_id)
def test_tasks_survive_being_written_to_files_of_one_task_and_of_many(tasks):
    with tempfile.TemporaryDirectory() as folder:
        for task in tasks:
            write(Path(folder, "single", f"{task.id}.json"), as_json(task))
        write(Path(folder, "many.json"), {task.id: as_json(task) for task in tasks})
        assert read_tasks(Path(folder, "single")) == tasks
        assert read_tasks(f"{folder}/many.json") == tasks
        assert [read_tasks(Path(folder, "single", f"{task.id}.json")) for task in tasks] == [[task] for task in tasks]


@settings(max_examples=40)
@given(tasks_by_id)
def test_answers_of_challenges_come_from_the_solutions_next_to_them(tasks):
    values = {task.id: as_json(task) for task in tasks}
    solutions = {id: [pair.pop("output") for pair in value["test"]] for id, value in values.items()}
    with tempfile.TemporaryDirectory() as folder:
        challenges = write(Path(folder, "arc-agi_training_challenges.json"), values)
        write(Path(folder, "arc-agi_training_solutions.json"), solutions)
        assert read_tasks(challenges) == tasks
        assert read_tasks(folder) == tasks


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 12) | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["train", "test", "input", "output", "a\nb"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(JSON_VALUES.map(orjson.dumps) | st.binary(max_size=40))
def test_any_content_is_either_tasks_or_one_line_that_names_the_file(content):
    with tempfile.TemporaryDirectory() as folder:
        file = write(Path(folder, "any.json"), content)
        try:
            outcome = read_tasks(file)
        except DataError as error:
            outcome = str(error).splitlines()
        if isinstance(outcome[0], JaxArcTask):
            return
        assert len(outcome) == 1
        assert outcome[0].startswith(str(file))


def test_a_directory_is_read_in_the_order_of_its_paths_without_hidden_files_and_solutions(tmp_path):
    for name in ("Copy/Copy2", "Copy/Copy10", "Copy/sub/deep", "AboveBelow/AboveBelow1", "loose"):
        write(tmp_path / f"{name}.json", TASK)
    for name in (".hidden.json", ".git/x.json", "Copy/._Copy2.json", "notes.txt", "any_solutions.json"):
        write(tmp_path / name, b"not JSON")
    assert [task.id for task in read_tasks(tmp_path)] == ["AboveBelow1", "Copy10", "Copy2", "deep", "loose"]


def test_a_hidden_file_is_read_when_it_is_named(tmp_path):
    assert [task.id for task in read_tasks(write(tmp_path / ".cache" / ".x.json", TASK))] == [".x"]


def test_keys_that_are_not_known_are_ignored(tmp_path):
    value = {"name": "other", "id": 7, "train": [{**PAIR, "note": None}], "test": [PAIR]}
    assert read_tasks(write(tmp_path / "x.json", value)) == [JaxArcTask("x", [(GRID, GRID)], [(GRID, GRID)])]


def test_of_two_equal_keys_the_last_wins(tmp_path):
    pair = b'{"input": [[1]], "output": [[1]], "output": [[2]]}'
    (task,) = read_tasks(write(tmp_path / "x.json", b'{"train": [%s], "test": []}' % pair))
    assert task.train[0].output.tolist() == [[2]]


def test_train_and_test_can_be_ids(tmp_path):
    assert [task.id for task in read_tasks(write(tmp_path / "x.json", {"train": TASK, "test": TASK}))] == [
        "train",
        "test",
    ]


def test_outputs_of_challenges_are_not_replaced_by_solutions(tmp_path):
    write(tmp_path / "x_challenges.json", {"a": TASK})
    write(tmp_path / "x_solutions.json", {"a": [[[9]]]})
    assert read_tasks(tmp_path)[0].test[0].output.tolist() == GRID


CELLS = {
    "a colour above 9": (b"10", "colours are 0 to 9, got 10 at row 1, column 2"),
    "a negative colour": (b"-1", "colours are 0 to 9, got -1 at row 1, column 2"),
    "a float": (b"3.0", "colours are integers from 0 to 9, got 3.0 at row 1, column 2"),
    "a string": (b'"3"', "colours are integers from 0 to 9, got '3' at row 1, column 2"),
    "a boolean": (b"true", "colours are integers from 0 to 9, got True at row 1, column 2"),
    "null": (b"null", "colours are integers from 0 to 9, got None at row 1, column 2"),
    "a number above 64 bits": (
        b"1" * 30,
        "colours are integers from 0 to 9, got 1.111111111111111e+29 at row 1, column 2",
    ),
    "a list": (b"[1]", "colours are integers from 0 to 9, got a list of 1 at row 1, column 2"),
}


@pytest.mark.parametrize(("cell", "expected"), CELLS.values(), ids=CELLS)
def test_a_wrong_cell_is_named_with_its_file_task_pair_and_value(tmp_path, cell, expected):
    task = b'{"train": [{"input": [[1]], "output": [[1, 2, 3], [4, 5, %s]]}], "test": []}' % cell
    file = write(tmp_path / "x.json", task)
    assert message_of(file).startswith(f"{file}: task x, train pair 0, output: {expected}")
    file = write(tmp_path / "many.json", b'{"a": %s, "b": %s}' % (orjson.dumps(TASK), task))
    assert message_of(file).startswith(f"{file}: task b, train pair 0, output: {expected}")


GRIDS = {
    "ragged rows": ([[1, 2, 3], [1, 2]], "row 1 has 2 cells, but row 0 has 3"),
    "no rows": ([], "a grid is a list of rows, got an empty list"),
    "an empty row": ([[]], "row 0 must be a list of colours, got an empty list"),
    "a number": (5, "a grid is a list of rows, got 5"),
    "an object": ({"0": [1]}, "a grid is a list of rows, got a dict of 1"),
    "31 rows": ([[0]] * 31, "31x1 is larger than 30x30"),
    "31 columns": ([[0] * 31], "1x31 is larger than 30x30"),
}


@pytest.mark.parametrize(("grid", "expected"), GRIDS.values(), ids=GRIDS)
def test_a_wrong_grid_is_named_with_its_file_task_and_pair(tmp_path, grid, expected):
    file = write(tmp_path / "x.json", {"train": [PAIR, {"input": grid, "output": GRID}], "test": []})
    assert message_of(file) == f"{file}: task x, train pair 1, input: {expected}"


TASKS = {
    "no pairs": ({"train": [], "test": []}, "task x has no train pairs; a task needs at least one"),
    "no train": ({"test": [PAIR]}, 'task x: "train" is missing (keys: test)'),
    "no test": ({"train": [PAIR], "tests": []}, 'task x: "test" is missing (keys: train, tests)'),
    "train is null": ({"train": None, "test": []}, 'task x: "train" must be a list of pairs, got null'),
    "a pair of lists": (
        {"train": [[GRID, GRID]], "test": []},
        'task x, train pair 0: a pair is an object with "input" and "output", got a list',
    ),
    "no input": ({"train": [{"in": GRID}], "test": []}, 'task x, train pair 0: "input" is missing (keys: in)'),
    "an empty pair": ({"train": [{}], "test": []}, 'task x, train pair 0: "input" is missing (keys: none)'),
    "no output": ({"train": [{"input": GRID}], "test": []}, 'task x, train pair 0: "output" is missing (keys: input)'),
    "output is null": (
        {"train": [PAIR, {"input": GRID, "output": None}], "test": []},
        'task x, train pair 1: "output" is null (keys: input, output)',
    ),
    "no answer": (
        {"train": [PAIR], "test": [PAIR, {"input": GRID}]},
        'task x, test pair 1: "output" is missing (keys: input)',
    ),
    "33 pairs": ({"train": [PAIR] * 33, "test": []}, "task x has 33 train pairs; at most 32 are possible"),
    "nine keys": (
        {"train": [dict.fromkeys("abcdefghi")], "test": []},
        'task x, train pair 0: "input" is missing (keys: a, b, c, d, e, f, ...)',
    ),
}


@pytest.mark.parametrize(("task", "expected"), TASKS.values(), ids=TASKS)
def test_a_wrong_task_is_named_with_its_file(tmp_path, task, expected):
    file = write(tmp_path / "x.json", task)
    assert message_of(file) == f"{file}: {expected}"


ONE_OR_MANY = r'a file holds one task, {"train": [...], "test": [...]}, or many, {"ID": task, ...}'
FILES = {
    "empty": (b"", " cannot be read as JSON (Input is a zero-length, empty document"),
    "not JSON": (b"train: test", " cannot be read as JSON ("),
    "truncated": (orjson.dumps(TASK)[:-9], " cannot be read as JSON (unexpected end of data"),
    "not UTF-8": (b'{"\xff": 1}', " cannot be read as JSON (str is not valid UTF-8"),
    "with a NaN": (b'{"train": [{"input": [[NaN]], "output": [[1]]}], "test": []}', " cannot be read as JSON ("),
    "nested 100,000 levels deep": (b"[" * 100_000 + b"]" * 100_000, " cannot be read as JSON ("),
    "a list": (orjson.dumps([TASK]), f": {ONE_OR_MANY}; this one holds a list"),
    "null": (b"null", f": {ONE_OR_MANY}; this one holds null"),
    "an empty object": (b"{}", f": the file contains no tasks; {ONE_OR_MANY}"),
    "an object of numbers": (
        b'{"a": 1}',
        ': task a: a task is an object with "train" and "test", got 1',
    ),
    "an object of long strings": (
        orjson.dumps({"a": "\n" * 500}),
        ': task a: a task is an object with "train" and "test", got "\\n\\n',
    ),
    "an object of objects": (b'{"a": {"b": 1}}', ': task a: "train" is missing (keys: b)'),
}


@pytest.mark.parametrize(("content", "expected"), FILES.values(), ids=FILES)
def test_a_wrong_file_is_named(tmp_path, content, expected):
    file = write(tmp_path / "x.json", content)
    message = message_of(file)
    assert message.startswith(f"{file}{expected}")
    assert len(message) < len(str(file)) + 250


@pytest.mark.parametrize("levels", [3, 500, 1010])
def test_lists_nested_too_deep_for_their_repr_are_one_line(tmp_path, levels):
    deep = b"[" * levels + b"]" * levels
    inside = [
        b'{"train": [{"input": %s, "output": [[1]]}], "test": []}',
        b'{"train": [{"input": [[%s]], "output": [[1]]}], "test": []}',
        b'{"train": [%s], "test": []}',
        b'{"train": %s, "test": []}',
        b'{"a": %s}',
    ]
    for text in inside:
        file = write(tmp_path / "x.json", text % deep)
        assert message_of(file).startswith(f"{file}: task ")
    write(tmp_path / "y_solutions.json", b'{"a": [%s]}' % deep)
    challenges = write(tmp_path / "y_challenges.json", {"a": {"train": [PAIR], "test": [{"input": GRID}]}})
    assert message_of(challenges).startswith(f"{tmp_path / 'y_solutions.json'}: task a, test pair 0, output: ")


def test_challenges_without_solutions_are_refused(tmp_path):
    file = write(tmp_path / "t_challenges.json", {"a": {"train": [PAIR], "test": [{"input": GRID}]}})
    expected = 'task a, test pair 0: "output" is missing (keys: input), and there is no t_solutions.json next to'
    assert message_of(file) == f"{file}: {expected} this file"


SOLUTIONS = {
    "a list": ([[GRID]], 'a solutions file holds {"ID": [grid, ...], ...}, got a list'),
    "another id": ({"b": [GRID]}, "there is no answer for task a"),
    "no list": ({"a": {"0": GRID}}, "task a: the answers must be a list of grids, got an object"),
    "too few": ({"a": []}, "task a: there are 0 answers, but the task has 1 test pairs"),
    "too many": ({"a": [GRID, GRID]}, "task a: there are 2 answers, but the task has 1 test pairs"),
    "a wrong grid": ({"a": [[[1, 2], [3]]]}, "task a, test pair 0, output: row 1 has 1 cells, but row 0 has 2"),
    "null": ({"a": [None]}, "task a, test pair 0, output: a grid is a list of rows, got None"),
}


@pytest.mark.parametrize(("content", "expected"), SOLUTIONS.values(), ids=SOLUTIONS)
def test_wrong_solutions_are_named_with_their_own_file(tmp_path, content, expected):
    challenges = write(tmp_path / "t_challenges.json", {"a": {"train": [PAIR], "test": [{"input": GRID}]}})
    solutions = write(tmp_path / "t_solutions.json", content)
    assert message_of(challenges) == f"{solutions}: {expected}"


def test_a_solutions_file_is_not_read_as_tasks(tmp_path):
    file = write(tmp_path / "t_solutions.json", {"a": [GRID]})
    assert message_of(file).endswith("this file holds answers without their tasks; read t_challenges.json instead")
    assert "contains no *.json files with tasks" in message_of(tmp_path)


def test_two_tasks_of_one_id_are_refused_with_both_files(tmp_path):
    first = write(tmp_path / "a" / "x.json", TASK)
    second = write(tmp_path / "b.json", {"y": TASK, "x": TASK})
    assert message_of(tmp_path) == f"{second}: task x is also in {first}; ids must be unique"


def test_a_missing_path_and_an_empty_directory_are_named(tmp_path):
    assert message_of(tmp_path / "none") == f"{tmp_path / 'none'} does not exist"
    assert message_of(tmp_path) == f"{tmp_path}: the directory contains no *.json files with tasks"


def test_paths_that_the_system_refuses_are_one_line(tmp_path):
    assert "cannot be read: File name too long" in message_of(tmp_path / ("x" * 300))
    assert "cannot be read: " in message_of("x\0y")
    assert "cannot be read: Not a directory" in message_of(write(tmp_path / "x.json", TASK) / "y.json")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_files_and_directories_without_permission_are_named(tmp_path):
    file = write(tmp_path / "folder" / "x.json", TASK)
    file.chmod(0)
    assert message_of(file) == f"{file}: cannot be read: Permission denied"
    file.parent.chmod(0)
    assert message_of(file.parent) == f"{file.parent}: cannot be read: Permission denied"
    file.parent.chmod(0o700)


def test_a_large_file_is_refused_before_it_is_read(tmp_path):
    file = tmp_path / "x.json"
    with open(file, "wb") as hole:
        hole.truncate(2**40)  # more than fits in memory
    assert message_of(file) == f"{file}: the file has 1048576.0 MiB; the limit is 64 MiB. Split it into several files"
    with open(file, "r+b") as hole:
        hole.truncate(LARGEST_FILE + 2**20)
    assert message_of(file).startswith(f"{file}: the file has 65.0 MiB; the limit is 64 MiB.")


def test_pipes_and_devices_are_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "x.json")
    for path in (tmp_path, tmp_path / "x.json", "/dev/zero"):
        assert "this is not a regular file" in message_of(path)


def test_links_are_followed_and_circles_end(tmp_path):
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    write(data / "a.json", TASK)
    write(elsewhere / "b.json", TASK)
    (data / "link").symlink_to(elsewhere)
    (data / "up").symlink_to(tmp_path)
    (elsewhere / "again").symlink_to(elsewhere)
    (data / "self").symlink_to(data / "self")
    assert [task.id for task in read_tasks(data)] == ["a", "b"]


def test_links_to_nothing_are_refused(tmp_path):
    (tmp_path / "x.json").symlink_to(tmp_path / "none")
    assert message_of(tmp_path) == f"{tmp_path / 'x.json'} is a broken symbolic link"
    (tmp_path / "a.json").symlink_to(tmp_path / "a.json")
    assert "a.json: cannot be read: Too many levels of symbolic links" in message_of(tmp_path)


def test_a_file_name_that_is_not_utf8_is_refused_in_a_message_that_can_be_printed(tmp_path):
    try:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/x\xff.json")).write_bytes(orjson.dumps(TASK))
    except OSError:
        pytest.skip("this file system has no such names")
    message = message_of(tmp_path)
    assert "x\\xff.json: the name of the file is the id of its task, but it is not valid UTF-8" in message
    assert message.encode()


def test_line_breaks_in_names_and_ids_do_not_reach_messages(tmp_path):
    file = write(tmp_path / "two\nlines.json", {"a\r\nb": {"train": [], "test": []}})
    assert message_of(file).endswith("two lines.json: task a b has no train pairs; a task needs at least one")
    shutil.move(file, tmp_path / "two\nlines")
    assert "two lines.json does not exist" in message_of(file)


def test_four_hundred_tasks_are_read(tmp_path):
    value = as_json(create_mock_task(14, 14))
    for number in range(400):
        write(tmp_path / f"{number}.json", value)
    assert len(read_tasks(tmp_path)) == 400
