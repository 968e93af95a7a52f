"""The run of one seed of a distillation: its batches, its loss, its checkpoints, and the evaluation at its end."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np

from brim.batch.bucket_sampler import BucketSampler
from brim.batch.compressed import collate_compressed_batch
from brim.core.atomic import atomic_file
from brim.core.errors import BrimError, DamagedError
from brim.core.extras import need
from brim.core.fill import Fill
from brim.core.fingerprint import fingerprint
from brim.core.progress import Say, silent
from brim.core.rng import new_seed
from brim.envs.darkroom.histories import Histories, split_goals
from brim.plan.distributed import DistributedConfig
from brim.train.callbacks import Callback
from brim.train.checkpoint import checkpoints
from brim.train.config import RunConfig
from brim.train.distill.checkpoint import FORMAT as CHECKPOINT_FORMAT
from brim.train.distill.checkpoint import SavedSeed, load_seed, save_tensors
from brim.train.distill.config import DistillConfig
from brim.train.distill.evaluate import InContext, evaluate
from brim.train.distill.model import CompressedAD
from brim.train.distill.samples import HistoryDataset
from brim.train.distill.yaml_files import config_from
from brim.train.objective import Objective
from brim.train.optimizer import moments, restore_moments
from brim.train.ranks import Ranks
from brim.train.report import StepReport
from brim.train.run import Run
from brim.train.step import NotFiniteError

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = need("torch", extra="train", user="brim.train")

FORMAT = "brim.distill/1"
IN_CONTEXT = "in_context.json"
KEPT = 2
"""Number of checkpoints of a seed that are kept."""


@dataclass(frozen=True)
class HistoryBatch:
    """A batch of samples of one structure, as a step looks at it."""

    columns: dict[str, Any]
    """The tensors of the batch, as `collate_compressed_batch` returns them."""
    epoch: int
    index: int
    num_loss_tokens: float = 1.0
    is_null: bool = False

    @property
    def ids(self) -> Sequence[str]:
        return self.columns["id"]

    @cached_property
    def fill(self) -> Fill:
        masks = [stretch["mask"] for stretch in (*self.columns["compression_stages"], self.columns["context"])]
        return Fill(sum(int(mask.sum()) for mask in masks), sum(mask.numel() for mask in masks))

    @property
    def num_tokens(self) -> int:
        return self.fill.used

    @property
    def slots(self) -> int:
        return self.fill.slots

    def to(self, device: Any, *, non_blocking: bool = False) -> Self:
        """Return the batch as it is: these small models train on the CPU."""
        return self


class DistillLoss(Objective):
    """Predict the action of the source algorithm at every step of the context.

    The loss of a batch is a mean over samples already, and a step has one batch, so the batch counts as 1.
    """

    def forward(self, batch: HistoryBatch) -> "Tensor":
        return self.model.loss(batch.columns)


class SeedRun(Run[RunConfig]):
    """The run of one seed: trains its model, and evaluates it."""

    format = CHECKPOINT_FORMAT

    def __init__(
        self, config: DistillConfig, histories: Histories, folder: Path, seed: int, callbacks: Sequence[Callback] = ()
    ) -> None:
        super().__init__(_run_config(config, folder, seed), Ranks(DistributedConfig(), torch.device("cpu")), callbacks)
        self.distill = config
        self.seed = seed
        self.data = HistoryDataset(histories, config.data, seed=seed)
        self.sampler = BucketSampler(
            self.data, token_budget=config.training.token_budget, seed=seed, rank=0, world_size=1
        )
        self.model = new_model(config, seed)
        self.loss: float | None = None
        self.fill = Fill()
        self.in_context: InContext | None = None
        self.attach(DistillLoss(self.model))
        self.schedule(config.training.steps)
        folder.mkdir(exist_ok=True)
        self._position: dict[str, Any] = {}
        """The state of the sampler behind the last batch."""
        if found := checkpoints(folder):
            self._restore(load_seed(found[-1]))

    def finish(self, say: Say = silent) -> None:
        """Take the steps that are left, and evaluate unless the run is asked to stop."""
        ends = self.take_steps(say)
        self.loss = ends.last
        self.fill = ends.fill
        if not self.is_stopping:
            self.in_context = self._evaluate(say)

    def batches(self) -> Iterator[list[HistoryBatch]]:
        while self.step < self.steps:
            planned = iter(self.sampler)
            while (rows := next(planned, None)) is not None:
                # At the last batch of an epoch the sampler is at the next one already.
                spec = rows.microbatch
                columns = collate_compressed_batch(self.data.__getitems__(rows))
                self._position = planned.state_dict()
                yield [HistoryBatch(columns, spec.epoch, spec.index)]

    def logged(self, report: StepReport) -> Mapping[str, float]:
        """Leave out what differs from run to run: logs of equal runs are equal."""
        return {
            "epoch": report.epoch,
            "loss": report.loss,
            "learning_rate": report.learning_rate,
            "grad_norm": report.grad_norm,
            "fill": report.fill.ratio,
        }

    def not_finite(self, error: NotFiniteError) -> NoReturn:
        raise BrimError(
            f"the {error.what} is not finite in step {self.step + 1} of seed {self.seed}; "
            f"{self.named(error.batches)}; lower training.learning_rate, which is {self.config.base_learning_rate}"
        ) from None

    def facts(self) -> dict[str, Any]:
        return {"seed": self.seed, "step": self.step, "position": self._position, "config": self.distill.to_dict()}

    def checkpoint_files(self) -> Callable[[Path], None]:
        weights = {name: weight.detach() for name, weight in self.stepper.weights.items()}
        return lambda directory: save_tensors(directory, weights, moments(self.stepper.optimizer, self.stepper.weights))

    def _restore(self, saved: SavedSeed) -> None:
        self.model.load_state_dict(saved.weights)
        restore_moments(self.stepper.optimizer, self.stepper.weights, saved.moments)
        self.sampler.load_state_dict(saved.position)
        self._position = saved.position
        self.resumed_at(saved.step)

    def _evaluate(self, say: Say) -> InContext:
        """Play the held-out goals, or read how they were played before."""
        path, config = self.output / IN_CONTEXT, self.distill
        key = fingerprint(config={**config.to_dict(), "training": {"steps": self.step}}, weights=_digest(self.model))
        try:
            if (known := _played(path, key, self.seed, config)) is not None:
                return known
        except DamagedError as error:
            say(f"{error}; evaluating seed {self.seed} again")
        result = evaluate(self.model, config, seed=self.seed)
        write_json(path, {"format": FORMAT, "key": key, **result.to_dict(), "returns": result.returns.tolist()})
        return result


def _run_config(config: DistillConfig, folder: Path, seed: int) -> RunConfig:
    """The options of one seed's run."""
    training = config.training
    return RunConfig(
        output=str(folder),
        learning_rate=training.learning_rate,
        schedule=training.schedule,
        warmup_steps=round(training.warmup * training.steps),
        weight_decay=training.weight_decay,
        clip_norm=training.clip_norm,
        seed=seed,
        save_every=training.save_every,
        keep=KEPT,
        log_every=training.log_every,
        tensorboard=False,
    )


