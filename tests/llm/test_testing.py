"""The simulated model server in virtual time: capacity and order exact, faults that repeat, every request ends once."""

import asyncio
import heapq
import math
from collections import Counter
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.core.errors import BrimError, OptionError
from brim.llm.call import Call, Sampling, chat
from brim.llm.failures import (
    BadReply,
    Failure,
    ModelMissing,
    Overloaded,
    Rejected,
    ServerFailed,
    ServerLost,
)
from brim.llm.testing import Behaviour, Constant, Faults, LogNormal, Refusal, Uniform, VirtualServer, run
from brim.llm.testing.behaviour import SOCKET_FAULTS
from brim.llm.testing.replies import asked, echo, text_vector

HELLO = Call(messages=chat("hello"))


def now():
    return asyncio.get_running_loop().time()


class WholeSeconds:
    """Latencies of 1 to 5 seconds, exact in floating point."""

    def at(self, share):
        return 1.0 + int(share * 5)


def ask_all(server, arrivals=None, *, calls=None):
    """Ask, each call at its time, and return answers and failures in the order of the calls."""
    calls = calls or [HELLO] * len(arrivals or [])
    arrivals = arrivals or [0] * len(calls)

    async def one(call, arrival):
        await asyncio.sleep(arrival)
        return await server.ask(call)

    async def all_of_them():
        asked = (one(call, arrival) for call, arrival in zip(calls, arrivals, strict=True))
        return await asyncio.gather(*asked, return_exceptions=True)

    return run(all_of_them())


def ask(server, call=HELLO):
    """Ask once, and return the answer or the failure."""
    return ask_all(server, calls=[call])[0]


def busy(requests):
    """The largest number of requests that were worked on at once, from their recorded times."""
    worked = [request for request in requests if request.started is not None]
    moves = [(request.started, 1) for request in worked] + [(request.ended, -1) for request in worked]
    level = highest = 0
    for _, move in sorted(moves):  # at the same moment, those who leave come first
        level += move
        highest = max(highest, level)
    return highest


times = st.lists(st.integers(0, 12), min_size=1, max_size=25)


@given(times, st.integers(1, 4), st.integers(0, 9))
def test_a_queue_serves_in_the_order_of_arrival_and_never_more_than_its_slots(arrivals, slots, seed):
    arrivals = sorted(arrivals)
    server = VirtualServer(slots=slots, latency=WholeSeconds(), seed=seed)
    calls = [Call(kind="complete", prompt=str(number)) for number in range(len(arrivals))]
    answers = ask_all(server, arrivals, calls=calls)

    free = [0.0] * slots  # when each slot becomes free
    for request in server.requests:
        answer = answers[int(request.call.prompt)]
        started = max(request.arrived, heapq.heappop(free))
        heapq.heappush(free, started + request.seconds)
        assert request.started == started
        assert request.ended == started + request.seconds
        assert answer.queue_seconds == started - request.arrived
        assert answer.service_seconds == request.seconds
    assert [request.arrived for request in server.requests] == arrivals
    assert busy(server.requests) <= server.counts.max_in_service <= slots


@settings(max_examples=60)
@given(
    times,
    st.lists(st.one_of(st.none(), st.integers(0, 6)), min_size=25, max_size=25),
    st.integers(1, 3),
    st.sampled_from(["reject", "queue"]),
    st.one_of(st.none(), st.integers(1, 3)),
    st.integers(0, 3),
)
def test_every_request_ends_once_and_slots_come_back_whoever_is_cancelled(
    arrivals, patience, slots, overflow, max_queue, seed
):
    faults = Faults(error=0.2, hang=0.2, drop=0.1, reject=0.1)
    server = VirtualServer(
        slots=slots,
        overflow=overflow,
        max_queue=max_queue,
        latency=WholeSeconds(),
        faults=faults,
        hang_seconds=20,
        seed=seed,
    )
    ends = Counter()

    async def one(number, arrival, seconds):
        await asyncio.sleep(arrival)
        try:
            async with asyncio.timeout(seconds):
                await server.ask(HELLO)
            ends[number, "served"] += 1
        except TimeoutError:
            ends[number, "cancelled"] += 1
        except Overloaded:
            ends[number, "rejected"] += 1
        except Failure:
            ends[number, "failed"] += 1

    async def everyone():
        await asyncio.gather(*(one(number, *pair) for number, pair in enumerate(zip(arrivals, patience, strict=False))))

    run(everyone())
    counts = server.counts
    assert len(ends) == sum(ends.values()) == counts.arrived == len(arrivals)
    for ending in ("served", "cancelled", "rejected", "failed"):
        assert getattr(counts, ending) == sum(number for (_, end), number in ends.items() if end == ending)
    assert counts.in_flight == counts.in_service == 0
    assert busy(server.requests) <= counts.max_in_service <= slots
    assert all(request.ending for request in server.requests)


