"""Episodes on a puzzle server as a stream of samples: `GymEpisodeStream`.

Many lanes play at once, each over its own connection, and none waits for another. What comes out does not show it: episodes come in the
order of their numbers, each number ends exactly once (as success, failure, timeout or error), and a stream that was stopped goes on with
the first sample that it had not given out. A slow consumer slows the lanes down; it does not fill the memory.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

from brim.core.errors import BrimError, MismatchError, OptionError
from brim.core.fill import Fill
from brim.core.fingerprint import fingerprint
from brim.data.rows.encode import encode_rows
from brim.data.rows.format import RowFormat
from brim.data.tokenizer.base import Tokenizer, load_tokenizer
from brim.envs.puzzle.policies import HintPolicy
from brim.envs.puzzle.policy import EpisodeSpec, Policy
from brim.stream.gym_config import GymConfig
from brim.stream.gym_episode import GymEpisode, GymStep
from brim.stream.gym_iterate import AsyncItems, Iterated
from brim.stream.gym_run import Run
from brim.stream.lanes import Lane
from brim.stream.metrics import StreamMetrics
from brim.stream.protocols import StreamState
from brim.stream.sample import EpisodeStatus, SampleSource, StreamSample

_LAYOUT = RowFormat(shape="prompt").layout({"prompt": "", "response": ""})


class GymEpisodeStream(Iterated):
    """Samples from episodes, one for each action: the prompt is read, the action and the end token are learned, as in a row of
    {"prompt", "response"}. Both `for` and `async for`; `iter_episodes` and `episodes` give the episodes themselves.

    Lanes play while the consumer works: with `for` in a thread of their own, with `async for` in the running loop. Leaving the loop closes
    their connections; the next one goes on after the last sample that was given. So does one after `close`. A server that was there and is
    gone ends the loop with a PuzzleError, and what was not played is played by the next one.

    Example:
        config = GymConfig(port=8023, games=("lights",), difficulty_range=(0.0, 0.4))
        with GymEpisodeStream(config, tokenizer, episodes=100) as stream:
            for sample in stream:
                buffer.add(sample)
    """

    def __init__(
        self,
        config: GymConfig,
        tokenizer: str | os.PathLike[str] | Tokenizer,
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
    ) -> None:
        """
        Args:
            policy: Who plays; the server's hints, if nobody else.
            episodes: How many of `config.episode`, or which ones, or None for no end.
            keep: Which episodes become samples; asked once for each. What is left out is counted, as are samples too short or too long.
            learn_invalid: Whether actions that were refused become samples too; their reward tells them apart.
            policy_version: Goes into every sample, as of the moment when its action was chosen.
            ordered: Whether episodes come in the order of their numbers, or as they end.
        """
        super().__init__()
        self.config, self.policy, self.ordered = config, policy if policy is not None else HintPolicy(), ordered
        self._tokenizer = load_tokenizer(tokenizer) if isinstance(tokenizer, str | os.PathLike) else tokenizer
        self._dataset_id, self._keep, self._learn_invalid = dataset_id, keep, learn_invalid
        self._version: Callable[[], int | None] = policy_version if callable(policy_version) else lambda: policy_version
        if not 1 <= min_length <= max_length:
            raise OptionError(f"min_length must lie between 1 and max_length ({max_length}), got {min_length}")
        self._lengths = range(min_length, max_length + 1)
        self._specs = None if episodes is None or isinstance(episodes, int) else tuple(episodes)
        if self._specs is not None and len({spec.number for spec in self._specs}) != len(self._specs):
            raise OptionError("two of the episodes have the same number; each needs its own")
        self._count = episodes if isinstance(episodes, int) else None if self._specs is None else len(self._specs)
        if self._count is not None and self._count < 0:
            raise OptionError(f"episodes must not be negative, got {self._count}")
        self._lanes: tuple[Lane, ...] = ()
        self._rewind()

    def _rewind(self) -> None:
        self.metrics = StreamMetrics()
        self.state = StreamState.IDLE
        self.errors: dict[str, int] = {}
        """Episodes that ended in an error, by its type."""
        self._position = 0
        """Of the first episode that was not given out whole."""
        self._ahead: set[int] = set()
        """Those beyond that were."""
        self._given: dict[int, int] = {}
        """Of episodes that were given out in part, how many samples."""

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """What every lane is doing now."""
        return self._lanes

    @property
    def fill(self) -> Fill:
        """Lanes that play, of all there are."""
        return Fill(sum(lane.busy for lane in self._lanes), len(self._lanes))

    def __iter__(self) -> Iterator[StreamSample]:
        return self._iterate(self._open)

    def iter_episodes(self) -> Iterator[GymEpisode]:
        """The episodes, in the place of their samples. `keep` and the lengths do not apply."""
        return self._iterate(self._whole)

    def __aiter__(self) -> AsyncItems[StreamSample]:
        return AsyncItems(self, self._open)

    def episodes(self) -> AsyncItems[GymEpisode]:
        """As `iter_episodes`, for `async for`."""
        return AsyncItems(self, self._whole)

    def samples_of(self, episode: GymEpisode, *, count: bool = True) -> list[StreamSample]:
        """What `for` makes of an episode that came from `iter_episodes`. What is left out is counted, unless it was already."""
        refused: Counter[str] = Counter()
        samples = self._make_samples(episode, refused)
        if count:
            for reason, number in refused.items():
                for _ in range(number):
                    self.metrics.record_filtered(reason)
        return samples

    def _make_samples(self, episode: GymEpisode, refused: Counter[str]) -> list[StreamSample]:
        if self._keep is not None and not self._keep(episode):
            refused["not kept"] += len(episode.steps)
            return []
        kept: list[GymStep] = []
        for step in episode.steps:
            if not step.valid and not (self._learn_invalid and _is_text(step.action)):
                refused["invalid action"] += 1
            elif not step.action:
                refused["empty action"] += 1
            else:
                kept.append(step)
        rows = [{"prompt": step.prompt, "response": step.action} for step in kept]
        encoded = encode_rows(rows, self._tokenizer, _LAYOUT, lambda at: f"{episode.episode_id} step {kept[at].step_index}") if rows else []
        samples: list[StreamSample] = []
        for step, (tokens, mask) in zip(kept, encoded, strict=True):
            if len(tokens) not in self._lengths:
                refused["too long" if len(tokens) >= self._lengths.stop else "too short"] += 1
            else:
                samples.append(self._sample(episode, step, tokens, mask))
        return samples

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
        """Go on from there. An episode of which some samples were given is played again, and those are left out.

        Raises:
            MismatchError: The state belongs to another stream.
        """
        with self._lock:
            self._refuse_running()
            if state.get("stream") != self._identity:
                raise MismatchError("this state belongs to another gym stream: other games, difficulties, seed, episodes, or filters")
            try:
                position, ahead = _count(state["episode"]), {_count(position) for position in state["ahead"]}
                given = {_count(position): _count(count) for position, count in state["given"]}
                errors = {str(kind): _count(count) for kind, count in state["errors"].items()}
                metrics = StreamMetrics.from_dict(state["metrics"])
            except (AttributeError, BrimError, KeyError, TypeError, ValueError) as error:
                raise MismatchError(f"this state of a gym stream is damaged: {type(error).__name__}: {error}") from None
            self._rewind()
            self._position, self._ahead, self._given, self.errors, self.metrics = position, ahead, given, errors, metrics

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

    def _new_run(self) -> Run:
        if self.metrics.num_episodes == 0:
            self.metrics.began = time.monotonic()
        run = Run(
            self.config,
            self.policy,
            self._spec,
            first=self._position,
            stop=self._count,
            skip=self._ahead,
            ordered=self.ordered,
            version=self._version,
        )
        self._lanes = run.lanes
        return run

    def _spec(self, position: int) -> EpisodeSpec:
        return self.config.episode(position) if self._specs is None else self._specs[position]

    def _open(self, run: Run, position: int, episode: GymEpisode) -> Iterator[StreamSample]:
        """Its samples, each counted when it is given out, and none after the run was closed."""
        given = self._given.get(position, 0)
        samples = self.samples_of(episode, count=given == 0)
        if given == 0:
            self._count_episode(episode)
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

    def _whole(self, run: Run, position: int, episode: GymEpisode) -> Iterator[GymEpisode]:
        if not self._given.get(position):
            self._count_episode(episode)
        self._delivered(position)
        yield episode

    def _count_episode(self, episode: GymEpisode) -> None:
        self.metrics.record_episode(episode.status, episode.spec.difficulty)
        if episode.status is EpisodeStatus.ERROR:
            kind = type(episode.error).__name__
            self.errors[kind] = self.errors.get(kind, 0) + 1

    def _delivered(self, position: int) -> None:
        self._given.pop(position, None)
        self._ahead.add(position)
        while self._position in self._ahead:
            self._ahead.discard(self._position)
            self._position += 1

    def _sample(self, episode: GymEpisode, step: GymStep, tokens: Any, mask: Any) -> StreamSample:
        return StreamSample(
            sample_id=f"{episode.episode_id}@{episode.spec.number}/{step.step_index}",
            input_ids=tokens,
            loss_mask=mask,
            dataset_id=self._dataset_id,
            source=SampleSource.GYM,
            episode_id=episode.episode_id,
            episode_status=episode.status,
            step_index=step.step_index,
            total_steps=len(episode.steps),
            reward=step.reward,
            difficulty=episode.difficulty,
            success=episode.success,
            policy_version=step.policy_version,
        )

    @property
    def _identity(self) -> str:
        """What decides which episodes and samples come, and in which order."""
        config = self.config
        return fingerprint(
            seed=config.seed,
            games=list(config.games) if config.games else None,
            levels=list(config.levels),
            episodes=self._count if self._specs is None else [[*vars(spec).values()] for spec in self._specs],
            lengths=[self._lengths.start, self._lengths.stop],
            invalid=self._learn_invalid,
            tokenizer=self._tokenizer.fingerprint,
        )


def _is_text(action: str) -> bool:
    """Half a surrogate pair is none."""
    try:
        action.encode()
    except UnicodeEncodeError:
        return False
    return True


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value
