"""Packing against its two-line definitions, and the compiled kernel against its twin."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.core.errors import LengthError, OptionError
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


@pytest.mark.parametrize("capacity", [1023, 1024, 5000, 131_072])
def test_rooms_are_found_the_same_way_in_an_array_and_in_a_tree_of_bits(capacity):
    random = np.random.default_rng(capacity)
    for shortest in (1, capacity // 2, capacity - 1000):
        lengths = random.integers(shortest, capacity + 1, 3000).astype(np.int32)
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
    with pytest.raises(OptionError, match="got 0"):
        pack(np.array([1]), 8, max_sequences=0)
    with pytest.raises(OptionError, match=r"mode must be one of .*, got 'best'"):
        pack(np.array([1]), 8, mode="best")


def test_no_sequences_need_no_rows():
    for mode in PackingMode:
        assert len(pack(np.array([], np.int32), 8, mode=mode)) == 0


def test_the_example_of_the_docstring():
    assert repr(pack(np.array([5, 3, 4, 2]), 8)) == "[[0, 1], [2, 3]]"
    assert repr(pack(np.full(30, 8), 8)).endswith("... 30 rows]")


@pytest.mark.parametrize(
    ("options", "message"), [({"max_length": 0}, "max_length"), ({"max_sequences": 0}, "max_sequences")]
)
def test_options_that_cannot_work_are_refused_with_their_value(options, message):
    with pytest.raises(OptionError, match=f"{message} must be at least 1, got 0"):
        PackingConfig(**options)
    with pytest.raises(OptionError, match="got 0"):
        pack(np.array([1]), 0)
