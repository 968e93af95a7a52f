"""The lanes of a gym stream at work, from where the stream stands until it is left."""

import asyncio
from collections.abc import Callable, Collection

from brim.envs.puzzle.errors import ConnectionFailed
from brim.envs.puzzle.policy import EpisodeSpec, Policy
from brim.stream.gym_config import GymConfig
from brim.stream.gym_episode import EpisodePlayer, GymEpisode
from brim.stream.lanes import Backoff, Dispatcher, Lane


class Run:
    """Starts playing when it is made, in the running loop. `next` gives what was played, `aclose` ends it and leaves nothing behind."""

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
        self._policy, self._spec, self._ordered, self._endless = policy, spec, ordered, stop is None
        self._window = 2 * config.lanes
        self.closed = False
        self._begun: dict[int, EpisodeSpec] = {}
        self._played: dict[int, GymEpisode] = {}
        self._skip = frozenset(skip)
        self._next = first
        self._pass()
        self._changed, self._room = asyncio.Event(), asyncio.Event()
        self._room.set()
        self._backoff = Backoff(config)
        self._dispatcher = Dispatcher(first=first, stop=stop, skip=skip, window=self._window, begin=self._begin)
        count = config.lanes if stop is None else min(config.lanes, max(stop - first, 1))
        self.lanes = tuple(Lane(number) for number in range(count))
        players = [EpisodePlayer(config, policy, self._backoff, lane, version) for lane in self.lanes]
        firsts = [self._dispatcher.ask() for _ in self.lanes]  # all begin before any plays
        tasks = [self._play(*each) for each in zip(self.lanes, players, firsts, strict=True)]
        self._tasks = [asyncio.create_task(task, name=f"gym lane {number}") for number, task in enumerate(tasks)]
        for task in self._tasks:
            task.add_done_callback(lambda _: self._changed.set())

    async def next(self) -> tuple[int, GymEpisode] | None:
        """The next episode and its position; None after the last, and when the run was closed.

        Raises:
            ConnectionFailed: Nothing ever listened there, or the server is gone and the episodes have no end.
            Exception: What the policy raised.
        """
        while not self.closed:
            self._changed.clear()
            position = self._next if self._ordered else next(iter(self._played), self._next)
            if position in self._played:
                return position, self._take(position)
            for task in self._tasks:
                if task.done() and (error := task.exception()) is not None:
                    raise error
            if all(task.done() for task in self._tasks):
                return None
            await self._changed.wait()
        return None

    def cancel(self) -> None:
        self.closed = True
        self._changed.set()
        for task in self._tasks:
            task.cancel()

    async def aclose(self) -> None:
        """End the lanes and close their connections."""
        self.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        while self._begun:
            self._policy.end(self._begun.popitem()[1])

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
        self._policy.begin(spec)

    async def _play(self, lane: Lane, player: EpisodePlayer, first: "asyncio.Future[int | None]") -> None:
        try:
            position = await first
            while position is not None:
                await self._room.wait()
                lane.episode, lane.steps = self._begun[position], 0
                episode = await player.play(lane.episode)
                lane.episode, lane.episodes = None, lane.episodes + 1
                if self._endless and self._backoff.gone is not None:
                    raise ConnectionFailed(f"the server is gone: {self._backoff.gone}")
                self._played[position] = episode
                self._policy.end(self._begun.pop(position))
                self._dispatcher.finish(position)
                waits = self._dispatcher.ask()
                self._make_room()
                self._changed.set()
                position = await waits
        finally:
            lane.episode = None
            await player.drop()

    def _make_room(self) -> None:
        """Lanes wait while as much is ready as the window allows. The consumer then has something to take, so they wait for nobody else."""
        ready = self._dispatcher.unfinished - self._next if self._ordered else len(self._played)
        if ready >= self._window:
            self._room.clear()
        else:
            self._room.set()
