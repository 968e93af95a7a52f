"""The interface of a model that turns texts into vectors in this process."""

from collections.abc import Iterable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import OptionError
from brim.core.fill import Fill


class Embedder(Protocol):
    """A model that turns each text into a vector of `dim` numbers. It is used from one thread at a time."""

    @property
    def name(self) -> str:
        """The model's name. Embedders that give different vectors have different names."""
        ...

    @property
    def dim(self) -> int: ...

    @property
    def fill(self) -> Fill:
        """Tokens out of tokens with padding, over all texts so far; empty for a model that pads nothing."""
        ...

    def encode(self, texts: Iterable[str]) -> NDArray[np.float32]:
        """Return the vectors of the texts, [n, dim], in their order.

        A text's vector does not depend on the other texts, beyond the last bits of its numbers.

        Raises:
            OptionError: One of them is not a string.
        """
        ...


def checked_texts(texts: Iterable[str]) -> list[str]:
    """Return the texts as a list.

    Raises:
        OptionError: One of them is not a string, or they are one string.
    """
    if isinstance(texts, str):
        raise OptionError(f"texts must be a list of strings, got one string: {texts[:40]!r}")
    listed = list(texts)
    for place, text in enumerate(listed):
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionError(f"texts must be strings; number {place} is {text!r}")
    return listed
