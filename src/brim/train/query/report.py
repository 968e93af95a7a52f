"""Reports of a query-mutator run: on every update, and the comparison of original and rewritten questions at its end.

All of them are JSON-like with `asdict`, and can be made again from JSON. Nothing here imports torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from brim.core.options import from_dict


@dataclass(frozen=True, kw_only=True)
class Example:
    """One step, for people to look at."""

    kind: str
    question: str
    before: str
    """The query before the step."""
    mutator: str
    query: str
    """The query after the step."""
    answer: str
    reward: float


@dataclass(frozen=True, kw_only=True)
class UpdateReport:
    """The outcome of one rollout and of the PPO update on it."""

    update: int
    """Number of the update, from 1 on."""
    updates: int
    env_steps: int
    """Steps of all environments so far."""
    steps: int
    """Steps of this rollout, invalid ones included."""
    invalid: dict[str, int]
    """Invalid steps of this rollout by the type of their failure."""
    fallbacks: int
    """Steps in which a fallback took the place of a failed call."""
    reward: float | None
    """Mean reward of the valid steps; None if there are none."""
    episodes: int
    """Episodes that ended in this rollout, invalid ones not counted."""
    solved: int
    """Episodes of these that reached the goal."""
    episode_return: float | None
    """Mean sum of rewards of these episodes."""
    calls: int
    """Calls to models in this rollout."""
    cached: int
    """Calls of these that the cache answered."""
    seconds: float
    """Wall-clock time of the rollout and of the update."""
    rollout_seconds: float
    policy_seconds: float
    """Time for choosing actions."""
    update_seconds: float
    """Time for learning."""
    server_seconds: float
    """Sum of the latencies of all calls: the time that they would take one after another."""
    queue_seconds: float
    """Sum of the times that calls waited for a free slot."""
    fill: float | None
    """Share of the servers' slots that was used during the rollout."""
    metrics: dict[str, float]
    """Figures of the PPO update: policy_loss, value_loss, entropy, kl, clip_fraction, explained_variance, passes,
    learning_rate, grad_norm."""
    chosen: dict[str, dict[str, tuple[int, float]]]
    """Kind of question -> mutator -> (number of valid steps, sum of their rewards)."""
    examples: tuple[Example, ...] = ()

    @property
    def speedup(self) -> float | None:
        """How many times as long the rollout's calls would have taken one after another; None if there were none."""
        return overall_speedup([self])

    @property
    def invalid_share(self) -> float:
        return sum(self.invalid.values()) / self.steps if self.steps else 0.0

    def to_log(self) -> dict[str, float]:
        """Return the figures that the curves hold, beside those of PPO."""
        known = {
            "reward": self.reward,
            "episode_return": self.episode_return,
            "solved": self.solved / self.episodes if self.episodes else None,
            "invalid_share": self.invalid_share,
            "env_steps": self.env_steps,
            "steps_per_second": self.steps / max(self.seconds, 1e-9),
            "speedup": self.speedup,
            "fill": self.fill,
        }
        return {name: float(value) for name, value in known.items() if value is not None}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Make a report from JSON-like values, as `dataclasses.asdict` returns them."""
        chosen = {
            kind: {mutator: (int(count), float(total)) for mutator, (count, total) in each.items()}
            for kind, each in values.get("chosen", {}).items()
        }
        return from_dict(cls, {**values, "chosen": chosen}, what="an update")


def overall_speedup(updates: Sequence[UpdateReport]) -> float | None:
    """Return how many times as long the calls of all rollouts would have taken one after another."""
    alone = sum(one.server_seconds + one.policy_seconds for one in updates)
    together = sum(one.rollout_seconds for one in updates)
    return alone / together if together and any(one.server_seconds for one in updates) else None


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A question as it stands in the data, and as the trained policy rewrites it."""

    id: str
    kind: str
    question: str
    reference: str | None
    answer: str
    """The answer to the original question."""
    reward: float | None
    """Its reward; None if a call failed."""
    query: str
    """The question as it was rewritten."""
    mutators: tuple[str, ...]
    """The mutators that were applied, in order."""
    new_answer: str
    new_reward: float | None


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Questions before and after rewriting by the trained policy, which takes the most probable action."""

    pairs: tuple[Pair, ...]
    held_out: bool = False
    """Whether the policy was trained on other questions than these."""
    seconds: float = 0.0
    invalid: dict[str, int] = field(default_factory=dict[str, int])
    """Failed attempts by type. Their pairs lack a reward, and count in neither mean."""

    @property
    def rated(self) -> tuple[Pair, ...]:
        """The pairs in which both attempts have a reward."""
        return tuple(pair for pair in self.pairs if pair.reward is not None and pair.new_reward is not None)

    @property
    def before(self) -> float | None:
        """Mean reward of the original questions."""
        return _mean([pair.reward for pair in self.rated])

    @property
    def after(self) -> float | None:
        """Mean reward of the rewritten questions."""
        return _mean([pair.new_reward for pair in self.rated])

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Make an evaluation from JSON-like values, as `dataclasses.asdict` returns them."""
        return from_dict(cls, values, what="an evaluation")


def _mean(values: "list[float | None]") -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
