"""ARC environments, the quick start: reset sixteen of them together, and step them once."""

import jax
import jax.numpy as jnp

from brim import (
    EnvironmentConfig,
    JaxArcConfig,
    PointAction,
    UnifiedActionConfig,
    UnifiedDatasetConfig,
    batch_reset,
    batch_step,
    create_mock_task,
)

# Configuration
config = JaxArcConfig(
    environment=EnvironmentConfig(max_episode_steps=100),
    dataset=UnifiedDatasetConfig(max_grid_height=30, max_grid_width=30),
    action=UnifiedActionConfig(selection_format="point"),
)

# Create mock task
task = create_mock_task()

# Batch processing
batch_size = 16
keys = jax.random.split(jax.random.PRNGKey(42), batch_size)

# Batch reset
batch_states, batch_obs = batch_reset(keys, config, task)

# Create batch actions
batch_actions = PointAction(
    operation=jnp.zeros(batch_size, dtype=jnp.int32),
    row=jnp.full(batch_size, 5, dtype=jnp.int32),
    col=jnp.full(batch_size, 5, dtype=jnp.int32),
)

# Batch step
batch_states, batch_obs, rewards, dones, infos = batch_step(batch_states, batch_actions, config)

print(f"Batch shape: {batch_states.working_grid.shape}")  # (16, 30, 30)
print(f"Rewards: {rewards}")  # (16,)
