"""A round of play: some episodes follow the server's hints, to learn from, the others are played by the model, to
measure it.

Which puzzles a round has, and who plays them, depends on the seed, the curriculum and the numbers of the episodes; what
the model does also depends on its weights. Episodes come back in the order of their numbers, whichever ended first, so
a round can be repeated.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from brim.core.errors import BrimError
from brim.core.rng import share
from brim.envs.episode import EpisodeStatus
from brim.envs.puzzle.episode import GymEpisode
from brim.envs.puzzle.games import EpisodeSpec
from brim.envs.puzzle.policies import HintPolicy, Policy
from brim.stream.curriculum import Curriculum
from brim.stream.episode_samples import NOT_KEPT
from brim.stream.gym import GymEpisodeStream
from brim.stream.metrics import Rate
from brim.stream.sample import StreamSample
from brim.train.online.config import OnlineConfig
from brim.train.online.policy import ModelPolicy


@dataclass
class Round:
    """The results of a round, and the samples to learn from."""

    number: int
    samples: list[StreamSample] = field(default_factory=lambda: [])
    own: Rate = field(default_factory=Rate)
    """Success of the model in the episodes it played. Episodes that failed because of the server do not count."""
    own_by_level: dict[str, Rate] = field(default_factory=lambda: {})
    own_results: list[bool] = field(default_factory=lambda: [])
    guided: Rate = field(default_factory=Rate)
    errors: dict[str, int] = field(default_factory=lambda: {})
    """Episodes that could not be played to their end, by the type of the error."""
    filtered: dict[str, int] = field(default_factory=lambda: {})
    """Actions that are not learned from, by reason."""
    first_error: str = ""
    stopped: bool = False
    """True if the round was interrupted."""

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


def episodes_of(
    config: OnlineConfig, curriculum: Curriculum, number: int
) -> tuple[list[EpisodeSpec], list[EpisodeSpec]]:
    """The episodes of a round: those that hints play, and those that the model plays."""
    size = config.episodes_per_round
    numbers = range(number * size, (number + 1) * size)
    levels = curriculum.levels(numbers, seed=config.seed)
    specs = [
        replace(config.gym.episode(number), difficulty=level) for number, level in zip(numbers, levels, strict=True)
    ]
    draws = [share(seed=config.seed, purpose="guided", epoch=number) for number in numbers]
    guided = [spec for spec, draw in zip(specs, draws, strict=True) if draw < config.guided]
    own = [spec for spec, draw in zip(specs, draws, strict=True) if draw >= config.guided]
    return guided, own


def play_round(
    config: OnlineConfig,
    policy: ModelPolicy,
    curriculum: Curriculum,
    *,
    number: int,
    version: int,
    longest: int,
    on_episode: Callable[[GymEpisode], None],
    stop: Callable[[], bool],
) -> Round:
    """Play a round. From the second round on, a server that is unreachable is waited for.

    Args:
        version: How many optimizer steps the model has taken.
        longest: Upper limit of the length of a sample; longer ones are left out, and counted.
        stop: Asked after every episode; if it says yes, the round is interrupted.

    Raises:
        PuzzleError: There is no server, or it was lost.
        BrimError: No episode could be played to its end.
    """
    round = Round(number)
    keep = _succeeded if config.learn_from == "success" else None
    guided, own = episodes_of(config, curriculum, number)
    parts: Sequence[tuple[list[EpisodeSpec], Policy, int | None]] = (
        (guided, HintPolicy(), None),
        (own, policy, version),
    )
    for specs, player, by in parts:
        if not specs or round.stopped:
            continue
        with GymEpisodeStream(
            config.gym,
            policy.prompts,
            player,
            episodes=specs,
            keep=keep,
            policy_version=by,
            max_length=longest,
            wait_for_server=number > 0,
        ) as stream:
            for episode, samples in stream.iter_played():
                round.add(episode, own=by is not None)
                round.samples += samples
                on_episode(episode)
                if stop():
                    round.stopped = True
                    break
        filtered = Counter(stream.metrics.filtered)
        del filtered[NOT_KEPT]  # the report has the unsolved episodes already
        round.filtered = dict(Counter(round.filtered) + filtered)
    if policy.unread:
        round.filtered["prompt too long for the model"] = policy.unread
        policy.unread = 0
    if not round.stopped and round.own.of + round.guided.of == 0:
        raise BrimError(
            f"no episode of round {number} could be played to its end ({round.errors}); the first: {round.first_error}"
        )
    return round


def _succeeded(episode: GymEpisode) -> bool:
    return episode.success
