"""The engine over pretended servers in virtual time: exact, and without waiting."""

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.core.wait.virtual_time import run
from brim.llm.call import Call, Reply, Sampling, chat
from brim.llm.config import PoolConfig
from brim.llm.engine.coalesce import Coalescer
from brim.llm.engine.engine import Engine
from brim.llm.engine.server import AWAY_LONGEST, ServerState
from brim.llm.failures import (
    BadReply,
    Cancelled,
    Failure,
    ModelMissing,
    Overloaded,
    Rejected,
    ServerFailed,
    ServerLost,
    TimedOut,
)
from brim.llm.testing import Behaviour, Faults, LogNormal, Refusal, Uniform, VirtualServer


def question(text, model="m", **sampling):
    return Call(model=model, messages=chat(text), sampling=Sampling(**sampling))


class Run:
    """An engine over some servers, and the results of calls by their number."""

    def __init__(self, *servers, limits=(), config=None, **options):
        fixed = [*limits, *[None] * (len(servers) - len(limits))]
        self.servers = servers
        self.states = [ServerState(server, limit=fixed[at], number=at) for at, server in enumerate(servers)]
        self.engine = Engine(self.states, config, **options)
        self.results = {}
        self.jobs = []

    async def __aenter__(self):
        return self

    async def __aexit__(self, *raised):
        await self.engine.close()
        assert all(state.in_flight == 0 for state in self.states), "a slot leaked"
        assert not self.engine.stats().open

    def submit(self, *calls, deadline=None):
        for call in calls:
            number = len(self.jobs)
            self.jobs.append(None)

            def done(result, number=number):
                assert number not in self.results, "a call ended twice"
                self.results[number] = result

            self.jobs[number] = self.engine.submit(call, done, deadline=deadline)

    async def end(self):
        """Wait until every call has ended, and return the results in the order asked."""
        while len(self.results) < len(self.jobs):
            await asyncio.sleep(0.05)
        return [self.results[number] for number in range(len(self.jobs))]


def now():
    return asyncio.get_running_loop().time()


def arrivals(server):
    return [request.arrived for request in server.requests]


FAULTS = st.builds(
    Faults,
    error=st.floats(0, 0.2),
    hang=st.floats(0, 0.1),
    drop=st.floats(0, 0.2),
    garbage=st.floats(0, 0.1),
    reject=st.floats(0, 0.2),
)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 8), st.sampled_from(["reject", "queue"]), FAULTS), min_size=1, max_size=3),
    st.integers(1, 120),
    st.booleans(),
    st.integers(0, 2**16),
    st.sampled_from([None, 0.5, 3.0]),
    st.booleans(),
)
def test_every_call_ends_exactly_once_whatever_the_servers_do(servers, count, hedge, seed, deadline, fixed):
    async def main():
        behaviours = [
            Behaviour(slots=slots, overflow=overflow, faults=faults, latency=LogNormal(0.05, 0.5), seed=seed)
            for slots, overflow, faults in servers
        ]
        config = PoolConfig(timeout=20.0, hedge=hedge, hedge_budget=0.5, attempt_timeout=1.0 if fixed else "auto")
        async with Run(*map(VirtualServer, behaviours), config=config) as run:
            # Every third call equals an earlier one, and may be joined with it.
            texts = [f"question {number - number % 3 // 2}" for number in range(count)]
            run.submit(*(question(text, temperature=0.0) for text in texts), deadline=deadline)
            results = await run.end()
            assert all(isinstance(result, Reply | Failure) for result in results)
            for text, result in zip(texts, results, strict=True):
                if isinstance(result, Reply):
                    assert result.text == f"answer to: {text}"
            stats = run.engine.stats()
            assert stats.replies + sum(stats.failures.values()) == count
            assert stats.requests == sum(server.counts.arrived for server in run.servers)
            assert stats.fill.used <= stats.fill.slots

    run(main())


def test_a_server_of_32_slots_that_refuses_more_is_found_out():
    async def main():
        faults = Faults(error=0.006, hang=0.002, drop=0.002)
        server = VirtualServer(Behaviour(slots=32, overflow="reject", latency=Uniform(0.04, 0.06), faults=faults))
        async with Run(server) as run:
            run.submit(*(question(f"q{number}") for number in range(2000)))
            results = await run.end()
            assert all(isinstance(result, Reply) for result in results)
            assert now() < 1.25 * 2000 * 0.05 / 32  # virtual seconds
            assert server.counts.rejected < 0.02 * 2000

    run(main())


