"""Compressed algorithm distillation: from learning histories to a model that learns in context.

Histories are recorded once for a run and used by all of its seeds. Each seed has its own cuts of them, its own order and first weights, and
ends with an evaluation on held-out goals. Batches are planned: one structure each, within a budget of steps. A run that was killed goes on
from its last checkpoints and ends with the weights it would have had, bit for bit on one machine.

    run.json            the options
    histories.h5        what the source algorithm lived through
    seed-0/             checkpoints, log.jsonl, in_context.json
    results.json        the evaluation of all seeds beside what others get
"""

import json
import math
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from brim.batch.bucket_sampler import BucketSampler
from brim.batch.compressed import collate_compressed_batch
from brim.core.atomic import atomic_file
from brim.core.errors import BrimError, DamagedError, DataError, OptionError
from brim.core.extras import need
from brim.core.fill import Fill
from brim.core.fingerprint import fingerprint
from brim.core.progress import silent
from brim.core.rng import raw_bits
from brim.envs.darkroom.histories import Histories, is_histories, split_goals, write_histories
from brim.train.checkpoint import checkpoint_path, checkpoints, forget_old
from brim.train.distill.checkpoint import SavedSeed, check_seed, load_seed, save_seed
from brim.train.distill.config import DistillConfig
from brim.train.distill.evaluate import InContext, References, evaluate, references
from brim.train.distill.model import CompressedAD
from brim.train.distill.samples import HistoryDataset
from brim.train.distill.yaml_files import config_from
from brim.train.log import LOG, RUN, hold_output
from brim.train.optimizer import make_optimizer, moments, named_weights, restore_moments
from brim.train.report import StepReport
from brim.train.schedule import learning_rate

if TYPE_CHECKING:
    import torch
else:
    torch = need("torch", extra="train", user="brim.train")

FAMILY = "brim.distill/"
FORMAT = f"{FAMILY}1"
HISTORIES, IN_CONTEXT, RESULTS = "histories.h5", "in_context.json", "results.json"
KEPT = 2
"""Checkpoints of a seed."""
START_ANEW = "start a new run in another --output"
NAMED = 8
"""How many samples an error names."""

Watch = Callable[[StepReport], None]
Say = Callable[[str], None]


@dataclass(frozen=True)
class DistillResult:
    """How a run ended."""

    config: DistillConfig
    seeds: tuple[InContext, ...]
    references: References
    weights: int
    """Of each model."""
    losses: tuple[float | None, ...]
    """Of the last step of each seed; None where it had been trained before."""
    fill: Fill
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """As JSON-like values."""
        return {
            "format": FORMAT,
            "weights": self.weights,
            "references": asdict(self.references),
            "seeds": [seed.to_dict() for seed in self.seeds],
            "config": self.config.to_dict(),
        }


def train_distill(
    config: DistillConfig,
    *,
    output: str | Path,
    resume: bool = False,
    on_step: Watch | None = None,
    on_message: Say | None = None,
) -> DistillResult:
    """Record histories, train a model for each seed, and evaluate it on held-out goals.

    With `resume` the run in `output` goes on; seeds that are done are not trained again.

    Raises:
        OptionError: The output holds a run, and `resume` is not given; or somebody's files, which would be lost.
        MismatchError: The run in the output began with other options.
        DamagedError: A file of the run is damaged, and cannot be made again.
        BrimError: The loss is not finite, or a checkpoint cannot be written.
    """
    output, say, began = Path(output), on_message or silent, time.monotonic()
    with closing(hold_output(output)):
        _begin(output, config, resume=resume)
        with closing(_histories(output / HISTORIES, config, say)) as histories:
            runs: list[SeedRun] = []
            for seed in config.training.seeds:
                say(f"seed {seed}")
                with _threads(config.training.threads):
                    runs.append(SeedRun(config, histories, output / f"seed-{seed}", seed))
                    runs[-1].finish(on_step, say)
        result = DistillResult(
            config,
            seeds=tuple(run.evaluated for run in runs),
            references=references(config.histories, lanes=config.evaluation.lanes),
            weights=sum(weight.numel() for weight in runs[0].model.parameters()),
            losses=tuple(run.loss for run in runs),
            fill=sum((run.fill for run in runs), Fill()),
            seconds=time.monotonic() - began,
        )
        _write_json(output / RESULTS, result.to_dict())
    return result


