"""Advice on batching in words: which strategy to choose, in one sentence, and notes on the lengths and buckets."""

from collections.abc import Sequence

from brim.analyze.buckets import BucketAnalysis
from brim.analyze.capacity.search import Capacity
from brim.analyze.counts import LengthCounts
from brim.analyze.strategies import WINDOWS, Strategy, bucket_flags
from brim.analyze.suggest import BucketSuggestion

ENOUGH = 1.02
"""Costs within this factor count as equal: a simpler strategy is preferred, and a smaller gain is not worth having."""


def choose_strategy(strategies: Sequence[Strategy], capacity: Capacity | None = None) -> Strategy:
    """Return the cheapest strategy that brim can plan, or sorted windows if they cost at most 2% more.

    Sorted windows need no support from the model.
    """
    planned = [strategy for strategy in strategies if strategy.options]
    best = min(planned, key=lambda strategy: strategy.price(capacity))
    simple = next(strategy for strategy in planned if strategy.name == WINDOWS)
    return simple if simple.price(capacity) <= best.price(capacity) * ENOUGH else best


def advise(strategies: Sequence[Strategy], capacity: Capacity | None = None) -> str:
    """Return one sentence: which strategy to choose, and why. The first strategy is the baseline."""
    before, chosen = strategies[0], choose_strategy(strategies, capacity)
    gain = chosen.speedup(before, capacity)
    if gain < ENOUGH:
        return (
            f"No way of batching gains anything worth having on these lengths: {before.name} waste "
            f"{before.fill.waste:.1%}."
        )
    gained = f"padding falls from {before.fill.waste:.1%} with {before.name} to {chosen.fill.waste:.1%}"
    verb = "costs" if capacity is None else "takes"
    speed = f"an epoch {verb} {gain:.1f} times less" if gain >= 1.15 else f"an epoch {verb} {1 - 1 / gain:.0%} less"
    speed += "" if capacity is None else " time by what was measured"
    return (
        f"Choose {chosen.name} (brim plan build {chosen.options}): {gained}, and "
        f"{speed}{_beside(strategies, chosen, capacity)}."
    )


def _beside(strategies: Sequence[Strategy], chosen: Strategy, capacity: Capacity | None) -> str:
    """Compare the chosen strategy with the alternative: packing with sorted windows, any other one with packing.

    Nested samples cannot be packed; for them, explain what separating their structures saves.
    """
    packed = next((one for one in strategies if one.name.startswith("packed")), None)
    if packed is None:
        return (
            "; samples of different structures never share a batch, so none is padded with parts that it does not have"
        )
    if chosen is not packed:
        more = 1 - 1 / packed.speedup(chosen, capacity)
        if more > 0.0005:
            return f"; packing would save {more:.1%} more, and needs a model that keeps the samples of a row apart"
        return "; packing would save nothing more"
    windows = next(one for one in strategies if one.name == WINDOWS)
    return (
        f"; a model that cannot keep the samples of a row apart pays {chosen.speedup(windows, capacity) - 1:.0%} "
        "more with sorted windows"
    )


def notes(
    counts: LengthCounts,
    limit: int,
    analysis: BucketAnalysis | None,
    best: BucketSuggestion | None,
    strategies: Sequence[Strategy],
    capacity: Capacity | None = None,
) -> tuple[str, ...]:
    """Return further notes, one sentence each: batches above the measured capacity, samples that are too long, empty or
    inefficient buckets, and fixed shapes for models that compile.
    """
    found: list[str] = []
    chosen = choose_strategy(strategies, capacity)
    if capacity is not None and chosen.peak > capacity.largest.size:
        found.append(
            f"The largest batch of {chosen.name} has {chosen.peak:,} {capacity.unit}, and {capacity.largest.size:,} "
            "is the most that was measured to fit: plan with -b "
            f"{capacity.largest.size}{_or_cut(counts, capacity.largest.size)}."
        )
    too_long = counts.samples - counts.up_to(limit).samples
    if too_long:
        share = "1 sample is" if too_long == 1 else f"{too_long:,} samples are"
        found.append(
            f"{share} longer than {limit:,} and counted as cut to it; a plan is told what to do with such samples by "
            f"--overflow, and the longest has {int(counts.lengths[-1]):,} tokens."
        )
    if analysis is not None and best is not None:
        now = next(one for one in strategies if one.name.endswith("buckets now"))
        found += _about_buckets(analysis, now, best)
    fixed = next((one for one in strategies if one.name.endswith("optimal buckets")), None)
    if fixed is not None and fixed.shapes > 1:
        found.append(
            f"For a model that compiles one program per shape: {fixed.name} (brim plan build {fixed.options}) give "
            f"{fixed.shapes} shapes at {fixed.fill.ratio:.1%} fill."
        )
    return tuple(found)


def _or_cut(counts: LengthCounts, budget: int) -> str:
    return " and say what to do with longer samples (--overflow)" if int(counts.lengths[-1]) > budget else ""


def _about_buckets(analysis: BucketAnalysis, now: Strategy, best: BucketSuggestion) -> list[str]:
    found: list[str] = []
    empty = [bucket for bucket in analysis.buckets if not bucket.sample_count]
    if empty:
        ends = ", ".join(f"{bucket.bucket_max_length:,}" for bucket in empty)
        found.append(
            f"{'This bucket is' if len(empty) == 1 else 'These buckets are'} empty: the one{'s' * (len(empty) > 1)} "
            f"up to {ends}."
        )
    if best.analysis.efficiency > now.fill.ratio + 0.0005:
        found.append(
            f"The buckets as they are fill {now.fill.ratio:.1%}; the best {best.num_buckets} fill "
            f"{best.analysis.efficiency:.1%}: {bucket_flags(best.bucket_spec)}."
        )
    return found
