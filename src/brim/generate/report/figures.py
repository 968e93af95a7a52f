"""Numbers for tables and charts: histograms, percentiles, scores by prompt, and curves over token positions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brim.generate.report.collect import Generated
from brim.generate.report.lines import Floats
from brim.generate.rollouts import REASONS

BINS = 40
"""Bins of a histogram, about."""
POINTS = 160
"""Upper limit of the points of a curve over positions."""
PERCENTILES = (0, 5, 25, 50, 75, 95, 100)
FULL = 1 - 1e-9
"""The score from which on a response solves its prompt."""
MOST_BARS = 16
"""Responses for each prompt up to which every number of solved ones has a bar of its own."""
MOST_TRIES = 64

Mask = NDArray[np.bool_]


class Bin(NamedTuple):
    """A range of values. Of whole numbers, both ends are included."""

    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """Counts of responses by a number, divided by ending and, where there are scores, by whether they solve."""

    bins: tuple[Bin, ...]
    counts: dict[str, list[list[int]]]
    """Name of a division -> for each of its parts, the count in each bin."""
    open_low: bool = False
    """Whether the first bin also holds all smaller values."""
    open_high: bool = False

    def to_json(self) -> dict[str, Any]:
        bins = [[short(low), short(high)] for low, high in self.bins]
        return {"bins": bins, "counts": self.counts, "open": [self.open_low, self.open_high]}


def known(values: Floats) -> Floats:
    return values[~np.isnan(values)]


def mean_of(values: Floats) -> float | None:
    """Return the mean of the values that are known; None if there are none."""
    values = known(values)
    return float(values.mean()) if len(values) else None


def percentiles(values: Floats) -> list[float] | None:
    """Return the values at `PERCENTILES`, each of them one that occurs; None if none is known."""
    values = known(values)
    return np.percentile(values, PERCENTILES, method="inverted_cdf").tolist() if len(values) else None


def divisions(generated: Generated) -> dict[str, list[Mask]]:
    """Return how responses are divided in histograms: a mask for each part."""
    found = {"ending": [generated.reason == at for at in range(len(REASONS))]}
    score = generated.score
    if not np.isnan(score).all():
        found["score"] = [score >= FULL, score < FULL, np.isnan(score)]
    return found


def whole_histogram(values: Floats, parts: dict[str, list[Mask]]) -> Histogram | None:
    """Count whole numbers, such as lengths; None if none is known."""
    seen = known(values)
    if not len(seen):
        return None
    low, high = int(seen.min()), int(seen.max())
    width = max(1, math.ceil(nice_step((high - low + 1) / BINS)))
    start = low // width * width
    edges = np.arange(start, high + width + 1, width, dtype=np.float64)
    bins = tuple(Bin(edge, edge + width - 1) for edge in edges[:-1].tolist())
    return Histogram(bins=bins, counts=_counts(values, edges, parts))


def histogram(values: Floats, parts: dict[str, list[Mask]]) -> Histogram | None:
    """Count values; None if none is known. Values far away from all others share the first or the last bin."""
    seen = known(values)
    if not len(seen):
        return None
    low, high = np.percentile(seen, (0.5, 99.5)).tolist()
    reach = (high - low) / 2
    low, high = max(float(seen.min()), low - reach), min(float(seen.max()), high + reach)
    alike = high - low <= 1e-6 * max(abs(low), abs(high))
    step = max(abs(low), 1.0) / BINS if alike else nice_step((high - low) / BINS)
    first, last = math.floor(low / step), math.floor(high / step) + 1
    edges = np.arange(first, last + 1, dtype=np.float64) * step
    bins = tuple(Bin(*pair) for pair in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))
    return Histogram(
        bins=bins,
        counts=_counts(np.clip(values, low, high), edges, parts),
        open_low=bool(seen.min() < edges[0]),
        open_high=bool(seen.max() > edges[-1]),
    )


def _counts(values: Floats, edges: Floats, parts: dict[str, list[Mask]]) -> dict[str, list[list[int]]]:
    at = np.searchsorted(edges, values, side="right") - 1
    at = np.clip(at, 0, len(edges) - 2)
    there = ~np.isnan(values)
    return {
        name: [np.bincount(at[there & mask], minlength=len(edges) - 1).tolist() for mask in masks]
        for name, masks in parts.items()
    }


def nice_step(size: float) -> float:
    """Return the smallest of 1, 2, 5, 10, 20 .. and their decimal fractions that is at least `size`."""
    base = 10.0 ** math.floor(math.log10(size)) if size > 0 else 1.0
    return next(base * factor for factor in (1, 2, 5, 10) if base * factor >= size * (1 - 1e-9))


class Bar(NamedTuple):
    """The prompts of which a certain share of the responses is solved."""

    name: str
    prompts: int
    alike: int
    """Prompts of these whose responses, two or more, all have the same score."""


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Scores by prompt. Prompts without a score are not counted."""

    responses: int
    """Responses with a score."""
    solved: int
    mean: float
    prompts: int
    unscored: int
    """Prompts without a score."""
    never: int
    always: int
    alike: int
    """Prompts whose responses all have the same score: a group that GRPO cannot learn from."""
    compared: int
    """Prompts with two or more scored responses."""
    partial: bool
    """Whether there are scores other than 0 and 1."""
    bars: tuple[Bar, ...]
    tries: tuple[float, ...]
    """Entry k - 1 is pass@k: the share of prompts that at least one of k responses solves."""

    @property
    def sometimes(self) -> int:
        return self.prompts - self.never - self.always


