"""Transformations of tasks, against NumPy's own rotations and mirrors, and the laws of a group."""

import itertools
from math import factorial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.core.errors import DataError, OptionError
from brim.envs.arc.config import JaxArcConfig
from brim.envs.arc.operations import PADDING
from brim.envs.arc.tasks.augment import (
    SAME_COLOURS,
    SYMMETRIES,
    Transformation,
    augment,
    invert_grid,
    read_task_id,
    transform,
)
from brim.envs.arc.tasks.bank import build_bank
from brim.envs.arc.tasks.task import JaxArcTask, create_mock_task

NUMPY = {
    "identity": lambda grid: grid,
    "rot90": np.rot90,
    "rot180": lambda grid: np.rot90(grid, 2),
    "rot270": lambda grid: np.rot90(grid, 3),
    "fliplr": np.fliplr,
    "flipud": np.flipud,
    "transpose": np.transpose,
    "antitranspose": lambda grid: np.rot90(np.transpose(grid), 2),
}

grids = st.tuples(st.integers(1, 5), st.integers(1, 5)).flatmap(
    lambda shape: st.lists(st.integers(0, 9), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]).map(
        lambda cells: np.array(cells, np.uint8).reshape(shape)
    )
)
pairs = st.lists(st.tuples(grids, grids), min_size=1, max_size=3)
tasks = st.builds(JaxArcTask, st.text("abc0", min_size=1, max_size=4), pairs, pairs)
transformations = st.builds(
    Transformation, symmetry=st.sampled_from(SYMMETRIES), colours=st.permutations(SAME_COLOURS).map(tuple)
)


def all_pairs(task):
    return [*task.train, *task.test]


@given(grids, transformations)
def test_a_grid_is_transformed_as_numpy_does_it_with_each_colour_replaced(grid, transformation):
    replaced = np.vectorize(lambda colour: transformation.colours[colour], otypes=[np.uint8])(grid)
    assert np.array_equal(transformation.apply(grid), NUMPY[transformation.symmetry](replaced))
    assert np.array_equal(transformation.apply(grid.tolist()), transformation.apply(grid))


def test_the_eight_symmetries_are_different_and_form_a_group():
    grid = np.arange(6, dtype=np.uint8).reshape(2, 3)
    images = {symmetry: Transformation(symmetry=symmetry).apply(grid) for symmetry in SYMMETRIES}
    assert len({(image.shape, image.tobytes()) for image in images.values()}) == len(SYMMETRIES) == 8
    for first, second in itertools.product(SYMMETRIES, repeat=2):
        both = Transformation(symmetry=first).then(Transformation(symmetry=second))
        assert np.array_equal(both.apply(grid), Transformation(symmetry=second).apply(images[first]))
    for first in SYMMETRIES:
        products = {Transformation(symmetry=first).then(Transformation(symmetry=one)).symmetry for one in SYMMETRIES}
        assert products == set(SYMMETRIES)


@given(grids, transformations, transformations)
def test_two_transformations_in_a_row_are_one(grid, first, second):
    assert np.array_equal(first.then(second).apply(grid), second.apply(first.apply(grid)))


@given(grids, transformations)
def test_the_inverse_restores_a_grid_in_either_order(grid, transformation):
    assert np.array_equal(transformation.inverse.apply(transformation.apply(grid)), grid)
    assert np.array_equal(transformation.apply(transformation.inverse.apply(grid)), grid)
    assert transformation.then(transformation.inverse) == Transformation()


@given(transformations)
def test_colours_are_exchanged_one_to_one(transformation):
    palette = np.arange(10, dtype=np.uint8).reshape(2, 5)
    assert sorted(transformation.apply(palette).ravel()) == list(range(10))


@settings(max_examples=50)
@given(tasks, transformations)
def test_every_grid_of_a_task_is_transformed_alike(task, transformation):
    copy = transform(task, symmetry=transformation.symmetry, colours=transformation.colours)
    assert (len(copy.train), len(copy.test)) == (len(task.train), len(task.test))
    for before, after in zip(all_pairs(task), all_pairs(copy), strict=True):
        assert np.array_equal(transformation.apply(before.input), after.input)
        assert np.array_equal(transformation.apply(before.output), after.output)


