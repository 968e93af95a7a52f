"""Curves over token positions, from responses with numbers for every token.

Neighbouring positions share a point where there are many. A curve ends where too few responses are as long.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from brim.generate.report.figures import POINTS, short, shortened
from brim.generate.report.lines import Floats

LEAST_SHARE = 0.05
"""Share of the responses that must reach a position for it to be shown."""
EQUAL = 1e-3
"""Nats by which two log-probs may differ that are the same but for rounding."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Mean and quartiles for each point; None where there are no values."""

    mean: list[float | None]
    low: list[float | None]
    high: list[float | None]

    def to_json(self) -> dict[str, list[float | None]]:
        return {name: shortened(getattr(self, name)) for name in ("mean", "low", "high")}


@dataclass(frozen=True, kw_only=True)
class Positions:
    """Curves by name, over points that are ranges of positions. The first token has position 1."""

    first: list[int]
    last: list[int]
    alive: list[int]
    """Responses that reach the first position of each point."""
    responses: int
    enough: int
    """Responses that must reach a position for it to be shown."""
    longest: int
    curves: dict[str, Curve]

    def to_json(self) -> dict[str, Any]:
        points = {"first": self.first, "last": self.last, "alive": self.alive}
        return points | {name: curve.to_json() for name, curve in self.curves.items()}


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Log-prob of tokens under the distribution they were drawn from, minus that under the model, in nats."""

    tokens: int
    mean: float
    largest: float
    """The largest difference, whatever its sign."""
    equal: float
    """Share of the tokens for which there is none."""
    values: Floats

    @property
    def is_none(self) -> bool:
        return abs(self.largest) <= EQUAL


def create_positions(per_token: Sequence[Mapping[str, Floats]]) -> Positions | None:
    """Return curves of all columns; None if no response has numbers for its tokens."""
    lengths = np.array([len(next(iter(columns.values()))) for columns in per_token], np.int64)
    if not len(lengths) or not lengths.max():
        return None
    enough = max(math.ceil(len(lengths) * LEAST_SHARE), min(8, math.ceil(len(lengths) / 4)))
    reach = int(np.sort(lengths)[-enough]) or int(lengths.max())
    many = min(reach, POINTS)
    edges = [at * reach // many for at in range(many + 1)]
    found = {name: _curve(values, edges) for name, values in _named(per_token).items()}
    return Positions(
        first=[edge + 1 for edge in edges[:-1]],
        last=edges[1:],
        alive=[int((lengths > edge).sum()) for edge in edges[:-1]],
        responses=len(lengths),
        enough=enough,
        longest=int(lengths.max()),
        curves=found,
    )


def _named(per_token: Sequence[Mapping[str, Floats]]) -> dict[str, list[Floats]]:
    """Return the columns to draw, each with the arrays of the responses that have it."""
    names = {"entropy": "entropies", "logprob": "logprobs"}
    found = {name: [one[key] for one in per_token if key in one] for name, key in names.items()}
    gaps = _gaps(per_token)
    if gaps and max(np.abs(gap).max(initial=0.0) for gap in gaps) > EQUAL:
        found["gap"] = gaps
    return {name: arrays for name, arrays in found.items() if arrays}


def _gaps(per_token: Sequence[Mapping[str, Floats]]) -> list[Floats]:
    both = [one for one in per_token if "logprobs" in one and "sampling_logprobs" in one]
    return [one["sampling_logprobs"] - one["logprobs"] for one in both]


def _curve(arrays: Sequence[Floats], edges: Sequence[int]) -> Curve:
    values = np.concatenate(arrays)
    positions = np.concatenate([np.arange(len(array)) for array in arrays])
    order = np.argsort(positions, kind="stable")
    values, bounds = values[order], np.searchsorted(positions[order], edges)
    rows: list[tuple[float | None, ...]] = []
    for begin, end in pairwise(bounds.tolist()):
        part = values[begin:end]
        rows.append((float(part.mean()), *np.percentile(part, (25, 75)).tolist()) if len(part) else (None,) * 3)
    mean, low, high = (list(column) for column in zip(*rows, strict=True))
    return Curve(mean=mean, low=low, high=high)


def create_gap(per_token: Sequence[Mapping[str, Floats]]) -> Gap | None:
    """Compare the two kinds of log-probs; None if no response has both."""
    gaps = _gaps(per_token)
    values = np.concatenate(gaps) if gaps else np.empty(0)
    if not len(values):
        return None
    return Gap(
        tokens=len(values),
        mean=float(values.mean()),
        largest=short(float(values[np.abs(values).argmax()])) or 0.0,
        equal=float((np.abs(values) <= EQUAL).mean()),
        values=values,
    )