def test_capacity_is_followed_down_and_up():
    async def main():
        server = VirtualServer(Behaviour(slots=32, overflow="reject", latency=Uniform(0.04, 0.06)))
        async with Run(server) as run:
            run.submit(*(question(f"q{number}") for number in range(4500)))
            limits = []
            for slots in (32, 8, 32):
                server.slots = slots
                await asyncio.sleep(2)
                limits.append(run.states[0].limit.value)
                await asyncio.sleep(0.5)
            run.engine.stats()
            assert limits[1] in range(7, 11)
            assert limits[2] in range(28, 37)

    run(main())


def test_a_call_goes_to_the_server_that_is_free_not_to_the_one_whose_turn_it_is():
    async def main():
        fast, slow = VirtualServer(slots=4, latency=0.1), VirtualServer(slots=4, latency=10.0)
        async with Run(fast, slow, limits=(4, 4)) as run:
            run.submit(*(question(f"q{number}") for number in range(404)))
            await run.end()
            assert slow.counts.arrived <= 8
            assert now() < 12.0

    run(main())


@pytest.mark.parametrize("how", ["error", "drop"])
def test_a_dead_server_costs_few_attempts(how):
    async def main():
        good = VirtualServer(slots=16, latency=0.05, overflow="reject")
        dead = VirtualServer(latency=0.001, faults=Faults(**{how: 1.0}))
        async with Run(good, dead) as run:
            run.submit(*(question(f"q{number}") for number in range(2000)))
            assert all(isinstance(result, Reply) for result in await run.end())
            assert dead.counts.arrived <= 20

    run(main())


def test_the_last_server_is_never_shut_for_good():
    async def main():
        server = VirtualServer(latency=0.05)
        async with Run(server, config=PoolConfig(patience=1e6, timeout=1e5, attempts=1000)) as run:
            run.submit(question("first"))
            await run.end()
            server.down = True
            run.submit(*(question(f"q{number}") for number in range(50)))
            await asyncio.sleep(1000)
            server.down = False
            results = await run.end()
            assert all(isinstance(result, Reply) for result in results)
            assert now() < 1100

    run(main())


def test_calls_wait_for_a_server_that_was_reached_and_not_for_one_that_never_was():
    async def main():
        server = VirtualServer(latency=0.05)
        server.down = True
        async with Run(server, config=PoolConfig(patience=60.0)) as run:
            run.submit(*(question(f"q{number}") for number in range(50)))
            assert {type(result) for result in await run.end()} == {ServerLost}
            assert now() < 5.0
            server.down = False
            await asyncio.sleep(10)
            run.submit(question("is it there?"))
            assert isinstance((await run.end())[-1], Reply)
            server.down = True
            began = now()
            run.submit(*(question(f"r{number}") for number in range(50)))
            assert {type(result) for result in (await run.end())[-50:]} == {ServerLost}
            assert 60.0 <= now() - began < 100.0

    run(main())


def test_retry_after_is_a_pause_for_everybody():
    async def main():
        server = VirtualServer(Behaviour(slots=4, overflow="reject", retry_after=30.0, latency=1.0, reject_status=429))
        async with Run(server) as run:
            server.next(None, None, None, "reject")
            run.submit(*(question(f"q{number}") for number in range(20)))
            assert all(isinstance(result, Reply) for result in await run.end())
            times = arrivals(server)
            assert not any(0.0 < at < 30.0 for at in times)

    run(main())


def test_a_server_that_refuses_everything_is_asked_ever_more_rarely():
    async def main():
        server = VirtualServer(Behaviour(faults=Faults(reject=1.0), record=10_000))
        async with Run(server, config=PoolConfig(timeout=120.0)) as run:
            run.submit(*(question(f"q{number}") for number in range(10)))
            assert {type(result) for result in await run.end()} <= {TimedOut, Overloaded}
            times = arrivals(server)
            assert times[-1] - times[-2] >= 5.0
            assert server.counts.arrived < 150

    run(main())


def test_nothing_is_sent_after_the_deadline_of_its_call():
    async def main():
        server = VirtualServer(Behaviour(slots=2, latency=1.0, faults=Faults(error=0.3), record=10_000))
        async with Run(server, config=PoolConfig(attempts=50)) as run:
            run.submit(*(question(f"q{number}") for number in range(40)), deadline=7.0)
            results = await run.end()
            assert any(isinstance(result, TimedOut) for result in results)
            assert max(arrivals(server)) < 7.0
            assert all(result.seconds <= 7.0 + 1e-6 for result in results)

    run(main())