@settings(max_examples=50)
@given(tasks, transformations, transformations)
def test_the_id_of_a_copy_leads_back_to_the_original_and_its_answers(task, first, second):
    copy = transform(task, symmetry=first.symmetry, colours=first.colours)
    again = transform(copy, symmetry=second.symmetry, colours=second.colours)
    assert read_task_id(copy.id) == (task.id, first)
    assert read_task_id(again.id) == (task.id, first.then(second))
    for before, after in zip(all_pairs(task), all_pairs(again), strict=True):
        assert np.array_equal(invert_grid(after.output, again.id), before.output)


@settings(max_examples=50)
@given(tasks, transformations)
def test_an_answer_is_right_for_a_copy_if_it_is_right_for_the_original(task, transformation):
    copy = transform(task, symmetry=transformation.symmetry, colours=transformation.colours)
    for before, after in zip(all_pairs(task), all_pairs(copy), strict=True):
        for answer in (before.output, before.input):
            right = np.array_equal(answer, before.output)
            assert np.array_equal(transformation.apply(answer), after.output) == right


@settings(max_examples=50)
@given(tasks, st.integers(0, 5))
def test_padding_is_outside_of_the_grids_of_copies_and_nowhere_else(task, seed):
    copies = augment(task, copies=3, keep_black=False, seed=seed)
    bank = build_bank(copies, JaxArcConfig())
    pairs = [pair for copy in copies for pair in all_pairs(copy)]
    for number, pair in enumerate(pairs):
        for held, grid in ((bank.inputs[number], pair.input), (bank.targets[number], pair.output)):
            rows, columns = grid.shape
            assert np.array_equal(held[:rows, :columns], grid)
            assert (held != PADDING).sum() == grid.size


def test_ids_say_what_was_done():
    task = create_mock_task()
    swapped = [0, 2, 1, 3, 4, 5, 6, 7, 8, 9]
    assert transform(task) is task
    assert transform(task, symmetry="flipud").id == "mock/flipud"
    assert transform(task, colours=np.array(swapped)).id == "mock/c0213456789"
    assert transform(task, symmetry="rot90", colours=swapped).id == "mock/rot90/c0213456789"


@pytest.mark.parametrize("id", ["", "a", "a/b", "/", "rot90", "a/identity", "a/c012345678", "a/c0123456788", "a/c"])
def test_ids_of_originals_are_read_as_originals(id):
    assert read_task_id(id) == (id, Transformation())


@settings(max_examples=25)
@given(st.lists(tasks, min_size=1, max_size=3), st.integers(1, 4), st.integers(0, 3))
def test_copies_of_a_task_depend_on_neither_other_tasks_nor_the_number_of_copies(some, copies, seed):
    together = augment(some, copies=copies, seed=seed)
    assert together == [copy for task in some for copy in augment(task, copies=copies, seed=seed)]
    assert augment(some[0], copies=copies + 1, seed=seed)[:copies] == together[:copies]


def test_copies_are_the_same_in_every_release():
    ids = [copy.id for copy in augment(JaxArcTask("007bbfb7", [([[1]], [[2]])]), copies=3, seed=1)]
    assert ids == ["007bbfb7/rot180/c0514327986", "007bbfb7/flipud/c0928537416", "007bbfb7/antitranspose/c0491576238"]


def test_seeds_tasks_and_copies_differ():
    first, second = JaxArcTask("a", [([[1]], [[2]])]), JaxArcTask("b", [([[1]], [[2]])])
    drawn = [
        read_task_id(copy.id)[1]
        for seed in (0, 1)
        for task in (first, second)
        for copy in augment(task, copies=2, seed=seed)
    ]
    assert len(set(drawn)) == 8


