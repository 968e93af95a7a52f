"""What waits in threads of its own: the loop, and the iterator that is ahead."""

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import CancelledError

import pytest

from brim.core.wait.ahead import fetch_ahead
from brim.core.wait.loop import LoopThread, running_loop


@pytest.mark.parametrize("ahead", [1, 2, 50])
def test_never_more_than_asked_for_is_fetched_ahead_and_order_is_kept(ahead):
    made = []
    items = fetch_ahead((made.append(i) or i for i in range(20)), ahead)
    for taken, item in enumerate(items, 1):
        assert item == taken - 1
        assert len(made) <= taken + ahead + 1  # one more is in the thread's hands


def test_an_error_comes_where_the_item_would_have_come_and_leaving_ends_the_thread():
    def items():
        yield 1
        yield 2
        raise LookupError("no third")

    fetched = fetch_ahead(items(), 5)
    assert [next(fetched), next(fetched)] == [1, 2]
    with pytest.raises(LookupError, match="no third"):
        next(fetched)
    for _ in fetch_ahead(iter(range(100)), 3):
        break
    fetched.close()
    assert "brim-fetch" not in {thread.name for thread in threading.enumerate()}


def test_a_child_that_is_forked_during_an_iteration_gets_an_error_and_does_not_wait():
    """It has no thread. A process of its own forks, because this one has threads that must not be copied."""
    program = """
import itertools, os, sys
from brim.core.wait.ahead import fetch_ahead
items = fetch_ahead(itertools.count(), 2)
next(items)
child = os.fork()
if child == 0:
    try:
        for _ in range(10):
            next(items)
    except RuntimeError as error:
        print(error, flush=True)
        os._exit(0)
    os._exit(1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) or next(items) != 1)
"""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "this process was forked during an iteration; begin another one\n")


def test_tasks_keep_running_between_calls_and_stopping_cancels_them():
    cleaned = []

    async def background():
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.append(True)

    async def begin():
        begin.task = asyncio.create_task(background())
        await asyncio.sleep(0)

    with LoopThread("test loop") as thread:
        thread.call(begin())
        assert not begin.task.done()
        assert running_loop() is None
    assert cleaned == [True]
    with pytest.raises(CancelledError):
        thread.call(asyncio.sleep(0))
    assert "test loop" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), LookupError()], ids=lambda error: type(error).__name__
)
def test_whatever_a_coroutine_raises_comes_out_and_the_loop_goes_on(error):
    async def fail():
        raise error

    with LoopThread("test loop") as thread:
        with pytest.raises(type(error)):
            thread.call(fail())
        assert thread.call(asyncio.sleep(0, "still there")) == "still there"


def test_a_thread_whose_loop_was_ended_lets_nobody_wait():
    async def end_the_loop():
        asyncio.get_running_loop().stop()
        await asyncio.sleep(60)

    thread = LoopThread("short")
    with pytest.raises(CancelledError):
        thread.call(end_the_loop())
    thread.stop()
