"""The latencies that the adaptive limit compares."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.llm.engine.latencies import MEMORY, Lowest, RoundLatencies, quartiles

SECONDS = st.floats(0.01, 100.0)


def redistributed(latencies, ages):
    """The quartiles by Efron's definition: what an open request weighs is given to all that lasted longer, equally."""
    ended = sorted([(value, False) for value in latencies] + [(age, True) for age in ages])
    weights = [1.0 / len(ended)] * len(ended)
    for at, (_, is_open) in enumerate(ended):
        if is_open:
            later = len(ended) - at - 1
            for place in range(at + 1, len(ended)):
                weights[place] += weights[at] / later
            weights[at] = 0.0
    found = []
    for share in (0.25, 0.5, 0.75):
        known = [
            value for at, (value, is_open) in enumerate(ended) if not is_open and sum(weights[: at + 1]) >= share - 1e-9
        ]
        found.append(min(known, default=max(latencies)))
    return tuple(found)


@given(st.lists(SECONDS, min_size=1, max_size=30), st.lists(SECONDS, max_size=30))
def test_quartiles_with_open_requests_follow_the_definition(latencies, ages):
    assert quartiles(latencies, ages) == redistributed(latencies, ages)


@given(st.lists(SECONDS, min_size=1, max_size=30))
def test_without_open_requests_a_quartile_is_the_smallest_value_that_its_share_does_not_exceed(latencies):
    ordered = sorted(latencies)
    for share, found in zip((0.25, 0.5, 0.75), quartiles(latencies), strict=True):
        assert found == next(value for at, value in enumerate(ordered) if (at + 1) / len(ordered) >= share - 1e-9)


def sent_over(seconds, count, *, sigma=1.0, seed=0):
    """Requests with a median latency of 1, sent over some time: the latencies of those that have an answer at its end,
    and the ages of the others."""
    rng = random.Random(seed)
    requests = [(seconds * at / count, rng.lognormvariate(0.0, sigma)) for at in range(count)]
    answered = [latency for begin, latency in requests if begin + latency <= seconds]
    return answered, [seconds - begin for begin, latency in requests if begin + latency > seconds]


def test_open_requests_keep_the_median_of_a_short_round_from_being_too_low():
    answered, ages = sent_over(2.0, 2000)
    assert len(ages) > 600
    assert quartiles(answered)[1] < 0.75
    assert quartiles(answered, ages)[1] == pytest.approx(1.0, rel=0.1)


def test_the_error_is_that_of_the_median():
    """Of 300 medians, about two thirds lie within one standard error, and hardly one beyond three."""
    within = {1: 0, 3: 0}
    for seed in range(300):
        rng = random.Random(seed)
        seen = RoundLatencies()
        for _ in range(64):
            seen.add("chat", rng.lognormvariate(0.0, 1.0), None)
        (typical,) = seen.typical().values()
        for errors in within:
            within[errors] += typical.at_most(-errors) <= 1.0 <= typical.at_most(errors)
    assert 0.6 < within[1] / 300 < 0.8
    assert within[3] / 300 > 0.97


def test_few_answers_that_happen_to_agree_prove_little():
    seen = RoundLatencies()
    for _ in range(3):
        seen.add("chat", 0.5, None)
    (typical,) = seen.typical().values()
    assert typical.scatter == 0.0
    assert typical.error > 0.2


def test_open_requests_are_compared_by_the_tokens_of_their_kind():
    seen = RoundLatencies()
    for _ in range(4):
        seen.add("chat", 1.0, 10)
    seen.add("embed", 0.01, None)
    typical = seen.typical([("chat", 5.0)] * 8 + [("embed", 0.001)])
    assert typical[("chat", True)].median == pytest.approx(0.1)
    assert typical[("embed", False)].median == pytest.approx(0.01)
    assert set(typical) == {("chat", True), ("embed", False)}


@given(st.lists(st.integers(0, 20), min_size=1, max_size=200))
def test_the_lowest_value_is_that_of_the_rounds_in_memory(values):
    lowest = Lowest(lambda item: item[1])
    for round, value in enumerate(values):
        lowest.add(round, (round, value))
        at, found = lowest.item
        assert found == values[at] == min(values[max(0, round - MEMORY) : round + 1])
        assert at >= round - MEMORY
