"""`load_agent`: a trained agent, as policies for rollouts and recordings."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from brim.core.extras import need
from brim.envs.arc.config import EpisodeMode, JaxArcConfig
from brim.envs.arc.rollout import Policy
from brim.envs.arc.state import ArcEnvState
from brim.envs.arc.tasks.task import JaxArcTask
from brim.train.arc.checkpoint import load_tree, read_saved
from brim.train.arc.config import ArcPpoConfig, generate_tasks
from brim.train.arc.evaluate import evaluate
from brim.train.arc.ppo import Learner
from brim.train.arc.report import GREEDY, SAMPLED, Evaluation
from brim.train.checkpoint import find_checkpoint

if TYPE_CHECKING:
    import jax
else:
    jax = need("jax", extra="arc", user="brim.train.arc")


@dataclass(frozen=True, kw_only=True)
class ArcAgent:
    """An agent with its weights and the options of its training."""

    config: ArcPpoConfig
    update: int
    """Number of updates that it was trained for."""
    params: Any = field(repr=False)
    """The weights, a tree of JAX arrays."""
    learner: Learner = field(repr=False)

    def environment(self, mode: EpisodeMode = "test") -> JaxArcConfig:
        """Return the configuration of environments that the agent can play."""
        return self.config.environment(mode)

    def policy(self, *, greedy: bool = False) -> Policy:
        """Return a policy for `batch_policy_rollout` and `record_episodes`, on arrays of NumPy or JAX.

        It samples actions by the keys of the environments, or takes the most probable ones.
        """
        act = self.learner.policy(self.params, greedy=greedy)

        def on_any(states: ArcEnvState) -> Mapping[str, Any]:
            if not isinstance(states.status, np.ndarray):
                return act(states)
            chosen = act(jax.tree.map(jax.numpy.asarray, states))
            return {name: jax.tree.map(np.asarray, part) for name, part in chosen.items()}

        return on_any

    def held_out_tasks(self, count: int | None = None) -> list[JaxArcTask]:
        """Generate tasks with rules that the agent was not trained on; by default those of its own evaluation."""
        return generate_tasks(self.config, held_out=True, count=count)

    def evaluate(self, count: int | None = None) -> Evaluation:
        """Play held-out tasks, sampled and greedy, beside random actions."""
        play = partial(self.learner.play, self.params)
        agents = {SAMPLED: play, GREEDY: partial(play, greedy=True)}
        found, _ = evaluate(agents, self.held_out_tasks(count), self.environment(), seed=self.config.seed)
        return found


def load_agent(path: str | Path) -> ArcAgent:
    """Load the agent of a run, from its last checkpoint or from the one that is named.

    Raises:
        DataError: There is no checkpoint.
        DamagedError: It is damaged, or not one of an ARC run.
        MissingExtraError: JAX is not installed.
    """
    saved = read_saved(find_checkpoint(path, advice="so there is no agent to load; train one first"))
    # The weights do not depend on the tasks and the number of environments, so a few of them are enough.
    small = replace(saved.config, envs=saved.config.minibatches, tasks=1)
    learner = Learner(small, generate_tasks(small), small.environment())
    params = load_tree(saved.path, learner.begin(small.seed).params, below="params/")
    return ArcAgent(config=saved.config, update=saved.update, params=params, learner=learner)
