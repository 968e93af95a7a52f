"""The lanes of a gym stream at work, from where the stream stands until it is left."""

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress

from brim.core.errors import BrimError
from brim.core.wait.loop import LoopThread
from brim.envs.puzzle.policy import EpisodeSpec, Policy
from brim.stream.gym_config import GymConfig
from brim.stream.gym_episode import EpisodePlayer, GymEpisode
from brim.stream.lanes import Backoff, Clock, Dispatcher, Lane


class Run:
    """Starts playing when `next` is first asked for an episode, in that loop; `stop` ends it and leaves nothing behind.

    Everything else belongs to the loop. `stop` can be called from anywhere: from other threads, from no loop, and more than once.
    """

    def __init__(
        self,
        config: GymConfig,
        policy: Policy,
        spec: Callable[[int], EpisodeSpec],
        *,
        first: int,
        stop: int | None,
        skip: Collection[int],
        ordered: bool,
        version: Callable[[], int | None],
    ) -> None:
        self._spec, self._ordered = spec, ordered
        self._tell_begin: Callable[[EpisodeSpec], None] = getattr(policy, "begin", _nothing)
        self._tell_end: Callable[[EpisodeSpec], None] = getattr(policy, "end", _nothing)
        self._window = 2 * config.lanes
        self.closed = False
        self.thread: LoopThread | None = None
        """In which it plays, if that is its own."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._error: BaseException | None = None
        self._begun: dict[int, EpisodeSpec] = {}
        self._played: dict[int, GymEpisode] = {}
        self._skip = frozenset(skip)
        self._next = first
        self._pass()
        self._changed, self._room = asyncio.Event(), asyncio.Event()
        self._room.set()
        self._clock = Clock()
        self._backoff = Backoff(config, self._clock)
        self._dispatcher = Dispatcher(first=first, stop=stop, skip=skip, window=self._window, begin=self._begin)
        count = config.lanes if stop is None else min(config.lanes, max(stop - first, 1))
        self.lanes = tuple(Lane(number) for number in range(count))
        self._players = [EpisodePlayer(config, policy, self._backoff, self._clock, lane, version) for lane in self.lanes]
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def over(self) -> bool:
        """Whether it was ended, by `stop` or with its loop."""
        return self.closed or (self._loop is not None and self._loop.is_closed())

    @property
    def here(self) -> bool:
        """Whether it plays in the loop that is running."""
        return self.thread is None and self._loop is not None and self._loop is _running_loop()

    async def next(self) -> tuple[int, GymEpisode] | None:
        """The next episode and its position; None after the last, and when the run was closed.

        Raises:
            PuzzleError: Nothing ever listened there, or the server is gone. What was played before has been given out by then.
            BaseException: What the policy raised.
        """
        if self._loop is None and not self.closed:
            self._start()
        while not self.closed:
            self._changed.clear()
            position = self._next if self._ordered else next(iter(self._played), self._next)
            if position in self._played:
                return position, self._take(position)
            if self._error is not None:
                raise self._error
            if all(task.done() for task in self._tasks):
                return None
            await self._changed.wait()
        return None

    def stop(self) -> None:
        """End it. In a thread of its own, it has ended when this returns; in a loop of others, it ends when that gets to it."""
        self.closed = True
        if self.thread is not None:
            self.thread.stop(self.aclose())
        elif self._loop is not None:
            if self._loop is _running_loop():
                self._cancel()
            else:
                with suppress(RuntimeError):  # the loop is closed, and all that was in it is over
                    self._loop.call_soon_threadsafe(self._cancel)

    async def aclose(self) -> None:
        """End it, in its loop, and wait until the connections are closed. All that matters is done before the first wait."""
        self._cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)  # which, if it is cancelled itself, lets them go on

    def _start(self) -> None:
        self._loop = asyncio.get_running_loop()
        firsts = [self._dispatcher.ask() for _ in self.lanes]  # all begin before any plays
        for lane, player, first in zip(self.lanes, self._players, firsts, strict=True):
            task = asyncio.create_task(self._lane(lane, player, first), name=f"gym lane {lane.number}")
            task.add_done_callback(lambda _: self._changed.set())
            self._tasks.append(task)

    def _cancel(self) -> None:
        self.closed = True
        self._changed.set()
        for task in self._tasks:
            task.cancel()
        raised: Exception | None = None
        while self._begun:
            try:
                self._tell_end(self._begun.popitem()[1])
            except Exception as error:  # the others are told all the same
                raised = raised or error
        if raised is not None and self._error is None:
            raise raised

    def _take(self, position: int) -> GymEpisode:
        episode = self._played.pop(position)
        if self._ordered:
            self._next += 1
            self._pass()
        self._make_room()
        return episode

    def _pass(self) -> None:
        while self._next in self._skip:
            self._next += 1

    def _begin(self, position: int) -> None:
        spec = self._begun[position] = self._spec(position)
        self._tell_begin(spec)

    async def _lane(self, lane: Lane, player: EpisodePlayer, first: "asyncio.Future[int | None]") -> None:
        """Whatever ends a lane ends the run, and comes out of `next`: a task that raised SystemExit would end the loop with it."""
        try:
            await self._play(lane, player, first)
        except asyncio.CancelledError:
            if self.closed:
                raise
            self._fail(BrimError(f"lane {lane.number} was cancelled by its policy, or by the end of its loop"))
        except BaseException as error:
            self._fail(error)
        finally:
            lane.episode = None
            await player.drop()

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or self._backoff.gone or error

    async def _play(self, lane: Lane, player: EpisodePlayer, first: "asyncio.Future[int | None]") -> None:
        position = await first
        while position is not None and not self.closed:
            await self._room.wait()
            lane.episode, lane.steps = self._begun[position], 0
            episode = await player.play(lane.episode)
            if self.closed:
                return
            lane.episode, lane.episodes = None, lane.episodes + 1
            self._played[position] = episode
            self._tell_end(self._begun.pop(position))
            if self._backoff.gone is not None:
                raise self._backoff.gone
            self._dispatcher.finish(position)
            waits = self._dispatcher.ask()
            self._make_room()
            self._changed.set()
            position = await waits

    def _make_room(self) -> None:
        """Lanes wait while as much is ready as the window allows. The consumer then has something to take, so they wait for nobody else.

        They wait after `begin`, so that who decides for all of them at once decides for the same ones, however slow the consumer is; the
        clock of those who wait for them is held.
        """
        ready = self._dispatcher.unfinished - self._next if self._ordered else len(self._played)
        if ready >= self._window and self._room.is_set():
            self._room.clear()
            self._clock.hold()
        elif ready < self._window and not self._room.is_set():
            self._room.set()
            self._clock.release()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _nothing(episode: EpisodeSpec) -> None:
    pass
