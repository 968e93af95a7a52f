"""Lanes in virtual time: in order, once, never too far ahead, and nothing is left running."""

import asyncio
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.core.errors import BrimError
from brim.core.wait.clock import Clock
from brim.core.wait.lanes import Dispatcher, Lanes
from brim.core.wait.virtual_time import run


class Sleeper:
    """Works as long as a table says; notes what it did."""

    def __init__(self, seconds=lambda number: 1.0, log=None):
        self.seconds, self.log = seconds, [] if log is None else log
        self.closed = 0

    async def work(self, number):
        self.log.append(number)
        await asyncio.sleep(self.seconds(number))
        return f"result {number}"

    async def close(self):
        await asyncio.sleep(0.5)
        self.closed += 1


async def taken(lanes, *, pause=0.0, most=None):
    results = []
    while len(results) != most and (result := await lanes.next()) is not None:
        results.append(result)
        await asyncio.sleep(pause)
    return results


@given(
    st.integers(1, 5),
    st.integers(0, 25),
    st.sets(st.integers(0, 25), max_size=6),
    st.integers(0, 5),
    st.lists(st.integers(0, 9), min_size=26, max_size=26),
    st.booleans(),
)
@settings(max_examples=80)
def test_every_number_is_worked_on_once_and_comes_back_once_in_order(count, stop, skip, first, seconds, ordered):
    async def go():
        begun, log = [], []
        workers = [Sleeper(lambda number: seconds[number], log) for _ in range(count)]
        results = await taken(
            lanes := Lanes(workers, first=first, stop=stop, skip=skip, ordered=ordered, began=begun.append)
        )
        await lanes.aclose()
        assert [worker.closed for worker in workers] == [1] * count
        assert sorted(log) == begun
        return begun, results

    expected = [number for number in range(first, stop) if number not in skip]
    begun, results = run(go())
    assert begun == expected
    if not ordered:
        results.sort()
    assert results == [(number, f"result {number}") for number in expected]


@given(st.integers(1, 4), st.integers(1, 8), st.lists(st.integers(0, 9), min_size=30, max_size=30), st.integers(0, 3))
def test_nobody_runs_ahead_of_the_slowest_worker_or_of_the_consumer(count, ahead, seconds, pause):
    async def go():
        begun, ended, given = [], set(), 0

        def began(number):
            unfinished = min(set(range(30)) - ended)
            assert number - unfinished < ahead
            begun.append(number)

        workers = [Sleeper(lambda number: seconds[number], log := []) for _ in range(count)]
        lanes = Lanes(workers, stop=30, ahead=ahead, began=began, ended=ended.add)
        while await lanes.next() is not None:
            given += 1
            await asyncio.sleep(pause)
            assert len(log) <= given + ahead + count  # done and not taken, and being worked on
        await lanes.aclose()
        assert begun == list(range(30))

    run(go())


def test_a_number_goes_to_whoever_is_free_so_a_fast_worker_takes_more():
    async def go():
        fast, slow = Sleeper(lambda number: 1), Sleeper(lambda number: 10)
        lanes = Lanes([fast, slow], stop=22, ahead=40)
        await taken(lanes)
        await lanes.aclose()
        return len(fast.log), len(slow.log)

    assert run(go()) == (20, 2)


def test_what_a_worker_raises_comes_out_after_the_results_that_were_ready():
    class Failing(Sleeper):
        async def work(self, number):
            await super().work(number)
            if number == 3:
                raise LookupError("number 3")

    async def go():
        workers = [Failing(lambda number: 1 + number) for _ in range(2)]
        lanes, results = Lanes(workers, stop=10), []
        with pytest.raises(LookupError, match="number 3"):
            while (result := await lanes.next()) is not None:
                results.append(result[0])
        await lanes.aclose()
        assert [worker.closed for worker in workers] == [1, 1]
        return results

    assert run(go()) == [0, 1, 2]


def test_a_worker_that_cancels_itself_is_an_error_with_a_name():
    class Cancelling(Sleeper):
        async def work(self, number):
            raise asyncio.CancelledError

    async def go():
        lanes = Lanes([Cancelling()], name="test")
        with pytest.raises(BrimError, match="test lane 0 was cancelled by its own work"):
            await lanes.next()
        await lanes.aclose()

    run(go())


@given(st.integers(1, 4), st.integers(0, 8), st.floats(0, 20))
def test_stopped_at_any_moment_every_number_that_began_has_ended_and_every_worker_is_closed(count, most, moment):
    async def go():
        began, ended = [], []
        workers = [Sleeper(lambda number: number % 4) for _ in range(count)]
        lanes = Lanes(workers, began=began.append, ended=ended.append)
        results = await taken(lanes, most=most)
        await asyncio.sleep(moment)
        lanes.stop()
        assert lanes.over
        assert await lanes.next() is None
        await lanes.aclose()
        assert sorted(ended) == began
        assert len(results) == most
        assert [worker.closed for worker in workers] == ([1] * count if most else [0] * count)

    run(go())


def test_the_clock_stands_still_while_lanes_wait_for_the_consumer():
    async def go():
        clock = Clock()
        lanes = Lanes([Sleeper()], ahead=2, clock=clock)
        assert await lanes.next() == (0, "result 0")
        await asyncio.sleep(0.5)
        assert not clock.paused
        await asyncio.sleep(10)
        assert clock.paused
        assert await lanes.next() == (1, "result 1")
        assert not clock.paused
        await lanes.aclose()

    run(go())


def test_a_hook_that_raises_ends_the_lanes():
    def ended(number):
        if number == 2:
            raise LookupError("enough")

    async def go():
        lanes = Lanes([Sleeper()], ended=ended)
        assert [number for number, _ in await taken(lanes, most=3)] == [0, 1, 2]
        with pytest.raises(LookupError, match="enough"):
            await lanes.next()
        await lanes.aclose()

    run(go())


def test_code_that_is_not_async_takes_results_from_a_thread():
    lanes = Lanes([Sleeper(lambda number: 0.001) for _ in range(3)], stop=20, name="test")
    results = []
    while (result := lanes.take()) is not None:
        results.append(result[0])
    assert results == list(range(20))
    lanes.stop()
    assert lanes.take() is None
    assert "test lanes" not in {thread.name for thread in threading.enumerate()}


@given(
    st.integers(1, 4),
    st.integers(1, 8),
    st.integers(0, 30),
    st.sets(st.integers(0, 30), max_size=8),
    st.randoms(use_true_random=False),
)
@settings(max_examples=60)
def test_positions_are_given_once_in_order_and_never_too_far_ahead(lanes, ahead, count, skip, random):
    async def go():
        begun, finished = [], set()
        dispatcher = Dispatcher(first=0, stop=count, skip=skip, ahead=ahead, began=begun.append)
        working = [dispatcher.ask() for _ in range(lanes)]
        while working:
            ready = [each for each in working if each.done()]
            assert ready  # somebody can always go on
            chosen = random.choice(ready)
            working.remove(chosen)
            if chosen.result() is not None:
                unfinished = min(set(range(count)) - skip - finished)
                assert begun[-1] - unfinished < ahead
                finished.add(chosen.result())
                dispatcher.finish(chosen.result())
                working.append(dispatcher.ask())
        assert begun == sorted(set(range(count)) - skip)

    run(go())
