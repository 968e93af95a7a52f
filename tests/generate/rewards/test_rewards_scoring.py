"""`Rewards` and `Scoring`: what becomes of samples, in whatever way their functions end."""

import asyncio
import contextlib
import functools
import math
import signal
import threading
import time
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.core.errors import BrimError, DataError, MissingExtraError, OptionError
from brim.generate.prompts.example import Example
from brim.generate.rewards import Rewarded, RewardFailure, loop, open_rewards, reward
from brim.generate.rewards.limits import TimeLimitPassed, call_within

EXAMPLE = Example("", "?", "42")
SHORT = 0.02
"""Seconds after which calls that never end are given up."""


def scored(functions, count=1, **options):
    """The results of samples whose keys and responses are 0, 1, 2 ..."""
    with open_rewards(functions, **options) as rewards, rewards.scoring() as scoring:
        for key in range(count):
            scoring.submit(key, "prompt", str(key), EXAMPLE)
        return scoring.results()


def outcome(*functions, **options):
    return scored(functions, **options)[0]


def returning(value, name="f"):
    @reward(name=name)
    def function(prompt, response, example):
        return value

    return function


def raising(error, name="f"):
    @reward(name=name)
    def function(prompt, response, example):
        raise error

    return function


def as_async(function):
    @functools.wraps(function)
    async def wrapped(*arguments):
        await asyncio.sleep(0)
        return function(*arguments)

    return wrapped


def as_batched(function):
    name = function.__brim_reward__.name

    @reward(batched=True, name=name)
    def wrapped(prompts, responses, examples):
        return [function(*arguments) for arguments in zip(prompts, responses, examples, strict=True)]

    return wrapped


def as_batched_async(function):
    batched = as_batched(function)

    @reward(batched=True, name=batched.__brim_reward__.name)
    async def wrapped(*lists):
        await asyncio.sleep(0)
        return batched(*lists)

    return wrapped


ways = pytest.mark.parametrize("way", [lambda function: function, as_async, as_batched, as_batched_async])


# Values


@ways
@pytest.mark.parametrize(
    ("value", "number"),
    [
        (1, 1.0),
        (-0.25, -0.25),
        (True, 1.0),
        (False, 0.0),
        (Fraction(1, 4), 0.25),
        (Decimal("0.5"), 0.5),
        (np.float32(0.5), 0.5),
        (np.bool_(True), 1.0),
        (np.array([0.5]), 0.5),
        (np.array(2), 2.0),
    ],
)
def test_whatever_is_one_number_is_a_reward(way, value, number):
    assert outcome(way(returning(value))) == Rewarded(number, {"f": number}, number >= 1)


def test_tensors_with_one_element_are_numbers():
    torch = pytest.importorskip("torch")
    assert outcome(returning(torch.tensor([[0.5]]))).value == 0.5
    assert outcome(returning(torch.tensor([1.0, 2.0]))).kind == "WrongType"

    @reward(batched=True)
    def tensor(prompts, responses, examples):
        return torch.arange(len(prompts))

    assert [one.value for one in scored([tensor], 3).values()] == [0, 1, 2]


@ways
@pytest.mark.parametrize(
    ("value", "kind", "part"),
    [
        (None, "NoReward", "None"),
        ({}, "NoReward", "no parts"),
        (math.nan, "NotFinite", "nan"),
        (-math.inf, "NotFinite", "-inf"),
        (10**400, "NotFinite", "inf"),
        (np.float64("nan"), "NotFinite", "nan"),
        ("1.0", "WrongType", "'1.0'"),
        (1j, "WrongType", "1j"),
        ([0.5], "WrongType", "[0.5]"),
        (np.array([1.0, 2.0]), "WrongType", "array"),
        (np.array(["a"]), "WrongType", "'a'"),
        ({"a": 1.0, "b": None}, "NoReward", "'b'"),
        ({"a": math.nan}, "NotFinite", "'a'"),
        ({"a": "x"}, "WrongType", "'a'"),
        ({3: 1.0}, "WrongType", "3"),
    ],
)
def test_whatever_is_no_number_is_a_failure_and_never_a_zero(way, value, kind, part):
    failure = outcome(way(returning(value)))
    assert (type(failure), failure.kind) == (RewardFailure, kind)
    assert failure.message.startswith("the reward f returned ")
    assert part in failure.message
    assert "\n" not in failure.message


