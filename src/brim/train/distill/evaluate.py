"""Evaluation of a distilled model: it plays goals that no history was about, while its weights stay the same.

Each lane has a goal and plays one episode after the other. All that changes is what the model has seen: steps go into
its context, and when the window is full the whole stretch becomes the next stage and is compressed into the latents, as
in training. Where training ends at a few stages, this goes on: the latents carry everything older, and nothing is read
twice. Actions are sampled, by keyed bits.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from brim.core.extras import need
from brim.envs.darkroom.histories import HistoryConfig, learning_curve, split_goals
from brim.envs.darkroom.q_learning import uniform
from brim.envs.darkroom.room import Darkroom, DarkroomState, Step, play
from brim.envs.policy_gradient import choose
from brim.train.distill.config import DistillConfig
from brim.train.distill.model import CompressedAD, Decoding
from brim.train.distill.samples import START

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = need("torch", extra="train", user="brim.train")

CERTAIN = 2.0
"""Number of standard errors that an improvement must exceed."""
COLDEST = 1e-6
"""A temperature at which only the likeliest action has a chance."""


@dataclass(frozen=True, eq=False)
class InContext:
    """The returns of a model on held-out goals."""

    seed: int
    returns: NDArray[np.float32]
    """[goals, lanes, episodes]"""

    @property
    def curve(self) -> NDArray[np.float64]:
        """The mean return of each episode."""
        return self.returns.mean(axis=(0, 1), dtype=np.float64)

    @property
    def gains(self) -> NDArray[np.float64]:
        """The mean return of the last third of the episodes minus that of the first third, for each goal."""
        third = self.returns.shape[2] // 3
        by_goal = self.returns.mean(axis=1, dtype=np.float64)
        return by_goal[:, -third:].mean(axis=1) - by_goal[:, :third].mean(axis=1)

    @property
    def improvement(self) -> float:
        return float(self.gains.mean())

    @property
    def standard_error(self) -> float | None:
        """Standard error of the improvement, over goals; None for a single goal."""
        return float(self.gains.std(ddof=1) / np.sqrt(len(self.gains))) if len(self.gains) > 1 else None

    @property
    def improves(self) -> bool:
        """Whether the improvement is significant: above twice its standard error, or for a single goal above 0."""
        return self.improvement > CERTAIN * (self.standard_error or 0.0)

    def to_dict(self) -> dict[str, Any]:
        """Return the evaluation as JSON-like values."""
        third = self.returns.shape[2] // 3
        return {
            "seed": self.seed,
            "first_episode": float(self.curve[0]),
            "last_episode": float(self.curve[-1]),
            "first_third": float(self.curve[:third].mean()),
            "last_third": float(self.curve[-third:].mean()),
            "improvement": self.improvement,
            "standard_error": self.standard_error,
            "improves": self.improves,
            "curve": self.curve.tolist(),
        }


@dataclass(frozen=True)
class References:
    """Mean returns that others reach on the same goals in an episode."""

    random: float
    best: float
    source: tuple[float, ...]
    """The algorithm that was distilled, in each of its episodes."""


def evaluate(model: CompressedAD, config: DistillConfig, *, seed: int) -> InContext:
    """Play the held-out goals, with several lanes for each."""
    goals = split_goals(config.histories)[1]
    lanes = np.repeat(goals, config.evaluation.lanes, axis=0)
    options = config.evaluation
    returns = play_in_context(
        model, config.histories.room, lanes, episodes=options.episodes, seed=seed, temperature=options.temperature
    )
    return InContext(seed, returns.reshape(len(goals), config.evaluation.lanes, -1))


def references(config: HistoryConfig, *, lanes: int) -> References:
    """Compute the references on the held-out goals, with `lanes` lanes for each."""
    goals = split_goals(config)[1]
    room = config.room
    source = learning_curve(config, np.repeat(goals, lanes, axis=0)).mean(axis=0, dtype=np.float64)
    return References(
        float(room.random_return(goals).mean()), float(room.best_return(goals).mean()), tuple(source.tolist())
    )


def play_in_context(
    model: CompressedAD,
    room: Darkroom,
    goals: NDArray[np.integer],
    *,
    episodes: int,
    seed: int,
    temperature: float = 1.0,
) -> NDArray[np.float32]:
    """Play one lane for each goal, and return the return of every episode. [lanes, episodes]"""
    was_training = model.training
    model.eval()
    memory = _Memory(model, temperature)
    try:
        with torch.no_grad():
            return np.stack([_episode(memory, room, goals, number, seed) for number in range(episodes)], axis=1)
    finally:
        model.train(was_training)


def _episode(
    memory: "_Memory", room: Darkroom, goals: NDArray[np.integer], number: int, seed: int
) -> NDArray[np.float32]:
    noise = uniform((len(goals), room.horizon), seed=seed, purpose="act in context", epoch=number)
    led: tuple[NDArray[np.integer], NDArray[np.float32]] = np.full(len(goals), START), np.zeros(len(goals), np.float32)

    def act(state: DarkroomState) -> NDArray[np.integer]:
        return choose(memory.see(state.position, *led).numpy(), noise[:, state.elapsed])

    def remember(_: DarkroomState, actions: NDArray[np.integer], step: Step) -> None:
        nonlocal led
        led = actions, step.reward

    return play(room, goals, act, remember).rewards.sum(axis=1)


class _Memory:
    """The model's memory of lanes that play in lockstep: the latents of full windows, and the window that is being
    filled.
    """

    def __init__(self, model: CompressedAD, temperature: float) -> None:
        self._model, self._temperature = model, max(temperature, COLDEST)
        self._latents: Tensor | None = None
        self._decoding = Decoding(model, None)
        self._steps: list[dict[str, Tensor]] = []

    def see(self, states: NDArray[np.integer], actions: NDArray[np.integer], rewards: NDArray[np.float32]) -> "Tensor":
        """Read one step, and return the probability of each action. [lanes, actions]"""
        if len(self._steps) == self._model.window:
            self._compress()
        columns = {"states": states.astype(np.int64), "actions": actions.astype(np.int64), "rewards": rewards}
        self._steps.append({name: torch.from_numpy(column)[:, None] for name, column in columns.items()})
        logits = self._decoding.read(self._steps[-1])[:, 0]
        return torch.softmax(logits.double() / self._temperature, dim=-1)

    def _compress(self) -> None:
        stage = {
            name: torch.cat([step[name] for step in self._steps], dim=1) for name in ("states", "actions", "rewards")
        }
        stage["mask"] = torch.ones(stage["actions"].shape, dtype=torch.bool)
        self._latents = self._model.compress([stage], self._latents)
        self._decoding, self._steps = Decoding(self._model, self._latents), []
