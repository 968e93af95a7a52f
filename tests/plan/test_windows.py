"""Sorted windows: how many there are, what is in them, how they are cut, and who meets whom again."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.plans import configs, lognormal, tables

from brim import BatchingConfig, BatchPlan, LengthCache, PackingConfig
from brim.core.arrays import take_segments
from brim.core.rng import raw_bits, raw_blocks
from brim.data.ids import Ids
from brim.plan.company import meet_again
from brim.plan.grouping import cutting, windows
from brim.plan.grouping.cutting import EXTRA, FEW, PARTS, cut, cut_padded, split_largest
from brim.plan.grouping.group import EVERY_ROW, group_sorted
from brim.plan.grouping.windows import SMALLEST, Limits, Windows, count_windows, sort_windows

WIDTHS = st.lists(st.integers(1, 60), min_size=1, max_size=120).map(lambda widths: np.array(widths, np.int32))
LIMITS = st.builds(Limits, st.integers(60, 400), st.sampled_from([1, 3, EVERY_ROW]))


def plain(width, limits):
    """The definition of a cut: from the wide end, as many rows as the budget allows at the width of the first."""
    starts, at = [], 0
    while at < len(width):
        starts.append(at)
        at += min(max(limits.budget // int(width[at]), 1), limits.rows)
    return starts


def one_window(width):
    width = np.sort(width)[::-1].copy()
    return Windows(np.arange(len(width), dtype=np.int32), width, np.array([0, len(width)]))


@given(WIDTHS, st.none() | st.integers(1, 3), st.lists(st.integers(1, 9), min_size=3, max_size=3), st.integers(0, 3))
def test_windows_hold_every_row_once_sorted_and_never_mix_kinds(width, kinds, counts, epoch):
    kind = None if kinds is None else (np.arange(len(width)) % kinds).astype(np.int32)
    found = sort_windows(width, kind, np.array(counts), seed=1, epoch=epoch)
    assert sorted(found.order.tolist()) == list(range(len(width)))
    assert np.array_equal(found.width, width[found.order])
    assert (found.bounds[0], found.bounds[-1]) == (0, len(width))
    assert len(found.bounds) - 1 <= sum(counts[: kinds or 1])
    for start, end in pairwise(found.bounds.tolist()):
        assert end > start
        assert np.all(np.diff(found.width[start:end]) <= 0)
        assert kind is None or len(set(kind[found.order[start:end]].tolist())) == 1


@given(WIDTHS, st.none() | st.integers(1, 3), st.integers(1, 40), st.integers(0, 3))
def test_windows_of_a_size_that_was_asked_for_differ_by_one_row_at_most(width, kinds, size, epoch):
    kind = None if kinds is None else (np.arange(len(width)) % kinds).astype(np.int32)
    counts = count_windows(width, kind, Limits(400, EVERY_ROW), window=size, padding=0.01)
    found = sort_windows(width, kind, counts, equal=True, seed=1, epoch=epoch)
    assert sorted(found.order.tolist()) == list(range(len(width)))
    sizes = np.diff(found.bounds)
    assert sizes.max() <= size
    for number in range(kinds or 1):
        mine = sizes if kind is None else sizes[kind[found.order[found.bounds[:-1]]] == number]
        assert len(mine) == 0 or np.ptp(mine) <= 1
    other = sort_windows(width, kind, counts, equal=True, seed=1, epoch=epoch + 1)
    assert len(width) < 60 or size < 9 or not np.array_equal(found.order, other.order)


@given(WIDTHS, st.integers(0, 3))
def test_rows_that_need_more_than_64_bits_are_sorted_in_the_same_way(width, seed):
    """Widths of up to 2**31 and a window for every row do not fit into one word with a row number."""
    counts = np.array([1 << 20])
    with pytest.MonkeyPatch.context() as patch:
        narrow = sort_windows(width, None, counts, seed=seed, epoch=0)
        patch.setattr(windows.Bits, "of", classmethod(lambda cls, *_: cls(np.uint64(0), -1, np.uint64(0))))
        wide = sort_windows(width, None, counts, seed=seed, epoch=0)
    assert all(np.array_equal(one, other) for one, other in zip(narrow, wide, strict=True))
    huge = np.array([2**31 - 1, 1, 2**31 - 1], np.int32)
    found = sort_windows(huge, None, np.array([2**31 - 1]), seed=seed, epoch=0)
    assert sorted(found.order.tolist()) == [0, 1, 2]
    assert np.array_equal(found.width, huge[found.order])


def test_equal_widths_come_in_random_order_and_windows_are_drawn_uniformly():
    width = np.full(20_000, 7, np.int32)
    found = sort_windows(width, None, np.array([10]), seed=0, epoch=0)
    sizes = np.diff(found.bounds)
    assert abs(sizes - 2000).max() < 5 * 2000**0.5
    inside = found.order[: sizes[0]].astype(float)
    assert abs(np.corrcoef(inside, np.arange(len(inside)))[0, 1]) < 5 / len(inside) ** 0.5


@given(st.integers(0, 500), st.integers(1, 100), st.integers(0, 2))
def test_random_words_are_the_same_in_blocks(n, size, epoch):
    blocks = list(raw_blocks(n, size, seed=3, purpose="x", epoch=epoch))
    assert [start for start, _ in blocks] == list(range(0, n, size))
    whole = np.concatenate([np.empty(0, np.uint64), *(words for _, words in blocks)])
    assert np.array_equal(whole, raw_bits(n, seed=3, purpose="x", epoch=epoch))


@given(st.lists(st.integers(0, 5), max_size=30), st.data())
def test_segments_are_taken_as_slices_one_behind_the_other(sizes, data):
    ptr = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64)
    values = np.arange(ptr[-1]) * 3
    segments = data.draw(st.lists(st.integers(-1, len(sizes) - 1), max_size=30)) if sizes else []
    taken, edges = take_segments(values, ptr, np.array(segments, np.int64))
    slices = [values[ptr[at] : ptr[at + 1]].tolist() if at >= 0 else [] for at in segments]
    assert taken.tolist() == [value for one in slices for value in one]
    assert np.diff(edges).tolist() == [len(one) for one in slices]


def test_segments_are_taken_in_blocks_of_any_number(monkeypatch):
    ptr = np.arange(0, 3001, 3)
    order = np.arange(1000)[::-1].copy()
    whole = take_segments(np.arange(3000), ptr, order)
    monkeypatch.setattr("brim.core.arrays.BLOCK", 1)
    assert all(np.array_equal(a, b) for a, b in zip(take_segments(np.arange(3000), ptr, order), whole, strict=True))


@given(WIDTHS, LIMITS)
def test_a_window_is_cut_where_the_budget_ends(width, limits):
    found = one_window(width)
    assert cut(found, limits).tolist() == plain(found.width, limits)
    assert cutting._cut_python(found, limits) == plain(found.width, limits)
    groups = group_sorted(width, budget=limits.budget, max_rows=limits.rows)
    assert groups.ptr.tolist() == [*plain(found.width, limits), len(width)]
    assert np.array_equal(width[groups.order], found.width)


def cheapest(width, limits, price):
    """The definition of a cut at a price: of all cuts that the limits allow, one that costs least."""
    cost, before = [0, *[float("inf")] * len(width)], [0] * (len(width) + 1)
    for at, wide in enumerate(width.tolist()):
        rows = min(max(limits.budget // wide, 1), limits.rows, len(width) - at)
        for end in range(at + 1, at + rows + 1):
            if cost[at] + (end - at) * wide + price < cost[end]:
                cost[end], before[end] = cost[at] + (end - at) * wide + price, at
    starts, at = [], len(width)
    while at:
        at = before[at]
        starts.append(at)
    return starts[::-1]


def wasted(width, starts):
    return int((np.diff(starts, append=len(width)) * width[starts]).sum() - width.sum(dtype=np.int64))


SKEWED = st.lists(st.integers(1, 10), min_size=1, max_size=120).map(
    lambda each: np.array(each, np.int32) ** 3 // 20 + 1
)


@given(WIDTHS | SKEWED, LIMITS, st.integers(1, 500))
def test_a_window_is_cut_at_a_price_as_the_definition_does(width, limits, price):
    width = np.sort(width)[::-1].copy()
    for walk in (cutting._cut_priced_python, getattr(cutting.kernel, "cut_priced", cutting._cut_priced_python)):
        starts = np.empty(len(width), np.int64)
        count = walk(width, *limits, price, starts)
        assert starts[:count].tolist() == cheapest(width, limits, price)


@pytest.mark.skipif(cutting.kernel is None, reason="needs the compiled kernel")
def test_the_kernel_refuses_widths_and_room_that_cannot_be_cut():
    cut_priced, room = cutting.kernel.cut_priced, np.empty(3, np.int64)
    for widths, price in (([1, 2], 1), ([2, 0], 1), ([2, 1], 0)):
        with pytest.raises(ValueError, match="widths must be positive"):
            cut_priced(np.array(widths, np.int32), 10, 5, price, room)
    assert cut_priced(np.full(10, 5, np.int32), 5, 5, 1, room) == -1
    assert cut_priced(np.empty(0, np.int32), 5, 5, 1, room) == 0


@given(st.lists(WIDTHS | SKEWED, min_size=1, max_size=4), LIMITS, st.sampled_from([0.0, 0.01, 0.1, 0.99]))
def test_cutting_at_a_price_lowers_padding_keeps_the_limits_and_adds_few_microbatches(parts, limits, padding):
    width = np.concatenate([np.sort(part)[::-1] for part in parts]).astype(np.int32)
    bounds = np.cumsum([0, *map(len, parts)])
    found = Windows(np.arange(len(width), dtype=np.int32), width, bounds)
    full, starts = cut(found, limits), cut_padded(found, limits, padding)
    assert set(bounds[:-1].tolist()) <= set(starts.tolist())
    rows = np.diff(starts, append=len(width))
    assert np.all((rows > 0) & (rows <= limits.rows) & ((rows * width[starts] <= limits.budget) | (rows == 1)))
    lowest = max(limits.budget // PARTS[-1], 1)
    for begin, end in pairwise(bounds.tolist()):
        before, after = ([at - begin for at in cuts.tolist() if begin <= at < end] for cuts in (full, starts))
        added = len(after) - len(before)
        assert added <= len(before) // EXTRA
        assert added <= len(before) // FEW or len(before) >= SMALLEST
        assert wasted(width[begin:end], before) - wasted(width[begin:end], after) >= added * lowest
    if wasted(width, full) <= padding * (wasted(width, full) + int(width.sum())):
        assert np.array_equal(starts, full)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20), st.integers(0, 60))
def test_halving_microbatches_adds_as_many_as_asked_while_there_are_rows(sizes, more):
    starts, total = np.cumsum([0, *sizes])[:-1], sum(sizes)
    halved = split_largest(starts, total, np.array(sizes) * 5, more)
    assert len(halved) == min(len(sizes) + more, total)
    assert set(starts.tolist()) <= set(halved.tolist())
    assert np.all(np.diff(halved, append=total) > 0)


@pytest.mark.parametrize("median", [20, 300, 3000])
@pytest.mark.parametrize("microbatches", [20, 205, 600, 3200])
def test_windows_waste_little_and_mix_well_for_any_lengths(median, microbatches):
    """The promise of the default: at most 1.2% padding from 200 microbatches on, and at most 5% of the pairs that meet
    again from 3,000 on.
    """
    longest = 2048 if median < 1000 else 16384
    lengths = np.clip(lognormal(1 << 20, longest=2**30).astype(np.int64) * median // 300, 1, longest).astype(np.int32)
    lengths = lengths[: np.searchsorted(np.cumsum(lengths), microbatches * 16384)]
    plan = BatchPlan.build(
        LengthCache(Ids.rows(len(lengths)), lengths), BatchingConfig(token_budget=16384), num_epochs=2
    )
    columns = plan.columns(0)
    padding = 1 - columns.tokens.sum() / columns.slots.sum()
    if len(columns) >= 200:
        assert padding <= 0.012
    else:
        found = one_window(lengths)
        starts = cut(found, Limits(16384, EVERY_ROW))
        slots = (np.diff(starts, append=len(lengths)) * found.width[starts]).sum()
        assert padding <= 1.3 * (1 - lengths.sum() / slots)
    if len(columns) >= 3000:
        assert meet_again(columns, plan.columns(1), len(plan.units)) <= 0.05


def pareto(n):
    return (2 * (1 - np.random.default_rng(0).random(n))) ** (-1 / 1.5)


def exponential_normal(n):
    return np.exp(np.random.default_rng(0).standard_normal(n))


@pytest.mark.parametrize(
    ("shape", "median", "budget", "microbatches"),
    [
        (pareto, 60, 131072, 205),
        (exponential_normal, 300, 131072, 2700),
        (exponential_normal, 300, 131072, 3010),
        (pareto, 150, 65536, 2900),
    ],
)
def test_long_tails_keep_the_promise_with_a_few_more_microbatches(shape, median, budget, microbatches):
    lengths = np.clip(np.rint(median * shape(1 << 20)), 1, budget).astype(np.int32)
    lengths = lengths[: np.searchsorted(np.cumsum(lengths, dtype=np.int64), microbatches * budget)]
    table, config = LengthCache(Ids.rows(len(lengths)), lengths), BatchingConfig(token_budget=budget)
    plan = BatchPlan.build(table, config, num_epochs=2)
    columns = plan.columns(0)
    full = plain(np.sort(lengths)[::-1], Limits(budget, EVERY_ROW))
    assert 1 - columns.tokens.sum() / columns.slots.sum() <= 0.012
    assert len(columns) <= len(full) * (1 + 1 / EXTRA) + 20  # the last microbatch of each window is not full
    if len(columns) >= 3000:
        assert meet_again(columns, plan.columns(1), len(plan.units)) <= 0.05


def test_more_padding_buys_better_mixing_and_none_buys_one_window():
    table = LengthCache(Ids.rows(50_000), lognormal(50_000))
    found = []
    for padding in (0.0, 0.01, 0.05):
        plan = BatchPlan.build(table, BatchingConfig(token_budget=16384, window_padding=padding), num_epochs=2)
        found.append((plan.get_epoch(0).fill.waste, meet_again(plan.columns(0), plan.columns(1), len(plan.units))))
    assert found[0][0] < found[1][0] < found[2][0]
    assert found[0][1] > found[1][1] > found[2][1]


def test_windows_get_smaller_down_to_a_few_microbatches_as_more_padding_is_allowed():
    table = LengthCache(Ids.rows(4_000), lognormal(4_000))
    paddings = []
    for padding in (0.01, 0.05, 0.2, 0.5):
        plan = BatchPlan.build(table, BatchingConfig(token_budget=4_096, window_padding=padding), num_epochs=2)
        paddings.append(plan.get_epoch(0).fill.waste)
        assert paddings[-1] <= 1.2 * padding
    assert paddings == sorted(paddings)
    assert paddings[-1] > 5 * paddings[0]


def test_rows_of_one_width_need_no_windows():
    table = LengthCache(Ids.rows(2_000), lognormal(2_000))
    for options in ({"num_buckets": 4, "pad_policy": "pad_to_bucket"}, {"packing": PackingConfig(max_length=2_048)}):
        plans = [BatchPlan.build(table, BatchingConfig(token_budget=8_192, window=w, **options)) for w in (None, 4)]
        assert plans[0].columns(0).fingerprint == plans[1].columns(0).fingerprint


def test_windows_are_not_smaller_than_they_should_be_and_given_sizes_are_kept():
    width = lognormal(100_000)
    limits = Limits(16384, EVERY_ROW)
    microbatches = len(plain(np.sort(width)[::-1], limits))
    for recut in (False, True):
        (many,) = count_windows(width, None, limits, window=None, padding=0.9, smallest=SMALLEST, recut=recut)
        assert many == microbatches // SMALLEST
    assert count_windows(width, None, limits, window=None, padding=0).tolist() == [1]
    assert count_windows(width, None, limits, window=999, padding=0.01).tolist() == [101]
    kind = (np.arange(len(width)) % 2 * 2).astype(np.int32)  # no row is of kind 1
    assert count_windows(width, kind, limits, window=999, padding=0.01).tolist() == [51, 1, 51]
    none = np.empty(0, np.int32)
    assert count_windows(none, None, limits, window=None, padding=0.01).tolist() == [1]


@given(tables(), configs(), st.booleans())
def test_pairs_that_meet_again_are_counted_as_the_definition_does(table, config, drop_last):
    config = BatchingConfig.from_dict({**config.to_dict(), "drop_last": drop_last})
    plan = BatchPlan.build(table, config, num_epochs=2)

    def pairs(epoch):
        columns = plan.columns(epoch)
        ptr = columns.row_ptr if columns.seq_ptr is None else columns.seq_ptr[columns.row_ptr]
        return {
            frozenset(pair)
            for start, end in pairwise(ptr.tolist())
            for pair in combinations(columns.unit[start:end].tolist(), 2)
        }

    first, second = pairs(0), pairs(1)
    expected = len(first & second) / len(first) if first else 0.0
    assert meet_again(plan.columns(0), plan.columns(1), len(plan.units)) == pytest.approx(expected)
