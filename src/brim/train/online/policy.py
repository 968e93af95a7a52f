"""A language model that plays: it reads the position, and writes an action.

Where the actions of a position can be listed, the model chooses among them token by token, with probabilities of its
own; what could lead to no action has none, and where only one token can follow, the model is not asked. Elsewhere it
writes a line of its own. All lanes that wait are answered together. A draw depends on the seed, the episode and the
step alone.
"""

import math
from collections.abc import Sequence
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

if TYPE_CHECKING:
    import torch
else:
    torch = need("torch", extra="train", user="brim.train")

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

    @torch.no_grad()
    def choose(self, turns: Sequence[Turn]) -> list[str | None]:
        """An action for each."""
        writers = [_Writer(turn, self.prompts, self.end_token, self.seed, self.longest) for turn in turns]
        self.unread += sum(writer.gives_up for writer in writers)
        training = self.model.training
        self.model.eval()
        try:
            while waiting := [writer for writer in writers if writer.is_waiting]:
                for writer, scores in zip(waiting, self._next(waiting), strict=True):
                    writer.take(scores, self.temperature)
        finally:
            self.model.train(training)
        return [writer.action() for writer in writers]

    def _next(self, writers: "list[_Writer]") -> NDArray[np.float64]:
        """The scores of every token that could follow, for each writer: [writers, vocabulary]."""
        rows = [writer.tokens for writer in writers]
        ends = torch.tensor([len(row) - 1 for row in rows])
        padded = np.full((len(rows), int(ends.max()) + 1), self.tokenizer.pad_id, np.int64)
        for target, row in zip(padded, rows, strict=True):
            target[: len(row)] = row  # padding is on the right, where causal attention does not look
        device = next(self.model.parameters()).device
        logits = self.model(input_ids=torch.from_numpy(padded).to(device), use_cache=False).logits
        return logits[torch.arange(len(rows), device=device), ends.to(device)].double().cpu().numpy()


class _Writer:
    """One action in the making."""

    def __init__(self, turn: Turn, prompts: Prompts, end: int, seed: int, longest: int) -> None:
        self._tokenizer = prompts.tokenizer
        self._end = end
        self.tokens: list[int] = prompts.tokens(turn.prompt).tolist() or [end]
        self._begin = len(self.tokens)
        actions = self._tokenizer.encode_batch(list(turn.actions))
        most = max((len(tokens) + 1 for tokens in actions), default=FREELY)
        self._draws = raw_bits(most, seed=seed, purpose=f"act {turn.step}", epoch=turn.episode.number)
        self._drawn = 0
        self._tree: Tree | None = _tree(actions, end) if actions else None
        self.gives_up = self._over = self._begin + most > longest
        self._walk()

    @property
    def is_waiting(self) -> bool:
        return not self._over

    def take(self, scores: NDArray[np.float64], temperature: float) -> None:
        """The next token."""
        allowed = np.arange(len(scores)) if self._tree is None else np.array(sorted(self._tree), np.int64)
        scores = scores[allowed]
        draw = int(self._draws[self._drawn]) / 2**64
        self._drawn += 1
        self._append(int(allowed[_pick(scores, temperature, draw)]))
        self._walk()

    def action(self) -> str | None:
        """None where there is none, or no room for one."""
        text = self._tokenizer.decode(self.tokens[self._begin :]).strip()
        return text.splitlines()[0] if text else None

    def _append(self, token: int) -> None:
        if token == self._end:
            self._over = True
            return
        self.tokens.append(token)
        if self._tree is not None:
            self._tree = self._tree[token]
        elif self._drawn == FREELY or "\n" in self._tokenizer.decode([token]):
            self._over = True

    def _walk(self) -> None:
        """Append tokens as long as only one can follow, without asking the model."""
        while not self._over and self._tree is not None and len(self._tree) == 1:
            self._append(next(iter(self._tree)))


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
