"""An independent referee for packing: a lower bound on the number of rows, from the linear programme of cutting stock.

The programme chooses how many rows follow each pattern (how many sequences of each length a row holds), so that every
length is covered, with as few rows as possible and fractions allowed. Its patterns are generated: scipy's HiGHS solves
the programme over those known, and an exact knapsack over integers finds the pattern that its prices value most. Prices
divided by the value of that pattern are feasible in the dual programme, so they prove a bound at every step (Farley),
without trusting any floating-point number: prices are rounded down to integers first. The bound is therefore never too
high, however early the search stops.
"""

import time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

SCALE = 1 << 40
"""A price of 1 as an integer: the sum of a row's prices stays below 2**62."""
PATTERNS = 24
"""Most patterns that are added at a time."""
CLOSE = 0.0001
"""The search ends if the bound is this near to the programme's value, as a share of it."""


class Bound(NamedTuple):
    """`rows` are needed at least; `programme` is the value over the patterns known, which the bound cannot pass."""

    rows: float
    programme: float
    patterns: int
    seconds: float


def bound(lengths: NDArray[np.int32], capacity: int, *, seconds: float = 20.0) -> Bound:
    """The best bound that is found in about so many seconds."""
    started = time.perf_counter()
    sizes, demand = np.unique(lengths, return_counts=True)
    sizes, demand = sizes[::-1].astype(np.int64), demand[::-1].astype(np.int64)
    # Prices in proportion to the lengths prove the first bound: no row holds more than its capacity.
    best = float(sizes @ demand) / capacity
    patterns = list(np.diag(capacity // sizes))
    patterns += greedy(sizes, demand, capacity)
    programme = np.inf
    while time.perf_counter() - started < seconds:
        programme, prices = solve(np.array(patterns), demand)
        if best >= programme * (1 - CLOSE):
            break
        whole = np.floor(np.clip(prices, 0, 1) * SCALE).astype(np.int64)
        value, found = knapsack(sizes, whole, capacity)
        best = max(best, sum(price * many for price, many in zip(whole.tolist(), demand.tolist(), strict=True)) / value)
        if not (new := [pattern for pattern in found if float(pattern @ prices) > 1 + 1e-9]):
            break
        patterns += new
    return Bound(best, float(programme), len(patterns), time.perf_counter() - started)


def solve(patterns: NDArray[np.int64], demand: NDArray[np.int64]) -> tuple[float, NDArray[np.float64]]:
    """The fewest rows over these patterns, in fractions, and the prices of the lengths."""
    solved = linprog(np.ones(len(patterns)), A_ub=-patterns.T.astype(float), b_ub=-demand.astype(float), method="highs")
    assert solved.status == 0, solved.message
    return float(solved.fun), -np.asarray(solved.ineqlin.marginals)


def knapsack(sizes: NDArray[np.int64], prices: NDArray[np.int64], capacity: int) -> tuple[int, list[NDArray[np.int64]]]:
    """The highest sum of prices in a row, and some patterns of high value: the best, and the best with each of a few
    lengths in it.

    `best[room]` is the most that fits into a room. Lengths are taken one after the other, each as often as it fits.
    """
    best = np.zeros(capacity + 1, np.int64)
    last = np.full(capacity + 1, -1, np.int64)  # the number of the length that was put in last
    for number, (size, price) in enumerate(zip(sizes.tolist(), prices.tolist(), strict=True)):
        if price == 0:
            continue
        for start in range(size, capacity + 1, size):  # a block refers to the block before it, which is final
            end = min(start + size, capacity + 1)
            filled = best[start - size : end - size] + price
            better = filled > best[start:end]
            best[start:end][better] = filled[better]
            last[start:end][better] = number
    with_each = prices + best[capacity - sizes]
    chosen = np.argsort(-with_each, kind="stable")[:PATTERNS].tolist()
    found = {pattern.tobytes(): pattern for pattern in (trace(first, sizes, last, capacity) for first in chosen)}
    return int(best[capacity]), list(found.values())


def trace(first: int, sizes: NDArray[np.int64], last: NDArray[np.int64], capacity: int) -> NDArray[np.int64]:
    """The pattern with the length `first` in it that is worth most."""
    pattern, number, room = np.zeros(len(sizes), np.int64), first, capacity
    while number >= 0:
        pattern[number] += 1
        room -= int(sizes[number])
        number = int(last[room])
    return pattern


def greedy(sizes: NDArray[np.int64], demand: NDArray[np.int64], capacity: int) -> list[NDArray[np.int64]]:
    """Patterns to begin with: rows filled with the longest that fits, from each length on."""
    found: list[NDArray[np.int64]] = []
    for first in range(len(sizes)):
        pattern, room = np.zeros(len(sizes), np.int64), capacity
        for number in range(first, len(sizes)):
            pattern[number] = min(room // int(sizes[number]), int(demand[number]))
            room -= int(pattern[number] * sizes[number])
        found.append(pattern)
    return found
