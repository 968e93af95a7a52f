"""Randomness that is a pure function of (seed, purpose, epoch).

Bits come from Philox, a counter-based generator whose stream NumPy guarantees; what is made of the bits is made here,
because the methods of `numpy.random.Generator` may change between releases. Purposes are names: "order" and "pack"
never share a stream, and epoch 1 of seed 42 has nothing to do with epoch 0 of seed 43. Nothing here touches a global
generator.
"""

import hashlib
from collections.abc import Iterator
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import order_by


def raw_bits(n: int, *, seed: int, purpose: str, epoch: int = 0) -> NDArray[np.uint64]:
    """Return `n` uniform 64-bit words. The first k of them do not depend on n."""
    return _philox(seed, purpose, epoch).random_raw(n)


def raw_blocks(
    n: int, size: int, *, seed: int, purpose: str, epoch: int = 0
) -> Iterator[tuple[int, NDArray[np.uint64]]]:
    """Iterate over the words of `raw_bits` in blocks of `size`, each with the number of its first word."""
    philox = _philox(seed, purpose, epoch)
    return ((start, philox.random_raw(min(size, n - start))) for start in range(0, n, size))


def _philox(seed: int, purpose: str, epoch: int) -> Any:
    key = hashlib.blake2b(f"{seed}/{purpose}/{epoch}".encode(), digest_size=16).digest()
    return np.random.Philox(key=np.frombuffer(key, "<u8"))


def permutation(n: int, *, seed: int, purpose: str, epoch: int = 0) -> NDArray[np.int64]:
    """Return a uniform permutation of range(n).

    Sorts random keys, so items appended later do not change the relative order of the earlier ones.
    """
    shift = np.uint64(max(n - 1, 0).bit_length())
    return order_by(raw_bits(n, seed=seed, purpose=purpose, epoch=epoch) >> shift)


def uniform(n: int, *, seed: int, purpose: str, epoch: int = 0) -> NDArray[np.float64]:
    """Return `n` numbers in [0, 1), multiples of 2**-53, one from each word of `raw_bits`."""
    return unit(raw_bits(n, seed=seed, purpose=purpose, epoch=epoch))


def share(*, seed: int, purpose: str, epoch: int = 0, index: int = 0) -> float:
    """Return one number in [0, 1], for a single decision: word `index` of `raw_bits` divided by 2**64.

    All 64 bits count before the quotient is rounded, so it can differ from `uniform` in its last bit.
    """
    return int(raw_bits(index + 1, seed=seed, purpose=purpose, epoch=epoch)[index]) / 2**64


def new_seed(*, seed: int, purpose: str, epoch: int = 0) -> int:
    """Return a seed of 63 bits for another generator, such as torch's."""
    return int(raw_bits(1, seed=seed, purpose=purpose, epoch=epoch)[0]) >> 1


def unit(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Turn words into numbers in [0, 1): their upper 53 bits, which is all that a double holds."""
    return np.multiply(words >> np.uint64(11), 2.0**-53, dtype=np.float64)


@overload
def below(words: int, limit: int) -> int: ...
@overload
def below(words: NDArray[np.uint64], limit: int | NDArray[np.uint64]) -> NDArray[np.uint64]: ...
def below(words: Any, limit: Any) -> Any:
    """Turn words into integers from 0 to limit - 1, for limits up to 2**32.

    The upper 32 bits of a word are scaled: no division, and a bias below limit / 2**32.
    """
    if isinstance(words, int):
        return (words >> 32) * limit >> 32
    shift = np.uint64(32)
    return (words >> shift) * np.asarray(limit, np.uint64) >> shift


class Words:
    """An endless sequence of random 64-bit words, a function of seed and purpose; its whole state is `position`."""

    def __init__(self, seed: int, purpose: str, position: int = 0) -> None:
        key = raw_bits(2, seed=seed, purpose=purpose)
        self._philox: Any = np.random.Philox(key=key, counter=position // 4)  # a block of the counter is four words
        self._philox.random_raw(position % 4)
        self.position = position

    def take(self, n: int) -> NDArray[np.uint64]:
        """Return the next `n` words."""
        self.position += n
        return self._philox.random_raw(n)

    def uniform(self, n: int) -> NDArray[np.float64]:
        """Return `n` numbers in [0, 1), one from each of the next words."""
        return unit(self.take(n))

    def below(self, n: int, limit: int) -> NDArray[np.uint64]:
        """Return `n` integers from 0 to limit - 1, one from each of the next words."""
        return below(self.take(n), limit)