def test_a_client_that_leaves_frees_its_slot_at_once():
    server = VirtualServer(slots=1, latency=1.0)
    server.next("hang")

    async def main():
        stuck = asyncio.create_task(server.ask(HELLO))
        waiting = asyncio.create_task(server.ask(HELLO))
        gone = asyncio.create_task(server.ask(HELLO))
        await asyncio.sleep(5)
        gone.cancel()
        stuck.cancel()
        await asyncio.wait([stuck, gone])
        assert server.counts.in_service == 1
        return (await waiting).queue_seconds, now()

    assert run(main()) == (5.0, 6.0)
    assert (server.counts.cancelled, server.counts.served, server.counts.in_flight) == (2, 1, 0)


def test_a_client_that_leaves_at_the_moment_of_its_turn_passes_the_slot_on():
    server = VirtualServer(slots=1, latency=1.0)

    async def main():
        working, next_one, last = [asyncio.create_task(server.ask(HELLO)) for _ in range(3)]
        await asyncio.sleep(0.5)
        working.cancel()
        await asyncio.sleep(0)  # the slot has been given to the next one, which does not know yet
        assert server.counts.in_service == 1
        assert not next_one.done()
        next_one.cancel()
        return (await last).queue_seconds

    assert run(main()) == 0.5
    assert server.counts.in_service == 0


def test_a_client_that_leaves_the_queue_makes_room_in_it():
    server = VirtualServer(slots=1, max_queue=1, latency=1.0)

    async def main():
        working, waiting = [asyncio.create_task(server.ask(HELLO)) for _ in range(2)]
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        await asyncio.gather(working, server.ask(HELLO))

    run(main())
    assert (server.counts.served, server.counts.cancelled, server.counts.rejected) == (2, 1, 0)


def test_capacity_changes_while_requests_run():
    server = VirtualServer(slots=2, latency=10.0)

    async def main():
        tasks = [asyncio.create_task(server.ask(HELLO)) for _ in range(6)]
        await asyncio.sleep(1)
        server.slots = 4
        await asyncio.sleep(1)
        server.slots = 1
        await asyncio.gather(*tasks)

    run(main())
    assert [request.started for request in server.requests] == [0, 0, 1, 1, 11, 21]
    assert server.slots == 1


def test_a_full_server_rejects_at_once_or_when_its_queue_is_full():
    rejecting = VirtualServer(slots=1, overflow="reject", reject_status=429, retry_after=2.5, latency=1.0)
    served, rejected = ask_all(rejecting, [0, 0])
    assert served.text == "answer to: hello"
    assert isinstance(rejected, Overloaded)
    assert (rejected.status, rejected.retry_after, rejected.server) == (429, 2.5, "virtual")
    assert rejecting.counts.max_in_flight == 1

    queueing = VirtualServer(slots=1, max_queue=1, latency=1.0, reject_status=429)
    first, second, third = ask_all(queueing, [0, 0, 0])
    assert (first.queue_seconds, second.queue_seconds, third.status) == (0.0, 1.0, 503)


@settings(max_examples=20)
@given(st.integers(0, 1000), st.integers(0, 1000))
def test_faults_and_latencies_repeat_by_seed(seed, other):
    def story(seed):
        faults = Faults(error=0.2, drop=0.2, garbage=0.1)
        server = VirtualServer(seed=seed, latency=LogNormal(1.0, 0.5), faults=faults)
        ask_all(server, [0] * 40)
        return [(request.fault, request.seconds) for request in server.requests]

    assert story(seed) == story(seed)
    if seed != other:
        assert story(seed) != story(other)


def test_faults_come_as_often_as_their_probabilities_say():
    server = VirtualServer(faults=Faults(error=0.02, drop=0.1), record=5000)
    ask_all(server, [0] * 5000)
    faults = server.counts.faults
    assert 60 <= faults["error"] <= 140
    assert 400 <= faults["drop"] <= 600
    assert server.counts.failed == faults.total() == sum(request.fault is not None for request in server.requests)


