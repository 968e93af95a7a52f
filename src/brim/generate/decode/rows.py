"""Responses in the making: which tokens they have, which the model has not read yet, and how they ended."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from brim.generate.config import FinishReason

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(eq=False)
class Row:
    """One response in the making. `key` is whatever its owner tells it apart by."""

    key: Any
    prompt: NDArray[np.int32]
    limit: int
    """Upper limit of its tokens."""
    tokens: list[int] = field(default_factory=list[int])
    fed: int = 0
    """How many of `tokens` the model has read, or is about to."""
    ended: FinishReason | None = None

    @property
    def ids(self) -> NDArray[np.int64]:
        """The prompt and the tokens so far."""
        return np.concatenate([self.prompt.astype(np.int64), np.array(self.tokens, np.int64)])

    @property
    def longest(self) -> int:
        """Tokens of the prompt and of the response, at most."""
        return len(self.prompt) + self.limit

    @property
    def waits(self) -> bool:
        """Whether the model has read all of its tokens, so that the next one can be chosen."""
        return self.fed == len(self.tokens)


@dataclass(eq=False)
class Job:
    """A sequence that is read once, and the rows that continue it."""

    ids: NDArray[np.int64]
    rows: list[Row]


class Choose(Protocol):
    """Chooses tokens."""

    def __call__(self, rows: Sequence[Row], logits: "Tensor") -> None:
        """Append at least one token to each row, or end it.

        Args:
            rows: Rows that wait for a token.
            logits: The model's logits for them, [rows, vocabulary]; they may be overwritten.
        """
        ...
