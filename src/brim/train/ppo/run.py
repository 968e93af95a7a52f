"""`PpoRun`, the base of trainers that learn with PPO: rollouts, updates, and checkpoints between them.

An update is one rollout and all optimizer steps on it. Whether a step is the last one of its update is known only when
it has been taken, because the KL divergence of its minibatch may end the update. So the decision is made in
`after_step`, which `Run` calls before it logs the step and before it looks for a reason to save:

    step -> after_step: last one? -> yes: count the update, call `updated` -> log -> callbacks -> checkpoint
                                  -> no: `can_pause` is False, so no checkpoint, and no end of the run

Everything is on one rank, on the CPU, and with one thread of torch. All randomness is keyed by the seed, the update, or
the environment and its step, so that weights, moments and counts are all that a checkpoint has to hold of PPO.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from brim.core.errors import BrimError, DataError, MismatchError
from brim.core.extras import need
from brim.plan.distributed import DistributedConfig
from brim.train import checkpoint as files
from brim.train.callbacks import Callback
from brim.train.optimizer import OPTIMIZER, moments, restore_moments
from brim.train.ppo.config import PpoRunConfig
from brim.train.ppo.experience import Experience
from brim.train.ppo.objective import PpoBatch, PpoLoss
from brim.train.ppo.policy import ActorCritic, RolloutPolicy
from brim.train.ppo.update import Samples, minibatches, parts_of_pass, samples_of
from brim.train.ranks import Ranks
from brim.train.report import Ends, StepReport
from brim.train.run import Run
from brim.train.threads import torch_threads

if TYPE_CHECKING:
    import torch
else:
    torch = need("torch", extra="train", user="brim.train")

Config = TypeVar("Config", bound=PpoRunConfig)

MODEL = "model.safetensors"
"""The file of a checkpoint that holds the weights of the policy."""
KL_MARGIN = 1.5
"""The KL divergence that ends an update, as a multiple of `target_kl`."""


class PpoRun(Run[Config]):
    """One run that learns with PPO.

    A subclass calls `make_policy(...)` in its constructor, and `restore(...)` after it if the run is resumed, inside
    `with self.claimed(...)`. It implements `collect`, and may override `updated` (reports) and `further_state`,
    `write_more` and `restore_more` (what its environments need to resume).

    Example: a contextual bandit, in `tests/train/test_ppo_run.py`.
    """

    format: ClassVar[str] = "brim.ppo/1"
    model: ActorCritic
    policy: RolloutPolicy

    def __init__(self, config: Config, callbacks: Sequence[Callback] = ()) -> None:
        super().__init__(config, Ranks(DistributedConfig(), torch.device("cpu")), callbacks)
        self.update = 0
        """Updates that are finished, those before a resume included."""
        self.updates = 0
        """Updates of the whole run."""
        self._learning: _Learning | None = None
        """The update whose steps are being taken."""
        self._figures: dict[str, float] = {}
        """The metrics of the last update."""
        self._boundary: dict[str, Any] | None = None
        """The further state before the rollout that is being collected or learned from."""

    @abstractmethod
    def collect(self, policy: RolloutPolicy) -> Experience | None:
        """Return one rollout: `ppo.num_steps` steps of every environment, with actions of `policy.act`.

        It looks at `self.stop_requested` now and then, and returns None if that is set. Nothing of such a rollout is
        kept. A `BrimError` ends the run with a checkpoint of the updates so far.
        """

    def updated(self, metrics: dict[str, float]) -> None:
        """Called after the last optimizer step of update number `self.update`, before its checkpoint.

        `metrics` has the means over the optimizer steps of policy_loss, value_loss, entropy, kl, clip_fraction and
        grad_norm; explained_variance (absent if the returns do not vary); passes over the samples, with fractions;
        learning_rate. A rollout without any valid step has passes and learning_rate only.
        """

    def further_state(self) -> dict[str, Any]:
        """Return what the environments need to continue after the last update, as JSON-like values that later steps
        do not change. It is called before every rollout, and for checkpoints.
        """
        return {}

    def write_more(self, directory: Path) -> None:
        """Write further files into a checkpoint. They must hold nothing of a rollout that is not finished."""

    def restore_more(self, state: dict[str, Any], directory: Path) -> None:
        """Restore what `further_state` returned and `write_more` wrote."""

    def make_policy(self, *, observation_size: int, num_actions: int, num_envs: int, updates: int) -> None:
        """Make the policy with its first weights, its optimizer, and the learning rates of a run of so many updates.

        Raises:
            OptionError: There are more mini-batches than samples in a rollout.
        """
        config = self.config
        config.ppo.check_minibatches(num_envs)
        self.model = ActorCritic(observation_size, num_actions, config.ppo.hidden, seed=config.seed)
        self.policy = RolloutPolicy(self.model, num_envs, config.seed)
        self.attach(PpoLoss(self.model, config.ppo))
        self.schedule(updates)
        self.updates = updates
        # Fewer if the KL divergence ends updates early.
        self.steps = updates * config.ppo.ppo_epoch * config.ppo.num_mini_batch

    def restore(self, checkpoint: Path) -> None:
        """Continue from a checkpoint (`brim.train.checkpoint.find_checkpoint`).

        Raises:
            DamagedError: It is not as it was written.
            MismatchError: It has a policy for other observations, actions or environments.
        """
        state = files.read_checkpoint(checkpoint, format=self.format)
        if state["policy"] != self._shape():
            differing = [
                f"{name} ({state['policy'].get(name)} -> {now})"
                for name, now in self._shape().items()
                if state["policy"].get(name) != now
            ]
            raise MismatchError(
                f"{checkpoint} has a policy for other environments than those of now: {', '.join(differing)}; resume "
                "with the environments and models that the run began with, or start a new run"
            )
        safetensors = need("safetensors.torch", extra="train", user="brim.train.ppo")
        self.model.load_state_dict(safetensors.load_file(checkpoint / MODEL))
        saved = safetensors.load_file(checkpoint / OPTIMIZER)
        restore_moments(self.stepper.optimizer, self.stepper.weights, saved)
        self.update = state["update"]
        self.resumed_at(state["step"], state["tokens"])
        self.restore_more(state["state"], checkpoint)

    def take_steps(self, say: Callable[[str], None]) -> Ends:
        """Take the updates that are left, or those before the run is asked to stop.

        The last one is in a checkpoint. Checkpoints that are newer than the one the run resumes from are renamed.
        """
        for path in files.set_aside_later(self.output, self.step):
            say(f"renamed a newer checkpoint to {path} (resuming from an earlier step)")
        with torch_threads(1):
            return super().take_steps(say)

    def batches(self) -> Iterator[list[PpoBatch]]:
        """Collect one rollout after the other, and yield its minibatches until `after_step` ends the update."""
        while not self._ends_now():
            experience = self._collected()
            if experience is None:
                return
            learning = self._begin(experience)
            if not len(learning.samples):
                self._finish(learning)
                if self.is_save_due:
                    self.save()
                continue
            for batch in minibatches(learning.samples, self.config.ppo, seed=self.config.seed, update=self.update):
                yield [batch]
                if self.can_pause:  # `after_step` has found that this was the last one
                    break

    def after_step(self, report: StepReport) -> None:
        learning = self._learning
        assert learning is not None
        learning.add(report)
        target = self.config.ppo.target_kl
        too_far = target is not None and report.metrics["kl"] > KL_MARGIN * target
        if too_far or learning.taken == learning.planned:
            self._finish(learning)

    @property
    def can_pause(self) -> bool:
        """Whether no update is half-way."""
        return self._learning is None

    def is_due(self, every: int) -> bool:
        """Whether an update has just been finished that is one of every so many."""
        return self.can_pause and self.update % every == 0

    @property
    def is_over(self) -> bool:
        """Whether no other update may begin."""
        most = self.config.max_steps
        return self.is_stopping or self.update >= self.updates or (most is not None and self.step >= most)

    @property
    def progress(self) -> object:
        return self.step, self.update

    @property
    def current_rate(self) -> float:
        """The learning rate of the present update; it is the same for all of its steps."""
        return self.rate(self.update)

    def logged(self, report: StepReport) -> Mapping[str, float]:
        """Return the figures of the step; after the last one of an update, its means and its further figures."""
        values = {
            "update": self.update,
            "samples": self.tokens,
            "loss": report.loss,
            "learning_rate": report.learning_rate,
            "grad_norm": report.grad_norm,
            **report.metrics,
        }
        return values | self._figures if self.can_pause else values

    def facts(self) -> dict[str, Any]:
        return {
            "config": self.config.to_dict(),
            "step": self.step,
            "tokens": self.tokens,
            "update": self.update,
            "updates": self.updates,
            "policy": self._shape(),
            # A rollout that failed or was stopped half-way has moved the environments: they go back to where it began.
            "state": self.further_state() if self._boundary is None else self._boundary,
        }

    def checkpoint_files(self) -> Callable[[Path], None]:
        weights = {name: weight.detach().contiguous() for name, weight in self.model.state_dict().items()}
        optimizer = moments(self.stepper.optimizer, self.stepper.weights)
        safetensors = need("safetensors.torch", extra="train", user="brim.train.ppo")

        def write(directory: Path) -> None:
            safetensors.save_file(weights, directory / MODEL)
            safetensors.save_file(optimizer, directory / OPTIMIZER)
            self.write_more(directory)

        return write

    def _shape(self) -> dict[str, Any]:
        """The sizes that the weights and the random numbers of a run depend on."""
        return {
            "observation_size": self.model.observation_size,
            "num_actions": self.model.num_actions,
            "num_envs": self.policy.num_envs,
            "hidden": list(self.config.ppo.hidden),
        }

    def _ends_now(self) -> bool:
        """Whether no other rollout is collected: all updates are done, or a stop was asked for between two steps."""
        self.agree_to_stop()
        return self.is_over

    def _collected(self) -> Experience | None:
        self._boundary = self.further_state()
        try:
            experience = self.collect(self.policy)
        except BrimError:  # keep the updates so far
            if self.update:
                self.save_if_new()
            raise
        if experience is None:
            self.stop()
            self.agree_to_stop()
            return None
        wanted = (self.policy.num_envs, self.model.observation_size)
        if experience.observations.shape[1:] != wanted:
            raise DataError(
                f"a rollout must have observations of shape (steps, {wanted[0]}, {wanted[1]}), got "
                f"{experience.observations.shape}"
            )
        return experience

    def _begin(self, experience: Experience) -> "_Learning":
        shape = experience.valid.shape
        after = experience.next_observations.reshape(-1, self.model.observation_size)
        samples = samples_of(experience, self.policy.values(after).reshape(shape), self.config.ppo)
        per_pass = parts_of_pass(len(samples), self.config.ppo)
        self._learning = _Learning(samples, per_pass, planned=per_pass * self.config.ppo.ppo_epoch)
        return self._learning

    def _finish(self, learning: "_Learning") -> None:
        self._figures = learning.metrics() | {"learning_rate": self.current_rate}
        self._learning = None
        self._boundary = None
        self.update += 1
        self.updated(dict(self._figures))


class _Learning:
    """An update whose steps are being taken, and the sums of its figures."""

    def __init__(self, samples: Samples, per_pass: int, *, planned: int) -> None:
        self.samples = samples
        self.planned = planned
        """Steps of the whole update, unless it is ended early."""
        self.taken = 0
        self._per_pass = per_pass
        self._sums: dict[str, float] = {}

    def add(self, report: StepReport) -> None:
        self.taken += 1
        for name, value in {**report.metrics, "grad_norm": report.grad_norm}.items():
            self._sums[name] = self._sums.get(name, 0.0) + value

    def metrics(self) -> dict[str, float]:
        means = {name: total / self.taken for name, total in self._sums.items()}
        explained = self.samples.explained_variance
        known = {} if explained is None else {"explained_variance": explained}
        return {**means, **known, "passes": self.taken / max(self._per_pass, 1)}
