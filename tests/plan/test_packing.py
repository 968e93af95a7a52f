"""Packing against its two-line definitions, and the compiled kernel against its twin."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.core.errors import LengthError, OptionError
from brim.plan import BatchingConfig, PatternSearch, lower_bound
from brim.plan.config import PackingConfig, PackingMode
from brim.plan.packing import best_fit, first_fit, knapsack
from brim.plan.packing import pack as packing
from brim.plan.packing.metrics import PackingMetrics
from brim.plan.packing.pack import pack

KERNELS = (best_fit, first_fit, knapsack, packing)

CAPACITY = 24
lengths = st.lists(st.integers(1, CAPACITY), max_size=60).map(lambda values: np.array(values, np.int32))
modes = st.sampled_from(list(PackingMode))
most = st.none() | st.integers(1, 4)


def naive(lengths, mode):
    """What the modes mean."""
    rows: list[list[int]] = []
    arrivals = range(len(lengths)) if mode == "first_fit" else sorted(range(len(lengths)), key=lambda i: -lengths[i])
    for i in arrivals:
        roomy = [row for row in rows if sum(lengths[row]) + lengths[i] <= CAPACITY]
        if not roomy:
            rows.append([i])
        else:
            (max(roomy, key=lambda row: sum(lengths[row])) if mode == "best_fit" else roomy[0]).append(i)
    return rows


def as_lists(rows):
    return [row.tolist() for row in rows]


@given(lengths, modes, most)
def test_every_sequence_lands_in_exactly_one_row_and_no_row_overflows(lengths, mode, most):
    rows = pack(lengths, CAPACITY, mode=mode, max_sequences=most)
    assert sorted(rows.order.tolist()) == list(range(len(lengths)))
    assert all(0 < lengths[row].sum() <= CAPACITY for row in rows)
    assert rows.totals(lengths).tolist() == [lengths[row].sum() for row in rows]
    if most is not None:
        assert all(len(row) <= most for row in rows)


@given(lengths)
def test_first_fit_takes_the_oldest_row_with_room(lengths):
    assert as_lists(pack(lengths, CAPACITY, mode="first_fit")) == naive(lengths, "first_fit")


@given(lengths)
def test_greedy_packs_the_longest_first_into_the_oldest_row(lengths):
    rows = pack(lengths, CAPACITY, mode="greedy")
    assert sorted(sorted(lengths[row].tolist()) for row in rows) == sorted(
        sorted(lengths[row].tolist()) for row in naive(lengths, "greedy")
    )


@given(lengths)
def test_best_fit_needs_as_many_rows_as_its_definition(lengths):
    assert len(pack(lengths, CAPACITY)) == len(naive(lengths, "best_fit"))


@given(
    st.sampled_from([1, 24, 2000, 100_000, 2**31 - 1]).flatmap(
        lambda capacity: st.tuples(
            st.just(capacity),
            st.lists(st.integers(0, capacity) | st.integers(capacity // 3, capacity // 2), max_size=150),
        )
    ),
    most,
)
def test_few_sequences_of_many_lengths_are_sorted_and_packed_as_if_they_were_counted(drawn, most):
    capacity, lengths = drawn[0], np.array(drawn[1], np.int32)
    rows = pack(lengths, capacity, max_sequences=most)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(best_fit, "kernel", None)
        assert as_lists(pack(lengths, capacity, max_sequences=most)) == as_lists(rows)


@pytest.mark.parametrize("capacity", [1023, 1024, 5000, 131_072, 5_000_000, 2**31 - 1])
def test_rooms_are_found_the_same_way_in_a_tree_of_bits_and_in_sorted_blocks(capacity):
    """Of the 6,000 sequences, thousands leave another room, so the large capacities need several blocks."""
    random = np.random.default_rng(capacity)
    for shortest, longest in (
        (1, capacity),
        (capacity // 2, capacity),
        (capacity - 1000, capacity),
        (1, capacity // 3),
    ):
        lengths = random.integers(shortest, longest, 6000, endpoint=True).astype(np.int32)
        rows = pack(lengths, capacity)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(best_fit, "kernel", None)
            slow = pack(lengths, capacity)
        assert np.array_equal(rows.order, slow.order)
        assert np.array_equal(rows.ptr, slow.ptr)


@given(lengths, modes, most, st.randoms(use_true_random=False))
def test_the_kernel_agrees_with_its_twin(lengths, mode, most, random):
    order = list(range(len(lengths)))
    random.shuffle(order)
    for arrivals in (None, np.array(order, np.int32)):
        fast = pack(lengths, CAPACITY, mode=mode, max_sequences=most, order=arrivals)
        with pytest.MonkeyPatch.context() as patch:
            for module in KERNELS:
                patch.setattr(module, "kernel", None)
            slow = pack(lengths, CAPACITY, mode=mode, max_sequences=most, order=arrivals)
        assert as_lists(fast) == as_lists(slow)


def test_the_kernel_is_compiled_here():
    """`make test` has a C compiler; without this the comparison above would compare the twin with itself."""
    assert all(module.kernel is not None for module in KERNELS)


@given(lengths, st.randoms(use_true_random=False))
def test_another_order_gives_other_rows_of_the_same_quality(lengths, random):
    order = list(range(len(lengths)))
    random.shuffle(order)
    one, other = pack(lengths, CAPACITY), pack(lengths, CAPACITY, order=np.array(order, np.int64))
    assert sorted(other.order.tolist()) == list(range(len(lengths)))
    assert sorted(sorted(lengths[row].tolist()) for row in one) == sorted(
        sorted(lengths[row].tolist()) for row in other
    )


@pytest.mark.parametrize("mode", list(PackingMode))
def test_many_more_rows_than_the_first_fit_tree_starts_with(mode):
    lengths = np.random.default_rng(0).integers(1, 65, 40_000).astype(np.int32)
    rows = pack(lengths, 64, mode=mode)
    assert np.array_equal(np.sort(rows.order), np.arange(40_000))
    assert rows.totals(lengths).max() <= 64
    assert len(rows) >= -(-int(lengths.sum()) // 64)


def test_lognormal_lengths_pack_within_a_thousandth_of_the_lower_bound():
    random = np.random.default_rng(0)
    lengths = np.clip(np.exp(np.log(300) + random.standard_normal(100_000)), 1, 2048).astype(np.int32)
    metrics = PackingMetrics.of(pack(lengths, 2048), lengths, 2048)
    assert metrics.num_rows <= 1.001 * -(-int(lengths.sum()) // 2048)
    assert metrics.efficiency >= 0.999
    assert metrics.packing_ratio == pytest.approx(100_000 / metrics.num_rows)


def test_a_sequence_that_does_not_fit_is_named_and_nothing_is_dropped():
    with pytest.raises(LengthError, match="sequence 2 has 10 tokens and does not fit in a row of 8"):
        pack(np.array([5, 3, 10]), 8)


def test_an_empty_sequence_takes_up_one_token():
    assert sorted(len(row) for row in pack(np.array([0, 0, 4, 3]), 4)) == [1, 1, 2]


@pytest.mark.parametrize("order", [[0, 1], [0, 1, 3], [0, 1, -1], [0, 1, 1]])
def test_an_order_that_is_not_one_is_refused(order):
    with pytest.raises(OptionError, match="must hold each of 0 to 2 once"):
        pack(np.array([1, 2, 3]), 8, order=np.array(order))


def test_lengths_beyond_32_bits_are_refused_and_not_wrapped():
    with pytest.raises(LengthError, match=f"has {2**32 + 5} tokens"):
        pack(np.array([2**32 + 5]), 8)
    with pytest.raises(OptionError, match="negative, got -1"):
        pack(np.array([-1]), 8)
    with pytest.raises(OptionError, match="must be integers, got an array of float64"):
        pack(np.array([3.0, np.nan]), 8)
    with pytest.raises(OptionError, match=r"mode must be one of .*, got 'best'"):
        pack(np.array([1]), 8, mode="best")


def test_no_sequences_need_no_rows():
    for mode in PackingMode:
        assert len(pack(np.array([], np.int32), 8, mode=mode)) == 0


def test_the_example_of_the_docstring():
    assert repr(pack(np.array([5, 3, 4, 2]), 8)) == "[[0, 1], [2, 3]]"
    assert repr(pack(np.full(30, 8), 8)).endswith("... 30 rows]")


NO_COUNTS = [
    (0, "must be at least 1, got 0"),
    (-1, "must be at least 1, got -1"),
    ("8", "must be an integer, got '8'"),
    (8.0, "must be an integer, got 8.0"),
    (2048.5, "must be an integer, got 2048.5"),
    (float("nan"), "must be an integer, got nan"),
    (True, "must be an integer, got True"),
    (2**31, "must be at most 2147483647, got 2147483648"),
]
NO_TIMES = [
    ("5", "must be a number of seconds, got '5'"),
    (None, "must be a number of seconds, got None"),
    (True, "must be a number of seconds, got True"),
    (-1, "must be at least 0 and finite, got -1"),
    (float("nan"), "must be at least 0 and finite, got nan"),
    (float("inf"), "must be at least 0 and finite, got inf"),
    (1e300, r"must be at most 2147483647, got 1e\+300"),
]


@pytest.mark.parametrize(("value", "message"), NO_COUNTS)
def test_limits_that_are_no_counts_are_refused_by_name(value, message):
    for field in ("max_length", "max_sequences"):
        with pytest.raises(OptionError, match=f"^packing {field} {message}"):
            PackingConfig(**{field: value})
    for call in (pack, lower_bound):
        with pytest.raises(OptionError, match=f"^capacity {message}"):
            call(np.array([1]), value)
        with pytest.raises(OptionError, match=f"^max_sequences {message}"):
            call(np.array([1]), 8, max_sequences=value)


def test_a_capacity_is_not_optional():
    with pytest.raises(OptionError, match=r"^packing max_length must be an integer, got None"):
        PackingConfig(max_length=None)
    for call in (pack, lower_bound):
        with pytest.raises(OptionError, match=r"^capacity must be an integer, got None"):
            call(np.array([1]), None)


@pytest.mark.parametrize(("value", "message"), NO_TIMES)
def test_time_limits_that_are_none_are_refused_by_name(value, message):
    with pytest.raises(OptionError, match=f"^packing time_limit {message}"):
        PackingConfig(time_limit=value)
    with pytest.raises(OptionError, match=f"^the time limit of the search for patterns {message}"):
        PatternSearch(value)


def test_limits_of_numpy_are_those_of_python():
    config = PackingConfig(max_length=np.int64(8), max_sequences=np.int32(2))
    assert config == PackingConfig(max_length=8, max_sequences=2)
    assert BatchingConfig(packing=config).fingerprint
    assert as_lists(pack(np.array([1, 1, 1]), np.int64(8), max_sequences=np.int32(2))) == [[0, 1], [2]]


def test_lists_of_integers_are_as_good_as_arrays():
    for mode in PackingMode:
        expected = as_lists(pack(np.array([3, 5, 2]), 8, mode=mode, order=np.array([2, 0, 1])))
        assert as_lists(pack([3, 5, 2], 8, mode=mode, order=[2, 0, 1])) == expected
    assert lower_bound([5, 5, 5], 8) == 3
    assert len(pack([], 8)) == lower_bound([], 8) == 0


@pytest.mark.parametrize("mode", list(PackingMode))
@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (np.array([[3, 5], [2, 2]], np.int32), r"one array of integers, got an array of shape \(2, 2\)"),
        ([[3, 5], [2]], "one array of integers, got nested lists of several lengths"),
        (None, r"one array of integers, got an array of shape \(\)"),
        (["3", "5"], "integers, got an array of <U1"),
        ([3, 2**70], "integers, got an array of object"),
        ([3.0, 5.0], "integers, got an array of float64"),
        ([True, False], "integers, got an array of bool"),
    ],
)
def test_lengths_and_orders_that_are_no_array_of_integers_are_refused(lengths, message, mode):
    with pytest.raises(OptionError, match=f"^lengths must be {message}"):
        pack(lengths, 8, mode=mode)
    with pytest.raises(OptionError, match=f"^lengths must be {message}"):
        lower_bound(lengths, 8)
    if lengths is not None:
        with pytest.raises(OptionError, match=f"^order must be {message}"):
            pack([1, 1], 8, mode=mode, order=lengths)


def test_a_lower_bound_refuses_lengths_that_no_row_has_room_for():
    with pytest.raises(LengthError, match="sequence 0 has 10 tokens and does not fit in a row of 8"):
        lower_bound(np.array([10, 3]), 8)
    with pytest.raises(OptionError, match="negative, got -10"):
        lower_bound(np.array([-10, 3]), 8)


def test_metrics_count_the_most_sequences_that_a_row_may_hold():
    lengths = np.ones(10, np.int32)
    rows = pack(lengths, 100, max_sequences=3)
    assert PackingMetrics.of(rows, lengths, 100).lower_bound == 1
    metrics = PackingMetrics.of(rows, lengths, 100, max_sequences=3)
    assert metrics.lower_bound == 4
    assert metrics.gap == 0


def test_memory_for_rows_of_a_huge_capacity_depends_on_the_number_of_sequences():
    """A table of all rooms of such a row would be 8 GB."""
    program = """if True:
        import resource
        import numpy as np
        from brim.plan import pack
        lengths = np.random.default_rng(0).integers(1, 2**31, 20_000)
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
        print(len(pack(lengths, 2**31 - 1)))
    """
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert 10_000 <= int(ran.stdout) <= 10_300
