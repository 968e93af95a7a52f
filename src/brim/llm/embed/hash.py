"""The built-in embedding model `hash`: hashed words and character n-grams (Weinberger et al. 2009).

Every word, and every run of 3, 4 and 5 bytes, adds a weight to one of `dim` numbers, with a sign; both are read from a
hash of the bytes. Texts that share words, or parts of words, get similar vectors. It knows nothing of meaning:
"kitten" is as far from "cat" as "tax".

The vectors are the same, bit for bit, on every machine and with every version of Python and NumPy: texts are read as
UTF-8, letters are compared without case in ASCII only (Unicode tables differ between versions of Python), sums are sums
of integers, and what rounds is one square root and one division.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from brim.core.fill import Fill
from brim.core.options import check_counts
from brim.llm.embed.base import checked_texts

DEFAULT_DIM = 384
NGRAMS = (3, 4, 5)
"""Lengths of the character n-grams, in bytes."""
WORD_WEIGHT = 4
"""Weight of a word; an n-gram has weight 1. A word has about three n-grams for each of its letters."""
CHUNK_BYTES = 1 << 18
"""Texts are hashed together up to this many bytes at a time, in arrays of about a hundred times as many bytes."""

_SPACE = 0x20
_IS_SPACE = np.isin(np.arange(256), np.frombuffer(b" \t\n\r\v\f\0", np.uint8))
_LOWER = np.frombuffer(bytes(range(256)).lower(), np.uint8)  # bytes.lower changes ASCII letters only
_ASCII_WORD = np.isin(np.arange(256), np.frombuffer(b"abcdefghijklmnopqrstuvwxyz0123456789_", np.uint8))
_IN_WORD = _ASCII_WORD | (np.arange(256) >= 0x80)  # outside ASCII, all is taken for letters
_FORM = np.where(_IS_SPACE, _SPACE, _LOWER).astype(np.uint8)


class HashEmbedder:
    """Vectors of hashed words and character n-grams, of length 1.

    A text without visible characters has no features, and gets the zero vector.

    Example:
        >>> vectors = HashEmbedder().encode(["how to bake bread", "How to bake a bread?", "income tax"])
        >>> (vectors @ vectors[0] > 0.5).tolist()
        [True, True, False]
    """

    def __init__(self, dim: int = DEFAULT_DIM) -> None:
        check_counts(dim=dim)
        self.dim = dim

    @property
    def name(self) -> str:
        """`hash`, or `hash-DIM` if the vectors are not of the default size."""
        return "hash" if self.dim == DEFAULT_DIM else f"hash-{self.dim}"

    @property
    def fill(self) -> Fill:
        return Fill()

    def encode(self, texts: Iterable[str]) -> NDArray[np.float32]:
        """Return the vectors of the texts, [n, dim], in their order."""
        encoded = [text.encode("utf-8", "surrogatepass") for text in checked_texts(texts)]
        vectors = np.zeros((len(encoded), self.dim), np.float32)
        start = 0
        while start < len(encoded):
            end, size = start, 0
            while end < len(encoded) and (end == start or size + len(encoded[end]) <= CHUNK_BYTES):
                size += len(encoded[end]) + self.dim  # a row of the result counts, too
                end += 1
            vectors[start:end] = _vectors(encoded[start:end], self.dim)
            start = end
        return vectors


def _vectors(encoded: list[bytes], dim: int) -> NDArray[np.float64]:
    """[n, dim]: the sums of the features' weights, divided by their length."""
    data, text = _normal_form(encoded)
    sums = np.zeros(len(encoded) * dim, np.float64)
    for feature, owner, weight in [*_ngrams(data, text), _words(data, text)]:
        # Low bits choose the place, the highest one the sign. Sums of small integers are exact in any order.
        place = owner * dim + (feature % np.uint64(dim)).astype(np.int64)
        signs = np.where(feature >> np.uint64(63), -weight, weight)
        sums += np.bincount(place, signs, minlength=len(sums))
    vectors = sums.reshape(len(encoded), dim)
    lengths = np.sqrt(np.square(vectors).sum(axis=1, keepdims=True))
    return vectors / np.where(lengths, lengths, 1.0)


def _normal_form(encoded: list[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Lower the case, and put one space around each text and in the place of each run of white space.

    Returns:
        The bytes of all texts, one after the other, and the number of the text of each byte.
    """
    data = _FORM[np.frombuffer(b"".join(b" %b " % text for text in encoded), np.uint8)]
    text = np.repeat(np.arange(len(encoded)), [len(one) + 2 for one in encoded])
    space = data == _SPACE
    repeated = np.zeros(len(data), np.bool_)
    repeated[1:] = space[1:] & space[:-1] & (text[1:] == text[:-1])
    return data[~repeated], text[~repeated]


def _ngrams(
    data: NDArray[np.uint8], text: NDArray[np.int64]
) -> list[tuple[NDArray[np.uint64], NDArray[np.int64], int]]:
    """Return for each length of n-grams their hashes, the texts they are in, and their weight."""
    found: list[tuple[NDArray[np.uint64], NDArray[np.int64], int]] = []
    for n in NGRAMS:
        count = max(len(data) - n + 1, 0)
        packed = np.full(count, n, np.uint64)  # the length tells a 3-gram from a 4-gram
        for offset in range(n):
            packed = (packed << np.uint64(8)) | data[offset : offset + count]
        inside = text[:count] == text[n - 1 : n - 1 + count]
        found.append((_mixed(packed[inside]), text[:count][inside], 1))
    return found


def _words(data: NDArray[np.uint8], text: NDArray[np.int64]) -> tuple[NDArray[np.uint64], NDArray[np.int64], int]:
    """Return the hashes of all words, the texts they are in, and their weight.

    The hash of a word is the sum, modulo 2^64, of hashes of its bytes and their places in it.
    """
    in_word = _IN_WORD[data]
    starts = np.flatnonzero(in_word & ~np.concatenate([[False], in_word[:-1]]))
    if len(starts) == 0:
        return np.empty(0, np.uint64), np.empty(0, np.int64), WORD_WEIGHT
    places = np.flatnonzero(in_word)
    first = np.searchsorted(places, starts)  # where each word begins among the bytes of words
    inside = places - np.repeat(starts, np.diff(np.append(first, len(places))))
    letters = _mixed((inside.astype(np.uint64) << np.uint64(8)) | data[places])
    return _mixed(np.add.reduceat(letters, first)), text[starts], WORD_WEIGHT


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spread 64-bit numbers evenly over all 64-bit numbers (the output function of SplitMix64, Steele et al. 2014)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
