"""Histograms, buckets, suggestions and strategies against their naive definitions."""

from itertools import combinations
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim import (
    BatchingConfig,
    BatchPlan,
    BucketSpec,
    DataError,
    LengthCache,
    OptimizationGoal,
    OptionError,
    PackingConfig,
    analyze_bucket_efficiency,
    compute_length_histogram,
    create_efficiency_report,
    suggest_bucket_edges,
    visualize_buckets,
)
from brim.analyze import compare_strategies
from brim.analyze.advice import advise
from brim.analyze.capacity.search import Capacity, Trial
from brim.analyze.counts import LengthCounts, as_table
from brim.analyze.strategies import grouped_batches, random_batches, strategy_of
from brim.core.arrays import count_values
from brim.data.ids import Ids
from brim.plan.cost import cost

LENGTHS = st.lists(st.integers(0, 200), min_size=1, max_size=100)


def long_tailed(n, longest=2048):
    return np.clip(np.random.default_rng(0).lognormal(5.7, 1, n), 1, longest).astype(np.int32)


@pytest.mark.slow
@given(LENGTHS, st.integers(1, 30), st.none() | st.integers(1, 50))
def test_a_histogram_counts_every_length_once(lengths, num_bins, bin_width):
    histogram = compute_length_histogram(np.array(lengths, np.int32), num_bins, bin_width)
    assert len(histogram.bins) >= 1
    assert bin_width is not None or len(histogram.bins) <= num_bins
    assert [bin.count for bin in histogram.bins] == [
        sum(bin.low <= length <= bin.high for length in lengths) for bin in histogram.bins
    ]
    assert sum(bin.count for bin in histogram.bins) == histogram.count == len(lengths)
    assert (histogram.shortest, histogram.longest, histogram.total) == (min(lengths), max(lengths), sum(lengths))
    tenths = [*range(0, 1000, 7), 1000]
    for tenth, length in [(10 * percent, at) for percent, at in histogram.percentiles.items()] + [
        (tenth, histogram.percentile(tenth / 10)) for tenth in tenths
    ]:
        assert length == sorted(lengths)[max(-(-tenth * len(lengths) // 1000) - 1, 0)]


def test_histograms_of_nothing_are_refused():
    with pytest.raises(DataError, match="no lengths"):
        compute_length_histogram(np.array([], np.int32))
    with pytest.raises(OptionError, match="got 0"):
        compute_length_histogram(np.array([1]), 0)
    with pytest.raises(OptionError, match="got 0"):
        compute_length_histogram(np.array([1]), 5, 0)
    with pytest.raises(OptionError, match="between 0 and 100, got 101"):
        compute_length_histogram([1]).percentile(101)


def test_lengths_come_in_every_form_people_have_them_in():
    forms = [[3, 1, 2], (3, 1, 2), {"a": 3, "b": 1, "c": 2}, {1: 3, 2: 1, 3: 2}, np.array([3, 1, 2]), iter([3, 1, 2])]
    forms.append(LengthCache.from_lengths({"a": 3, "b": 1, "c": 2}))
    forms.append({2**70: 3, 5: 1, 6: 2})
    assert {compute_length_histogram(form).total for form in forms} == {6}
    for bad, words in [
        ([1.5], "integers"),
        ([[1]], "one row"),
        ([-1], "got -1 to -1"),
        ([2**31], "2147483648"),
        (["a"], "integers"),
    ]:
        with pytest.raises(DataError, match=words):
            as_table(bad)


@given(st.lists(st.integers(0, 5) | st.integers(2**40, 2**62), max_size=30))
def test_values_are_counted_whether_there_is_a_table_for_them_or_not(values):
    distinct, counts = count_values(np.array(values, np.int64))
    assert dict(zip(distinct.tolist(), counts.tolist(), strict=True)) == {
        value: values.count(value) for value in values
    }
    assert distinct.tolist() == sorted(set(values))


@given(LENGTHS, st.lists(st.integers(1, 150), unique=True, max_size=6))
def test_every_sample_is_in_one_bucket_or_counted_as_too_long(lengths, edges):
    spec = BucketSpec(edges=tuple(sorted(edges)), overflow_max=160)
    analysis = analyze_bucket_efficiency(lengths, spec)
    widths = [min((width for width in spec.widths if width >= length), default=None) for length in lengths]
    for width, bucket in zip(spec.widths, analysis.buckets, strict=True):
        inside = [length for length, padded in zip(lengths, widths, strict=True) if padded == width]
        assert (bucket.sample_count, bucket.total_tokens, bucket.padded_tokens) == (
            len(inside),
            sum(inside),
            len(inside) * width,
        )
    assert analysis.too_long == widths.count(None)
    assert analysis.fill.slots == sum(width for width in widths if width is not None)
    assert analysis.efficiency <= 1
    for goal, power in ((OptimizationGoal.MINIMIZE_WASTE, 1), (OptimizationGoal.MINIMIZE_MEMORY, 2)):
        assert analysis.cost(goal) == sum(width**power for width in widths if width is not None)
    assert analysis.cost(OptimizationGoal.BALANCE_BUCKETS) == sum(widths.count(width) ** 2 for width in spec.widths)


@settings(max_examples=200)
@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=20),
    st.integers(1, 4),
    st.sampled_from(OptimizationGoal),
    st.none() | st.integers(3, 12),
)
def test_no_edges_beat_a_suggestion_by_its_goal(lengths, num_buckets, goal, max_length):
    kept = [length for length in lengths if max_length is None or length <= max_length]
    if not kept:
        with pytest.raises(DataError, match="short enough"):
            suggest_bucket_edges(lengths, num_buckets, goal, max_length)
        return
    suggestion = suggest_bucket_edges(lengths, num_buckets, goal, max_length)
    assert suggestion.num_buckets <= num_buckets
    assert suggestion.analysis.too_long == len(lengths) - len(kept)
    rivals = [
        BucketSpec(edges=inner, overflow_max=max(kept))
        for k in range(num_buckets)
        for inner in combinations(range(1, max(kept)), k)
    ]
    assert suggestion.cost == min(analyze_bucket_efficiency(kept, rival).cost(goal) for rival in rivals)
    assert all(
        suggestion.cost <= suggest_bucket_edges(kept, num_buckets, other).analysis.cost(goal)
        for other in OptimizationGoal
    )


def test_a_suggestion_is_what_the_planner_chooses_by_itself():
    lengths = long_tailed(3000)
    suggestion = suggest_bucket_edges(lengths, 6, pad_to_multiple=16)
    plan = BatchPlan.build(
        as_table(lengths), BatchingConfig.predictable(num_buckets=6, pad_to_multiple=16, token_budget=8192)
    )
    assert plan.buckets == suggestion.bucket_spec
    assert all(width % 16 == 0 for width in suggestion.bucket_spec.widths)


def test_goals_go_by_their_names_and_unknown_ones_are_refused():
    assert suggest_bucket_edges([1, 2, 3], 2, "balance_buckets").goal is OptimizationGoal.BALANCE_BUCKETS
    with pytest.raises(OptionError, match="goal"):
        suggest_bucket_edges([1], 2, "speed")
    with pytest.raises(OptionError, match="at least 16, got 8"):
        suggest_bucket_edges([1], 2, max_length=8, pad_to_multiple=16)


def naive(lengths, batch_size):
    batches = [lengths[start : start + batch_size] for start in range(0, len(lengths), batch_size)]
    widths = [max(*batch, 1) for batch in batches]
    shapes = {(len(batch), width) for batch, width in zip(batches, widths, strict=True)}
    slots = [len(batch) * width for batch, width in zip(batches, widths, strict=True)]
    return sum(slots), max(slots), len(batches), len(shapes)


@given(LENGTHS, st.integers(1, 20))
def test_random_batches_pad_to_their_longest(lengths, batch_size):
    equal = [max(lengths)] * len(lengths)  # whatever the order
    found = random_batches(np.array(equal, np.int32)[:, None], batch_size)
    assert (found.fill.slots, found.peak, found.batches, found.shapes) == naive(equal, batch_size)
    found = random_batches(np.array(lengths, np.int32)[:, None], batch_size)
    assert found.fill.used == sum(lengths)
    assert sum(np.maximum(lengths, 1)) <= found.fill.slots <= len(lengths) * max(*lengths, 1)


@given(LENGTHS, st.integers(1, 20))
def test_grouping_by_length_is_at_best_sorting_and_at_worst_random_order(lengths, batch_size):
    column = np.array(lengths, np.int32)
    found, random = (batches(column[:, None], batch_size) for batches in (grouped_batches, random_batches))
    slots, _, batches, _ = naive(sorted(lengths, reverse=True), batch_size)
    assert found.fill.used == sum(lengths)
    assert found.batches == batches
    if len(lengths) % batch_size == 0:  # a short last batch may be lucky in any order
        assert slots <= found.fill.slots <= random.fill.slots


@given(LENGTHS, st.sampled_from(["windows", "buckets", "packed"]))
def test_a_planned_epoch_costs_what_its_microbatches_do(lengths, kind):
    config = {
        "windows": BatchingConfig(token_budget=300),
        "buckets": BatchingConfig.predictable(num_buckets=3, token_budget=300),
        "packed": BatchingConfig(token_budget=300, packing=PackingConfig(max_length=250)),
    }[kind]
    plan = BatchPlan.build(as_table(lengths), config)
    found = strategy_of("x", plan.columns(0))
    specs = list(plan.get_epoch(0))
    assert found.fill == sum((spec.fill for spec in specs), type(found.fill)())
    assert found.batches == len(specs)
    assert found.shapes == len({spec.shape for spec in specs})
    assert found.peak == max(spec.padded_token_count for spec in specs)
    attention = [
        sum(length**2 for length in spec.lengths.tolist()) if kind == "packed" else spec.batch_size * spec.max_len**2
        for spec in specs
    ]
    assert found.attention == sum(attention)
    assert found.cost == sum(cost(np.array([spec.padded_token_count for spec in specs]), np.array(attention)))


def test_strategies_are_ordered_from_most_to_least_waste_on_long_tailed_lengths():
    lengths = long_tailed(5000)
    strategies = compare_strategies(LengthCache(Ids.rows(5000), lengths), 16384)
    waste = [strategy.fill.waste for strategy in strategies if strategy.name != "grouped by length"]
    assert waste == sorted(waste, reverse=True)
    assert all(strategy.fill.used == lengths.sum() for strategy in strategies)
    assert all(strategy.peak <= 16384 for strategy in strategies if strategy.options)
    assert [strategy.speedup(strategies[0]) for strategy in strategies[:1]] == [1.0]


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=40),
    st.integers(8, 64),
    st.sampled_from([1, 4, 8]),
    st.none() | st.integers(2, 80),
)
def test_all_strategies_hold_the_same_tokens_however_long_samples_are(lengths, budget, multiple, pack_length):
    """Longer ones count as cut to what fits, in all of them."""
    limit = budget // multiple * multiple
    pack_length = None if pack_length is None else min(pack_length, limit)
    if pack_length is not None and pack_length < limit < max(lengths):
        with pytest.raises(OptionError, match="cut to"):
            compare_strategies(as_table(lengths), budget, pad_to_multiple=multiple, pack_length=pack_length)
        return
    strategies = compare_strategies(as_table(lengths), budget, pad_to_multiple=multiple, pack_length=pack_length)
    assert {strategy.fill.used for strategy in strategies} == {sum(min(length, limit) for length in lengths)}
    assert all(strategy.peak <= budget for strategy in strategies if strategy.options)


