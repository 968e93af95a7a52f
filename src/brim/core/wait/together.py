"""Ask once for all who wait: one call of a model instead of one for every lane.

A `Together` belongs to one event loop. The function that answers may be async, or run in a thread, or in the loop
itself; it is asked for one batch at a time.
"""

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, NamedTuple, TypeVar, cast

from brim.core.errors import BrimError, DataError, OptionError
from brim.core.options import check_counts
from brim.core.wait.loop import running_loop

KeyT = TypeVar("KeyT", bound=Hashable)
ItemT = TypeVar("ItemT")
AnswerT = TypeVar("AnswerT")


class _Asked(NamedTuple, Generic[KeyT, ItemT, AnswerT]):
    """One question."""

    key: KeyT
    item: ItemT
    answer: "asyncio.Future[AnswerT]"


class Together(Generic[KeyT, ItemT, AnswerT]):
    """Collects items from many tasks, and has them answered in batches.

    Keys that have begun and not ended are waited for: the function is called when every one of them has asked. Which
    items meet in a batch then depends on the course of the work alone, never on who was faster. While no key has begun,
    a batch is whatever was asked up to the next turn of the event loop, or, with `max_wait`, until `max_batch` items
    are there.

    An error that the function raises goes to all who waited for it. A function in a thread that never returns holds
    nobody: when all who waited were cancelled or have ended, its thread is abandoned. An async function is cancelled
    when nobody waits for it any more.

    Example:
        together = Together(model.generate, max_batch=64, max_wait=0.01)
        tokens = await together.ask(request_id, prompt)
    """

    def __init__(
        self,
        answer: Callable[[Sequence[ItemT]], Sequence[AnswerT] | Awaitable[Sequence[AnswerT]]],
        *,
        in_thread: bool = True,
        max_batch: int | None = None,
        max_wait: float | None = None,
        order: Callable[[KeyT], Any] | None = None,
    ) -> None:
        """
        Args:
            answer: Gets the items of a batch and returns an answer for each, in that order. May be async.
            in_thread: Whether a function that is not async is called in a thread, so that the loop keeps running;
                always in the same one while anybody waits.
            max_batch: Upper limit of the items of a batch. If more are waiting, they are split.
            max_wait: Seconds after which the first item that waits is waited for no longer: the batch is what is there.
            order: Key function by which the items of a batch are sorted; in the order of asking unless given.
        """
        check_counts(max_batch=max_batch)
        if max_wait is not None and not 0 <= max_wait < float("inf"):
            raise OptionError(f"max_wait must be a number of seconds that is not negative, got {max_wait!r}")
        self.batches = 0
        """Number of calls of the function."""
        self.items = 0
        """Number of items in all calls."""
        self._function = answer
        call = getattr(answer, "__call__", None)  # noqa: B004  of an object that can be called
        self._is_async = inspect.iscoroutinefunction(answer) or inspect.iscoroutinefunction(call)
        self._in_thread = in_thread
        self._max_batch = max_batch
        self._max_wait = max_wait
        self._order = order
        self._begun: set[KeyT] = set()
        self._waiting: dict[KeyT, _Asked[KeyT, ItemT, AnswerT]] = {}
        self._queue: deque[list[_Asked[KeyT, ItemT, AnswerT]]] = deque()
        """Batches that are closed and not asked yet."""
        self._asked: list[_Asked[KeyT, ItemT, AnswerT]] | None = None
        """The batch that is being answered."""
        self._call: asyncio.Task[None] | None = None
        """The call of an async function."""
        self._worker: _Worker | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._overdue = False
        self._looking = False
        """True if a look is scheduled."""
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self, key: KeyT) -> None:
        """Wait for this key from now on: no batch is asked without it."""
        self._enter_loop()
        self._begun.add(key)

    async def ask(self, key: KeyT, item: ItemT) -> AnswerT:
        """The answer to an item.

        Raises:
            BrimError: This key is waiting for an answer already.
            BaseException: What the function raised.
        """
        self._enter_loop()
        if key in self._waiting:
            raise BrimError(f"{key!r} has asked already and waits for its answer; ask under another key")
        loop = asyncio.get_running_loop()
        asked: _Asked[KeyT, ItemT, AnswerT] = _Asked(key, item, loop.create_future())
        if not self._waiting and self._max_wait is not None:
            self._timer = loop.call_later(self._max_wait, self._expire)
        self._waiting[key] = asked
        self._look_soon()
        try:
            return await asked.answer
        finally:
            if self._waiting.get(key) is asked:
                del self._waiting[key]
                self._stop_timer_if_unused()
            call = self._call
            if call is not None and self._is_unwanted:
                call.cancel()
                await asyncio.wait([call])

    def end(self, key: KeyT) -> None:
        """Wait for this key no longer. A question that it still has is cancelled.

        Whether the others can be asked is looked at in the next turn of the event loop, so that another key can begin
        in its place first.
        """
        self._begun.discard(key)
        for asked in [
            *(self._asked or ()),
            *(asked for batch in self._queue for asked in batch),
            *self._waiting.values(),
        ]:
            if asked.key == key:
                asked.answer.cancel()
        self._waiting.pop(key, None)
        self._stop_timer_if_unused()
        self._look_soon()

    def _enter_loop(self) -> None:
        """Forget what was left behind in a loop that was closed, so that the next loop can begin afresh."""
        loop = running_loop()
        if loop is None or loop is self._loop:
            return
        if self._loop is not None and self._loop.is_closed():
            self._begun.clear()
            self._waiting.clear()
            self._stop_timer_if_unused()
            self._looking = False
            self._call = None
            self._abandon()
        self._loop = loop

    @property
    def _is_unwanted(self) -> bool:
        return self._asked is not None and all(asked.answer.done() for asked in self._asked)

    def _look_soon(self) -> None:
        if not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        """Ask a batch if one is complete, or stop if no caller is left."""
        self._looking = False
        if not self._begun and not self._waiting and (self._asked is None or self._is_unwanted):
            self._abandon()
        elif self._asked is None and self._waiting and self._is_complete:
            self._close_batches()
            self._ask_next()

    @property
    def _is_complete(self) -> bool:
        if self._overdue:
            return True
        if self._begun:
            return self._begun <= self._waiting.keys()
        return self._max_wait is None or (self._max_batch is not None and len(self._waiting) >= self._max_batch)

    def _expire(self) -> None:
        self._overdue = True
        self._look_soon()

    def _stop_timer_if_unused(self) -> None:
        if not self._waiting and self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._overdue = False

    def _close_batches(self) -> None:
        asked = list(self._waiting.values())
        if (order := self._order) is not None:
            asked.sort(key=lambda one: order(one.key))
        size = self._max_batch or len(asked)
        self._queue.extend(asked[at : at + size] for at in range(0, len(asked), size))
        self._waiting.clear()
        self._stop_timer_if_unused()

    def _ask_next(self) -> None:
        """Ask the next batch that is closed, without those who have stopped waiting."""
        while self._queue:
            batch = [asked for asked in self._queue.popleft() if not asked.answer.done()]
            if not batch:
                continue
            self._start(batch)
            return
        self._look_soon()

    def _start(self, batch: "list[_Asked[KeyT, ItemT, AnswerT]]") -> None:
        self._asked = batch
        self.batches += 1
        self.items += len(batch)
        loop = asyncio.get_running_loop()
        if self._is_async:
            self._call = loop.create_task(self._call_async(batch), name="ask together")
        elif self._in_thread:
            if self._worker is None:
                self._worker = _Worker()
            self._worker.do(lambda: _call_in(loop, self._deliver, batch, *self._decide(batch)))
        else:
            loop.call_soon(lambda: self._deliver(batch, *self._decide(batch)))

    def _decide(self, batch: "list[_Asked[KeyT, ItemT, AnswerT]]") -> tuple[Sequence[AnswerT], BaseException | None]:
        try:
            return self._checked(batch, cast(Sequence[AnswerT], self._function([asked.item for asked in batch]))), None
        except BaseException as error:  # it belongs to those who wait, whatever it is
            return (), error

    async def _call_async(self, batch: "list[_Asked[KeyT, ItemT, AnswerT]]") -> None:
        answers: Sequence[AnswerT] = ()
        error: BaseException | None = None
        try:
            answers = self._checked(
                batch, await cast(Awaitable[Sequence[AnswerT]], self._function([asked.item for asked in batch]))
            )
        except asyncio.CancelledError:
            error = BrimError(f"{self._name} was cancelled before it answered")
            raise
        except BaseException as raised:  # it belongs to those who wait, whatever it is
            error = raised
        finally:
            self._call = None
            self._deliver(batch, answers, error)

    def _checked(self, batch: "list[_Asked[KeyT, ItemT, AnswerT]]", answers: Sequence[AnswerT]) -> Sequence[AnswerT]:
        if len(answers) != len(batch):
            raise DataError(
                f"{self._name} was asked for {len(batch)} answers and gave {len(answers)}; it must give one for each "
                "item"
            )
        return answers

    @property
    def _name(self) -> str:
        return getattr(self._function, "__qualname__", type(self._function).__name__)

    def _deliver(
        self, batch: "list[_Asked[KeyT, ItemT, AnswerT]]", answers: Sequence[AnswerT], error: BaseException | None
    ) -> None:
        for at, asked in enumerate(batch):
            if asked.answer.done():
                continue
            if error is None:
                asked.answer.set_result(answers[at])
            elif isinstance(error, StopIteration):  # a future cannot carry it
                asked.answer.set_exception(RuntimeError(f"{self._name} raised {error!r}"))
            else:
                asked.answer.set_exception(error)
        if self._asked is batch:  # else it was abandoned, and its thread has returned after all
            self._asked = None
            self._ask_next()

    def _abandon(self) -> None:
        """Nobody is there: let go of the thread, which may never return."""
        self._asked = None
        self._queue.clear()
        if self._worker is not None:
            self._worker.leave()
            self._worker = None


class _Worker:
    """A thread that does one job after the other until it is left. Nobody waits for it, not even the end of the
    program."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        Thread(target=self._work, name="ask together", daemon=True).start()

    def do(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)

    def leave(self) -> None:
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


def _call_in(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: Any) -> None:
    with suppress(RuntimeError):  # the loop was closed in the meantime, and with it all who waited
        loop.call_soon_threadsafe(function, *arguments)