def new_model(config: DistillConfig, seed: int) -> CompressedAD:
    """Make a model with the initial weights of a seed. The state of torch's own generator is unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(new_seed(seed=seed, purpose="first weights"))
        return CompressedAD(config.model, size=config.histories.room.size, window=config.data.window)


def load_distilled(checkpoint: str | Path) -> tuple[CompressedAD, DistillConfig]:
    """Load the model in a checkpoint, and the options of its run.

    Raises:
        DataError: There is no checkpoint.
        DamagedError: It is not as it was written.
    """
    saved = load_seed(Path(checkpoint))
    config = config_from(saved.config)
    model = new_model(config, saved.seed)
    model.load_state_dict(saved.weights)
    return model, config


def _digest(model: CompressedAD) -> str:
    return fingerprint(**{name: weight.detach().numpy().view(np.int32) for name, weight in model.state_dict().items()})


def _played(path: Path, key: str, seed: int, config: DistillConfig) -> InContext | None:
    """Read the evaluation in a file; None if there is none, or if it is of other weights or options.

    Raises:
        DamagedError: It cannot be read.
    """
    if not path.exists():
        return None
    shape = (len(split_goals(config.histories)[1]), config.evaluation.lanes, config.evaluation.episodes)
    try:
        known = json.loads(path.read_bytes())
        if known["key"] != key:
            return None
        returns = np.asarray(known["returns"], np.float32)
        if returns.shape == shape and np.isfinite(returns).all():
            return InContext(seed, returns)
    except (ValueError, KeyError, TypeError):
        pass
    raise DamagedError(f"{path} is truncated or damaged")


def write_json(path: Path, value: Any) -> None:
    with atomic_file(path) as file:
        file.write(json.dumps(value, indent=2).encode() + b"\n")
