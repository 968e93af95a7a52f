from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.core.errors import OptionError
from brim.plan.buckets import BucketSpec, BucketStats
from brim.plan.edges import optimal_widths


def padded(lengths, widths):
    return sum(min(width for width in widths if width >= length) for length in lengths)


def brute_force(lengths, num_buckets, multiple):
    ceilings = sorted({-(-length // multiple) * multiple for length in lengths})
    sets = ((*inner, ceilings[-1]) for k in range(num_buckets) for inner in combinations(ceilings[:-1], k))
    return min(padded(lengths, widths) for widths in sets)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=30), st.integers(1, 6), st.sampled_from([1, 1, 2, 8]))
def test_no_other_widths_waste_less(lengths, num_buckets, multiple):
    widths = optimal_widths(np.array(lengths), num_buckets, multiple=multiple)
    assert len(widths) <= num_buckets
    assert list(widths) == sorted(set(widths))
    assert all(width % multiple == 0 for width in widths)
    assert widths[-1] >= max(lengths)
    assert padded(lengths, widths) == brute_force(lengths, num_buckets, multiple)


def test_more_buckets_never_waste_more_and_enough_buckets_waste_nothing():
    lengths = np.random.default_rng(1).integers(1, 100, 1000)
    costs = [padded(lengths, optimal_widths(lengths, k)) for k in (1, 2, 4, 8, 16, 99)]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == lengths.sum()


def test_zero_buckets_are_refused():
    with pytest.raises(OptionError, match="got 0"):
        optimal_widths(np.array([1]), 0)


@pytest.mark.parametrize(
    ("edges", "overflow_max", "message"),
    [
        ((256, 128), 512, "must ascend, got 256,128; did you mean 128,256"),
        ((128, 128), 512, "must ascend"),
        ((-1, 128), 512, "must be positive, got -1,128"),
        ((0,), 512, "must be positive"),
        ((128, 512), 512, "overflow_max must be above the last edge, got 512"),
        ((), 0, "at least 1"),
    ],
)
def test_edges_that_make_no_buckets_are_refused(edges, overflow_max, message):
    with pytest.raises(OptionError, match=message):
        BucketSpec(edges=edges, overflow_max=overflow_max)


@given(st.lists(st.integers(1, 100), unique=True, min_size=1, max_size=5), st.lists(st.integers(0, 120), max_size=40))
def test_a_length_belongs_to_the_first_bucket_that_is_wide_enough(edges, lengths):
    spec = BucketSpec(edges=tuple(sorted(edges)), overflow_max=110)
    many = np.tile(np.array(lengths, np.int64), 120)  # more lengths than distinct ones are looked up in a table
    assert np.array_equal(spec.bucket_ids(many), np.tile(spec.bucket_ids(np.array(lengths, np.int64)), 120))
    for length, bucket in zip(lengths, spec.bucket_ids(np.array(lengths, np.int64)).tolist(), strict=True):
        expected = sum(length > width for width in spec.widths)
        assert bucket == expected
        if length <= 110:
            low, high = spec.get_bucket_range(spec.get_bucket_id(length))
            assert low <= length <= high == spec.get_bucket_max_length(bucket)
            assert spec.is_overflow(bucket) == (bucket == spec.num_buckets - 1)
        else:
            with pytest.raises(OptionError, match="in no bucket"):
                spec.get_bucket_id(length)


def test_bucket_stats_count_every_sample_once():
    lengths = np.random.default_rng(2).integers(1, 101, 500)
    stats = BucketStats.of(BucketSpec(edges=(10, 50), overflow_max=100), lengths)
    assert [one.bucket_max_length for one in stats] == [10, 50, 100]
    assert sum(one.sample_count for one in stats) == 500
    assert sum(one.total_tokens for one in stats) == lengths.sum()
    assert stats[0].padded_tokens == stats[0].sample_count * 10
    assert stats[0].padding_tokens == stats[0].padded_tokens - stats[0].total_tokens
    assert stats[0].avg_length == lengths[lengths <= 10].mean()
