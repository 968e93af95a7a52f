"""A language model that plays: it reads the position, and writes an action.

Where the actions of a position can be listed, the model chooses among them token by token, with probabilities of its
own; what could lead to no action has none, and where only one token can follow, the model is not asked. Elsewhere it
writes a line of its own. All lanes that wait are answered together, by the decode loop of `brim.generate`. A draw
depends on the seed, the episode and the step alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import OptionError
from brim.core.extras import need
from brim.core.options import LONGEST
from brim.core.rng import raw_bits
from brim.data.rows.prompts import Prompts
from brim.data.tokenizer.base import Tokenizer, Tokens
from brim.envs.puzzle.policies import Together, Turn
from brim.generate.decode.choice import Loops
from brim.generate.decode.loop import DecodeLimits
from brim.generate.decode.rows import Job, Row
from brim.generate.model import CausalModel

if TYPE_CHECKING:
    from torch import Tensor
else:
    need("torch", extra="train", user="brim.train")

FREELY = 32
"""Tokens of an action that the model writes by itself."""

Tree = dict[int, Any]
"""Token to what can follow it. An end token leads to nothing."""


class ModelPolicy(Together):
    """Plays with a causal model, whatever its weights are at the time."""

    name = "model"

    def __init__(
        self, model: Any, tokenizer: Tokenizer, *, temperature: float = 1.0, seed: int = 42, longest: int | None = None
    ) -> None:
        """A temperature of 0 takes the likeliest token.

        A position that takes more than `longest` tokens with its action is given up.
        """
        if tokenizer.eos_id is None:
            raise OptionError(
                f"the tokenizer {tokenizer.name} has no end token, so a model cannot say where its action ends"
            )
        if not 0 <= temperature < math.inf:
            raise OptionError(f"temperature must not be negative or infinite, got {temperature}")
        super().__init__(self.choose)
        self._loops = Loops(CausalModel(model))
        self.longest = longest or LONGEST
        """Upper limit of the tokens that the model reads."""
        self.unread = 0
        """Number of positions that were too long for the model."""
        self.model = model
        self.tokenizer = tokenizer
        self.prompts = Prompts(tokenizer)
        """The prompts that the model has read, for the code that makes samples of them."""
        self.end_token = tokenizer.eos_id
        self.temperature = temperature
        self.seed = seed

    def choose(self, turns: Sequence[Turn]) -> list[str | None]:
        """An action for each."""
        writers = [_Writer.of(turn, self.prompts, self.end_token, self.seed, self.longest) for turn in turns]
        self.unread += sum(writer.gives_up for writer in writers)
        jobs = [Job(writer.ids, [writer]) for writer in writers if writer.ended is None]
        if jobs:
            longest = max(writer.longest for writer in writers)
            for _ in self._loops.loop(longest, DecodeLimits(rows=len(jobs))).run(jobs, self._take):
                pass
        return [writer.action() for writer in writers]

    def _take(self, rows: Sequence[Row], logits: "Tensor") -> None:
        """Choose the next token of each writer, from its logits [writers, vocabulary]."""
        for writer, scores in zip(rows, logits.double().cpu().numpy(), strict=True):
            assert isinstance(writer, _Writer)
            writer.take(scores, self.temperature)


@dataclass(eq=False)
class _Writer(Row):
    """One action in the making. Its `tokens` are the action's, without the end token."""

    tokenizer: Tokenizer = field(kw_only=True)
    end: int = field(kw_only=True)
    draws: NDArray[np.uint64] = field(kw_only=True)
    tree: Tree | None = field(kw_only=True)
    """The tokens that can follow, as a tree; None if any token can."""
    gives_up: bool = field(kw_only=True)
    """Whether there is no room for an action."""
    drawn: int = 0

    @classmethod
    def of(cls, turn: Turn, prompts: Prompts, end: int, seed: int, longest: int) -> "_Writer":
        """Begin the action of a turn, as far as only one token can follow."""
        tokenizer = prompts.tokenizer
        prompt = prompts.tokens(turn.prompt)
        if len(prompt) == 0:
            prompt = np.array([end], np.int32)
        actions = tokenizer.encode_batch(list(turn.actions))
        most = max((len(tokens) + 1 for tokens in actions), default=FREELY)
        writer = cls(
            turn.episode.number,
            prompt,
            most,
            tokenizer=tokenizer,
            end=end,
            draws=raw_bits(most, seed=seed, purpose=f"act {turn.step}", epoch=turn.episode.number),
            tree=_tree(actions, end) if actions else None,
            gives_up=len(prompt) + most > longest,
        )
        if writer.gives_up:
            writer.ended = "length"
        writer._walk()
        writer.fed = len(writer.tokens)
        return writer

    def take(self, scores: NDArray[np.float64], temperature: float) -> None:
        """Append the next token, and those after it that alone can follow."""
        allowed = np.arange(len(scores)) if self.tree is None else np.array(sorted(self.tree), np.int64)
        draw = int(self.draws[self.drawn]) / 2**64
        self.drawn += 1
        self._append(int(allowed[_pick(scores[allowed], temperature, draw)]))
        self._walk()

    def action(self) -> str | None:
        """None where there is none, or no room for one."""
        text = self.tokenizer.decode(self.tokens).strip()
        return text.splitlines()[0] if text else None

    def _append(self, token: int) -> None:
        if token == self.end:
            self.ended = "eos"
            return
        self.tokens.append(token)
        if self.tree is not None:
            self.tree = self.tree[token]
        elif self.drawn == FREELY:
            self.ended = "length"
        elif "\n" in self.tokenizer.decode([token]):
            self.ended = "stop"

    def _walk(self) -> None:
        """Append tokens as long as only one can follow, without asking the model."""
        while self.ended is None and self.tree is not None and len(self.tree) == 1:
            self._append(next(iter(self.tree)))


def _tree(actions: list[Tokens], end: int) -> Tree:
    root: Tree = {}
    for tokens in actions:
        node = root
        for token in [*tokens.tolist(), end]:
            node = node.setdefault(token, {})
    return root


def _pick(scores: NDArray[np.float64], temperature: float, draw: float) -> int:
    if temperature == 0:
        return int(scores.argmax())
    weights = np.exp((scores - scores.max()) / temperature)
    return min(int(np.searchsorted(np.cumsum(weights), draw * weights.sum(), side="right")), len(scores) - 1)
