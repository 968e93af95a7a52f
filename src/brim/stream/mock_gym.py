"""A gym without a server: episodes of a small puzzle, played by a simulated player with a given success rate.

The puzzle is sorting. A position lists the numbers that are placed and those that are left; an action places one of
them, and the right one is the smallest. In a success every action is right. In a failure exactly one is wrong, and the
later ones are the best that is left. Harder puzzles have larger numbers: one digit at difficulty 0, three at 1. There
is nothing to wait for, and no model is asked; what a model could learn from the samples is to sort.

Difficulties are uniform in their range. With `u` the place of one in it, from 0 to 1, and `r` the success rate, an
episode succeeds with probability r + min(r, 1 - r) * (1 - 2u): easy ones more often, hard ones less, and r of all.
"""

import asyncio
import os
import re
from collections.abc import Mapping
from typing import Any

from brim.core.errors import DataError, MismatchError, OptionError
from brim.core.options import check_counts
from brim.core.rng import permutation, raw_bits
from brim.data.rows.encode import encode_rows
from brim.data.rows.format import RowFormat
from brim.data.tokenizer.base import Tokenizer, load_tokenizer
from brim.envs.episode import DIFFICULTIES, LEVELS, EpisodeStatus
from brim.stream.offline.positioned import PositionedStream
from brim.stream.protocols import StreamState
from brim.stream.sample import SampleSource, StreamSample


