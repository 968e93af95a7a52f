"""Episodes on a puzzle server as rollouts: groups of attempts at the same puzzle, played by the model itself.

All moves that are due at the same time are drawn by one run of the decode loop, whichever episodes they belong to; the
lanes wait for each other. An attempt is one sequence of moves and answers (see `brim.train.grpo.turns` for the text),
with the tokens as they were drawn. Nothing restricts the model to well-formed moves: what is no move is answered with
words, and costs reward.

The random numbers of a move depend on the seed, the draw, the number of the attempt and the turn alone, so neither
lanes nor timing matter. The numbers of rows that are computed together can change the last bits of log-probabilities,
so plays are identical to the bit with the same number of lanes.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from brim.core.errors import OptionError
from brim.core.extras import need
from brim.core.fill import Fill
from brim.core.options import check_counts
from brim.core.progress import Progress, silent
from brim.data.rows.prompts import Prompts
from brim.data.tokenizer.base import Tokenizer
from brim.envs.puzzle.config import GymConfig
from brim.envs.puzzle.episode import GymEpisode
from brim.envs.puzzle.games import EpisodeSpec
from brim.envs.puzzle.policies import Together, Turn
from brim.envs.puzzle.run import EpisodeRun
from brim.generate.config import Law
from brim.generate.decode.choice import Loops
from brim.generate.decode.loop import DecodeLimits
from brim.generate.decode.rows import Job
from brim.generate.decode.sampler import SampledRow, Sampler
from brim.generate.model import CausalModel
from brim.generate.reading import check_prompts
from brim.generate.stops import Stops
from brim.train.grpo.attempt import Attempt, Group
from brim.train.grpo.turns import END_OF_MOVE, Transcript, action_of, answer_to, puzzle, reward_parts

if TYPE_CHECKING:
    import torch
else:
    torch = need("torch", extra="train", user="brim.train")


class EpisodeSource:
    """Plays groups of episodes with a causal model, whatever its weights are at the time: a `RolloutSource`.

    Example:
        source = EpisodeSource(model, tokenizer, GymConfig(games=("lights",)), seed=0, max_new_tokens=16, longest=512)
        groups = source.play(range(8), size=8, temperature=1.0, held_out=False, stop=lambda: False)
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        gym: GymConfig,
        *,
        seed: int,
        max_new_tokens: int,
        longest: int,
        bf16: bool = False,
        on_attempt: Progress = silent,
    ) -> None:
        """
        Args:
            model: A causal language model of transformers, alone or wrapped.
            gym: The server and the puzzles; `brim.train.grpo.turns.puzzle` says which one a draw stands for.
            max_new_tokens: Upper limit of the tokens of a move.
            longest: Upper limit of the tokens of an episode. One that has no room for another move is truncated.
            bf16: Compute in bfloat16, with autocast.
            on_attempt: Called after every attempt with the number of those that have ended, and of all in the play.

        Raises:
            OptionError: A limit cannot work.
        """
        self.gym = gym
        self._seed = seed
        self._on_attempt = on_attempt
        self._writer = _Writer(model, tokenizer, max_new_tokens=max_new_tokens, longest=longest, bf16=bf16)
        self._run: EpisodeRun | None = None
        """The play that is under way."""
        self._reached = False
        """Whether the server was there before, so that it is waited for if it is unreachable."""

    @property
    def fill(self) -> Fill:
        """Tokens in the cache out of the columns that were attended to, while drawing the moves of the latest play."""
        return self._writer.fill

    @property
    def reward_seconds(self) -> float:
        """Always 0: the server's answers are the rewards, and there is nothing else to wait for."""
        return 0.0

    def play(
        self, draws: Sequence[int], *, size: int, temperature: float, held_out: bool, stop: Callable[[], bool]
    ) -> list[Group] | None:
        """Play the puzzle of each draw `size` times. See `RolloutSource`.

        `stop` is asked before every turn, in another thread, and after every episode.

        Raises:
            PuzzleError: There is no server, or it was lost.
            MismatchError: The model does not know a token of a position.
            BrimError: The model's logits are not finite, or one move alone runs out of memory.
        """
        check_counts(size=size)
        self._writer.fill = Fill()
        specs: list[EpisodeSpec] = []
        streams: list[str] = []
        for draw in draws:
            spec = puzzle(self.gym, draw, held_out=held_out)
            for attempt in range(size):
                specs.append(replace(spec, number=len(specs)))
                streams.append(f"{'held out' if held_out else 'episode'}/{draw}/{attempt}")
        policy = _Player(self._writer, Law(temperature=temperature), self._seed, streams, stop)
        run = self._run = EpisodeRun(
            self.gym, policy, specs.__getitem__, stop=len(specs), wait_for_server=self._reached
        )
        episodes: list[GymEpisode] = []
        try:
            while not stop() and (played := run.take()) is not None:
                self._reached = True
                episodes.append(played[1])
                self._on_attempt(len(episodes), len(specs))
        except _Stopped:
            return None
        finally:
            self._run = None
            run.stop()
        if len(episodes) < len(specs):
            return None
        return [
            self._group(draw, episodes[at : at + size], policy.transcripts)
            for draw, at in zip(draws, range(0, len(specs), size), strict=True)
        ]

    def close(self) -> None:
        """End the play that is under way, if there is one; it returns None. Can be called from any thread."""
        if self._run is not None:
            self._run.stop()

    def _group(self, draw: int, episodes: list[GymEpisode], transcripts: dict[int, Transcript]) -> Group:
        found = [transcripts.get(episode.spec.number) for episode in episodes]
        first = next((one for one in found if one is not None), Transcript("", np.empty(0, np.int32)))
        return Group(
            draw=draw,
            task=episodes[0].episode_id,
            prompt_ids=first.prompt_ids,
            prompt=first.prompt,
            answer=None,
            attempts=tuple(self._attempt(episode, one, first) for episode, one in zip(episodes, found, strict=True)),
        )

    def _attempt(self, episode: GymEpisode, transcript: Transcript | None, first: Transcript) -> Attempt:
        """Return the attempt that an episode was; `first` is an attempt at the same puzzle, with the group's prompt."""
        if episode.error is not None:
            return Attempt.failed(type(episode.error).__name__, str(episode.error))
        if transcript is None or not episode.steps:
            return self._unplayed(episode, transcript)
        if transcript.prompt != first.prompt:
            return Attempt.failed(
                "ProtocolError", f"the server began {episode.episode_id} with another position than at another attempt"
            )
        # A move that was drawn while the episode ran out of time was never sent, and does not belong to it.
        end = transcript.ends[len(episode.steps) - 1]
        token_ids = np.array(transcript.tokens[:end], np.int32)
        parts = reward_parts(episode, self.gym.rewards)
        return Attempt(
            token_ids=token_ids,
            drawn=np.array(transcript.drawn[:end], np.bool_),
            logprobs=np.array(transcript.logprobs[:end], np.float32),
            text=self._writer.tokenizer.decode(token_ids),
            finish_reason="stop" if episode.terminated else "length",
            reward=sum(parts.values()),
            passed=episode.success,
            parts=parts,
            turns=len(episode.steps),
        )

    def _unplayed(self, episode: GymEpisode, transcript: Transcript | None) -> Attempt:
        """Return the failure of an episode that ended before its first move."""
        if transcript is not None and transcript.out_of_room:
            return Attempt.failed(
                "LengthError",
                f"the prompt of {episode.episode_id} has {len(transcript)} tokens, which leaves no room for a move of "
                f"up to {self._writer.max_new_tokens}: an episode has at most {self._writer.longest}",
            )
        return Attempt.failed("TimeoutError", f"{episode.episode_id}: no move in {self.gym.episode_timeout} seconds")


