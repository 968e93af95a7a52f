"""One decision for many lanes: a language model is asked once for all episodes that wait, not once for each."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any

from brim.core.errors import DataError
from brim.envs.puzzle.policy import EpisodeSpec, Turn

Choose = Callable[[Sequence[Turn]], Sequence[str | None]]
_Batch = list[tuple[Turn, "asyncio.Future[str | None]"]]


class Together:
    """A policy that waits until every episode which has begun and not ended is waiting for an action, and then chooses for all at once.

    `choose` gets the turns sorted by the number of their episode, and answers in that order. Which turns meet depends on the course of the
    episodes alone, never on which server answered first. An episode that is reconnecting keeps the others waiting, as long as its own
    deadlines let it; one that ended, however it ended, does not. What `choose` raises, all who waited get. A `choose` that never returns
    keeps nobody: episodes run out of time, and when all have ended its thread is left to itself.
    """

    name = "together"
    wants_hints = False

    def __init__(self, choose: Choose, *, in_thread: bool = True, wants_hints: bool = False) -> None:
        """With `in_thread` the lanes' loop goes on while `choose` computes, always in the same thread while there are episodes."""
        self._choose, self._in_thread = choose, in_thread
        self.wants_hints = wants_hints
        self._playing: set[int] = set()
        self._waiting: dict[int, tuple[Turn, asyncio.Future[str | None]]] = {}
        self._asked: _Batch | None = None
        """What `choose` is deciding on."""
        self._worker: _Worker | None = None
        self.batches = 0
        self.turns = 0

    def begin(self, episode: EpisodeSpec) -> None:
        self._playing.add(episode.number)

    async def act(self, turn: Turn) -> str | None:
        number = turn.episode.number
        answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._playing.add(number)
        self._waiting[number] = (turn, answer)
        self._look()
        try:
            return await answer
        finally:
            if self._waiting.get(number, (None, None))[1] is answer:
                del self._waiting[number]

    def end(self, episode: EpisodeSpec) -> None:
        """Looks whether the others can go on, but only after the lane had its chance to begin another episode."""
        self._playing.discard(episode.number)
        self._waiting.pop(episode.number, None)
        asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        if not self._playing:
            self._asked = None
            if self._worker is not None:
                self._worker.leave()
                self._worker = None
        elif self._asked is None and self._playing <= self._waiting.keys():
            batch = self._asked = [self._waiting[number] for number in sorted(self._waiting)]
            self._waiting.clear()
            self.batches, self.turns = self.batches + 1, self.turns + len(batch)
            loop = asyncio.get_running_loop()
            if not self._in_thread:
                loop.call_soon(lambda: self._answer(batch, *self._decide(batch)))
                return
            if self._worker is None:
                self._worker = _Worker()
            self._worker.do(lambda: _call_in(loop, self._answer, batch, *self._decide(batch)))

    def _decide(self, batch: _Batch) -> tuple[Sequence[str | None], BaseException | None]:
        turns = [turn for turn, _ in batch]
        try:
            answers = self._choose(turns)
            if len(answers) != len(turns):
                raise DataError(f"choose was asked for {len(turns)} actions and gave {len(answers)}")
        except BaseException as error:  # it belongs to those who wait, whatever it is
            return (), error
        return answers, None

    def _answer(self, batch: _Batch, answers: Sequence[str | None], error: BaseException | None) -> None:
        for at, (_, answer) in enumerate(batch):
            if answer.done():
                continue
            if error is None:
                answer.set_result(answers[at])
            elif isinstance(error, StopIteration):  # a future cannot carry it
                answer.set_exception(RuntimeError(f"choose raised {error!r}"))
            else:
                answer.set_exception(error)
        if self._asked is batch:
            self._asked = None
            asyncio.get_running_loop().call_soon(self._look)


class _Worker:
    """A thread that does one thing after the other, until it is left. Nobody waits for it, not even the end of the program."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        Thread(target=self._work, name="choose together", daemon=True).start()

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