def config_of(output: str | Path) -> DistillConfig:
    """The options of the run in a directory.

    Raises:
        DataError: There is none.
        DamagedError: They cannot be read.
    """
    path = Path(output) / RUN
    try:
        run = json.loads(path.read_bytes())
        kind, values = run["format"], run["config"]
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{output} holds no run, so there is nothing to resume; start it without --resume") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise DamagedError(f"{path} is truncated or damaged; {START_ANEW}") from None
    if kind != FORMAT:
        raise OptionError(f"{output} holds a run of another kind ({kind}); choose another --output")
    try:
        return config_from(values)
    except (OptionError, AttributeError, TypeError) as error:
        raise DamagedError(f"{path} is damaged ({error}); {START_ANEW}") from None


class SeedRun:
    """The model of one seed, on its way to the last step."""

    def __init__(self, config: DistillConfig, histories: Histories, folder: Path, seed: int) -> None:
        self.config, self.folder, self.seed = config, folder, seed
        training = config.training
        self.data = HistoryDataset(histories, config.data, seed=seed)
        self.sampler = BucketSampler(self.data, token_budget=training.token_budget, seed=seed, rank=0, world_size=1)
        self.model = new_model(config, seed)
        self.weights = named_weights(self.model)
        self.optimizer = make_optimizer(self.weights, training.weight_decay, fused=True)
        warmup = round(training.warmup * training.steps)
        self.rate = learning_rate(training.learning_rate, training.schedule, total=training.steps, warmup=warmup)
        self.step, self.loss, self.fill = 0, None, Fill()
        folder.mkdir(exist_ok=True)
        if found := checkpoints(folder):
            self._restore(load_seed(found[-1]))

    def finish(self, on_step: Watch | None = None, say: Say | None = None) -> None:
        """Take the steps that are left, and evaluate."""
        _rewind(self.folder / LOG, self.step)
        with open(self.folder / LOG, "ab", buffering=0) as log:
            while self.step < self.config.training.steps:
                self._epoch(log, on_step)
        self.evaluated = self._evaluate(say or silent)

    def _epoch(self, log: Any, on_step: Watch | None) -> None:
        """The rest of an epoch, or of the steps."""
        training, planned = self.config.training, iter(self.sampler)
        while (rows := next(planned, None)) is not None:
            began, epoch = time.monotonic(), rows.microbatch.epoch  # at the last batch of an epoch, the sampler is at the next
            batch = collate_compressed_batch(self.data.__getitems__(rows))
            rate = self.rate(self.step)
            loss, norm = self._move(batch, rate)
            self.step, self.loss = self.step + 1, loss
            fill = _fill(batch)
            self.fill += fill
            report = StepReport(self.step, training.steps, epoch, loss, rate, norm, fill.used, time.monotonic() - began, fill)
            last = self.step == training.steps
            if last or self.step == 1 or self.step % training.log_every == 0:
                line = {"step": self.step, "epoch": epoch, "loss": loss, "learning_rate": rate, "grad_norm": norm, "fill": fill.ratio}
                log.write(json.dumps(line).encode() + b"\n")
            if on_step is not None:
                on_step(report)
            if last or self.step % training.save_every == 0:
                self._save(planned.state_dict())
            if last:
                return

    def _move(self, batch: dict[str, Any], rate: float) -> tuple[float, float]:
        """One step of the optimizer; the loss and the norm of its gradient."""
        loss = self.model.loss(batch)
        loss.backward()
        value, norm = (
            loss.item(),
            torch.nn.utils.clip_grad_norm_(list(self.weights.values()), self.config.training.clip_norm or math.inf).item(),
        )
        for what, number in (("loss", value), ("gradient", norm)):
            if not math.isfinite(number):
                named = ", ".join(batch["id"][:NAMED]) + (" .." if len(batch["id"]) > NAMED else "")
                raise BrimError(
                    f"the {what} is not finite in step {self.step + 1} of seed {self.seed}; the samples are {named}; "
                    f"lower training.learning_rate, which is {self.config.training.learning_rate}"
                )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return value, norm

    def _save(self, position: dict[str, Any]) -> None:
        weights = {name: weight.detach() for name, weight in self.weights.items()}
        saved = SavedSeed(weights, moments(self.optimizer, self.weights), position, self.step, self.seed, self.config.to_dict())
        save_seed(checkpoint_path(self.folder, self.step), saved)
        forget_old(self.folder, KEPT)

    def _restore(self, saved: SavedSeed) -> None:
        self.model.load_state_dict(saved.weights)
        restore_moments(self.optimizer, self.weights, saved.moments)
        self.sampler.load_state_dict(saved.position)
        self.step = saved.step

    def _evaluate(self, say: Say) -> InContext:
        """Play the held-out goals, or read how they were played before."""
        path, config = self.folder / IN_CONTEXT, self.config
        key = fingerprint(config={**config.to_dict(), "training": {"steps": self.step}}, weights=_digest(self.model))
        try:
            if (known := _played(path, key, self.seed, config)) is not None:
                return known
        except DamagedError as error:
            say(f"{error}; evaluating seed {self.seed} again")
        result = evaluate(self.model, config, seed=self.seed)
        _write_json(path, {"format": FORMAT, "key": key, **result.to_dict(), "returns": result.returns.tolist()})
        return result


