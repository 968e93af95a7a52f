"""The randomness of an episode: a pure function of the environment's key and the number of the episode.

The words come from Threefry-2x32 with 20 rounds (Salmon et al. 2011), the generator behind JAX's keys. It is written
three times: here for NumPy, in the kernel and in `brim.envs.arc.engine.planes.bits` for JAX; tests compare all three.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
PARITY = 0x1BD11BDA


def threefry(key: NDArray[np.uint32], counter: tuple[Any, Any]) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Return two random words for each key. [batch, 2] -> [batch], [batch]"""
    keys = (key[..., 0], key[..., 1], key[..., 0] ^ key[..., 1] ^ np.uint32(PARITY))
    with np.errstate(over="ignore"):
        x = np.asarray(counter[0]).astype(np.uint32) + keys[0]
        y = np.asarray(counter[1]).astype(np.uint32) + keys[1]
        for group in range(5):
            for rotation in ROTATIONS[:4] if group % 2 == 0 else ROTATIONS[4:]:
                x = x + y
                y = (y << np.uint32(rotation)) | (y >> np.uint32(32 - rotation))
                y = y ^ x
            x = x + keys[(group + 1) % 3]
            y = y + keys[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


def below(words: NDArray[np.uint32], limit: Any) -> NDArray[np.int32]:
    """Turn random words into integers from 0 to limit - 1, uniform up to limit / 2**32."""
    return ((words.astype(np.uint64) * np.asarray(limit, np.uint64)) >> np.uint64(32)).astype(np.int32)
