"""Byte-level BPE with a cache of the tokens of words, so that most text never reaches the library `tokenizers`.

A byte-level tokenizer splits a text into words by a pattern and encodes every word separately. `tokenizers` spends most
of its time on the splitting. Python's `re` finds the same words several times faster, and nearly all of them are in the
cache.

Only ASCII is split here, because only there does a pattern mean the same in every library: which of the other
characters are letters, digits or white space depends on the version of Unicode. A text with other characters is cut at
places where a word certainly begins (`CUT`), and a piece that is not ASCII is encoded by the library as one word. The
library also encodes every word that is not in the cache, and as a whole every text that contains an added token. A
tokenizer whose way of splitting is not in `PATTERNS` is left to the library.
"""

import json
import re
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST = 1 << 23
"""Upper limit of the cache: characters of its words, plus `EXTRA` for each word. When it is full, all are evicted."""
EXTRA = 64
LONGEST = 100
"""Upper limit of the characters of a piece that is not ASCII and is treated as a word. A text with a longer one, such
as text without spaces, is left to the library.
"""
FEW, SHARE = 1000, 3
"""A batch with more than `FEW` new words, which are more than one in `SHARE` of its words, is left to the library."""

SPACE = r"\t\n\x0b\x0c\r "
WORD = r"A-Za-z0-9"
ENDINGS = r"'(?:s|t|re|ve|m|ll|d)"

GPT2 = rf"{ENDINGS}| ?[A-Za-z]+| ?[0-9]+| ?[^{SPACE}{WORD}]+|[{SPACE}]+(?![^{SPACE}])|[{SPACE}]+"
# Digits are split off before the rest is split, so white space before a digit is at the end of a piece.
SINGLE_DIGITS = rf"{ENDINGS}| ?[A-Za-z]+|[0-9]| ?[^{SPACE}{WORD}]+|[{SPACE}]+(?![^{SPACE}0-9])|[{SPACE}]+"
LLAMA3 = (
    rf"(?i:{ENDINGS})|[^\r\n{WORD}]?[A-Za-z]+|[0-9]{{1,3}}| ?[^{SPACE}{WORD}]+[\r\n]*|[{SPACE}]*[\r\n]+"
    rf"|[{SPACE}]+(?![^{SPACE}])|[{SPACE}]+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")

CUT = re.compile(r"(?= [A-Za-z])")
"""A space before a letter begins a word in every one of these patterns, whatever comes before and after the two."""

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
ONLY_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}


def _split_by(pattern: str) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, ONLY_BYTES]}


_ANY_CASE = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

PATTERNS: list[tuple[dict[str, Any], str]] = [
    (BYTE_LEVEL, GPT2),
    (
        {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL]},
        SINGLE_DIGITS,
    ),
    (_split_by(_ANY_CASE + r"\p{N}{1,3}" + _REST), LLAMA3),
    (_split_by(_ANY_CASE + r"\p{N}" + _REST), QWEN2),
]
"""Pre-tokenizers as a tokenizer.json describes them, each with the pattern that splits ASCII text in the same way."""


class Words:
    """A cache of the tokens of words, for one backend. Can be shared by threads."""

    def __init__(self, backend: Any, pattern: str, added: Sequence[str], *, only_ascii: bool) -> None:
        self._backend = backend
        self._find = re.compile(pattern).findall
        self._added = re.compile("|".join(map(re.escape, added))).search if added else None
        self._only_ascii = only_ascii
        self._known: dict[str, tuple[int, ...]] = {}
        self._size = 0  # of the cache, approximately: two threads may update it at the same time

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        split, known, others = self._learn(texts)
        return [
            np.array(next(others).ids if words is None else [*chain.from_iterable(map(known, words))], np.int32)
            for words in split
        ]

    def count_batch(self, texts: Sequence[str]) -> NDArray[np.int32]:
        split, known, others = self._learn(texts)
        counts = (len(next(others)) if words is None else sum(map(len, map(known, words))) for words in split)
        return np.fromiter(counts, np.int32, len(texts))

    def _learn(self, texts: Sequence[str]) -> tuple[Sequence[list[str] | None], Any, Any]:
        """Encode new words. Return the words of each text, or None if it is left to the library; a function from a word
        to its tokens; and the encodings of the texts that are left to the library.
        """
        split = [self._split(text) for text in texts]
        known = self._known
        new = {word for words in split if words for word in words}.difference(known)
        if len(new) > FEW and len(new) * SHARE > sum(len(words) for words in split if words):
            split, new = [None] * len(texts), set[str]()
        size = sum(map(len, new)) + EXTRA * len(new)
        if self._size + size > MOST:
            known = self._known = {}  # not cleared: another thread may still be reading the old one
            self._size = 0
            new = {word for words in split if words for word in words}
        self._size += size
        fresh = [*new]
        known.update(zip(fresh, (tuple(encoding.ids) for encoding in self._encode(fresh)), strict=True))
        others = self._encode([text for text, words in zip(texts, split, strict=True) if words is None])
        return split, known.__getitem__, iter(others)

    def _split(self, text: str) -> list[str] | None:
        if self._added is not None and self._added(text) is not None:
            return None
        if text.isascii():
            return self._find(text)
        if self._only_ascii:
            return None
        words: list[str] = []
        for piece in CUT.split(text):
            if piece.isascii():
                words += self._find(piece)
            elif len(piece) <= LONGEST:
                words.append(piece)
            else:
                return None
        return words

    def _encode(self, texts: list[str]) -> Any:
        return self._backend.encode_batch_fast(texts, add_special_tokens=False)


def words_of(backend: Any) -> Words | None:
    """Return a word cache for a BPE backend of `tokenizers` whose way of splitting is in `PATTERNS`, else None."""
    model, normalizer, splitter = backend.model, backend.normalizer, backend.pre_tokenizer
    if type(model).__name__ != "BPE" or model.dropout or splitter is None:
        return None
    if normalizer is not None and json.loads(normalizer.__getstate__()) != {"type": "NFC"}:
        return None
    # `trim_offsets` changes the offsets of tokens after the encoding, not how a text is split.
    way = _without(json.loads(splitter.__getstate__()), "trim_offsets")
    pattern = next((pattern for known, pattern in PATTERNS if known == way), None)
    if pattern is None:
        return None
    added = [token.content for token in backend.get_added_tokens_decoder().values()]
    return Words(backend, pattern, added, only_ascii=normalizer is not None)  # ASCII is in normal form C already


def _without(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return {key: _without(inner, name) for key, inner in value.items() if key != name}
    return [_without(inner, name) for inner in value] if isinstance(value, list) else value
