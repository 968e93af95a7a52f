"""The limits of the search for patterns: of its work, and of the sequences in a row."""

import sys
from collections import Counter

import numpy as np
import pytest

from brim.plan import PatternSearch, lower_bound, pack
from brim.plan.packing import best_fit, first_fit, knapsack, optimal, patterns
from brim.plan.packing.knapsack import Knapsack
from brim.plan.packing.patterns import Work

CALL = 500
"""Operations of one call of a function, at least: those of a quarter of a microsecond."""


def near_thirds(capacity, n):
    return np.random.default_rng(0).integers(capacity // 4, int(0.42 * capacity), n)


def short_beside_long(capacity, n, shortest=1, longest=20):
    return np.concatenate([near_thirds(capacity, n), np.random.default_rng(1).integers(shortest, longest, n)])


def calls(function):
    """Return the number of calls of functions, of Python and of C, while a function runs."""
    count = Counter()
    sys.setprofile(lambda frame, event, argument: count.update([event]))
    try:
        function()
    finally:
        sys.setprofile(None)
    return count["call"] + count["c_call"]


@pytest.mark.parametrize(
    "lengths_and_capacity",
    [
        (short_beside_long(16_384, 1500), 16_384),
        (short_beside_long(1_000_000, 1000), 1_000_000),
        (short_beside_long(100_000, 1500, longest=50), 100_000),
        (np.append(near_thirds(131_072, 3000), np.ones(10, int)), 131_072),
        (near_thirds(2048, 3000), 2048),
        (np.random.default_rng(2).integers(1, 513, 3000), 512),
    ],
    ids=["short beside long", "a million tokens", "a hundred thousand", "ten ones", "thirds", "uniform"],
)
@pytest.mark.parametrize("limit", [0.02, 0.1])
@pytest.mark.skipif(knapsack.kernel is None, reason="work is that of the compiled kernel")
def test_a_search_does_no_more_work_than_its_limit(lengths_and_capacity, limit):
    lengths, capacity = lengths_and_capacity
    alone = calls(lambda: pack(lengths, capacity, mode="optimal", search=PatternSearch(0)))
    searching = calls(lambda: pack(lengths, capacity, mode="optimal", search=PatternSearch(limit)))
    assert CALL * (searching - alone) <= limit * optimal.PER_SECOND


@pytest.mark.parametrize("most", [None, 40])
def test_no_knapsack_begins_that_the_rest_of_the_work_does_not_cover(monkeypatch, most):
    cells = []

    def counted(width, value, capacity, most):
        cells.append(len(width) * capacity * (most or 1))
        return Knapsack(width, value, capacity, most)

    monkeypatch.setattr(patterns, "Knapsack", counted)
    lengths = short_beside_long(131_072, 1000)
    for limit in (0.0005, 0.005, 0.05):
        cells.clear()
        pack(lengths, 131_072, mode="optimal", max_sequences=most, search=PatternSearch(limit))
        assert sum(cells) <= limit * optimal.PER_SECOND
    assert cells


def test_many_copies_of_an_item_take_one_step(monkeypatch):
    steps = []
    number = Knapsack._number
    monkeypatch.setattr(Knapsack, "_number", lambda *options: steps.append(1) or number(*options))
    width, value = np.array([1, 40_000], np.int32), np.array([2, 90_000], np.int64)
    assert Knapsack(width, value, 100_000).items(1) == [(0, 20_000), (1, 2)]
    assert len(steps) == 2
    assert Knapsack(width[:1], value[:1], 300, 200).items(0) == [(0, 200)]
    assert len(steps) == 3


def test_work_that_is_not_covered_is_refused_and_ends_the_search():
    work = Work(10)
    assert work.spend(4)
    assert work.left == 6
    assert work.spend(6)
    assert not work.spend(1)
    work = Work(10)
    assert not work.spend(11)
    assert work.left == 0


@pytest.mark.parametrize("limit", [0.01, 0.05])
def test_a_search_that_ends_early_is_the_same_without_compiled_kernels(limit):
    lengths = short_beside_long(2048, 400)
    fast = pack(lengths, 2048, mode="optimal", search=PatternSearch(limit))
    with pytest.MonkeyPatch.context() as patch:
        for module in (best_fit, first_fit, knapsack):
            patch.setattr(module, "kernel", None)
        slow = pack(lengths, 2048, mode="optimal", search=PatternSearch(limit))
    assert np.array_equal(fast.order, slow.order)
    assert np.array_equal(fast.ptr, slow.ptr)
    assert fast.bound == slow.bound


@pytest.mark.parametrize(("capacity", "most"), [(16_384, 8000), (16_384, 103), (200_000, 150_000)])
@pytest.mark.parametrize("mode", ["optimal", "auto"])
def test_a_limit_of_sequences_that_no_row_can_reach_changes_nothing(capacity, most, mode):
    """The sum of the 104 shortest is above the capacity, though thousands of the ten ones would fit."""
    lengths = np.append(near_thirds(capacity, 1000), np.ones(100, int))
    free = pack(lengths, capacity, mode=mode, search=PatternSearch(0.3))
    limited = pack(lengths, capacity, mode=mode, max_sequences=most, search=PatternSearch(0.3))
    assert np.array_equal(free.order, limited.order)
    assert np.array_equal(free.ptr, limited.ptr)
    assert len(free) < len(pack(lengths, capacity))


@pytest.mark.parametrize(("capacity", "most"), [(200_000, 150_000), (1_000_000, 200_000), (16_384, 14_000)])
@pytest.mark.parametrize("mode", ["optimal", "auto"])
def test_a_limit_of_sequences_for_which_a_knapsack_has_no_room_leaves_best_fit(capacity, most, mode):
    lengths = np.append(near_thirds(capacity, 300), np.ones(most + 10, int))
    found = pack(lengths, capacity, mode=mode, max_sequences=most)
    best = pack(lengths, capacity, max_sequences=most)
    assert np.array_equal(found.order, best.order)
    assert np.array_equal(found.ptr, best.ptr)
    assert found.bound == lower_bound(lengths, capacity, max_sequences=most)


@pytest.mark.parametrize(("capacity", "most"), [(200_000, 60), (4096, 400)])
def test_a_limit_of_sequences_that_rows_can_reach_is_kept(capacity, most):
    lengths = np.append(near_thirds(capacity, 600), np.ones(3000, int))
    best = pack(lengths, capacity, max_sequences=most)
    found = pack(lengths, capacity, mode="optimal", max_sequences=most, search=PatternSearch(1))
    assert np.array_equal(np.sort(found.order), np.arange(len(lengths)))
    assert found.totals(lengths).max() <= capacity
    assert np.diff(found.ptr).max() <= most
    assert found.bound <= len(found) < 0.97 * len(best)


def test_patterns_that_a_full_pool_evicted_are_found_again(monkeypatch):
    """Otherwise the search ends where all patterns worth using are known and none of them is left."""
    lengths = np.append(near_thirds(2048, 2000), np.random.default_rng(1).integers(1, 41, 2000))
    monkeypatch.setattr(patterns._Pool, "MOST", 600)
    found = pack(lengths, 2048, mode="optimal", search=PatternSearch(2))
    assert len(found) <= 1.02 * found.bound


@pytest.mark.parametrize("capacity", [2048, 16384])
def test_a_search_that_uses_up_its_work_is_followed_by_a_quick_one(capacity):
    """Short texts beside long ones: with many classes, the programme is far from solved when the work is used up."""
    random = np.random.default_rng(1)
    lengths = np.append(near_thirds(capacity, 2_000), random.integers(1, 40, 2_000))
    found = pack(lengths, capacity, mode="optimal", search=PatternSearch(3))
    assert len(found) <= 1.02 * found.bound
