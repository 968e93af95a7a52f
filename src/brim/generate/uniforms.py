"""The random numbers behind a response: a function of the seed, its prompt and the number of the sample.

Nothing else counts: neither the order of the prompts, nor which responses are generated beside it. Two prompts with the
same tokens are told apart by their order among themselves, so each of them has responses of its own.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from brim.core.fingerprint import array_bytes, digest_bytes
from brim.core.rng import uniform


def prompt_keys(prompts: Sequence[NDArray[np.int32]]) -> list[str]:
    """Return a name for each prompt: a digest of its tokens, and how many equal prompts come before it."""
    seen: Counter[str] = Counter()
    keys: list[str] = []
    for ids in prompts:
        digest = digest_bytes(array_bytes(np.asarray(ids, np.int32)))
        keys.append(f"{digest}/{seen[digest]}")
        seen[digest] += 1
    return keys


def response_uniforms(n: int, *, seed: int, key: str, sample: int) -> NDArray[np.float64]:
    """Return `n` numbers in [0, 1), one for each token of a response. The first k of them do not depend on n."""
    return uniform(n, seed=seed, purpose=f"generate/{key}", epoch=sample)
