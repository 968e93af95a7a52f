"""Analysis: how much of the batches is padding, which bucket edges pad least, and which strategy to choose.

Only lengths are needed. The same from the command line: `brim lengths histogram`, `brim plan analyze`, `brim plan
suggest` and `brim plan report`.
"""

import tempfile
from itertools import combinations
from pathlib import Path

import numpy as np

from brim import (
    BatchingConfig,
    BatchPlan,
    BucketSpec,
    LengthCache,
    OptimizationGoal,
    analyze_bucket_efficiency,
    compute_length_histogram,
    create_efficiency_report,
    create_plan_report,
    suggest_bucket_edges,
    visualize_buckets,
)

# 1. Lengths, long-tailed as in instruction data, and their histogram. It keeps how often each length occurs, and what
# follows starts from that: ten million lengths are counted once.
drawn = np.clip(np.random.default_rng(0).lognormal(np.log(300), 0.8, 20_000), 1, 4096).astype(int)
lengths = LengthCache.from_lengths({f"s{number}": int(length) for number, length in enumerate(drawn)})
histogram = compute_length_histogram(lengths, num_bins=12)
print(histogram.to_ascii(width=40))
print(f"half of the samples have at most {histogram.percentile(50)} tokens, the longest has {histogram.longest}")

# 2. Bucket edges chosen by hand: powers of two.
now = BucketSpec(edges=(128, 256, 512, 1024, 2048), overflow_max=4096)
analysis = analyze_bucket_efficiency(histogram, now)
print()
print(visualize_buckets(histogram, now, width=30))
print(f"powers of two fill {analysis.efficiency:.1%}")

# 3. The same number of buckets, with the optimal edges for each goal.
print()
for goal in OptimizationGoal:
    best = suggest_bucket_edges(histogram, num_buckets=now.num_buckets, goal=goal)
    assert best.cost <= analysis.cost(goal)
    print(
        f"{goal}: edges {best.edges}, fill {best.analysis.efficiency:.1%}, {best.cost / analysis.cost(goal):.1%} of "
        "the cost before"
    )

few = [3, 4, 4, 9, 10, 17, 18, 30]
for goal in OptimizationGoal:
    rivals = (BucketSpec(edges=inner, overflow_max=30) for inner in combinations(range(1, 30), 2))
    assert suggest_bucket_edges(few, 3, goal).cost == min(
        analyze_bucket_efficiency(few, rival).cost(goal) for rival in rivals
    )
print("tried out on eight lengths: no three buckets are better, for any goal")

# 4. Before and after, as plans: the same samples, the same budget, the same number of shapes.
optimal = suggest_bucket_edges(histogram, now.num_buckets).bucket_spec
before, after = (
    BatchPlan.build(
        lengths, BatchingConfig.predictable(bucket_edges=spec.edges, overflow_max=spec.overflow_max, token_budget=16384)
    )
    for spec in (now, optimal)
)
assert after.get_epoch(0).fill.ratio > before.get_epoch(0).fill.ratio
print()
print(
    f"plans: {before.get_epoch(0).fill} full before, {after.get_epoch(0).fill} after, {after.num_microbatches(0)} "
    "microbatches"
)

# 5. The whole report: all strategies compared on these lengths, and a recommendation.
report = create_efficiency_report(lengths, now, token_budget=16384)
print()
for strategy in report.strategies:
    gain = strategy.speedup(report.strategies[0])
    print(
        f"{strategy.name:22} {strategy.fill.waste:6.1%} padding, {strategy.shapes:4} shapes, {gain:.1f} times the "
        "speed by cost"
    )
print(report.advice)

# 6. An HTML page about one plan. It loads nothing from the network.
with tempfile.TemporaryDirectory() as directory:
    page = Path(directory, "report.html")
    create_plan_report(after).save(page)
    html = page.read_text()
    assert "://" not in html.replace("http://www.w3.org", "")  # names of XML vocabularies, which nobody fetches
    print(f"written: {page.name}, about the plan {after.fingerprint[:8]}")
    assert after.fingerprint in html