def test_a_call_has_a_time_limit_from_its_first_request_on():
    async def main():
        server = VirtualServer(slots=1, latency=5.0)
        async with Run(server, limits=(1,), config=PoolConfig(timeout=8.0)) as run:
            run.submit(*(question(f"q{number}") for number in range(10)))
            assert all(isinstance(result, Reply) for result in await run.end())  # the last one waited 45 s in our queue
            server.next("hang")
            run.submit(question("hangs"))
            failure = (await run.end())[-1]
            assert isinstance(failure, TimedOut)
            assert failure.attempts == 1
            assert failure.server == "virtual"
            assert "8.0 s" in str(failure)

    run(main())


def test_a_request_that_hangs_is_given_up_and_a_call_that_is_just_slow_gets_through():
    async def main():
        server = VirtualServer(Behaviour(latency=0.1, slots=8))
        async with Run(server, limits=(8,)) as run:
            run.submit(*(question(f"q{number}") for number in range(100)))
            await run.end()
            server.next("hang")
            began = now()
            run.submit(question("hangs once"))
            reply = (await run.end())[-1]
            assert isinstance(reply, Reply)
            assert reply.attempts == 2
            assert now() - began < 2.0
            server.change(latency=5.0)
            run.submit(question("slow"))
            reply = (await run.end())[-1]
            assert isinstance(reply, Reply)
            assert reply.attempts > 1

    run(main())


def test_a_request_that_hangs_in_the_only_slot_of_a_new_server_is_given_up():
    async def main():
        known, new = VirtualServer(latency=0.1, slots=8), VirtualServer(latency=0.1, slots=1)
        async with Run(known, new, limits=(8, 1)) as run:
            new.next("hang")
            run.submit(*(question(f"q{number}") for number in range(100)))
            assert all(isinstance(result, Reply) for result in await run.end())
            assert now() < 20.0

    run(main())


def test_a_failure_that_no_retry_can_mend_ends_the_call_at_once():
    async def main():
        def refuse(call):
            raise Refusal("the prompt is too long", status=400)

        server = VirtualServer(Behaviour(answers=refuse))
        async with Run(server) as run:
            run.submit(question("q"))
            [failure] = await run.end()
            assert isinstance(failure, Rejected)
            assert (failure.status, failure.attempts) == (400, 1)
            assert "too long" in str(failure)

    run(main())


def test_a_call_is_tried_as_often_as_the_options_say():
    async def main():
        server = VirtualServer(Behaviour(faults=Faults(error=1.0)))
        async with Run(server, config=PoolConfig(attempts=3)) as run:
            run.submit(question("q"))
            [failure] = await run.end()
            assert isinstance(failure, ServerFailed)
            assert failure.attempts == 3 == server.counts.arrived

    run(main())


def test_a_model_is_found_on_the_server_that_has_it():
    async def main():
        with_model, without = VirtualServer(models=("m",)), VirtualServer(models=("other",))
        async with Run(without, with_model) as run:
            run.submit(*(question(f"q{number}") for number in range(50)))
            assert all(isinstance(result, Reply) for result in await run.end())
            assert without.counts.arrived <= 4
            run.submit(*(question(f"q{number}", model="nowhere") for number in range(50)))
            assert {type(result) for result in (await run.end())[50:]} == {ModelMissing}

    run(main())


def test_a_model_that_no_free_server_has_does_not_hold_up_calls_for_another():
    async def main():
        one, other = VirtualServer(models=("a",), latency=100.0), VirtualServer(models=("b",), latency=1.0)
        async with Run(one, other, limits=(1, 1)) as run:
            run.submit(question("q", model="b"), question("r", model="a"))
            await run.end()
            run.submit(*(question(f"q{number}", model="a") for number in range(3)))
            run.submit(*(question(f"q{number}", model="b") for number in range(3)))
            await asyncio.sleep(10)
            assert set(run.results) >= {5, 6, 7}

    run(main())


def test_equal_calls_are_asked_once_if_their_answers_must_be_equal():
    async def main():
        server = VirtualServer(latency=1.0)
        async with Run(server) as run:
            run.submit(*(question("same", temperature=0.0) for _ in range(5)))
            run.submit(*(question("same", seed=3) for _ in range(5)))
            run.submit(*(question("same", temperature=1.0) for _ in range(5)))
            results = await run.end()
            assert server.counts.arrived == 1 + 1 + 5
            assert [result.joined for result in results] == [False, *[True] * 4] * 2 + [False] * 5
            assert run.engine.stats().joined == 8

    run(main())


