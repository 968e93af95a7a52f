"""Episodes on a puzzle server as sequences of tokens: which text stands between the moves, and which tokens are moves.

An episode is one sequence. It begins with the position in words, as a prompt of {"prompt", "response"} rows does; then
moves and the server's answers alternate:

    lights             the prompt: the name of the game and the position
    .1.
    111
    .1.
    press 1 1          a move, up to an end token or the end of the line
    1..                the answer to a move that was accepted: the position after it, without the name
    .11
    .1.
    press 4 4
    refused            the answer to a move that the server refused; the position is the same as before
    press
    not a move         the answer to a move that was never sent, because it has no form that the game knows
    press 2 2

The newline after a move belongs to the move if the model wrote it, and to the answer if the move ended otherwise. After
the last move nothing follows. Every answer is tokenised alone, and a move that a model drew keeps the tokens that were
drawn: no token is ever decoded and encoded again. Nothing here imports torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from brim.core.rng import new_seed
from brim.data.rows.prompts import Prompts
from brim.data.sample import Sample
from brim.data.tokenizer.base import Tokenizer
from brim.envs.puzzle.config import GymConfig, RewardConfig
from brim.envs.puzzle.episode import GymEpisode
from brim.envs.puzzle.games import EpisodeSpec, game
from brim.envs.puzzle.policies import HintPolicy
from brim.envs.puzzle.run import EpisodeRun
from brim.generate.rollouts import Ids

END_OF_MOVE = "\n"
REFUSED = "refused"
NOT_A_MOVE = "not a move"


def puzzle(gym: GymConfig, draw: int, *, held_out: bool) -> EpisodeSpec:
    """Return the puzzle that a draw stands for: a function of the options of the gym, the draw and `held_out` alone.

    Puzzles to train on have even seeds and those that are held out have odd ones, so no puzzle is both. In a game with
    few positions, two seeds can still lead to the same one.
    """
    if held_out:
        gym = replace(gym, seed=new_seed(seed=gym.seed, purpose="grpo/held out"))
    spec = gym.episode(draw)
    return replace(spec, seed=spec.seed - spec.seed % 2 + held_out)


def action_of(text: str) -> str:
    """Return the action in the text of a move: its first line. It may be empty, which the server would refuse."""
    return text.partition(END_OF_MOVE)[0].strip()


def answer_to(name: str, action: str, *, refused: bool, prompt: str) -> str:
    """Return the server's answer to an action of the game `name`, in words, with the newline after it.

    `prompt` is the position after the action, with the name of the game in its first line.
    """
    if not refused:
        return prompt.partition("\n")[2] + "\n"
    return (NOT_A_MOVE if game(name).check(action) else REFUSED) + "\n"


@dataclass(eq=False)
class Transcript:
    """The sequence of one episode so far."""

    prompt: str
    prompt_ids: Ids
    tokens: list[int] = field(default_factory=list[int])
    """Everything behind the prompt."""
    drawn: list[bool] = field(default_factory=list[bool])
    """For each token, whether it belongs to a move; and its log-probability, 0 for the tokens of answers."""
    logprobs: list[float] = field(default_factory=list[float])
    ends: list[int] = field(default_factory=list[int])
    """Number of tokens after each move."""
    line_ended: bool = False
    """Whether the last move contains the newline after it."""
    out_of_room: bool = False
    """Whether the episode was ended because another move did not fit."""

    @property
    def ids(self) -> Ids:
        """The prompt and the tokens: what the model reads before its next move."""
        return np.concatenate([self.prompt_ids, np.array(self.tokens, np.int32)])

    def __len__(self) -> int:
        """Tokens of the prompt and behind it."""
        return len(self.prompt_ids) + len(self.tokens)

    def add_answer(self, ids: Ids) -> None:
        self.tokens += ids.tolist()
        self.drawn += [False] * len(ids)
        self.logprobs += [0.0] * len(ids)

    def add_move(self, ids: Sequence[int], logprobs: Sequence[float], text: str) -> None:
        self.tokens += ids
        self.drawn += [True] * len(ids)
        self.logprobs += logprobs
        self.ends.append(len(self.tokens))
        self.line_ended = END_OF_MOVE in text

    def answer_ids(self, answer: str, tokenizer: Tokenizer) -> Ids:
        """Return the tokens that follow the last move: those of the answer, with a newline first unless it is there."""
        return tokenizer.encode_batch([answer if self.line_ended else "\n" + answer])[0]


def hint_samples(gym: GymConfig, tokenizer: Tokenizer, draws: Sequence[int], *, longest: int) -> list[Sample]:
    """Play the puzzles of `draws` by the server's hints, and return a sample for each that was solved.

    A sample has exactly the tokens of an episode of `EpisodeSource`, and its moves are trained on: with them,
    supervised fine-tuning gives a model that GRPO can begin with. A move ends with the end token, or with a newline if
    the tokenizer has none. Samples of more than `longest` tokens are left out.

    Raises:
        PuzzleError: There is no server, or it was lost.
    """
    specs = [replace(puzzle(gym, draw, held_out=False), number=number) for number, draw in enumerate(draws)]
    prompts = Prompts(tokenizer)
    samples: list[Sample] = []
    run = EpisodeRun(gym, HintPolicy(), specs.__getitem__, stop=len(specs))
    try:
        while (played := run.take()) is not None:
            number, episode = played
            if not episode.success:
                continue
            transcript = _transcribed(episode, prompts)
            if len(transcript) <= longest:
                mask = [False] * len(transcript.prompt_ids) + transcript.drawn
                samples.append(
                    Sample(f"{episode.episode_id}@{draws[number]}", transcript.ids, np.array(mask, np.uint8))
                )
    finally:
        run.stop()
    return samples


def _transcribed(episode: GymEpisode, prompts: Prompts) -> Transcript:
    """Return the sequence of an episode that no model played."""
    tokenizer = prompts.tokenizer
    first = episode.steps[0]
    transcript = Transcript(first.prompt, prompts.tokens(first.prompt))
    _add_action(transcript, first.action, tokenizer)
    for before, step in pairwise(episode.steps):
        answer = answer_to(episode.spec.game, before.action, refused=not before.valid, prompt=step.prompt)
        transcript.add_answer(transcript.answer_ids(answer, tokenizer))
        _add_action(transcript, step.action, tokenizer)
    return transcript


def _add_action(transcript: Transcript, action: str, tokenizer: Tokenizer) -> None:
    text = action if tokenizer.eos_id is not None else action + END_OF_MOVE
    ids: list[int] = tokenizer.encode_batch([text])[0].tolist()
    if tokenizer.eos_id is not None:
        ids.append(tokenizer.eos_id)
    transcript.add_move(ids, [0.0] * len(ids), text)


def reward_parts(episode: GymEpisode, rewards: RewardConfig) -> dict[str, float]:
    """Return the parts of an episode's reward: of its end, of the number of its moves, and of those that were refused.

    They are computed from counts, so equal outcomes have equal rewards to the last bit, in whichever order moves came.
    """
    end = 0.0
    if episode.terminated:
        end = rewards.success if episode.success else rewards.failure
    return {
        "solved": end,
        "steps": rewards.step * len(episode.steps),
        "refused": rewards.invalid * episode.invalid,
    }
