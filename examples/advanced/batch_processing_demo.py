"""Batches of ARC environments: everything from the first reset to rollouts, values, padding and measurements.

The arrays are those of JAX. With keys of NumPy (`split_key(42, 32, arrays="numpy")` of `brim.envs.arc`) the same
functions work without it, and the results are the same. `arc_quick_start.py` is the shortest program.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from brim import (
    ArcEnvState,
    BatchPerformanceMonitor,
    EnvironmentConfig,
    JaxArcConfig,
    PointAction,
    UnifiedActionConfig,
    UnifiedDatasetConfig,
    analyze_memory_usage,
    batch_policy_rollout,
    batch_reset,
    batch_step,
    compiled_batch_step,
    compute_batch_values,
    conditional_batch_processing,
    create_mock_task,
    example_policy,
    example_value_fn,
    find_optimal_batch_size,
    hierarchical_batch_processing,
    inspect_batch_states,
    process_dynamic_batch,
    run_batch_episode,
    stack_states,
    warm_up_batch_functions,
)
from brim.envs.arc import ArcOperation, BboxAction, split_key, take_states

config = JaxArcConfig(
    environment=EnvironmentConfig(max_episode_steps=30),
    dataset=UnifiedDatasetConfig(max_grid_height=30, max_grid_width=30),
    action=UnifiedActionConfig(selection_format="point"),
)
task = create_mock_task()  # mirror the grid from left to right
batch_size = 32

# 1. Reset and step. JAX compiles both for each batch size; a warm-up does it at a time of one's choice.
seconds = warm_up_batch_functions(batch_size, config, task)
assert seconds > 0
keys = jax.random.split(jax.random.PRNGKey(42), batch_size)
batch_states, batch_obs = batch_reset(keys, config, task)
assert batch_states.working_grid.shape == batch_obs.shape == (batch_size, 30, 30)
actions = PointAction(
    operation=jnp.array([0, 1, 0, 1] * (batch_size // 4)),  # fill with colour 0, or with colour 1
    row=jnp.arange(batch_size) % 10,
    col=jnp.full(batch_size, 7, dtype=jnp.int32),
)
new_states, new_obs, rewards, dones, infos = batch_step(batch_states, actions, config)
print(f"{batch_size} environments, rewards from {jnp.min(rewards):.3f} to {jnp.max(rewards):.3f}")
assert not infos["invalid"].any()

# 2. The same keys give the same results, in a batch of any size, at any place, with or without JAX.
again, _ = batch_reset(keys[::-1], config, task)
assert jnp.array_equal(again.working_grid, batch_states.working_grid[::-1])
on_numpy, _ = batch_reset(split_key(42, 3, arrays="numpy"), config, task)
assert np.array_equal(on_numpy.working_grid, batch_states.working_grid[:3])
print("results depend on the key of an environment, and on nothing around it")

# 3. A whole episode, as one compiled loop that ends when all environments are done: the fixed actions of the guide, and
# a policy that solves the task.
results = run_batch_episode(keys, config, task)
print(f"Average length: {jnp.mean(results['episode_lengths']):.1f}")
print(f"Completion rate: {results['completion_rate']:.1%}")


def mirror(states: ArcEnvState) -> dict[str, Any]:
    """Flip the whole grid, then submit it."""
    zeros = jnp.zeros(states.batch_size, jnp.int32)
    operation = jnp.where(states.step_count == 0, ArcOperation.FLIP_HORIZONTAL, ArcOperation.SUBMIT)
    actions = BboxAction(operation, zeros, zeros, states.height - 1, states.width - 1)
    return {"actions": actions, "log_probs": jnp.zeros(states.batch_size)}


rectangles = JaxArcConfig(action=UnifiedActionConfig(selection_format="bbox"))
results = run_batch_episode(keys, rectangles, task, policy_fn=mirror)
assert results["final_states"].solved.all()
print(f"a policy that mirrors and submits: all solved after {results['episode_lengths'].max()} steps")

# 4. Actions that depend on the state.
conditional_actions = conditional_batch_processing(batch_states, config)
assert conditional_actions.row.tolist() == [5] * batch_size  # 10 from step 25 on
batch_step(batch_states, conditional_actions, config)

# 5. Rollouts of a policy: one scan. All arrays are (steps, batch, ...); the tasks are not repeated.
trajectory = batch_policy_rollout(example_policy, batch_states, config, num_steps=10)
print(f"Trajectory shape: {trajectory['rewards'].shape}")
assert trajectory["states"].working_grid.shape == (10, batch_size, 30, 30)
assert trajectory["states"].bank is batch_states.bank
probability = jnp.exp(trajectory["log_probs"][0, 0])
print(f"the random policy chooses one of {1 / probability:.0f} actions")


def policy_with(weights: jax.Array) -> Callable[[ArcEnvState], dict[str, Any]]:
    """Fill on the diagonal with the colour that the first row of the grid suggests."""

    def policy(states: ArcEnvState) -> dict[str, Any]:
        scores = jax.nn.log_softmax(states.working_grid[:, 0].astype(jnp.float32) @ weights)
        colour = jnp.argmax(scores, axis=-1).astype(jnp.int32)
        return {"actions": PointAction(colour, colour, colour), "log_probs": scores.max(axis=-1)}

    return policy


# A policy may close over weights. New weights of the same shape do not compile anything.
for weights in (jnp.zeros((30, 10)), jnp.eye(30, 10)):
    trajectory = batch_policy_rollout(policy_with(weights), batch_states, config, num_steps=10)
    print(f"colours of step 0: {sorted(set(trajectory['actions'].operation[0].tolist()))}")

# 6. Values of states.
batch_values = compute_batch_values(example_value_fn, batch_states)
assert jnp.array_equal(batch_values, batch_states.similarity_score * 10)
print(f"values from {batch_values.min():.1f} to {batch_values.max():.1f}")

# 7. Any number of environments: 21 and 40 of them are stepped in batches of 8 and 32, so two sizes are compiled.
states_list = [take_states(batch_states, number % batch_size) for number in range(40)]
actions_list = [PointAction(operation=number % 10, row=number % 7, col=3) for number in range(40)]
for count in (21, 40):
    stepped = process_dynamic_batch(states_list[:count], actions_list[:count], config, sizes=(8, 32))
    assert stepped.rewards.shape == (count,)
alone = batch_step(stack_states(states_list[:1]), PointAction(*(jnp.full(1, part) for part in actions_list[0])), config)
assert jnp.array_equal(stepped.obs[0], alone.obs[0])
print(f"{count} environments stepped in padded batches, each as if it were alone")

# 8. Many episodes of many environments.
episodes = hierarchical_batch_processing(
    num_episodes=5, envs_per_episode=32, steps_per_episode=20, config=config, task=task
)
all_rewards = jnp.concatenate([episode["rewards"] for episode in episodes])
print(f"{len(episodes)} episodes: mean reward {jnp.mean(all_rewards):.3f}, deviation {jnp.std(all_rewards):.3f}")

# 9. What a batch takes, and which size is worth it here. Times differ from machine to machine and are not shown.
memory = analyze_memory_usage(config, task)
for size, used in memory.items():
    print(f"Batch {size:3d}: {used['total_mb']:.2f} MB, {used['per_env_mb'] * 1024:.2f} KB for each environment")
optimal, measured = find_optimal_batch_size(config, task, max_batch_size=64)
assert list(measured) == [1, 2, 4, 8, 16, 32, 64]
assert measured[optimal]["throughput"] >= 0.95 * max(times["throughput"] for times in measured.values())
print("the best batch size is the smallest with 95% of the best throughput")

# 10. Look at some environments, and at the time of a running program. Compilation is counted apart.
inspected = inspect_batch_states(batch_states, [0, 1])
print(f"environment 0: {inspected['environments'][0]}")
monitor = BatchPerformanceMonitor()
states, _ = monitor.time_batch_reset(keys, config, task)
for _ in range(3):
    states, *_ = monitor.time_batch_step(states, actions, config)
stats = monitor.get_stats()
assert stats["step_time_mean"] > 0
print(f"timed {stats['total_operations']} operations, {len(monitor.compile_times)} first calls apart")

# 11. In a loop that needs the old states no more, a step can reuse their memory.
for _ in range(3):
    states, *_ = compiled_batch_step(states, actions, config, donate=True)
assert inspect_batch_states(states, [0])["environments"][0]["step_count"] == 6
