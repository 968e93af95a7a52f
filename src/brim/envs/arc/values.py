"""Values of states: features for a value function, and a value function to begin with.

The features contain the target, also on test pairs, where only observations hide it. A critic may look at it during
training; a policy that does has seen the answer.
"""

from collections.abc import Callable, Mapping
from typing import Any

from brim.envs.arc.state import ArcEnvState


def compute_batch_values(value_fn: Callable[[dict[str, Any]], Any], batch_states: ArcEnvState) -> Any:
    """Return `value_fn` of the features of the states; see `extract_state_features`."""
    return value_fn(extract_state_features(batch_states))


def extract_state_features(batch_states: ArcEnvState) -> dict[str, Any]:
    """Return what a value function reads.

    The keys are "working_grid" and "target_grid" ([batch, height, width], uint8), "similarity" ([batch], float32) and
    "step_count" ([batch], int32). The states of a trajectory have one more axis in front, and so have the features.
    """
    return {
        "working_grid": batch_states.working_grid,
        "target_grid": batch_states.target_grid,
        "similarity": batch_states.similarity_score,
        "step_count": batch_states.step_count,
    }


def example_value_fn(features: Mapping[str, Any]) -> Any:
    """Return ten times the similarity: 10 is the default bonus for a solved episode. [batch], float32"""
    return features["similarity"] * 10.0
