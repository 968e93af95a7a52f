"""Online learning: play episodes, store them in a replay buffer, plan batches, train, and play again.

    gym stream -> keep what was solved -> ReplayBuffer -> RollingBatchPlanWindow -> batches -> training
         ^                                                                                       |
         +------------------------- the curriculum follows the success rate --------------------+

First with a mock gym, then with the real puzzle server, which the example starts on this machine and stops again. It
needs brim[gym] and no torch: it trains no model.
"""

import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

from brim import (
    BatchingConfig,
    BufferEvictionPolicy,
    Curriculum,
    GymConfig,
    GymEpisodeStream,
    MockGymStream,
    ReplayBuffer,
    RollingBatchPlanWindow,
)
from brim.envs.puzzle import HintPolicy, PuzzleServer, RandomPolicy

# 1. A mock gym: episodes of a sorting puzzle, 70% of them solved.
stream = MockGymStream("byte", num_episodes=200, steps_per_episode=4, success_rate=0.7, seed=1)
buffer = ReplayBuffer(max_size=600, eviction_policy=BufferEvictionPolicy.FIFO, priority_alpha=0.6, seed=1)
keys = [buffer.add(sample) for sample in stream]
print(
    f"mock gym: {stream.metrics.num_episodes} episodes, {stream.metrics.samples} actions, "
    f"{stream.metrics.success_rate:.0%} solved"
)
print(
    f"the buffer holds {len(buffer)} of {buffer.total_added} actions, {buffer.total_evicted} were evicted, oldest first"
)
assert len(buffer) + buffer.total_evicted == stream.metrics.samples
assert keys[0] not in buffer.snapshot().keys, "the first action is gone"

# 2. Priorities: which actions are drawn more often, and the importance weights that correct for it.
held = buffer.snapshot()
buffer.update_priorities(held.keys[held.success == 1], np.full(int((held.success == 1).sum()), 4.0))
draw = buffer.sample(256)
solved = np.mean([sample.success for sample in draw.samples])
print(f"of 256 actions drawn by priority {solved:.0%} are from solved episodes, of all {np.mean(held.success):.0%} are")
assert len(set(draw.keys.tolist())) == 256, "none is drawn twice"
assert all(sample.is_replay and sample.replay_count == 1 for sample in draw.samples)
assert draw.weights.max() == 1.0, "importance weights: what is drawn more often counts less"

# 3. Rolling windows: batch plans from snapshots of the buffer, by the same planner as for any data set.
options = {
    "min_samples": 100,
    "overlap_fraction": 0.25,
    "window_microbatches": 12,
    "batching": BatchingConfig(token_budget=1024),
}
rolling = RollingBatchPlanWindow(buffer, seed=1, **options)
first = rolling.build_next_window()
second = rolling.build_next_window()
both = len(np.intersect1d(first.keys, second.keys))
print(
    f"two windows of {first.num_samples} and {second.num_samples} actions, at most 12 microbatches each; {both} are "
    "in both"
)
assert both <= 0.25 * second.num_samples
assert max(first.num_microbatches, second.num_microbatches) <= 12
again = RollingBatchPlanWindow(buffer, seed=1, **options)
assert again.build_next_window().fingerprint == first.fingerprint, "the same snapshot and seed"
print("the same snapshot and seed give the same window")

# 4. Saved and restored: the same buffer, the same window, the same next batch.
with tempfile.TemporaryDirectory() as folder:
    batches = rolling.batches()
    for _ in range(3):
        next(batches)
    buffer.save(Path(folder, "buffer.brim"))
    rolling.save(Path(folder, "window.brim"))
    restored = RollingBatchPlanWindow(ReplayBuffer.load(Path(folder, "buffer.brim")), seed=1, **options)
    restored.load(Path(folder, "window.brim"))
assert np.array_equal(next(restored.batches()).tokens, next(batches).tokens)
assert np.array_equal(restored.buffer.sample(64).keys, buffer.sample(64).keys)
print("restored in the middle of a window: the next batch is the same, and so is the next draw")

# 5. A curriculum: the target difficulty rises with the success rate.
curriculum, path = Curriculum(block=16), []
for episode in range(100):
    curriculum.record(success=episode % 10 > 0)  # nine of ten
    path.append(curriculum.target)
print(f"nine of ten solved: the target rises from {path[0]:.2f} to {path[-1]:.2f}")
print(f"the next 100 episodes: {dict(sorted(Counter(curriculum.levels(range(100), seed=1)).items()))}")

# 6. The real server.
with PuzzleServer() as server:
    config = GymConfig(
        host=server.host,
        port=server.port,
        games=("lights", "nqueens", "binary"),
        difficulty_range=(0.3, 0.3),
        max_steps=15,
    )
    for policy in (RandomPolicy(), HintPolicy()):
        with GymEpisodeStream(config, "byte", policy, episodes=24, keep=lambda episode: episode.success) as played:
            actions = list(played)
        metrics = played.metrics
        solved = metrics.episodes.get("success", 0)
        print(f"{policy.name}: {solved} of {metrics.num_episodes} puzzles solved, {len(actions)} actions to learn from")
        assert metrics.num_episodes == 24, "every episode ends exactly once"
example = actions[0]
print(f"action {example.step_index + 1} of {example.total_steps} of {example.episode_id}:")
print(bytes(example.input_ids[example.loss_mask == 0].tolist()).decode(), end="")
print(bytes(example.input_ids[example.loss_mask == 1][:-1].tolist()).decode())
print("a language model takes the policy's place with: brim train online --model tiny")