def test_when_the_first_of_equal_calls_is_cancelled_the_next_one_asks():
    async def main():
        server = VirtualServer(latency=1.0)
        async with Run(server) as run:
            run.submit(*(question("same", temperature=0.0) for _ in range(3)))
            await asyncio.sleep(0.5)
            run.engine.cancel(run.jobs[0])
            first, second, third = await run.end()
            assert isinstance(first, Cancelled)
            assert isinstance(second, Reply)
            assert isinstance(third, Reply)
            assert (second.joined, third.joined) == (False, True)
            assert server.counts.cancelled == 1

    run(main())


def test_equal_calls_that_are_refused_share_the_refusal():
    async def main():
        def refuse(call):
            raise Refusal("no", status=422)

        server = VirtualServer(Behaviour(answers=refuse, latency=1.0))
        async with Run(server) as run:
            run.submit(*(question("same", temperature=0.0) for _ in range(4)))
            assert {type(result) for result in await run.end()} == {Rejected}
            assert server.counts.arrived == 1

    run(main())


def test_a_straggler_is_sent_a_second_time_only_if_hedging_is_on():
    async def main(hedge):
        servers = [VirtualServer(latency=0.1, slots=4), VirtualServer(latency=0.2, slots=4)]
        config = PoolConfig(hedge=hedge, attempt_timeout=50.0)
        async with Run(*servers, limits=(4, 4), config=config) as run:
            run.submit(*(question(f"q{number}") for number in range(200)))
            await run.end()
            servers[0].next("hang")  # the fast one, which is asked first
            began = now()
            run.submit(question("straggler"))
            reply = (await run.end())[-1]
            assert isinstance(reply, Reply)
            return now() - began, reply.hedged, run.engine.stats().hedges

    seconds, hedged, hedges = run(main(True))
    assert hedged
    assert hedges >= 1
    assert seconds < 2.0
    seconds_without, hedged, hedges = run(main(False))
    assert not hedged
    assert hedges == 0
    assert seconds_without > 49.0


def test_hedges_stay_within_their_budget_and_losers_free_their_slots():
    async def main():
        server = VirtualServer(Behaviour(latency=LogNormal(0.1, 1.5), slots=64))
        config = PoolConfig(hedge=True, hedge_budget=0.02)
        async with Run(server, limits=(64,), config=config) as run:
            for _ in range(20):
                run.submit(*(question(f"q{len(run.jobs)}") for _ in range(50)))
                await run.end()
            stats = run.engine.stats()
            assert 0 < stats.hedges <= 0.02 * stats.requests + 1
            await asyncio.sleep(0)
            assert server.counts.in_flight == 0

    run(main())


def test_requests_per_minute_are_bounded():
    async def main():
        server = VirtualServer(Behaviour(latency=0.01, record=10_000))
        state = ServerState(server, rpm=120)
        engine = Engine([state])
        done = []
        for number in range(400):
            engine.submit(question(f"q{number}"), done.append)
        while len(done) < 400:
            await asyncio.sleep(0.1)
        times = arrivals(server)
        assert all(sum(begin <= at < begin + 60 for at in times) <= 120 + 20 + 1 for begin in times)
        assert now() > (400 - 20) / 2 - 1
        await engine.close()

    run(main())


def test_tokens_per_minute_are_bounded():
    async def main():
        server = VirtualServer(Behaviour(latency=0.01, answers=lambda call: "word " * 99))
        state = ServerState(server, tpm=6000)
        engine = Engine([state])
        done = []
        for number in range(100):
            engine.submit(question(f"q{number}"), done.append)
        while len(done) < 100:
            await asyncio.sleep(0.1)
        tokens = engine.stats().prompt_tokens + engine.stats().completion_tokens
        assert tokens >= 100 * 99
        assert now() > 60 * (tokens - 3000) / 6000
        await engine.close()

    run(main())


def test_retries_stay_within_their_budget():
    async def main(budget):
        server = VirtualServer(Behaviour(latency=0.01, faults=Faults(error=0.5), slots=16))
        config = PoolConfig(retry_budget=budget, attempts=1000, timeout=1e6)
        async with Run(server, limits=(16,), config=config) as run:
            run.submit(*(question(f"q{number}") for number in range(300)))
            await run.end()
            return now(), run.engine.stats().retries

    generous, retries = run(main(10.0))
    assert retries > 200
    strict, _ = run(main(0.0))
    assert strict > generous + 60.0  # what was saved up is 20 retries, and two more a second