class _Stopped(Exception):  # noqa: N818
    """Carries a wish to stop from the thread that draws moves to the one that plays."""


class _Player(Together):
    """Draws the moves of all lanes that wait, and keeps the sequence of every episode of one play."""

    name = "model"

    def __init__(
        self, writer: "_Writer", law: Law, seed: int, streams: Sequence[str], stop: Callable[[], bool]
    ) -> None:
        """`streams` names the random numbers of each episode, by its number."""
        super().__init__(self.choose)
        self.transcripts: dict[int, Transcript] = {}
        """By the number of the episode."""
        self._writer = writer
        self._law = law
        self._seed = seed
        self._streams = streams
        self._stop = stop

    def choose(self, turns: Sequence[Turn]) -> list[str | None]:
        """Return a move for each turn; None, which ends the episode, where another one does not fit."""
        if self._stop():
            raise _Stopped
        for turn in turns:
            self._extend(turn)
        going = [turn for turn in turns if not self.transcripts[turn.episode.number].out_of_room]
        rows = [self._row(turn) for turn in going]
        self._writer.write(rows, self._law)
        actions: dict[int, str] = {}
        for turn, row in zip(going, rows, strict=True):
            text = self._writer.tokenizer.decode(row.tokens)
            self.transcripts[turn.episode.number].add_move(row.tokens, row.sampling_logprobs, text)
            actions[turn.episode.number] = action_of(text)
        return [actions.get(turn.episode.number) for turn in turns]

    def _extend(self, turn: Turn) -> None:
        """Begin the sequence of an episode, or append the answer to its last move, if a move fits behind it."""
        number = turn.episode.number
        transcript = self.transcripts.get(number)
        if transcript is None:
            transcript = Transcript(turn.prompt, self._writer.prompts.tokens(turn.prompt))
            self.transcripts[number] = transcript
            answer = np.empty(0, np.int32)
        else:
            words = answer_to(turn.episode.game, turn.history[-1], refused=turn.refused, prompt=turn.prompt)
            answer = transcript.answer_ids(words, self._writer.tokenizer)
        transcript.out_of_room = len(transcript) + len(answer) + self._writer.max_new_tokens > self._writer.longest
        if not transcript.out_of_room:
            transcript.add_answer(answer)

    def _row(self, turn: Turn) -> SampledRow:
        number = turn.episode.number
        return SampledRow(
            (number, turn.step),
            self.transcripts[number].ids,
            self._writer.max_new_tokens,
            seed=self._seed,
            stream=self._streams[number],
        )


