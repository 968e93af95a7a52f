"""Episodes on a puzzle server as a stream of samples: `GymEpisodeStream`.

`brim.envs.puzzle` plays, many episodes at once; here the episodes become samples. They come in the order of their
numbers, each exactly once (as success, failure, timeout or error), and a stream that was stopped resumes with the first
sample that it had not given out. A slow consumer slows the lanes down; it does not fill the memory.
"""

import os
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from threading import RLock
from typing import Any, Generic, Self, TypeVar

from brim.core.errors import BrimError, MismatchError, OptionError
from brim.core.fill import Fill
from brim.core.fingerprint import fingerprint
from brim.data.rows.prompts import Prompts
from brim.data.tokenizer.base import Tokenizer, load_tokenizer
from brim.envs.episode import EpisodeStatus
from brim.envs.puzzle.config import GymConfig
from brim.envs.puzzle.episode import GymEpisode, Lane
from brim.envs.puzzle.games import EpisodeSpec
from brim.envs.puzzle.policies import HintPolicy, Policy
from brim.envs.puzzle.run import EpisodeRun
from brim.stream.episode_samples import EpisodeSampler, Played
from brim.stream.metrics import StreamMetrics
from brim.stream.protocols import StreamState
from brim.stream.sample import StreamSample

T = TypeVar("T")
Convert = Callable[[EpisodeRun, int, GymEpisode], Iterator[T]]
"""Takes an episode and its position and gives out items for it. It stops when its run was closed."""


