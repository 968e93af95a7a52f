"""A child interpreter: it answers, says how it ended, and leaves when its socket closes."""

import operator
import os
import signal

import pytest

from brim.core.child import Child, ChildEndedError
from brim.data.pool import serve


@pytest.fixture
def child():
    started = Child(serve, environment={"BRIM_TEST_CHILD": "here"})
    yield started
    started.stop()


def test_a_child_answers_from_a_process_group_of_its_own(child):
    child.send(operator.call)
    for number, act in enumerate([os.getpid, os.getpgrp]):
        child.send((number, act))
        assert child.receive() == (number, child.process.pid)


def test_variables_are_added_to_those_of_this_process(child):
    child.send(os.getenv)
    child.send((0, "BRIM_TEST_CHILD"))
    assert child.receive() == (0, "here")
    assert "BRIM_TEST_CHILD" not in os.environ


@pytest.mark.parametrize(
    ("work", "item", "how"),
    [(os._exit, 3, "ended with status 3"), (signal.raise_signal, signal.SIGKILL, "was killed by SIGKILL")],
)
def test_a_child_that_ends_says_how_to_whoever_waits_or_sends(child, work, item, how):
    child.send(work)
    child.send((0, item))
    with pytest.raises(ChildEndedError, match=how):
        child.receive()
    with pytest.raises(ChildEndedError, match=how):
        child.send((1, item))


def test_ctrl_c_is_nothing_to_a_child_and_a_closed_socket_ends_it(child):
    child.send(operator.neg)
    child.send((0, 1))
    assert child.receive() == (0, -1)
    child.process.send_signal(signal.SIGINT)
    child.send((1, 2))
    assert child.receive() == (1, -2)
    child.channel.close()
    assert child.process.wait(timeout=60) == 0