def test_the_options_of_a_strategy_build_it(tmp_path):
    """What the table says to type gives what the table says."""
    from click.testing import CliRunner

    from brim.cli.plan.build import build

    table = LengthCache(Ids.rows(2000), long_tailed(2000))
    table.save(tmp_path / "lengths.brim")
    cases = [
        {"token_budget": 4096, "buckets": BucketSpec(edges=(100, 500), overflow_max=2048)},
        {"token_budget": 4096, "pack_length": 1000},
        {"token_budget": 1000, "pad_to_multiple": 16},  # below the longest
        {"token_budget": 4096, "buckets": BucketSpec(edges=(100,), overflow_max=700), "pad_to_multiple": 8},
        {"token_budget": 4096, "buckets": BucketSpec(edges=(), overflow_max=3000)},
        {"token_budget": 700, "buckets": BucketSpec(edges=(), overflow_max=3000), "pad_to_multiple": 16},
    ]
    for case in cases:
        for strategy in compare_strategies(table, **case):
            if strategy.options:
                words = ["-l", str(tmp_path / "lengths.brim"), "-o", str(tmp_path / "plan"), *strategy.options.split()]
                done = CliRunner().invoke(build, words)
                assert done.exit_code == 0, done.output
                built = strategy_of(strategy.name, BatchPlan.load(tmp_path / "plan").columns(0), strategy.options)
                assert built == strategy


