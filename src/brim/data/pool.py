"""An ordered parallel map over worker processes, with an upper limit of the items in flight.

Workers are children of `brim.core.child`: they never run the caller's main module, Ctrl-C reaches only the parent, and
a worker whose parent died exits after its current item. A worker that dies raises an error in the parent, and never
causes a hang.
"""

import os
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from brim.core.child import Child, ChildEndedError
from brim.core.errors import BrimError

Item = TypeVar("Item")
Result = TypeVar("Result")

QUEUED = 2  # items sent to one worker: the current one and the next, so that it never waits for the parent
AHEAD = 4  # items per worker that may be in progress, or finished and waiting for an earlier one

# One thread in each worker: the parallelism comes from the processes.
SINGLE = {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ordered_map(work: Callable[[Item], Result], items: Iterable[Item], *, workers: int) -> Generator[Result]:
    """Yield the results of `map(work, items)`, in order, from `workers` processes; with one worker, from this process.

    `work` is pickled once for each process. Close the generator (`contextlib.closing`) if it may be abandoned before
    its end: the workers live as long as it does.

    Raises:
        BrimError: `work` failed, with the error of the earliest item that failed; or a worker process died.
    """
    if workers <= 1:
        yield from map(work, items)
        return
    crew: list[_Worker] = []
    try:
        for _ in range(workers):
            crew.append(_Worker())
        for worker in crew:
            worker.send(work)
        yield from _run(crew, enumerate(items))
    finally:
        for worker in crew:
            worker.stop()


def _run(crew: list["_Worker"], items: Iterator[tuple[int, Any]]) -> Iterator[Any]:
    done: dict[int, Any] = {}
    given = taken = 0
    more = True
    while True:
        while more and given - taken < AHEAD * len(crew):
            worker = min(crew, key=lambda worker: worker.held)
            if worker.held >= QUEUED:
                break
            item = next(items, None)
            if item is None:
                more = False
                break
            worker.send(item)
            worker.held += 1
            given += 1
        if taken in done:
            outcome = done.pop(taken)
            taken += 1
            if isinstance(outcome, BrimError):
                raise outcome
            yield outcome
        elif taken == given:
            return
        else:
            for worker in _ready(crew):
                number, outcome = worker.receive()
                done[number] = outcome


def _ready(crew: list["_Worker"]) -> list["_Worker"]:
    ready = wait([worker.channel for worker in crew if worker.held])
    return [worker for worker in crew if worker.channel in ready]


class _Worker:
    """The parent's side of a worker."""

    def __init__(self) -> None:
        self._child = Child(serve, environment=SINGLE)
        self.channel = self._child.channel
        self.held = 0
        self.stop = self._child.stop

    def send(self, message: Any) -> None:
        try:
            self._child.send(message)
        except ChildEndedError as error:
            raise _died(error) from None

    def receive(self) -> tuple[int, Any]:
        try:
            self.held -= 1
            return self._child.receive()
        except ChildEndedError as error:
            raise _died(error) from None


def _died(how: ChildEndedError) -> BrimError:
    return BrimError(
        f"a worker process {how}; if memory ran out, use fewer workers. Run again to continue where this stopped"
    )


def serve(channel: "Connection[Any, Any]") -> None:
    """Run in a worker process: receive `work`, then items, and answer each with its number and its outcome."""
    work: Callable[[Any], Any] = channel.recv()
    while True:
        number, item = channel.recv()
        channel.send((number, _outcome(work, item)))


def _outcome(work: Callable[[Any], Any], item: Any) -> Any:
    try:
        return work(item)
    except BrimError as error:
        return error
    except Exception as error:  # a bug in brim: the traceback goes to stderr, one line to the parent
        traceback.print_exc()
        return BrimError(f"a worker failed with {type(error).__name__}: {' '.join(str(error).split())[:300]}")
