"""Asking together in virtual time: whole batches, one answer each, and nobody waits for somebody who has ended."""

import asyncio
import random
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.core.errors import BrimError, DataError, OptionError
from brim.core.wait.together import Together
from brim.core.wait.virtual_time import run


class Answering:
    """Answers with ten times the item, after so many seconds; notes the batches."""

    def __init__(self, seconds=1.0):
        self.batches, self.seconds, self.running = [], seconds, 0

    def __call__(self, items):
        self.batches.append(list(items))
        return [item * 10 for item in items]

    async def later(self, items):
        self.batches.append(list(items))
        self.running += 1
        assert self.running == 1, "one batch at a time"
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.running -= 1
        return [item * 10 for item in items]


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=6),
    st.integers(0, 99),
    st.booleans(),
    st.none() | st.integers(1, 4),
)
def test_keys_that_have_begun_meet_in_the_same_batches_whatever_the_delays(delays, seed, is_async, most):
    """Key k asks len(delays[k]) times.

    The oracle: round n holds every key that asks more than n times, in order, split.
    """

    def play(shift):
        answering = Answering()

        async def lane(together, key):
            for step, delay in enumerate(delays[key]):
                await asyncio.sleep((delay * shift) % 7)
                assert await together.ask(key, 100 * key + step) == 10 * (100 * key + step)
            together.end(key)

        async def go():
            together = Together(
                answering.later if is_async else answering, in_thread=False, max_batch=most, order=lambda key: key
            )
            keys = list(range(len(delays)))
            for key in keys:
                together.begin(key)
            random.Random(seed + shift).shuffle(keys)
            await asyncio.gather(*(lane(together, key) for key in keys))
            assert (together.batches, together.items) == (len(answering.batches), sum(map(len, delays)))

        run(go())
        return answering.batches

    rounds = [
        [100 * key + step for key in range(len(delays)) if len(delays[key]) > step]
        for step in range(max(map(len, delays)))
    ]
    expected = [part[at : at + (most or 99)] for part in rounds for at in range(0, len(part), most or 99)]
    assert play(1) == play(3) == expected


@given(st.lists(st.integers(0, 40), min_size=1, max_size=20), st.integers(1, 5), st.integers(0, 10))
def test_without_keys_that_begin_a_batch_is_what_comes_in_time_and_nobody_waits_longer(moments, most, longest):
    answering = Answering(seconds=0)

    async def one(together, number, moment):
        await asyncio.sleep(moment)
        assert await together.ask(number, number) == 10 * number
        assert asyncio.get_running_loop().time() <= moment + longest + 0.001

    async def go():
        together = Together(answering.later, max_batch=most, max_wait=longest)
        await asyncio.gather(*(one(together, number, moment) for number, moment in enumerate(moments)))

    run(go())
    assert sorted(item for batch in answering.batches for item in batch) == list(range(len(moments)))
    assert max(map(len, answering.batches)) <= most


def test_requests_of_one_moment_make_one_batch():
    async def go():
        answering = Answering()
        together = Together(answering, in_thread=False)
        assert await asyncio.gather(*(together.ask(key, key) for key in range(5))) == [0, 10, 20, 30, 40]
        return answering.batches

    assert run(go()) == [[0, 1, 2, 3, 4]]


def test_a_slow_key_is_waited_for_no_longer_than_max_wait():
    async def go():
        answering = Answering()
        together = Together(answering, in_thread=False, max_wait=5)
        for key in range(3):
            together.begin(key)

        async def late():
            await asyncio.sleep(8)
            return await together.ask(2, 2)

        answers = await asyncio.gather(together.ask(0, 0), together.ask(1, 1), late())
        assert answers == [0, 10, 20]
        assert asyncio.get_running_loop().time() == 13
        return answering.batches

    assert run(go()) == [[0, 1], [2]]