def test_a_report_says_what_to_choose_and_why():
    lengths = long_tailed(4000)
    report = create_efficiency_report(lengths, BucketSpec(edges=(128, 256, 512), overflow_max=2048), token_budget=16384)
    assert report.advice.count(". ") == 0
    assert "brim plan build -b 16384" in report.advice
    assert any("the best 4 fill" in note for note in report.notes)
    best = report.suggestions[OptimizationGoal.MINIMIZE_WASTE]
    assert best.analysis.efficiency > report.analysis.efficiency
    names = [strategy.name for strategy in report.strategies]
    assert names[1:] == [
        "grouped by length",
        "4 buckets now",
        "4 optimal buckets",
        "sorted windows",
        "packed rows of 2048",
    ]
    text = report.to_ascii()
    assert report.advice in text
    assert all(line.isprintable() and len(line) <= 80 for line in text.splitlines()[:-3])
    assert report.to_dict()["strategies"][0]["speedup"] == 1.0


def test_a_report_does_not_promise_gains_where_there_are_none():
    assert "No way of batching gains" in create_efficiency_report([50] * 100).advice
    assert create_efficiency_report([1]).strategies[0].fill.ratio == 1.0


def test_a_report_may_start_from_a_histogram():
    lengths = long_tailed(400)
    report = create_efficiency_report(compute_length_histogram(lengths), token_budget=4096)
    assert report.histogram.total == lengths.sum()
    assert report.strategies[-1].fill.used == lengths.sum()


