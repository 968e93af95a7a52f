"""Lengths to plan and pack: distributions of any median, lengths of real text, and families that are hard to pack.

Real text is what every machine has: the paragraphs of the source files of Python's standard library, measured with the
GPT-2 tokenizer. Scaled to a median, they keep the shape of their distribution.
"""

import sysconfig
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from brim.data.tokenizer.gpt2 import gpt2_backend

Lengths = NDArray[np.int32]
Random = np.random.Generator

TEXT_BYTES = 6_000_000
PARETO = 1.5
"""Exponent of the tail: the mean exists, the variance does not."""


def draw(shape: str, n: int, median: float, *, longest: int, seed: int = 0) -> Lengths:
    """Lengths of this median, clipped to 1 ... `longest`."""
    drawn = median * SHAPES[shape](np.random.default_rng(seed), n)
    return np.clip(np.rint(drawn), 1, longest).astype(np.int32)


def _lognormal(rng: Random, n: int) -> NDArray[np.float64]:
    return np.exp(rng.standard_normal(n))


def _pareto(rng: Random, n: int) -> NDArray[np.float64]:
    return (2 * (1 - rng.random(n))) ** (-1 / PARETO)


def _bimodal(rng: Random, n: int) -> NDArray[np.float64]:
    """Half of them around a quarter of the median, and half around twice the median."""
    return np.where(rng.random(n) < 0.5, 0.25, 2.0) * np.exp(0.4 * rng.standard_normal(n))


def _real_text(rng: Random, n: int) -> NDArray[np.float64]:
    lengths = paragraphs()
    return rng.choice(lengths, n) / np.median(lengths)


SHAPES: dict[str, Callable[[Random, int], NDArray[np.float64]]] = {
    "lognormal": _lognormal,
    "Pareto": _pareto,
    "bimodal": _bimodal,
    "real text": _real_text,
}


@cache
def paragraphs() -> Lengths:
    """Tokens of each paragraph of the first `TEXT_BYTES` of the standard library, in the order of its files."""
    texts: list[str] = []
    size = 0
    for path in _sources():
        text = path.read_text(encoding="utf-8", errors="replace")
        texts += [part for part in text.split("\n\n") if part.strip()]
        size += len(text)
        if size > TEXT_BYTES:
            break
    return np.array([len(encoding) for encoding in gpt2_backend().encode_batch_fast(texts)], np.int32)


def _sources() -> list[Path]:
    """The source files of the standard library, without packages that were installed into it, and without tests."""
    root = Path(sysconfig.get_path("stdlib"))
    found = (path for path in root.rglob("*.py") if not {"site-packages", "dist-packages", "test"} & set(path.parts))
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())


def near(rng: Random, n: int, low: float, high: float, capacity: int) -> Lengths:
    """Lengths between two shares of the capacity, all equally likely."""
    return rng.integers(max(1, round(low * capacity)), max(1, round(high * capacity)) + 1, n).astype(np.int32)


def few(rng: Random, n: int, shares: tuple[float, ...], capacity: int) -> Lengths:
    """A few distinct lengths, given as shares of the capacity, some rarer than others."""
    lengths = np.array([max(1, round(share * capacity)) for share in shares])
    weights = rng.random(len(lengths)) + 0.2
    return rng.choice(lengths, n, p=weights / weights.sum()).astype(np.int32)


def exact(rng: Random, n: int, parts: int, low: float, capacity: int) -> Lengths:
    """Rows that are full to the last token, cut into so many parts of at least `low` of the capacity, and shuffled:
    the least number of rows is known, and is hard to find.
    """
    rows, least = max(1, n // parts), round(low * capacity)
    cuts = np.sort(rng.integers(0, capacity - parts * least + 1, (rows, parts - 1)), axis=1)
    lengths = np.diff(cuts, axis=1, prepend=0, append=capacity - parts * least) + least
    return rng.permutation(lengths.reshape(-1).clip(1)).astype(np.int32)
