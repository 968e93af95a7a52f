"""The clock that jumps: exact moments, no waiting, deadlocks and leftovers reported by name."""

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.core.errors import BrimError
from brim.core.wait.virtual_time import DeadlockError, LeftRunningError, run


def now():
    return asyncio.get_running_loop().time()


def test_a_year_of_sleep_is_a_year():
    async def sleep():
        await asyncio.sleep(365 * 24 * 3600)
        return now()

    assert run(sleep()) == 365 * 24 * 3600


@given(st.lists(st.integers(0, 50), min_size=1, max_size=20))
def test_tasks_wake_in_the_order_of_their_timers(delays):
    async def sleep_all():
        woken = []

        async def sleep(delay):
            await asyncio.sleep(delay)
            assert now() == pytest.approx(delay)
            woken.append(delay)

        await asyncio.gather(*map(sleep, delays))
        return woken

    assert run(sleep_all()) == sorted(delays)


def test_timeouts_expire_at_their_moment():
    async def expire():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(7):
                await asyncio.sleep(8)
        return now()

    assert run(expire()) == 7


def test_waiting_for_nothing_is_a_deadlock_that_names_who_waits():
    async def wait():
        async with asyncio.timeout(None):
            await asyncio.gather(asyncio.create_task(asyncio.Event().wait(), name="the one that waits"))

    with pytest.raises(DeadlockError, match=r"at 0\.0 seconds; these tasks wait: Task-\d+, the one that waits"):
        run(wait())


def test_a_task_that_ignores_being_cancelled_does_not_hide_the_deadlock(recwarn):
    async def stubborn():
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if stop:
                    raise
                stop.append(True)

    stop = []
    with pytest.raises(DeadlockError):
        run(stubborn())


def test_a_task_that_was_left_running_is_named():
    async def leave():
        leave.task = asyncio.create_task(asyncio.sleep(1), name="forgotten")

    with pytest.raises(LeftRunningError, match="forgotten"):
        run(leave())
    assert leave.task.cancelled()


def test_what_the_coroutine_raises_comes_out():
    async def fail():
        await asyncio.sleep(1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(fail())


def test_threads_are_refused():
    with pytest.raises(BrimError, match="threads do not live in virtual time"):
        run(asyncio.to_thread(time.sleep, 1))
