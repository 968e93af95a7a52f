"""Which rank generates which responses. A response does not depend on it, so any number of ranks gives the same."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def share_of(missing: NDArray[np.bool_], lengths: Sequence[int], *, rank: int, world_size: int) -> NDArray[np.bool_]:
    """Return which of the missing responses a rank generates, [prompts, samples].

    All responses to a prompt belong to one rank, which reads the prompt once. Prompts are dealt in rounds, those with
    the most missing responses first and longer ones before shorter ones. In each round every rank gets one, and the
    rank that has the least so far gets the largest. So the ranks have nearly the same number of responses, and nearly
    the same number of prompt tokens.

    Args:
        missing: Which responses are missing, [prompts, samples].
        lengths: Tokens of each prompt.
    """
    counts: list[int] = missing.sum(axis=1).tolist()
    order = sorted((b for b, count in enumerate(counts) if count), key=lambda b: (-counts[b], -lengths[b], b))
    loads = [(0, 0)] * world_size
    mine = np.zeros_like(missing)
    for begin in range(0, len(order), world_size):
        by_load = sorted(range(world_size), key=lambda other: (loads[other], other))
        for owner, b in zip(by_load, order[begin : begin + world_size], strict=False):
            responses, tokens = loads[owner]
            loads[owner] = (responses + counts[b], tokens + lengths[b])
            if owner == rank:
                mine[b] = missing[b]
    return mine


class AllBut:
    """All responses but some: what `stream` of a generator skips.

    Example:
        >>> (0, 1) in AllBut(np.array([[True, False]]))
        True
    """

    def __init__(self, wanted: NDArray[np.bool_]) -> None:
        """
        Args:
            wanted: Which responses are not skipped, [prompts, samples].
        """
        self._wanted = wanted

    def __contains__(self, pair: object) -> bool:
        return not self._wanted[pair]  # pyright: ignore[reportArgumentType, reportCallIssue]