@ways
def test_an_error_is_a_failure_of_the_type_of_the_error(way):
    failure = outcome(way(raising(ZeroDivisionError("of\nlines"))))
    assert failure == RewardFailure("ZeroDivisionError", "the reward f raised ZeroDivisionError: of lines")
    assert outcome(way(raising(DataError("")))) == RewardFailure("DataError", "the reward f raised DataError")


@ways
@pytest.mark.parametrize("error", [OptionError("no"), MissingExtraError("no"), KeyboardInterrupt(), SystemExit(3)])
def test_an_error_that_is_not_the_samples_is_raised(way, error):
    with pytest.raises(type(error)) as raised:
        outcome(way(raising(error)))
    assert raised.value is error


@ways
def test_a_cancellation_of_a_functions_own_is_a_failure(way):
    assert outcome(way(raising(asyncio.CancelledError()))).kind == "CancelledError"


def test_an_error_of_one_sample_leaves_the_others_alone():
    def odd(prompt, response, example):
        return 1 / (int(response) % 2)

    results = scored([odd], 4)
    assert [type(one) for one in results.values()] == [RewardFailure, Rewarded] * 2


def test_a_function_that_forgets_async_def_is_a_failure():
    async def inner():
        raise AssertionError("never runs")

    failure = outcome(lambda prompt, response, example: inner())
    assert (failure.kind, "async def" in failure.message) == ("WrongType", True)


def test_an_object_with_an_async_call_is_an_async_function():
    class Slow:
        async def __call__(self, prompt, response, example):
            await asyncio.sleep(0)
            return len(prompt)

    assert outcome(Slow()) == Rewarded(6, {"Slow": 6}, True)


# Batches


def test_a_batched_function_is_called_once_with_everything_in_the_order_of_submission():
    calls = []

    @reward(batched=True)
    def counted(prompts, responses, examples):
        calls.append((list(prompts), list(responses), list(examples)))
        responses.clear()
        return range(len(prompts))

    @reward(batched=True)
    async def other(prompts, responses, examples):
        return [float(response) for response in responses]

    results = scored([counted, other], 3)
    assert calls == [(["prompt"] * 3, ["0", "1", "2"], [EXAMPLE] * 3)]
    assert [one.parts for one in results.values()] == [{"counted": k, "other": k} for k in (0.0, 1.0, 2.0)]


def test_a_batched_function_is_not_called_without_samples():
    assert scored([as_batched(raising(AssertionError("called")))], 0) == {}


@pytest.mark.parametrize(
    ("returned", "kind"),
    [
        ([1.0], "WrongCount"),
        ([], "WrongCount"),
        ([1.0] * 4, "WrongCount"),
        (np.zeros(2), "WrongCount"),
        (None, "WrongType"),
        (1.0, "WrongType"),
        (np.array(1.0), "WrongType"),
        ("abc", "WrongType"),
        ({"a": 1, "b": 2, "c": 3}, "WrongType"),
        ((x for x in range(3)), "WrongType"),
    ],
)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_wrong_number_of_results_fails_all_samples(returned, kind, is_async):
    def function(prompts, responses, examples):
        return returned

    marked = reward(batched=True, name="f")(as_async(function) if is_async else function)
    results = scored([marked], 3)
    assert {one.kind for one in results.values()} == {kind}
    if kind == "WrongCount":
        assert results[0].message == f"the batched reward f returned {len(returned)} rewards for 3 samples"


def test_a_list_that_cannot_be_read_fails_all_samples():
    class Broken(list):
        def __iter__(self):
            raise RuntimeError("broken")

    results = scored([reward(batched=True)(lambda *lists: Broken([1, 2]))], 2)
    assert [one.kind for one in results.values()] == ["RuntimeError"] * 2


