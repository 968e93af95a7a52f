"""PPO (Schulman et al. 2017) on a batch of ARC environments, all of an update in one compiled function: `Learner`.

    play     every environment takes `steps` actions                                    (`Learner._play`)
    judge    advantages by generalized advantage estimation                             (`advantages`)
    learn    `epochs` passes over the steps in `minibatches`, each with a step of Adam  (`Learner._learn`)

The network is in `network`. Environments are rewarded for being solved, and for a similarity to the target above the
best so far in the episode. The second part is what leads to the first. It cannot be earned twice, so nothing is gained
by going back and forth.

The limit of steps is part of the task, so nothing follows an episode that reaches it. The value knows how many steps
are left (Pardo et al. 2018).
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from brim.core.extras import need
from brim.envs.arc.actions import BboxAction
from brim.envs.arc.arrays import split_key
from brim.envs.arc.batch import batch_reset, batch_step
from brim.envs.arc.config import JaxArcConfig
from brim.envs.arc.operations import ArcOperation
from brim.envs.arc.rollout import Policy, batch_policy_rollout
from brim.envs.arc.state import ArcEnvState
from brim.envs.arc.tasks.bank import TaskBank
from brim.envs.arc.tasks.task import JaxArcTask
from brim.train.arc.config import ArcPpoConfig
from brim.train.arc.network import Array, Seen, Tree, View, first_corner, init_params, look, second_corner, view_of

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
    from jax import lax
else:
    jax = need("jax", extra="arc", user="brim.train.arc")
    jnp, lax = jax.numpy, jax.lax

OPERATION_ENTROPY = 3
"""Weight of the entropy of operations beside that of corners: a rule that needs a rare operation is found by trying."""
DECAY_1, DECAY_2, EPSILON = 0.9, 0.999, 1e-5
"""Constants of Adam (Kingma and Ba 2015)."""


class Learning(NamedTuple):
    """Everything that goes on from update to update."""

    params: Tree
    """The weights of the network."""
    moments: tuple[Tree, Tree]
    """Means of the gradients and of their squares."""
    count: Array
    """Optimizer steps so far."""
    envs: "Playing"
    key: Array
    """What all later randomness comes from."""


class Playing(NamedTuple):
    """The environments between two updates."""

    states: tuple[Array, ...]
    """`ArcEnvState` without its bank of tasks, which never changes."""
    best: Array
    """[envs]: the highest similarity to the target in this episode."""


class Choice(NamedTuple):
    """Parts of an action. All are [batch], integers."""

    operation: Array
    """Place among the allowed operations."""
    corner: Array
    """Cell number, row by row."""
    opposite: Array


class Steps(NamedTuple):
    """Steps of an update."""

    view: View
    choice: Choice
    log_prob: Array
    advantage: Array
    target: Array
    """Return that the value should have predicted."""


class Learner:
    """Plays and learns. What changes from update to update is in `Learning`, not here."""

    def __init__(self, config: ArcPpoConfig, tasks: Sequence[JaxArcTask], env_config: JaxArcConfig) -> None:
        self.config, self.env_config = config, env_config
        self._operations = np.array(config.operations, np.int32)
        self._painting = int(sum(number <= ArcOperation.FLOOD_FILL_9 for number in config.operations))
        self._draws = len(self._operations) + 2 * config.size**2
        self._tasks = list(tasks)
        self._update = jax.jit(self._make_update)
        self._rollout = jax.jit(self._actions, static_argnames=("config", "greedy"))
        self._policy = jax.jit(self._act, static_argnames=("greedy",))

    def begin(self, seed: int) -> Learning:
        """Return new weights, and environments at the beginning of their first episodes."""
        keys = split_key(seed, self.config.envs, arrays="jax")
        states, _ = batch_reset(keys, self.env_config, self._tasks)
        self._bank: TaskBank = states.bank
        key, weights = jax.random.split(jax.random.PRNGKey(seed))
        params = init_params(weights, size=self.config.size, width=self.config.width, others=self._others)
        zeros = jax.tree.map(jnp.zeros_like, params)
        playing = Playing(tuple(states[1:]), states.similarity_score)
        return Learning(params, (zeros, zeros), jnp.float32(0), playing, key)

    def update(self, learning: Learning, rate: float) -> tuple[Learning, dict[str, Array]]:
        """Play, and learn from it. Metrics are means over the update."""
        return self._update(self._bank, learning, jnp.float32(rate))

    def play(self, params: Tree, states: ArcEnvState, config: JaxArcConfig, *, greedy: bool = False) -> BboxAction:
        """Let the agent play for the steps of an episode, and return its actions. [steps, envs]

        This is compiled once, where a rollout of `policy` is compiled for every set of weights.
        """
        return self._rollout(params, states, config=config, greedy=greedy)

    def policy(self, params: Tree, *, greedy: bool = False) -> Policy:
        """Return a policy on arrays of JAX, for `batch_policy_rollout`.

        It draws by the keys, episodes and steps of the environments, or takes the most probable parts of actions.
        """
        return partial(self._policy, params, greedy=greedy)

    @property
    def _others(self) -> int:
        return len(self._operations) - self._painting

    def _actions(self, params: Tree, states: ArcEnvState, *, config: JaxArcConfig, greedy: bool) -> BboxAction:
        steps = config.environment.max_episode_steps
        return batch_policy_rollout(self.policy(params, greedy=greedy), states, config, num_steps=steps)["actions"]

    def _act(self, params: Tree, states: ArcEnvState, *, greedy: bool) -> dict[str, Any]:
        noise = (
            jnp.zeros(self._draws) if greedy else jax.vmap(self._noise)(states.key, states.episode, states.step_count)
        )
        choice, log_prob, _ = self._choose(params, self._view(states), noise)
        return {"actions": self._action(choice), "log_probs": log_prob}

    def _view(self, states: ArcEnvState) -> View:
        return view_of(states, self.config.max_episode_steps)

    def _noise(self, key: Array, episode: Array, step: Array) -> Array:
        """Draw for a step of one environment."""
        return jax.random.gumbel(jax.random.fold_in(jax.random.fold_in(key, episode), step), (self._draws,))

    def _choose(self, params: Tree, view: View, noise: Array) -> tuple[Choice, Array, Array]:
        """Choose an action part by part, and return it with its log-probability and the value.

        The highest logit is taken after noise was added. With noise of the Gumbel distribution this samples from the
        softmax of the logits, and without it the most probable part is taken. [batch, draws] or [draws]
        """
        first, second = len(self._operations), len(self._operations) + self.config.size**2
        seen = look(params, view, self._painting)
        operation = jnp.argmax(seen.operations + noise[..., :first], axis=-1)
        corners = first_corner(params, seen, operation, self._painting)
        corner = jnp.argmax(corners + noise[..., first:second], axis=-1)
        opposites = second_corner(params, seen, operation, corner, self._painting)
        opposite = jnp.argmax(opposites + noise[..., second:], axis=-1)
        # A flood fill begins at one cell.
        choice = Choice(operation, corner, jnp.where(operation < self._painting, corner, opposite))
        log_prob, _ = self._judge(params, seen, choice)
        return choice, log_prob, seen.value

    def _judge(self, params: Tree, seen: Seen, choice: Choice) -> tuple[Array, Array]:
        """Return the log-probability of a choice, and the entropy of the parts that it was made of."""
        one_cell = choice.operation < self._painting
        corners = first_corner(params, seen, choice.operation, self._painting)
        opposites = second_corner(params, seen, choice.operation, choice.corner, self._painting)
        log_prob = (
            _log_prob(seen.operations, choice.operation)
            + _log_prob(corners, choice.corner)
            + jnp.where(one_cell, 0, _log_prob(opposites, choice.opposite))
        )
        entropy = (
            OPERATION_ENTROPY * _entropy(seen.operations)
            + _entropy(corners)
            + jnp.where(one_cell, 0, _entropy(opposites))
        )
        return log_prob, entropy

    def _action(self, choice: Choice) -> BboxAction:
        corners = (part.astype(jnp.int32) for part in (choice.corner, choice.opposite))
        (row, column), (last_row, last_column) = (divmod(cell, self.config.size) for cell in corners)
        return BboxAction(jnp.asarray(self._operations)[choice.operation], row, column, last_row, last_column)

    def _make_update(self, bank: TaskBank, learning: Learning, rate: Array) -> tuple[Learning, dict[str, Array]]:
        key, play_key, learn_key = jax.random.split(learning.key, 3)
        envs, steps, metrics = self._play(bank, learning, play_key)
        carry = learning.params, learning.moments, learning.count
        (params, moments, count), losses = self._learn(carry, steps, rate, learn_key)
        learned = {name: values.mean() for name, values in losses.items()}
        return Learning(params, moments, count, envs, key), {**metrics, **learned}

    def _play(self, bank: TaskBank, learning: Learning, key: Array) -> tuple[Playing, Steps, dict[str, Array]]:
        """Take steps with the present weights, and return them with their advantages, [steps * envs]."""
        config, params = self.config, learning.params

        def step(playing: Playing, key: Array) -> tuple[Playing, tuple[Array, ...]]:
            states = ArcEnvState(bank, *playing.states)
            best = jnp.where(states.step_count == 0, states.similarity_score, playing.best)
            view = self._view(states)
            noise = jax.random.gumbel(key, (config.envs, self._draws))
            choice, log_prob, value = self._choose(params, view, noise)
            states, _, rewards, dones, infos = batch_step(states, self._action(choice), self.env_config)
            gain = jnp.maximum(infos["similarity"] - best, 0)
            solved = infos["solved"] & infos["terminated"]
            taken = view, choice, log_prob, value, rewards + gain, dones, solved
            return Playing(tuple(states[1:]), best + gain), taken

        envs, taken = lax.scan(step, learning.envs, jax.random.split(key, config.steps))
        view, choice, log_prob, value, reward, done, solved = taken
        last = look(params, self._view(ArcEnvState(bank, *envs.states)), self._painting).value
        advantage = advantages(value, last, reward, done, discount=config.discount, trace=config.trace)
        steps = Steps(view, choice, log_prob, advantage, advantage + value)
        flat = jax.tree.map(_joined, steps)
        episodes = done.sum()
        metrics = {
            "reward": reward.mean(),
            "solved": solved.sum() / jnp.maximum(episodes, 1),
            "episodes": episodes,
        }
        return envs, flat, metrics

    def _learn(self, carry: Tree, steps: Steps, rate: Array, key: Array) -> tuple[Tree, dict[str, Array]]:
        """Learn from the steps of an update, in another order in every epoch."""
        config = self.config

        def minibatch(carry: Tree, chosen: Array) -> tuple[Tree, dict[str, Array]]:
            params, moments, count = carry
            part: Steps = jax.tree.map(partial(jnp.take, indices=chosen, axis=0), steps)
            gradient, metrics = jax.grad(self._loss, has_aux=True)(params, part)
            stepped = adam(params, gradient, moments, count + 1, rate=rate, max_norm=config.max_norm)
            return (*stepped, count + 1), metrics

        def epoch(carry: Tree, key: Array) -> tuple[Tree, dict[str, Array]]:
            order = jax.random.permutation(key, config.envs * config.steps)
            return lax.scan(minibatch, carry, order.reshape(config.minibatches, -1))

        return lax.scan(epoch, carry, jax.random.split(key, config.epochs))

    def _loss(self, params: Tree, steps: Steps) -> tuple[Array, dict[str, Array]]:
        config = self.config
        seen = look(params, steps.view, self._painting)
        log_prob, entropy = self._judge(params, seen, steps.choice)
        advantage = (steps.advantage - steps.advantage.mean()) / (steps.advantage.std() + 1e-6)
        difference = log_prob - steps.log_prob
        ratio = jnp.exp(difference)
        clipped = jnp.clip(ratio, 1 - config.clip, 1 + config.clip)
        policy_loss = -jnp.minimum(ratio * advantage, clipped * advantage).mean()
        value_loss = 0.5 * jnp.square(seen.value - steps.target).mean()
        loss = policy_loss + config.value_weight * value_loss - config.entropy * entropy.mean()
        metrics = {
            "loss": loss,
            "value_loss": value_loss,
            "entropy": entropy.mean(),
            "kl": (ratio - 1 - difference).mean(),
            "clipped": (ratio != clipped).mean(),
        }
        return loss, metrics


def adam(
    params: Tree, gradient: Tree, moments: tuple[Tree, Tree], count: Array, *, rate: Array, max_norm: float
) -> tuple[Tree, tuple[Tree, Tree]]:
    """Take step number `count` of Adam, with the norm of the gradient limited."""
    norm = jnp.sqrt(sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(gradient)))
    scale = jnp.minimum(1, max_norm / (norm + 1e-8))

    def mean(mean: Array, new: Array) -> Array:
        return DECAY_1 * mean + (1 - DECAY_1) * scale * new

    def mean_of_squares(mean: Array, new: Array) -> Array:
        return DECAY_2 * mean + (1 - DECAY_2) * jnp.square(scale * new)

    def step(leaf: Array, first: Array, second: Array) -> Array:
        return leaf - rate * (first / (1 - DECAY_1**count)) / (jnp.sqrt(second / (1 - DECAY_2**count)) + EPSILON)

    first, second = jax.tree.map(mean, moments[0], gradient), jax.tree.map(mean_of_squares, moments[1], gradient)
    stepped = jax.tree.map(step, params, first, second)
    return stepped, (first, second)


def advantages(value: Array, last: Array, reward: Array, done: Array, *, discount: float, trace: float) -> Array:
    """Return generalized advantage estimates (Schulman et al. 2016). [steps, envs]

    Args:
        last: [envs]: values of the states after the last step.
    """

    def back(carry: tuple[Array, Array], step: tuple[Array, Array, Array]) -> tuple[tuple[Array, Array], Array]:
        later_value, later = carry
        value, reward, going_on = step
        advantage = reward + discount * going_on * later_value - value + discount * trace * going_on * later
        return (value, advantage), advantage

    begin = last, jnp.zeros_like(last)
    return lax.scan(back, begin, (value, reward, 1.0 - done), reverse=True)[1]


def _joined(leaf: Array) -> Array:
    """Return steps and environments as one axis."""
    return leaf.reshape((-1, *leaf.shape[2:]))


def _log_prob(logits: Array, chosen: Array) -> Array:
    return jnp.take_along_axis(jax.nn.log_softmax(logits), chosen[:, None], axis=1)[:, 0]


def _entropy(logits: Array) -> Array:
    log_probs = jax.nn.log_softmax(logits)
    return -(jnp.exp(log_probs) * log_probs).sum(axis=-1)
