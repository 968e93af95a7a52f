import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.core.arrays import order_by
from brim.core.rng import Words, below, new_seed, permutation, raw_bits, share, uniform

AROUND_POWERS_OF_TWO = [n for k in range(11, 21) for n in range(2**k - 2, 2**k + 3)]


@pytest.mark.slow
def test_a_permutation_holds_every_index_once():
    for n in [*range(2000), *AROUND_POWERS_OF_TWO]:
        assert np.array_equal(np.sort(permutation(n, seed=1, purpose="test")), np.arange(n)), n


@pytest.mark.slow
def test_small_permutations_are_uniform():
    counts: dict[tuple[int, ...], int] = {}
    for epoch in range(24_000):
        order = tuple(permutation(4, seed=3, purpose="test", epoch=epoch).tolist())
        counts[order] = counts.get(order, 0) + 1
    chi_square = sum((count - 1000) ** 2 / 1000 for count in counts.values()) + 1000 * (24 - len(counts))
    # 23 degrees of freedom; beyond 60 once in 40,000 fair draws, and this draw is always the same.
    assert chi_square < 60


def test_seed_purpose_and_epoch_are_independent():
    orders = [
        permutation(50, seed=seed, purpose=purpose, epoch=epoch).tobytes()
        for seed in (42, 43)
        for purpose in "ab"
        for epoch in range(3)
    ]
    assert len(set(orders)) == len(orders)


@given(st.integers(0, 200), st.integers(0, 200), st.integers(0, 5))
def test_appended_items_do_not_change_the_order_of_the_earlier_ones(n, more, epoch):
    if (n - 1).bit_length() != (n + more - 1).bit_length():
        return  # the keys lose a bit of precision there; ties are as likely as 2**-50
    long = permutation(n + more, seed=7, purpose="test", epoch=epoch)
    assert np.array_equal(long[long < n], permutation(n, seed=7, purpose="test", epoch=epoch))


def test_the_first_bits_do_not_depend_on_how_many_are_drawn():
    assert np.array_equal(raw_bits(10, seed=1, purpose="x"), raw_bits(1000, seed=1, purpose="x")[:10])


def test_the_stream_is_the_one_that_stored_plans_were_made_with():
    assert raw_bits(3, seed=42, purpose="group", epoch=1).tolist() == GOLDEN_BITS
    assert permutation(10, seed=42, purpose="group", epoch=1).tolist() == GOLDEN_ORDER


GOLDEN_BITS = [13772147260097918506, 8634037715780285065, 1995892455424169397]
GOLDEN_ORDER = [2, 1, 5, 7, 6, 9, 4, 0, 8, 3]


def test_nothing_touches_the_global_generators():
    script = """
import random, numpy as np
from brim import BatchPlan, BatchingConfig
before = (random.getstate(), np.random.get_state()[1].tobytes())
list(BatchPlan.build({i: i % 50 + 1 for i in range(500)}, BatchingConfig(token_budget=256)).iter_epoch(0))
assert (random.getstate(), np.random.get_state()[1].tobytes()) == before
"""
    subprocess.run([sys.executable, "-c", script], check=True)


columns = st.integers(0, 3).flatmap(
    lambda bits: st.integers(0, 40).flatmap(
        lambda n: st.lists(
            st.lists(st.integers(0, 2 ** (20 * bits + 2) - 1), min_size=n, max_size=n), min_size=1, max_size=3
        )
    )
)


@given(columns)
def test_order_by_agrees_with_lexsort(columns):
    arrays = [np.array(column, np.uint64) for column in columns]
    assert np.array_equal(order_by(*arrays), np.lexsort(arrays[::-1]))


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint16, np.uint64])
def test_order_by_takes_any_integer_type(dtype):
    assert order_by(np.array([3, 1, 2, 1], dtype)).tolist() == [1, 3, 2, 0]


def test_numbers_are_made_of_the_same_bits_in_every_way():
    key = {"seed": 5, "purpose": "test", "epoch": 2}
    words = [int(word) for word in raw_bits(100, **key)]
    assert uniform(100, **key).tolist() == [(word >> 11) * 2.0**-53 for word in words]
    assert [share(**key, index=at) for at in range(3)] == [word / 2**64 for word in words[:3]]
    assert new_seed(**key) == words[0] >> 1
    assert below(raw_bits(100, **key), 10).tolist() == [below(word, 10) for word in words]
    assert set(below(raw_bits(100, **key), 10).tolist()) == set(range(10))
    assert int(below(np.array([2**64 - 1], np.uint64), 2**32)[0]) == below(2**64 - 1, 2**32) == 2**32 - 1


@pytest.mark.parametrize("position", range(9))
def test_a_sequence_of_words_can_be_entered_anywhere(position):
    whole = Words(3, "test")
    words = whole.take(20)
    assert whole.position == 20
    assert Words(3, "test", position).take(5).tolist() == words[position : position + 5].tolist()
    assert Words(3, "test", position).uniform(2).tolist() == [
        (int(word) >> 11) * 2.0**-53 for word in words[position:][:2]
    ]
    assert Words(3, "test", position).below(2, 7).tolist() == [below(int(word), 7) for word in words[position:][:2]]