def test_seven_copies_by_symmetry_are_all_that_change_something():
    copies = augment(create_mock_task(3, 4), copies=7, colours=False)
    found = [read_task_id(copy.id)[1] for copy in copies]
    assert {one.symmetry for one in found} == set(SYMMETRIES) - {"identity"}
    assert {one.colours for one in found} == {SAME_COLOURS}


def test_copies_by_colour_are_different_and_keep_black_in_place():
    task = create_mock_task(3, 4)
    found = [read_task_id(copy.id)[1] for copy in augment(task, copies=200, symmetries=False)]
    assert len(set(found)) == 200
    assert Transformation() not in found
    assert {one.symmetry for one in found} == {"identity"}
    assert {one.colours[0] for one in found} == {0}
    # Every other colour becomes every other colour.
    assert {(old, one.colours[old]) for one in found for old in range(1, 10)} == set(
        itertools.product(range(1, 10), repeat=2)
    )


def test_black_is_exchanged_when_it_need_not_be_kept():
    found = [read_task_id(copy.id)[1] for copy in augment(create_mock_task(3, 4), copies=200, keep_black=False)]
    assert {one.colours[0] for one in found} == set(range(10))
    counts = [sum(one.symmetry == symmetry for one in found) for symmetry in SYMMETRIES]
    assert min(counts) >= 10  # 25 are expected


WRONG = [
    ({"copies": 0}, "copies must be at least 1, got 0"),
    ({"copies": 1.5}, r"copies must be an integer, got 1\.5"),
    ({"copies": 8, "colours": False}, "copies must be at most 7, .* got 8"),
    ({"copies": factorial(9), "symmetries": False}, "copies must be at most 362879, .* got 362880"),
    ({"symmetries": False, "colours": False}, "symmetries and colours are both false: there is nothing to change"),
    ({"symmetries": "rot90"}, "symmetries must be true or false, got 'rot90'"),
    ({"colours": 1}, "colours must be true or false, got 1"),
    ({"keep_black": None}, "keep_black must be true or false, got None"),
    ({"seed": "0"}, "seed must be an integer, got '0'"),
    ({"seed": True}, "seed must be an integer, got True"),
]


@pytest.mark.parametrize(("options", "expected"), WRONG, ids=lambda one: str(one) if isinstance(one, dict) else "")
def test_options_that_cannot_work_are_refused_with_their_value(options, expected):
    with pytest.raises(OptionError, match=f"^{expected}"):
        augment(create_mock_task(), **options)


@pytest.mark.parametrize(
    "colours",
    [None, 5, "0123456789", (), list(range(9)), [0, *range(9)], [*range(9), 10], [False, *range(1, 10)], [0.0] * 10],
    ids=repr,
)
def test_colours_that_are_no_permutation_are_refused(colours):
    with pytest.raises(OptionError, match=r"^colours must be a permutation of 0 to 9, got "):
        transform(create_mock_task(), colours=colours)


def test_an_unknown_symmetry_is_refused_with_the_closest():
    with pytest.raises(
        OptionError, match=r'symmetry must be one of identity, .* got \'rot45\'\. Did you mean "rot90"\?$'
    ):
        transform(create_mock_task(), symmetry="rot45")


def test_what_is_no_task_is_refused():
    with pytest.raises(DataError, match="there are no tasks to augment"):
        augment([])
    with pytest.raises(DataError, match="tasks to augment must be JaxArcTask, got str"):
        augment(["007bbfb7"])


def test_a_padded_grid_is_refused():
    with pytest.raises(DataError, match=r"^grid: colours are 0 to 9, got 10 at row 0, column 1"):
        invert_grid(np.array([[1, PADDING]], np.uint8), "mock/rot90")


def test_transformed_grids_are_read_only_and_leave_the_given_grid_alone():
    grid = np.array([[1, 2]], np.uint8)
    changed = Transformation(symmetry="fliplr").apply(grid)
    assert not changed.flags.writeable
    assert grid.flags.writeable
    assert grid.tolist() == [[1, 2]]