def new_model(config: DistillConfig, seed: int) -> CompressedAD:
    """A model with the first weights of a seed; torch's own generator stays as it is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(raw_bits(1, seed=seed, purpose="first weights")[0] >> np.uint64(1)))
        return CompressedAD(config.model, size=config.histories.room.size, window=config.data.window)


def load_distilled(checkpoint: str | Path) -> tuple[CompressedAD, DistillConfig]:
    """The model in a checkpoint, and the options of its run.

    Raises:
        DataError: There is no checkpoint.
        DamagedError: It is not as it was written.
    """
    saved = load_seed(Path(checkpoint))
    config = config_from(saved.config)
    model = new_model(config, saved.seed)
    model.load_state_dict(saved.weights)
    return model, config


@contextmanager
def _threads(count: int) -> Generator[None, None, None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _begin(output: Path, config: DistillConfig, *, resume: bool) -> None:
    """Refuse what would end in an error later, or in the loss of a file; then write the options."""
    if resume:
        config.check_resumed(config_of(output))
    written = {HISTORIES: is_histories} if resume else {HISTORIES: is_histories, RUN: _is_ours, RESULTS: _is_ours}
    for path, is_ours in ((output / name, is_ours) for name, is_ours in written.items()):
        if path.exists() and not is_ours(path):
            raise OptionError(f"{path} is not a file of `brim train distill`, and would be overwritten; choose another --output")
    if not resume and (any(checkpoints(folder) for folder in output.glob("seed-*")) or checkpoints(output)):
        raise OptionError(f"{output} holds a run already; continue it with --resume, or choose another --output")
    for seed in config.training.seeds:
        check_seed(folder := output / f"seed-{seed}")
        if checkpoints(folder):
            _logged(folder / LOG)
    _write_json(output / RUN, {"format": FORMAT, "config": config.to_dict()})


def _histories(path: Path, config: DistillConfig, say: Say) -> Histories:
    """Those of the config: as they are in the file, or recorded now. They are a function of the config, so a damaged file costs nothing."""
    if path.exists():
        try:
            there = Histories(path)
        except DamagedError:
            say(f"{path} is damaged, or of another version of brim")
        else:
            if there.fingerprint == config.histories.fingerprint:
                return there
            there.close()
    say(f"recording {config.histories.repeats} histories for each goal")
    write_histories(path, config.histories)
    return Histories(path)


def _fill(batch: dict[str, Any]) -> Fill:
    masks = [stretch["mask"] for stretch in (*batch["compression_stages"], batch["context"])]
    return Fill(sum(int(mask.sum()) for mask in masks), sum(mask.numel() for mask in masks))


def _digest(model: CompressedAD) -> str:
    return fingerprint(**{name: weight.detach().numpy().view(np.int32) for name, weight in model.state_dict().items()})


def _is_ours(path: Path) -> bool:
    """Whether a file of JSON says that it is of a distillation, in any version."""
    try:
        return str(json.loads(path.read_bytes())["format"]).startswith(FAMILY)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _played(path: Path, key: str, seed: int, config: DistillConfig) -> InContext | None:
    """The evaluation in a file; None if there is none, or one of other weights or options.

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


def _rewind(path: Path, step: int) -> None:
    """Cut off the lines after a step: they are of steps that are taken again."""
    if path.exists():
        kept = [line for at, line in _logged(path) if at <= step] if step else []
        with atomic_file(path) as file:
            file.writelines(kept)


def _logged(path: Path) -> list[tuple[int, bytes]]:
    """The lines of a log, each with its step, without one that a kill cut off at the end.

    Raises:
        DamagedError: Another line is damaged. It is for its owner to say that it can go.
    """
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    found: list[tuple[int, bytes]] = []
    for number, line in enumerate(lines, 1):
        try:
            found.append((int(json.loads(line)["step"]), line.rstrip(b"\n") + b"\n"))
        except (ValueError, KeyError, TypeError):
            if line.endswith(b"\n"):
                raise DamagedError(
                    f"{path}:{number} is damaged; remove that line to go on, or the file: training does not read it"
                ) from None
    return found


def _write_json(path: Path, value: Any) -> None:
    with atomic_file(path) as file:
        file.write(json.dumps(value, indent=2).encode() + b"\n")
