"""The adaptive limit: a state machine that is told what happened."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.llm.engine.durations import Durations, percentile
from brim.llm.engine.limit import Limit
from brim.llm.engine.rates import Rate
from brim.llm.engine.waiting import RetryBudget

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("answered"), st.floats(1e-3, 100.0), st.integers(0, 500), st.floats(0.0, 10.0)),
        st.tuples(st.just("refused"), st.integers(0, 2000)),
        st.tuples(st.just("sent"), st.integers(1, 2000)),
        st.tuples(st.just("lost")),
    ),
    max_size=300,
)


@given(EVENTS, st.integers(1, 10), st.integers(10, 100), st.booleans())
def test_whatever_happens_the_limit_stays_within_its_bounds(events, lowest, highest, reports):
    limit = Limit(lowest=lowest, highest=highest)
    for event in events:
        if event[0] == "answered":
            wait = event[3] if reports else None
            limit.answered(limit.round, event[1], in_flight=limit.value, tokens=event[2], wait=wait, service=event[1])
        elif event[0] == "refused":
            limit.refused(event[1])
        elif event[0] == "sent":
            limit.sent(event[1])
        else:
            limit.lost()
        assert lowest <= limit.value <= highest


@given(EVENTS, st.integers(1, 50))
def test_a_fixed_limit_never_moves(events, fixed):
    limit = Limit(lowest=fixed, highest=fixed)
    for event in events:
        if event[0] == "answered":
            limit.answered(limit.round, event[1], in_flight=fixed)
        elif event[0] == "refused":
            limit.refused(event[1])
        assert limit.value == fixed


def rounds(limit, latency, count, **reported):
    """Let the server answer `count` full rounds, with a latency that depends on the requests in flight."""
    rng = random.Random(7)
    for _ in range(count):
        level = limit.value
        number = limit.round
        limit.sent(level)
        for _ in range(max(level, 24)):
            seconds = latency(level) * rng.uniform(0.9, 1.1)
            figures = {name: figure(level) for name, figure in reported.items()}
            limit.answered(number, seconds, in_flight=level, **figures)
            if limit.round != number:
                break


def test_the_limit_doubles_with_every_round_trip_until_the_server_is_met():
    limit = Limit()
    seen = []
    for _ in range(5):
        seen.append(limit.value)
        level = limit.value
        limit.sent(level)
        for _ in range(level):
            limit.answered(limit.round, 0.05, in_flight=level)
    assert seen == [4, 8, 16, 32, 64]


def test_the_limit_does_not_grow_while_the_requests_do_not_fill_it():
    limit = Limit()
    for _ in range(500):
        limit.sent(1)
        limit.answered(limit.round, 0.05, in_flight=1)
    assert limit.value == 4


def test_a_burst_of_refusals_leaves_the_number_of_requests_that_were_accepted():
    limit = Limit()
    rounds(limit, lambda level: 0.05, 4)
    high = limit.value
    for left in range(high - 1, 31, -1):
        limit.refused(left)
    assert limit.value == 32


@pytest.mark.parametrize("slots", [1, 3, 8, 32, 200])
def test_a_server_that_reports_waiting_is_kept_just_busy(slots):
    limit = Limit()

    def wait(level):
        return 0.05 * max(0, level - slots) / slots

    rounds(limit, lambda level: 0.05 + wait(level), 200, wait=wait, service=lambda level: 0.05)
    assert slots <= limit.value <= max(1.5 * slots, slots + 1)


@pytest.mark.parametrize("slots", [3, 8, 32, 200])
def test_a_server_that_reports_nothing_is_known_by_its_latency(slots):
    limit = Limit()
    rounds(limit, lambda level: 0.05 * max(1.0, level / slots), 300)
    assert 0.9 * slots <= limit.value <= 2.2 * slots


def test_a_server_that_works_on_many_together_is_given_many():
    """Each request takes longer, and yet more are done: latency 1 + level / 64, as with a GPU that decodes a batch."""
    limit = Limit(highest=256)
    rounds(limit, lambda level: 0.05 * (1 + level / 64), 300)
    assert limit.value >= 64


def test_latency_per_token_is_compared_so_longer_answers_do_not_lower_the_limit():
    limit = Limit(highest=64)
    rounds(limit, lambda level: 0.05, 20, tokens=lambda level: 10)
    before = limit.value
    rounds(limit, lambda level: 0.5, 20, tokens=lambda level: 100)
    assert limit.value >= before


def test_kinds_of_calls_are_compared_with_their_own_latencies_only():
    limit = Limit(highest=64)
    rounds(limit, lambda level: 0.002, 20, kind=lambda level: "embed")
    before = limit.value
    rounds(limit, lambda level: 2.0, 20, kind=lambda level: "chat")
    assert limit.value >= before


@given(st.lists(st.floats(0.0, 1e6), min_size=1), st.floats(0.01, 1.0))
def test_a_percentile_is_a_value_that_at_least_this_share_does_not_exceed(values, share):
    ordered = sorted(values)
    found = percentile(ordered, share)
    assert found in ordered
    assert sum(value <= found for value in ordered) >= share * len(ordered) - 1e-9


def test_a_request_is_given_up_after_four_times_the_usual_and_later_with_every_attempt():
    durations = Durations()
    for _ in range(5):
        assert durations.give_up_after(None, 0) is None
        durations.add(1.0, 100)
    assert durations.give_up_after(100, 0) == 10.0  # of five latencies, little is known
    for _ in range(100):
        durations.add(1.0, 100)
    assert durations.give_up_after(100, 0) == 4.0
    assert durations.give_up_after(100, 2) == 16.0
    assert durations.give_up_after(400, 0) == 16.0  # may write four times as much
    assert durations.hedge_after() == 1.5


@given(st.floats(1.0, 6000.0), st.lists(st.floats(0.0, 5.0), max_size=200))
def test_no_minute_has_more_requests_than_the_rate_and_one_burst(per_minute, pauses):
    rate = Rate(per_minute)
    now, taken = 0.0, []
    for pause in pauses:
        now += pause
        if rate.wait(now) == 0.0:
            rate.take(1, now)
            taken.append(now)
    burst = max(per_minute / 6, 1.0)
    for begin in taken:
        assert sum(begin <= at < begin + 60 for at in taken) <= per_minute + burst + 1


def test_answers_earn_retries():
    budget = RetryBudget(0.5, now=0.0)
    while budget.take():
        pass
    assert budget.wait(0.0) > 0
    budget.answered()
    budget.answered()
    assert budget.take()
    assert not budget.take()
