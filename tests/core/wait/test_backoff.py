"""Outages in virtual time: noticed once, waited for together, and given up when they are too long."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.core.errors import OptionError
from brim.core.wait.backoff import Backoff, Retry
from brim.core.wait.clock import Clock
from brim.core.wait.virtual_time import run


class UnreachableError(Exception): ...


class GarbageError(Exception): ...


class Server:
    """Listens outside of its outages; counts who knocks."""

    def __init__(self, *outages):
        self.outages, self.attempts = outages, []
        self.connecting = 0

    async def connect(self):
        now = asyncio.get_running_loop().time()
        self.attempts.append(now)
        self.connecting += 1
        try:
            await asyncio.sleep(0.001)
            if any(begin <= now < end for begin, end in self.outages):
                assert self.connecting == 1 or now == self.outages[0][0], "one at a time"
                raise UnreachableError("refused")
        finally:
            self.connecting -= 1
        return len(self.attempts)


def backoff_of(server, **options):
    return Backoff(server.connect, **{"server": "the test server", "unreachable": UnreachableError, **options})


@given(st.integers(1, 40), st.integers(0, 100), st.floats(0.001, 5), st.floats(5, 60))
def test_delays_double_up_to_their_limit_and_jitter_by_half_at_most(attempt, number, delay, longest):
    retry = Retry(delay=delay, max_delay=longest)
    seconds = retry.seconds(attempt, purpose="test", number=number)
    exponential = min(delay * 2 ** (attempt - 1), longest)
    assert exponential / 2 <= seconds <= exponential
    assert seconds == retry.seconds(attempt, purpose="test", number=number)


def test_the_jitter_depends_on_seed_purpose_number_and_attempt():
    retry = Retry(delay=1.0, max_delay=1.0)
    drawn = {
        retry.seconds(attempt, purpose=purpose, number=number)
        for attempt in (1, 2)
        for purpose in "ab"
        for number in (0, 1)
    }
    assert len(drawn) == 8
    assert Retry(delay=1.0, max_delay=1.0, seed=1).seconds(1, purpose="a") not in drawn


@pytest.mark.parametrize(
    "options", [{"retries": -1}, {"retries": 1.5}, {"delay": -1}, {"delay": 31}, {"max_delay": float("inf")}]
)
def test_delays_that_cannot_be_are_refused(options):
    with pytest.raises(OptionError):
        Retry(**options)


def test_a_server_that_was_never_reached_is_reported_at_once_unless_it_is_expected():
    async def go():
        server = Server((0, 10))
        with pytest.raises(UnreachableError, match="refused"):
            await backoff_of(server).connect()
        assert len(server.attempts) == 1
        await asyncio.sleep(1)
        await backoff_of(server, expected=True).connect()
        assert asyncio.get_running_loop().time() >= 10

    run(go())


@given(st.integers(1, 6), st.floats(1, 25))
def test_an_outage_is_waited_for_by_one_task_at_a_time_and_costs_nobody_his_deadline(tasks, length):
    async def go():
        clock, server = Clock(), Server((100, 100 + length))
        backoff = backoff_of(server, clock=clock)
        await backoff.connect()
        await asyncio.sleep(100 - asyncio.get_running_loop().time())

        async def reconnect():
            limit = asyncio.timeout(None)
            async with limit:
                with clock.running(limit, 1.0):
                    await backoff.connect()

        await asyncio.gather(*(reconnect() for _ in range(tasks)))
        assert backoff.lost is None
        assert 100 + length <= asyncio.get_running_loop().time() <= 100 + length + 31
        assert len(server.attempts) <= 1 + tasks + 12 + tasks

    run(go())


def test_a_server_that_stays_unreachable_is_lost_for_everybody():
    async def go():
        server = Server((1, 1e9))
        backoff = backoff_of(server, retry=Retry(retries=3, delay=1, max_delay=8))
        await backoff.connect()
        await asyncio.sleep(1 - asyncio.get_running_loop().time())
        errors = await asyncio.gather(*(backoff.connect() for _ in range(3)), return_exceptions=True)
        assert {type(error) for error in errors} == {UnreachableError}
        assert {str(error) for error in errors} == {str(backoff.lost)}
        assert "the test server has been unreachable for" in str(backoff.lost)
        assert 8 <= asyncio.get_running_loop().time() < 24
        tried = len(server.attempts)
        with pytest.raises(UnreachableError):
            await backoff.connect()
        assert len(server.attempts) == tried

    run(go())


def test_failures_in_a_row_lose_the_server_and_an_answer_in_between_forgives_them():
    async def go():
        backoff = backoff_of(Server(), max_failures=3)
        for _ in range(5):
            backoff.failed(GarbageError("x"))
            backoff.failed(GarbageError("y"))
            assert backoff.lost is None
            backoff.answered()
        for _ in range(3):
            backoff.failed(GarbageError("z"))
        assert isinstance(backoff.lost, GarbageError)
        assert "3 attempts in a row ended in an error, and it answered nothing in between; the last: z" in str(
            backoff.lost
        )
        with pytest.raises(UnreachableError):
            await backoff.connect()

    run(go())


def test_an_error_that_needs_more_than_a_message_becomes_the_one_for_unreachable():
    class StrangeError(Exception):
        def __init__(self, one, two): ...

    async def go():
        backoff = backoff_of(Server(), max_failures=1)
        backoff.failed(StrangeError(1, 2))
        assert isinstance(backoff.lost, UnreachableError)

    run(go())


def test_what_else_connecting_raises_comes_out_and_the_server_counts_as_reached():
    errors = iter([GarbageError("who are you"), UnreachableError("refused"), None])

    async def connect():
        if (error := next(errors)) is not None:
            raise error
        return "connection"

    async def go():
        backoff = Backoff(connect, server="the test server", unreachable=UnreachableError)
        with pytest.raises(GarbageError):
            await backoff.connect()
        assert await backoff.connect() == "connection"

    run(go())


def test_a_server_can_ask_for_a_longer_pause():
    async def go():
        backoff = backoff_of(Server(), retry=Retry(delay=1, max_delay=2))
        await backoff.pause(1, 7)
        assert 0.5 <= asyncio.get_running_loop().time() <= 1
        before = asyncio.get_running_loop().time()
        await backoff.pause(1, 7, at_least=20)
        assert asyncio.get_running_loop().time() == pytest.approx(before + 20)

    run(go())


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=5), st.integers(1, 20))
def test_a_deadline_comes_after_so_many_seconds_in_which_the_clock_was_not_paused(spans, seconds):
    async def go():
        clock = Clock()

        async def pausing():
            for before, length in spans:
                await asyncio.sleep(before)
                clock.pause()
                await asyncio.sleep(length)
                clock.resume()

        pauses = asyncio.create_task(pausing())
        limit = asyncio.timeout(None)
        with pytest.raises(TimeoutError):
            async with limit:
                with clock.running(limit, seconds):
                    await asyncio.sleep(1e6)
        ended = asyncio.get_running_loop().time()
        await pauses
        return ended

    # The oracle: go through the seconds one by one.
    paused = [second >= before for before, length in spans for second in range(before + length)]
    at = left = 0
    while left < seconds:
        left += not (paused[at] if at < len(paused) else False)
        at += 1
    assert run(go()) == pytest.approx(at)


def test_pauses_overlap():
    async def go():
        clock = Clock()
        limit = asyncio.timeout(None)
        with pytest.raises(TimeoutError):
            async with limit:
                clock.pause()
                with clock.running(limit, 5):
                    clock.pause()
                    await asyncio.sleep(10)
                    clock.resume()
                    await asyncio.sleep(10)
                    assert clock.paused
                    clock.resume()
                    await asyncio.sleep(1e6)
        return asyncio.get_running_loop().time()

    assert run(go()) == 25