def test_a_key_that_ends_or_is_cancelled_holds_nobody():
    async def go():
        together = Together(Answering(), in_thread=False)
        for key in range(4):
            together.begin(key)
        tasks = [asyncio.create_task(together.ask(key, key)) for key in range(3)]
        await asyncio.sleep(1)
        tasks[2].cancel()
        together.end(2)
        await asyncio.sleep(1)
        assert not any(task.done() for task in tasks[:2])  # 3 has begun and not asked
        together.end(3)
        assert await asyncio.gather(*tasks[:2]) == [0, 10]

    run(go())


def test_a_key_that_ends_while_it_waits_is_cancelled():
    async def go():
        together = Together(Answering(), in_thread=False)
        together.begin(0)
        together.begin(1)
        waiting = asyncio.create_task(together.ask(0, 0))
        await asyncio.sleep(1)
        together.end(0)
        with pytest.raises(asyncio.CancelledError):
            await waiting

    run(go())


def test_an_async_function_is_cancelled_when_nobody_waits_for_it():
    async def go():
        answering = Answering(seconds=100)
        together = Together(answering.later)
        tasks = [asyncio.create_task(together.ask(key, key)) for key in range(2)]
        await asyncio.sleep(1)
        tasks[0].cancel()
        await asyncio.sleep(1)
        assert answering.running == 1
        tasks[1].cancel()
        await asyncio.wait(tasks)
        assert answering.running == 0
        assert asyncio.get_running_loop().time() == 2
        answering.seconds = 1
        assert await together.ask("again", 7) == 70

    run(go())


@pytest.mark.parametrize(
    "error", [RuntimeError("out of memory"), SystemExit(3), StopIteration()], ids=lambda error: type(error).__name__
)
@pytest.mark.parametrize("how", ["sync", "async"])
def test_what_the_function_raises_all_who_wait_get_with_its_type(error, how):
    def answer(items):
        raise error

    async def answer_later(items):
        raise error

    async def ask(together, key):
        try:
            await together.ask(key, key)
        except BaseException as raised:
            return type(raised)

    async def go():
        together = Together(answer if how == "sync" else answer_later, in_thread=False)
        return await asyncio.gather(*(ask(together, key) for key in range(3)))

    assert run(go()) == [RuntimeError if isinstance(error, StopIteration) else type(error)] * 3


def test_a_wrong_number_of_answers_and_a_key_that_asks_twice_are_refused():
    async def go():
        together = Together(lambda items: [], in_thread=False)
        with pytest.raises(DataError, match="was asked for 1 answers and gave 0"):
            await together.ask(0, 0)
        together = Together(Answering(), in_thread=False)
        together.begin(1)
        waiting = asyncio.create_task(together.ask(0, 0))
        await asyncio.sleep(0)
        with pytest.raises(BrimError, match="has asked already"):
            await together.ask(0, 0)
        together.end(1)
        assert await waiting == 0

    run(go())
    with pytest.raises(OptionError, match="max_wait"):
        Together(list, max_wait=-1)
    with pytest.raises(OptionError, match="max_batch"):
        Together(list, max_batch=0)


def test_in_a_thread_the_loop_keeps_running_and_the_thread_ends_with_the_last_key():
    threads = []

    def answer(items):
        threads.append(threading.current_thread())
        return items

    async def go():
        together = Together(answer)
        together.begin(0)
        for number in range(3):
            assert await together.ask(0, number) == number
        together.end(0)
        await asyncio.sleep(0.01)

    asyncio.run(go())
    assert len(set(threads)) == 1
    threads[0].join(5)
    assert not threads[0].is_alive()


def test_a_loop_that_was_closed_in_the_middle_does_not_hold_the_next_one():
    never = threading.Event()
    together = Together(lambda items: never.wait(5) and items)

    async def left():
        together.begin(0)
        asyncio.get_running_loop().create_task(together.ask(0, 0))
        await asyncio.sleep(0.01)

    async def again():
        never.set()
        return await together.ask(1, 1)

    asyncio.run(left())
    assert asyncio.run(again()) == 1