def test_a_request_has_the_time_that_the_options_say():
    async def main():
        server = VirtualServer(latency=5.0)
        async with Run(server, config=PoolConfig(attempt_timeout=2.0, attempts=3)) as run:
            run.submit(question("q"))
            [failure] = await run.end()
            assert isinstance(failure, TimedOut)
            assert failure.attempts == 3
            assert server.counts.cancelled == 3

    run(main())


def test_the_limit_that_is_found_out_has_an_upper_limit():
    async def main():
        server = VirtualServer(latency=0.1)
        engine = Engine([ServerState(server, max_limit=7)])
        results = []
        for number in range(300):
            engine.submit(question(f"q{number}"), results.append)
        while len(results) < 300:
            await asyncio.sleep(0.1)
        await engine.close()
        assert server.counts.max_in_flight == 7

    run(main())


def test_texts_wait_for_each_other_as_long_as_they_are_told():
    async def main(wait):
        server = VirtualServer(latency=0.001)
        async with Run(server) as run:
            coalescer = Coalescer(run.engine, most=100, wait=wait)
            results = []
            for number in range(20):
                coalescer.submit(f"text {number}", "m", results.append)
                await asyncio.sleep(0.002)
            while len(results) < 20:
                await asyncio.sleep(0.01)
            return server.counts.arrived

    assert run(main(1.0)) == 1
    assert run(main(0.0)) == 20


def test_texts_share_requests_for_embeddings_and_come_back_to_their_own_callers():
    async def main():
        server = VirtualServer(latency=0.1, dim=8)
        async with Run(server) as run:
            coalescer = Coalescer(run.engine, most=32, wait=0.004)
            texts = [f"text {number} {'x' * (number * 7 % 50)}" for number in range(100)]
            results = {}
            for number, text in enumerate(texts):
                coalescer.submit(text, "m", lambda result, number=number: results.setdefault(number, result))
            while len(results) < 100:
                await asyncio.sleep(0.01)
            assert server.counts.arrived == 4
            alone = await server.ask(Call(kind="embed", model="m", inputs=(texts[17],)))
            np.testing.assert_array_equal(results[17].vector, alone.vectors[0])
            assert run.engine.stats().calls == 100

    run(main())


def test_a_text_that_is_refused_fails_alone():
    def embedding(text):
        if "bad" in text:
            raise Refusal("cannot embed this")
        return np.full(4, len(text), np.float32)

    async def main():
        server = VirtualServer(Behaviour(embedding=embedding))
        async with Run(server) as run:
            coalescer = Coalescer(run.engine, most=64, wait=0.004)
            results = {}
            for number in range(64):
                text = "bad" if number in (5, 40) else f"text {number}"
                text += " " * number
                coalescer.submit(text, "m", lambda result, number=number: results.setdefault(number, result))
            while len(results) < 64:
                await asyncio.sleep(0.01)
            assert [number for number in range(64) if isinstance(results[number], Rejected)] == [5, 40]
            assert server.counts.arrived <= 2 * 2 * 6 + 3

    run(main())


def test_a_list_of_embeddings_that_is_too_short_is_never_shared_out():
    async def main():
        server = VirtualServer(Behaviour(faults=Faults(short_embeddings=1.0)))
        async with Run(server, config=PoolConfig(attempts=2)) as run:
            coalescer = Coalescer(run.engine, most=8, wait=0.004)
            results = []
            for number in range(8):
                coalescer.submit(f"text {number}", "m", results.append)
            while len(results) < 8:
                await asyncio.sleep(0.01)
            assert {type(result) for result in results} <= {BadReply, Reply}

    run(main())


def test_closing_ends_every_call():
    async def main():
        server = VirtualServer(latency=1000.0)
        run = Run(server)
        run.submit(*(question(f"q{number}") for number in range(100)))
        await asyncio.sleep(1)
        await run.engine.close()
        assert {type(result) for result in await run.end()} == {Cancelled}
        run.submit(question("after the end"))
        assert isinstance((await run.end())[-1], Cancelled)
        assert server.counts.in_flight == 0

    run(main())


def test_an_endpoint_that_raises_something_else_costs_no_call_its_end():
    class Broken(VirtualServer):
        async def ask(self, call):
            raise ZeroDivisionError("a mistake")

    async def main():
        async with Run(Broken(), config=PoolConfig(attempts=2)) as run:
            run.submit(question("q"))
            [failure] = await run.end()
            assert isinstance(failure, ServerFailed)
            assert "ZeroDivisionError" in str(failure)
            assert isinstance(failure.__cause__, ZeroDivisionError)

    run(main())