def test_a_batched_function_can_fail_single_samples():
    failure = RewardFailure("Mine", "because")
    results = scored([reward(batched=True)(lambda *lists: [1.0, failure, None])], 3)
    assert results[0].value == 1
    assert results[1] is failure
    assert results[2].kind == "NoReward"


# Weights and parts


@given(
    weights=st.lists(st.floats(-100, 100).filter(lambda weight: weight != 0), min_size=1, max_size=4),
    data=st.data(),
)
def test_the_value_is_the_sum_of_the_weighted_parts(weights, data, monkeypatched_module):
    number = st.floats(-1e6, 1e6)
    values = [data.draw(number | st.dictionaries(st.sampled_from("ab"), number, min_size=1)) for _ in weights]
    specs = []
    for at, (weight, value) in enumerate(zip(weights, values, strict=True)):
        setattr(monkeypatched_module, f"f{at}", returning(value, f"f{at}"))
        specs.append(f"{weight!r}*{monkeypatched_module.__name__}:f{at}")
    result = scored(specs)[0]

    expected = {}
    for at, (weight, value) in enumerate(zip(weights, values, strict=True)):
        named = {"": value} if isinstance(value, float) else value
        for part, one in named.items():
            name = "/".join(filter(None, (f"f{at}" if len(weights) > 1 or not part else "", part)))
            expected[name] = weight * one
    assert result.parts == expected
    assert result.value == math.fsum(expected.values())
    first = values[0] if isinstance(values[0], float) else math.fsum(values[0].values())
    assert result.passed == (first >= 1 - 1e-9)


@pytest.fixture(scope="module")
def monkeypatched_module():
    """A module whose functions a test sets."""
    import sys
    import types

    module = types.ModuleType("reward_functions_of_a_test")
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


@pytest.mark.parametrize("value", [{"a": 1e308, "b": 1e308}, {"a": 1e308, "b": -1e308, "c": 1e308, "d": 1e308}])
def test_a_sum_that_overflows_is_a_failure(value):
    failure = outcome(returning(value))
    assert (failure.kind, "a, b" in failure.message) == ("NotFinite", True)


def test_a_weight_that_makes_infinities_is_a_failure(monkeypatched_module):
    monkeypatched_module.large = returning({"a": 1e300, "b": -1e300})
    assert scored([f"1e300*{monkeypatched_module.__name__}:large"])[0].kind == "NotFinite"


def test_a_negative_weight_makes_no_negative_zero(monkeypatched_module):
    monkeypatched_module.zero = returning(0.0)
    result = scored([f"-1*{monkeypatched_module.__name__}:zero"])[0]
    assert math.copysign(1, result.parts["f"]) == math.copysign(1, result.value) == 1


def test_of_several_failures_that_of_the_first_function_counts():
    @reward(name="slow")
    async def slow(prompt, response, example):
        await asyncio.sleep(SHORT)
        raise KeyError("slow")

    assert outcome(slow, raising(ValueError(), "fast")).kind == "KeyError"
    assert outcome(raising(ValueError(), "fast"), slow).kind == "ValueError"


def test_passed_is_about_the_first_function_before_its_weight(monkeypatched_module):
    monkeypatched_module.one = returning(1.0, "one")
    spec = f"0.1*{monkeypatched_module.__name__}:one"
    assert outcome(spec, returning(0.0)).passed is True
    assert outcome(returning(0.9), spec).passed is False
    assert outcome(returning({"a": 0.5, "b": 0.5}), spec).passed is True


@pytest.mark.parametrize("first", ["format", "length:10"])
def test_form_and_length_do_not_tell_whether_a_response_is_right(first):
    assert outcome(first, returning(1.0)).passed is None


# Time limits


@pytest.fixture
def little_grace(monkeypatch):
    """Does not wait long for calls that cannot be cancelled."""
    monkeypatch.setattr(loop, "GRACE", 0.05)


def hang(prompt, response, example):
    while True:
        pass


async def never(prompt, response, example):
    await asyncio.Event().wait()


