"""Tasks and the bank they are put into, against loops over their grids, and every way in which they can be wrong."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.core.errors import DataError, MismatchError
from brim.envs.arc.config import EnvironmentConfig, JaxArcConfig, UnifiedDatasetConfig
from brim.envs.arc.operations import PADDING
from brim.envs.arc.tasks.bank import MOST_TASKS, as_bank, build_bank
from brim.envs.arc.tasks.task import JaxArcTask, create_mock_task, read_grid

SMALL = JaxArcConfig(dataset=UnifiedDatasetConfig(max_grid_height=5, max_grid_width=6))

grids = st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(0, 9)).map(
    lambda drawn: (np.arange(drawn[0] * drawn[1]).reshape(drawn[:2]) + drawn[2]) % 10
)
pairs = st.tuples(grids, grids)
tasks = st.builds(
    JaxArcTask, st.text("abc", max_size=3), st.lists(pairs, min_size=1, max_size=3), st.lists(pairs, max_size=2)
)


@given(st.lists(tasks, min_size=1, max_size=4))
def test_a_bank_holds_all_pairs_task_by_task_with_padding_around_them(some):
    bank = build_bank(some, SMALL)
    assert (bank.num_tasks, bank.shape) == (len(some), (5, 6))
    number = 0
    for task, first, count in zip(some, bank.first, bank.count, strict=True):
        for pairs_of_kind, start, length in zip((task.train, task.test), first, count, strict=True):
            assert (start, length) == (number, len(pairs_of_kind))
            for pair in pairs_of_kind:
                assert bank.sizes[number].tolist() == [*pair.input.shape, *pair.output.shape]
                for held, grid in ((bank.inputs[number], pair.input), (bank.targets[number], pair.output)):
                    expected = np.full((5, 6), PADDING)
                    expected[: grid.shape[0], : grid.shape[1]] = grid
                    assert np.array_equal(held, expected)
                number += 1
    assert bank.num_pairs == number
    assert [array.dtype for array in bank[:5]] == [np.uint8, np.uint8, np.int32, np.int32, np.int32]


def test_one_task_is_a_bank_of_one():
    task = create_mock_task(5, 6)
    assert np.array_equal(build_bank(task, SMALL).inputs, build_bank([task], SMALL).inputs)


@given(tasks, tasks)
def test_tasks_are_equal_if_their_ids_and_grids_are(one, other):
    def plain(task):
        return [task.id, *([[grid.tolist() for grid in pair] for pair in pairs] for pairs in (task.train, task.test))]

    assert (one == other) == (plain(one) == plain(other))
    same = JaxArcTask(*plain(one))
    assert one == same
    assert hash(one) == hash(same)


def test_demonstrations_and_tests_are_told_apart():
    pair = ([[1]], [[2]])
    assert JaxArcTask("a", [pair, pair]) != JaxArcTask("a", [pair], [pair])
    assert JaxArcTask("a", [pair]) != ("a", pair)


@given(tasks)
def test_largest_is_what_holds_every_grid(task):
    shapes = [grid.shape for pair in (*task.train, *task.test) for grid in pair]
    assert task.largest == (max(rows for rows, _ in shapes), max(columns for _, columns in shapes))


def test_grids_are_kept_as_read_only_copies():
    given_grid = np.array([[1, 2], [3, 4]])
    task = JaxArcTask("a", [(given_grid.T, given_grid)])
    given_grid[0, 0] = 9
    assert task.train[0].input.tolist() == [[1, 3], [2, 4]]
    for grid in task.train[0]:
        assert grid.dtype == np.uint8
        assert not grid.flags.writeable
        assert grid.flags.c_contiguous


WRONG_GRIDS = [
    ([], "a grid is a list of rows, got an empty list"),
    ("12", "a grid is a list of rows, got '12'"),
    (None, "a grid is a list of rows, got None"),
    ([1, 2], "row 0 must be a list of colours, got 1"),
    ([[1], []], "row 1 must be a list of colours, got an empty list"),
    ([[1], "2"], "row 1 must be a list of colours, got '2'"),
    ([[1, 2], [3]], "row 1 has 1 cells, but row 0 has 2"),
    ([[1, 10]], "colours are 0 to 9, got 10 at row 0, column 1"),
    ([[1], [-1]], "colours are 0 to 9, got -1 at row 1, column 0"),
    ([[1.0]], r"colours are integers from 0 to 9, got 1\.0 at row 0, column 0"),
    ([[float("nan")]], "colours are integers from 0 to 9, got nan at row 0, column 0"),
    ([[True]], "colours are integers from 0 to 9, got True at row 0, column 0"),
    ([["1"]], "colours are integers from 0 to 9, got '1' at row 0, column 0"),
    ([[0]] * 31, "31x1 is larger than 30x30"),
    ([[0] * 31], "1x31 is larger than 30x30"),
    (np.zeros(3, int), r"a grid needs rows and columns, got an array of shape \(3,\)"),
    (np.zeros((2, 0), int), r"a grid needs rows and columns, got an array of shape \(2, 0\)"),
    (np.zeros((1, 1, 1), int), r"a grid needs rows and columns, got an array of shape \(1, 1, 1\)"),
    (np.zeros((1, 1)), "colours are integers from 0 to 9, got float64 values"),
    (np.zeros((1, 1), bool), "colours are integers from 0 to 9, got bool values"),
    (np.zeros((31, 2), int), "31x2 is larger than 30x30"),
    (np.array([[0, 1], [2, 10]]), "colours are 0 to 9, got 10 at row 1, column 1"),
    (np.array([[-1]], np.int8), "colours are 0 to 9, got -1 at row 0, column 0"),
]


@pytest.mark.parametrize(("values", "expected"), WRONG_GRIDS, ids=[expected[:40] for _, expected in WRONG_GRIDS])
def test_a_wrong_grid_is_refused_with_its_name_and_value(values, expected):
    with pytest.raises(DataError, match=f"^here: {expected}$"):
        read_grid(values, "here")
    with pytest.raises(DataError, match=f"^task a, test pair 1, input: {expected}$"):
        JaxArcTask("a", [([[1]], [[1]])], [([[1]], [[1]]), (values, [[1]])])


def test_a_wrong_pair_is_refused_with_its_number():
    right = ([[1]], [[2]])
    with pytest.raises(DataError, match=r"^task a has no train pairs; a task needs at least one$"):
        JaxArcTask("a", [], [right])
    for pair in ("ab", ([[1]],), 5, (1, 2, 3)):
        with pytest.raises(DataError, match=r"^task a, train pair 1: a pair is an input grid and an output grid, got "):
            JaxArcTask("a", [right, pair])
    with pytest.raises(DataError, match=r"^task a, test pair 0 has no output"):
        JaxArcTask("a", [right], [([[1]], None)])
    assert len(JaxArcTask("a", [right] * 32, [right] * 32).test) == 32
    for train, test, kind in ((33, 0, "train"), (1, 33, "test")):
        with pytest.raises(DataError, match=f"^task a has 33 {kind} pairs; at most 32 are possible$"):
            JaxArcTask("a", [right] * train, [right] * test)


@given(st.integers(1, 30), st.integers(1, 30))
def test_the_mock_task_mirrors_its_inputs(height, width):
    task = create_mock_task(height, width)
    assert task.largest == (height, width)
    assert (len(task.train), len(task.test)) == (3, 1)
    assert all(np.array_equal(pair.output, np.fliplr(pair.input)) for pair in (*task.train, *task.test))


@pytest.mark.parametrize(("height", "width"), [(0, 3), (3, 0), (31, 3), (3, 31)])
def test_a_mock_task_of_an_impossible_size_is_refused(height, width):
    with pytest.raises(DataError, match=r"^task mock, train pair 0, input: "):
        create_mock_task(height, width)


@pytest.mark.parametrize(("height", "width"), [(6, 6), (5, 7), (30, 30)])
def test_a_grid_larger_than_the_configuration_is_refused(height, width):
    task = JaxArcTask("big", [([[1]], [[1]])], [([[1]], np.ones((height, width), int))])
    expected = f"task big, test pair 0, output: {height}x{width} is larger than the configured 5x6; raise max_grid"
    for call in (build_bank, as_bank):
        with pytest.raises(DataError, match=f"^{expected}"):
            call([create_mock_task(5, 6), task], SMALL)


def test_what_is_no_task_is_refused():
    for call in (build_bank, as_bank):
        with pytest.raises(DataError, match="a bank needs at least one task, got none"):
            call([], SMALL)
        with pytest.raises(DataError, match="tasks must be JaxArcTask, but number 1 is int"):
            call([create_mock_task(5, 6), 3], SMALL)
        with pytest.raises(DataError, match="tasks must be JaxArcTask, but number 0 is dict"):
            call([{"train": []}], SMALL)
    for wrong in (None, 5, "arcagi", {"a": 1}):
        with pytest.raises(DataError, match="task_data must be a JaxArcTask, a list of them or a TaskBank, got "):
            as_bank(wrong, SMALL)


def test_a_bank_has_an_upper_limit_of_tasks():
    with pytest.raises(DataError, match=f"^a bank holds at most {MOST_TASKS} tasks, got {MOST_TASKS + 1}$"):
        build_bank([create_mock_task(1, 1)] * (MOST_TASKS + 1), SMALL)


def test_a_bank_is_returned_as_it_is_and_built_once_for_equal_tasks():
    bank = as_bank(create_mock_task(5, 6), SMALL)
    assert as_bank(bank, SMALL) is bank
    assert as_bank([create_mock_task(5, 6)], SMALL) is bank


def test_a_bank_of_another_size_is_refused():
    bank = build_bank(create_mock_task(5, 6), SMALL)
    with pytest.raises(MismatchError, match="holds grids of 5x6, but the configuration says 30x30"):
        as_bank(bank, JaxArcConfig())


def test_episodes_of_test_pairs_need_a_test_pair_in_every_task():
    config = JaxArcConfig(environment=EnvironmentConfig(episode_mode="test"))
    tested, untested = create_mock_task(), JaxArcTask("untested", [([[1]], [[2]])])
    assert as_bank(tested, config).num_tasks == 1
    for given_tasks, name in ((untested, "untested"), ([tested, untested], "untested")):
        with pytest.raises(DataError, match=f'episode_mode is "test", but task {name} has no test pairs; use "train"'):
            as_bank(given_tasks, config)
    with pytest.raises(DataError, match="task 1 has no test pairs"):
        as_bank(build_bank([tested, untested], config), config)
