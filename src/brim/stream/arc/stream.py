"""`ArcEpisodeStream`: the samples of recorded ARC episodes, with a position to resume from.

All episodes are read from their file when it is opened. The frames of an episode are computed when its samples are
made, and dropped afterwards. Samples that the options leave out are counted in the metrics, by reason.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

from brim.core.errors import DataError, MismatchError, OptionError
from brim.core.fingerprint import digest_bytes
from brim.core.options import check_counts
from brim.core.rng import permutation
from brim.data.ids import SampleId
from brim.data.lengths import LengthCache
from brim.data.tokenizer.arc import ArcTokenizer
from brim.envs.arc.episodes.episode import ArcEpisode
from brim.envs.arc.episodes.files import episodes_bytes, read_episodes
from brim.stream.arc.config import ArcSampleConfig
from brim.stream.arc.samples import ArcSampler, status_of
from brim.stream.offline.positioned import PositionedStream
from brim.stream.protocols import StreamState
from brim.stream.sample import StreamSample


class ArcEpisodeStream(PositionedStream):
    """The samples of a file of episodes, or of a list of them, with `for` or `async for`.

    Example:
        >>> stream = ArcEpisodeStream("episodes.json", ArcSampleConfig(only_solved=True))  # doctest: +SKIP
        >>> for sample in stream:  # doctest: +SKIP
        ...     state = stream.state_dict()  # resumes with the next sample, also in another process
    """

    kind = "arc"

    def __init__(
        self,
        episodes: str | os.PathLike[str] | Sequence[ArcEpisode],
        config: ArcSampleConfig | None = None,
        *,
        shuffle: bool = False,
        seed: int = 42,
        epochs: int = 1,
    ) -> None:
        """Open a file of episodes, or take a list.

        Args:
            config: What samples hold.
            shuffle: Whether every epoch has an order of episodes of its own, the same for the same seed.
            epochs: Passes over the episodes.

        Raises:
            DataError: There are no episodes, or the file is not one of episodes.
            DamagedError: The file is truncated, altered or of another version.
            OptionError: An option has a value that cannot work.
        """
        super().__init__()
        check_counts(epochs=epochs)
        if type(shuffle) is not bool:
            raise OptionError(f"shuffle must be true or false, got {shuffle!r}")
        self._episodes = _taken(episodes)
        self._sampler = ArcSampler(config)
        self._shuffle = shuffle
        self._seed = seed
        self.epochs = epochs
        self._place = (0, 0, 0)
        """Epoch, place in its order, and samples of that episode that were handed out."""
        self._made: tuple[tuple[int, int], list[StreamSample]] | None = None

    @property
    def config(self) -> ArcSampleConfig:
        return self._sampler.config

    def __next__(self) -> StreamSample:
        self._check_open()
        self._state = StreamState.STREAMING
        try:
            sample = self._hand_out()
        except Exception:
            self._state = StreamState.ERROR
            raise
        if sample is None:
            self._state = StreamState.EXHAUSTED
            raise StopIteration
        return sample

    async def __anext__(self) -> StreamSample:
        if self._place[2] == 0:
            await asyncio.sleep(0)  # others run once in an episode at least
        sample = next(self, None)
        if sample is None:
            raise StopAsyncIteration
        return sample

    def lengths(self) -> LengthCache:
        """Return the lengths of the samples of an epoch, in the order of the episodes, for `BatchPlan.build`.

        No tokens are written, and the position does not move.

        Raises:
            DataError: An epoch has no samples.
            LengthError: A sample is longer than `max_length`, and `overflow` is "error".
        """
        ids: list[SampleId] = []
        lengths: list[int] = []
        for number, episode in enumerate(self._episodes):
            pieces, _ = self._sampler.pieces(_without_frames(episode), number)
            ids += [piece.id for piece in pieces]
            lengths += [piece.length for piece in pieces]
        if not ids:
            raise DataError(f"none of the {len(self._episodes)} episodes becomes a sample under these options")
        return LengthCache.from_lists(
            ids,
            lengths,
            [None] * len(ids),
            tokenizer_hash=ArcTokenizer.fingerprint,
            dataset_hash=self._fingerprint,
            source={"tokenizer": ArcTokenizer.name},
        )

    def _hand_out(self) -> StreamSample | None:
        """Return the next sample; None after the last one. An error leaves the position as it was."""
        while self._place[0] < self.epochs:
            epoch, at, given = self._place
            if at == len(self._episodes):
                self._place = (epoch + 1, 0, 0)
                continue
            samples = self._samples(epoch, at, count=given == 0)
            if given < len(samples):
                self._place = (epoch, at, given + 1)
                self._metrics.record(samples[given])
                return samples[given]
            self._place = (epoch, at + 1, 0)
        return None

    def _samples(self, epoch: int, at: int, *, count: bool) -> list[StreamSample]:
        """Return the samples of an episode, and count it if it is reached for the first time."""
        if self._made is None or self._made[0] != (epoch, at):
            number = int(self._order(epoch)[at]) if self._shuffle else at
            episode = _without_frames(self._episodes[number])
            samples, left_out = self._sampler.samples(episode, number)
            if count:
                for reason, many in left_out.items():
                    for _ in range(many):
                        self._metrics.record_filtered(reason)
                self._metrics.record_episode(status_of(episode))
            self._made = ((epoch, at), samples)
        return self._made[1]

    def _order(self, epoch: int) -> Any:
        return permutation(len(self._episodes), seed=self._seed, purpose="arc episodes", epoch=epoch)

    @cached_property
    def _fingerprint(self) -> str:
        return digest_bytes(episodes_bytes(self._episodes))

    def _options(self) -> dict[str, Any]:
        """`epochs` is not among these: a longer stream begins with the shorter one."""
        return {
            "episodes": self._fingerprint,
            "vocabulary": ArcTokenizer.fingerprint,
            **asdict(self.config),
            "shuffle": self._shuffle,
            "seed": self._seed if self._shuffle else None,
        }

    def _position(self) -> dict[str, int]:
        return dict(zip(("epoch", "episode", "sample"), self._place, strict=True))

    def _go_to(self, position: Mapping[str, int] | None) -> None:
        if position is not None:
            self._check_position(position)
            if position["epoch"] > self.epochs or position["episode"] > len(self._episodes):
                raise MismatchError(
                    f"the state is in epoch {position['epoch']} at episode {position['episode']}, and this stream has "
                    f"{self.epochs} epochs of {len(self._episodes)} episodes; raise epochs"
                )
        self._place = (0, 0, 0) if position is None else (position["epoch"], position["episode"], position["sample"])
        self._made = None


def _without_frames(episode: ArcEpisode) -> ArcEpisode:
    """Return a copy, so that the frames, which are many, are computed for it and not kept with the episode."""
    return replace(episode)


def _taken(episodes: str | os.PathLike[str] | Sequence[ArcEpisode]) -> list[ArcEpisode]:
    if isinstance(episodes, str | os.PathLike):
        return read_episodes(episodes)
    found = list(episodes)
    if not found:
        raise DataError("there are no episodes to make samples of")
    for one in found:
        if not isinstance(one, ArcEpisode):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DataError(f"a stream of ARC episodes takes ArcEpisode, got {type(one).__name__}")
    return found
