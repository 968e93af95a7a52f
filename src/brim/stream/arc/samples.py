"""Make samples of ARC episodes: actions are trained on; demonstrations and grids are context.

The pitfall: an episode on a demonstration pair must not show that pair's answer. Of the demonstrations of a task, those
that a sample works on are therefore never shown.
"""

import os
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from brim.core.atomic import atomic_file
from brim.core.errors import DataError, LengthError
from brim.envs.arc.episodes.episode import ArcEpisode
from brim.envs.arc.operations import ArcOperation
from brim.envs.arc.tasks.task import Pair
from brim.envs.episode import EpisodeStatus
from brim.stream.arc.config import ArcSampleConfig
from brim.stream.arc.tokens import Transcript, View, can_be_written, transcript_length, transcript_tokens
from brim.stream.sample import SampleSource, StreamSample

NOT_WRITTEN = ("timestamp", "dataset_id", "source", "segment_ids", "replay_count", "priority")
"""Fields of a sample that its row does not have: the time, and what a reader decides."""


class Piece(NamedTuple):
    """A sample whose tokens were counted, and not written yet."""

    id: str
    step: int | None
    """Number of the step; None for a whole episode."""
    transcript: Transcript
    length: int


class ArcSampler:
    """Makes samples of episodes.

    Example:
        >>> from brim.envs.arc import family_tasks, replay, solution, JaxArcConfig, UnifiedActionConfig
        >>> [task] = family_tasks(1, kinds=["flip"])
        >>> config = JaxArcConfig(action=UnifiedActionConfig(selection_format="bbox"))
        >>> episode = replay(task, config, solution(task, task.train[0].input))
        >>> [sample], _ = ArcSampler().samples(episode, 0)
        >>> sample.success, sample.total_steps, int(sample.loss_mask.sum())
        (True, 2, 8)
    """

    def __init__(self, config: ArcSampleConfig | None = None) -> None:
        self.config = ArcSampleConfig() if config is None else config

    def samples(self, episode: ArcEpisode, number: int) -> tuple[list[StreamSample], Counter[str]]:
        """Return the samples of an episode, and how many were left out, by reason.

        Args:
            number: Number of the episode in its source, which makes the ids of samples unique.

        Raises:
            LengthError: A sample is longer than `max_length`, and `overflow` is "error".
            DamagedError: The outcome of the episode does not follow from its actions.
        """
        pieces, left_out = self.pieces(episode, number)
        return [self._sample(episode, number, piece) for piece in pieces], left_out

    def pieces(self, episode: ArcEpisode, number: int) -> tuple[list[Piece], Counter[str]]:
        """Return the same samples with their lengths, before their tokens are written.

        Raises:
            LengthError: A sample is longer than `max_length`, and `overflow` is "error".
            DamagedError: The outcome of the episode does not follow from its actions.
        """
        left_out: Counter[str] = Counter()
        whole = self.config.per == "episode"
        if not episode.steps:
            left_out["no steps"] += 1
            return [], left_out
        if self.config.only_solved and not _is_success(episode):
            left_out["not solved"] += 1 if whole else episode.steps
            return [], left_out
        pieces: list[Piece] = []
        for step in [None] if whole else range(episode.steps):
            transcript = self._transcript(episode, step)
            reason = self._useless(episode, step, transcript)
            if reason is None:
                id = f"{episode.id}@{number}" + ("" if step is None else f"/{step}")
                piece = Piece(id, step, transcript, transcript_length(transcript, changes=self._changes))
                reason = self._too_long(piece)
                if reason is None:
                    pieces.append(piece)
                    continue
            left_out[reason] += 1
        return pieces, left_out

    @property
    def _changes(self) -> bool:
        return self.config.grids == "changes"

    def _transcript(self, episode: ArcEpisode, step: int | None) -> Transcript:
        frames = episode.frames[:-1] if step is None else episode.frames[step : step + 1]
        worked_on = {frame.pair for frame in frames if frame.kind == "train"}
        shown = [pair for number, pair in enumerate(episode.task.train) if number not in worked_on]
        first = 0 if step is None else step
        written = [first]
        if step is None and self.config.grids != "none":
            written = list(range(episode.steps + 1))
        actions = episode.actions
        if step is not None:
            actions = type(actions)(*(part[step : step + 1] for part in actions))
        return Transcript(
            selection_format=episode.config.action.selection_format,
            shape=episode.config.shape,
            demonstrations=tuple(shown[: self.config.demonstrations]),
            views=tuple(self._view(episode, at, begins=at == first) for at in written),
            actions=actions,
            terminated=step is None and episode.terminated,
        )

    def _view(self, episode: ArcEpisode, at: int, *, begins: bool) -> View:
        frame = episode.frames[at]
        if not begins:
            before = episode.frames[at - 1]
            begins = (frame.kind, frame.pair) != (before.kind, before.pair)
        target = _pair(episode, at).output if self.config.target else None
        return View(frame.grid, frame.kind, target, begins)

    def _useless(self, episode: ArcEpisode, step: int | None, transcript: Transcript) -> str | None:
        """Return why an episode or a step becomes no sample, whatever its length; None if it does."""
        if not self.config.learn_invalid:
            if step is not None and episode.frames[step + 1].invalid:
                return "invalid action"
            if step is None and all(frame.invalid for frame in episode.frames[1:]):
                return "invalid actions alone"
        return None if can_be_written(transcript.actions) else "action out of range"

    def _too_long(self, piece: Piece) -> str | None:
        limit = self.config.max_length
        if limit is None or piece.length <= limit:
            return None
        if self.config.overflow == "error":
            raise LengthError(
                f"sample {piece.id!r} has {piece.length} tokens, the limit is {limit}; raise max_length, show fewer "
                'demonstrations, or leave such samples out: overflow="skip" (--overflow on the command line)'
            )
        return "too long"

    def _sample(self, episode: ArcEpisode, number: int, piece: Piece) -> StreamSample:
        tokens, places = transcript_tokens(piece.transcript, changes=self._changes)
        step = piece.step
        return StreamSample(
            sample_id=piece.id,
            input_ids=np.array(tokens, np.int32),
            loss_mask=self._loss_mask(episode, len(tokens), places, 0 if step is None else step),
            dataset_id=self.config.dataset_id,
            source=SampleSource.GYM,
            episode_id=f"{episode.id}@{number}",
            episode_status=status_of(episode),
            step_index=step,
            total_steps=episode.steps,
            reward=episode.reward if step is None else episode.frames[step + 1].reward,
            # The share of cells that are wrong at the beginning, which says nothing about the rule.
            difficulty=1.0 - episode.frames[0].similarity,
            success=_is_success(episode),
            policy_version=self.config.policy_version,
        )

    def _loss_mask(self, episode: ArcEpisode, length: int, places: list[range], first: int) -> NDArray[np.uint8]:
        """Return 1 for the tokens that are trained on: those of actions, without selections that are ignored."""
        mask = np.zeros(length, np.uint8)
        for frame, place in zip(episode.frames[first + 1 :], places, strict=False):
            if frame.invalid and not self.config.learn_invalid:
                continue
            mask[place.start : place.stop] = 1
            if frame.operation is not None and not ArcOperation(frame.operation).uses_selection:
                mask[place.start + 1 : place.stop - 1] = 0
        return mask