def test_a_report_counts_what_is_too_long_instead_of_failing():
    report = create_efficiency_report(
        [10] * 99 + [5000], BucketSpec(edges=(16, 64), overflow_max=1024), token_budget=4096
    )
    assert report.analysis.too_long == 1
    assert report.analysis.efficiency <= 1
    assert any("1 sample is longer than 1,024" in note and "5,000" in note for note in report.notes)
    assert any("empty" in note for note in report.notes)
    with pytest.raises(OptionError, match="at least 1, got 0"):
        create_efficiency_report([1], token_budget=0)


def test_a_measured_machine_turns_costs_into_seconds_and_bytes():
    """Where a step costs a second whatever it holds, only the number of steps counts."""
    trials = tuple(Trial(size=size, seconds=1.0, peak=1_000_000 + 10 * size) for size in (1024, 2048, 4096))
    capacity = Capacity(unit="tokens", trials=trials)
    lengths = long_tailed(2000)
    plain = create_efficiency_report(lengths, token_budget=8192)
    report = create_efficiency_report(lengths, token_budget=8192, capacity=capacity)
    assert report.strategies == plain.strategies
    before = report.strategies[0]
    for strategy in report.strategies:
        assert strategy.price(capacity) == pytest.approx(strategy.batches, rel=1e-6)
        assert strategy.speedup(before, capacity) == pytest.approx(before.batches / strategy.batches)
    row = report.to_dict()["strategies"][-1]
    assert row["bytes"] == pytest.approx(1_000_000 + 10 * row["peak"])
    assert "MB" in report.table()[0][5]
    assert any("plan with -b 4096." in note for note in report.notes)
    assert report.to_dict()["measured"] == {}
    assert "No way of batching gains" in report.advice  # as many steps as before


