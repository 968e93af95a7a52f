"""Measure how many responses to generate or to score at once: the smallest number that is nearly as fast as any.

Sizes are doubled until one does not fit, takes too long, or there is no more work (`brim.analyze.capacity`). They are
tried in this process: a device says when its memory is full, and on a CPU, where the kernel would end the process, a
size is tried only if an estimate of its memory is well below what is available.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from brim.analyze.capacity.attempts import SHARE
from brim.analyze.capacity.memory import memory_available
from brim.analyze.capacity.search import Capacity, Search, Trial, bytes_text, find_capacity
from brim.core.extras import need
from brim.generate.config import Law
from brim.generate.decode.loop import DecodeLimits, DecodeLoop
from brim.generate.decode.rows import Choose, Job, Row
from brim.generate.law import draw
from brim.generate.memory import OutOfMemory, watching_memory
from brim.generate.model import CausalModel
from brim.generate.rollouts import Rollouts
from brim.generate.score.scorer import ScoreLimits, Scorer
from brim.generate.score.selected import CHUNK

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = need("torch", extra="generate", user="brim.generate")

MOST = 1024
"""Responses at once that are tried, at most."""
TOKENS = 8
"""Tokens that each response gets in a trial of generation."""
TIMED = 2
SLOW = 20.0
"""Seconds above which a trial is too slow."""


def measure_generation(model: CausalModel, jobs: Sequence[Job], law: Law) -> Capacity:
    """Try numbers of rows on the first tokens of real prompts."""
    rows = [row for job in jobs for row in job.rows]
    longest = max(row.longest for row in rows)
    per_row = longest * model.bytes_per_cached_token + 4 * 4 * model.vocabulary

    def take(size: int) -> None:
        loop = DecodeLoop(model, DecodeLimits(rows=size))
        parts = [Job(job.ids, [_copy(row) for row in job.rows]) for job in jobs]
        left = size
        for part in parts:
            part.rows = part.rows[:left]
            left -= len(part.rows)
        for _ in loop.run(parts, _middle(law)):
            pass
        if loop.stats.memory_errors:
            raise OutOfMemory(f"with {size} rows")

    return _measured(model, "rows", take, lambda size: size * per_row, most=min(MOST, len(rows)))


def measure_scoring(model: CausalModel, rollouts: Rollouts, *, grad: bool) -> Capacity:
    """Try numbers of responses in a microbatch, on the longest responses of a record."""
    totals = rollouts.prompt_lengths.repeat(rollouts.G) + rollouts.response_lengths
    order = np.argsort(-totals, kind="stable")
    scorer = Scorer(model)
    vocabulary = model.vocabulary

    def tokens(size: int) -> int:
        return int(totals[order[:size]].sum())

    def around(last: bool) -> AbstractContextManager[None]:
        # Ranks may try different numbers of sizes, so nothing may wait for another rank.
        return model.unsynchronised()

    def take(size: int) -> None:
        limits = ScoreLimits(responses=size, tokens=max(1, tokens(size)))
        for part in scorer.scored(rollouts, law=Law(), limits=limits, grad=grad, around=around):
            if grad:
                _, *_ = torch.autograd.grad(part.logprobs.sum(), [model.head.weight], allow_unused=True)
            break
        if scorer.learnt_tokens is not None:
            raise OutOfMemory(f"with {size} responses")

    def needed(size: int) -> int:
        return tokens(size) * model.bytes_per_scored_token(grad=grad) + 4 * 3 * max(CHUNK, vocabulary)

    return _measured(model, "responses", take, needed, most=min(MOST, max(1, len(rollouts))))


def _measured(
    model: CausalModel, unit: str, take: Callable[[int], None], needed: Callable[[int], int], *, most: int
) -> Capacity:
    def attempt(size: int) -> Trial:
        estimate = needed(size)
        if model.device.type == "cpu" and estimate > SHARE * memory_available():
            return Trial(size=size, why="out of memory", detail=f"about {bytes_text(estimate)} are needed")
        times: list[float] = []
        try:
            with watching_memory():
                for _ in range(TIMED):
                    began = perf_counter()
                    take(size)
                    times.append(perf_counter() - began)
                    if times[-1] > SLOW:
                        return Trial(size=size, why="too slow", detail=f"{times[-1]:.0f} s", seconds=times[-1])
        except OutOfMemory as error:
            return Trial(size=size, why="out of memory", detail=str(error))
        return Trial(size=size, seconds=median(times), peak=estimate)

    return find_capacity(attempt, Search(unit=unit, start=min(4, most), most=most), measured={"model": model.name})


def _copy(row: Row) -> Row:
    return Row(row.key, row.prompt, min(TOKENS, row.limit))


def _middle(law: Law) -> Choose:
    """Return a choice of tokens that costs what a draw costs."""

    def choose(rows: Sequence[Row], logits: "Tensor") -> None:
        uniforms = torch.full((len(rows),), 0.5, dtype=torch.float64, device=logits.device)
        for row, token in zip(rows, draw(logits.float(), law, uniforms).tokens.tolist(), strict=True):
            row.tokens.append(token)
            row.ended = "length" if len(row.tokens) >= row.limit else None

    return choose