@pytest.mark.parametrize(
    ("fault", "failure", "status"),
    [
        ("error", ServerFailed, 502),
        ("reject", Overloaded, 429),
        ("drop", ServerLost, None),
        ("garbage", BadReply, 200),
        ("empty", BadReply, 200),
        ("ndjson_error", ServerFailed, 200),
        ("short_embeddings", BadReply, 200),
    ],
)
def test_a_fault_is_the_failure_that_a_client_would_raise(fault, failure, status):
    server = VirtualServer(name="here", error_status=502, reject_status=429, latency=1.0)
    server.next(fault, None)
    call = Call(kind="embed", inputs=("a", "b"))
    failed, answered = ask_all(server, calls=[call, call])
    assert type(failed) is failure
    assert (failed.status, failed.server) == (status, "here")
    assert answered.vectors.shape == (2, 64)
    assert server.counts.faults == {fault: 1}


def test_a_hang_waits_forever_or_as_long_as_it_is_told_to():
    server = VirtualServer(latency=1.0, hang_seconds=60)
    server.next("hang")
    assert ask(server).service_seconds == 61
    server.change(hang_seconds=math.inf)
    server.next("hang")

    async def give_up():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(server.ask(HELLO), 3600)

    run(give_up())
    assert (server.counts.served, server.counts.cancelled) == (1, 1)


def test_faults_that_need_a_socket_are_refused():
    for fault in SOCKET_FAULTS:
        with pytest.raises(OptionError, match=f"'{fault}' needs a socket"):
            VirtualServer(faults=Faults(**{fault: 0.5}))
        with pytest.raises(OptionError, match=f"'{fault}' needs a socket"):
            VirtualServer().next(fault)


def test_a_server_that_is_down_cannot_be_reached():
    server = VirtualServer()
    server.down = True
    assert isinstance(ask(server), ServerLost)
    with pytest.raises(ServerLost):
        run(server.models())
    server.down = False
    assert ask(server).text == "answer to: hello"
    assert server.counts.arrived == 1


def test_answers_come_from_a_function_a_table_or_a_script():
    function = VirtualServer(answers=lambda call: call.model.upper())
    assert ask(function, replace(HELLO, model="tiny")).text == "TINY"

    table = VirtualServer(answers={"hello": "good day"})
    assert ask(table).text == "good day"
    refused = ask(table, Call(kind="complete", prompt="bye"))
    assert isinstance(refused, Rejected)
    assert "no answer to this prompt: 'bye'" in str(refused)

    script = VirtualServer(answers=["one", "two"])
    one, two, over = ask_all(script, [0, 1, 2])
    assert (one.text, two.text) == ("one", "two")
    assert "all 2 answers" in str(over)
    assert (script.counts.served, script.counts.refused) == (2, 1)


def test_a_function_may_refuse_and_its_own_errors_are_not_hidden():
    def picky(text):
        if len(text) > 3:
            raise Refusal("the input is too long", status=413)
        return np.ones(2)

    server = VirtualServer(slots=1, embedding=picky)
    call = Call(kind="embed", inputs=("abc", "abcd"))
    assert (type(refused := ask(server, call)), refused.status) == (Rejected, 413)
    assert ask(server, replace(call, inputs=("abc",))).vectors.tolist() == [[1, 1]]

    broken = VirtualServer(slots=1, answers=lambda call: {}["missing"])
    assert isinstance(ask(broken), KeyError)
    assert (broken.counts.failed, broken.counts.in_service) == (1, 0)


@given(st.text(), st.text(), st.integers(1, 100))
def test_equal_texts_have_equal_unit_vectors_and_others_do_not(text, other, dim):
    vector = text_vector(text, dim)
    assert vector.shape == (dim,)
    assert vector.dtype == np.float32
    assert np.linalg.norm(vector) == pytest.approx(1)
    assert np.array_equal(vector, text_vector(text, dim))
    if text != other and dim > 1:
        assert not np.array_equal(vector, text_vector(other, dim))


@given(st.text(), st.text())
def test_different_prompts_have_different_answers(prompt, other):
    assert (echo(prompt) == echo(other)) == (prompt == other)
    assert echo("x" * 300 + prompt) != echo("x" * 300 + prompt + "y")
    assert len(echo("x" * 300 + prompt)) < 200


def test_the_last_message_is_asked_whatever_its_form():
    parts = [{"type": "text", "text": "what is "}, {"type": "image_url"}, {"type": "text", "text": "this?"}]
    assert asked(Call(messages=chat([{"role": "user", "content": parts}]))) == "what is this?"
    assert asked(Call(messages=chat("hi", system="be brief"))) == "hi"
    assert asked(Call()) == ""


