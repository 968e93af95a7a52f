"""The samplers that brim's plans are compared with: lhotse's and Hugging Face's, as functions from lengths to batches.

Batches are the rows of all of them end to end, and where each begins.
"""

import logging
import warnings
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
from harness import Report
from numpy.typing import NDArray

Batches = tuple[NDArray[np.int64], NDArray[np.int64]]
Sampler = Callable[[NDArray[np.int32], int], Batches]


class Text:
    """What lhotse asks of a text example."""

    __slots__ = ("dataloading_info", "id", "num_tokens")

    def __init__(self, id: str, num_tokens: int) -> None:
        self.id, self.num_tokens = id, num_tokens


def texts(lengths: NDArray[np.int32]) -> list[Text]:
    return [Text(str(row), length) for row, length in enumerate(lengths.tolist())]


def lhotse_batches(report: Report) -> Callable[[list[Text], int], list[list[Text]]] | None:
    """lhotse's sampler with 30 dynamic buckets, for texts and a budget of tokens; None if it cannot be had."""
    module = report.peer("lhotse.dataset.sampling.dynamic_bucketing", "lhotse")
    base = report.peer("lhotse.dataset.sampling.base", "lhotse")
    if module is None or base is None:
        return None
    logging.getLogger().setLevel(logging.ERROR)

    def sample(examples: list[Text], budget: int) -> list[list[Text]]:
        constraint = base.TokenConstraint(max_tokens=budget)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            options: dict[str, Any] = {"constraint": constraint, "num_buckets": 30, "shuffle": True, "seed": 0}
            return [list(batch) for batch in module.DynamicBucketingSampler(examples, **options)]

    return sample


def lhotse(report: Report) -> Sampler | None:
    """Batches of at most about `budget` tokens."""
    sample = lhotse_batches(report)
    if sample is None:
        return None

    def batches(lengths: NDArray[np.int32], budget: int) -> Batches:
        found = sample(texts(lengths), budget)
        return flat([[int(text.id) for text in batch] for batch in found])

    return batches


def hugging_face(report: Report) -> Sampler | None:
    """Batches of `size` samples, of similar lengths."""
    module = report.peer("transformers.trainer_pt_utils", "transformers")
    if module is None:
        return None

    def batches(lengths: NDArray[np.int32], size: int) -> Batches:
        order = np.array(list(module.LengthGroupedSampler(size, lengths=lengths.tolist())), np.int64)
        return order, np.arange(0, len(order), size)

    return batches


def flat(batches: list[list[int]]) -> Batches:
    sizes = np.fromiter(map(len, batches), np.int64, len(batches))
    return np.fromiter(chain.from_iterable(batches), np.int64, int(sizes.sum())), np.cumsum(sizes) - sizes
