"""A round of play: some episodes by the server's hints, to learn from, the others by the model, to see how it does.

Which puzzles a round has, and who plays them, depends on the seed, the curriculum and the numbers of the episodes; what the model does also
on its weights. Episodes come back in the order of their numbers, whichever ended first, so a round can be repeated.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from brim.core.errors import BrimError
from brim.core.rng import raw_bits
from brim.core.wait.loop import LoopThread
from brim.data.tokenizer.base import Tokenizer
from brim.envs.puzzle.policies import HintPolicy
from brim.envs.puzzle.policy import EpisodeSpec, Policy
from brim.envs.puzzle.wire.errors import PuzzleError
from brim.envs.puzzle.wire.session import PuzzleSession
from brim.stream.curriculum import Curriculum
from brim.stream.gym import GymEpisodeStream
from brim.stream.gym_config import GymConfig
from brim.stream.gym_episode import GymEpisode
from brim.stream.metrics import Rate
from brim.stream.sample import EpisodeStatus, StreamSample
from brim.train.online.config import OnlineConfig
from brim.train.online.policy import ModelPolicy


@dataclass
class Round:
    """What was played, and what there is to learn from it."""

    number: int
    samples: list[StreamSample] = field(default_factory=lambda: [])
    own: Rate = field(default_factory=Rate)
    """How often the model solved what it played. Episodes that the server spoiled are not counted."""
    own_by_level: dict[str, Rate] = field(default_factory=lambda: {})
    own_results: list[bool] = field(default_factory=lambda: [])
    guided: Rate = field(default_factory=Rate)
    errors: dict[str, int] = field(default_factory=lambda: {})
    """By type: episodes that could not be played to their end."""
    filtered: dict[str, int] = field(default_factory=lambda: {})
    """By reason: actions that are not learned from."""
    first_error: str = ""
    stopped: bool = False
    """Whether it was given up on the way."""

    @property
    def episodes(self) -> int:
        return self.own.of + self.guided.of + sum(self.errors.values())

    def add(self, episode: GymEpisode, *, own: bool) -> None:
        if episode.status is EpisodeStatus.ERROR or episode.error is not None:
            self.errors[episode.reason] = self.errors.get(episode.reason, 0) + 1
            self.first_error = self.first_error or str(episode.error)
            return
        (self.own if own else self.guided).add(episode.success)
        if own:
            self.own_results.append(episode.success)
            self.own_by_level.setdefault(episode.spec.difficulty, Rate()).add(episode.success)


def find_server(gym: GymConfig, *, retries: int = 0) -> None:
    """See that there is one, and wait for it longer and longer if it may have gone for a while.

    Raises:
        PuzzleError: Nothing answers there.
    """

    async def look() -> None:
        for attempt in range(retries + 1):
            try:
                return await (await PuzzleSession.open(gym.host, gym.port, gym.transport, connect_timeout=gym.connect_timeout)).close()
            except PuzzleError:
                if attempt == retries:
                    raise
                await asyncio.sleep(min(gym.retry_delay * 2**attempt, gym.max_retry_delay))

    thread = LoopThread("brim-find-server")
    try:
        thread.call(look())
    finally:
        thread.stop()


def episodes_of(config: OnlineConfig, curriculum: Curriculum, number: int) -> tuple[list[EpisodeSpec], list[EpisodeSpec]]:
    """The episodes of a round: those that hints play, and those that the model plays."""
    size = config.episodes_per_round
    numbers = range(number * size, (number + 1) * size)
    levels = curriculum.levels(numbers, seed=config.sft.seed)
    specs = [replace(config.gym.episode(number), difficulty=level) for number, level in zip(numbers, levels, strict=True)]
    draws = [int(raw_bits(1, seed=config.sft.seed, purpose="guided", epoch=number)[0]) / 2**64 for number in numbers]
    guided = [spec for spec, draw in zip(specs, draws, strict=True) if draw < config.guided]
    own = [spec for spec, draw in zip(specs, draws, strict=True) if draw >= config.guided]
    return guided, own


def play_round(
    config: OnlineConfig,
    tokenizer: Tokenizer,
    policy: ModelPolicy,
    curriculum: Curriculum,
    *,
    number: int,
    version: int,
    longest: int,
    on_episode: Callable[[GymEpisode], None],
    stop: Callable[[], bool],
) -> Round:
    """Play a round, on a server that may have gone since the last one.

    `version` is how many steps the model has behind it. Actions that make a sample longer than `longest` are left out, and counted. `stop`
    is asked after every episode.

    Raises:
        ConnectionFailed: There is no server.
        BrimError: No episode could be played to its end.
    """
    round = Round(number)
    if number:
        find_server(config.gym, retries=config.gym.max_retries)
    guided, own = episodes_of(config, curriculum, number)
    parts: Sequence[tuple[list[EpisodeSpec], Policy, int | None]] = ((guided, HintPolicy(), None), (own, policy, version))
    for specs, player, by in parts:
        if not specs or round.stopped:
            continue
        with GymEpisodeStream(config.gym, tokenizer, player, episodes=specs, policy_version=by, max_length=longest) as stream:
            for episode in stream.iter_episodes():
                round.add(episode, own=by is not None)
                if config.learn_from == "all" or episode.success:
                    round.samples += stream.samples_of(episode)
                on_episode(episode)
                if stop():
                    round.stopped = True
                    break
            round.filtered = dict(Counter(round.filtered) + Counter(stream.metrics.filtered))
    if policy.unread:
        round.filtered["prompt too long for the model"] = policy.unread
        policy.unread = 0
    if not round.stopped and round.own.of + round.guided.of == 0:
        raise BrimError(f"no episode of round {number} could be played to its end ({round.errors}); the first: {round.first_error}")
    return round