@pytest.mark.slow
def test_lengths_at_the_edge_of_32_bits_are_no_trouble():
    report = create_efficiency_report([2**31 - 1, 1, 1, 5], token_budget=2**31 - 1)
    assert all(strategy.attention > 0 and strategy.cost > 0 for strategy in report.strategies)
    with pytest.raises(OptionError, match="more than anyone can read"):
        compute_length_histogram([1, 2**31 - 1], bin_width=1)
    for option in ("token_budget", "batch_size", "pack_length", "num_buckets", "pad_to_multiple"):
        with pytest.raises(OptionError, match=f"{option} must be at most 2147483647"):
            create_efficiency_report([1], **{"token_budget": 100, option: 10**20})
    with pytest.raises(OptionError, match="edges must be at most"):
        BucketSpec(edges=(2**31,), overflow_max=2**32)


def test_the_budget_may_be_below_the_shortest_sample():
    report = create_efficiency_report([50, 60, 70], token_budget=40)
    assert any("3 samples are longer than 40" in note for note in report.notes)
    assert all(suggestion.analysis.too_long == 0 for suggestion in report.suggestions.values())


def test_suggestions_of_a_report_hold_every_sample_also_on_a_grid():
    lengths = long_tailed(500, 927)
    report = create_efficiency_report(
        lengths, BucketSpec.covering((128, 256, 512), 927), token_budget=4096, pad_to_multiple=16
    )
    assert all(suggestion.analysis.too_long == 0 for suggestion in report.suggestions.values())
    assert report.strategies[0].fill.slots % 16 == 0


def test_optimal_buckets_are_advised_in_words_that_are_about_them():
    """Two lengths: two buckets pad nothing, and windows and packed rows cannot do better."""
    strategies = compare_strategies(as_table([100] * 50 + [900] * 2), 1000, num_buckets=2)
    assert "keep the samples of a row apart pays" not in advise(strategies)


def test_packing_is_advised_where_there_are_too_few_samples_to_sort():
    report = create_efficiency_report(long_tailed(300), token_budget=4096)
    assert report.advice.startswith("Choose packed rows of 2048")
    assert "pays" in report.advice


def test_things_show_themselves_in_a_notebook_as_closed_and_escaped_html():
    from html.parser import HTMLParser

    class Closed(HTMLParser):
        def __init__(self):
            super().__init__()
            self.open = []

        def handle_starttag(self, tag, attrs):
            self.open.append(tag)

        def handle_endtag(self, tag):
            assert self.open.pop() == tag

    spec = BucketSpec(edges=(128, 256), overflow_max=512)
    report = create_efficiency_report(long_tailed(500, 600), spec)
    plan = BatchPlan.build(as_table([1, 2, 3]))
    for shown in (report, report.histogram, report.analysis, report.suggestions[OptimizationGoal.MINIMIZE_WASTE], plan):
        parser = Closed()
        parser.feed(shown._repr_html_())
        assert parser.open == []
    from brim.core.display import facts_html, table_html

    assert "<b>" not in table_html(["<b>"], [["<b>"]], title="<b>") + facts_html({"<b>": "<b>"}, title="<b>")


def test_buckets_are_drawn_into_the_histogram():
    drawn = visualize_buckets([*range(1, 100)], BucketSpec(edges=(10, 50), overflow_max=99), width=30)
    assert "bucket ends at 10" in drawn
    assert drawn.count("█") > 30
    assert "of waste" in drawn


def test_ten_million_lengths_are_counted_once_and_analysed_as_counts():
    """How long it takes is measured in benchmarks/analysis.py; here only that nothing depends on the samples any
    more.
    """
    lengths = Random(0).choices(range(1, 3000), k=20_000)
    counts = LengthCounts.of(lengths)
    many = LengthCounts(counts.lengths, counts.counts * 500)
    assert compute_length_histogram(many).count == 10_000_000
    assert suggest_bucket_edges(many, 8).edges == suggest_bucket_edges(lengths, 8).edges