class _Writer:
    """Draws moves with one model."""

    def __init__(self, model: Any, tokenizer: Tokenizer, *, max_new_tokens: int, longest: int, bf16: bool) -> None:
        check_counts(max_new_tokens=max_new_tokens, longest=longest)
        self._model = CausalModel(model)
        self._loops = Loops(self._model)
        self._bf16 = bf16
        self._stops = Stops(
            tokenizer,
            eos=self._model.end_tokens(tokenizer.eos_id),
            stop=(END_OF_MOVE,),
            vocab_size=self._model.vocabulary,
        )
        self.tokenizer = tokenizer
        self.prompts = Prompts(tokenizer)
        self.fill = Fill()
        self.max_new_tokens = max_new_tokens
        self.longest = min(longest, self._model.context or longest)
        if max_new_tokens >= self.longest:
            raise OptionError(
                f"max_new_tokens must be below the {self.longest} tokens of an episode, got {max_new_tokens}: there "
                "would be no room for a position"
            )

    def write(self, rows: Sequence[SampledRow], law: Law) -> None:
        """Draw the tokens of every row, to its end. Rows with the same context read it once.

        Raises:
            MismatchError: The model does not know a token.
        """
        if not rows:
            return
        check_prompts([row.prompt for row in rows], known_tokens=self._model.known_tokens, context=self._model.context)
        jobs: dict[bytes, Job] = {}
        for row in rows:
            jobs.setdefault(row.prompt.tobytes(), Job(row.ids, [])).rows.append(row)
        longest = max(row.longest for row in rows)
        with torch.autocast(self._model.device.type, torch.bfloat16, enabled=self._bf16):
            loop = self._loops.loop(longest, DecodeLimits(rows=len(rows)))
            for _ in loop.run(list(jobs.values()), Sampler(law, self._stops)):
                pass
        self.fill += loop.stats.fill
