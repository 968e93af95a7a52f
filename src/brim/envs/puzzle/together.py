"""One decision for many lanes: a language model is asked once for all episodes that wait, not once for each."""

import asyncio
from collections.abc import Callable, Sequence

from brim.core.errors import DataError
from brim.envs.puzzle.policy import EpisodeSpec, Turn

Choose = Callable[[Sequence[Turn]], Sequence[str | None]]


class Together:
    """A policy that waits until every episode which has begun and not ended is waiting for an action, and then chooses for all at once.

    `choose` gets the turns sorted by the number of their episode, and answers in that order. Which turns meet depends on the course of the
    episodes alone, never on which server answered first. An episode that is reconnecting keeps the others waiting, as long as its own
    deadlines let it; one that ended, however it ended, does not. What `choose` raises, all who waited get.
    """

    name = "together"
    wants_hints = False

    def __init__(self, choose: Choose, *, in_thread: bool = True, wants_hints: bool = False) -> None:
        """With `in_thread` the lanes' loop goes on while `choose` computes."""
        self._choose, self._in_thread = choose, in_thread
        self.wants_hints = wants_hints
        self._playing: set[int] = set()
        self._waiting: dict[int, tuple[Turn, asyncio.Future[str | None]]] = {}
        self._call: asyncio.Task[None] | None = None
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
        asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        if self._call is None and self._waiting and self._playing <= self._waiting.keys():
            batch = [self._waiting[number] for number in sorted(self._waiting)]
            self._waiting.clear()
            self._call = asyncio.get_running_loop().create_task(self._decide(batch))

    async def _decide(self, batch: list[tuple[Turn, "asyncio.Future[str | None]"]]) -> None:
        turns = [turn for turn, _ in batch]
        self.batches, self.turns = self.batches + 1, self.turns + len(turns)
        try:
            answers = await asyncio.to_thread(self._choose, turns) if self._in_thread else self._choose(turns)
            if len(answers) != len(turns):
                raise DataError(f"choose was asked for {len(turns)} actions and gave {len(answers)}")
        except BaseException as error:  # it belongs to those who wait, whatever it is
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(error) if isinstance(error, Exception) else answer.cancel()
            if not isinstance(error, Exception):
                raise
        else:
            for (_, answer), action in zip(batch, answers, strict=True):
                if not answer.done():
                    answer.set_result(action)
        finally:
            self._call = None
            asyncio.get_running_loop().call_soon(self._look)
