"""The sum tree against a cumulative sum, and the compiled kernel against its twin."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.core.errors import OptionError
from brim.stream.replay import sum_tree
from brim.stream.replay.sum_tree import LARGEST, SumTree

capacities = st.sampled_from([1, 2, 15, 16, 17, 255, 256, 257, 4096, 5000])
whole = st.integers(0, 50).map(float)  # sums of them are exact, in every order
any_weight = st.one_of(st.just(0.0), st.floats(1e-6, 1e6))


def changes(weights):
    return st.lists(st.tuples(st.integers(0, 10**6), weights), max_size=40)


@pytest.fixture(params=["compiled", "numpy"])
def either_way(request, monkeypatch):
    if request.param == "numpy":
        monkeypatch.setattr(sum_tree, "kernel", None)


def filled(capacity, pairs):
    tree, plain = SumTree(capacity), np.zeros(capacity)
    slots = np.array([slot % capacity for slot, _ in pairs], np.int64)
    weights = np.array([weight for _, weight in pairs])
    tree.set(slots, weights)
    plain[slots] = weights
    return tree, plain


@pytest.mark.usefixtures("either_way")
@settings(max_examples=60)
@given(capacities, changes(whole), st.data())
def test_it_finds_what_a_cumulative_sum_finds(capacity, pairs, data):
    tree, plain = filled(capacity, pairs)
    assert tree.total == plain.sum()
    assert tree.weights.tolist() == plain.tolist()
    if tree.total:
        below = np.array(data.draw(st.lists(st.integers(0, int(tree.total) - 1), max_size=20)), np.float64)
        assert tree.find(below + 0.5).tolist() == np.searchsorted(plain.cumsum(), below + 0.5, side="right").tolist()
        assert tree.find(below).tolist() == np.searchsorted(plain.cumsum(), below, side="right").tolist()


@settings(max_examples=60)
@given(capacities, st.lists(changes(any_weight), max_size=4), st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_the_kernel_and_its_twin_agree_to_the_bit(capacity, batches, shares):
    fast, slow = SumTree(capacity), SumTree(capacity)
    for pairs in batches:
        slots, weights = [slot % capacity for slot, _ in pairs], [weight for _, weight in pairs]
        fast.set(slots, weights)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sum_tree, "kernel", None)
            slow.set(slots, weights)
            assert fast.total == slow.total
            below = np.array(shares) * slow.total
            found = slow.find(below) if slow.total else None
        if found is not None:
            assert fast.find(below).tolist() == found.tolist()
            assert (fast.weights[found] > 0).all()


def test_the_kernel_is_compiled_here():
    """`make test` has a C compiler; without this the comparison above would compare the twin with itself."""
    assert sum_tree.kernel is not None


@pytest.mark.usefixtures("either_way")
@settings(max_examples=40)
@given(capacities, changes(any_weight), changes(any_weight))
def test_sums_depend_on_the_weights_alone_and_never_drift(capacity, before, after):
    """Set and set again, or set once: the same nodes."""
    tree, _ = filled(capacity, before)
    tree.set([slot % capacity for slot, _ in after], [weight for _, weight in after])
    fresh = SumTree(capacity)
    fresh.set(np.arange(capacity), tree.weights)
    assert tree.total == fresh.total
    assert tree.grown(capacity * 20).total == tree.total


@pytest.mark.usefixtures("either_way")
def test_rounding_never_leads_to_a_slot_without_weight():
    rng = np.random.default_rng(5)
    tree = SumTree(3000)
    weights = rng.random(3000) ** 8 * (rng.random(3000) < 0.3)
    tree.set(np.arange(3000), weights)
    edges = tree.weights.cumsum()
    below = np.concatenate([edges, np.nextafter(edges, 0), [tree.total, tree.total * 2, 0.0]])
    assert (tree.weights[tree.find(below)] > 0).all()


@pytest.mark.usefixtures("either_way")
def test_of_a_slot_that_comes_twice_the_last_weight_counts():
    tree = SumTree(20)
    tree.set([3, 4, 3], [5.0, 1.0, 2.0])
    assert (tree.total, tree.weights[3]) == (3.0, 2.0)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("shape", [(), (1,), (0,), (6,), (2, 3), (1, 2, 3)])
def test_numbers_and_slots_may_have_any_shape(shape):
    tree, plain = SumTree(300), SumTree(300)
    slots = np.arange(0, 300, 50)[: int(np.prod(shape))].reshape(shape)
    tree.set(slots, slots + 1.0)
    plain.set(slots.ravel(), slots.ravel() + 1.0)
    assert (tree.total, tree.weights.tolist()) == (plain.total, plain.weights.tolist())
    tree.set([7], [1.0])
    below = np.linspace(0, 0.99, slots.size).reshape(shape) * tree.total
    for numbers in (below, np.asfortranarray(below).reshape(shape), below.tolist()):
        found = tree.find(numbers)
        assert found.shape == shape
        assert found.ravel().tolist() == np.searchsorted(tree.weights.cumsum(), below.ravel(), side="right").tolist()


@pytest.mark.parametrize(
    ("slots", "weights"),
    [([0], [-1.0]), ([0], [np.nan]), ([0], [np.inf]), ([0], [LARGEST * 2]), ([20], [1.0]), ([-1], [1.0])],
)
def test_what_cannot_be_a_weight_or_a_slot_is_refused_and_nothing_changes(slots, weights):
    tree = SumTree(20)
    tree.set([1, 2], [1.0, 2.0])
    with pytest.raises(OptionError):
        tree.set([*slots, 1], [*weights, 9.0])
    assert (tree.total, tree.weights[1]) == (3.0, 1.0)


def test_nothing_is_found_where_all_weights_are_zero():
    with pytest.raises(OptionError, match="all weights are 0"):
        SumTree(5).find([0.0])


def tree_arrays(**changed):
    arrays = {
        "nodes": np.zeros(32 + 16),
        "offsets": np.array([0, 32, 48], np.int64),
        "slots": np.array([31], np.int64),
        "weights": np.ones(1),
        "capacity": 32,
        "largest": 10.0,
    } | changed
    return arrays.values()


@pytest.mark.parametrize(
    "changed",
    [
        {"slots": np.array([1, 2], np.int64)},
        {"capacity": 33},
        {"offsets": np.array([0, 32, 49], np.int64)},
        {"offsets": np.array([0, 40, 48], np.int64)},
        {"offsets": np.array([16, 32, 48], np.int64)},
        {"offsets": np.array([0, 48], np.int64)},
        {"offsets": np.array([0], np.int64)},
        {"offsets": np.array([], np.int64)},
        {"offsets": np.arange(0, 17 * 16, 16)},
        {"nodes": np.zeros(40)},
    ],
    ids=str,
)
def test_the_kernel_touches_nothing_outside_of_the_tree(changed):
    kernel = sum_tree.kernel
    assert kernel.set(*tree_arrays()) == 1.0
    with pytest.raises(ValueError, match="do not fit"):
        kernel.set(*tree_arrays(**changed))
    if changed.keys() <= {"nodes", "offsets"}:
        nodes, offsets, *_ = tree_arrays(**changed)
        with pytest.raises(ValueError, match="do not fit"):
            kernel.find(nodes, offsets, np.zeros(1), np.zeros(1, np.int64))


@pytest.mark.parametrize(
    "changed",
    [
        {"slots": np.array([32], np.int64)},
        {"slots": np.array([-1], np.int64)},
        {"capacity": 31},
        {"capacity": -1},
        {"largest": 0.5},
        {"weights": np.array([np.nan])},
        {"weights": np.array([-1.0])},
    ],
    ids=str,
)
def test_the_kernel_sets_no_slot_that_is_not_there_and_no_weight_that_is_none(changed):
    assert sum_tree.kernel.set(*tree_arrays(**changed)) == -1.0


def test_the_kernel_finds_no_more_than_there_is_room_for():
    nodes, offsets, *_ = tree_arrays()
    with pytest.raises(ValueError, match="do not fit"):
        sum_tree.kernel.find(nodes, offsets, np.zeros(2), np.zeros(1, np.int64))


def test_a_tree_whose_sums_are_wrong_is_walked_within_its_bounds():
    nodes = np.zeros(32 + 16)
    nodes[47] = 1.0  # the last node above has children that are not there
    found = np.full(1, -1, np.int64)
    sum_tree.kernel.find(nodes, np.array([0, 32, 48], np.int64), np.array([0.5]), found)
    assert 0 <= found[0] < 32


@pytest.mark.parametrize(
    "changed",
    [
        {"begin": np.array([0, 4], np.int64)},
        {"begin": np.array([-1, 3], np.int64)},
        {"begin": np.array([2**62, 3], np.int64)},
        {"begin": np.array([0], np.int64)},
        {"lengths": np.array([3, -2], np.int32)},
        {"lengths": np.array([3, 3], np.int32)},
        {"out": np.zeros(4, np.int32)},
        {"out": np.zeros(6, np.int32)},
        {"sizes": (4, 2)},
        {"sizes": (8, 8)},
        {"sizes": (0, 4)},
    ],
    ids=str,
)
def test_the_kernel_copies_nothing_from_or_to_outside(changed):
    arrays = {
        "source": np.arange(5, dtype=np.uint16),
        "begin": np.array([0, 3], np.int64),
        "lengths": np.array([3, 2], np.int32),
        "out": np.empty(5, np.int32),
        "sizes": (2, 4),
    }

    def run(source, begin, lengths, out, sizes):
        sum_tree.kernel.gather(source, begin, lengths, out, *sizes)
        return out.tolist()

    assert run(**arrays) == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="do not fit"):
        run(**arrays | changed)