class GymEpisodeStream:
    """Samples from episodes, one for each action, for `for` and for `async for`.

    `iter_episodes` and `episodes` give the episodes instead, `iter_played` both. Lanes play while the consumer works:
    with `for` in a thread of their own, with `async for` in the running loop. Leaving the loop closes their
    connections; the next one resumes after the last sample that was given out, and so does one after `close`. A server
    that is lost ends the loop with a PuzzleError; the episodes that were not played are played by the next loop.

    Example:
        config = GymConfig(port=8023, games=("lights",), difficulty_range=(0.0, 0.4))
        with GymEpisodeStream(config, tokenizer, episodes=100) as stream:
            for sample in stream:
                buffer.add(sample)
    """

    def __init__(
        self,
        config: GymConfig,
        tokenizer: str | os.PathLike[str] | Tokenizer | Prompts,
        policy: Policy | None = None,
        *,
        episodes: Iterable[EpisodeSpec] | int | None = None,
        dataset_id: str = "gym",
        min_length: int = 1,
        max_length: int = 8192,
        keep: Callable[[GymEpisode], bool] | None = None,
        learn_invalid: bool = False,
        policy_version: int | Callable[[], int] | None = None,
        ordered: bool = True,
        wait_for_server: bool = False,
    ) -> None:
        """
        Args:
            tokenizer: A tokenizer, its name or path, or the `Prompts` of a policy that tokenises prompts itself: each
                is then tokenised once.
            policy: Chooses the actions; the server's hints unless given.
            episodes: How many of `config.episode`, or which ones, or None for no end.
            keep: Which episodes become samples; asked once for each. What is left out is counted, as are samples too
                short or too long.
            learn_invalid: Whether actions that were refused become samples too; their reward tells them apart.
            policy_version: The version that goes into every sample, as of the moment when its action was chosen.
            ordered: Whether episodes come in the order of their numbers, or as they end.
            wait_for_server: Whether a server that does not answer at first is waited for as in an outage, instead of
                reported at once.
        """
        self.config = config
        self.policy = HintPolicy() if policy is None else policy
        self.ordered = ordered
        self._wait_for_server = wait_for_server
        if isinstance(tokenizer, str | os.PathLike):
            tokenizer = load_tokenizer(tokenizer)
        self._sampler = EpisodeSampler(
            tokenizer if isinstance(tokenizer, Prompts) else Prompts(tokenizer),
            dataset_id=dataset_id,
            min_length=min_length,
            max_length=max_length,
            keep=keep,
            learn_invalid=learn_invalid,
        )
        self._version: Callable[[], int | None] = policy_version if callable(policy_version) else lambda: policy_version
        self._specs = None if episodes is None or isinstance(episodes, int) else tuple(episodes)
        if self._specs is not None and len({spec.number for spec in self._specs}) != len(self._specs):
            raise OptionError("two of the episodes have the same number; each needs its own")
        self._count = episodes if isinstance(episodes, int) else None if self._specs is None else len(self._specs)
        if self._count is not None and self._count < 0:
            raise OptionError(f"episodes must not be negative, got {self._count}")
        self._lanes: tuple[Lane, ...] = ()
        self._lock = RLock()
        self._run: EpisodeRun | None = None
        """The run that is being iterated."""
        self._rewind()

    def _rewind(self) -> None:
        self.metrics = StreamMetrics()
        self.state = StreamState.IDLE
        self.errors: dict[str, int] = {}
        """Episodes that ended in an error, by its type."""
        self._position = 0
        """The position of the first episode that was not given out completely."""
        self._ahead: set[int] = set()
        """Positions of later episodes that were given out completely."""
        self._given: dict[int, int] = {}
        """Number of samples given out, by position, of episodes that were given out in part."""

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """The present work of every lane."""
        return self._lanes

    @property
    def fill(self) -> Fill:
        """Lanes that are playing, out of all lanes."""
        return Fill(sum(lane.busy for lane in self._lanes), len(self._lanes))

    def __iter__(self) -> Iterator[StreamSample]:
        return self._iterate(self._samples)

    def __aiter__(self) -> "AsyncItems[StreamSample]":
        return AsyncItems(self._begin, self._leave, self._samples)

    def iter_episodes(self) -> Iterator[GymEpisode]:
        """The episodes instead of their samples. `keep` and the lengths do not apply."""
        return self._iterate(self._whole)

    def episodes(self) -> "AsyncItems[GymEpisode]":
        """The episodes instead of their samples, for `async for`."""
        return AsyncItems(self._begin, self._leave, self._whole)

    def iter_played(self) -> Iterator[Played]:
        """Every episode together with its samples, which may be none."""
        return self._iterate(self._played)

    def close(self) -> None:
        """Stop the lanes and close their connections. Can be called from any thread; whoever iterates comes to the
        end."""
        with self._lock:
            run, self._run = self._run, None
            self.state = StreamState.CLOSED
        if run is not None:
            run.stop()

    async def aclose(self) -> None:
        """Close the stream, and wait until the connections are closed."""
        run = self._run
        self.close()
        if run is not None:
            await run.aclose()

    def reset(self) -> None:
        self.close()
        self._rewind()

    async def areset(self) -> None:
        await self.aclose()
        self._rewind()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.aclose()

    def state_dict(self) -> dict[str, Any]:
        return {
            "stream": self._identity,
            "episode": self._position,
            "ahead": sorted(self._ahead),
            "given": [list(pair) for pair in sorted(self._given.items())],
            "errors": dict(self.errors),
            "metrics": self.metrics.to_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state. An episode of which some samples were given out is played again, and those samples are
        left out.

        Raises:
            MismatchError: The state belongs to another stream.
        """
        with self._lock:
            self._refuse_running()
            if state.get("stream") != self._identity:
                raise MismatchError(
                    "this state belongs to another gym stream: other games, difficulties, seed, episodes, or filters"
                )
            try:
                position = _count(state["episode"])
                ahead = {_count(position) for position in state["ahead"]}
                given = {_count(position): _count(count) for position, count in state["given"]}
                errors = {str(kind): _count(count) for kind, count in state["errors"].items()}
                metrics = StreamMetrics.from_dict(state["metrics"])
            except (AttributeError, BrimError, KeyError, TypeError, ValueError) as error:
                raise MismatchError(f"this state of a gym stream is damaged: {type(error).__name__}: {error}") from None
            self._rewind()
            self._position = position
            self._ahead = ahead
            self._given = given
            self.errors = errors
            self.metrics = metrics

    def _refuse_running(self) -> None:
        if self._run is not None and not self._run.over:
            raise BrimError("this stream is being iterated already; leave that loop, or close the stream first")

    def _begin(self) -> EpisodeRun:
        """Start a run where the stream stands."""
        with self._lock:
            self._refuse_running()
            if self.metrics.num_episodes == 0:
                self.metrics.began = time.monotonic()
            run = self._run = EpisodeRun(
                self.config,
                self.policy,
                self.config.episode if self._specs is None else self._specs.__getitem__,
                first=self._position,
                stop=self._count,
                skip=self._ahead,
                ordered=self.ordered,
                version=self._version,
                wait_for_server=self._wait_for_server,
            )
            self._lanes = run.lanes
            self.state = StreamState.STREAMING
        return run

    def _leave(self, run: EpisodeRun, state: StreamState) -> None:
        """Note that a run is no longer iterated; if no other thread has ended it, this is the state of the stream."""
        with self._lock:
            if self._run is run:
                self._run = None
                self.state = state

    def _iterate(self, convert: Convert[T]) -> Generator[T, None, None]:
        run = self._begin()
        state = StreamState.IDLE
        try:
            while (played := run.take()) is not None:
                yield from convert(run, *played)
            state = StreamState.EXHAUSTED
        except (Exception, SystemExit):
            state = StreamState.ERROR
            raise
        finally:
            self._leave(run, state)
            run.stop()

    def _samples(self, run: EpisodeRun, position: int, episode: GymEpisode) -> Iterator[StreamSample]:
        """The samples of an episode, each counted when it is given out, and none after the run was closed."""
        given = self._given.get(position, 0)
        samples = self._make_samples(position, episode)
        for number, sample in enumerate(samples[given:], given + 1):
            self._given[position] = number
            if number == len(samples):
                self._delivered(position)
            self.metrics.record(sample)
            yield sample
            if run.closed:
                return
        if len(samples) <= given:
            self._delivered(position)

    def _played(self, run: EpisodeRun, position: int, episode: GymEpisode) -> Iterator[Played]:
        given = self._given.get(position, 0)
        samples = self._make_samples(position, episode)[given:]
        self._delivered(position)
        for sample in samples:
            self.metrics.record(sample)
        yield Played(episode, samples)

    def _whole(self, run: EpisodeRun, position: int, episode: GymEpisode) -> Iterator[GymEpisode]:
        if not self._given.get(position):
            self._count_episode(episode)
        self._delivered(position)
        yield episode

    def _make_samples(self, position: int, episode: GymEpisode) -> list[StreamSample]:
        """All samples of an episode. The episode and what is left out are counted, unless that was done before the
        stream was resumed."""
        samples, refused = self._sampler.samples(episode)
        if not self._given.get(position):
            self._count_episode(episode)
            for reason in refused.elements():
                self.metrics.record_filtered(reason)
        return samples

    def _count_episode(self, episode: GymEpisode) -> None:
        self.metrics.record_episode(episode.status, episode.spec.difficulty)
        if episode.status is EpisodeStatus.ERROR:
            kind = type(episode.error).__name__
            self.errors[kind] = self.errors.get(kind, 0) + 1

    def _delivered(self, position: int) -> None:
        """Note that an episode was given out completely, and move the position past all that were."""
        self._given.pop(position, None)
        self._ahead.add(position)
        while self._position in self._ahead:
            self._ahead.discard(self._position)
            self._position += 1

    @property
    def _identity(self) -> str:
        """A fingerprint of everything that decides which episodes and samples come, and in which order."""
        config = self.config
        lengths = self._sampler.lengths
        return fingerprint(
            seed=config.seed,
            games=list(config.games) if config.games else None,
            levels=list(config.levels),
            episodes=self._count if self._specs is None else [[*vars(spec).values()] for spec in self._specs],
            lengths=[lengths.start, lengths.stop],
            invalid=self._sampler.learn_invalid,
            tokenizer=self._sampler.prompts.tokenizer.fingerprint,
        )


class AsyncItems(AsyncIterator[T], Generic[T]):
    """One pass over a stream, for `async for`. It begins with the first item, and ends when it is left or no longer
    referenced."""

    def __init__(
        self,
        begin: Callable[[], EpisodeRun],
        leave: Callable[[EpisodeRun, StreamState], None],
        convert: Convert[T],
    ) -> None:
        self._begin = begin
        self._leave = leave
        self._convert = convert
        self._run: EpisodeRun | None = None
        self._over = False
        self._items: Iterator[T] = iter(())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if self._over:
            raise StopAsyncIteration
        if self._run is None:
            self._run = self._begin()
        run = self._run
        try:
            while True:
                for item in self._items:
                    return item
                played = await run.next()
                if played is None:
                    break
                self._items = self._convert(run, *played)
        except BaseException as error:
            await self._end(StreamState.ERROR if isinstance(error, Exception | SystemExit) else StreamState.IDLE)
            raise
        await self._end(StreamState.EXHAUSTED)
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Leave the pass: the lanes are stopped and their connections closed."""
        await self._end(StreamState.IDLE)

    async def _end(self, state: StreamState) -> None:
        self._over = True
        run, self._run = self._run, None
        if run is not None:
            self._leave(run, state)
            await run.aclose()

    def __del__(self) -> None:
        if self._run is not None:
            self._leave(self._run, StreamState.IDLE)
            self._run.stop()


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value
