"""Bucket edges against brute force, and the compiled pass against its twin."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from brim import BucketSpec, BucketStats, OptimizationGoal, OptionError
from brim.plan import edges
from brim.plan.edges import optimal_widths

MEASURE = {
    OptimizationGoal.MINIMIZE_WASTE: lambda widths: sum(widths),
    OptimizationGoal.BALANCE_BUCKETS: lambda widths: sum(widths.count(width) ** 2 for width in set(widths)),
    OptimizationGoal.MINIMIZE_MEMORY: lambda widths: sum(width**2 for width in widths),
}
"""What a goal makes as small as it can be, given the width that every sample is padded to."""


def padded(lengths, widths):
    return [min(width for width in widths if width >= length) for length in lengths]


def brute_force(lengths, num_buckets, multiple, measure):
    """The least over all sets of edges on the grid, whether a sample is that long or not."""
    grid = range(multiple, max(lengths) + multiple, multiple)
    sets = ((*inner, grid[-1]) for k in range(num_buckets) for inner in combinations(grid[:-1], k))
    return min(measure(padded(lengths, widths)) for widths in sets)


@settings(max_examples=300)
@given(
    st.lists(st.integers(1, 14), min_size=1, max_size=30),
    st.integers(1, 5),
    st.sampled_from([1, 1, 2, 5]),
    st.sampled_from(OptimizationGoal),
)
def test_no_other_widths_are_better_by_the_goal(lengths, num_buckets, multiple, goal):
    widths = optimal_widths(np.array(lengths), num_buckets, multiple=multiple, goal=goal)
    assert len(widths) <= num_buckets
    assert list(widths) == sorted(set(widths))
    assert all(width % multiple == 0 for width in widths)
    assert widths[-1] >= max(lengths)
    assert MEASURE[goal](padded(lengths, widths)) == brute_force(lengths, num_buckets, multiple, MEASURE[goal])


@given(
    st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=60), st.integers(1, 9), st.sampled_from(OptimizationGoal)
)
@example([2**31 - 1] * 5 + [1], 2, OptimizationGoal.MINIMIZE_MEMORY)
def test_the_kernel_agrees_with_its_twin_also_where_numbers_are_huge(lengths, num_buckets, goal):
    fast = optimal_widths(np.array(lengths), num_buckets, goal=goal)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edges, "kernel", None)
        slow = optimal_widths(np.array(lengths), num_buckets, goal=goal)
    assert fast == slow


def test_numbers_beyond_64_bits_are_left_to_the_twin():
    counts = np.array([2**40, 1, 2**40], np.int64)
    widths = edges.widths_for_counts(np.array([1, 2**30, 2**31 - 1]), counts, 2, goal=OptimizationGoal.MINIMIZE_MEMORY)
    assert widths == (1, 2**31 - 1)
    assert not edges._lines(
        np.array([1, 2**31 - 1]), np.cumsum(counts[::2]), OptimizationGoal.MINIMIZE_MEMORY
    ).fit_64_bits
    assert edges.kernel is not None  # compiled here, so that the test above compares something


def test_the_kernel_refuses_columns_of_different_sizes():
    one, many = np.zeros(1, np.int64), np.zeros(100, np.int32)
    with pytest.raises(ValueError, match="not equally long"):
        edges.kernel.add_bucket(one, one, one, one, one.copy(), many)


def test_more_buckets_never_waste_more_and_enough_buckets_waste_nothing():
    lengths = np.random.default_rng(1).integers(1, 100, 1000)
    costs = [sum(padded(lengths.tolist(), optimal_widths(lengths, k))) for k in (1, 2, 4, 8, 16, 99)]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == lengths.sum()


@pytest.mark.parametrize(("num_buckets", "fill"), [(4, 0.616), (6, 0.729), (8, 0.791), (12, 0.857)])
def test_long_tailed_lengths_reach_the_fill_that_is_known_to_be_the_optimum(num_buckets, fill):
    """Median 300, sigma 0.8, clipped to 4096, on a grid of 16 tokens; the known figures are of another draw."""
    lengths = np.clip(np.random.default_rng(0).lognormal(np.log(300), 0.8, 300_000), 1, 4096).astype(np.int32)
    widths = np.array(optimal_widths(lengths, num_buckets, multiple=16))
    assert lengths.sum() / widths[np.searchsorted(widths, lengths)].sum() == pytest.approx(fill, abs=0.003)


def test_zero_buckets_and_unknown_goals_are_refused():
    with pytest.raises(OptionError, match="num_buckets must be at least 1, got 0"):
        optimal_widths(np.array([1]), 0)
    with pytest.raises(OptionError, match="multiple must be at least 1, got 0"):
        optimal_widths(np.array([1]), 1, multiple=0)
    with pytest.raises(OptionError, match="minimize_waste"):
        optimal_widths(np.array([1]), 1, goal="minimise_waste")


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
