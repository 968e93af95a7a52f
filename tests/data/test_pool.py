import math
import operator
import os
import signal

import pytest

from brim.core.errors import BrimError
from brim.data import pool
from brim.data.pool import ordered_map


def test_results_come_in_the_order_of_the_items():
    assert list(ordered_map(operator.neg, range(200), workers=3)) == [-number for number in range(200)]


def test_items_are_taken_only_a_bounded_number_ahead():
    taken = []

    def items():
        for number in range(100):
            taken.append(number)
            yield number

    for number, result in enumerate(ordered_map(operator.neg, items(), workers=2)):
        assert result == -number
        assert len(taken) <= number + 1 + pool.AHEAD * 2


def test_no_items_give_no_results():
    assert list(ordered_map(operator.neg, [], workers=2)) == []


def test_on_one_worker_it_is_a_map():
    assert list(ordered_map(lambda number: number * 2, [1, 2], workers=1)) == [2, 4]


def test_a_failure_is_raised_when_its_turn_comes():
    results = ordered_map(math.sqrt, [4, 9, -1, 16], workers=2)
    assert [next(results), next(results)] == [2, 3]
    with pytest.raises(BrimError, match="a worker failed with ValueError"):
        next(results)


def test_a_worker_that_is_killed_is_an_error_and_not_a_hang():
    with pytest.raises(BrimError, match="was killed by SIGKILL; if memory ran out, use fewer workers"):
        list(ordered_map(signal.raise_signal, [signal.SIGKILL] * 5, workers=2))


def test_a_worker_that_ends_is_an_error_with_its_status():
    with pytest.raises(BrimError, match="a worker process ended with status 3"):
        list(ordered_map(os._exit, [3] * 5, workers=2))


def test_workers_have_one_tokenizer_thread_and_this_process_keeps_its_environment():
    before = dict(os.environ)
    assert list(ordered_map(os.getenv, ["RAYON_NUM_THREADS", "TOKENIZERS_PARALLELISM"], workers=2)) == ["1", "false"]
    assert dict(os.environ) == before


def test_no_worker_is_left_when_the_caller_stops_early():
    pids = ordered_map(_pid, range(50), workers=2)
    pid = next(pids)
    pids.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def _pid(_):
    return os.getpid()