def test_ended_calls_do_not_stay_in_memory():
    async def main():
        server = VirtualServer(Behaviour(latency=0.01, slots=64, record=1))
        async with Run(server) as run:
            for _ in range(20):
                run.submit(*(question(f"q{len(run.jobs)}") for _ in range(500)))
                await run.end()
                run.results.clear()
                run.jobs.clear()
            assert len(run.engine._deadlines._heap) < 4000

    run(main())


def test_of_the_calls_that_wait_those_with_a_lower_rank_are_sent_first_and_equal_ones_in_order():
    ranks = [5, 2, 0, 2, 1, 0]

    async def main():
        server = VirtualServer(latency=1.0, slots=1)
        async with Run(server, limits=[1]) as made:
            asked = [
                asyncio.ensure_future(made.engine.ask(question(f"{number}"), rank=rank))
                for number, rank in enumerate(ranks)
            ]
            await asyncio.gather(*asked)
        return [int(request.call.messages[0]["content"]) for request in server.requests]

    assert run(main()) == sorted(range(len(ranks)), key=lambda number: ranks[number])


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_server_that_reports_nothing_and_whose_latencies_scatter_widely_is_kept_busy(seed):
    """Latencies that scatter like this do not show whether they have grown, unless hundreds of them are compared."""
    latency = LogNormal(0.08, 1.0)
    server = VirtualServer(Behaviour(slots=32, latency=latency, reports_durations=False, seed=seed))

    async def ask():
        async with Run(server) as calls:
            calls.submit(*(question(f"question {number}") for number in range(4096)))
            await calls.end()
            mean = latency.median * np.exp(0.5)
            assert now() < 1.2 * 4096 * mean / 32  # virtual seconds
            assert calls.states[0].limit.value < 3 * 32

    run(ask())


def test_a_long_tail_of_service_times_leaves_no_slot_of_a_server_idle():
    """Long requests are answered after their round has ended; a mean without them would be too low, and so would the
    limit."""

    async def main():
        limits = []
        async with Run(VirtualServer(latency=LogNormal(0.08, 1.0), slots=32, seed=1)) as made:

            async def ask_one_after_another(caller):
                for number in range(40):
                    await made.engine.ask(question(f"{caller} {number}"))
                    limits.append(made.states[0].limit.value)

            await asyncio.gather(*map(ask_one_after_another, range(64)))
        return limits

    found = run(main())
    assert min(found[len(found) // 2 : -128]) >= 31


@pytest.mark.parametrize("away", [5.0, 20.0, 55.0])
def test_a_server_that_is_away_costs_the_time_it_is_away_and_no_call(away):
    """A call that is sent to see whether the server is back does not use up its attempts."""

    async def main():
        server = VirtualServer(latency=1.0, slots=4)
        loop = asyncio.get_running_loop()
        async with Run(server) as made:
            made.submit(*(question(f"{number}") for number in range(200)))
            await asyncio.sleep(10.0)
            server.down = True
            await asyncio.sleep(away)
            server.down = False
            while len(made.results) < 200:
                await asyncio.sleep(0.1)
        return loop.time(), [result for result in made.results.values() if isinstance(result, Failure)]

    seconds, failures = run(main())
    assert failures == []
    assert seconds <= 200 / 4 * 1.3 + away + 3.0


@pytest.mark.parametrize("seed", range(5))
def test_calls_that_looked_for_a_server_in_vain_are_not_late_when_it_is_back(seed):
    """Each of them has found it away several times, which is no reason for a longer and longer delay."""

    async def main():
        server = VirtualServer(latency=0.1, slots=4)
        loop = asyncio.get_running_loop()
        answered = []

        async with Run(server, config=PoolConfig(seed=seed)) as made:

            async def ask_one_after_another(caller):
                while loop.time() < 100.0:
                    reply = await made.engine.ask(question(f"{caller} {loop.time()}"))
                    assert isinstance(reply, Reply)
                    answered.append((caller, loop.time()))

            callers = asyncio.gather(*map(ask_one_after_another, range(4)))
            await asyncio.sleep(20.0)
            server.down = True
            await asyncio.sleep(50.0)
            server.down = False
            await callers
        return [min(at for caller, at in answered if caller == one and at > 21.0) - 70.0 for one in range(4)]

    late = run(main())
    assert max(late) < AWAY_LONGEST * 1.25 + 1.0