@pytest.mark.parametrize(
    ("sampling", "text", "reason", "tokens"),
    [
        (Sampling(), "one two three", "stop", 3),
        (Sampling(max_tokens=2), "one two", "length", 2),
        (Sampling(max_tokens=3), "one two three", "stop", 3),
        (Sampling(stop=("three", "two")), "one ", "stop", 1),
    ],
)
def test_answers_end_at_stop_strings_and_at_the_limit_of_tokens(sampling, text, reason, tokens):
    server = VirtualServer(answers=["one two three"], latency=2.0, seconds_per_token=0.5)
    answer = ask(server, Call(messages=chat("four words of prompt"), sampling=sampling))
    assert (answer.text, answer.finish_reason, answer.prompt_tokens) == (text, reason, 4)
    assert answer.completion_tokens == tokens
    assert answer.service_seconds == 2.0 + 0.5 * tokens


def test_a_server_has_the_models_it_names():
    server = VirtualServer(models=("tiny:latest", "large:7b"))
    for model, found in [("tiny", 1), ("tiny:latest", 1), ("large:7b", 1), ("large", 0), ("tin", 0), ("", 1)]:
        answer = ask(server, replace(HELLO, model=model))
        assert isinstance(answer, ModelMissing) is not bool(found), model
    assert run(server.models()) == ["tiny:latest", "large:7b"]
    assert server.counts.refused == 2
    assert ask(VirtualServer(), replace(HELLO, model="any")).model == "any"


def test_durations_are_left_out_on_request():
    answer = ask(VirtualServer(reports_durations=False, latency=1.0))
    assert (answer.service_seconds, answer.queue_seconds) == (None, None)


def test_requests_are_recorded_up_to_a_limit():
    server = VirtualServer(record=3)
    ask_all(server, [0, 1, 2, 3, 4])
    assert [request.number for request in server.requests] == [2, 3, 4]
    server.change(record=1)
    assert [request.number for request in server.requests] == [4]
    assert repr(server.requests[0]) == "Request(number=4, status=200, ending='served')"


@given(st.floats(0, 1, exclude_max=True))
def test_distributions_stay_in_their_bounds(share):
    assert Constant(2.0).at(share) == 2.0
    assert 1.0 <= Uniform(1.0, 3.0).at(share) <= 3.0
    assert 0 < LogNormal(1.0, 0.5).at(share) < 100


def test_the_median_and_the_tail_of_a_log_normal_latency():
    latency = LogNormal(0.2, 0.7)
    assert latency.at(0.5) == pytest.approx(0.2)
    assert latency.at(0.8413447460685429) == pytest.approx(0.2 * math.exp(0.7))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"slots": 0}, "slots must be at least 1, got 0"),
        ({"overflow": "drop"}, "'drop'"),
        ({"reject_status": 500}, "500"),
        ({"retry_after": -1.0}, "-1.0"),
        ({"latency": math.inf}, "latency .* inf"),
        ({"latency": "0.1"}, "latency .* '0.1'"),
        ({"seconds_per_token": math.nan}, "nan"),
        ({"hang_seconds": -2}, "-2"),
        ({"error_status": 200}, "200"),
        ({"answers": "yes"}, "'yes'"),
        ({"models": "tiny"}, "'tiny'"),
        ({"dim": 0}, "dim"),
        ({"record": 0}, "record"),
    ],
)
def test_options_that_cannot_work_are_refused_with_their_value(options, said):
    with pytest.raises(OptionError, match=said):
        Behaviour(**options)


def test_distributions_and_faults_are_checked_too():
    for wrong in (
        lambda: Uniform(3.0, 1.0),
        lambda: LogNormal(1.0, -1.0),
        lambda: Constant(-1.0),
        lambda: Faults(error=1.5),
        lambda: Faults(error=0.6, drop=0.6),
        lambda: VirtualServer(Behaviour(), slots=3),
    ):
        with pytest.raises(OptionError):
            wrong()
    with pytest.raises(OptionError, match=r"unknown fault 'eror'.*Did you mean \"error\""):
        VirtualServer().next("eror")
    with pytest.raises(FrozenInstanceError):
        Behaviour().slots = 3
    with pytest.raises(BrimError):
        VirtualServer().slots = 0


def test_faults_may_add_up_to_certainty():
    server = VirtualServer(faults=Faults(error=0.7, drop=0.3))
    assert all(isinstance(answer, Failure) for answer in ask_all(server, [0] * 100))
