"""Randomness that is a pure function of (seed, purpose, epoch).

Bits come from Philox, a counter-based generator whose stream NumPy guarantees; what is made of the bits is made here, because the
methods of `numpy.random.Generator` may change between releases. Purposes are names: "order" and "pack" never share a stream, and
epoch 1 of seed 42 has nothing to do with epoch 0 of seed 43. Nothing here touches a global generator.
"""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.core.arrays import order_by


def raw_bits(n: int, *, seed: int, purpose: str, epoch: int = 0) -> NDArray[np.uint64]:
    """`n` uniform 64-bit words. The first k of them do not depend on n."""
    key = hashlib.blake2b(f"{seed}/{purpose}/{epoch}".encode(), digest_size=16).digest()
    philox: Any = np.random.Philox(key=np.frombuffer(key, "<u8"))
    return philox.random_raw(n)


def permutation(n: int, *, seed: int, purpose: str, epoch: int = 0) -> NDArray[np.int64]:
    """A uniform permutation of range(n).

    Sorts random keys, so items appended later do not change the relative order of the earlier ones.
    """
    shift = np.uint64(max(n - 1, 0).bit_length())
    return order_by(raw_bits(n, seed=seed, purpose=purpose, epoch=epoch) >> shift)
