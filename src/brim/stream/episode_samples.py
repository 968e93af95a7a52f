"""Make samples of episodes, one for each action: here playing ends and training data begins."""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import OptionError
from brim.data.rows.prompts import Prompts
from brim.envs.puzzle.episode import GymEpisode, GymStep
from brim.stream.sample import SampleSource, StreamSample

NOT_KEPT = "not kept"
"""The reason under which steps of episodes are counted that `keep` refused."""


class Played(NamedTuple):
    """An episode and the samples that were made of it."""

    episode: GymEpisode
    samples: list[StreamSample]


class EpisodeSampler:
    """Makes samples of episodes: the prompt is read, the action and the end token are learned, as in a row of
    {"prompt", "response"}."""

    def __init__(
        self,
        prompts: Prompts,
        *,
        dataset_id: str = "gym",
        min_length: int = 1,
        max_length: int = 8192,
        keep: Callable[[GymEpisode], bool] | None = None,
        learn_invalid: bool = False,
    ) -> None:
        """The options are those of `GymEpisodeStream`.

        Raises:
            OptionError: The lengths exclude every sample.
        """
        if not 1 <= min_length <= max_length:
            raise OptionError(f"min_length must lie between 1 and max_length ({max_length}), got {min_length}")
        self.lengths = range(min_length, max_length + 1)
        """Lengths of samples that are kept."""
        self.learn_invalid = learn_invalid
        self.prompts = prompts
        self._dataset_id = dataset_id
        self._keep = keep

    def samples(self, episode: GymEpisode) -> tuple[list[StreamSample], Counter[str]]:
        """The samples of an episode, and the steps that became none, counted by reason."""
        refused: Counter[str] = Counter()
        if self._keep is not None and not self._keep(episode):
            refused[NOT_KEPT] += len(episode.steps)
            return [], refused
        kept: list[GymStep] = []
        for step in episode.steps:
            if not step.valid and not (self.learn_invalid and _is_text(step.action)):
                refused["invalid action"] += 1
            elif not step.action:
                refused["empty action"] += 1
            else:
                kept.append(step)
        pairs = [(step.prompt, step.action) for step in kept]
        rows = self.prompts.rows(pairs, lambda at: f"{episode.episode_id} step {kept[at].step_index}") if pairs else []
        samples: list[StreamSample] = []
        for step, (tokens, mask) in zip(kept, rows, strict=True):
            if len(tokens) in self.lengths:
                samples.append(self._sample(episode, step, tokens, mask))
            else:
                refused["too long" if len(tokens) >= self.lengths.stop else "too short"] += 1
        return samples, refused

    def _sample(
        self, episode: GymEpisode, step: GymStep, tokens: NDArray[np.int32], mask: NDArray[np.uint8]
    ) -> StreamSample:
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


def _is_text(action: str) -> bool:
    """True if the action can be written as UTF-8; half a surrogate pair cannot."""
    try:
        action.encode()
    except UnicodeEncodeError:
        return False
    return True
