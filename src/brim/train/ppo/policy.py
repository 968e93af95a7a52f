"""The policy of PPO: a small network, and how it chooses actions in a rollout.

A rollout serves whichever environments are ready, and which ones are ready together depends on the latency of servers.
Two things keep that out of the results. Actions are sampled with random numbers that are keyed by the environment and
its step, never by the order of the calls. And an environment always has the same row of a block of `BLOCK` rows that
goes through the network as a whole: matrix products of other shapes, or in another row, may differ in the last bit.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from brim.core.errors import DataError
from brim.core.extras import need
from brim.core.rng import new_seed, uniform
from brim.envs.policy_gradient import choose, softmax
from brim.train.threads import torch_threads

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
else:
    torch = need("torch", extra="train", user="brim.train")
    nn = torch.nn

BLOCK = 32
"""Rows that go through the network together. A row costs as much when it is alone in its block."""


class ActorCritic(nn.Module):
    """Logits of the actions and the value of an observation, from two separate networks with tanh between layers.

    Weights are orthogonal, with gain sqrt(2), 0.01 for the last layer of the policy (so that the first policy is nearly
    uniform) and 1 for that of the value; biases are 0. They depend on the seed alone, and torch's own generator is
    unchanged.
    """

    def __init__(self, observation_size: int, num_actions: int, hidden: Sequence[int], *, seed: int) -> None:
        super().__init__()
        self.observation_size = observation_size
        self.num_actions = num_actions
        with torch.random.fork_rng(devices=[]), torch_threads(1):
            torch.manual_seed(new_seed(seed=seed, purpose="ppo/weights"))
            self.policy = _layers([observation_size, *hidden, num_actions], last_gain=0.01)
            self.value = _layers([observation_size, *hidden, 1], last_gain=1.0)

    def forward(self, observations: "Tensor") -> "tuple[Tensor, Tensor]":
        """Return logits and values. [m, d] -> [m, actions], [m]"""
        return self.policy(observations), self.value(observations)[:, 0]


class RolloutPolicy:
    """A policy as rollouts use it: NumPy in, NumPy out, without gradients.

    It has no state of its own: the weights are those that the model has when it is called.
    """

    def __init__(self, model: ActorCritic, num_envs: int, seed: int) -> None:
        self.model = model
        self.num_envs = num_envs
        self.seed = seed

    def act(
        self, observations: NDArray[np.float32], ids: NDArray[np.int64], numbers: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], dict[str, NDArray[np.float32]]]:
        """Sample actions. The result for an environment is the same to the last bit, whichever others are asked about
        in the same call.

        Args:
            observations: [k, d]
            ids: Numbers of the environments, each at most once. [k]
            numbers: Steps that each of these environments has taken in the whole run. [k]

        Returns:
            Actions [k]; and "log_probs" and "values" of them, [k] each.

        Raises:
            DataError: The shapes do not fit, or an environment does not exist or comes twice.
        """
        ids, numbers = np.asarray(ids, np.int64), np.asarray(numbers, np.int64)
        self._check(np.shape(observations), ids, numbers)
        actions = np.empty(len(ids), np.int64)
        log_probs = np.empty(len(ids), np.float32)
        values = np.empty(len(ids), np.float32)
        for block in np.unique(ids // BLOCK):
            here = np.flatnonzero(ids // BLOCK == block)
            rows = ids[here] % BLOCK
            noise = np.zeros(BLOCK)
            for row, place in zip(rows, here, strict=True):
                noise[row] = self._noise(int(ids[place]), int(numbers[place]))
            logits, valued = self._forward(observations[here], rows)
            # Everything is computed for the whole block, and its rows are picked last.
            chosen = choose(softmax(logits.numpy().astype(np.float64)), noise)
            likely = torch.log_softmax(logits, dim=1).numpy()
            actions[here] = chosen[rows]
            log_probs[here] = likely[rows, chosen[rows]]
            values[here] = valued.numpy()[rows]
        return actions, {"log_probs": log_probs, "values": values}

    def greedy(self, observations: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return the most probable actions. [m, d] -> [m]"""
        return self._in_blocks(observations, lambda logits, values: logits.argmax(dim=1)).astype(np.int64)

    def values(self, observations: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the values of observations. [m, d] -> [m]"""
        return self._in_blocks(observations, lambda logits, values: values).astype(np.float32)

    def _noise(self, id: int, number: int) -> float:
        return float(uniform(1, seed=self.seed, purpose=f"ppo/action/{id}", epoch=number)[0])

    def _in_blocks(
        self, observations: NDArray[np.float32], pick: "Callable[[Tensor, Tensor], Tensor]"
    ) -> NDArray[np.generic]:
        """Evaluate observations in blocks of `BLOCK` rows, the last one filled up with zeros. [m, d] -> [m]"""
        found: list[NDArray[np.generic]] = []
        for first in range(0, len(observations), BLOCK):
            part = observations[first : first + BLOCK]
            found.append(pick(*self._forward(part, np.arange(len(part)))).numpy()[: len(part)])
        return np.concatenate(found) if found else np.empty(0, np.float32)

    def _forward(self, observations: NDArray[np.float32], rows: NDArray[np.int64]) -> "tuple[Tensor, Tensor]":
        """Return logits and values of a whole block in which `rows` have these observations.

        The block is a new tensor of torch's, because where memory begins can reach the last bit as well.
        """
        block = torch.zeros((BLOCK, self.model.observation_size))
        block[torch.from_numpy(rows)] = torch.from_numpy(np.ascontiguousarray(observations, np.float32))
        with torch.no_grad():
            return self.model(block)

    def _check(self, shape: tuple[int, ...], ids: NDArray[np.int64], numbers: NDArray[np.int64]) -> None:
        wanted = (len(ids), self.model.observation_size)
        if shape != wanted or numbers.shape != ids.shape:
            raise DataError(
                f"{len(ids)} environments need observations of shape {wanted} and as many numbers of steps, got "
                f"{shape} and {numbers.shape}"
            )
        if len(np.unique(ids)) < len(ids) or (len(ids) and not 0 <= ids.min() <= ids.max() < self.num_envs):
            raise DataError(
                f"environments must be different numbers from 0 to {self.num_envs - 1}, got {ids.tolist()[:8]}"
            )


def _layers(sizes: Sequence[int], *, last_gain: float) -> "nn.Sequential":
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layer = nn.Linear(before, after)
        is_last = len(layers) == 2 * (len(sizes) - 2)
        nn.init.orthogonal_(layer.weight, gain=last_gain if is_last else math.sqrt(2))
        nn.init.zeros_(layer.bias)
        layers += [layer] if is_last else [layer, nn.Tanh()]
    return nn.Sequential(*layers)