def _pair(episode: ArcEpisode, at: int) -> Pair:
    frame = episode.frames[at]
    return (episode.task.train if frame.kind == "train" else episode.task.test)[frame.pair]


def status_of(episode: ArcEpisode) -> EpisodeStatus:
    """Return the status of an episode: "success" or "failure" if it terminated, "timeout" if it was truncated, and
    "running" if it was left unfinished.
    """
    if episode.terminated:
        return EpisodeStatus.SUCCESS if episode.solved else EpisodeStatus.FAILURE
    return EpisodeStatus.TIMEOUT if episode.truncated else EpisodeStatus.RUNNING


def _is_success(episode: ArcEpisode) -> bool:
    return status_of(episode) is EpisodeStatus.SUCCESS


def write_rows(path: str | os.PathLike[str], samples: Iterable[StreamSample]) -> int:
    """Write samples as rows of JSON for `brim train sft --tokenizer arc`, and return how many there are.

    Raises:
        DataError: There are none. Nothing is written then.
    """
    count = 0
    with atomic_file(path) as file:
        for sample in samples:
            file.write(orjson.dumps(_row(sample), option=orjson.OPT_APPEND_NEWLINE))
            count += 1
        if not count:
            raise DataError(f"there are no samples to write to {os.fspath(path)}")
    return count


def _row(sample: StreamSample) -> dict[str, Any]:
    values = {name: value for name, value in sample.to_dict().items() if value is not None and name not in NOT_WRITTEN}
    return {"id": values.pop("sample_id"), **values}
