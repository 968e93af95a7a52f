"""Many environments at once: work is begun for some of them, and taken when it is done, in the order of completion.

Each piece of work is a coroutine in the event loop of the pool, so there is neither a thread nor a process for an
environment, and none waits for another. `begin` and `take` are called from one other thread.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from threading import TIMEOUT_MAX, Condition
from typing import Any

from brim.core.errors import BrimError, OptionError
from brim.envs.query.lane import Lane, Outcome

Work = Callable[[Lane], Coroutine[Any, Any, Outcome]]
"""A piece of work: a coroutine function of an environment."""
Done = tuple[int, Outcome | BaseException]


class Lanes:
    """Environments whose work runs in one event loop."""

    def __init__(self, lanes: Sequence[Lane], post: Callable[..., None]) -> None:
        """`post` calls a function in the thread of the event loop."""
        self.lanes = tuple(lanes)
        self._post = post
        self._busy: set[int] = set()
        """Environments whose work has begun and was not taken."""
        self._tasks: dict[int, asyncio.Task[Outcome | BaseException]] = {}
        self._inbox: deque[Done] = deque()
        self._change = Condition()

    @property
    def busy(self) -> frozenset[int]:
        """Numbers of the environments whose work was not taken yet."""
        return frozenset(self._busy)

    def begin(self, work: Mapping[int, Work]) -> None:
        """Begin work for environments by their numbers.

        Raises:
            OptionError: One of them is still at work.
        """
        if both := sorted(self._busy & work.keys()):
            raise OptionError(f"environment {both[0]} is still at work; take its result first")
        self._busy.update(work)
        try:
            self._post(self._begin, dict(work))
        except BrimError:
            self._busy.difference_update(work)
            raise

    def take(self, least: int, most: int | None = None, seconds: float | None = None) -> list[tuple[int, Outcome]]:
        """Wait until so many are done, and return all that are, in the order of completion, but at most `most`.

        Args:
            seconds: Time after which those that are done are returned, even if they are too few. The others stay at
                work.

        Raises:
            OptionError: Fewer are at work.
            BaseException: Whatever work raised that is no failure of a call.
        """
        if least > len(self._busy):
            raise OptionError(f"{least} results were asked for, and {len(self._busy)} environments are at work")
        ends = None if seconds is None or seconds > TIMEOUT_MAX else time.monotonic() + seconds
        with self._change:
            while len(self._inbox) < least:
                left = None if ends is None else ends - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._change.wait(left)
            return self._taken(len(self._inbox) if most is None else most)

    def cancel(self) -> None:
        """Cancel all work and wait for its end. States stay as they were before the work that was cancelled."""
        with suppress(BrimError):  # the pool is closed, so that nothing is at work
            self._post(self._cancel)
            with self._change:
                while len(self._inbox) < len(self._busy):
                    self._change.wait()
        self._busy.clear()
        self._inbox.clear()

    def _taken(self, most: int) -> list[tuple[int, Outcome]]:
        """Take what is done. If an error is among it, that is raised, and the rest stays there for the next time."""
        for number, outcome in list(islice(self._inbox, most)):
            if isinstance(outcome, BaseException):
                self._inbox.remove((number, outcome))
                self._busy.discard(number)
                raise outcome
        taken = [self._inbox.popleft() for _ in range(min(most, len(self._inbox)))]
        self._busy.difference_update(number for number, _ in taken)
        return [(number, outcome) for number, outcome in taken if isinstance(outcome, Outcome)]

    def _begin(self, work: Mapping[int, Work]) -> None:
        for number, do in work.items():
            task = asyncio.get_running_loop().create_task(_caught(do, self.lanes[number]))
            self._tasks[number] = task
            task.add_done_callback(lambda task, number=number: self._end(number, task))

    def _cancel(self) -> None:
        for task in list(self._tasks.values()):
            task.cancel()

    def _end(self, number: int, task: "asyncio.Task[Outcome | BaseException]") -> None:
        del self._tasks[number]
        if task.cancelled():
            result: Outcome | BaseException = BrimError("the work of an environment was cancelled")
        else:
            result = task.result()
        with self._change:
            self._inbox.append((number, result))
            self._change.notify_all()


async def _caught(do: Work, lane: Lane) -> Outcome | BaseException:
    """Return what work raises as a value: SystemExit and its like would end the event loop, and with it every call."""
    try:
        return await do(lane)
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return error
