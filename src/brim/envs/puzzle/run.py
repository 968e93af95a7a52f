"""Episodes on many lanes at once, and the question whether there is a server to play them on."""

import asyncio
from collections.abc import Callable, Collection

from brim.core.wait.backoff import Backoff, Retry
from brim.core.wait.clock import Clock
from brim.core.wait.lanes import Lanes
from brim.core.wait.loop import LoopThread
from brim.envs.puzzle.config import GymConfig
from brim.envs.puzzle.episode import GymEpisode, Lane
from brim.envs.puzzle.games import EpisodeSpec
from brim.envs.puzzle.play import EpisodePlayer
from brim.envs.puzzle.policies import Policy
from brim.envs.puzzle.wire.errors import ConnectionFailed
from brim.envs.puzzle.wire.session import PuzzleSession
from brim.envs.puzzle.wire.transport import connect


class EpisodeRun(Lanes[GymEpisode]):
    """Plays numbered episodes, each lane over a connection of its own; see `Lanes` for how they are started, taken and
    stopped.

    No episode is given up because the server is unreachable: all lanes wait for it together, and their clock is paused.
    If the server is lost, `next` raises a PuzzleError, after everything that was played before.

    Example:
        run = EpisodeRun(config, HintPolicy(), config.episode, stop=10)
        while (played := await run.next()) is not None:
            number, episode = played
    """

    def __init__(
        self,
        config: GymConfig,
        policy: Policy,
        spec: Callable[[int], EpisodeSpec],
        *,
        first: int = 0,
        stop: int | None = None,
        skip: Collection[int] = (),
        ordered: bool = True,
        version: Callable[[], int | None] = lambda: None,
        wait_for_server: bool = False,
    ) -> None:
        """
        Args:
            spec: From the number of an episode in this run to the episode.
            first: The first number; `stop` is the number after the last one (None for no end), `skip` are numbers to
                leave out.
            ordered: Whether episodes come in the order of their numbers, or as they end.
            version: Asked for the version of the policy before every action.
            wait_for_server: Whether a server that does not answer at first is waited for as in an outage.
        """
        clock = Clock()
        count = config.lanes if stop is None else min(config.lanes, max(stop - first, 1))
        self.lanes = tuple(Lane(number) for number in range(count))
        self._spec = spec
        self._specs: dict[int, EpisodeSpec] = {}
        """The episodes that have begun and not ended."""
        self._policy_begin: Callable[[EpisodeSpec], None] = getattr(policy, "begin", _ignore)
        self._policy_end: Callable[[EpisodeSpec], None] = getattr(policy, "end", _ignore)
        self._backoff = Backoff(
            lambda: PuzzleSession.open(
                config.host,
                config.port,
                config.transport,
                connect_timeout=config.connect_timeout,
                read_timeout=config.read_timeout,
            ),
            server=f"the puzzle server at {config.host}:{config.port}",
            unreachable=ConnectionFailed,
            retry=Retry(
                retries=config.max_retries, delay=config.retry_delay, max_delay=config.max_retry_delay, seed=config.seed
            ),
            max_failures=max(config.lanes, 4),
            expected=wait_for_server,
            purpose="gym",
            clock=clock,
        )
        players = [
            EpisodePlayer(
                config, policy, self._specs.__getitem__, backoff=self._backoff, clock=clock, lane=lane, version=version
            )
            for lane in self.lanes
        ]
        super().__init__(
            players,
            first=first,
            stop=stop,
            skip=skip,
            ahead=2 * config.lanes,
            ordered=ordered,
            began=self._began,
            ended=self._ended,
            clock=clock,
            name="gym",
        )

    def _began(self, number: int) -> None:
        spec = self._specs[number] = self._spec(number)
        self._policy_begin(spec)

    def _ended(self, number: int) -> None:
        self._policy_end(self._specs.pop(number))
        if self._backoff.lost is not None:
            raise self._backoff.lost


def find_server(config: GymConfig) -> str:
    """See whether a server answers, and return the transport that it speaks. Not for coroutines: it waits for the
    answer.

    Raises:
        PuzzleError: Nothing answers there, or something else does.
    """

    async def look() -> str:
        deadline = asyncio.get_running_loop().time() + config.connect_timeout
        connection = await connect(config.host, config.port, config.transport, deadline=deadline)
        await connection.close()
        return connection.name

    with LoopThread("brim find server") as thread:
        return thread.call(look())


def _ignore(episode: EpisodeSpec) -> None:
    pass
