"""The columns of a plan against a loop over its microbatches, which is what they stand for."""

from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.reports import KINDS, plan, plans

from brim import Fill, OptionError
from brim.analyze.plan_report.view import METRICS, create_plan_view, imbalance, order_stats, waste_stats

worlds = st.lists(st.integers(1, 5), min_size=1, max_size=2, unique=True)


def attention(microbatch):
    if microbatch.packed:
        return sum(length * length for length in microbatch.lengths.tolist())
    return microbatch.batch_size * microbatch.max_len**2


def cost_of(plan):
    """Return the function that says what a microbatch of this plan costs."""
    scale = plan.config.cost_model.attention_scale
    return lambda microbatch: microbatch.padded_token_count + (attention(microbatch) // scale if scale else 0)


def in_global_order(plan, epoch, ranks):
    """The microbatches of all ranks, round by round, with their rank and the number of the round."""
    shares = [list(plan.shard(rank, ranks).get_epoch(epoch)) for rank in range(ranks)]
    rounds = enumerate(zip(*shares, strict=True))
    return [(number, rank, microbatch) for number, taken in rounds for rank, microbatch in enumerate(taken)]


@given(plans(), worlds)
def test_every_place_holds_the_numbers_of_the_microbatch_that_a_rank_takes(plan, sizes):
    view = create_plan_view(plan, sizes)
    assert view.world_sizes == tuple(sizes)
    for epoch in view.epochs:
        for ranks in sizes:
            dealt = epoch.dealt[ranks]
            expected = in_global_order(plan, epoch.epoch, ranks)
            assert dealt.places.shape == (len(expected) // ranks, ranks)
            for number, rank, microbatch in expected:
                at = dealt.places[number, rank]
                assert (at < 0) == microbatch.is_null
                if microbatch.is_null:
                    continue
                found = [
                    int(column[at])
                    for column in (epoch.rows, epoch.width, epoch.tokens, epoch.slots, epoch.padding, epoch.sequences)
                ]
                fill = microbatch.fill
                padding = fill.slots - fill.used
                assert found == [
                    microbatch.batch_size,
                    microbatch.max_len,
                    fill.used,
                    fill.slots,
                    padding,
                    len(microbatch.samples),
                ]
                assert (epoch.attention[at], epoch.cost[at]) == (attention(microbatch), cost_of(plan)(microbatch))
                assert epoch.bucket[at] == microbatch.bucket_id
                if epoch.group is not None:
                    assert plan.table.group_names[epoch.group[at]] == microbatch.group


@given(plans(), st.integers(1, 5))
def test_sums_over_an_epoch_are_those_of_its_microbatches(plan, ranks):
    view = create_plan_view(plan, [ranks])
    epoch = view.epochs[0]
    dealt, order = epoch.dealt[ranks], epoch.dealt[ranks].order()
    real = [microbatch for _, _, microbatch in in_global_order(plan, 0, ranks) if not microbatch.is_null]
    assert len(order) == len(real)
    assert epoch.fill(order) == sum((microbatch.fill for microbatch in real), Fill())
    shapes, times = epoch.shapes(order)
    assert {tuple(shape): count for shape, count in zip(shapes.tolist(), times.tolist(), strict=True)} == Counter(
        microbatch.shape for microbatch in real
    )
    sums = view.band_sums(epoch, order)
    for at, band in enumerate(view.bands):
        if view.bucketed:
            inside = [microbatch for microbatch in real if microbatch.bucket_id == at]
        else:
            inside = [microbatch for microbatch in real if band.low <= microbatch.max_len <= band.high]
        assert sums["microbatches"][at] == len(inside)
        assert sums["sequences"][at] == sum(len(microbatch.samples) for microbatch in inside)
        assert sums["tokens"][at] == sum(microbatch.fill.used for microbatch in inside)
        assert sums["slots"][at] == sum(microbatch.fill.slots for microbatch in inside)
    assert sum(sums["microbatches"]) == len(real)
    assert dealt.last_step == len(real) - max(dealt.deal.steps - 1, 0) * dealt.deal.step_size


def pearson(left, right):
    if len(left) < 3 or len(set(left)) == 1 or len(set(right)) == 1:
        return float("nan")
    return float(np.corrcoef(left, right)[0, 1])


def ranked(values):
    ascending = sorted(values)
    return [np.mean([place for place, other in enumerate(ascending) if other == value]) for value in values]


@given(plans(), st.integers(1, 4), st.sampled_from(METRICS), st.booleans())
def test_statistics_of_an_order_are_those_of_their_definitions(plan, ranks, metric, alone):
    """Also for a single rank, which sees every other microbatch only."""
    epoch = create_plan_view(plan, [ranks]).epochs[0]
    dealt, rank = epoch.dealt[ranks], ranks - 1 if alone else None
    value = {"width": lambda m: m.max_len, "tokens": lambda m: m.token_count, "cost": cost_of(plan)}[metric]
    taken = [
        (number, value(microbatch))
        for number, of, microbatch in in_global_order(plan, 0, ranks)
        if not microbatch.is_null and rank in (None, of)
    ]
    values = [value for _, value in taken]
    by_step = defaultdict(list)
    for number, value in taken:
        by_step[number // dealt.deal.rounds_per_step].append(value)
    means = [float(np.mean(by_step[step])) for step in sorted(by_step)]
    stats = order_stats(epoch.column(metric), dealt, rank)
    if not values:
        assert np.isnan([stats.lag, stats.step_lag, stats.trend, stats.tail]).all()
        return
    last = values[-max(len(values) // 100, 1) :]
    tail = np.mean(last) / np.mean(values) if sum(values) else float("nan")
    expected = [
        pearson(values[:-1], values[1:]),
        pearson(means[:-1], means[1:]),
        pearson(ranked(values), range(len(values))),
        tail,
    ]
    assert [stats.lag, stats.step_lag, stats.trend, stats.tail] == pytest.approx(expected, nan_ok=True, abs=1e-9)


@given(plans(), st.integers(1, 5))
def test_what_ranks_cost_is_counted_step_by_step(plan, ranks):
    epoch = create_plan_view(plan, [ranks]).epochs[0]
    dealt = epoch.dealt[ranks]
    costs = defaultdict(lambda: [0] * ranks)
    for number, rank, microbatch in in_global_order(plan, 0, ranks):
        costs[number // dealt.deal.rounds_per_step][rank] += 0 if microbatch.is_null else cost_of(plan)(microbatch)
    expected = [costs[step] for step in range(dealt.deal.steps)]
    assert dealt.step_costs(epoch.cost).tolist() == expected
    mean = sum(sum(step) / ranks for step in expected)
    above = sum(max(step) for step in expected) / mean - 1 if mean else float("nan")
    assert imbalance(dealt.step_costs(epoch.cost)) == pytest.approx(above, nan_ok=True)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40))
def test_padding_is_concentrated_as_far_as_the_worst_microbatches_say(padding):
    worst, total, stats = sorted(padding, reverse=True), sum(padding), waste_stats(np.array(padding))
    if total == 0:
        assert np.isnan([stats.worst_tenth, stats.half]).all()
        return
    assert stats.worst_tenth == pytest.approx(sum(worst[: -(-len(padding) // 10)]) / total)
    needed = next(n for n in range(1, len(padding) + 1) if 2 * sum(worst[:n]) >= total)
    assert stats.half == pytest.approx(needed / len(padding))


@given(plans(), st.integers(1, 4), st.data())
@settings(max_examples=50)
def test_a_share_is_seen_as_its_rank_sees_it(tmp_path_factory, plan, ranks, data):
    rank = data.draw(st.integers(0, ranks - 1))
    share = plan.shard(rank, ranks)
    if data.draw(st.booleans()):
        path = tmp_path_factory.mktemp("share") / "plan"
        share.save(path)
        share = type(plan).load(path)
    if share.world_size == 1 and not share.share.partial:
        return
    view = create_plan_view(share)
    assert (view.rank, view.world_sizes) == (rank, (ranks,))
    for epoch in view.epochs:
        places = epoch.dealt[ranks].places[:, 0]
        seen = [
            (int(epoch.rows[at]), int(epoch.width[at]), int(epoch.tokens[at])) if at >= 0 else None for at in places
        ]
        taken = share.get_epoch(epoch.epoch)
        assert seen == [
            None if microbatch.is_null else (*microbatch.shape, microbatch.token_count) for microbatch in taken
        ]
        assert len(epoch) == sum(not microbatch.is_null for microbatch in taken)


@pytest.mark.parametrize("kind", KINDS)
def test_bands_cover_every_width_once(kind):
    view = create_plan_view(KINDS[kind]())
    assert all(left.high + 1 == right.low for left, right in zip(view.bands, view.bands[1:], strict=False))
    for epoch in view.epochs:
        assert all(0 <= band < len(view.bands) for band in view.band(epoch))


def test_a_share_cannot_be_dealt_again():
    with pytest.raises(OptionError, match="rank 1 of 4; to deal it otherwise, take the whole plan"):
        create_plan_view(plan().shard(1, 4), [2])


@pytest.mark.parametrize(("sizes", "said"), [([0], "got 0"), ([], "got none"), ([2, -1], "got 2, -1")])
def test_numbers_of_ranks_below_one_are_refused(sizes, said):
    with pytest.raises(OptionError, match=said):
        create_plan_view(plan(), sizes)


def test_later_epochs_are_left_out_when_they_are_too_large_and_the_first_never_is():
    many = plan(epochs=6)
    one = create_plan_view(many, [2], max_bytes=1)
    assert [epoch.epoch for epoch in one.epochs] == [0]
    assert len(create_plan_view(many, [2]).epochs) == 6
    some = create_plan_view(many, [2], max_bytes=2000).epochs
    assert 1 < len(some) < 6


def test_the_tail_of_an_epoch_is_its_last_hundredth():
    epoch = create_plan_view(plan(n=20_000), [1]).epochs[0]
    tokens = [microbatch.token_count for microbatch in plan(n=20_000).get_epoch(0)]
    assert len(tokens) >= 300
    stats = order_stats(epoch.tokens, epoch.dealt[1])
    assert stats.tail == pytest.approx(np.mean(tokens[-(len(tokens) // 100) :]) / np.mean(tokens))
