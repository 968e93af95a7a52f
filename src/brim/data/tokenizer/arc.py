"""The tokenizer "arc": a closed vocabulary for episodes of ARC environments.

A token is a word. Texts are words with blanks between them, so `decode` gives a text that `encode_batch` reads back
to the same ids, and a text with any other word is refused. `brim.stream.arc` says how words make up an episode.

    0 to 9            a colour
    r0 to r29         a row
    c0 to c29         a column
    op0 to op41       an operation, by its number in `ArcOperation`
    point bbox mask   how actions select cells
    demo to           a demonstration begins; between its input and its output
    train test        a pair to work on begins; its kind
    goal              the target of that pair
    state change      the working grid after a step; the cells that the step changed
    row grid          the end of a row; the end of a grid or of changed cells
    act step          the beginning and the end of an action
    bos eos pad       beginning; end of an episode that terminated; padding
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import DataError, OptionError
from brim.core.fingerprint import fingerprint
from brim.data.tokenizer.base import Message, Tokens

VERSION = 1
"""Version of the vocabulary, which is part of the tokenizer's fingerprint. Other words or other ids raise it."""

COLOURS, ROWS, COLUMNS, OPERATIONS = 10, 30, 30, 42
WORDS: tuple[str, ...] = (
    *(str(colour) for colour in range(COLOURS)),
    *(f"r{row}" for row in range(ROWS)),
    *(f"c{column}" for column in range(COLUMNS)),
    *(f"op{operation}" for operation in range(OPERATIONS)),
    *("point", "bbox", "mask"),
    *("demo", "to", "train", "test", "goal", "state", "change", "row", "grid", "act", "step"),
    *("bos", "eos", "pad"),
)
"""The words; the id of a word is its place. Colours come first: the id of a colour is the colour."""
ID = {word: id for id, word in enumerate(WORDS)}
ROW, COLUMN, OPERATION = ID["r0"], ID["c0"], ID["op0"]
"""Ids of the first row, column and operation; the others follow in order."""


class ArcTokenizer:
    """Words of ARC episodes as ids. It adds nothing to a text, and has no chat template."""

    name = "arc"
    vocab_size = len(WORDS)
    bos_id, eos_id, pad_id = ID["bos"], ID["eos"], ID["pad"]
    adds_bos = has_chat_template = False
    fingerprint = fingerprint(tokenizer="arc", version=VERSION, words=WORDS)

    def encode_batch(self, texts: Sequence[str]) -> list[Tokens]:
        """
        Raises:
            DataError: A text has a word that is not in the vocabulary.
        """
        return [np.array([_id(word) for word in text.split()], np.int32) for text in texts]

    def count_batch(self, texts: Sequence[str]) -> NDArray[np.int32]:
        """
        Raises:
            DataError: A text has a word that is not in the vocabulary.
        """
        return np.array([len(ids) for ids in self.encode_batch(texts)], np.int32)

    def encode_ends(self, texts: Sequence[str]) -> list[tuple[Tokens, NDArray[np.int32]]]:
        """
        Raises:
            DataError: A text has a word that is not in the vocabulary.
        """
        return [(ids, _word_ends(text)) for ids, text in zip(self.encode_batch(texts), texts, strict=True)]

    def render_chat(self, messages: Sequence[Message], *, reply: bool = False) -> str:
        raise OptionError("the tokenizer arc has no chat template")

    def decode(self, ids: Sequence[int] | Tokens) -> str:
        """
        Raises:
            DataError: An id is not in the vocabulary.
        """
        for id in ids:
            if not 0 <= id < len(WORDS):
                raise DataError(f"the tokenizer arc has the ids 0 to {len(WORDS) - 1}, got {id}")
        return " ".join(WORDS[id] for id in ids)


def _id(word: str) -> int:
    if word not in ID:
        raise DataError(f"{word!r:.40} is not a word of the tokenizer arc, which is for episodes of ARC environments")
    return ID[word]


def _word_ends(text: str) -> NDArray[np.int32]:
    """Return for each word the index of the character after it."""
    ends: list[int] = []
    at = 0
    for word in text.split():
        at = text.index(word, at) + len(word)
        ends.append(at)
    return np.array(ends, np.int32)