def blocked(prompt, response, example):
    threading.Event().wait()


def caught(prompt, response, example):
    while True:
        with contextlib.suppress(Exception):
            hang(prompt, response, example)


def caught_entirely(prompt, response, example):
    try:
        hang(prompt, response, example)
    except BaseException:
        return 0.0


def caught_repeatedly(prompt, response, example):
    for _ in range(2):
        with contextlib.suppress(BaseException):
            hang(prompt, response, example)
    raise ValueError("and an error of its own")


async def uncancellable(prompt, response, example):
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        await asyncio.sleep(10 * SHORT)


@pytest.mark.parametrize("function", [hang, never, blocked, caught, caught_entirely, caught_repeatedly, uncancellable])
def test_a_call_that_does_not_end_is_a_timeout(function, little_grace):
    @reward(timeout=math.inf)
    def fine(prompt, response, example):
        return 1.0

    name = function.__name__
    expected = RewardFailure("Timeout", f"the reward {name} did not end within {SHORT} s")
    assert scored([fine, function], 2, timeout=SHORT) == {0: expected, 1: expected}


def test_a_blocking_call_off_the_main_thread_is_abandoned():
    found, release = [], threading.Event()

    def waits(prompt, response, example):
        release.wait()
        return 1.0

    thread = threading.Thread(target=lambda: found.append(scored([waits], 2, timeout=SHORT)))
    thread.start()
    thread.join()
    assert {one.kind for one in found[0].values()} == {"Timeout"}
    release.set()


@pytest.mark.parametrize("function", [returning(1.0), raising(ValueError("no"))])
def test_off_the_main_thread_results_are_the_same(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(scored([function], 2)))
    thread.start()
    thread.join()
    assert found[0] == scored([function], 2)


def test_an_error_that_is_not_the_samples_crosses_threads():
    found = []

    def run():
        try:
            scored([raising(OptionError("wrong"))])
        except OptionError as error:
            found.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == ["wrong"]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_batched_call_has_its_time_once_and_all_its_samples_time_out(is_async):
    def function(prompts, responses, examples):
        hang("", "", EXAMPLE)

    marked = reward(batched=True, name="f")(never if is_async else function)
    try:
        assert [one.kind for one in scored([marked], 3, timeout=SHORT).values()] == ["Timeout"] * 3
    finally:
        vars(never).pop("__brim_reward__", None)


def test_a_mark_overrides_the_limit():
    @reward(timeout=SHORT)
    def brief(prompt, response, example):
        hang(prompt, response, example)

    @reward(timeout=math.inf)
    def unlimited(prompt, response, example):
        time.sleep(3 * SHORT)
        return 1.0

    assert outcome(brief, timeout=None).kind == "Timeout"
    assert outcome(unlimited, timeout=SHORT).value == 1
    assert outcome(as_async(unlimited), timeout=SHORT).value == 1


def test_timer_and_handler_are_restored():
    came = []
    previous = signal.signal(signal.SIGALRM, lambda number, frame: came.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 1000, 2000)
        handler = signal.getsignal(signal.SIGALRM)
        for seconds, function in ((SHORT, hang), (10, returning(1.0))):
            outcome(function, timeout=seconds)
            remaining, interval = signal.getitimer(signal.ITIMER_REAL)
            assert 0 < remaining < 1000
            assert interval == 2000
            assert signal.getsignal(signal.SIGALRM) is handler
        assert came == []
        # One that was due during the call fires after it.
        signal.setitimer(signal.ITIMER_REAL, SHORT / 2)
        assert outcome(hang, timeout=SHORT).kind == "Timeout"
        while not came:
            time.sleep(0.001)
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@pytest.mark.parametrize("seconds", [1e-6, 1e-5, 1e-4])
def test_a_limit_that_is_over_at_any_moment_raises_one_error_or_none(seconds):
    """The signal may come anywhere, also between the lines that prepare and end a call."""
    ends = {"in time": 0, "late": 0}
    for _ in range(300):
        try:
            call_within(seconds, sum, range(100))
            ends["in time"] += 1
        except TimeLimitPassed:
            ends["late"] += 1
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert sum(ends.values()) == 300
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


