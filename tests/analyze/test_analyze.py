import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim import DataError, LengthCache, OptionError, compute_length_histogram
from brim.analyze.strategies import compare_strategies
from brim.data.ids import Ids


@given(st.lists(st.integers(0, 200), min_size=1, max_size=100), st.integers(1, 30))
def test_a_histogram_counts_every_length_once(lengths, num_bins):
    histogram = compute_length_histogram(np.array(lengths, np.int32), num_bins)
    assert 1 <= len(histogram.bins) <= num_bins
    assert [bin.count for bin in histogram.bins] == [sum(bin.low <= length <= bin.high for length in lengths) for bin in histogram.bins]
    assert sum(bin.count for bin in histogram.bins) == histogram.count == len(lengths)
    assert (histogram.shortest, histogram.longest, histogram.total) == (min(lengths), max(lengths), sum(lengths))
    for percent, length in histogram.percentiles.items():
        assert length == sorted(lengths)[max(-(-percent * len(lengths) // 100) - 1, 0)]


def test_histograms_of_nothing_are_refused():
    with pytest.raises(DataError, match="no lengths"):
        compute_length_histogram(np.array([], np.int32))
    with pytest.raises(OptionError, match="got 0"):
        compute_length_histogram(np.array([1]), 0)


def test_strategies_are_ordered_from_most_to_least_waste_on_long_tailed_lengths():
    lengths = np.clip(np.random.default_rng(0).lognormal(5.7, 1, 5000), 1, 2048).astype(np.int32)
    strategies = compare_strategies(LengthCache(Ids.rows(5000), lengths), 16384)
    waste = [strategy.fill.waste for strategy in strategies]
    assert waste == sorted(waste, reverse=True)
    assert all(strategy.fill.used == lengths.sum() for strategy in strategies)
