"""Reports of an ARC run: on every update, and the evaluation on held-out tasks.

All of them are JSON-like with `dataclasses.asdict`, and can be made again from JSON. Nothing here imports JAX.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from brim.core.options import from_dict

SAMPLED, GREEDY, RANDOM = "sampled", "greedy", "random"
"""The policies that are compared: the agent's as it was trained, which samples its actions; the agent's most probable
actions; and actions that are drawn uniformly from the same operations and rectangles."""
POLICIES = (SAMPLED, GREEDY, RANDOM)


@dataclass(frozen=True, kw_only=True)
class UpdateReport:
    """The outcome of one update."""

    step: int
    """Number of the update, from 1 on."""
    steps: int
    """Updates of the whole run."""
    env_steps: int
    """Steps of all environments so far."""
    learning_rate: float
    metrics: dict[str, float]
    """Figures of the update by name, as `Learner.update` returns them: loss, entropy, reward, solved ..."""
    held_out: float | None = None
    """Share of the held-out tasks that the agent solves after this update; None if it was not evaluated."""
    seconds: float
    """Wall-clock time of the update, without evaluation."""

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Make a report from JSON-like values, as `dataclasses.asdict` returns them."""
        return from_dict(cls, values, what="an update")


@dataclass(frozen=True, kw_only=True)
class Score:
    """Outcomes of a policy on some tasks, of which each is played once."""

    tasks: int
    solved: int
    steps: int
    """Steps of all of these episodes."""
    invalid: int
    """Steps of these whose action was invalid."""

    @property
    def solved_share(self) -> float:
        return self.solved / self.tasks if self.tasks else 0.0

    @property
    def invalid_share(self) -> float:
        return self.invalid / self.steps if self.steps else 0.0

    def __add__(self, other: "Score") -> "Score":
        return Score(
            tasks=self.tasks + other.tasks,
            solved=self.solved + other.solved,
            steps=self.steps + other.steps,
            invalid=self.invalid + other.invalid,
        )


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Outcomes on held-out tasks: of each policy, by kind of task."""

    scores: dict[str, dict[str, Score]]
    """Policy, one of `POLICIES` -> kind of task -> score. Every policy plays the same tasks."""
    seconds: float = 0.0

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(self.scores[SAMPLED])

    def total(self, policy: str) -> Score:
        """Return the score of a policy on tasks of all kinds."""
        return sum(self.scores[policy].values(), Score(tasks=0, solved=0, steps=0, invalid=0))

    def rows(self) -> Sequence[tuple[str, Mapping[str, Score]]]:
        """Return the lines of the table: the score of each policy on each kind, and on all kinds."""
        by_kind = [(kind, {policy: self.scores[policy][kind] for policy in self.scores}) for kind in self.kinds]
        return [*by_kind, ("all", {policy: self.total(policy) for policy in self.scores})]

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Make an evaluation from JSON-like values, as `dataclasses.asdict` returns them."""
        scores = {
            policy: {kind: from_dict(Score, score) for kind, score in by_kind.items()}
            for policy, by_kind in values["scores"].items()
        }
        return cls(scores=scores, seconds=values["seconds"])