def test_an_async_function_that_blocks_the_event_loop_is_found_out_and_later_calls_have_a_new_loop(little_grace):
    release = threading.Event()
    before = threading.enumerate()

    @reward(name="f")
    async def blocks(prompt, response, example):
        if response == "1":
            release.wait()
        return 1.0

    with open_rewards([blocks], timeout=SHORT) as rewards:
        with rewards.scoring() as scoring:
            for key in ("0", "1", "2"):
                scoring.submit(key, "", key, EXAMPLE)
            results = scoring.results()
        [thread] = [one for one in threading.enumerate() if one.name == "brim-rewards" and one not in before]
        with rewards.scoring() as scoring:
            scoring.submit("0", "", "0", EXAMPLE)
            later = scoring.results()
    assert thread.is_alive()
    release.set()
    thread.join()
    assert results["1"].kind == results["2"].kind == "Timeout"
    assert "blocked" in results["1"].message
    assert later["0"].value == 1


# Scheduling


def test_async_functions_run_while_the_caller_does_something_else():
    began, ready = threading.Event(), threading.Event()

    async def overlapping(prompt, response, example):
        began.set()
        while not ready.is_set():
            await asyncio.sleep(0.001)
        return 1.0

    with open_rewards([overlapping]) as rewards, rewards.scoring() as scoring:
        scoring.submit(0, "", "", EXAMPLE)
        assert began.wait(10)
        ready.set()
        assert scoring.results()[0].value == 1


def test_other_functions_run_in_submit_in_the_callers_thread():
    threads = []

    def here(prompt, response, example):
        threads.append(threading.current_thread())
        return 1.0

    with open_rewards([here]) as rewards, rewards.scoring() as scoring:
        scoring.submit(0, "", "", EXAMPLE)
        assert threads == [threading.current_thread()]


@pytest.mark.parametrize("concurrency", [1, 3])
def test_no_more_async_calls_run_at_once_than_asked_for(concurrency):
    running, most = 0, 0

    async def counted(prompt, response, example):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.002)
        running -= 1
        return 1.0

    scored([counted], 10, concurrency=concurrency)
    assert most == concurrency


def test_the_time_for_a_call_begins_when_its_turn_comes():
    @reward(timeout=math.inf)
    async def slow(prompt, response, example):
        await asyncio.sleep(3 * SHORT)
        return 1.0

    @reward(timeout=SHORT)
    async def quick(prompt, response, example):
        return 1.0

    assert outcome(slow, quick, concurrency=1).value == 2


def test_leaving_without_results_cancels_what_is_under_way():
    began, ended = [], []

    async def waits(prompt, response, example):
        began.append(response)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(response)

    with open_rewards([waits], concurrency=2, timeout=None) as rewards:
        with pytest.raises(ZeroDivisionError), rewards.scoring() as scoring:
            for key in range(4):
                scoring.submit(key, "", str(key), EXAMPLE)
            while len(began) < 2:
                time.sleep(0.001)
            raise ZeroDivisionError
        assert sorted(ended) == began == ["0", "1"]
        with pytest.raises(BrimError, match="ended"):
            scoring.submit(5, "", "", EXAMPLE)
        with pytest.raises(BrimError, match="without results"):
            scoring.results()


def test_scorings_of_the_same_rewards_do_not_see_each_other():
    with open_rewards([as_async(returning(1.0))]) as rewards, rewards.scoring() as one, rewards.scoring() as other:
        one.submit("a", "", "", EXAMPLE)
        other.submit("b", "", "", EXAMPLE)
        assert list(one.results()) == ["a"]
        assert list(other.results()) == ["b"]


def test_results_can_be_read_twice_and_end_the_scoring():
    with open_rewards([returning(1.0)]) as rewards, rewards.scoring() as scoring:
        scoring.submit("a", "", "", EXAMPLE)
        with pytest.raises(OptionError, match=r"^the key 'a' was submitted twice"):
            scoring.submit("a", "", "", EXAMPLE)
        first = scoring.results()
        assert scoring.results() == first
        with pytest.raises(BrimError, match="begin another"):
            scoring.submit("b", "", "", EXAMPLE)


