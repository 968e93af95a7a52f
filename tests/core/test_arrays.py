import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from brim.core.arrays import begins, ceil_div, ends, gather, offsets, round_up, segment_sums

lengths = st.lists(st.integers(0, 2**31 - 1), max_size=20)


@given(lengths)
def test_running_sums_are_those_of_the_definition(lengths):
    naive = [sum(lengths[:at]) for at in range(len(lengths) + 1)]
    array = np.array(lengths, np.int32)
    assert offsets(array).tolist() == naive
    assert begins(array).tolist() == naive[:-1]
    assert ends(array).tolist() == naive[1:]
    assert offsets(array).dtype == begins(array).dtype == ends(array).dtype == np.int64


@given(st.lists(st.lists(st.integers(-9, 9), max_size=4), max_size=8), st.data())
def test_segments_are_gathered_and_summed_as_lists_are(segments, data):
    ptr = offsets(np.array([len(segment) for segment in segments], np.int64))
    values = np.array([value for segment in segments for value in segment], np.int64)
    assert segment_sums(values, ptr).tolist() == [sum(segment) for segment in segments]
    chosen = data.draw(st.lists(st.integers(-1, len(segments) - 1), max_size=8))
    places, edges = gather(ptr, np.array(chosen, np.int64))
    naive = [segments[at] if at >= 0 else [] for at in chosen]
    assert values[places].tolist() == [value for segment in naive for value in segment]
    assert np.diff(edges).tolist() == [len(segment) for segment in naive]


@given(st.integers(-(10**6), 10**6), st.integers(1, 1000))
def test_rounding_up_is_the_next_multiple(value, multiple):
    up = round_up(value, multiple)
    assert up % multiple == 0
    assert 0 <= up - value < multiple
    assert ceil_div(value, multiple) * multiple == up
    assert round_up(np.array([value]), multiple).tolist() == [up]
    assert ceil_div(np.array([value]), multiple).tolist() == [up // multiple]