def score_prompts(generated: Generated) -> Scores | None:
    """Count how often prompts are solved; None if there are no scores."""
    scored = ~np.isnan(generated.score)
    if not scored.any():
        return None
    prompt, score = generated.prompt[scored], generated.score[scored]
    sizes = np.bincount(prompt, minlength=generated.prompts)
    hits = np.bincount(prompt[score >= FULL], minlength=generated.prompts)
    lowest, highest = np.full(generated.prompts, np.inf), np.full(generated.prompts, -np.inf)
    np.minimum.at(lowest, prompt, score)
    np.maximum.at(highest, prompt, score)
    there = sizes > 0
    sizes, hits, spread = sizes[there], hits[there], (highest - lowest)[there]
    alike = (sizes > 1) & (spread < 1e-9)
    return Scores(
        responses=len(score),
        solved=int(hits.sum()),
        mean=float(score.mean()),
        prompts=len(sizes),
        unscored=generated.prompts - len(sizes),
        never=int((hits == 0).sum()),
        always=int((hits == sizes).sum()),
        alike=int(alike.sum()),
        compared=int((sizes > 1).sum()),
        partial=bool(((score > 0) & (score < FULL)).any()),
        bars=_bars(sizes, hits, alike),
        tries=_tries(sizes, hits),
    )


def _bars(sizes: NDArray[np.int64], hits: NDArray[np.int64], alike: Mask) -> tuple[Bar, ...]:
    """Return a bar for each number of solved responses, or for bands of shares if there are many or they differ."""
    size = int(sizes[0])
    if size <= MOST_BARS and (sizes == size).all():
        masks = {f"{k} of {size}": hits == k for k in range(size + 1)}
    else:
        share = hits / sizes
        masks = {"none": hits == 0}
        for low, high in ((0, 20), (20, 40), (40, 60), (60, 80), (80, 100)):
            some = (share >= low / 100) & (share < high / 100) & (hits > 0)
            masks[f"{low}–{high}%" if low else "to 20%"] = some
        masks["all"] = hits == sizes
    return tuple(Bar(name, int(mask.sum()), int((mask & alike).sum())) for name, mask in masks.items())


def _tries(sizes: NDArray[np.int64], hits: NDArray[np.int64]) -> tuple[float, ...]:
    """Return pass@k (Chen et al. 2021, unbiased) over the prompts with at least k responses."""
    found: list[float] = []
    missed = np.ones(len(sizes))
    for k in range(1, min(int(sizes.max()), MOST_TRIES) + 1):
        enough = sizes >= k
        sizes, hits, missed = sizes[enough], hits[enough], missed[enough]
        missed = missed * np.maximum(sizes - hits - k + 1, 0) / (sizes - k + 1)
        found.append(float(1 - missed.mean()))
    return tuple(found)


def short(value: float | None) -> float | None:
    """Round to six significant digits."""
    return None if value is None else float(f"{value:.6g}")


def shortened(values: Sequence[float | None]) -> list[float | None]:
    return [short(value) for value in values]