@ways
def test_closed_rewards_score_nothing(way):
    rewards = open_rewards([way(returning(1.0))])
    scoring = rewards.scoring()
    rewards.close()
    rewards.close()
    with pytest.raises(BrimError, match=r"^these rewards are closed"):
        rewards.scoring()
    if way is as_async:
        with pytest.raises(BrimError, match=r"^these rewards are closed"):
            scoring.submit(0, "", "", EXAMPLE)
        with pytest.raises(BrimError, match=r"^these rewards are closed"):
            scoring.results()
    with scoring:
        pass


def test_a_call_that_ignores_its_cancellation_is_not_waited_for_and_its_thread_ends_with_it(little_grace):
    forever = True
    before = threading.enumerate()

    async def stubborn(prompt, response, example):
        while forever:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    with open_rewards([stubborn], timeout=SHORT) as rewards:
        with rewards.scoring() as scoring:
            scoring.submit(0, "", "", EXAMPLE)
            assert scoring.results()[0].kind == "Timeout"
            [thread] = [one for one in threading.enumerate() if one.name == "brim-rewards" and one not in before]
    assert thread.is_alive()
    forever = False
    thread.join()


# Every key, whatever happens


@st.composite
def functions(draw, name):
    """A reward function whose behaviour for a sample is drawn, and what is expected of it."""
    kinds = {
        "number": lambda: 0.5,
        "parts": lambda: {"a": 0.25, "b": 0.25},
        "none": lambda: None,
        "nan": lambda: math.nan,
        "error": lambda: 1 / 0,
    }
    batched, is_async = draw(st.booleans()), draw(st.booleans())
    hangs = draw(st.integers(0, 3)) == 0
    possible = [kind for kind in kinds if not (batched and kind == "error")]
    behaviour = ["hang"] if hangs else draw(st.lists(st.sampled_from(possible), min_size=1, max_size=3))
    count_is_wrong = batched and not hangs and draw(st.booleans())

    def kind(response):
        return behaviour[int(response) % len(behaviour)]

    def single(prompt, response, example):
        if hangs:
            blocked(prompt, response, example)
        return kinds[kind(response)]()

    async def single_async(prompt, response, example):
        await asyncio.sleep(0.001 * (int(response) % 3))
        if hangs:
            await never(prompt, response, example)
        return kinds[kind(response)]()

    def many(prompts, responses, examples):
        if hangs:
            blocked(prompts, responses, examples)
        return [kinds[kind(response)]() for response in responses][: -1 if count_is_wrong else None]

    async def many_async(prompts, responses, examples):
        await asyncio.sleep(0)
        if hangs:
            await never(prompts, responses, examples)
        return many(prompts, responses, examples)

    expected = {"none": "NoReward", "nan": "NotFinite", "error": "ZeroDivisionError", "hang": "Timeout"}

    def failure(response):
        return "WrongCount" if count_is_wrong else expected.get(kind(response))

    function = {(0, 0): single, (0, 1): single_async, (1, 0): many, (1, 1): many_async}[batched, is_async]
    return reward(batched=batched, name=name, timeout=SHORT if hangs else math.inf)(function), failure


@settings(max_examples=60, deadline=None)
@given(st.tuples(functions("f"), functions("g"), functions("h")), st.integers(0, 6), st.integers(1, 3))
def test_every_key_comes_back_once_with_the_result_that_its_functions_give(drawn, count, concurrency):
    results = scored([function for function, _ in drawn], count, concurrency=concurrency)
    assert list(results) == list(range(count))
    for key, result in results.items():
        failures = [kind for _, failure in drawn if (kind := failure(str(key))) is not None]
        if failures:
            assert result.kind == failures[0]
        else:
            assert result.value == 1.5
            assert math.fsum(result.parts.values()) == 1.5