class MockGymStream(PositionedStream):
    """One sample for each step of each episode: the position is read, the action and the end token are learned.

    An episode is a pure function of the seed and its number. The last step of a success has reward 1, every other step
    0. The stream is for `for` and for `async for`.

    Example:
        >>> stream = MockGymStream("byte", num_episodes=1, steps_per_episode=3, success_rate=1.0)
        >>> [(sample.step_index, sample.reward) for sample in stream]
        [(0, 0.0), (1, 0.0), (2, 1.0)]
    """

    kind = "mock gym"

    def __init__(
        self,
        tokenizer: str | os.PathLike[str] | Tokenizer,
        *,
        num_episodes: int = 100,
        steps_per_episode: int = 5,
        difficulty_range: tuple[float, float] = (0.0, 1.0),
        success_rate: float = 0.7,
        seed: int = 42,
        dataset_id: str = "mock",
    ) -> None:
        """
        Raises:
            OptionError: An option has a value that cannot work.
        """
        super().__init__()
        check_counts(num_episodes=num_episodes, steps_per_episode=steps_per_episode)
        low, high = difficulty_range
        if not 0 <= low <= high <= 1:
            raise OptionError(f"difficulty_range must be two numbers that rise between 0 and 1, got {difficulty_range}")
        if not 0 <= success_rate <= 1:
            raise OptionError(f"success_rate is {success_rate}; it must lie between 0 and 1")
        self.tokenizer = load_tokenizer(tokenizer) if isinstance(tokenizer, str | os.PathLike) else tokenizer
        self.num_episodes, self.steps_per_episode = num_episodes, steps_per_episode
        self.difficulty_range, self.success_rate = (float(low), float(high)), float(success_rate)
        self.seed, self.dataset_id = seed, dataset_id
        self._done = 0  # samples handed out
        self._episode: tuple[int, list[StreamSample]] = (-1, [])

    def __next__(self) -> StreamSample:
        self._check_open()
        number, step = divmod(self._done, self.steps_per_episode)
        if number >= self.num_episodes:
            self._state = StreamState.EXHAUSTED
            raise StopIteration
        self._state = StreamState.STREAMING
        if self._episode[0] != number:
            self._episode = (number, self.episode(number))
        sample = self._episode[1][step]
        self._done += 1
        self._metrics.record(sample)
        if step + 1 == self.steps_per_episode and sample.episode_status is not None and sample.difficulty is not None:
            self._metrics.record_episode(sample.episode_status, level(sample.difficulty))
        return sample

    async def __anext__(self) -> StreamSample:
        if self._done % self.steps_per_episode == 0:
            await asyncio.sleep(0)  # others run once in an episode at least
        sample = next(self, None)
        if sample is None:
            raise StopAsyncIteration
        return sample

    def episode(self, number: int) -> list[StreamSample]:
        """Return the samples of one episode without moving the stream."""
        low, high = self.difficulty_range
        where, luck, slip, wrong = (
            raw_bits(4, seed=self.seed, purpose="mock-gym/episode", epoch=number) >> 11
        ).tolist()
        place = where / 2**53
        rate = self.success_rate
        success = luck / 2**53 < rate + min(rate, 1 - rate) * (1 - 2 * place if high > low else 0)
        difficulty = low + (high - low) * place
        turns = self._play(number, difficulty, None if success else slip % self.steps_per_episode, wrong)
        episode_id = f"{self.dataset_id}-{self.seed}-{number}"
        rows = [{"prompt": prompt, "response": action} for prompt, action in turns]
        encoded = encode_rows(rows, self.tokenizer, RowFormat(shape="prompt"), lambda k: f"{episode_id}, step {k}")
        return [
            StreamSample(
                sample_id=f"{episode_id}-{step}",
                input_ids=tokens,
                loss_mask=mask,
                dataset_id=self.dataset_id,
                source=SampleSource.GYM,
                episode_id=episode_id,
                episode_status=EpisodeStatus.SUCCESS if success else EpisodeStatus.FAILURE,
                step_index=step,
                total_steps=self.steps_per_episode,
                reward=float(success and step + 1 == self.steps_per_episode),
                difficulty=difficulty,
                success=success,
            )
            for step, (tokens, mask) in enumerate(encoded)
        ]

    def _play(self, number: int, difficulty: float, slip: int | None, wrong: int) -> list[tuple[str, str]]:
        """Return prompts and actions. There is one number more than steps, so that every step has a wrong action."""
        many = self.steps_per_episode + 1
        limit = max(2 * many, round(10 ** (1 + 2 * difficulty)))
        left: list[int] = permutation(limit, seed=self.seed, purpose="mock-gym/numbers", epoch=number)[:many].tolist()
        placed: list[int] = []
        turns: list[tuple[str, str]] = []
        for step in range(self.steps_per_episode):
            best = min(left)
            others = [value for value in left if value != best]
            chosen = others[wrong % len(others)] if step == slip else best
            turns.append((_prompt(placed, left), f"place {chosen}"))
            left.remove(chosen)
            placed.append(chosen)
        return turns

    def _options(self) -> dict[str, Any]:
        """`num_episodes` is not among these: a longer stream begins with the shorter one."""
        return {
            "tokenizer": self.tokenizer.fingerprint,
            "steps_per_episode": self.steps_per_episode,
            "difficulty_range": self.difficulty_range,
            "success_rate": self.success_rate,
            "seed": self.seed,
            "dataset_id": self.dataset_id,
        }

    def _position(self) -> dict[str, int]:
        return {"samples": self._done}

    def _go_to(self, position: Mapping[str, int] | None) -> None:
        if position is not None:
            self._check_position(position)
            total = self.num_episodes * self.steps_per_episode
            if position["samples"] > total:
                raise MismatchError(
                    f"the state is behind {position['samples']} samples, and this stream has {total}; raise "
                    "num_episodes"
                )
        self._done = 0 if position is None else position["samples"]


def right_action(prompt: str) -> str:
    """Return the right action, found from the prompt alone.

    Raises:
        DataError: It is not a prompt of this puzzle.
    """
    found = re.search(r"^Left: (\d+(?: \d+)*)$", prompt, re.MULTILINE)
    if found is None:
        raise DataError(f"not a position of the sorting puzzle: {prompt!r:.60}")
    return f"place {min(int(number) for number in found[1].split())}"


def level(difficulty: float) -> str:
    """Return easy, medium or hard, whichever is nearest."""
    return min(LEVELS, key=lambda word: abs(DIFFICULTIES[word] - difficulty))


def _prompt(placed: list[int], left: list[int]) -> str:
    done = " ".join(str(number) for number in placed) or "none"
    return f"Sort the numbers, the smallest first.\nPlaced: {done}\nLeft: {' '.join(str(number) for number in left)}"
